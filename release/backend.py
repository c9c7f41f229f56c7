"""The build backend of pyproject.toml: setuptools, and zig from pip where no C compiler works."""

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ZIG = "ziglang>=0.13"
# Without it the kernels would be for this machine's CPU only.
_ANY_CPU = "-mcpu=baseline"

Settings = Mapping[str, Any] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """What to install before `build_wheel`."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_compiler()]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """What to install before `build_editable`."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *_compiler()]


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Builds a wheel; its name."""
    _choose_compiler()
    return str(build_meta.build_wheel(wheel_directory, config_settings, metadata_directory))


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Builds a wheel that leads to this folder; its name."""
    _choose_compiler()
    return str(build_meta.build_editable(wheel_directory, config_settings, metadata_directory))


def _compiler() -> list[str]:
    return [] if compiles() else [ZIG]


def _choose_compiler() -> None:
    if not compiles():
        os.environ["CC"] = f"{shlex.quote(sys.executable)} -m ziglang cc {_ANY_CPU}"
        if sys.platform == "linux":  # Python's own may have options that zig does not know.
            os.environ["LDSHARED"] = f"{os.environ['CC']} -shared"
        print(f"featstore: no C compiler works, compiling with {os.environ['CC']}", file=sys.stderr)


def compiles() -> bool:
    """Whether the C compiler that setuptools would take, of the variable CC if set, makes a
    library.
    """
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "empty.c"), Path(folder, "empty.so")
        source.write_text("#include <stdlib.h>\n")
        command = [*compiler, "-shared", "-fPIC", str(source), "-o", str(library)]
        try:
            subprocess.run(command, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return False
        return library.exists()
