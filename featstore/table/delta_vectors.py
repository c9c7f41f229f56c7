"""Which files of a Delta table have deletion vectors. delta-rs lists the files without them, so the
log's checkpoint and the commits after it are read here, of tables alone whose protocol has vectors.

Which files belong to a version is delta-rs's word: only the last `add` action of each path counts
here. Formats: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#checkpoints and
#deletion-vectors
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq

from featstore.base.errors import DataFileError
from featstore.base.redaction import redact
from featstore.files.storage import join, open_read
from featstore.native.damage import damage_as, first_line
from featstore.table.layout import LOG_DIR, decode_path, is_whole
from featstore.table.log_files import commit_url, content_of, log_names
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
# What is read of actions. Arrow parses them without an object for each.
_VECTOR = pa.struct(
    {
        "storageType": pa.string(),
        "pathOrInlineDv": pa.string(),
        "offset": pa.int64(),
        "sizeInBytes": pa.int64(),
        "cardinality": pa.int64(),
    }
)
_ADD = pa.struct({"path": pa.string(), "deletionVector": _VECTOR})
_ACTIONS = pa.schema({"add": _ADD, "sidecar": pa.struct({"path": pa.string()})})
_MOST_BLOCK_BYTES = 1 << 30


class _Vector(NamedTuple):
    """What an action says of a vector; the fields are those of the format."""

    storage: str | None
    text: str | None
    offset: int | None
    num_bytes: int | None
    num_rows: int | None


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
    vectors = dict[str, _Vector | None]()
    for name in names:
        for actions in _of_checkpoint(join(log_url, LOG_DIR), name):
            vectors |= _vectors(actions)
    for later in range(begin + 1, version + 1):
        vectors |= _vectors(_of_lines(commit_url(log_url, later)))
    found = {path: vector for path, vector in vectors.items() if vector is not None}
    named = _named_files(url, found)
    return {
        decode_path(url, path): _mask(url, path, vector, named.get(path, ""))
        for path, vector in found.items()
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


def _of_checkpoint(log_url: str, name: str) -> Iterator[pa.Table]:
    """The actions of a checkpoint, as of `_ACTIONS`."""
    url = join(log_url, name)
    actions = _of_lines(url) if name.endswith(".json") else _of_parquet(url)
    yield actions
    for path in pc.struct_field(actions["sidecar"], "path").drop_null().to_pylist():
        below = unquote(path)
        yield from _of_checkpoint(log_url, below if "/" in below else f"{_SIDECARS}/{below}")


def _of_parquet(url: str) -> pa.Table:
    def no_checkpoint(error: Exception) -> DataFileError:
        return DataFileError(
            f"{redact(url)}: expected a checkpoint, found {first_line(error)}: restore the file "
            "from a copy"
        )

    with damage_as(no_checkpoint, redact(url)), open_read(url) as source:
        file = pq.ParquetFile(source)
        leaves = ["add.path", "add.deletionVector", "sidecar.path"]
        found = file.read(columns=leaves, use_threads=False)
        columns = [
            found[field.name].cast(field.type)
            if field.name in found.column_names
            else pa.chunked_array([pa.nulls(found.num_rows, field.type)])
            for field in _ACTIONS
        ]
        return pa.table(columns, schema=_ACTIONS)


def _of_lines(url: str) -> pa.Table:
    """The actions of a file of the log in which each line is one."""

    def no_actions(error: Exception) -> DataFileError:
        return DataFileError(
            f"{redact(url)}: expected an action in each line as JSON ({first_line(error)}); "
            f"restore the file from a copy"
        )

    content = content_of(url)
    if not content.strip():
        return _ACTIONS.empty_table()
    with damage_as(no_actions, redact(url)):
        return pj.read_json(
            pa.BufferReader(content),
            pj.ReadOptions(use_threads=False, block_size=min(len(content), _MOST_BLOCK_BYTES)),
            pj.ParseOptions(explicit_schema=_ACTIONS, unexpected_field_behavior="ignore"),
        )


def _vectors(actions: pa.Table) -> dict[str, _Vector | None]:
    """The vector of each path that is added, by the last of its actions."""
    added = actions["add"].filter(pc.struct_field(actions["add"], "path").is_valid())
    vectors = pc.struct_field(added, "deletionVector")
    fields = [pc.struct_field(vectors, field.name).to_pylist() for field in _VECTOR]
    return {
        path: _Vector(*of) if has_vector else None
        for path, has_vector, of in zip(
            pc.struct_field(added, "path").to_pylist(),
            vectors.is_valid().to_pylist(),
            zip(*fields, strict=True),
            strict=True,
        )
    }


def _named_files(url: str, vectors: Mapping[str, _Vector]) -> dict[str, str]:
    """The URLs of those files of vectors that are named by a UUID, by the paths of data files. All
    names are decoded together, since each data file may have its own.
    """
    texts = {
        path: (of.text or "")[-_UUID_CHARS:] for path, of in vectors.items() if of.storage == "u"
    }
    try:
        if any(len(text) != _UUID_CHARS for text in texts.values()):
            raise ValueError("a text that is no UUID's")
        digits = decode_base85("".join(texts.values())).hex()
    except ValueError:
        path = next(path for path, text in texts.items() if not _is_uuid(text))
        expected = f"a path that ends in {_UUID_CHARS} characters of base85"
        raise _damaged(url, path, expected, vectors[path].text) from None
    root, found = f"{join(url)}/", dict[str, str]()
    for number, path in enumerate(texts):
        of = digits[32 * number : 32 * (number + 1)]
        directory = (vectors[path].text or "")[:-_UUID_CHARS].strip("/")
        name = f"deletion_vector_{of[:8]}-{of[8:12]}-{of[12:16]}-{of[16:20]}-{of[20:]}.bin"
        found[path] = f"{root}{directory}/{name}" if directory else f"{root}{name}"
    return found


def _is_uuid(text: str) -> bool:
    try:
        return len(text) == _UUID_CHARS and bool(decode_base85(text))
    except ValueError:
        return False


def _url(url: str, logged: str) -> str:
    path = decode_path(url, logged)
    return path if is_whole(path) else join(url, path)


def _number(url: str, path: str, name: str, found: int | None) -> int:
    """A field of a vector, which must be a number from 0 on."""
    if found is None or found < 0:
        raise _damaged(url, path, f"{name} to be a number from 0 on", found)
    return found


def _damaged(url: str, path: str, expected: str, found: object) -> DataFileError:
    return DataFileError(
        f"{redact(url)}: {path}: deletion vector in the log: expected {expected}, found "
        f"{found!r:.80}: restore the log from a copy"
    )


def _mask(url: str, path: str, vector: _Vector, named: str) -> RowMask:
    """The mask of a file with this vector.

    Args:
        url: The table.
        path: The file's path.
        vector: The vector.
        named: The URL of the vector's file, if that is named by a UUID.
    """
    kind, text = vector.storage, vector.text
    if text is None:
        raise _damaged(url, path, "pathOrInlineDv to be text", text)
    num_bytes = _number(url, path, "sizeInBytes", vector.num_bytes)
    num_deleted = _number(url, path, "cardinality", vector.num_rows)
    first = _number(url, path, "offset", vector.offset or 0) or _FIRST  # null, or 0, in the log
    if kind == "i":
        record = MaskRecord(_KIND, num_bytes=num_bytes, text=text)
    elif kind == "u":
        record = MaskRecord(_KIND, named, first, num_bytes)
    elif kind == "p":
        record = MaskRecord(_KIND, _url(url, text), first, num_bytes)
    else:
        raise DataFileError(
            f"{redact(url)}: {path}: expected a deletion vector in a file or in the log (storage "
            f"u, p or i), found storage {kind!r}, which featstore does not read"
        )
    return RowMask((record,), num_deleted)
