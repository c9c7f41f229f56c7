from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.extraction.units.writer import open_data_file
from featstore.table.layout import data_file_name, new_tag, partition_path
from featstore.table.metadata import FileMetadata
from featstore.table.snapshot import DataFile

WriteFile = Callable[..., DataFile]


@pytest.fixture
def schema() -> SlotSchema:
    """An id, a list of ids, a fixed width of floats, a label and a kept column."""
    return SlotSchema(
        slots=(
            Slot(name="user", kind=SlotKind.ID, number=101, op="hash"),
            Slot(name="tags", kind=SlotKind.ID, shape=(None,), number=102, op="hash"),
            Slot(name="place", kind=SlotKind.FLOAT, shape=(2,), number=103, op="identity"),
        ),
        labels=(pa.field("click", pa.int64()),),
        kept=(pa.field("request", pa.string()),),
    )


def make_rows(schema: SlotSchema, num_rows: int, first: int = 0) -> pa.RecordBatch:
    rows = np.arange(first, first + num_rows, dtype=np.int64)
    fields = schema.to_arrow()
    columns = {
        "user": pa.array(rows % 7 + 1),
        "price": pa.array(rows.astype(np.float32)),
        "tags": pa.ListArray.from_arrays(
            pa.array(np.arange(num_rows + 1, dtype=np.int32) * 2),
            pa.array(np.repeat(rows, 2) + 1),
            type=pa.list_(pa.int64()),
        ),
        "place": pa.FixedSizeListArray.from_arrays(
            pa.array(np.repeat(rows, 2).astype(np.float32)), 2
        ),
        "click": pa.array(rows % 2),
        "request": pa.array([f"r{row}" for row in rows.tolist()]),
    }
    return pa.RecordBatch.from_arrays([columns[f.name].cast(f.type) for f in fields], schema=fields)


@pytest.fixture
def write_file(schema: SlotSchema) -> WriteFile:
    """Writes a data file below a table's directory, and returns its description as a run would."""

    def write(
        table: Path,
        partition: dict[str, str],
        run_id: str,
        num_rows: int = 10,
        columns: SlotSchema = schema,
    ) -> DataFile:
        path = "/".join(
            filter(None, [partition_path(partition), data_file_name(new_tag(run_id), 0, 0)])
        )
        metadata = FileMetadata(spec_hash="s1", spec_version=1)
        with open_data_file(str(table / path), columns, metadata, 1000) as writer:
            writer.write(make_rows(columns, num_rows))
            done = writer.close()
        return DataFile(
            path=path,
            url=str(table / path),
            size_bytes=done.size_bytes,
            num_rows=done.num_rows,
            partition=partition,
        )

    return write
