import datetime
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import InputError, StoreError
from featstore.extraction.units.raw import (
    RawFile,
    batch_rows,
    check_constant,
    check_partition_given,
    find_raw_files,
    open_range,
    open_raw,
    plan_units,
    read_batches,
)
from featstore.files.listings import FileEntry, listing_digest
from featstore.reading.kept import KeptSpans
from tests.damaged_files import overwrite
from tests.native.mutants import number_of, sound_chunks, with_number, write_file
from tests.parquet_files import put_parquet
from tests.python_memory import threads_of_bytes
from tests.short_reads import unreadable_descriptors


def raw_file(name: str, row_groups: list[int], **partition: str) -> RawFile:
    return RawFile(
        listed=FileEntry(url=f"/raw/{name}", name=name, size_bytes=1, version="1"),
        partition=partition,
        row_groups=tuple(row_groups),
        schema=pa.schema([]),
    )


def test_small_files_are_joined_and_large_ones_cut_at_row_groups() -> None:
    units = plan_units(
        [raw_file("a", [10, 10]), raw_file("b", [10]), raw_file("c", [30, 30, 30])], 60
    )
    assert [
        [(r.url, r.first_row_group, r.last_row_group, r.first_row, r.num_rows) for r in u.ranges]
        for u in units
    ] == [
        [("/raw/a", 0, 1, 0, 20), ("/raw/b", 0, 0, 0, 10), ("/raw/c", 0, 0, 0, 30)],
        [("/raw/c", 1, 2, 30, 60)],
    ]
    assert [unit.index for unit in units] == [0, 1]


def test_a_unit_never_spans_two_partitions() -> None:
    units = plan_units(
        [
            raw_file("a", [1], month="1"),
            raw_file("b", [1], month="1"),
            raw_file("c", [1], month="2"),
        ],
        100,
    )
    assert [(unit.partition, unit.num_rows) for unit in units] == [
        ({"month": "1"}, 2),
        ({"month": "2"}, 1),
    ]


@given(st.lists(st.lists(st.integers(0, 50), max_size=6), max_size=6), st.integers(1, 80))
def test_every_row_is_in_exactly_one_unit_in_order(
    files: list[list[int]], rows_per_file: int
) -> None:
    planned = [raw_file(f"f{i}", groups) for i, groups in enumerate(files)]
    units = plan_units(planned, rows_per_file)
    found = [
        (r.url, group)
        for unit in units
        for r in unit.ranges
        for group in range(r.first_row_group, r.last_row_group + 1)
    ]
    wanted = [
        (file.listed.url, i)
        for file in planned
        for i, num_rows in enumerate(file.row_groups)
        if num_rows
    ]
    assert found == wanted
    largest = max((n for file in files for n in file), default=0)
    assert all(0 < unit.num_rows <= max(rows_per_file, largest) for unit in units)


def test_files_are_found_with_their_partitions(raw: Path, write_raw: Any) -> None:
    write_raw("month=2/b.parquet", 50)
    write_raw("month=10/a.parquet", 90)
    write_raw("month=2/_temporary/c.parquet", 1)
    files = find_raw_files(str(raw), {"site": "nyc"}, ["month"])
    assert [(file.listed.name, file.row_groups, file.partition) for file in files] == [
        ("month=10/a.parquet", (40, 40, 10), {"site": "nyc", "month": "10"}),
        ("month=2/b.parquet", (40, 10), {"site": "nyc", "month": "2"}),
    ]


def test_a_partition_is_taken_from_the_directories_above_a_glob_too(
    raw: Path, write_raw: Any
) -> None:
    write_raw("month=2/b.parquet", 5)
    assert find_raw_files(f"{raw}/month=2/*.parquet", {}, ["month"])[0].partition == {"month": "2"}


