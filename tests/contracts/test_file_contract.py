"""The contract of files by URL, over real servers: what each kind of store does the same."""

import gc
import io
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from featstore.base.errors import InputError, ReplacedError, StoreError
from featstore.files import listings, storage
from featstore.files.retry import RetryPolicy
from featstore.files.transfer import read_span
from featstore.staging import Source, StageItem, Stager, Staging
from tests.contracts.conftest import failing_looks

DATA = bytes(range(256)) * 12_000
OTHER = DATA[::-1]


@pytest.fixture
def at(place: Any) -> str:
    """A directory of the test's own."""
    return f"{place.url}/{uuid.uuid4().hex[:8]}"


def _put(place: Any, at: str, name: Any, data: Any) -> str:
    place.put(f"{at.removeprefix(place.url).lstrip('/')}/{name}", data)
    return f"{at}/{name}"


def test_a_file_is_sized_read_at_any_position_and_fetched(place: Any, at: str) -> None:
    url, sink = _put(place, at, "x y.bin", DATA), io.BytesIO()
    assert storage.size_bytes(url) == len(DATA)
    assert (storage.fetch(url, sink), sink.getvalue() == DATA) == (len(DATA), True)
    with storage.open_read(url) as file:
        file.seek(-8, os.SEEK_END)
        assert file.tell() == len(DATA) - 8
        assert file.read() == DATA[-8:]
        file.seek(1_000_001)
        assert file.read(1_500_000) == DATA[1_000_001:2_500_001]


# s3rver takes `bytes=0-0` for a request of everything.
@pytest.mark.parametrize(
    ("first", "end"), [(0, len(DATA)), (0, 2), (1_000_001, 2_000_000), (len(DATA) - 8, len(DATA))]
)
def test_a_span_comes_with_the_files_size_and_version(
    place: Any, at: str, first: Any, end: int
) -> None:
    url = _put(place, at, "x.bin", DATA)
    answer = read_span(url, first, end, size_bytes=len(DATA))
    assert b"".join(bytes(block) for block in answer.blocks) == DATA[first:end]
    assert (answer.size_bytes, bool(answer.tag)) == (len(DATA), True)


def test_a_file_of_another_version_is_refused(place: Any, at: str) -> None:
    url = _put(place, at, "x.bin", DATA)
    answer = read_span(url, 0, 2, size_bytes=len(DATA))
    list(answer.blocks)
    _put(place, at, "x.bin", OTHER)
    with pytest.raises(ReplacedError, match=r"x\.bin was replaced"):
        list(read_span(url, 0, len(DATA), size_bytes=len(DATA), tag=answer.tag).blocks)


def test_a_listed_object_that_was_replaced_by_one_of_its_size_is_not_staged(
    place: Any, at: str, tmp_path: Path
) -> None:
    if not place.is_listed or not storage.has_object_store(at):
        pytest.skip("no ETags are listed")
    url, versions = "", []
    for data in (DATA, OTHER):
        url = _put(place, at, "x.parquet", data)
        versions += [file.version for file in listings.list_files(at)]
    was, now = (
        StageItem(key=0, url=url, size_bytes=len(DATA), version=version) for version in versions
    )
    with Stager(Staging(mode="whole", directory=str(tmp_path))) as stager:
        with next(stager.stage([now])) as staged:
            assert staged.path is not None
            assert staged.path.read_bytes() == OTHER
        with pytest.raises(ReplacedError, match=r"x\.parquet was replaced: .* which was listed"):
            next(stager.stage([was]))


def test_a_missing_file_is_file_not_found(place: Any, at: str) -> None:
    _put(place, at, "x.bin", DATA)
    for act in (
        storage.size_bytes,
        lambda url: read_span(url, 0, 1, size_bytes=1),
        lambda url: storage.open_read(url),
    ):
        with pytest.raises(FileNotFoundError):
            act(f"{at}/none.bin")


