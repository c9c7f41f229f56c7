"""Which files of a Delta table have deletion vectors. delta-rs lists the files without them, so the
log's checkpoint and the commits after it are read here, of tables alone whose protocol has vectors.

Which files belong to a version is delta-rs's word: only the last `add` action of each path counts
here. Formats: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#checkpoints and
#deletion-vectors
"""

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq

from featstore.base.errors import DataFileError
from featstore.base.redaction import redact
from featstore.files.storage import join, open_read
from featstore.native.columns import Numbers, numbers, text_of, texts
from featstore.native.damage import damage_as, first_line
from featstore.table.layout import LOG_DIR, decode_path, is_whole
from featstore.table.log_files import Masks, commit_url, content_of, decoded_paths, log_names
from featstore.table.row_masks import MaskRecord, decode_base85, texts_of_masks

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
        "storageType": pa.large_string(),
        "pathOrInlineDv": pa.large_string(),
        "offset": pa.int64(),
        "sizeInBytes": pa.int64(),
        "cardinality": pa.int64(),
    }
)
_ADD = pa.struct({"path": pa.large_string(), "deletionVector": _VECTOR})
_ACTIONS = pa.schema({"add": _ADD, "sidecar": pa.struct({"path": pa.string()})})
_NONE = pa.Table.from_batches([], _ACTIONS)  # `empty_table` would import pandas
_MOST_BLOCK_BYTES = 1 << 30


def masks_at(url: str, log_url: str, version: int) -> Masks:
    """Reads the row masks of a version's files. There may be some of files that it does not have.

    Args:
        url: The table.
        log_url: Where its log is read.
        version: The version.

    Raises:
        DataFileError: The log has a file that cannot be read, or a vector of unknown storage.
        StoreError: The store failed.
    """
    begin, names = latest_checkpoint(log_names(log_url), version)
    log = join(log_url, LOG_DIR)
    read = itertools.chain(
        (_NONE,),
        *(_of_checkpoint(log, name) for name in names),
        (_of_lines(commit_url(log_url, later)) for later in range(begin + 1, version + 1)),
    )
    added = pa.concat_tables([_added(actions) for actions in read])
    # Engines encode the path of one file in different ways.
    last = _last_of_each(decoded_paths(url, added["path"].combine_chunks()), added["vector"])
    paths, vectors = (column.combine_chunks() for column in last.filter(last["vector"].is_valid()))
    return Masks(paths, _masks(url, paths, vectors))


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
        return _NONE
    with damage_as(no_actions, redact(url)):
        return pj.read_json(
            pa.BufferReader(content),
            pj.ReadOptions(use_threads=False, block_size=min(len(content), _MOST_BLOCK_BYTES)),
            pj.ParseOptions(explicit_schema=_ACTIONS, unexpected_field_behavior="ignore"),
        )


def _added(actions: pa.Table) -> pa.Table:
    """The paths that actions add, each with its vector."""
    added = actions["add"].filter(pc.struct_field(actions["add"], "path").is_valid())
    paths, vectors = (pc.struct_field(added, name) for name in ("path", "deletionVector"))
    return pa.table([paths.cast(pa.large_binary()), vectors], ["path", "vector"])


def _last_of_each(paths: pa.Array, vectors: pa.ChunkedArray) -> pa.Table:
    """Each path with its last vector."""
    encoded = paths.dictionary_encode()
    last: Numbers = np.zeros(len(encoded.dictionary), np.int64)
    last[np.from_dlpack(encoded.indices)] = np.arange(len(encoded))  # the last of several stays
    return pa.table([encoded.dictionary, vectors.take(numbers(last))], ["path", "vector"])


