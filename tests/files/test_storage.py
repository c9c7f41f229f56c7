"""Files by URL, with real files and a real HTTP server (which also imitates S3)."""

import errno
import io
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import ConfigError
from featstore.files import listings, storage
from tests.programs import run_python
from tests.store_clients import clients_of

DATA = bytes(range(256)) * 40_000


@pytest.fixture
def s3(loopback: Any) -> Iterator[Any]:
    """The loopback server as an S3 endpoint."""
    variables = {"AWS_SKIP_SIGNATURE": "true", "AWS_REGION": "eu-central-1"}
    with clients_of(variables | {"AWS_ENDPOINT_URL": loopback.url}):
        yield loopback


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("/a/b", "file"),
        ("a/b", "file"),
        ("file:///a", "file"),
        ("S3://b/k", "s3"),
        ("c:/x", "file"),
        ("hdfs://n/x", "hdfs"),
    ],
)
def test_the_scheme_of_a_plain_path_is_file(url: str, name: str) -> None:
    assert storage.scheme(url) == name


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/a/b", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("FILE:///a/b", "/a/b"),
        ("file://localhost/a/b", "/a/b"),
        ("rel/x", "rel/x"),
    ],
)
def test_local_urls_have_a_path(url: str, path: str) -> None:
    assert storage.local_path(url) == Path(path)
    assert storage.local_path("s3://bucket/key") is None


