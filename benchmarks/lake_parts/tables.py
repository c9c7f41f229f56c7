"""Tables as other engines leave them: Delta, and Iceberg of format 3, with deletion vectors. Data
files are links to one file, and vectors of some of them lie in one file.
"""

import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Schema
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from tests.iceberg_tables import commit_deletes, deletion_vectors
from tests.masked_tables import FEATURE, base85, commit, vector_bytes, vector_file

FILE_ROWS = 1_000
_VECTORS_PER_FILE = 100  # as many as data files that one task of an engine deletes rows of


def write_delta(root: Path, num_files: int, deleted: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Writes a table for each of `deleted`: the rows that are deleted of each of its files.

    Returns:
        Their URLs, by the keys of `deleted`.
    """
    return {name: _delta_table(root / name, num_files, rows) for name, rows in deleted.items()}


def write_iceberg(
    root: Path, num_files: int, deleted: Mapping[str, Sequence[int]]
) -> dict[str, str]:
    """As `write_delta`; the tables share their data files, and URLs name files of metadata."""
    paths, urls = _links(root / "data", num_files), dict[str, str]()
    uri, warehouse = f"sqlite:///{root}/catalog.db", f"file://{root}/lake"
    with SqlCatalog("lake", uri=uri, warehouse=warehouse) as catalog:
        catalog.create_namespace("db")
        table = catalog.create_table("db.t", _rows().schema)
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as to:
            for path in paths:
                to.append_data_file(_data_file(path))
        for name, rows in deleted.items():
            (directory := root / name).mkdir()
            vectors = [
                vector
                for part in _parts(paths)
                for vector in deletion_vectors(directory, {f"file://{p}": [*rows] for p in part})
            ]
            urls[name] = (
                commit_deletes(table, directory, vectors)
                if rows
                else f"iceberg+{table.metadata_location}"
            )
    return urls


def _rows() -> pa.Table:
    """Eight columns, with the field ids that Iceberg gives them."""
    draw = np.random.default_rng(0)
    columns = {
        **{f"id{i}": draw.integers(1, 1_000, FILE_ROWS) for i in range(5)},
        **{f"x{i}": draw.random(FILE_ROWS, np.float32) for i in range(2)},
        "click": draw.integers(0, 2, FILE_ROWS).astype(np.float32),
    }
    table = pa.table(columns)
    fields = [
        field.with_metadata({"PARQUET:field_id": str(number)})
        for number, field in enumerate(table.schema, 1)
    ]
    return table.cast(pa.schema(fields))


def _links(directory: Path, num_files: int) -> list[Path]:
    directory.mkdir(parents=True)
    paths = [directory / f"part-{number:05}-{uuid.uuid4()}.parquet" for number in range(num_files)]
    pq.write_table(_rows(), paths[0])
    for path in paths[1:]:
        os.link(paths[0], path)
    return paths


def _parts(paths: Sequence[Path]) -> Iterator[Sequence[Path]]:
    for first in range(0, len(paths), _VECTORS_PER_FILE):
        yield paths[first : first + _VECTORS_PER_FILE]


def _delta_table(directory: Path, num_files: int, rows: Sequence[int]) -> str:
    adds = list[dict[str, Any]]()
    for part in _parts(_links(directory, num_files)):
        vectors = _vectors(directory, len(part), rows) if rows else [{}] * len(part)
        adds += [{"add": _add(path) | of} for path, of in zip(part, vectors, strict=True)]
    schema = pa.schema([field.remove_metadata() for field in _rows().schema])
    metadata = {
        "id": "lake",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": Schema.from_arrow(schema).to_json(),
        "partitionColumns": [],
        "configuration": {},
        "createdTime": 0,
    }
    protocol = FEATURE if rows else {"minReaderVersion": 1, "minWriterVersion": 2}
    commit(directory, 0, [{"protocol": protocol}, {"metaData": metadata}, *adds])
    return str(directory)


def _add(path: Path) -> dict[str, Any]:
    return {
        "path": path.name,
        "partitionValues": {},
        "size": path.stat().st_size,
        "modificationTime": 1,
        "dataChange": True,
        "stats": json.dumps({"numRecords": FILE_ROWS}),
    }


def _vectors(directory: Path, num_files: int, rows: Sequence[int]) -> list[dict[str, Any]]:
    """Writes a file with a vector for each data file; what their actions say of it."""
    name, vector = uuid.uuid4(), vector_bytes(rows)
    data, firsts = vector_file(*[vector] * num_files)
    (directory / f"deletion_vector_{name}.bin").write_bytes(data)
    common = {
        "storageType": "u",
        "pathOrInlineDv": base85(name.bytes),
        "sizeInBytes": len(vector),
        "cardinality": len(rows),
    }
    return [{"deletionVector": {**common, "offset": first}} for first in firsts]


def _data_file(path: Path) -> DataFile:
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=FILE_ROWS,
        file_size_in_bytes=path.stat().st_size,
        spec_id=0,
    )
