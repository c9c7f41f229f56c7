"""Rows of histories give what rows of their own would hold, or an error, and never another key's."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featstore.base.errors import DataFileError
from featstore.histories.file_format import StoredHistory, histories_of
from featstore.loader.request.request import Request, resolve
from featstore.reading.aligned import aligned_reader
from featstore.reading.buffers import Array, SharedLists
from featstore.reading.histories import AnyReader, with_histories
from featstore.reading.open_file import OpenFile
from featstore.table.open import open_snapshot
from tests.history_tables import HISTORY, US, FatRows, make_table, schema_of, write_files

ALL = ("clicks_item", "clicks_price", "clicks_age")
LATE = replace(HISTORY, logged_at="arrived", window_us=2_000 * US)
IN_WINDOW = replace(HISTORY, window_us=2_000 * US)


def lists_of(shared: SharedLists) -> list[list[Any]]:
    """Each list, one after the other."""
    found = []
    for begin, end, *of_age in shared.ranges.tolist():
        values = shared.values[begin:end]
        if of_age:
            time, unit = of_age
            values = ((time - values) / unit).astype(np.float32)
        found.append(values.tolist())
    return found


def read(
    root: Path,
    row_groups: list[int],
    chosen: Array | None = None,
    slots: tuple[str, ...] = ALL,
    history: StoredHistory = HISTORY,
    shorter: Mapping[str, Any] | None = None,
) -> Mapping[str, SharedLists]:
    """The histories of row groups of the only file."""
    histories = None if shorter is None else {"clicks": shorter}
    request = resolve(schema_of(history), slots=["row", *slots], histories=histories)
    [path] = root.iterdir()
    with OpenFile(path) as file:
        return reader_of(file, request).read(row_groups, chosen).histories


def reader_of(file: OpenFile, request: Request) -> AnyReader:
    _, of_rows = request.reads(is_decided=False)
    reader = aligned_reader(file, (), of_rows, as_values=True)
    return with_histories(reader, [file], request.histories)


def expected(fat: FatRows, rows: list[int], slots: tuple[str, ...] = ALL) -> dict[str, Any]:
    columns = fat.columns()
    return {name: [columns[name][row] for row in rows] for name in slots}


@pytest.mark.parametrize("history", [HISTORY, IN_WINDOW, LATE])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_rows_give_what_rows_of_their_own_would_hold(history: Any, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=3))
    with TemporaryDirectory() as directory:
        root = Path(directory) / "table"
        fat, _ = write_files(root, data.draw(st.integers(0, 1 << 30)), [sizes], history)
        first = data.draw(st.integers(0, len(sizes) - 1))
        groups = list(range(first, data.draw(st.integers(first, len(sizes) - 1)) + 1))
        begin, end = sum(sizes[:first]), sum(sizes[: groups[-1] + 1])
        num_rows, chosen = end - begin, None
        if data.draw(st.booleans()):
            order = data.draw(st.permutations(range(num_rows)))
            chosen = np.array(order[: data.draw(st.integers(0, num_rows))], np.int64)
        slots = tuple(data.draw(st.lists(st.sampled_from(ALL), min_size=1, unique=True)))
        found = read(root, groups, chosen, slots, history)
        rows = list(range(num_rows)) if chosen is None else chosen.tolist()
        assert {name: lists_of(each) for name, each in found.items()} == expected(
            fat, [begin + row for row in rows], slots
        )


@pytest.mark.parametrize("history", [HISTORY, IN_WINDOW, LATE])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_shorter_histories_are_those_that_were_extracted_so(
    history: Any, data: st.DataObject
) -> None:
    max_len = data.draw(st.none() | st.integers(1, 20))
    window_s = data.draw(st.none() | st.integers(1, 2_000))
    changed = {} if max_len is None else {"max_len": max_len}
    changed |= {} if window_s is None else {"window_us": window_s * US}
    shorter = {"max_len": max_len, "window": None if window_s is None else f"{window_s}s"}
    slots = tuple(data.draw(st.lists(st.sampled_from(ALL), min_size=1, unique=True)))
    with TemporaryDirectory() as directory:
        root, seed = Path(directory) / "table", data.draw(st.integers(0, 99))
        write_files(root, seed, [[40, 20]], history)
        fat, _ = write_files(
            Path(directory) / "other", seed, [[40, 20]], replace(history, **changed)
        )
        found = read(root, [0, 1], None, slots, history, shorter)
    assert {name: lists_of(each) for name, each in found.items()} == expected(
        fat, list(range(60)), slots
    )


def test_lists_are_held_once_however_many_rows_share_them(tmp_path: Path) -> None:
    root = tmp_path / "table"
    fat, _ = write_files(root, 3, [[400]], num_keys=2)
    found = read(root, [0])
    assert sum(map(len, fat.item)) > 20 * len(found["clicks_item"].values)
    assert found["clicks_item"].ranges is found["clicks_price"].ranges


@pytest.mark.parametrize(("history", "are_made"), [(HISTORY, False), (LATE, True)])
def test_lists_that_are_made_while_reading_are_counted(
    tmp_path: Path, history: StoredHistory, are_made: bool
) -> None:
    """Rows before which old events arrived late have lists of their own."""
    root = tmp_path / "table"
    write_files(root, 3, [[400]], history)
    request = resolve(schema_of(history), slots=["row", *ALL])
    [path] = root.iterdir()
    with OpenFile(path) as file:
        rows = reader_of(file, request).read([0])
    held = {id(each.values): each.values.nbytes for each in rows.histories.values()}
    assert rows.own_lists_bytes == (sum(held.values()) if are_made else 0)


def _back_beyond(columns: dict[str, Any]) -> None:
    columns["clicks_back"][7] = 8


def _back_ahead(columns: dict[str, Any]) -> None:
    columns["clicks_back"][7] = -1


def _of_another(columns: dict[str, Any]) -> None:
    keys = columns["clicks_key"]
    row = next(row for row in range(len(keys)) if keys[row] and columns["clicks_back"][row])
    other = next(at for at in range(row) if keys[at] != keys[row])
    columns["clicks_back"][row] = row - other


def _key_changed(columns: dict[str, Any]) -> None:
    row = int(np.flatnonzero(columns["clicks_back"])[0])
    columns["clicks_key"][row] += 1


def _end_beyond(columns: dict[str, Any]) -> None:
    columns["clicks_end"][5] = 10_000


def _end_negative(columns: dict[str, Any]) -> None:
    columns["clicks_end"][5] = -1


def _too_long(columns: dict[str, Any]) -> None:
    columns["clicks_length"][5] = columns["clicks_end"][5] + 1


def _length_negative(columns: dict[str, Any]) -> None:
    columns["clicks_length"][5] = -1


def _without_key(columns: dict[str, Any]) -> None:
    row = int(np.flatnonzero(columns["clicks_length"])[0])
    columns["clicks_key"][columns["clicks_key"] == columns["clicks_key"][row]] = 0


@pytest.mark.parametrize(
    ("change", "column", "what"),
    [
        (_back_beyond, "clicks_back", "a row before it, or 0, found 8"),
        (_back_ahead, "clicks_back", "a row before it, or 0, found -1"),
        (_of_another, "clicks_key", "the key of the row that clicks_back names"),
        (_key_changed, "clicks_key", "the key of the row that clicks_back names"),
        (_end_beyond, "clicks_end", "at most as many events as the key's list, found 10000"),
        (_end_negative, "clicks_end", "at most as many events as the key's list, found -1"),
        (_too_long, "clicks_length", "0 to clicks_end, and 0 without a key"),
        (_length_negative, "clicks_length", "0 to clicks_end, and 0 without a key, found -1"),
        (_without_key, "clicks_length", "0 to clicks_end, and 0 without a key"),
    ],
)
def test_a_range_outside_its_own_keys_list_names_file_column_row_group_and_row(
    tmp_path: Path, change: Any, column: str, what: str
) -> None:
    def damage(number: int, columns: dict[str, Any]) -> None:
        if number == 1:
            change(columns)

    write_files(tmp_path / "table", 5, [[30, 60]], damage=damage)
    match = rf"\.parquet: column '{column}': row group 1: row \d+: expected {what}"
    with pytest.raises(DataFileError, match=match):
        read(tmp_path / "table", [0, 1])
    assert read(tmp_path / "table", [0])


def test_an_event_that_is_not_before_its_row_is_an_error(tmp_path: Path) -> None:
    def damage(number: int, columns: dict[str, Any]) -> None:
        columns["ts"][columns["clicks_length"] > 0] = 0

    write_files(tmp_path / "table", 5, [[30]], damage=damage)
    with pytest.raises(DataFileError, match=r"'clicks_end': row group 0: .* before the row's time"):
        read(tmp_path / "table", [0])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_columns_never_give_another_keys_events(data: st.DataObject) -> None:
    column = data.draw(
        st.sampled_from(["clicks_end", "clicks_length", "clicks_back", "clicks_key"])
    )
    changes = data.draw(
        st.lists(st.tuples(st.integers(0, 39), st.integers(-3, 60)), min_size=1, max_size=5)
    )
    is_moved = data.draw(st.booleans())

    def damage(number: int, columns: dict[str, Any]) -> None:
        for row, value in changes:
            columns[column][row] = columns[column][row] + value if is_moved else value

    with TemporaryDirectory() as directory:
        root = Path(directory) / "table"
        seed = data.draw(st.integers(0, 99))
        fat, _ = write_files(root, seed, [[40]], damage=damage)
        try:
            found = read(root, [0], slots=("clicks_item",))["clicks_item"]
        except DataFileError:
            return
        for row, items in enumerate(lists_of(found)):
            assert set(items) <= fat.of_key[fat.keys[row]]


def test_a_file_that_another_program_wrote_again_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "table"
    write_files(root, 5, [[30]])
    [path] = root.iterdir()
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["clicks_item", "clicks_price", "clicks_at"]), path)
    with pytest.raises(DataFileError, match=r"a column 'clicks_item' beside .*, found none"):
        read(root, [0])


def test_rows_of_files_from_before_the_history_have_none(tmp_path: Path) -> None:
    root = tmp_path / "table"
    write_files(root, 5, [[30]])
    [path] = root.iterdir()
    table = pq.read_table(path)
    own = [name for name in table.column_names if name.startswith("clicks_")]
    pq.write_table(table.drop_columns(own), path)
    for shared in read(root, [0]).values():
        assert lists_of(shared) == [[]] * 30


def test_ranges_that_a_table_declares_as_wider_integers_are_read(tmp_path: Path) -> None:
    """As where another engine has widened the table's types."""
    fat, _ = write_files(tmp_path / "table", 5, [[30]])
    schema = schema_of()
    wider = [
        each.with_type(pa.int64()) if each.type == pa.int32() else each for each in schema.kept
    ]
    assert len(set(wider) - set(schema.kept)) == 3
    request = resolve(replace(schema, kept=tuple(wider)), slots=["row", *ALL])
    [path] = (tmp_path / "table").iterdir()
    with OpenFile(path) as file:
        found = reader_of(file, request).read([0]).histories
    assert {name: lists_of(shared) for name, shared in found.items()} == expected(fat, [*range(30)])


def test_other_readers_do_not_see_the_lists(tmp_path: Path) -> None:
    make_table(tmp_path / "table", 5, [[30]])
    write_files(tmp_path / "files", 5, [[30]])
    for url in (tmp_path / "table", tmp_path / "files"):
        schema = open_snapshot(str(url)).schema
        assert schema.names == ("row", "tags")
        assert [each.name for each in schema.kept][1:] == [
            "clicks_end", "clicks_length", "clicks_back",
        ]  # fmt: skip
        assert histories_of(schema) == (HISTORY,)