def test_a_local_url_of_one_slash_is_absolute_everywhere(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/x#1.parquet"
    with storage.open_write(url) as file:
        file.write(DATA)
    (entry,) = listings.list_files(f"file:{tmp_path}")
    assert Path(entry.url).read_bytes() == DATA
    assert storage.absolute(url) == f"{tmp_path}/x#1.parquet"
    assert storage.spark_url(url) == f"file://{tmp_path}/x#1.parquet"


@pytest.mark.parametrize("key", ["t#1/a.bin", "t?x/a.bin", "a?b=c#d", "a b%20c"])
def test_an_objects_key_may_hold_what_splits_a_url(s3: Any, key: str) -> None:
    s3.files[f"/bucket/{key}"] = b"12345"
    s3.files["/bucket/t"] = s3.files["/bucket/a"] = b"another"
    assert storage.size_bytes(f"s3://bucket/{key}") == 5
    with storage.open_read(f"s3://bucket/{key}") as file:
        assert file.read() == b"12345"


def test_join_keeps_single_slashes() -> None:
    assert storage.join("s3://b/t/", "/p=1/", "", "x.parquet") == "s3://b/t/p=1/x.parquet"
    assert storage.join("/t", "x") == "/t/x"


def test_a_local_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "x.bin"
    with pytest.raises(TypeError, match="bytes-like"), storage.open_write(str(target)) as file:
        file.writelines([b"half", None])  # type: ignore[list-item]
    assert list(target.parent.iterdir()) == []
    with storage.open_write(str(target)) as file:
        file.write(DATA)
        assert not target.exists()
    assert target.read_bytes() == DATA


def test_local_files_are_read_sized_fetched_and_deleted(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/x.bin"
    (tmp_path / "x.bin").write_bytes(DATA)
    sink = io.BytesIO()
    assert (storage.size_bytes(url), storage.fetch(url, sink), sink.getvalue()) == (
        len(DATA),
        len(DATA),
        DATA,
    )
    with storage.open_read(url) as file:
        assert file.read(3) == DATA[:3]
    storage.delete(url)
    storage.delete(url)
    with pytest.raises(FileNotFoundError):
        storage.size_bytes(url)
    with pytest.raises(FileNotFoundError):
        storage.open_read(url)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "m=1/a.parquet",
        "m=2/a.parquet",
        "b.parquet",
        "_log/c.parquet",
        ".d.parquet",
        "note.txt",
        "m=2/_SUCCESS",
    ):
        (tmp_path / "t" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "t" / name).write_bytes(b"12345")
    monkeypatch.chdir(tmp_path)
    return tmp_path


LISTINGS = {
    "t": ["b.parquet", "m=1/a.parquet", "m=2/a.parquet"],
    "t/": ["b.parquet", "m=1/a.parquet", "m=2/a.parquet"],
    "t/m=*": ["m=1/a.parquet", "m=2/a.parquet"],
    "t/*/a.parquet": ["m=1/a.parquet", "m=2/a.parquet"],
    "t/note.t?t": ["note.txt"],
    "t/note.txt": ["note.txt"],
    "t/none": [],
    "t/none*": [],
}


@pytest.mark.parametrize("path", LISTINGS)
@pytest.mark.parametrize("form", ["{}", "{tmp}/{}", "file://{tmp}/{}"])
def test_listings_of_directories_globs_and_files(tree: Path, path: Any, form: str) -> None:
    found = listings.list_files(form.format(path, tmp=tree))
    assert [entry.name for entry in found] == LISTINGS[path]
    assert all(
        Path(entry.url).read_bytes() == b"12345" and entry.size_bytes == 5 and entry.version
        for entry in found
    )


LISTED = listings.FileEntry(
    url="/a", name="a", size_bytes=5, version="7.5", modified_ns=7_500, changed_ns=8_000, inode=3
)


@pytest.mark.parametrize(
    ("now", "is_same"),
    [
        ({"name": "b"}, True),
        ({"size_bytes": 6}, False),
        ({"modified_ns": 7_501}, False),
        ({"changed_ns": 9_000}, True),  # a new hard link
        ({"inode": 4}, True),  # a FUSE mount, on another host
        ({"changed_ns": 9_000, "inode": 4}, False),
    ],
)
def test_a_local_file_is_identified_by_size_time_and_inode(now: Any, is_same: bool) -> None:
    assert LISTED.is_same(replace(LISTED, **now)) == is_same


@pytest.mark.parametrize(("now", "is_same"), [("e1", True), ("e2", False), ("", True)])
def test_a_remote_file_is_identified_by_its_version_if_the_store_reports_one(
    now: str, is_same: bool
) -> None:
    listed = listings.FileEntry(url="s3://b/a", name="a", size_bytes=5, version="e1")
    assert listed.is_same(replace(listed, version=now)) == is_same
    assert not listed.is_same(replace(listed, version=now, size_bytes=6))


def test_a_name_with_a_bracket_is_found_as_it_is_written(tmp_path: Path) -> None:
    for name in ("t[1]", "t1", "t2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.parquet").write_bytes(b"12345")
    url = f"{tmp_path}/t[1]"
    names = [entry.name for entry in listings.list_files(url)]
    assert names == ["t1/a.parquet", "t[1]/a.parquet"]
    assert [entry.url for entry in listings.list_own(url)] == [f"{url}/a.parquet"]


@pytest.mark.parametrize("path", LISTINGS)
def test_listings_in_s3_are_those_of_the_same_local_tree(s3: Any, tree: Path, path: Any) -> None:
    s3.files |= {
        f"/bucket/{p.relative_to(tree)}": p.read_bytes()
        for p in (tree / "t").rglob("*")
        if p.is_file()
    }
    found = listings.list_files(f"s3://bucket/{path}")
    assert [entry.name for entry in found] == LISTINGS[path]
    assert all(
        storage.size_bytes(entry.url) == 5 and entry.url.startswith("s3://bucket/t/")
        for entry in found
    )


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/a/b", ["/a/b", "/a", "/"]),
        ("file:///a/b/", ["/a/b", "/a", "/"]),
        ("/a/b/k=*/x.parquet", ["/a/b", "/a", "/"]),
        ("s3://bucket/t/k=1", ["s3://bucket/t/k=1", "s3://bucket/t", "s3://bucket"]),
        ("s3://bucket/t*/k=1", ["s3://bucket"]),
        ("memory://t", ["memory://t"]),
    ],
)
def test_the_directories_above_a_url_are_computed_without_a_request(
    url: str, expected: Any
) -> None:
    assert listings.directories(url) == expected


@pytest.mark.parametrize("alias", ["s3", "s3a"])
def test_s3_urls_name_bucket_and_key(s3: Any, alias: str) -> None:
    s3.files["/bucket/p=1/x y.bin"] = DATA
    url, sink = f"{alias}://bucket/p=1/x y.bin", io.BytesIO()
    assert (storage.size_bytes(url), storage.fetch(url, sink), sink.getvalue()) == (
        len(DATA),
        len(DATA),
        DATA,
    )
    assert {path for _, path, _ in s3.log} == {"/bucket/p=1/x y.bin"}


