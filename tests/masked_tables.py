"""Delta tables, some of whose files have deletion vectors, written by hand."""

import base64
import json
import struct
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Schema
from pyroaring import BitMap64

from featstore.table.delta import open_delta
from featstore.table.row_masks import MaskRecord, RowMask
from featstore.table.snapshot import FileList, Snapshot

# The alphabets of ZeroMQ and of Python's `b85encode`.
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_Z85 = bytes.maketrans(_B85, _Z85)
FEATURE = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors"],
}


def base85(data: bytes) -> str:
    """The text of bytes in the alphabet of ZeroMQ; padded, as inline vectors are."""
    padded = data + bytes(-len(data) % 4)
    return base64.b85encode(padded).translate(_TO_Z85).decode()


def vector_bytes(rows: Iterable[int]) -> bytes:
    """A deletion vector."""
    return struct.pack("<i", 1681511377) + bytes(BitMap64(rows).serialize())


def vector_file(*vectors: bytes) -> tuple[bytes, list[int]]:
    """A file of vectors, and where each begins."""
    data, firsts = b"\x01", []
    for vector in vectors:
        firsts.append(len(data))
        data += struct.pack(">i", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))
    return data, firsts


def write_vector(table: Path, rows: Sequence[int], storage: str = "u") -> dict[str, Any]:
    """What a log says of a vector that is stored in the given way: `u` and `p` in files."""
    vector = vector_bytes(rows)
    common = {"storageType": storage, "sizeInBytes": len(vector), "cardinality": len(set(rows))}
    if storage == "i":
        return {**common, "pathOrInlineDv": base85(vector)}
    name, directory = uuid.uuid4(), table / "ab"
    directory.mkdir(exist_ok=True)
    path = directory / f"deletion_vector_{name}.bin"
    # Not the first of its file.
    data, (_, first) = vector_file(vector_bytes([7]), vector)
    path.write_bytes(data)
    text = f"ab{base85(name.bytes)}" if storage == "u" else str(path)
    return {**common, "pathOrInlineDv": text, "offset": first}


def commit(table: Path, version: int, actions: Iterable[Mapping[str, Any]]) -> None:
    """Writes a commit of a table's log."""
    (table / "_delta_log").mkdir(parents=True, exist_ok=True)
    text = "\n".join(map(json.dumps, actions))
    (table / f"_delta_log/{version:020d}.json").write_text(text)


def add_file(table: Path, path: str, rows: pa.Table, **options: Any) -> dict[str, Any]:
    """Writes a data file, and gives its `add` action."""
    (table / path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, table / path, **options)
    pairs = (part.split("=") for part in path.split("/")[:-1])
    return {
        "path": path,
        "partitionValues": dict(pairs),
        "size": (table / path).stat().st_size,
        "modificationTime": 1,
        "dataChange": True,
        "stats": json.dumps({"numRecords": rows.num_rows}),
    }


def masked_table(
    table: Path,
    files: Mapping[str, tuple[pa.Table, Sequence[int]]],
    *,
    storage: str = "u",
    keys: Sequence[str] = (),
    **options: Any,
) -> str:
    """A table of one commit.

    Args:
        table: Its directory.
        files: By path, the rows of each file, and which of them are deleted; none: no vector.
        storage: How vectors are stored: `u`, `p` or `i`.
        keys: Its partition keys, of text.
        options: Of `write_table`.
    """
    fields = [*next(iter(files.values()))[0].schema, *(pa.field(key, pa.string()) for key in keys)]
    metadata = {
        "id": "x",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": Schema.from_arrow(pa.schema(fields)).to_json(),
        "partitionColumns": list(keys),
        "configuration": {},
        "createdTime": 0,
    }
    adds = []
    for path, (rows, deleted) in files.items():
        add = add_file(table, path, rows, **options)
        if deleted:
            add["deletionVector"] = write_vector(table, deleted, storage)
        adds.append({"add": add})
    commit(table, 0, [{"protocol": FEATURE}, {"metaData": metadata}, *adds])
    return str(table)


def with_deleted(snapshot: Snapshot, deleted: Mapping[str, Sequence[int]]) -> Snapshot:
    """The snapshot with deleted rows of files, by their paths."""
    masks = {
        path: RowMask((MaskRecord("delta-vector", num_bytes=len(data), text=base85(data)),))
        for path, rows in deleted.items()
        for data in [vector_bytes(rows)]
    }
    files = (replace(file, mask=masks.get(file.path)) for file in snapshot.data_files)
    return replace(snapshot, data_files=FileList.of(files))


def delete_by_vector(url: str, rows: Sequence[int], path: str = "") -> None:
    """What another engine commits that deletes rows of a file, by default of the first one."""
    table, snapshot = Path(url), open_delta(url)
    path = path or snapshot.data_files.path(0)
    actions = [
        action
        for commit_path in sorted(table.glob("_delta_log/*.json"))
        for action in map(json.loads, commit_path.read_text().splitlines())
    ]
    adds = [action["add"] for action in actions if "add" in action]
    added = [add for add in adds if unquote(add["path"]) == path][-1]
    remove = {"path": added["path"], "dataChange": True, "deletionTimestamp": 1}
    add = {**added, "deletionVector": write_vector(table, rows)}
    of = [{"protocol": FEATURE}, {"remove": remove}, {"add": add}]
    commit(table, (snapshot.version or 0) + 1, of)
