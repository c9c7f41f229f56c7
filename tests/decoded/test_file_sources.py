"""The files of a split: where they are, or staged and pinned until all of them are let go."""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featstore.base.errors import DataFileError, StateError
from featstore.decoded.decoded_cache import DecodedCache
from featstore.decoded.decoding import entry_of
from featstore.decoded.entry_file import EntryWriter, MappedEntry
from featstore.decoded.file_sources import (
    FileSource,
    SourcesAhead,
    files_in_place,
    files_staged,
    stage_items,
)
from featstore.staging.options import Staging
from featstore.staging.stager import Stager
from featstore.staging.stream import Staged
from featstore.table.snapshot import DataFile, GroupFile
from tests.decoded.conftest import selection_of
from tests.loader.conftest import data_file
from tests.process import await_that


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
    group = Path(file.groups[1].url)
    group.unlink()
    group.mkdir()
    released = list[str]()
    stream = noted(stager, file, released, [part.url for part in file.parts])
    with pytest.raises((DataFileError, OSError)):
        files_staged(file, next(stream), stream)
    assert sorted(released) == ["base.parquet", "g.parquet"]


@pytest.fixture
def remote(tmp_path: Path, loopback: Any) -> list[DataFile]:
    """Four files of 80 kB on the server, the second with a slot group."""
    found = []
    for number, name in enumerate(["a", "b", "c", "d", "group"]):
        values = np.random.default_rng(number).integers(0, 1 << 60, 10_000)
        made = data_file(tmp_path / name, pa.table({f"of_{name}"[:4]: values}))
        loopback.files[f"/{name}"] = (tmp_path / name).read_bytes()
        found.append(replace(made, path=name, url=f"{loopback.url}/{name}"))
    *files, late = found
    group = GroupFile(
        group="g", path=late.path, url=late.url, size_bytes=late.size_bytes, num_rows=10_000
    )
    files[1] = replace(files[1], groups=(group,))
    return files


def paths(files: Iterable[FileSource]) -> list[str]:
    return [each.path for each in files]


def test_while_a_file_is_open_the_next_ones_are_downloaded(
    stager: Stager, remote: list[DataFile], loopback: Any
) -> None:
    with SourcesAhead(stager, remote) as ahead:
        for number, file in enumerate(remote):
            with ahead.opened(file) as sources:
                assert paths(sources) == paths(files_in_place(file))
                assert all(isinstance(each.source, Path) for each in sources)
                for following in remote[number + 1 :]:
                    await_that(partial(staged, stager, following))
    assert sorted(path for method, path, _ in loopback.log if method == "GET") == [
        "/a",
        "/b",
        "/c",
        "/d",
        "/group",
    ]
    assert len(stager.cache.clear()) == 5  # Nobody holds any of them.


def test_a_file_out_of_its_turn_has_the_room_of_those_ahead(
    tmp_path: Path, remote: list[DataFile]
) -> None:
    files = [remote[0], remote[2], remote[3]]
    room_for_one = files[0].size_bytes * 3 // 2
    options = Staging(directory=str(tmp_path / "cache"), mode="whole", budget_bytes=room_for_one)
    with Stager(options) as stager, SourcesAhead(stager, files) as ahead:
        with ahead.opened(files[1]) as sources:
            assert paths(sources) == ["c"]
        await_that(partial(staged, stager, files[2]))
        with ahead.opened(files[0]) as sources:
            assert paths(sources) == ["a"]
        with ahead.opened(files[2]) as sources:
            assert paths(sources) == ["d"]


def staged(stager: Stager, file: DataFile) -> bool:
    return stager.has(file.url, file.size_bytes, file.version)


def test_files_that_others_decode_are_neither_downloaded_nor_waited_for(
    stager: Stager, remote: list[DataFile], loopback: Any
) -> None:
    with SourcesAhead(stager, remote, lambda file: file.path != "c") as ahead:
        with ahead.opened(remote[0]) as sources:
            assert paths(sources) == ["a"]
        with ahead.opened(remote[3]) as sources:
            assert paths(sources) == ["d"]
        assert not loopback.num_gets("/c")
        # Out of their turn.
        for file in (remote[1], remote[2], remote[0]):
            with ahead.opened(file) as sources:
                assert paths(sources) == paths(files_in_place(file))
    assert loopback.num_gets("/c") == loopback.num_gets("/b") == 1
    assert len(stager.cache.clear()) == 5


def test_a_file_that_came_too_early_waits_for_its_turn(
    stager: Stager, remote: list[DataFile]
) -> None:
    with SourcesAhead(stager, remote, lambda file: file.path != "b") as ahead:
        for file in (remote[0], remote[1], remote[2], remote[3]):
            with ahead.opened(file) as sources:
                assert paths(sources) == paths(files_in_place(file))


def test_once_closed_each_file_is_staged_when_it_is_asked_for(
    stager: Stager, remote: list[DataFile]
) -> None:
    ahead = SourcesAhead(stager, remote)
    with ahead.opened(remote[0]) as sources:
        await_that(lambda: staged(stager, remote[1]))
        ahead.close()
        ahead.close()
        assert paths(sources) == ["a"]
        held = {entry.record.url for entry in stager.cache.entries() if entry.is_pinned}
        assert held == {remote[0].url}
    with ahead.opened(remote[1]) as sources:
        assert paths(sources) == ["b", "group"]


def test_a_stager_that_is_closed_meanwhile_gives_no_file(
    stager: Stager, remote: list[DataFile], loopback: Any
) -> None:
    gate = loopback.gates["/a"] = threading.Event()

    def close() -> None:
        assert loopback.half_sent.wait(60)
        stager.close()

    thread = threading.Thread(target=close)
    thread.start()
    with (
        pytest.raises(StateError, match="staging was closed before a data file was staged"),
        SourcesAhead(stager).opened(remote[0]),
    ):
        pass
    gate.set()
    thread.join()


def test_what_is_ahead_makes_room_for_decoded_columns(
    tmp_path: Path, remote: list[DataFile]
) -> None:
    """There is room for two files and no entry beside them, or for one and its entry."""
    selection = selection_of(pa.table({"of_a": [1]}))
    file, following = remote[0], remote[2]
    budget_bytes = file.size_bytes + following.size_bytes + 10_000
    options = Staging(directory=str(tmp_path / "cache"), budget_bytes=budget_bytes, mode="whole")
    with Stager(options) as stager:
        ahead = SourcesAhead(stager, [file, following])
        cache = DecodedCache(stager.cache, budget_bytes, grace_s=30, let_go=ahead.close)
        request = entry_of(file, selection, ahead, 1)

        def build(writer: EntryWriter) -> None:
            with ahead.opened(file):
                await_that(lambda: staged(stager, following))
            request.build(writer)

        found = cache.open(replace(request, first_bytes=1, build=build), None, 0)
        assert isinstance(found, MappedEntry)
        assert found.batches[0].num_rows == 10_000
        found.close()
