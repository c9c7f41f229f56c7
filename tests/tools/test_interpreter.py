"""The files of the running interpreter, and what a packed one loaded."""

import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from featstore.base.errors import PackError
from featstore.tools.interpreter import (
    LAUNCHER,
    Interpreter,
    interpreter_files,
    launcher,
    loaded_libraries,
    needed_libraries,
    running_interpreter,
    site_packages,
)

MAPS = """\
55d0c0a00000-55d0c0a01000 r--p 00000000 08:01 1234   /opt/py/bin/python3.11
7f0000000000-7f0000001000 r-xp 00001000 08:01 1235   /opt/py/lib/libpython3.11.so.1.0
7f0000001000-7f0000002000 rw-p 00001000 08:01 1235   /opt/py/lib/libpython3.11.so.1.0
7f0000003000-7f0000004000 r--p 00000000 08:01 1236   /usr/lib/locale/C.utf8/LC_CTYPE
7f0000005000-7f0000006000 r-xp 00000000 08:01 1237   /a b/lib-dynload/_ssl.cpython-311.so
7ffd00000000-7ffd00001000 rw-p 00000000 00:00 0      [stack]
7f0000007000-7f0000008000 rw-p 00000000 00:00 0
"""


def test_loaded_libraries_are_those_that_the_system_lists_for_a_process() -> None:
    assert loaded_libraries(MAPS.splitlines()) == [
        Path("/a b/lib-dynload/_ssl.cpython-311.so"),
        Path("/opt/py/lib/libpython3.11.so.1.0"),
    ]
    assert any(path.name.startswith("libc.so") for path in loaded_libraries())


def test_packages_tests_and_what_only_compilers_need_are_left_out(tmp_path: Path) -> None:
    library = tmp_path / "lib64" / "python3.12"
    kept = ("os.py", "lib-dynload/_ssl.so", "encodings/utf_8.py")
    left_out = (
        "site-packages/numpy/__init__.py",
        "dist-packages/apt.py",
        "test/test_os.py",
        "unittest/test/a.py",
        "config-3.12-x86_64-linux-gnu/libpython3.12.a",
        "__pycache__/os.cpython-312.pyc",
    )
    for name in (*kept, *left_out):
        (library / name).parent.mkdir(parents=True, exist_ok=True)
        (library / name).touch()
    shared = tmp_path / "lib" / "libpython3.12.so.1.0"
    program = tmp_path / "bin" / "python3"
    interpreter = Interpreter(
        executable=program, prefix=tmp_path, standard_library=library, shared_libraries=(shared,)
    )
    expected = {PurePosixPath("lib64/python3.12", name): library / name for name in kept}
    expected |= {PurePosixPath("bin/python3.12"): program}
    assert interpreter_files(interpreter) == expected | {
        PurePosixPath("lib/libpython3.12.so.1.0"): shared
    }
    assert 'exec "$here/python3.12" "$@"' in launcher(interpreter)


def test_the_running_interpreter_is_that_of_which_the_environment_was_made() -> None:
    interpreter = running_interpreter()
    assert interpreter.prefix == Path(sys.base_prefix)
    assert not interpreter.executable.is_symlink()
    assert (interpreter.standard_library / "os.py").exists()


def test_a_python_of_conda_is_refused_with_the_command_that_packs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conda-meta").mkdir()
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    with pytest.raises(PackError, match=r"not conda's, found .*conda pack --output"):
        running_interpreter()


ROOT = Path("/tmp/packed")
FOUND = {
    "prefix": str(ROOT),
    "path": [str(ROOT / "lib/python311.zip"), str(ROOT / "lib/python3.11"), ""],
    "featstore": str(ROOT / "lib/python3.11/site-packages/featstore/__init__.py"),
    "maps": [
        f"7f0000000000-7f0000001000 r-xp 00001000 08:01 1235   {library}"
        for library in (
            ROOT / "lib/libpython3.11.so.1.0",
            "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
            "/usr/lib/x86_64-linux-gnu/libc.so.6",
            "/usr/lib/x86_64-linux-gnu/libssl.so.3",
            "/usr/lib/x86_64-linux-gnu/libz.so.1.2.13",
            "/lib64/libz.so.1.3",
        )
    ],
}


def test_hosts_need_the_libraries_of_the_system_that_are_not_glibcs() -> None:
    assert needed_libraries(FOUND, ROOT) == ["libssl.so.3", "libz.so.1"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"prefix": "/opt/py"}, "/opt/py"),
        ({"path": [str(ROOT), "/usr/lib/python3/dist-packages"]}, "/usr/lib/python3/dist-pack"),
        ({"featstore": "/home/me/featstore/__init__.py"}, "/home/me/featstore"),
        (
            {"maps": ["0-1 r-xp 0 08:01 5 /opt/py/lib/libpython3.11.so.1.0"]},
            "/opt/py/lib/libpython3.11",
        ),
    ],
)
def test_a_python_that_uses_files_of_this_host_cannot_be_moved(
    change: dict[str, Any], named: str
) -> None:
    with pytest.raises(PackError, match=f"cannot be moved to another host: it uses {named}"):
        needed_libraries(FOUND | change, ROOT)


def test_a_python_that_does_not_start_says_why(tmp_path: Path) -> None:
    (tmp_path / LAUNCHER).parent.mkdir()
    (tmp_path / LAUNCHER).write_text("#!/bin/sh\necho no module named encodings >&2\nexit 1\n")
    (tmp_path / LAUNCHER).chmod(0o755)
    with pytest.raises(PackError, match=r"does not run without .*: no module named encodings"):
        site_packages(tmp_path)