def test_http_files_are_sized_and_fetched_in_one_request(loopback: Any) -> None:
    loopback.files["/a/x.bin"] = DATA
    sink = io.BytesIO()
    assert storage.size_bytes(f"{loopback.url}/a/x.bin") == len(DATA)
    assert storage.fetch(f"{loopback.url}/a/x.bin", sink) == len(DATA)
    assert sink.getvalue() == DATA
    assert loopback.num_gets("/a/x.bin") == 1


def test_http_files_are_read_at_any_position_by_ranges(loopback: Any) -> None:
    loopback.files["/x.bin"] = DATA
    with storage.open_read(f"{loopback.url}/x.bin") as file:
        assert file.seek(-8, os.SEEK_END) == len(DATA) - 8
        assert file.read() == DATA[-8:]
        assert file.read(1) == b""
        file.seek(5_000_001)
        assert file.read(3_000_000) == DATA[5_000_001:8_000_001]
        assert file.tell() == 8_000_001
    assert all(range_ is not None for method, _, range_ in loopback.log if method == "GET")


@given(reads=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=20))
def test_a_remote_reader_agrees_with_bytes_in_memory(reads: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        data = bytes(range(256))
        patch.setattr(
            obstore, "get_range", lambda store, key, start, length: data[start : start + length]
        )
        mine, oracle = (
            io.BufferedReader(storage._RemoteFile("http://127.0.0.1/x", len(data)), 16),
            io.BytesIO(data),
        )
        for position, length in reads:
            assert mine.seek(position) == oracle.seek(position)
            assert mine.read(length) == oracle.read(length)


def test_a_broken_connection_is_resumed_where_it_broke(loopback: Any) -> None:
    loopback.files["/x.bin"] = DATA
    loopback.cuts["/x.bin"] = 2
    sink = io.BytesIO()
    assert storage.fetch(f"{loopback.url}/x.bin", sink) == len(DATA)
    assert sink.getvalue() == DATA
    assert loopback.num_cuts == 2


def test_a_missing_remote_file_is_file_not_found(loopback: Any) -> None:
    url = f"{loopback.url}/none.bin"
    for act in (
        storage.size_bytes,
        storage.open_read,
        lambda url: storage.fetch(url, io.BytesIO()),
    ):
        with pytest.raises(FileNotFoundError, match=r"none\.bin"):
            act(url)
    assert listings.list_files(url) == []


def test_a_refused_remote_file_is_a_permission_error(loopback: Any) -> None:
    loopback.status["/x.bin"] = 403
    for act in (
        storage.size_bytes,
        storage.open_read,
        lambda url: storage.fetch(url, io.BytesIO()),
    ):
        with pytest.raises(PermissionError, match=r"x\.bin: the store refuses access"):
            act(f"{loopback.url}/x.bin")


def test_a_failing_server_is_an_os_error_without_credentials(loopback: Any) -> None:
    loopback.status["/x.bin"] = 400
    url = loopback.url.replace("http://", "http://user:secret@") + "/x.bin"
    with pytest.raises(OSError, match="the store refuses the request") as found:
        storage.size_bytes(url)
    assert "secret" not in str(found.value)
    assert found.value.__suppress_context__


def test_a_url_with_a_query_is_refused_rather_than_read_without_it(loopback: Any) -> None:
    with pytest.raises(ConfigError, match="a URL with a query cannot be read") as found:
        storage.size_bytes(f"{loopback.url}/x.bin?sig=secret")
    assert "secret" not in str(found.value)


FORKED = """
import os, sys
from featstore.files import storage
from featstore.files import listings
storage.size_bytes(sys.argv[1])
pid = os.fork()
if pid == 0:
    try:
        storage.size_bytes(sys.argv[1])
    except OSError as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


def test_a_forked_process_that_uses_the_remote_client_gets_an_error(
    loopback: Any,
) -> None:
    loopback.files["/x.bin"] = DATA
    done = run_python(FORKED, f"{loopback.url}/x.bin")
    assert done.stdout.startswith("StagingError"), done.stderr
    assert "multiprocessing_context='spawn'" in done.stdout


def test_a_listing_that_the_store_refuses_is_an_error_and_not_an_empty_table(s3: Any) -> None:
    s3.status["/bucket"] = 403
    s3.status["/bucket/t"] = 404
    with pytest.raises(OSError, match="s3://bucket/t"):
        listings.list_files("s3://bucket/t")


def test_a_second_name_is_a_hard_link_and_an_existing_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"data")
    storage.link(f"file://{tmp_path}/a", str(tmp_path / "deep" / "b"))
    assert (tmp_path / "deep" / "b").samefile(tmp_path / "a")
    (tmp_path / "c").write_bytes(b"other")
    storage.link(str(tmp_path / "a"), str(tmp_path / "c"))
    assert (tmp_path / "c").read_bytes() == b"other"


def test_a_second_name_is_a_copy_where_the_file_system_has_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"data")
    failing = errno.EPERM

    def no_links(self: Path, target: Path) -> None:
        raise OSError(failing, os.strerror(failing))

    monkeypatch.setattr(Path, "hardlink_to", no_links)
    storage.link(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "b").read_bytes() == b"data"
    failing = errno.ENOSPC
    with pytest.raises(OSError, match="No space left"):
        storage.link(str(tmp_path / "a"), str(tmp_path / "c"))


def test_a_second_name_elsewhere_is_a_copy_made_once() -> None:
    with storage.open_write("memory://link/a") as file:
        file.write(b"data")
    for _ in range(2):
        storage.link("memory://link/a", "memory://link/b")
    with storage.open_read("memory://link/b") as copy:
        assert copy.read() == b"data"


def test_only_object_stores_are_tried_for_put_if_absent(tmp_path: Path) -> None:
    assert storage.has_put_if_absent(str(tmp_path / "table"))
    assert not (tmp_path / "table").exists()


def test_only_directories_without_any_file_are_removed(tmp_path: Path) -> None:
    (tmp_path / "empty/a/b").mkdir(parents=True)
    storage.remove_empty_directories(tmp_path / "empty")
    assert not (tmp_path / "empty").exists()
    (tmp_path / "used/a/b").mkdir(parents=True)
    (tmp_path / "used/c").write_text("x")
    storage.remove_empty_directories(tmp_path / "used")
    assert (tmp_path / "used/a/b").is_dir()
    storage.remove_empty_directories(tmp_path / "none")


def test_empty_directories_below_a_root_are_removed_each_only_if_it_is_empty(
    tmp_path: Path,
) -> None:
    (tmp_path / "dt=1/hour=1/more").mkdir(parents=True)
    (tmp_path / "dt=1/hour=2").mkdir(parents=True)
    (tmp_path / "_runs").mkdir()
    storage.remove_if_empty(str(tmp_path), "dt=1/hour=1")
    assert {path.name for path in tmp_path.rglob("*")} == {"_runs", "dt=1", "hour=2"}
    # A file that is being written is a file.
    (tmp_path / "dt=1/hour=2/.a.parquet.12345678.partial").write_text("x")
    storage.remove_if_empty(str(tmp_path), "dt=1/hour=2")
    assert (tmp_path / "dt=1/hour=2").is_dir()
    (tmp_path / "part-0/more").mkdir(parents=True)
    storage.remove_if_empty(str(tmp_path), "")
    assert {path.name for path in tmp_path.iterdir()} == {"_runs", "dt=1"}
    storage.remove_if_empty(str(tmp_path), "dt=2")
    storage.remove_if_empty("memory://table", "dt=2")


@pytest.mark.parametrize("directory", ["new", "outer/inner"])
def test_a_file_is_written_although_others_remove_its_empty_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: str
) -> None:
    """Each once: the outer one while the inner one is made, the inner one before the file is."""
    real, removed = Path.mkdir, list[str]()

    def removed_once_each(path: Path, *args: Any, **kwargs: Any) -> None:
        real(path, *args, **kwargs)
        if path.name not in removed:
            removed.append(path.name)
            path.rmdir()

    monkeypatch.setattr(Path, "mkdir", removed_once_each)
    with storage.open_write(str(tmp_path / directory / "file")) as file:
        file.write(b"x")
    assert removed == directory.split("/")
    assert (tmp_path / directory / "file").read_bytes() == b"x"
