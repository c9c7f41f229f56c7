"""Where selected columns are, looked for once in files of one schema."""

from pathlib import Path
from typing import Any

from featstore.base.schema import Slot, SlotKind
from featstore.reading.file_columns import ColumnCache, FileColumns, Selection
from featstore.reading.open_file import OpenFile
from tests.parquet_files import put_parquet

A, B = (Slot(name=name, kind=SlotKind.ID) for name in "ab")
SELECTION = Selection(slots=(A, B))


def opened(directory: Path, name: str, **columns: Any) -> OpenFile:
    with OpenFile(put_parquet(directory / name, columns)) as file:
        return file  # closed: its footer is enough


def cached(cache: ColumnCache, file: OpenFile, selection: Selection = SELECTION) -> FileColumns:
    return cache.of(file.footer.file_schema, selection, file.name)


def test_a_selection_is_looked_for_once_in_files_of_one_schema_and_anew_in_others(
    tmp_path: Path,
) -> None:
    cache = ColumnCache()
    first, alike = (opened(tmp_path, name, a=[1], b=[2]) for name in ("1", "2"))
    found = cached(cache, first)
    assert found == first.resolve(SELECTION)
    assert cached(cache, alike) is found
    for other in (
        opened(tmp_path, "3", b=[1], a=[2]),
        opened(tmp_path, "4", a=[1]),
        opened(tmp_path, "5", x=[[1]], b=[1]),
    ):
        assert cached(cache, other) == other.resolve(SELECTION) != found
        assert cached(cache, first) is found
    assert cached(cache, first, Selection(slots=(A,))).slots == {"a": "a"}


def test_only_a_few_selections_are_kept(tmp_path: Path) -> None:
    cache, file = ColumnCache(), opened(tmp_path, "1", a=[1], b=[2])
    first = cached(cache, file)
    for _ in range(5):
        cached(cache, file, Selection(slots=(A,)))
    assert cached(cache, file) is not first


def test_files_that_share_a_cache_share_what_is_found(tmp_path: Path) -> None:
    cache = ColumnCache()
    opened(tmp_path, "1", a=[1], b=[2])
    opened(tmp_path, "2", a=[1], b=[2])
    with (
        OpenFile(tmp_path / "1", column_cache=cache) as first,
        OpenFile(tmp_path / "2", column_cache=cache) as other,
    ):
        assert first.resolve(SELECTION) is other.resolve(SELECTION)
