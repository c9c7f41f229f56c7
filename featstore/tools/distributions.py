"""Which installed distributions an archive holds, and which files of them.

It holds featstore with its extra `spark`, and with those extras of HDFS that are installed, in the
versions that are installed here: the driver and the executors exchange pickled objects, so both
need the same ones.
"""

import importlib.metadata
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from featstore.base.errors import PackError

_OURS = "featstore-pipeline"
ROOT = f"{_OURS}[spark]"
_CLIENTS = (f"{_OURS}[hdfs]", f"{_OURS}[hdfs-kerberos]")  # packed where they are installed
PROVIDED = frozenset(
    {"pyspark", "py4j"}
)  # the cluster's Spark brings its own, in SPARK_HOME/python
_PACKAGE = Path(__file__).parents[1]
_LEFT_OUT = frozenset({"__pycache__", "tests"})  # tests are a tenth of pandas and of numpy


def needed(roots: Iterable[str], requirements_of: Callable[[str], Sequence[str]]) -> list[str]:
    """The normalized names of all distributions that these requirements need, without PROVIDED.

    Args:
        roots: Requirements, such as `featstore-pipeline[spark]`.
        requirements_of: The requirements of a distribution by its normalized name, with markers.

    Raises:
        PackError: A root is not a requirement.
    """
    seen: set[tuple[str, str]] = set()
    waiting = [_requirement(root) for root in roots]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if name in PROVIDED or (name, extra) in seen:
                continue
            seen.add((name, extra))
            waiting += [
                inner
                for inner in map(Requirement, requirements_of(name))
                if inner.marker is None or inner.marker.evaluate({"extra": extra})
            ]
    return sorted({name for name, _ in seen})


def packed_roots(requirements_of: Callable[[str], Sequence[str]]) -> list[str]:
    """ROOT, and the extras for clients of a storage whose packages are all installed.

    Args:
        requirements_of: As for `needed`; raises PackError for what is not installed.
    """
    return [ROOT, *(client for client in _CLIENTS if _is_complete(client, requirements_of))]


def installed_requirements(name: str) -> Sequence[str]:
    """The requirements of an installed distribution.

    Raises:
        PackError: It is not installed.
    """
    return _installed(name).requires or ()


def distribution_files(name: str) -> dict[PurePosixPath, Path]:
    """The files of an installed distribution by their path below `site-packages`.

    Programs in `bin/`, compiled bytecode and tests are left out. Of featstore they are the files
    that run now, so it may be an editable installation.

    Raises:
        PackError: It is not installed, or pip does not list its files: it is an editable
            installation, or comes from the operating system.
    """
    distribution = _installed(name)
    files = {
        PurePosixPath(path): Path(str(path.locate()))
        for path in distribution.files or ()
        if is_packed(PurePosixPath(path))
    }
    if name == _OURS:
        metadata = {
            path: file
            for path, file in files.items()
            if path.parts[0].endswith(".dist-info") and path.name not in _OF_THIS_MACHINE
        }
        package = {
            PurePosixPath(_PACKAGE.name, *file.relative_to(_PACKAGE).parts): file
            for file in _PACKAGE.rglob("*")
            if file.is_file()
        }
        return metadata | {path: file for path, file in package.items() if is_packed(path)}
    project = _editable_project(distribution)
    if project is not None:
        raise PackError(
            f"{name}: expected an ordinary installation, found an editable one of {project}, whose "
            f"files pip does not list: install it with  pip install {project}"
        )
    if not files:
        raise PackError(
            f"{name}: expected a list of its files (RECORD), found none, as of packages of the "
            "operating system: install it with pip, in a virtual environment"
        )
    return files


def is_packed(path: PurePosixPath) -> bool:
    """Whether an archive holds this file of a distribution."""
    return ".." not in path.parts and not path.is_absolute() and not _LEFT_OUT & set(path.parts)


_OF_THIS_MACHINE = frozenset({"direct_url.json", "RECORD"})


def _is_complete(root: str, requirements_of: Callable[[str], Sequence[str]]) -> bool:
    try:
        needed([root], requirements_of)
    except PackError:
        return False
    return True


def _requirement(text: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement:
        raise PackError(
            f"expected the name of an installed distribution, such as {ROOT}, found {text!r}"
        ) from None


def _installed(name: str) -> importlib.metadata.Distribution:
    found = list(importlib.metadata.distributions(name=name))
    if not found:
        raise PackError(
            f"{name} is not installed in this environment, and executors need it: install it with "
            f" pip install '{ROOT}'"
        )
    # A build leaves metadata in a clone's directory, which may be first on the path.
    return next((one for one in found if one.read_text("RECORD")), found[0])


def _editable_project(distribution: importlib.metadata.Distribution) -> str | None:
    """The directory of an editable installation; None of others."""
    text = distribution.read_text("direct_url.json")
    origin = json.loads(text) if text else {}
    is_editable = origin.get("dir_info", {}).get("editable", False)
    return str(origin["url"]).removeprefix("file://") if is_editable else None
