"""The files of the Python interpreter that runs, in a form that works in any directory; and whether
they do: a packed Python is started, and says what it loaded.

An interpreter finds its standard library from the place of its own file. What it finds nowhere else
is its shared library, if it was built with one. So `bin/python` is a script that tells the dynamic
linker where that is. It also keeps out packages in the home directory of the user on that host.
"""

import json
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

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
# What a driver and executors import, and the modules of Python that need libraries of the system.
_MODULES = (
    *("featstore.api", "featstore.extraction.spark.runners", "featstore.native"),
    *("deltalake", "fsspec", "numpy", "obstore", "pandas", "pyarrow.parquet", "sqlglot"),
    *("bz2", "ctypes", "lzma", "sqlite3", "ssl", "zlib"),
)
_MODULES_OF = {"requests": "requests", "requests-kerberos": "requests_kerberos"}  # if packed
_PROGRAM = """
import importlib, json, pathlib, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
import featstore
maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
found = {"prefix": sys.prefix, "path": sys.path, "featstore": featstore.__file__, "maps": maps}
print(json.dumps(found))
"""
_SYSTEM = tuple(map(Path, ("/lib", "/lib64", "/usr/lib", "/usr/lib64")))
_GLIBC = frozenset(
    ["libanl", "libc", "libdl", "libm", "libpthread", "libresolv", "librt", "libutil"]
)
_SONAME = re.compile(r"(\.so\.\d+).*")  # the file behind libz.so.1 may be libz.so.1.2.13


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


def site_packages(root: Path) -> Path:
    """Where a packed Python looks for packages.

    Args:
        root: The directory of the packed Python.

    Raises:
        PackError: It does not start.
    """
    return Path(_run(root, "import site; print(site.getsitepackages()[0])"))


def run_trial(root: Path, packed: Iterable[str] = ()) -> Mapping[str, Any]:
    """Starts a packed Python without any variables, and imports what executors need.

    Args:
        root: The directory of the packed Python.
        packed: The normalized names of the distributions in it.

    Returns:
        What it said of itself: its `prefix` and `path`, the file of `featstore` that it imported,
        and its `maps`, which are the lines of `/proc/PID/maps`.

    Raises:
        PackError: It does not start, or cannot import something.
    """
    optional = [_MODULES_OF[name] for name in packed if name in _MODULES_OF]
    return dict(json.loads(_run(root, _PROGRAM, [*_MODULES, *optional])))


def needed_libraries(found: Mapping[str, Any], root: Path) -> list[str]:
    """The names of the libraries that hosts must have, beside those of glibc.

    Args:
        found: What the packed Python said, as `run_trial` returns it.
        root: Its directory.

    Raises:
        PackError: It uses files of this host that are neither in the archive nor of the system, so
            it would fail on another.
    """
    outside = [path for path in loaded_libraries(found["maps"]) if not path.is_relative_to(root)]
    places = map(Path, filter(None, [found["prefix"], *found["path"], found["featstore"]]))
    strange = [path for path in places if not path.is_relative_to(root)]
    strange += [path for path in outside if not any(map(path.is_relative_to, _SYSTEM))]
    if strange:
        raise PackError(
            f"the packed Python cannot be moved to another host: it uses {strange[0]}, which is "
            "not in the archive; make the environment with a Python that does not, such as the "
            "system's or pyenv's"
        )
    needed = [
        path
        for path in outside
        if not path.name.startswith("ld-linux") and path.name.partition(".")[0] not in _GLIBC
    ]
    return sorted({_SONAME.sub(r"\1", path.name) for path in needed})


def _run(root: Path, program: str, arguments: Sequence[str] = ()) -> str:
    command = [str(root / LAUNCHER), "-I", "-c", program, *arguments]
    done = subprocess.run(command, env={}, cwd="/", capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise PackError(
            f"the packed Python does not run without this environment: {said}; is each package of "
            "the environment complete?"
        )
    return done.stdout.strip()
