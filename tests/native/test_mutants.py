"""Damaged chunks: what the kernels accept is what Arrow reads."""

from pathlib import Path

import pytest
from hypothesis import settings

from tests.native.mutants import run

SEED = 17


@pytest.mark.slow
def test_what_the_kernels_accept_of_a_damaged_chunk_is_what_arrow_reads(tmp_path: Path) -> None:
    is_campaign = settings().max_examples > 1_000  # `make faults`
    num_mutants = 50_000 if is_campaign else 3_000
    counts, differing = run(num_mutants, SEED, tmp_path)
    assert not differing, differing[:3]
    assert (
        min(counts["equal"], counts["left to Arrow"], counts["beyond bounds"]) > 0.01 * num_mutants
    )
