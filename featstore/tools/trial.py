"""Whether a packed Python runs on its own: it is started, and says what it loaded."""

import json
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from featstore.base.errors import PackError
from featstore.tools.interpreter import LAUNCHER, loaded_libraries

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
class Found:
    """What a packed Python said of itself.

    Attributes:
        prefix: Its `sys.prefix`.
        path: Its `sys.path`.
        featstore: The file of the package that it imported.
        libraries: The shared libraries that it loaded.
    """

    prefix: Path
    path: tuple[Path, ...]
    featstore: Path
    libraries: tuple[Path, ...]


def site_packages(root: Path) -> Path:
    """Where a packed Python looks for packages.

    Args:
        root: The directory of the packed Python.

    Raises:
        PackError: It does not start.
    """
    return Path(_run(root, "import site; print(site.getsitepackages()[0])"))


def run_trial(root: Path, packed: Iterable[str] = ()) -> Found:
    """Starts a packed Python without any variables, and imports what executors need.

    Args:
        root: The directory of the packed Python.
        packed: The normalized names of the distributions in it.

    Raises:
        PackError: It does not start, or cannot import something.
    """
    optional = [_MODULES_OF[name] for name in packed if name in _MODULES_OF]
    found = json.loads(_run(root, _PROGRAM, [*_MODULES, *optional]))
    return Found(
        prefix=Path(found["prefix"]),
        path=tuple(Path(entry) for entry in found["path"] if entry),
        featstore=Path(found["featstore"]),
        libraries=tuple(loaded_libraries(found["maps"])),
    )


def needed_libraries(found: Found, root: Path) -> list[str]:
    """The names of the libraries that hosts must have, beside those of glibc.

    Args:
        found: What the packed Python said.
        root: Its directory.

    Raises:
        PackError: It uses files of this host that are neither in the archive nor of the system, so
            it would fail on another.
    """
    outside = [path for path in found.libraries if not path.is_relative_to(root)]
    places = [found.prefix, *found.path, found.featstore]
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
