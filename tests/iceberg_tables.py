"""Iceberg tables that pyiceberg writes, in a catalog of its own in sqlite."""

import json
import math
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

PATHS = 2147483546  # the field id of paths in a file of position deletes

CATALOG = "test"
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int32()),
        ("x", pa.float32()),
        ("y", pa.float64()),
        ("is_new", pa.bool_()),
        ("name", pa.string()),
        ("ids", pa.list_(pa.int64())),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)


def configure(patch: pytest.MonkeyPatch, properties: Mapping[str, str]) -> None:
    """Sets the variables by which `iceberg://test/...` names a catalog with these properties."""
    for name, value in properties.items():
        variable = name.upper().replace(".", "__")
        patch.setenv(f"PYICEBERG_CATALOG__{CATALOG.upper()}__{variable}", value)


@contextmanager
def catalog_at(
    root: Path, patch: pytest.MonkeyPatch, more: Mapping[str, str] | None = None
) -> Iterator[Any]:
    """A catalog in a directory, which `iceberg://test/...` names in the block.

    Args:
        more: Properties of the catalog. By default its tables lie beside it.
    """
    from pyiceberg.catalog.sql import SqlCatalog

    of = {"uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}/lake", **(more or {})}
    configure(patch, of)
    with SqlCatalog(CATALOG, **of) as catalog:
        catalog.create_namespace_if_not_exists("db")
        yield catalog


def partitioned(catalog: Any, **transforms: Any) -> Any:
    """A table without rows, partitioned by transforms of columns."""
    table = catalog.create_table("db.t", COLUMNS)
    with table.update_spec() as update:
        for column, transform in transforms.items():
            update.add_field(column, transform, f"part_{column}")
    return table


