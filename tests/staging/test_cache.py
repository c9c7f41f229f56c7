import errno
import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import StagingError
from featstore.staging.cache import Cache, Download, Limits, Pin, Refusal, entry_name
from featstore.staging.record import Record
from tests.programs import run_python


def _record(held: Any = ((0, 10),), size_bytes: int = 10) -> Any:
    return Record.of(
        "https://u:secret@h/x?sig=secret",
        size_bytes,
        "v1",
        [(first, end, 0) for first, end in held],
    )


def _fill(cache: Any, name: Any, size_bytes: int = 10, held: Any = None) -> Any:
    """Downloads a file, or spans of it, into the cache. The caller releases the pin."""
    record = _record(held or [(0, size_bytes)], size_bytes)
    download = cache.request(
        name, size_bytes, record.held_bytes, beyond_bytes=record.held_bytes - 1
    )
    assert isinstance(download, Download)
    with download.path.open("r+b") as file:
        for first, end in record.held:
            file.seek(first)
            file.write(b"x" * (end - first))
    return download.publish(record)


def _request(cache: Any, name: Any, size_bytes: int = 10) -> Any:
    return cache.request(name, size_bytes, size_bytes)


def _names(cache: Any) -> Any:
    """The names of the cache's files without the records."""
    return sorted(path.name for path in cache.root.iterdir() if path.suffix != ".held")


def _name(number: Any) -> str:
    return f"{number:040x}"


def _cache(directory: Any, budget_bytes: int = 30, **limits: Any) -> Cache:
    return Cache(str(directory), Limits(budget_bytes=budget_bytes, **limits))


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return _cache(tmp_path)


@given(url=st.text(), size_bytes=st.integers(0, 2**60), version=st.text())
def test_names_are_forty_hex_digits_whatever_the_url(
    url: str, size_bytes: int, version: str
) -> None:
    name = entry_name(url, size_bytes, version)
    assert len(name) == 40
    assert set(name) <= set("0123456789abcdef")


def test_names_tell_urls_sizes_and_versions_apart_but_not_credentials() -> None:
    names = [
        entry_name("s3://b/a", 1),
        entry_name("s3://b/b", 1),
        entry_name("s3://b/a", 2),
        entry_name("s3://b/a", 1, "v"),
    ]
    assert len(set(names)) == 4
    assert entry_name("https://u:p@h/a", 1) == entry_name("https://h/a", 1)
    containers = {entry_name(f"abfss://{name}@account.dfs.net/a", 1) for name in ("x", "y")}
    assert len(containers) == 2
    assert entry_name("https://h/a?x=1", 1) != entry_name("https://h/a?x=2", 1)


def test_the_name_of_a_staged_file_is_frozen() -> None:
    assert (
        entry_name("s3://bucket/t/dt=1/a.parquet", 1234, '"etag"')
        == "be89342d7ed94a76583a2a755e879793284ed454"
    )


def test_the_cache_is_private_to_its_owner(tmp_path: Path, cache: Cache) -> None:
    assert cache.root == tmp_path / "featstore-staging-3"
    assert cache.root.stat().st_mode & 0o777 == 0o700
    assert _fill(cache, _name(1)).path.stat().st_mode & 0o777 == 0o600
    cache.root.chmod(0o755)
    assert _cache(tmp_path).root.stat().st_mode & 0o777 == 0o700


def test_a_path_that_is_no_directory_of_the_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "featstore-staging-3").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(
        StagingError,
        match="cannot hold the cache featstore-staging-3: it must be a directory of user",
    ):
        _cache(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StagingError, match=r"staging\.directory .*/file cannot hold the cache"):
        _cache(tmp_path / "file")


def test_a_published_file_is_found_again_also_by_the_next_run(tmp_path: Path, cache: Cache) -> None:
    _fill(cache, _name(1)).release()
    for again in (cache, _cache(tmp_path)):
        pin = _request(again, _name(1), 10)
        assert isinstance(pin, Pin)
        assert pin.path.read_bytes() == b"x" * 10
        pin.release()
        pin.release()


def test_a_download_in_progress_is_busy_for_others_and_removed_when_abandoned(cache: Cache) -> None:
    download = _request(cache, _name(1), 10)
    assert _request(cache, _name(1), 10) is Refusal.BUSY
    download.abandon()
    assert list(cache.root.iterdir()) == []
    assert isinstance(_request(cache, _name(1), 10), Download)


