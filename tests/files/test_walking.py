import errno
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import InputError, StoreError
from featstore.files.listings import list_files, list_own
from featstore.files.walking import LocalTree, Wanted, matches

NAMES = ("a=1/x.parquet", "a=2/y.parquet", "b.parquet")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in NAMES:
        put(tmp_path / "in" / name)
    return tmp_path / "in"


def put(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"12345")


def names(url: object) -> list[str]:
    return [entry.name for entry in list_files(str(url))]


class Scandir:
    """In the place of `os.scandir`: raises for one directory, or does something there first."""

    def __init__(self, directory: Path, act: Callable[[], object]) -> None:
        self._directory, self._act, self._scandir = str(directory), act, os.scandir

    def __call__(self, path: Any = ".") -> Any:
        if str(path) == self._directory:
            self._act()
        return self._scandir(path)


@pytest.mark.parametrize("pattern", ["", "/*", "/a=*", "/**", "/a=2/*.parquet", "/a=[12]"])
def test_a_directory_that_cannot_be_listed_is_never_left_out(
    place: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise OSError(errno.EIO, "Input/output error", str(place / "a=2"))

    monkeypatch.setattr(os, "scandir", Scandir(place / "a=2", fails))
    with pytest.raises(StoreError, match=r"in/a=2 cannot be read, .*: Input/output error;"):
        list_files(f"{place}{pattern}")


def test_directories_that_a_glob_does_not_reach_are_not_looked_at(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "scandir", Scandir(place / "a=2", lambda: pytest.fail("looked at")))
    assert names(f"{place}/a=1") == ["x.parquet"]
    assert names(f"{place}/*=1/x.parquet") == ["a=1/x.parquet"]


def test_a_file_that_is_back_when_its_directory_is_listed_again_is_listed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Lost(place / "b.parquet", monkeypatch, num_times=2) as failed:
        assert names(place) == list(NAMES)
    assert len(failed) == 2


def test_a_file_that_stays_gone_is_no_smaller_table(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Lost(place / "b.parquet", monkeypatch, num_times=9),
        pytest.raises(InputError, match=r"b\.parquet changes while it is read"),
    ):
        list_files(str(place))


def test_a_file_that_is_removed_while_it_is_listed_is_no_smaller_table(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = (place / "b.parquet").unlink
    with (
        Lost(place / "b.parquet", monkeypatch, num_times=1, then=remove),
        pytest.raises(InputError, match=r"b\.parquet changes while it is read"),
    ):
        list_files(str(place))


def test_own_files_may_be_removed_meanwhile_but_not_lost(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Lost(place / "b.parquet", monkeypatch, num_times=9), pytest.raises(InputError):
        list_own(str(place))
    with Lost(place / "b.parquet", monkeypatch, num_times=1, then=(place / "b.parquet").unlink):
        assert [entry.name for entry in list_own(str(place))] == list(NAMES[:2])


def test_a_directory_that_is_removed_while_it_is_listed_is_an_error(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove() -> None:
        (place / "a=2" / "y.parquet").unlink(missing_ok=True)
        if (place / "a=2").exists():
            (place / "a=2").rmdir()

    monkeypatch.setattr(os, "scandir", Scandir(place / "a=2", remove))
    assert [entry.name for entry in list_own(str(place))] == [NAMES[0], NAMES[2]]
    (place / "a=2").mkdir()
    for pattern in ("", "/*"):
        (place / "a=2").mkdir(exist_ok=True)
        with pytest.raises(InputError, match="a=2 changes while it is read"):
            list_files(f"{place}{pattern}")


class Lost:
    """A file whose `stat` fails with ENOENT a number of times, as NFS and FUSE do. Yields the
    failures.
    """

    def __init__(
        self,
        path: Path,
        monkeypatch: pytest.MonkeyPatch,
        *,
        num_times: int,
        then: Callable[[], object] = lambda: None,
    ) -> None:
        self._path, self._patch, self._left, self._then = path, monkeypatch, num_times, then
        self.failed: list[str] = []

    def __enter__(self) -> list[str]:
        self._item_of = LocalTree._item_of

        def item_of(tree: Any, entry: Any, takes: Any) -> Any:
            if entry.path == str(self._path) and self._left:
                self._left -= 1
                self.failed.append(entry.path)
                self._then()
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", entry.path)
            return self._item_of(tree, entry, takes)

        self._patch.setattr(LocalTree, "_item_of", item_of)
        return self.failed

    def __exit__(self, *_: object) -> None:
        self._patch.setattr(LocalTree, "_item_of", self._item_of)


def test_links_are_followed_and_circles_end(
    tmp_path: Path, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "blobs/1f.parquet")
    put(tmp_path / "elsewhere/z.parquet")
    (place / "a=1/linked.parquet").symlink_to(tmp_path / "blobs/1f.parquet")
    (place / "c=3").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "round").symlink_to(place)
    caplog.set_level(logging.WARNING)
    assert names(place) == ["a=1/linked.parquet", *NAMES, "c=3/z.parquet"]
    assert "round" in caplog.text


def test_links_are_not_followed_among_own_files(tmp_path: Path, place: Path) -> None:
    put(tmp_path / "other/z.parquet")
    (place / "c=3").symlink_to(tmp_path / "other")
    (place / "l.parquet").symlink_to(tmp_path / "other/z.parquet")
    assert [entry.name for entry in list_own(str(place))] == list(NAMES)


@pytest.mark.parametrize("target", ["none", "b.parquet/x"])
def test_a_link_that_leads_nowhere_is_an_error_where_it_may_lead_to_data(
    place: Path, target: str
) -> None:
    (place / "notes.txt").symlink_to(target)
    assert names(place) == list(NAMES)
    assert names(f"{place}/*.parquet") == ["b.parquet"]
    assert [entry.name for entry in list_own(str(place))] == list(NAMES)
    for name in ("c.parquet", "a=3", "more"):
        (place / name).symlink_to(target)
        with pytest.raises(InputError, match=rf"{name} changes .* a link that leads nowhere"):
            list_files(str(place))
        (place / name).unlink()


def test_what_links_reach_twice_is_listed_once(place: Path) -> None:
    (place / "latest").symlink_to("a=2")
    (place / "c.parquet").symlink_to("b.parquet")
    assert names(place) == list(NAMES)
    assert names(f"{place}/**") == list(NAMES)
    (place / "round").symlink_to("round")
    assert names(f"{place}/*.parquet") == ["b.parquet"]
    assert names(f"{place}/latest/*.parquet") == ["y.parquet"]


def test_any_depth_twice_means_the_same(place: Path) -> None:
    deep = place.joinpath(*"abcdefghijkl")
    put(deep / "z.parquet")
    assert len(names(f"{place}/**/**/**/*.parquet")) == len(NAMES) + 1


def test_files_with_other_names_are_named_with_their_count(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("A.PARQUET", "b.pq", "c.parq", "d.txt", "a=1/e", "_SUCCESS", ".crc"):
        put(place / name)
    assert len(names(place)) == len(NAMES) + 3
    (message,) = [record.getMessage() for record in caplog.records]
    assert "2 files are left out" in message
    assert "d.txt" in message
    assert "_SUCCESS" not in message


@given(
    paths=st.sets(st.from_regex(r"[ab1](/[ab1]){0,3}", fullmatch=True), min_size=1, max_size=8),
    pattern=st.lists(
        st.sampled_from(["*", "**", "a", "b", "?", "[ab]", "[!a]", "a*"]), min_size=1, max_size=3
    ),
)
def test_globs_match_what_fsspec_matches(
    paths: set[str], pattern: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("glob")
    for path in sorted(paths, key=len):
        # A name of two kinds is a directory.
        target = root / path
        if not any(other.startswith(f"{path}/") for other in paths):
            put(target)
    tree = LocalTree(str(root), Wanted(hidden=True))
    found = {item.path for item in matches(tree, str(root), pattern) if item.info is not None}
    expected = fsspec.filesystem("file").glob(f"{root}/{'/'.join(pattern)}", detail=True)
    assert found == {path for path, info in expected.items() if info["type"] == "file"}


class Shaky(MemoryFileSystem):  # type: ignore[misc]
    """A store whose listings of one directory fail, as those of a name node without answer."""

    protocol = "shaky"
    store: dict[str, Any] = {}  # noqa: RUF012  as in the class it is of
    pseudo_dirs: list[str] = [""]  # noqa: RUF012
    failing = "/in/a=2"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        rest = path.partition("://")[2].partition("/")[2] if "://" in path else path.lstrip("/")
        return f"/{rest}".rstrip("/")

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        if self._strip_protocol(path) == self.failing:
            raise OSError("HTTP 503")
        return super().ls(path, detail, **options)


@pytest.fixture
def shaky() -> Iterator[str]:
    fsspec.register_implementation("shaky", Shaky, clobber=True)
    for name in NAMES:
        fsspec.filesystem("shaky").pipe_file(f"/in/{name}", b"12345")
    yield "shaky://host/in"
    Shaky.store.clear()


@pytest.mark.parametrize("pattern", ["", "/*", "/a=*"])
def test_a_remote_directory_that_cannot_be_listed_is_never_left_out(
    shaky: str, pattern: str
) -> None:
    with pytest.raises(StoreError, match="HTTP 503"):
        list_files(f"{shaky}{pattern}")
    assert names(f"{shaky}/a=1") == ["x.parquet"]