def rows_of(first: int, num_rows: int, schema: pa.Schema = COLUMNS) -> pa.Table:
    """Rows of any columns whose names `COLUMNS` has. Some values are null, missing or NaN."""
    made: dict[str, Any] = {
        "id": [first + i for i in range(num_rows)],
        "n": [None if i % 5 == 3 else i - 2 for i in range(num_rows)],
        "x": [
            None if i % 5 == 4 else float("nan") if i % 7 == 6 else i / 4 for i in range(num_rows)
        ],
        "y": [None if i % 6 == 1 else i / 3 for i in range(num_rows)],
        "is_new": [None if i % 4 == 3 else i % 4 == 0 for i in range(num_rows)],
        "name": [None if i % 9 == 8 else f"name {(first + i) % 17}" for i in range(num_rows)],
        "ids": [None if i % 5 == 2 else [first, i][: i % 3] for i in range(num_rows)],
        "day": [18_262 + (first + i) // 4 for i in range(num_rows)],
        "at": [1_600_000_000_000_000 + (first + i) * 3_600_000_000 for i in range(num_rows)],
    }
    arrays = [
        pa.array(made[field.name], pa.int32()).view(field.type)
        if pa.types.is_date(field.type)
        else pa.array(made[field.name], pa.int64()).view(field.type)
        if pa.types.is_timestamp(field.type)
        else pa.array(made[field.name], field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def as_featstore(found: pa.Table) -> pa.Table:
    """What pyiceberg reads, as a table of featstore shows it: integers and booleans are ids, and
    floats float32; NaN is missing.
    """
    columns = dict[str, pa.ChunkedArray]()
    for field, column in zip(found.schema, found.columns, strict=True):
        columns[field.name] = _as_featstore(column)
    return pa.table(columns)


def _as_featstore(column: pa.ChunkedArray) -> pa.ChunkedArray:
    type_ = column.type
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        kept = [
            None if row is None else [v for v in row if v is not None] for row in column.to_pylist()
        ]
        is_int = pa.types.is_integer(type_.value_type)
        return pa.chunked_array([pa.array(kept, pa.list_(pa.int64() if is_int else pa.float32()))])
    values = column.to_pylist()
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        return column.cast(pa.int64())
    if pa.types.is_floating(type_):
        floats = [None if v is None or math.isnan(v) else v for v in values]
        return pa.chunked_array([pa.array(floats, pa.float64()).cast(pa.float32(), safe=False)])
    if pa.types.is_large_string(type_):
        return column.cast(pa.string())
    return column


def position_deletes(root: Path, rows: list[tuple[str, int]]) -> Any:
    """A file of position deletes of rows, each by data file and position, as of a manifest."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    path = root / f"{uuid.uuid4()}-deletes.parquet"
    columns = {
        "file_path": [path for path, _ in rows],
        "pos": pa.array([at for _, at in rows], pa.int64()),
    }
    pq.write_table(pa.table(columns), path)
    return DataFile.from_args(
        3,
        content=DataFileContent.POSITION_DELETES,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(rows),
        file_size_in_bytes=path.stat().st_size,
        lower_bounds={PATHS: min(columns["file_path"]).encode()},
        upper_bounds={PATHS: max(columns["file_path"]).encode()},
    )


def deletion_vectors(root: Path, rows: dict[str, list[int]]) -> list[Any]:
    """Deletion vectors of data files in one Puffin file, as of a manifest.
    https://iceberg.apache.org/puffin-spec/
    """
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record
    from pyroaring import BitMap64

    path, data = root / f"{uuid.uuid4()}-deletes.puffin", b"PFA1"
    blobs = list[dict[str, Any]]()
    for referenced, positions in rows.items():
        vector = b"\xd1\xd3\x39\x64" + BitMap64(positions).serialize()
        blob = len(vector).to_bytes(4, "big") + vector + zlib.crc32(vector).to_bytes(4, "big")
        blobs.append(
            {
                "type": "deletion-vector-v1",
                "fields": [],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(data),
                "length": len(blob),
                "properties": {
                    "referenced-data-file": referenced,
                    "cardinality": str(len(positions)),
                },
            }
        )
        data += blob
    footer = json.dumps({"blobs": blobs}).encode()
    path.write_bytes(
        data + b"PFA1" + footer + len(footer).to_bytes(4, "little") + bytes(4) + b"PFA1"
    )
    return [
        DataFile.from_args(
            3,
            content=DataFileContent.POSITION_DELETES,
            file_path=f"file://{path}",
            file_format=FileFormat.PUFFIN,
            partition=Record(),
            record_count=len(positions),
            file_size_in_bytes=path.stat().st_size,
            referenced_data_file=blob["properties"]["referenced-data-file"],
            content_offset=blob["offset"],
            content_size_in_bytes=blob["length"],
        )
        for blob, positions in zip(blobs, rows.values(), strict=True)
    ]


def commit_deletes(table: Any, root: Path, files: list[Any], sequence: int | None = None) -> str:
    """Adds a snapshot with files of deletes to a table without partitions, which pyiceberg does
    not write, and returns the URL of the new metadata file.

    Args:
        sequence: The sequence number of the deletes; by default the next one.
    """
    from pyiceberg.avro.file import AvroOutputFile
    from pyiceberg.manifest import (
        ManifestContent,
        ManifestEntry,
        ManifestEntryStatus,
        ManifestWriterV2,
        write_manifest_list,
    )
    from pyiceberg.serializers import ToOutputFile
    from pyiceberg.table.refs import SnapshotRef
    from pyiceberg.table.snapshots import Operation, Snapshot, Summary

    class Writer(ManifestWriterV2):  # type: ignore[misc]  # untyped
        """Of a manifest of deletes, with the fields of format 3."""

        def content(self) -> ManifestContent:
            return ManifestContent.DELETES

        def new_writer(self) -> Any:
            return AvroOutputFile[ManifestEntry](
                output_file=self._output_file,
                file_schema=self._with_partition(3),
                record_schema=self._with_partition(3),
                schema_name="manifest_entry",
                metadata={**self._meta, "content": "deletes"},
            )

    old, io, version = table.current_snapshot(), table.io, uuid.uuid4().int % 2**62
    number = table.metadata.last_sequence_number + 1
    output = io.new_output(f"file://{root}/{version}-m.avro")
    with Writer(table.spec(), table.schema(), output, version, "null") as writer:
        for file in files:
            entry = ManifestEntry.from_args(
                3,
                status=ManifestEntryStatus.ADDED,
                snapshot_id=version,
                sequence_number=sequence,
                data_file=file,
            )
            writer.add_entry(entry)
    output = io.new_output(f"file://{root}/{version}-list.avro")
    with write_manifest_list(2, output, version, old.snapshot_id, number, "null") as listed:
        listed.add_manifests([*old.manifests(io), writer.to_manifest_file()])
    snapshot = Snapshot(
        snapshot_id=version,
        parent_snapshot_id=old.snapshot_id,
        sequence_number=number,
        manifest_list=output.location,
        summary=Summary(Operation.DELETE),
        schema_id=old.schema_id,
    )
    metadata = table.metadata.model_copy(
        update={
            "snapshots": [*table.metadata.snapshots, snapshot],
            "current_snapshot_id": version,
            "last_sequence_number": number,
            "refs": {"main": SnapshotRef(snapshot_id=version, snapshot_ref_type="branch")},
        }
    )
    url = f"file://{root}/{version}.metadata.json"
    ToOutputFile.table_metadata(metadata, io.new_output(url))
    return f"iceberg+{url}"