def test_two_values_of_a_key_in_one_path_are_refused(raw: Path, write_raw: Any) -> None:
    write_raw("dt=1/dt=2/b.parquet", 5)
    with pytest.raises(InputError, match=r"dt=1/dt=2/b\.parquet: expected one value of .* 'dt'"):
        find_raw_files(str(raw), {}, ["dt"])


def test_directories_of_partitions_ask_for_a_partition(raw: Path, write_raw: Any) -> None:
    write_raw("a.parquet", 5)
    check_partition_given(find_raw_files(str(raw), {}, []))
    write_raw("dt=2026-11-01/hour=03/b.parquet", 5)
    with pytest.raises(InputError) as refused:
        check_partition_given(find_raw_files(str(raw), {}, []))
    assert f"{raw}/dt=2026-11-01/hour=03/b.parquet lies in directories of partitions" in str(
        refused.value
    )
    for named in (
        "(dt=2026-11-01/hour=03)",
        "--partition-from-path dt --partition-from-path hour (partition_from_path=['dt', 'hour'])",
        "--partition KEY=VALUE (partition={...})",
        "--no-partition (no_partition=True)",
    ):
        assert named in str(refused.value)


def test_an_input_without_files_or_directories_is_refused(raw: Path, write_raw: Any) -> None:
    with pytest.raises(InputError, match=r"no raw files at .*raw: expected a Parquet file"):
        find_raw_files(str(raw), {}, [])
    write_raw("a.parquet", 1)
    with pytest.raises(
        InputError, match=r"a\.parquet: expected a directory month=\.\.\. in the path"
    ):
        find_raw_files(str(raw), {}, ["month"])


@pytest.mark.parametrize("directory", ["month=", "month=__HIVE_DEFAULT_PARTITION__"])
def test_a_partition_without_a_value_is_refused(raw: Path, write_raw: Any, directory: str) -> None:
    write_raw(f"{directory}/a.parquet", 1)
    with pytest.raises(
        InputError,
        match=r"a\.parquet: expected a key and a value, found 'month' and '': a partition without",
    ):
        find_raw_files(str(raw), {}, ["month"])


def test_a_raw_file_that_is_no_parquet_is_named(raw: Path, write_raw: Any) -> None:
    write_raw("a.parquet", 1)
    (raw / "b.parquet").write_text("flight,carrier\n")
    with pytest.raises(InputError, match=r"raw input: .*b\.parquet is not a Parquet file"):
        find_raw_files(str(raw), {}, [])


def _with_unknown_codec(path: Path) -> None:
    """A footer by which pyarrow ends the process."""
    data, known = path.read_bytes(), b"\x19\x18\x04user\x15\x02"
    assert known in data
    path.write_bytes(data.replace(known, known[:-1] + b"\x12"))


def test_a_raw_file_whose_footer_is_damaged_is_named(raw: Path, write_raw: Any) -> None:
    _with_unknown_codec(write_raw("a.parquet", 1))
    with pytest.raises(InputError, match=r"raw input: .*a\.parquet is not a Parquet file"):
        find_raw_files(str(raw), {}, [])


def test_a_raw_file_whose_footer_is_damaged_after_it_was_listed_is_named(
    raw: Path, write_raw: Any
) -> None:
    path = write_raw("a.parquet", 100)
    unit = plan_units(find_raw_files(str(raw), {}, []), 40)[0]
    _with_unknown_codec(path)
    with pytest.raises(InputError, match=r"a\.parquet"), open_range(unit.ranges[0]):
        pytest.fail("expected an error")


def test_the_input_digest_changes_when_a_file_is_replaced(raw: Path, write_raw: Any) -> None:
    def digest() -> str:
        return listing_digest(file.listed for file in find_raw_files(str(raw), {}, []))

    write_raw("a.parquet", 10)
    before = digest()
    assert digest() == before
    write_raw("a.parquet", 10)
    replaced = digest()
    assert replaced != before
    write_raw("b.parquet", 10)
    assert digest() not in (before, replaced)