def _masks(url: str, paths: pa.Array, vectors: pa.StructArray) -> pa.Array:
    """The mask of each file with a vector, as of `Masks`."""
    storage, text, offset, num_bytes, num_deleted = vectors.flatten()
    _require(url, paths, "pathOrInlineDv to be text", text, text.is_valid())
    zero, minus = numbers([0])[0], numbers([-1])[0]
    firsts = pc.coalesce(offset, zero)
    for name, column in zip(
        ("sizeInBytes", "cardinality", "offset"), (num_bytes, num_deleted, firsts), strict=True
    ):
        is_right = pc.greater_equal(pc.coalesce(column, minus), zero)
        _require(url, paths, f"{name} to be a number from 0 on", column, is_right)
    nothing, colon = texts(["", ":"])
    parts = (pc.coalesce(column.cast(pa.large_binary()), nothing) for column in (storage, text))
    # One file has the vectors of many.
    encoded = pc.binary_join_element_wise(*parts, colon).dictionary_encode()
    of = np.from_dlpack(encoded.indices)
    stored = [text_of(each).partition(":") for each in encoded.dictionary.to_pylist()]
    records = _records(
        url,
        [(kind, where) for kind, _, where in stored],
        lambda index: text_of(paths[int(np.argmax(of == index))].as_py()),
    )
    is_in_log = np.array([not record.url for record in records], bool)
    # Null, or 0, in the log is the first one of a file.
    places = np.where(is_in_log[of], 0, np.maximum(np.from_dlpack(firsts), _FIRST))
    return texts_of_masks(f"{join(url)}/", records, of, num_deleted, numbers(places), num_bytes)


def _require(url: str, paths: pa.Array, expected: str, found: pa.Array, is_right: pa.Array) -> None:
    """DataFileError for the first file whose value in the log is not right."""
    if pc.all(is_right).as_py() is False:  # None of no vectors
        row = pc.index(is_right, value=False).as_py()
        raise _damaged(url, text_of(paths[row].as_py()), expected, found[row].as_py())


def _records(
    url: str, stored: Sequence[tuple[str, str]], path_of: Callable[[int], str]
) -> list[MaskRecord]:
    """The records of vectors, without place and size.

    Args:
        url: The table.
        stored: How each is stored, and the path of its file or the vector itself.
        path_of: The path of a data file that has it, for errors.
    """
    uuids = {index: of[-_UUID_CHARS:] for index, (kind, of) in enumerate(stored) if kind == "u"}
    try:
        names = dict(zip(uuids, _names(uuids.values()), strict=True))
    except ValueError:
        index = next(index for index, text in uuids.items() if not _is_uuid(text))
        expected = f"a path that ends in {_UUID_CHARS} characters of base85"
        raise _damaged(url, path_of(index), expected, stored[index][1]) from None
    root, records = f"{join(url)}/", list[MaskRecord]()
    for index, (kind, text) in enumerate(stored):
        if kind == "i":
            records.append(MaskRecord(_KIND, text=text))
        elif kind == "u":
            directory = text[:-_UUID_CHARS].strip("/")
            name = names[index]
            records.append(
                MaskRecord(_KIND, f"{root}{directory}/{name}" if directory else root + name)
            )
        elif kind == "p":
            records.append(MaskRecord(_KIND, _url(url, text)))
        else:
            raise DataFileError(
                f"{redact(url)}: {path_of(index)}: expected a deletion vector in a file or in the "
                f"log (storage u, p or i), found storage {kind!r}, which featstore does not read"
            )
    return records


def _names(uuids: Collection[str]) -> Iterator[str]:
    """The names of files of vectors, which are decoded together, since each data file may have its
    own. ValueError if a text is no UUID in base85.
    """
    if any(len(text) != _UUID_CHARS for text in uuids):
        raise ValueError("a text that is no UUID's")
    digits = decode_base85("".join(uuids)).hex()
    for number in range(len(uuids)):
        of = digits[32 * number : 32 * (number + 1)]
        yield f"deletion_vector_{of[:8]}-{of[8:12]}-{of[12:16]}-{of[16:20]}-{of[20:]}.bin"


def _is_uuid(text: str) -> bool:
    try:
        return len(text) == _UUID_CHARS and bool(decode_base85(text))
    except ValueError:
        return False


def _url(url: str, logged: str) -> str:
    path = decode_path(url, logged)
    return path if is_whole(path) else join(url, path)


def _damaged(url: str, path: str, expected: str, found: object) -> DataFileError:
    return DataFileError(
        f"{redact(url)}: {path}: deletion vector in the log: expected {expected}, found "
        f"{found!r:.80}: restore the log from a copy"
    )
