"""Texts of values on disk, merged and bounded."""

from pathlib import Path

import pyarrow as pa
import pytest

from featstore.base.errors import DataFileError, StoreError
from featstore.spec.value_names import MAX_DISTINCT
from featstore.statistics import statistics_file, values_file
from featstore.statistics.values_file import (
    NUM_KEPT,
    SCHEMA,
    StoredValues,
    merge_values,
    most_frequent,
    read_values,
    write_values,
)
from featstore.table.layout import file_values_path, has_tag, statistics_tag, tag_of, values_path
from tests.short_reads import FailingFile

TAG = "01234567-89abcdef"


def values(*rows: tuple[str, int, str | None, int], left_out: tuple[str, ...] = ()) -> StoredValues:
    entries = [
        {"slot": slot, "number": 1, "id": id_, "text": text, "rank": None, "count": count}
        for slot, id_, text, count in rows
    ]
    return StoredValues(table=pa.Table.from_pylist(entries, SCHEMA), left_out=frozenset(left_out))


def rows_of(stored: StoredValues) -> list[tuple[str, int, str | None, int]]:
    columns = (stored.table[name].to_pylist() for name in ("slot", "id", "text", "count"))
    return list(zip(*columns, strict=True))


def test_texts_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = values(("a", 5, "five", 3), ("b", 2**63 - 1, "ü", 1), left_out=("c",))
    write_values(str(tmp_path), values_path({"dt": "1"}, TAG), written)
    found = read_values(str(tmp_path), f"_stats/dt=1/{TAG}.values")
    assert found.table.equals(written.table)
    assert found.left_out == {"c"}


def test_counts_of_parts_are_summed_and_any_part_may_know_the_text() -> None:
    one = values(("a", 5, None, 3), ("a", 6, "six", 2))
    two = values(("a", 6, None, 9), ("a", 5, "five", 1), ("b", 1, "x", 1))
    for parts in ([one, two], [two, one]):
        assert rows_of(merge_values(parts)) == [
            ("a", 6, "six", 11),
            ("a", 5, "five", 4),
            ("b", 1, "x", 1),
        ]


def test_of_two_texts_of_one_sign_the_same_is_kept_whichever_comes_first() -> None:
    one, two = values(("a", 5, "x", 1)), values(("a", 5, "w", 1))
    assert rows_of(merge_values([one, two])) == rows_of(merge_values([two, one]))


def test_slots_with_left_out_values_in_a_part_or_in_all_are_dropped() -> None:
    half = MAX_DISTINCT // 2
    first = values(*(("a", i + 1, "x", 1) for i in range(half)), ("b", 1, "x", 1))
    second = values(*(("a", i + 1 + half, "x", 1) for i in range(half)), left_out=("c",))
    third = values(("a", MAX_DISTINCT + 1, "x", 1), ("c", 1, "x", 1))
    assert merge_values([first, second]).table.num_rows == MAX_DISTINCT + 1
    merged = merge_values([first, second, third])
    assert rows_of(merged) == [("b", 1, "x", 1)]
    assert merged.left_out == {"a", "c"}
    kept = merge_values([first, second, third], unlimited=["a"])
    assert kept.table.num_rows == MAX_DISTINCT + 1  # without the rarest
    assert kept.left_out == {"c"}


def test_the_most_frequent_are_kept_and_those_without_text_left_out() -> None:
    many = values(
        *(("a", i + 1, f"{i}", 9_000 - i) for i in range(NUM_KEPT + 5)), ("b", 1, None, 1)
    )
    kept = rows_of(most_frequent(many, 10**9))
    assert (len(kept), kept[-1]) == (NUM_KEPT, ("a", NUM_KEPT, "999", 8_001))


def test_all_slots_keep_as_many_where_there_is_no_room_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(values_file, "_MIN_BYTES", 4 * 35)
    both = values(*((slot, i + 1, "x" * 10, 9 - i) for slot in "ab" for i in range(9)))
    assert [row[:2] for row in rows_of(most_frequent(both, 0))] == [
        ("a", 1),
        ("a", 2),
        ("b", 1),
        ("b", 2),
    ]


def test_other_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values_file, "FORMAT", 2)
    write_values(str(tmp_path), "newer", values())
    monkeypatch.undo()
    with pytest.raises(DataFileError, match="newer: texts of format 2, this featstore reads 1; up"):
        read_values(str(tmp_path), "newer")
    (tmp_path / "cut").write_bytes((tmp_path / "newer").read_bytes()[:-9])
    with pytest.raises(DataFileError, match="cut: texts cannot be read: "):
        read_values(str(tmp_path), "cut")


def test_files_of_texts_carry_the_tag_of_their_run_for_vacuum() -> None:
    merged = values_path({"dt": "1"}, TAG)
    unit = file_values_path(f"dt=1/part-00000-{TAG}-0.parquet")
    assert statistics_tag(merged) == tag_of(unit) == TAG
    assert has_tag(merged, TAG)
    assert has_tag(unit, TAG)


def test_a_file_that_the_system_cannot_read_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_values(str(tmp_path), "a", values())
    monkeypatch.setattr(statistics_file, "open_read", FailingFile)
    with pytest.raises(StoreError, match="a: cannot be read: Input/output error"):
        read_values(str(tmp_path), "a")