def test_space_is_reserved_before_the_download(cache: Cache) -> None:
    downloads = [_request(cache, _name(i), 10) for i in range(3)]
    assert all(isinstance(download, Download) for download in downloads)
    assert _request(cache, _name(9), 1) is Refusal.FULL
    downloads[0].abandon()
    assert isinstance(_request(cache, _name(9), 10), Download)


def test_the_least_recently_used_unpinned_file_goes_first(cache: Cache) -> None:
    pins = [_fill(cache, _name(i)) for i in range(3)]
    for number in (2, 0, 1):
        pins[number].release()
    _request(cache, _name(2), 10).release()
    still_read = _request(cache, _name(0), 10)
    assert isinstance(_request(cache, _name(7), 10), Download)
    assert _names(cache) == [
        f"{_name(0)}.10.staged",
        f"{_name(2)}.10.staged",
        f"{_name(7)}.10.part",
    ]
    assert cache.num_evicted == 1
    assert still_read.path.exists()


def test_pinned_files_are_never_evicted_and_no_file_is_evicted_in_vain(cache: Cache) -> None:
    pins = [_fill(cache, _name(i)) for i in range(3)]
    pins[0].release()
    assert _request(cache, _name(7), 20) is Refusal.FULL
    assert len(_names(cache)) == 3
    pins[1].release()
    assert isinstance(_request(cache, _name(7), 20), Download)
    assert pins[2].path.exists()


def test_files_that_we_did_not_create_are_neither_counted_nor_touched(cache: Cache) -> None:
    foreign = [
        cache.root / "notes.txt",
        cache.root / f"{_name(1)}.10.staged.bak",
        cache.root / f"X{_name(1)}.9.part",
    ]
    foreign += [cache.root / f"{_name(1)}.staged", cache.root / f"{_name(1)}.010.staged"]
    for path in foreign:
        path.write_bytes(b"y" * 100)
    link = cache.root / f"{_name(5)}.10.staged"
    link.symlink_to(foreign[0])
    for number in range(6, 12):
        _fill(cache, _name(number)).release()
    assert all(path.read_bytes() == b"y" * 100 for path in foreign)
    assert link.is_symlink()


def test_a_staged_file_that_lost_bytes_is_staged_again(cache: Cache) -> None:
    pin = _fill(cache, _name(1))
    pin.path.write_bytes(b"short")
    pin.release()
    assert isinstance(_request(cache, _name(1), 10), Download)


def test_partial_downloads_of_a_dead_process_are_removed_at_the_start(
    tmp_path: Path, cache: Cache
) -> None:
    (cache.root / f"{_name(1)}.10.part").write_bytes(b"half")
    live = _request(cache, _name(2), 10)
    again = _cache(tmp_path)
    assert [path.name for path in again.root.iterdir()] == [f"{_name(2)}.10.part"]
    live.abandon()


