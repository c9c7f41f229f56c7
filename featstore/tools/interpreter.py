"""The files of the Python interpreter that runs, in a form that works in any directory.

An interpreter finds its standard library from the place of its own file. What it finds nowhere else
is its shared library, if it was built with one. So `bin/python` is a script that tells the dynamic
linker where that is. It also keeps out packages in the home directory of the user on that host.
"""

import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from featstore.base.errors import PackError

LAUNCHER = PurePosixPath("bin/python")
_LIBRARIES = "lib"
_SCRIPT = """#!/bin/sh
here=$(cd "${{0%/*}}" && pwd -P)
LD_LIBRARY_PATH="$here/../{libraries}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
PYTHONNOUSERSITE=1
export LD_LIBRARY_PATH PYTHONNOUSERSITE
exec "$here/{program}" "$@"
"""
_LEFT_OUT = frozenset(
    [
        "__pycache__",
        "dist-packages",
        "ensurepip",
        "idlelib",
        "site-packages",
        "test",
        "tests",
        "tkinter",
        "turtledemo",
    ]
)


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """An installed Python.

    Attributes:
        executable: Its program, not a link to it.
        prefix: The directory below which its standard library is.
        standard_library: That library, such as `PREFIX/lib/python3.11`.
        shared_libraries: Its own libraries that the program loads: `libpython3.11.so.1.0`, or none.
    """

    executable: Path
    prefix: Path
    standard_library: Path
    shared_libraries: tuple[Path, ...]


def running_interpreter() -> Interpreter:
    """The interpreter that runs this; of a virtual environment, the one that it was made of.

    Raises:
        PackError: It belongs to conda, whose libraries are spread over its prefix.
    """
    prefix = Path(sys.base_prefix)
    if (prefix / "conda-meta").is_dir():
        raise PackError(
            f"expected a Python that is not conda's, found {prefix}: pack a conda environment with "
            " conda pack --output environment.tar.gz,  which also takes conda's own libraries"
        )
    return Interpreter(
        executable=Path(getattr(sys, "_base_executable", sys.executable)).resolve(),
        prefix=prefix,
        standard_library=Path(sysconfig.get_path("stdlib")),
        shared_libraries=tuple(
            file for file in loaded_libraries() if file.name.startswith("libpython")
        ),
    )


def loaded_libraries(maps: Iterable[str] | None = None) -> list[Path]:
    """The shared libraries that a process has loaded, in order of their paths.

    Args:
        maps: The lines of `/proc/PID/maps` of the process; this one's if not given.
    """
    if maps is None:
        maps = Path("/proc/self/maps").read_text().splitlines()
    paths = {fields[5] for line in maps if len(fields := line.split(maxsplit=5)) == 6}
    return [Path(path) for path in sorted(paths) if ".so" in Path(path).name]


def interpreter_files(interpreter: Interpreter) -> dict[PurePosixPath, Path]:
    """Its files by their path in an archive. The script `bin/python` is not among them."""
    library = interpreter.standard_library
    files = {
        PurePosixPath(file.relative_to(interpreter.prefix)): file
        for file in library.rglob("*")
        if file.is_file() and _is_packed(file.relative_to(library))
    }
    files |= {PurePosixPath(_LIBRARIES, file.name): file for file in interpreter.shared_libraries}
    return files | {_program(interpreter): interpreter.executable}


def launcher(interpreter: Interpreter) -> str:
    """The script `bin/python`."""
    return _SCRIPT.format(libraries=_LIBRARIES, program=_program(interpreter).name)


def _program(interpreter: Interpreter) -> PurePosixPath:
    version = interpreter.standard_library.name.removeprefix("python")
    return LAUNCHER.with_name(f"python{version}")


def _is_packed(path: Path) -> bool:
    """Whether an archive holds this file of the standard library. `config-*` is for compilers."""
    return not _LEFT_OUT & set(path.parts) and not path.parts[0].startswith("config-")
