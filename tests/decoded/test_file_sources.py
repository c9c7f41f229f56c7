"""The files of a split: where they are, or staged and pinned until all of them are let go."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from featstore.decoded.file_sources import files_in_place, files_staged
from featstore.decoded.staging_source import stage_items
from featstore.errors import DataFileError, StateError
from featstore.staging.options import Staging
from featstore.staging.stager import Stager
from featstore.staging.stream import Staged
from featstore.table.snapshot import DataFile, GroupFile
from tests.loader.conftest import data_file


@pytest.fixture
def file(tmp_path: Path) -> DataFile:
    """With files of two slot groups."""
    base = data_file(tmp_path / "base.parquet", pa.table({"row": [1, 2]}))
    files = [data_file(tmp_path / f"{name}.parquet", pa.table({name: [1, 2]})) for name in "gh"]
    groups = tuple(
        GroupFile(group=f.path, path=f.path, url=f.url, size_bytes=f.size_bytes, num_rows=2)
        for f in files
    )
    return replace(base, groups=groups)


@pytest.fixture
def stager() -> Iterator[Stager]:
    with Stager(Staging(mode="whole")) as stager:
        yield stager


def noted(
    stager: Stager, file: DataFile, released: list[str], urls: Iterable[str]
) -> Iterator[Staged[str]]:
    """The file's staged parts, each of which notes that it was released."""
    wanted = set(urls)
    items = [item for item in stage_items(file, file.path) if item.url in wanted]
    for staged in stager.stage(items):
        release = staged.release

        def note(url: str = staged.url, release: object = release) -> None:
            assert callable(release)
            release()
            released.append(Path(url).name)

        staged.release = note  # type: ignore[method-assign]
        yield staged


def test_files_in_place_are_the_data_file_and_then_those_of_its_groups(file: DataFile) -> None:
    assert [(each.path, each.source) for each in files_in_place(file)] == [
        (part.path, Path(part.url)) for part in file.parts
    ]


def test_staged_files_are_read_from_the_cache_until_all_of_them_are_let_go_at_once(
    file: DataFile, stager: Stager
) -> None:
    released = list[str]()
    stream = noted(stager, file, released, [part.url for part in file.parts])
    files, release = files_staged(file, next(stream), stream)
    assert [each.path for each in files] == [part.path for part in file.parts]
    for each, part in zip(files, file.parts, strict=True):
        assert isinstance(each.source, Path)
        assert each.source != Path(part.url)
        assert each.source.read_bytes() == Path(part.url).read_bytes()
    assert released == []
    release()
    assert sorted(released) == ["base.parquet", "g.parquet", "h.parquet"]


def test_where_staging_is_closed_before_the_last_group_came_those_that_came_are_let_go(
    file: DataFile, stager: Stager
) -> None:
    released = list[str]()
    stream = noted(stager, file, released, [file.url, file.groups[0].url])
    with pytest.raises(StateError, match="closed before all files of a split were staged"):
        files_staged(file, next(stream), stream)
    assert sorted(released) == ["base.parquet", "g.parquet"]


def test_where_a_groups_file_cannot_be_staged_those_that_came_are_let_go(
    file: DataFile, stager: Stager
) -> None:
    Path(file.groups[1].url).unlink()
    released = list[str]()
    stream = noted(stager, file, released, [part.url for part in file.parts])
    with pytest.raises((DataFileError, OSError)):
        files_staged(file, next(stream), stream)
    assert sorted(released) == ["base.parquet", "g.parquet"]