PRIVATE = """
import os, sys
from featstore.staging.cache import Cache, Limits
cache = Cache(None, Limits(budget_bytes=100))
print(cache.root.parent, flush=True)
if os.fork() == 0:
    cache.close()
    sys.exit(0)
os.wait()
print(cache.root.exists(), flush=True)
if sys.argv[1] == "die":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(("how", "is_left"), [("exit", False), ("die", True)])
def test_a_private_directory_is_removed_by_its_process_or_by_the_next_one(
    tmp_path: Path, how: str, is_left: bool
) -> None:
    environment = {"TMPDIR": str(tmp_path)}
    done = run_python(PRIVATE, how, variables=environment, status=None)
    directory, survived_fork = done.stdout.split()
    assert survived_fork == "True", done.stderr
    assert Path(directory).exists() is is_left
    (tmp_path / "featstore-private-of-a-friend").mkdir()
    run_python(PRIVATE, "exit", variables=environment)
    assert [path.name for path in tmp_path.iterdir()] == ["featstore-private-of-a-friend"]


def test_a_private_directory_is_removed_at_close() -> None:
    cache = Cache(None, Limits(budget_bytes=100))
    assert cache.root.parent.stat().st_mode & 0o777 == 0o700
    cache.close()
    cache.close()
    assert not cache.root.parent.exists()


def test_a_file_with_ranges_takes_only_their_bytes_of_the_budget(
    tmp_path: Path,
) -> None:
    cache = _cache(tmp_path, 100)
    pin = _fill(cache, _name(1), 1_000_000, [(0, 10), (999_990, 1_000_000)])
    assert (pin.num_bytes, pin.record.held, pin.path.stat().st_size) == (
        20,
        ((0, 10), (999_990, 1_000_000)),
        1_000_000,
    )
    assert _names(cache) == [f"{_name(1)}.20.staged"]
    assert cache.request(_name(2), 1_000_000, 81) is Refusal.FULL
    assert isinstance(cache.request(_name(2), 1_000_000, 80), Download)


def test_a_reservation_grows_where_there_is_room(tmp_path: Path) -> None:
    cache = _cache(tmp_path, 100)
    download = cache.request(_name(1), 1000, 10)
    assert isinstance(download, Download)
    assert download.reserve(100) is None
    assert download.reserve(101) is Refusal.FULL
    assert _names(cache) == [f"{_name(1)}.100.part"]
    assert download.reserve(5) is None
    assert _names(cache) == [f"{_name(1)}.5.part"]


def test_a_file_that_holds_more_takes_the_place_of_one_that_holds_less_once_nobody_reads_that(
    tmp_path: Path,
) -> None:
    cache = _cache(tmp_path, 100)
    narrow = _fill(cache, _name(1), 50, [(40, 50)])
    wide = _fill(cache, _name(1), 50, [(0, 10), (40, 50)])
    assert narrow.path.exists()
    narrow.release()
    held = cache.request(_name(1), 50, 50)
    assert isinstance(held, Pin | Download)
    assert held.num_bytes == 20
    del held
    widest = _fill(cache, _name(1), 50, [(0, 50)])
    assert _names(cache) == [f"{_name(1)}.20.staged", f"{_name(1)}.50.staged"]
    wide.release()
    widest.release()
    whole = cache.request(_name(1), 50, 50)
    assert isinstance(whole, Pin)
    assert whole.record.is_whole


def test_two_files_of_one_name_with_other_bytes_but_as_many_live_side_by_side(
    tmp_path: Path,
) -> None:
    cache = _cache(tmp_path, 100)
    one = _fill(cache, _name(1), 50, [(0, 10)])
    download = cache.request(_name(1), 50, 10, beyond_bytes=10)
    assert isinstance(download, Download)
    other = download.publish(_record([(40, 50)], 50))
    assert one.path.exists()
    assert (one.num_bytes, other.num_bytes) == (10, 11)


def test_a_request_can_demand_more_bytes_than_a_staged_file_holds(cache: Cache) -> None:
    pin = _fill(cache, _name(1))
    assert isinstance(cache.request(_name(1), 10, 10, beyond_bytes=pin.num_bytes - 1), Pin)
    assert isinstance(cache.request(_name(1), 10, 10, beyond_bytes=pin.num_bytes), Download)


@pytest.mark.parametrize("text", ["", "{}", '{"format": 3'])
def test_a_file_whose_record_a_crash_tore_is_staged_again(
    tmp_path: Path, cache: Cache, text: str
) -> None:
    pin = _fill(cache, _name(1))
    pin.release()
    pin.path.with_suffix(".held").write_text(text)
    assert isinstance(_request(_cache(tmp_path), _name(1)), Download)
    assert not pin.path.exists()


def test_a_file_without_a_record_and_a_record_without_a_file_are_left_over(
    tmp_path: Path, cache: Cache
) -> None:
    for number, gone in ((1, ".held"), (2, ".staged")):
        pin = _fill(cache, _name(number))
        pin.release()
        pin.path.with_suffix(gone).unlink()
    assert list(_cache(tmp_path).root.iterdir()) == []


def test_a_pinned_file_without_a_record_takes_room_and_blocks_no_download(
    tmp_path: Path,
) -> None:
    cache = _cache(tmp_path, 100, max_connections=1, min_free_bytes=1)
    pin = _fill(cache, _name(1), 50, [(0, 40)])
    pin.path.with_suffix(".held").unlink()
    assert cache.request(_name(1), 50, 61) is Refusal.FULL
    download = cache.request(_name(1), 50, 50)
    assert isinstance(download, Download)
    download.abandon()
    assert cache.clear() == []
    assert pin.path.exists()
    pin.release()
    assert isinstance(cache.request(_name(2), 100, 100), Download)
    assert not pin.path.exists()


def test_a_reservation_shrinks_also_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_bytes = 1000
    usage = type("Usage", (), {"free": property(lambda self: free_bytes)})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage())
    download = _cache(tmp_path, 10_000, min_free_bytes=500).request(_name(1), 1000, 300)
    assert isinstance(download, Download)
    free_bytes = 0
    assert download.reserve(301) is Refusal.FULL
    assert download.reserve(200) is None


def test_a_download_that_somebody_removed_leaves_no_record(cache: Cache) -> None:
    download = _request(cache, _name(1))
    download.path.unlink()
    with pytest.raises(
        StagingError, match="expected it in the cache, found nothing: somebody removed it"
    ):
        download.publish(_record())
    assert list(cache.root.iterdir()) == []


def test_a_record_that_is_a_link_is_not_followed(tmp_path: Path, cache: Cache) -> None:
    pin = _fill(cache, _name(1))
    pin.release()
    record = pin.path.with_suffix(".held")
    record.rename(tmp_path / "elsewhere")
    record.symlink_to(tmp_path / "elsewhere")
    assert isinstance(_request(cache, _name(1)), Download)
    assert (tmp_path / "elsewhere").exists()


DEEP = "[" * 100_000 + "]" * 100_000
SOUND = '{"format": 3, "held": [[0, 10]], "sums": [[0, 10, 0]], "size_bytes": 10, "tag": "", "url": "", "is_checked": false}'


@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        SOUND.replace("10, 0", "Infinity, 0"),
        SOUND.replace("10]]", "NaN]]"),
        SOUND.replace("10]]", "-1e999]]"),
        "9" * 9_999,
    ],
)
def test_an_unreadable_record_is_logged_in_one_line_and_the_file_is_staged_again(
    cache: Cache, caplog: pytest.LogCaptureFixture, text: Any
) -> None:
    pin = _fill(cache, _name(1))
    pin.release()
    pin.path.with_suffix(".held").write_text(text)
    _fill(cache, _name(1)).release()
    assert isinstance(_request(cache, _name(1)), Pin)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"{pin.path}: its record cannot be read; the file is staged again"


@given(
    st.text()
    | st.recursive(
        st.none() | st.floats() | st.integers() | st.text(),
        lambda of: st.lists(of) | st.dictionaries(st.text(), of),
    ).map(json.dumps)
)
def test_arbitrary_text_is_no_record(text: Any) -> None:
    assert Record.from_json(text) is None


@given(
    st.sampled_from(["format", "held", "sums", "size_bytes", "tag", "url", "is_checked", "new"]),
    st.recursive(
        st.none() | st.floats() | st.integers() | st.text() | st.booleans(),
        lambda of: st.lists(of, max_size=3),
    ),
)
def test_a_record_with_an_arbitrary_field_is_refused_or_has_the_declared_types(
    field: str, value: Any
) -> None:
    record = Record.from_json(json.dumps(json.loads(SOUND) | {field: value}))
    if record is not None:
        assert isinstance(record.url, str)
        assert isinstance(record.tag, str)
        numbers = [
            record.size_bytes,
            *(number for of in (*record.held, *record.sums) for number in of),
        ]
        assert all(type(number) is int for number in numbers)
        assert record.is_checked in (False, True)


def _put(kind: Any, path: Any, elsewhere: Any) -> None:
    if kind == "directory":
        path.mkdir()
        (path / "mine").write_text("mine")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(elsewhere if kind == "link" else elsewhere.with_name("nothing"))


@pytest.mark.parametrize("suffix", [".held", ".staged"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "directory", "pipe"])
@pytest.mark.parametrize("has_file", [True, False])
def test_foreign_entries_in_place_of_a_file_or_record_are_not_followed_and_the_file_is_staged_again(
    tmp_path: Path, cache: Cache, kind: str, suffix: str, has_file: bool
) -> None:
    (tmp_path / "elsewhere").write_text("somebody's")
    if has_file:
        _fill(cache, _name(1)).release()
    place = cache.root / f"{_name(1)}.10{suffix}"
    place.unlink(missing_ok=True)
    _put(kind, place, tmp_path / "elsewhere")
    pin = _fill(cache, _name(1))
    assert pin.path.read_bytes() == b"x" * 10
    pin.release()
    found = _request(cache, _name(1))
    assert isinstance(found, Pin)
    assert found.record == _record()
    assert (
        found.path.lstat().st_mode & 0o777
        == found.path.with_suffix(".held").lstat().st_mode & 0o777
        == 0o600
    )
    assert (tmp_path / "elsewhere").read_text() == "somebody's"
    assert not (tmp_path / "nothing").exists()
    assert kind != "directory" or (place / "mine").exists()


def test_a_removed_cache_directory_is_created_again(
    cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    pin = _fill(cache, _name(1))
    shutil.rmtree(cache.root.parent)
    pin.release()
    assert not cache.has(_name(1))
    _fill(cache, _name(1)).release()
    assert isinstance(_request(cache, _name(1)), Pin)
    assert cache.root.stat().st_mode & 0o777 == 0o700
    assert f"somebody removed the cache {cache.root}" in caplog.text


def test_a_pinned_file_that_somebody_removed_can_be_read_until_its_release(cache: Cache) -> None:
    pin = _fill(cache, _name(1))
    pin.path.unlink()
    assert pin.open_path.read_bytes() == b"x" * 10
    pin.release()
    assert not pin.open_path.exists()


def test_the_number_of_downloads_keeps_the_connection_limit(tmp_path: Path) -> None:
    cache, other = (_cache(tmp_path, 100, max_connections=2) for _ in range(2))
    downloads = [_request(cache, _name(1)), _request(other, _name(2))]
    assert _request(cache, _name(3)) is Refusal.CROWDED
    downloads[0].abandon()
    assert isinstance(_request(other, _name(3)), Download)


def test_min_free_bytes_are_kept_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free_bytes = 1000
    usage = type("Usage", (), {"free": property(lambda self: free_bytes)})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage())
    cache = _cache(tmp_path, 10_000, min_free_bytes=500)
    pin = _fill(cache, _name(1), 300)
    free_bytes = 600
    assert cache.request(_name(2), 200, 200) is Refusal.FULL
    pin.release()
    assert isinstance(cache.request(_name(2), 200, 200), Download)
    assert cache.num_evicted == 1
    free_bytes = 800
    assert (
        cache.request(_name(3), 101, 101) is Refusal.FULL
    )  # 200 are promised to the download that has not written them
    assert isinstance(cache.request(_name(3), 100, 100), Download)


def test_entries_are_listed_with_use_and_without_credentials_and_cleared_but_for_pinned_ones(
    cache: Cache,
) -> None:
    _fill(cache, _name(1)).release()
    pin = _fill(cache, _name(2))
    under_way = _request(cache, _name(3))
    (cache.root / "notes.txt").write_text("mine")
    entries = cache.entries()
    assert [(entry.path.name[:40], entry.is_pinned) for entry in entries] == [
        (_name(2), True),
        (_name(1), False),
    ]
    assert {entry.record.url for entry in entries} == {"https://h/x"}
    assert cache.clear() == [f"{_name(1)}.10.staged"]
    under_way.abandon()
    pin.release()
    assert cache.clear() == [f"{_name(2)}.10.staged"]
    assert [path.name for path in cache.root.iterdir()] == ["notes.txt"]


@given(url=st.text(), size_bytes=st.integers(0, 2**60), version=st.text())
def test_names_cannot_leave_the_cache(url: str, size_bytes: int, version: str) -> None:
    root = Path("/cache")
    path = root / f"{entry_name(url, size_bytes, version)}.{size_bytes}.staged"
    assert path.parent == root
    assert path.resolve() == path


def test_a_cache_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _cache(tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(StagingError, match="it must be a directory of user 12345"):
        _cache(tmp_path)


def _fails(*_: Any, **__: Any) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_use_that_cannot_be_noted_and_free_space_that_is_unknown_end_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = _cache(tmp_path, min_free_bytes=1)
    monkeypatch.setattr(os, "utime", _fails)
    monkeypatch.setattr(os, "statvfs", _fails)
    pins = [_fill(cache, _name(number)) for number in range(3)]
    assert _request(cache, _name(4)) is Refusal.FULL  # The budget still limits.
    for pin in pins:
        pin.release()
    assert isinstance(_request(cache, _name(0)), Pin)
    assert isinstance(_request(cache, _name(4)), Download)


def test_a_lock_that_the_system_fails_to_release_is_released_by_closing_its_file(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, num_failed = fcntl.flock, 0

    def never_released(file: int, kind: int) -> None:
        nonlocal num_failed
        if kind == fcntl.LOCK_UN:
            num_failed += 1
            _fails()
        flock(file, kind)

    monkeypatch.setattr(fcntl, "flock", never_released)
    _fill(cache, _name(1)).release()
    _request(cache, _name(2)).abandon()
    monkeypatch.undo()
    assert num_failed > 3
    assert _cache(tmp_path).clear() == [f"{_name(1)}.10.staged"]
    assert list(cache.root.iterdir()) == []


@pytest.mark.parametrize("name", ["flock", "ftruncate"])
def test_a_download_that_cannot_be_made_leaves_no_file(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    flock = fcntl.flock
    monkeypatch.setattr(os, "ftruncate", _fails)
    if name == "flock":
        monkeypatch.setattr(
            fcntl,
            "flock",
            lambda file, kind: _fails() if kind & fcntl.LOCK_NB else flock(file, kind),
        )
    with pytest.raises(StagingError, match=f"^{cache.root}: the cache fails: Input/output error; "):
        _request(cache, _name(1))
    assert list(cache.root.iterdir()) == []
    monkeypatch.undo()
    assert isinstance(_request(cache, _name(1)), Download)
