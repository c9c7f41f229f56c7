"""A packed Python is judged by what it loaded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from featstore.base.errors import PackError
from featstore.tools.interpreter import LAUNCHER
from featstore.tools.trial import Found, needed_libraries, site_packages

ROOT = Path("/tmp/packed")
FOUND = Found(
    prefix=ROOT,
    path=(ROOT / "lib/python311.zip", ROOT / "lib/python3.11"),
    featstore=ROOT / "lib/python3.11/site-packages/featstore/__init__.py",
    libraries=(
        ROOT / "lib/libpython3.11.so.1.0",
        Path("/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"),
        Path("/usr/lib/x86_64-linux-gnu/libc.so.6"),
        Path("/usr/lib/x86_64-linux-gnu/libssl.so.3"),
        Path("/usr/lib/x86_64-linux-gnu/libz.so.1.2.13"),
        Path("/lib64/libz.so.1.3"),
    ),
)


def test_hosts_need_the_libraries_of_the_system_that_are_not_glibcs() -> None:
    assert needed_libraries(FOUND, ROOT) == ["libssl.so.3", "libz.so.1"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"prefix": Path("/opt/py")}, "/opt/py"),
        ({"path": (ROOT, Path("/usr/lib/python3/dist-packages"))}, "/usr/lib/python3/dist-pack"),
        ({"featstore": Path("/home/me/featstore/__init__.py")}, "/home/me/featstore"),
        ({"libraries": (Path("/opt/py/lib/libpython3.11.so.1.0"),)}, "/opt/py/lib/libpython3.11"),
    ],
)
def test_a_python_that_uses_files_of_this_host_cannot_be_moved(
    change: dict[str, Any], named: str
) -> None:
    with pytest.raises(PackError, match=f"cannot be moved to another host: it uses {named}"):
        needed_libraries(replace(FOUND, **change), ROOT)


def test_a_python_that_does_not_start_says_why(tmp_path: Path) -> None:
    (tmp_path / LAUNCHER).parent.mkdir()
    (tmp_path / LAUNCHER).write_text("#!/bin/sh\necho no module named encodings >&2\nexit 1\n")
    (tmp_path / LAUNCHER).chmod(0o755)
    with pytest.raises(PackError, match=r"does not run without .*: no module named encodings"):
        site_packages(tmp_path)
