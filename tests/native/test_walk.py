"""Footers walked by the kernels and by Python give the same rows, or the same error at the same
byte.
"""

import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featstore.native import kernels
from featstore.native.format import CHUNKS, PLAN, SLOTS, FooterError, walk
from tests.native.oracles.footer_walk import walk_in_python

NUM_MUTANTS = 6_000
BOTH = pytest.mark.parametrize("by", [walk, walk_in_python])


@pytest.fixture(scope="module")
def footer(written: Callable[..., bytes]) -> bytes:
    columns = {"id": [1, 2, 3], "tags": [[1.5], None, []], "text": ["a", "b", None]}
    file = written(pa.table(columns), row_group_size=2, write_page_index=True)
    found: bytes = file[-8 - int.from_bytes(file[-8:-4], "little") : -8]
    return found


def outcome(by: Any, data: bytes) -> object:
    try:
        return [table.tolist() for table in by(data)]
    except FooterError as error:
        return str(error)


def mutant(footer: bytes, draw: random.Random) -> bytes:
    """A footer with bits flipped, bytes changed, removed or inserted, or truncated."""
    data = bytearray(footer)
    for _ in range(draw.choice([1, 1, 1, 2, 8])):
        place = draw.randrange(len(data))
        kind = draw.randrange(5)
        if kind <= 1:
            data[place] ^= 1 << draw.randrange(8)
        elif kind == 2:
            data[place] = draw.choice([0, 0x0F, 0xF0, 0x7F, 0x80, 0xFF, draw.randrange(256)])
        elif kind == 3:
            del data[place : place + draw.randrange(4)]
        else:
            data[place:place] = draw.randbytes(draw.randrange(1, 11))
    return bytes(data[: draw.randrange(len(data))] if draw.random() < 0.1 else data)


def test_the_kernels_and_python_walk_damaged_footers_alike(footer: bytes) -> None:
    draw, found = random.Random(11), {"whole": 0}
    assert outcome(walk, footer) == outcome(walk_in_python, footer)
    for number in range(NUM_MUTANTS):
        data = mutant(footer, draw)
        by_kernel = outcome(walk, data)
        assert by_kernel == outcome(walk_in_python, data), f"mutant {number}: {data.hex()}"
        kind = by_kernel.partition(": ")[2] if isinstance(by_kernel, str) else "whole"
        found[kind] = found.get(kind, 0) + 1
    assert len(found) == 6, f"expected mutants of every kind, found {found}"
    assert found["whole"] < NUM_MUTANTS // 2


@BOTH
def test_every_chunk_is_a_row_with_its_numbers(by: Any, footer: bytes) -> None:
    chunks = by(footer)[CHUNKS]
    assert chunks.shape == (6, len(SLOTS[CHUNKS]))
    assert chunks[:, SLOTS[CHUNKS]["num_values"]].tolist() == [2, 2, 2, 1, 1, 1]
    assert chunks[:, SLOTS[CHUNKS]["type"]].tolist() == [2, 5, 6] * 2


@BOTH
def test_a_list_of_more_elements_than_arrow_takes_is_refused_before_it_is_walked(by: Any) -> None:
    claim = b"\x15\x04\x19\xfc\xff\xff\xff\x7f" + b"\x00" * 100
    with pytest.raises(FooterError, match="at most 1,000,000 elements"):
        by(claim)


@BOTH
def test_memory_is_bounded_by_the_footers_bytes_and_not_by_its_counts(by: Any) -> None:
    claim = b"\x15\x04\x19\xfc\xc0\x84\x3d" + b"\x48\x01a\x00" * 1_000  # of a million elements
    tracemalloc.start()
    with pytest.raises(FooterError, match="none that is complete"):
        by(claim)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


@BOTH
def test_structs_nested_too_deeply_are_refused(by: Any, footer: bytes) -> None:
    nested = footer[:-1] + b"\x1c" * 10_000 + b"\x00" * 10_001
    assert isinstance(outcome(by, nested), str)


def test_a_plan_that_leaves_its_tables_is_refused() -> None:
    widths, structs, fields = PLAN
    for plan in (
        (widths[:-1], structs, fields),
        (widths, structs, fields[:-1]),
        (np.full_like(widths, 2), structs, fields),
        (widths, structs[1:], fields),
    ):
        with pytest.raises(ValueError, match="expected a plan"):
            kernels.walk_footer(b"\0", *(np.ascontiguousarray(part) for part in plan))
