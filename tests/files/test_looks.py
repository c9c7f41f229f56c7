"""Only what is not there counts as not there."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from featstore.files.looks import exists, is_directory_at, is_file_at, names_in

LOOKS: list[Callable[[Path], Any]] = [exists, is_directory_at, is_file_at, names_in]


def test_what_is_there_is_seen_and_what_is_not_is_not(tmp_path: Path) -> None:
    (tmp_path / "b").touch()
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    found = {
        name: [look(tmp_path / name) for look in LOOKS[:3]] for name in ("a", "b", "link", "c")
    }
    assert found == {
        "a": [True, True, False],
        "b": [True, False, True],
        "link": [False, False, False],
        "c": [False, False, False],
    }
    assert exists(tmp_path / "b" / "below a file") is False
    assert (names_in(tmp_path), names_in(tmp_path / "c")) == (["a", "b", "link"], [])


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE, errno.ELOOP])
def test_a_look_that_fails_is_an_error(
    look: Callable[[Path], Any], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: Path, *_: object, **__: object) -> NoReturn:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(Path, "stat", failing)
    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(OSError, match=str(tmp_path)) as raised:
        look(tmp_path)
    assert raised.value.errno == code
