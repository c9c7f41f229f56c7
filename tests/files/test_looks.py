import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from featstore.base.errors import AccessError, StoreError
from featstore.files import looks

PROBES: dict[str, Callable[[Path], object]] = {
    "exists": looks.exists,
    "file": looks.is_file_at,
    "directory": looks.is_directory_at,
    "names": looks.names_in,
}


def test_what_is_there_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"x")
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("b")
    (tmp_path / "nowhere").symlink_to("none")
    assert [looks.is_file_at(tmp_path / name) for name in ("a", "b", "link")] == [
        *(False, True, True)
    ]
    assert [looks.is_directory_at(tmp_path / name) for name in ("a", "b")] == [True, False]
    assert looks.names_in(tmp_path) == ["a", "b", "link", "nowhere"]


@pytest.mark.parametrize("probe", PROBES)
def test_a_link_that_leads_nowhere_is_not_nothing(tmp_path: Path, probe: str) -> None:
    (tmp_path / "nowhere").symlink_to("none")
    with pytest.raises(StoreError, match="nowhere is a link that leads nowhere"):
        PROBES[probe](tmp_path / "nowhere")


@pytest.mark.parametrize("probe", PROBES)
def test_what_is_made_while_it_is_looked_for_is_there(
    tmp_path: Path, probe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new"
    lstat, made = os.lstat, {"file": path.touch, "names": lambda: (path / "x").mkdir(parents=True)}

    def late(looked_at: Path) -> os.stat_result:
        made.get(probe, path.mkdir)()
        return lstat(looked_at)

    monkeypatch.setattr(os, "lstat", late)
    assert PROBES[probe](path)


def test_a_link_that_is_made_while_it_is_looked_for_leads_where_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lstat = tmp_path / "new", os.lstat

    def late(looked_at: Path) -> os.stat_result:
        path.symlink_to(tmp_path)
        return lstat(looked_at)

    monkeypatch.setattr(os, "lstat", late)
    assert looks.is_directory_at(path)


def test_names_in_a_file_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file: expected a directory, found a file"):
        looks.names_in(tmp_path / "file")


@pytest.mark.parametrize("probe", PROBES)
def test_only_what_is_not_there_is_nothing(tmp_path: Path, probe: str) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for path in (tmp_path / "none", tmp_path / "none/x", tmp_path / "file/x"):
        assert not PROBES[probe](path)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE, errno.EMFILE])
@pytest.mark.parametrize("probe", PROBES)
def test_a_probe_that_fails_is_an_error(
    tmp_path: Path, probe: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: object) -> object:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(os, "stat", fails)
    monkeypatch.setattr(os, "scandir", fails)
    with pytest.raises(
        StoreError, match=rf"{tmp_path} cannot be read, .*: {os.strerror(number)}; "
    ) as raised:
        PROBES[probe](tmp_path)
    assert raised.value.errno == number
    assert isinstance(raised.value, AccessError) == (number == errno.EACCES)