def test_listings_name_urls_that_open(place: Any, at: str) -> None:
    if not place.is_listed:
        pytest.skip("a web server lists nothing")
    for name in ("m=1/a.parquet", "m=2/a.parquet", "b.parquet", "_log/c.parquet", "note.txt"):
        _put(place, at, name, name.encode())
    expected = ["b.parquet", "m=1/a.parquet", "m=2/a.parquet"]
    for url, names in (
        (at, expected),
        (f"{at}/", expected),
        (f"{at}/m=*", expected[1:]),
        (f"{at}/none", []),
    ):
        found = listings.list_files(url)
        assert [entry.name for entry in found] == names
        for entry in found:
            assert entry.version
            with storage.open_read(entry.url) as file:
                assert file.read().decode().endswith(entry.name.rpartition("/")[2])


LOOKS: dict[str, Callable[[str], object]] = {
    "directory": listings.list_files,
    "glob": lambda at: listings.list_files(f"{at}/m=*"),
    "file": lambda at: listings.find_file(f"{at}/b.parquet"),
    "own": listings.list_own,
    "size": lambda at: storage.size_bytes(f"{at}/b.parquet"),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_that_fails_is_an_error_that_names_the_place(place: Any, at: str, look: str) -> None:
    _put(place, at, "b.parquet", DATA)
    with failing_looks(place) as root, pytest.raises(StoreError) as raised:
        LOOKS[look](at.replace(place.url, root))
    assert at.removeprefix(place.url) in str(raised.value)
    assert raised.value.errno is not None


def test_a_file_is_the_one_that_was_listed_until_it_is_replaced(place: Any, at: str) -> None:
    url = _put(place, at, "m=1/a.parquet", DATA)
    (listed,) = listings.list_files(at if place.is_listed else url)
    for _ in range(2):
        listings.check_unchanged(listed, listings.find_file(url))
    _put(place, at, "m=1/a.parquet", OTHER)
    with pytest.raises(
        InputError,
        match=r"a\.parquet changed while it was read: expected 3,072,000 .* found 3,072,000 ",
    ):
        listings.check_unchanged(listed, listings.find_file(url))
    assert listings.find_file(f"{at}/m=1/none.parquet") is None


def test_a_file_is_written_whole_and_deleted(place: Any, at: str) -> None:
    if not place.is_written:
        pytest.skip("featstore only reads from this server")
    url = f"{at}/deep/x.bin"
    with storage.open_write(url) as file:
        file.write(DATA)
    assert storage.size_bytes(url) == len(DATA)
    storage.delete(url)
    storage.delete(url)
    with pytest.raises(FileNotFoundError):
        storage.size_bytes(url)


def test_a_write_that_fails_leaves_the_file_as_it_was(place: Any, at: str) -> None:
    if not place.is_written or place.url.startswith("fakehost"):
        pytest.skip("featstore only reads from this server, or it shows what is being written")
    url = f"{at}/x.bin"
    for expected in (None, DATA):
        with pytest.raises(TypeError, match="bytes-like"), storage.open_write(url) as file:
            file.writelines([OTHER, None])  # type: ignore[list-item]
        gc.collect()  # a client may publish what is forgotten
        if expected is None:
            assert listings.find_file(url) is None
            with storage.open_write(url) as file:
                file.write(DATA)
        else:
            with storage.open_read(url) as file:
                assert file.read() == expected


def _plan(tail: Any, size_bytes: Any, name: Any) -> Any:
    return [(1000, 2000), (2_000_000, 2_100_000)] if tail else 8


@pytest.mark.parametrize("mode", ["whole", "ranges"])
def test_a_staged_file_has_the_remote_bytes(place: Any, at: str, tmp_path: Path, mode: str) -> None:
    url = _put(place, at, "x.bin", DATA)
    retry = RetryPolicy(first_pause_s=0.01)
    with Stager(
        Staging(directory=str(tmp_path), mode=mode), Source(plan_ranges=_plan, retry=retry)
    ) as stager:
        for num_hits in range(2):
            with next(stager.stage([StageItem(key=0, url=url, size_bytes=len(DATA))])) as staged:
                assert staged.path is not None
                data = staged.path.read_bytes()
                assert all(
                    data[first:end] == DATA[first:end]
                    for first, end in staged.held or [(0, len(DATA))]
                )
            assert stager.stats().num_hits == num_hits
        assert stager.stats().num_retries == 0
        assert "secret" not in "".join(
            path.read_text() for path in stager.cache.root.glob("*.held")
        )
