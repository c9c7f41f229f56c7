"""Which files of a Delta table have deletion vectors. delta-rs lists the files without them, so the
log's checkpoint and the commits after it are read here, of tables alone whose protocol has vectors.

Which files belong to a version is delta-rs's word: only the last `add` action of each path counts
here. Formats: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#checkpoints and
#deletion-vectors
"""

import itertools
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

from featstore.base.errors import DataFileError
from featstore.base.redaction import redact
from featstore.files.storage import join, open_read
from featstore.native.damage import damage_as, first_line
from featstore.table.layout import LOG_DIR, decode_path, is_whole
from featstore.table.log_files import actions_in, log_names, read_actions
from featstore.table.row_masks import MaskRecord, RowMask, decode_base85

_CHECKPOINT = re.compile(
    r"(?P<version>\d{20})\.checkpoint(\.(?P<part>\d{10})\.(?P<num_parts>\d{10})|\.[^.]+)?"
    r"\.(?P<suffix>parquet|json)"
)
_SIDECARS = "_sidecars"
_KIND = "delta-vector"
_UUID_CHARS = 20
# Of a file of vectors: its first byte is a version.
_FIRST = 1
_COLUMNS = ("add.path", "add.deletionVector", "sidecar.path")


def masks_at(url: str, log_url: str, version: int) -> dict[str, RowMask]:
    """The row masks of a version's files, by the path of the file. There may be some of files that
    the version does not have.

    Args:
        url: The table.
        log_url: Where its log is read.
        version: The version.

    Raises:
        DataFileError: The log has a file that cannot be read, or a vector of unknown storage.
        StoreError: The store failed.
    """
    begin, names = latest_checkpoint(log_names(log_url), version)
    vectors = dict[str, Mapping[str, Any] | None]()
    for name in names:
        vectors |= dict(_of_checkpoint(join(log_url, LOG_DIR), name))
    for later in range(begin + 1, version + 1):
        vectors |= dict(_of_actions(read_actions(log_url, later)))
    return {
        decode_path(url, path): _mask(url, path, vector)
        for path, vector in vectors.items()
        if vector is not None
    }


def latest_checkpoint(names: Iterable[str], version: int) -> tuple[int, list[str]]:
    """The version of the newest complete checkpoint that is not newer than a version, and its
    files; -1 and no files if there is none. Pure.

    Args:
        names: The names of the files of a log.
        version: The version.
    """
    found = [match for name in names if (match := _CHECKPOINT.fullmatch(name))]
    found = [match for match in found if int(match["version"]) <= version]
    # One file, or all parts of one of several; any of them if a version has several.
    ordered = sorted(found, key=_order, reverse=True)
    for (number, num_parts), group in itertools.groupby(ordered, key=_order):
        files = sorted(match[0] for match in group)
        if not num_parts:
            return number, files[:1]
        if len(files) == num_parts:
            return number, files
    return -1, []


def _order(match: re.Match[str]) -> tuple[int, int]:
    return int(match["version"]), int(match["num_parts"] or 0)


def _of_checkpoint(log_url: str, name: str) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    """The paths of the files of a checkpoint, each with its vector."""
    url = join(log_url, name)
    if name.endswith(".json"):
        rows: Iterable[Mapping[str, Any]] = actions_in(url)
    else:
        rows = _parquet_rows(url)
    for row in rows:
        yield from _of_actions([row])
        if (sidecar := row.get("sidecar")) is not None:
            path = unquote(sidecar["path"])
            below = path if "/" in path else f"{_SIDECARS}/{path}"
            yield from _of_checkpoint(log_url, below)


def _parquet_rows(url: str) -> Iterator[Mapping[str, Any]]:
    def no_checkpoint(error: Exception) -> DataFileError:
        return DataFileError(
            f"{redact(url)}: expected a checkpoint, found {first_line(error)}: restore the file "
            "from a copy"
        )

    with damage_as(no_checkpoint, redact(url)), open_read(url) as source:
        file = pq.ParquetFile(source)
        for index in range(file.num_row_groups):
            yield from file.read_row_group(
                index, columns=list(_COLUMNS), use_threads=False
            ).to_pylist()


def _of_actions(
    actions: Iterable[Mapping[str, Any]],
) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    for action in actions:
        if (add := action.get("add")) is not None and add.get("path") is not None:
            yield add["path"], add.get("deletionVector")


def _url(url: str, logged: str) -> str:
    path = decode_path(url, logged)
    return path if is_whole(path) else join(url, path)


def _check_fields(url: str, path: str, vector: Mapping[str, Any]) -> None:
    """DataFileError if a field of a vector is missing, or holds what it cannot."""
    for name in ("storageType", "pathOrInlineDv"):
        if not isinstance(found := vector.get(name), str):
            raise _damaged(url, path, f"{name} to be text", found)
    numbers = {name: vector.get(name) for name in ("sizeInBytes", "cardinality")}
    numbers["offset"] = vector.get("offset") or 0  # null, or not there, of one in the log
    for name, found in numbers.items():
        if not isinstance(found, int) or found < 0:
            raise _damaged(url, path, f"{name} to be a number from 0 on", found)


def _damaged(url: str, path: str, expected: str, found: object) -> DataFileError:
    return DataFileError(
        f"{redact(url)}: {path}: deletion vector in the log: expected {expected}, found "
        f"{found!r:.80}: restore the log from a copy"
    )


def _mask(url: str, path: str, vector: Mapping[str, Any]) -> RowMask:
    """The mask of a file with this vector."""
    _check_fields(url, path, vector)
    kind, text, num_bytes = vector["storageType"], vector["pathOrInlineDv"], vector["sizeInBytes"]
    first = vector.get("offset") or _FIRST
    if kind == "i":
        record = MaskRecord(_KIND, num_bytes=num_bytes, text=text)
    elif kind == "u":
        directory, name = text[:-_UUID_CHARS], text[-_UUID_CHARS:]
        try:
            found = f"deletion_vector_{uuid.UUID(bytes=decode_base85(name))}.bin"
        except ValueError:
            raise _damaged(
                url, path, f"a path that ends in {_UUID_CHARS} characters of base85", text
            ) from None
        record = MaskRecord(_KIND, join(url, directory, found), first, num_bytes)
    elif kind == "p":
        record = MaskRecord(_KIND, _url(url, text), first, num_bytes)
    else:
        raise DataFileError(
            f"{redact(url)}: {path}: expected a deletion vector in a file or in the log (storage "
            f"u, p or i), found storage {kind!r}, which featstore does not read"
        )
    return RowMask((record,), vector["cardinality"])
