"""The limit that the loader's figures are told against."""

from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from featstore.table.open import open_snapshot
from loader_parts.plain_workload import PlainWorkload
from loader_parts.reading import featstore
from loader_parts.roofline import Limit, costs_of, limit_of

WORKLOAD = PlainWorkload(num_files=2, rows_per_file=3_000, num_columns=50)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return WORKLOAD.write(tmp_path_factory.mktemp("plain"))


def test_the_limit_is_the_sum_of_reading_decompressing_and_writing() -> None:
    limit = Limit(
        stored_bytes=100, raw_bytes=300, tensor_bytes=400, copy_rate=100.0, decompress_rate=50.0
    )
    assert limit.parts_s == {"read": 1.0, "decompress": 6.0, "write": 4.0}
    assert limit.share(22.0, num_cores=1) == 0.5
    assert limit.share(22.0, num_cores=2) == 0.25


def test_bytes_are_those_of_the_columns_that_are_read(paths: list[str]) -> None:
    read = featstore(open_snapshot(str(Path(paths[0]).parent)))
    limit = limit_of(paths, WORKLOAD.columns, read(paths, WORKLOAD.columns, 512))
    stored = raw = 0
    for path in paths:
        group = pq.ParquetFile(path).metadata.row_group(0)
        chunks = [group.column(number) for number in range(group.num_columns)]
        chunks = [of for of in chunks if of.path_in_schema.split(".")[0] in WORKLOAD.columns]
        stored += sum(chunk.total_compressed_size for chunk in chunks)
        raw += sum(chunk.total_uncompressed_size for chunk in chunks)
    # Sizes in the footer contain the headers of pages, of which there are two or more a chunk.
    assert 0.98 * stored < limit.stored_bytes < stored
    assert 0.98 * raw < limit.raw_bytes < raw
    assert limit.tensor_bytes > 8 * WORKLOAD.num_rows * (len(WORKLOAD.columns) - 2)
    assert limit.copy_rate > 0
    assert limit.decompress_rate > 0


def test_costs_are_those_of_one_epoch(paths: list[str]) -> None:
    read = featstore(open_snapshot(str(Path(paths[0]).parent)))
    costs = costs_of(partial(read, paths, WORKLOAD.columns, 512), paths)
    assert costs["decode_ms"] > 0
    assert 0 < costs["training_thread_ms"] <= costs["user_ms"] + costs["system_ms"] + 1
    assert costs["footers_ms"] > 0
    assert costs["minor_faults"] >= 0