def test_only_the_named_columns_of_a_range_are_read(raw: Path, write_raw: Any) -> None:
    write_raw("a.parquet", 100)
    unit = plan_units(find_raw_files(str(raw), {}, []), 40)[1]
    with open_raw(unit.ranges[0].url) as file:
        rows = pa.Table.from_batches(read_batches(file, unit.ranges[0], ["price"]))
    assert rows.column_names == ["price"]
    assert rows["price"].to_pylist() == [row / 3 for row in range(40, 80)]


def test_column_chunks_of_a_remote_file_are_fetched_in_few_reads_of_this_thread(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of Arrow's pool that calls Python while the interpreter ends aborts the process."""
    columns = {name: random.Random(1).choices(range(2**40), k=100_000) for name in "abcdef"}
    path = put_parquet(tmp_path / "a.parquet", columns, row_group_size=50_000)
    loopback.files["/raw/a.parquet"] = path.read_bytes()
    [unit] = plan_units(find_raw_files(f"{loopback.url}/raw/a.parquet", {}, []), 100_000)
    with open_raw(unit.ranges[0].url) as file:
        threads = threads_of_bytes(monkeypatch, KeptSpans)
        num_gets = loopback.num_gets("/raw/a.parquet")
        rows = pa.Table.from_batches(read_batches(file, unit.ranges[0], ["a", "b", "e"]))
        num_gets = loopback.num_gets("/raw/a.parquet") - num_gets
    assert rows.to_pydict() == {name: columns[name] for name in "abe"}
    assert num_gets == 4
    assert set(threads) == {(threading.get_ident(),) * 2}


def test_times_of_96_bits_are_read_in_any_year(tmp_path: Path) -> None:
    """As Spark writes them by default. In nanoseconds, years after 2262 would be others."""
    times = [datetime.datetime(year, 1, 1) for year in (1, 1969, 9999)]
    path, rows = tmp_path / "a.parquet", pa.table({"at": pa.array(times, pa.timestamp("us"))})
    pq.write_table(rows, path, use_deprecated_int96_timestamps=True)
    unit = plan_units(find_raw_files(str(tmp_path), {}, []), 40)[0]
    with open_raw(str(path)) as file:
        (batch,) = read_batches(file, unit.ranges[0], ["at"])
    assert batch["at"].to_pylist() == times


def test_rows_that_cannot_be_decoded_are_named(raw: Path, write_raw: Any) -> None:
    path = write_raw("a.parquet", 100)
    units = plan_units(find_raw_files(str(raw), {}, []), 40)
    end_of_pages = path.stat().st_size - 8 - pq.read_metadata(path).serialized_size
    overwrite(path, 4, end_of_pages - 4)
    with (
        open_raw(str(path)) as file,
        pytest.raises(InputError, match=r"a\.parquet, rows 0 to 39: cannot be read"),
    ):
        list(read_batches(file, units[0].ranges[0], ["user", "price"]))


def test_rows_that_the_system_cannot_read_are_no_wrong_input(raw: Path, write_raw: Any) -> None:
    path = write_raw("a.parquet", 100)
    units = plan_units(find_raw_files(str(raw), {}, []), 40)
    with open_raw(str(path)) as file:
        assert unreadable_descriptors(path)
        with pytest.raises(
            StoreError, match=r"a\.parquet, rows 0 to 39: cannot be read: .*Bad file descriptor"
        ):
            list(read_batches(file, units[0].ranges[0], ["user", "price"]))


def test_pages_that_claim_more_than_the_footer_allows_are_named_before_arrow_reads_them(
    tmp_path: Path,
) -> None:
    found = sound_chunks(tmp_path, random.Random(1))
    chunk = next(chunk for chunk in found if chunk.levels[0] and len(chunk.pages) > 2)
    last = chunk.pages[-1]
    struct = {0: 5, 3: 8}[number_of(last.header, 1)]
    claim = [
        (at, of, with_number(found, 1, 2**31 - 1) if at == struct else found)
        for at, of, found in last.header
    ]
    raw = tmp_path / "raw"
    raw.mkdir()
    write_file(
        raw / "a.parquet", replace(chunk, pages=(*chunk.pages[:-1], replace(last, header=claim)))
    )
    [unit] = plan_units(find_raw_files(str(raw), {}, []), 1_000)
    expected = (
        r"a\.parquet, rows 0 to \d+: cannot be read \(column 'x.list.element': row group 0: "
        r".*claim more"
    )
    with pytest.raises(InputError, match=expected), open_range(unit.ranges[0]):
        pass


@pytest.mark.parametrize("values", [["1", "1"], [1, 1]])
def test_a_raw_column_that_agrees_with_the_partition_is_fine(values: list[object]) -> None:
    check_constant(pa.record_batch({"month": values}), {"month": "1", "site": "x"}, "here")


def test_another_text_of_the_value_of_a_raw_column_agrees() -> None:
    batch = pa.record_batch({"hour": pa.array([5, 5], pa.int32()), "new": [True, True]})
    check_constant(batch, {"hour": "05", "new": "1"}, "here")
    for partition in ({"hour": "06"}, {"hour": "x"}, {"new": "0"}):
        with pytest.raises(InputError, match="the partition says"):
            check_constant(batch, partition, "here")


@pytest.mark.parametrize("values", [["1", "2"], [1, 2], ["1", None]])
def test_a_raw_column_that_disagrees_with_the_partition_is_refused(values: list[object]) -> None:
    with pytest.raises(
        InputError, match=r"here: the raw column 'month' holds ('2'|None), the partition says '1'"
    ):
        check_constant(pa.record_batch({"month": values}), {"month": "1"}, "here")


@pytest.mark.parametrize("values", [[["1"]], [b"\xff"]])
def test_a_raw_column_that_is_no_text_is_not_the_partitions(values: list[object]) -> None:
    with pytest.raises(
        InputError, match=r"here: the raw column 'month' \(.*\) cannot be the partition's '1'"
    ):
        check_constant(pa.record_batch({"month": values}), {"month": "1"}, "here")


def test_the_files_of_a_delta_table_are_no_raw_input(tmp_path: Path) -> None:
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    put_parquet(tmp_path / "table" / "dt=1" / "a.parquet", {"user": ["a"]})
    for place in ("table", "table/dt=1", "table/dt=*"):
        with pytest.raises(
            InputError,
            match=r"lies in the Delta table \S+, some of whose files may be replaced ones",
        ):
            find_raw_files(str(tmp_path / place), {}, [])


@pytest.mark.parametrize(
    ("values_per_row", "num_rows"),
    [(0, 65_536), (0.5, 65_536), (64, 65_536), (64.1, 32_768), (400, 8_192), (5_000, 4_096)],
)
def test_batches_of_wide_rows_are_shorter(values_per_row: float, num_rows: int) -> None:
    assert batch_rows(values_per_row) == num_rows


def test_elements_of_long_lists_shorten_batches_and_columns_that_are_not_read_do_not(
    tmp_path: Path,
) -> None:
    num_rows = 10_000
    columns = {"id": range(num_rows), "a.b": [[1] * 500] * num_rows, "other": [[1] * 9] * num_rows}
    put_parquet(tmp_path / "a.parquet", columns)
    unit = plan_units(find_raw_files(str(tmp_path), {}, []), num_rows)[0]
    with open_raw(unit.ranges[0].url) as file:
        for names, sizes in {
            ("id", "a.b"): [8_192, 1_808],
            ("id", "other"): [num_rows],
        }.items():
            batches = read_batches(file, unit.ranges[0], names)
            assert [batch.num_rows for batch in batches] == sizes


def test_two_raw_columns_of_the_partitions_name_are_refused() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["1"]), pa.array(["2"])], names=["month", "month"])
    with pytest.raises(InputError, match="here: column 'month': expected once, found 2 times"):
        check_constant(batch, {"month": "1"}, "here")
