"""Data files with histories that are written again: rows see the same events, and lists have no
others.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from featstore.base.errors import DataFileError
from featstore.extraction import rewriting
from featstore.extraction.deletion import delete_rows
from featstore.extraction.rewriting import rewrite_file
from featstore.table.delta import commit, open_delta
from featstore.table.vacuum import vacuum
from tests.history_tables import HISTORY, US, FatRows, change, make_table, write_files
from tests.loader.test_histories import make, rows_checked
from tests.old_files import age

IN_WINDOW = replace(HISTORY, window_us=2_000 * US)
LATE = replace(HISTORY, logged_at="arrived", window_us=2_000 * US)
FILES = [[40, 25, 7], [30], [0, 33]]


def delete(root: Path, rows: Sequence[int]) -> int:
    listed = ", ".join(str(row) for row in rows)
    return delete_rows(str(root), f"row in ({listed})").num_rows


def files_of(root: Path) -> list[Path]:
    return [Path(file.url) for file in open_delta(str(root)).data_files]


def row_groups_of(root: Path) -> list[list[dict[str, Any]]]:
    found = []
    for path in files_of(root):
        with pq.ParquetFile(path) as file:
            found += [file.read_row_group(i).to_pylist() for i in range(file.num_row_groups)]
    return found


def check_lists(root: Path) -> None:
    """No list has an event that none of its rows sees."""
    for rows in row_groups_of(root):
        assert rows
        seen: list[set[int]] = [set() for _ in rows]
        for number, row in enumerate(rows):
            end = row["clicks_end"]
            seen[number - row["clicks_back"]] |= set(range(end - row["clicks_length"], end))
        for row, of_row in zip(rows, seen, strict=True):
            assert of_row == set(range(len(row["clicks_item"])))
            assert len(row["clicks_item"]) == len(row["clicks_at"]) == len(row["clicks_price"])


def check_rows(root: Path, fat: FatRows, left: Sequence[int], **options: Any) -> None:
    with make(root, **options) as loader:
        assert sorted(rows_checked(loader, fat)) == sorted(left)


@pytest.mark.parametrize("history", [HISTORY, IN_WINDOW, LATE], ids=["plain", "window", "late"])
@settings(
    max_examples=settings().max_examples // 25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(data=st.data())
def test_rows_that_are_left_see_the_same_events_however_often_others_are_deleted(
    tmp_path_factory: pytest.TempPathFactory, history: Any, data: st.DataObject
) -> None:
    sizes = st.lists(st.integers(0, 40), min_size=1, max_size=3)
    files = data.draw(st.lists(sizes, min_size=1, max_size=3))
    root = tmp_path_factory.mktemp("any") / "table"
    history = replace(history, max_len=data.draw(st.sampled_from([1, 5, 70])))
    fat = make_table(root, data.draw(st.integers(0, 1 << 30)), files, history)
    left = list(range(sum(map(sum, files))))
    # Row 0 stays, so that the table is not empty.
    for _ in range(data.draw(st.integers(1, 3))):
        is_gone = data.draw(st.lists(st.booleans(), min_size=len(left), max_size=len(left)))
        gone = [row for row, is_ in zip(left, is_gone, strict=True) if row and is_]
        if gone:
            assert delete(root, gone) == len(gone)
        left = [row for row in left if row not in gone]
    if set(left) != set(range(len(fat.keys))):
        assert {row["row"] for rows in row_groups_of(root) for row in rows} == set(left)
    check_rows(root, fat, left)


@pytest.mark.parametrize("history", [HISTORY, LATE], ids=["plain", "late"])
def test_events_of_a_person_are_in_no_byte_of_the_new_files(tmp_path: Path, history: Any) -> None:
    root = tmp_path / "table"
    fat = make_table(root, 5, FILES, history)
    key = next(key for key in fat.keys if key not in (0, fat.keys[0]))
    gone = [row for row, of_row in enumerate(fat.keys) if of_row == key]
    others = set[int]().union(*(items for of, items in fat.of_key.items() if of != key))
    items = fat.of_key[key] - others
    seen = [item for item in items if holding(root, item)]
    assert len(seen) > 20
    assert delete(root, gone) == len(gone) > 20
    check_rows(root, fat, [row for row in range(len(fat.keys)) if row not in gone])
    assert not [item for item in items if holding(root, item)]
    check_lists(root)
    age(root, 2)
    vacuum(str(root), retain_s=0)
    left = [path.read_bytes() for path in root.rglob("*") if path.is_file()]
    assert not any(item.to_bytes(8, "little") in data for item in items for data in left)


def holding(root: Path, item: int) -> bool:
    """Whether an item is in the data files: in their plain bytes or, if these are compressed, once
    they are read.
    """
    if any(item.to_bytes(8, "little") in path.read_bytes() for path in files_of(root)):
        return True
    rows = (row for rows in row_groups_of(root) for row in rows)
    return any(item in row["clicks_item"] for row in rows)


def test_events_that_only_a_deleted_row_between_two_others_saw_are_gone(tmp_path: Path) -> None:
    root = tmp_path / "table"
    fat = make_table(root, 5, [[400]], replace(HISTORY, max_len=3))
    rows = [row for row, key in enumerate(fat.keys) if key == 2 and fat.item[row]]
    first, last = set(fat.item[rows[0]]), set(fat.item[rows[-1]])
    between = set[int]().union(*(fat.item[row] for row in rows[1:-1])) - first - last
    assert len(between) > 10
    delete(root, rows[1:-1])
    check_lists(root)
    assert not [item for item in between if holding(root, item)]
    assert all(holding(root, item) for item in first | last)


def test_small_row_groups_are_joined_and_a_key_may_have_several_holders_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "table"
    fat = make_table(root, 5, [[40, 40, 40, 40]])
    gone = [row for row in range(1, 160) if row % 40 >= 12]
    delete(root, gone)
    [*groups] = row_groups_of(root)
    assert [len(rows) for rows in groups] == [36, 12]
    holders = [row["clicks_key"] for row in groups[0] if row["clicks_item"]]
    assert len(set(holders)) < len(holders)
    left = [row for row in range(160) if row not in gone]
    check_rows(root, fat, left)
    monkeypatch.setattr(rewriting, "_JOINED_BYTES", 1)
    delete(root, [1])
    assert [len(rows) for rows in row_groups_of(root)] == [35, 12]
    check_rows(root, fat, [row for row in left if row != 1])


def test_row_groups_without_a_row_are_left_out_and_large_ones_are_not_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "table"
    fat = make_table(root, 5, [[20, 20, 20, 20], [9]])
    monkeypatch.setattr(rewriting, "_JOINED_BYTES", 1)
    delete(root, [*range(20, 40), *range(44, 60), *range(70, 80)])
    assert [len(rows) for rows in row_groups_of(root)] == [20, 4, 10, 9]
    check_rows(root, fat, [*range(20), *range(40, 44), *range(60, 70), *range(80, 89)])


def test_a_file_that_is_written_again_whole_has_the_same_columns_and_row_groups(
    tmp_path: Path,
) -> None:
    root = tmp_path / "table"
    make_table(root, 5, FILES)
    snapshot = open_delta(str(root))
    once = [rewrite_file(snapshot, file, f"once-{i}") for i, file in enumerate(snapshot.data_files)]
    twice = [rewrite_file(snapshot, file, f"twice-{i}") for i, file in enumerate(once)]
    for before, after, again in zip(snapshot.data_files, once, twice, strict=True):
        found = pq.read_table(after.url)
        assert found.schema.equals(pq.read_schema(before.url), check_metadata=True)
        own = ["row", "tags", "click", "ts", "clicks_length", "clicks_key"]
        assert found.select(own).equals(pq.read_table(before.url, columns=own))
        assert Path(again.url).read_bytes() == Path(after.url).read_bytes()
        with pq.ParquetFile(before.url) as old, pq.ParquetFile(after.url) as new:
            rows = [
                [
                    file.metadata.row_group(i).num_rows
                    for i in range(file.num_row_groups)
                    if file.metadata.row_group(i).num_rows
                ]
                for file in (old, new)
            ]
            assert rows[0] == rows[1]
            at = new.metadata.row_group(0).column(new.metadata.num_columns - 1)
            assert at.path_in_schema == "clicks_at.list.element"
            assert "DELTA_BINARY_PACKED" in at.encodings


def test_a_range_of_another_key_is_told_and_nothing_is_deleted(tmp_path: Path) -> None:
    def damage(number: int, columns: dict[str, Any]) -> None:
        if number == 1:
            row = int(np.flatnonzero(columns["clicks_back"])[0])
            columns["clicks_key"][row] += 1

    root = tmp_path / "table"
    _, files = write_files(root, 7, [[20, 20], [30]], damage=damage)
    commit(str(root), change(HISTORY, files))
    with pytest.raises(DataFileError, match=r"row group 1: row .*: expected the key of the row"):
        delete(root, [3])
    assert open_delta(str(root)).version == 0
    assert len(list(root.glob("part-*.parquet"))) == 2


def test_files_that_lost_their_lists_are_told_and_nothing_is_deleted(tmp_path: Path) -> None:
    root = tmp_path / "table"
    _, [file] = write_files(root, 7, [[20]])
    path = Path(file.url)
    table = pq.read_table(path).drop_columns(["clicks_key", "clicks_item", "clicks_price"])
    pq.write_table(table.drop_columns(["clicks_at"]), path)
    commit(str(root), change(HISTORY, [replace(file, size_bytes=path.stat().st_size)]))
    with pytest.raises(DataFileError, match="another program wrote the file again; extract its"):
        delete(root, [3])
    assert open_delta(str(root)).version == 0
