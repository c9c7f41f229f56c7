"""What reading slots costs: bytes of the files, and times that follow from the clock alone."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import featstore
from featstore.base.errors import DataFileError, SelectionError
from featstore.explore.reading_costs import reading_costs
from featstore.explore.table import Table
from featstore.loader.plan.column_sizes import ColumnSizes
from featstore.reading.file_columns import Selection
from featstore.reading.open_file import OpenFile
from tests.parquet_files import put_parquet

NUM_ROWS = 3000


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Three files. The last one lacks `tags`."""
    random = np.random.default_rng(0)
    for i in range(3):
        columns: dict[str, Any] = {
            "flat": random.integers(0, 1 << 40, NUM_ROWS),
            "same": np.full(NUM_ROWS, 7),
        }
        if i < 2:
            columns["tags"] = pa.array([[1, 2, 3]] * NUM_ROWS, pa.list_(pa.int64()))
        put_parquet(tmp_path / "table" / f"{i}.parquet", columns, row_group_size=1000)
    return featstore.open_table(tmp_path / "table")


def chunk_bytes(table: Table, name: str) -> int:
    total = 0
    for file in table.data_files():
        footer = pq.ParquetFile(file.url).metadata
        for group in range(footer.num_row_groups):
            for i in range(footer.num_columns):
                chunk = footer.row_group(group).column(i)
                total += chunk.total_compressed_size * (chunk.path_in_schema.split(".")[0] == name)
    return total


def test_bytes_and_values_are_those_of_the_footers(table: Table) -> None:
    found = table.reading_costs()
    rows = {row["slot"]: row for row in found.table.to_pylist()}
    for name, row in rows.items():
        assert row["stored_bytes"] == chunk_bytes(table, name)
        assert row["stored_bytes_per_row"] == row["stored_bytes"] / (3 * NUM_ROWS)
    assert rows["tags"]["values_per_row"] == 2.0  # three in two of three files
    assert (found.num_rows, found.num_decoded_rows) == (3 * NUM_ROWS, 3 * 1000)


def test_without_decoding_there_are_bytes_and_no_times(table: Table) -> None:
    found = table.reading_costs(decode=False)
    assert found.table["stored_bytes"].equals(table.reading_costs().table["stored_bytes"])
    assert found.table["decode_ns_per_row"].null_count == 3
    assert found.num_decoded_rows == 0
    assert str(found).splitlines()[0].endswith("footers are left out)")


def test_every_slot_takes_time_to_decode(table: Table) -> None:
    """Of 1,000 rows of lists, whatever else the machine does: CPU time of this thread."""
    [row] = table.reading_costs(slots=["tags"]).table.to_pylist()
    assert row["decode_ns_per_row"] >= 0.0
    assert row["kind"] == "id"
    assert row["shape"] == "list"


def test_the_time_is_what_each_further_row_group_adds_in_the_fastest_round(table: Table) -> None:
    """A clock by which a call of 1 row group takes 700 ns at best, and one of 4 takes 3,700 ns."""
    times_ns = itertools.cycle([900, 700, 800, 4000, 3900, 3700])

    def ticks() -> Iterator[int]:
        now = 0
        for spent_ns in times_ns:
            yield now
            now += spent_ns
            yield now

    clock = ticks()
    [file, *_] = table.data_files()
    slots = [table.schema["flat"], table.schema["same"]]
    sizes = ColumnSizes.of([file], Selection(slots=tuple(slots)))
    with OpenFile(Path(file.url), file.path) as opened:
        found = reading_costs(sizes, slots, [(opened, ())], cpu_clock_ns=lambda: next(clock))
    assert found.table["decode_ns_per_row"].to_pylist() == [1.0, 1.0]


def test_a_slot_that_no_decoded_file_has_has_no_time(table: Table) -> None:
    *_, last = table.data_files()
    slots = [table.schema["flat"], table.schema["tags"]]
    sizes = ColumnSizes.of([last], Selection(slots=tuple(slots)))
    with OpenFile(Path(last.url), last.path) as opened:
        flat, tags = reading_costs(sizes, slots, [(opened, ())]).table.to_pylist()
    assert flat["decode_ns_per_row"] is not None
    assert (tags["decode_ns_per_row"], tags["stored_bytes"]) == (None, 0)


def test_only_chosen_slots_and_partitions_are_measured(tmp_path: Path) -> None:
    for day in (1, 2):
        put_parquet(
            tmp_path / "t" / f"dt={day}" / "a.parquet", {"one": [1] * day, "two": [2] * day}
        )
    table = featstore.open_table(tmp_path / "t")
    found = table.reading_costs("dt = '2'", ["t*"])
    assert (found.num_rows, found.table["slot"].to_pylist()) == (2, ["two"])
    with pytest.raises(SelectionError, match="tow"):
        table.reading_costs(slots=["tow"])


def test_the_files_of_slot_groups_are_read(tmp_path: Path) -> None:
    base: Any = {
        "spec": 1,
        "inputs": {"user": "string", "price": "double"},
        "slots": [{"slot": 1, "name": "user", "op": "hash", "of": "user"}],
    }
    group = base | {"slots": [{"slot": 2, "name": "price", "op": "identity", "of": "price"}]}
    rows = {"user": [f"u{i}" for i in range(50)], "price": [float(i) for i in range(50)]}
    put_parquet(tmp_path / "raw" / "dt=1" / "a.parquet", rows)
    raw, url = str(tmp_path / "raw"), str(tmp_path / "table")
    featstore.extract(base, raw, url, partition_from_path=["dt"])
    featstore.extract(group, raw, url, partition_from_path=["dt"], group="prices")
    user, price = featstore.open_table(url).reading_costs().table.to_pylist()
    assert min(user["stored_bytes"], price["stored_bytes"]) > 0
    assert price["decode_ns_per_row"] is not None


def test_a_damaged_file_is_named(table: Table) -> None:
    file = Path(table.data_files()[0].url)
    file.write_bytes(file.read_bytes()[:-8] + b"\0" * 8)
    with pytest.raises(DataFileError, match=r"0\.parquet"):
        table.reading_costs()


def test_a_table_without_rows_has_no_times(tmp_path: Path) -> None:
    put_parquet(tmp_path / "a.parquet", {"one": pa.array([], pa.int64())})
    found = featstore.open_table(tmp_path).reading_costs()
    assert found.num_decoded_rows == 0
    assert "unknown" in "".join(found.plot_costs().axes[1].texts[0].get_text())


def test_the_text_begins_with_the_slots_that_take_most_time(table: Table) -> None:
    found = table.reading_costs()
    times = {row["slot"]: row["decode_ns_per_row"] for row in found.table.to_pylist()}
    lines = str(found).splitlines()
    assert lines[0].startswith("a row of these slots: ")
    assert "footers are left out), " in lines[0]
    assert [line.split()[0] for line in lines[3:]] == sorted(times, key=lambda name: -times[name])
    assert json.loads(json.dumps(found.as_dict()))["slots"] == found.table.to_pylist()
