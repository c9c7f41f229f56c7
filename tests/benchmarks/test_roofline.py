"""The limit that the loader's figures are told against."""

from functools import partial
from pathlib import Path

import pytest

from featstore.loader.plan.roofline import Limit
from featstore.table.open import open_snapshot
from loader_parts.plain_workload import PlainWorkload
from loader_parts.reading import featstore
from loader_parts.roofline import costs_of, in_units, limit_of_case, part, share

WORKLOAD = PlainWorkload(num_files=2, rows_per_file=3_000, num_columns=50)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return WORKLOAD.write(tmp_path_factory.mktemp("plain"))


def test_a_share_of_the_limit_is_of_as_many_cores() -> None:
    limit = Limit(
        stored_bytes=100, raw_bytes=300, tensor_bytes=400, copy_rate=100.0, decompress_rate=50.0
    )
    assert share(limit, 22.0, num_cores=1) == 0.5
    assert share(limit, 22.0, num_cores=2) == 0.25
    assert part(limit, 0.5).seconds == limit.seconds / 2
    assert in_units(limit)["one_core_ms"] == {"read": 1e3, "decompress": 6e3, "write": 4e3}


def test_the_limit_of_a_case_counts_the_bytes_of_its_batches(paths: list[str]) -> None:
    read = featstore(open_snapshot(str(Path(paths[0]).parent)))
    limit = limit_of_case(paths, WORKLOAD.columns, read(paths, WORKLOAD.columns, 512))
    assert limit.tensor_bytes > 8 * WORKLOAD.num_rows * (len(WORKLOAD.columns) - 2)
    assert 0 < limit.stored_bytes < limit.raw_bytes


def test_costs_are_those_of_one_epoch(paths: list[str]) -> None:
    read = featstore(open_snapshot(str(Path(paths[0]).parent)))
    costs = costs_of(partial(read, paths, WORKLOAD.columns, 512), paths)
    assert costs["decode_ms"] > 0
    assert 0 < costs["training_thread_ms"] <= costs["user_ms"] + costs["system_ms"] + 1
    assert costs["footers_ms"] > 0
    assert costs["minor_faults"] >= 0
