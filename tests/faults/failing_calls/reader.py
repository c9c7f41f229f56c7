"""A reader of tables that shares nothing with featstore: by deltalake and pyarrow alone."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
from deltalake import DeltaTable

Content = dict[str, Any]
"""What there is, by its place, such as a partition; `null` is the place of what is not there."""


def newest(url: Path) -> Content:
    """The rows of a table's newest version and its groups, and of how many rows there are
    statistics, by partition.
    """
    return version_of(url) if any(url.glob("_delta_log/0*.json")) else {}


def version_of(url: Path, version: int | None = None) -> Content:
    table = DeltaTable(url, version=version)
    groups = json.loads(table.metadata().configuration.get("featstore.groups") or "{}")
    files = {name: _files(url / "_groups" / name, number) for name, number in groups.items()}
    content: Content = {}
    for path in _files(url, version):
        rows = _rows(url / path)
        for name, of_group in sorted(files.items()):
            for added in of_group:
                if added.startswith(path.removesuffix(".parquet") + "/"):
                    more = _rows(url / "_groups" / name / added)
                    rows = [row | new for row, new in zip(rows, more, strict=True)]
        part = content.setdefault(str(Path(path).parent), {"rows": [], "statistics": 0})
        part["rows"] += [json.dumps(row, sort_keys=True) for row in rows]
    for directory, part in content.items():
        part["rows"].sort()
        part["statistics"] = _num_statistics(url, directory, _files(url, version))
    return content


def versions(url: Path, oldest: int) -> Content:
    """The content of each version from this one on, by its number."""
    last = DeltaTable(url).version()
    return {str(version): version_of(url, version) for version in range(oldest, last + 1)}


def parquet(directory: Path) -> Content:
    """The rows of each file of a directory that others may read as one."""
    files = sorted(directory.rglob("*.parquet")) if directory.exists() else []
    return {
        str(path.relative_to(directory)): [json.dumps(row) for row in _rows(path)] for path in files
    }


def samples(path: Path) -> Content:
    """The samples of a store by what their ids begin with, if there is one."""
    content: Content = {}
    if path.exists():
        with closing(sqlite3.connect(path)) as connection:
            for row in connection.execute("select * from samples order by position"):
                content.setdefault(row[1].partition("-")[0], []).append(repr(row))
    return content


def files_below(directory: Path) -> list[str]:
    """The files of a directory, without marks of vacuums."""
    return sorted(
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if path.is_file() and not path.name.startswith("vacuum-")
    )


def _files(url: Path, version: int | None) -> list[str]:
    table = DeltaTable(url, version=version)
    return sorted(unquote(uri.removeprefix(f"{url}/")) for uri in table.file_uris())


def _rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.ParquetFile(path).read().to_pylist()
    return found


def _num_statistics(url: Path, directory: str, files: list[str]) -> int:
    """How many rows the statistics have that belong to the data files of a partition."""
    here = [Path(path) for path in files if str(Path(path).parent) == directory]
    tags = {match[1] for path in here if (match := re.search(r"-(\w{8}-\w{8})-", path.name))}
    stored = [url / "_stats" / directory / f"{tag}.statistics" for tag in sorted(tags)]
    return sum(pq.ParquetFile(path).metadata.num_rows for path in stored if path.exists())
