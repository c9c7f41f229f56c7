"""Marks of table formats: a directory that has one is a table of that format, and which of its
files are live is for the table's own metadata to say.

Read as plain Parquet, such a directory gives rows back that were deleted or replaced. A mark is a
directory or a file of a certain name, and where the name is a common one a directory with a certain
file in it.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from featstore.base.errors import AccessError, TableFormatError
from featstore.base.redaction import redact
from featstore.files.looks import ABSENT, is_directory_at, is_file_at
from featstore.files.storage import join, local_path, scheme
from featstore.files.walking import Wanted, root_of, tree_of


@dataclass(frozen=True)
class _Mark:
    table_format: str
    file: re.Pattern[str] = re.compile("")
    is_file: bool = False


# By the name of the directory, or of a file where that is one. Sources: the specifications of the
# formats.
MARKS = {
    "_delta_log": _Mark("Delta"),
    "metadata": _Mark("Iceberg", re.compile(r".+\.metadata\.json(\.gz)?")),
    ".hoodie": _Mark("Hudi"),
    ".hoodie_partition_metadata": _Mark("Hudi", is_file=True),  # in each partition, of any name
    "schema": _Mark("Paimon", re.compile(r"schema-\d+")),
    "_versions": _Mark("Lance", re.compile(r".+\.manifest")),
    "_spark_metadata": _Mark("Spark streaming sink"),
}
# Names that these formats give to what is in a table: directories, and files.
_INNER = re.compile(r"data|bucket-\d+|[^=]+=.*|\d+(-\d+)*|.*\.(parquet|orc|avro)")


def check_no_table(url: str, above: Iterable[str], seen: Mapping[str, str]) -> None:
    """Checks that files are not those of a table of another format.

    On this machine each directory is looked at. In a store these are requests, so directories above
    the place are looked at for other formats than Delta only where their names are such as these
    formats give.

    Args:
        url: A URL in the store.
        above: The URLs of the place and of the directories above it, innermost first.
        seen: What has the name of a mark in a listing of the place: URLs by paths.

    Raises:
        TableFormatError: They are. Names format and directory.
        StoreError: The look failed. A store may refuse looks above the place itself, to who has
            access to a part of it only: those tell of no table.
    """
    for path, seen_url in sorted(seen.items()):
        _check(seen_url, path)
    if scheme(url) in ("http", "https"):
        return  # A web server tells of no directories.
    is_inner = True
    for depth, directory in enumerate(above):
        try:
            for name in _names(directory, is_inner=is_inner and depth > 0):
                mark_url = join(directory, name)
                _check(mark_url, root_of(mark_url))
        except AccessError:
            if not depth:
                raise
        is_inner = is_inner and bool(_INNER.fullmatch(directory.rstrip("/").rpartition("/")[2]))


def _names(directory: str, *, is_inner: bool) -> Iterable[str]:
    """The names of marks to look at in a directory. One listing of it tells which are there."""
    if local_path(directory) is not None:
        return MARKS
    if not is_inner:
        return ("_delta_log",)
    wanted = Wanted(marks=frozenset(MARKS))
    with contextlib.suppress(*ABSENT):
        tree_of(directory, wanted).items(root_of(directory), lambda _: False)
    return sorted(path.rstrip("/").rpartition("/")[2] for path in wanted.noted)


def _check(url: str, path: str) -> None:
    """Checks that what is at this path, with the name of a mark, is none."""
    directory, _, name = url.rstrip("/").rpartition("/")
    mark = MARKS[name]
    if mark.is_file:  # A store's listing has seen it.
        found = local_path(url) is None or is_file_at(path)
    elif local_path(url) is not None and (not is_directory_at(path) or not mark.file.pattern):
        found = is_directory_at(path)
    else:
        try:
            takes = mark.file.match if mark.file.pattern else bool
            items = tree_of(url, Wanted(hidden=True)).items(path, lambda name: bool(takes(name)))
        except ABSENT:
            return
        found = not mark.file.pattern or any(mark.file.fullmatch(item.name) for item in items)
    if found:
        shown, kind = redact(directory), mark.table_format
        raise TableFormatError(
            f"{shown} is {'an' if kind[0] in 'AEIO' else 'a'} {kind} table, some of whose files "
            f"may be replaced ones or have deleted rows; expected plain files, such as an engine "
            f"that knows the format writes its rows to",
            shown,
            kind,
        )
