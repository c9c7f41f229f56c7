"""The same rows, written in many ways: by pyarrow, one option changed at a time, and by featstore's
own writer.

Columns are those of loader_parts/workload.py: nine lists of ids, nine ids and six floats, so that
each vocabulary (100, 10,000, 1,000,000 different ids) has a column with 5 % nulls and two without.
featstore's writer gets the missing marks in place of the nulls, in required columns, as an
extraction would give it.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.extraction.units import encoding, writer
from featstore.reading.buffers import Ragged, slot_values
from featstore.spec.model import OutputOptions
from featstore.table.metadata import FileMetadata
from loader_parts.workload import Workload, rows_of

DEFAULT, OWN = "default", "featstore"
LISTS, IDS, FLOATS = (
    [f"{kind}{number}" for number in range(count)] for kind, count in (("l", 9), ("i", 9), ("f", 6))
)


def _slot(number: int, name: str) -> Slot:
    kind = SlotKind.FLOAT if name in FLOATS else SlotKind.ID
    return Slot(
        name=name, kind=kind, shape=(None,) if name in LISTS else (), number=number, op="hash"
    )


SCHEMA = SlotSchema(
    slots=tuple(_slot(number, name) for number, name in enumerate([*LISTS, *IDS, *FLOATS], 1))
)
KINDS = {
    "lists": [SCHEMA[name] for name in LISTS],
    "scalars": [SCHEMA[name] for name in (*IDS, *FLOATS)],
}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A way to write. `options` are of `pyarrow.parquet.write_table`, or constants of featstore's
    writer to be changed.
    """

    is_own: bool = False
    is_required: bool = False
    rows_per_row_group: int = 25_000
    options: Mapping[str, Any] = field(default_factory=dict)
    encoding: str | None = None


_own = partial(
    Variant, is_own=True, is_required=True, rows_per_row_group=OutputOptions().rows_per_row_group
)

VARIANTS = {
    DEFAULT: Variant(),
    "pages v2": Variant(options={"data_page_version": "2.0"}),
    "pages of 1,000 rows": Variant(options={"max_rows_per_page": 1_000}),
    "one page a row group": Variant(
        options={"max_rows_per_page": 1 << 30, "data_page_size": 1 << 30}
    ),
    "row groups of 5,000": Variant(rows_per_row_group=5_000),
    "row groups of 100,000": Variant(rows_per_row_group=100_000),
    "required": Variant(is_required=True),
    "required, pages v2": Variant(is_required=True, options={"data_page_version": "2.0"}),
    "plain": Variant(options={"use_dictionary": False}),
    "dictionary where it pays": Variant(encoding="chosen"),
    "byte stream split": Variant(encoding="BYTE_STREAM_SPLIT"),
    "delta (ids)": Variant(encoding="DELTA_BINARY_PACKED"),
    "uncompressed": Variant(options={"compression": "none"}),
    "zstd": Variant(options={"compression": "zstd"}),
    OWN: _own(),
    "featstore, row groups of 25,000": _own(rows_per_row_group=25_000),
    "featstore, row groups of 131,072": _own(rows_per_row_group=131_072),
    "featstore, pages v1": _own(options={"encoding.DATA_PAGE_VERSION": "1.0"}),
    "featstore, uncompressed": _own(options={"encoding.pays_to_compress": lambda *_: False}),
    "featstore, zstd": _own(options={"compression": "zstd"}),
    "featstore, plain": _own(options={"encoding.DICTIONARY_LIMIT_BYTES": 0}),
}


def nullable_rows(num_rows: int) -> pa.Table:
    """The rows with nulls, as one chunk a column."""
    made = rows_of(
        Workload(
            name="decoding", num_files=1, rows_per_file=num_rows, num_slots=40, num_selected=40
        ),
        0,
    )
    return made.select(SCHEMA.names).combine_chunks()


def required_rows(rows: pa.Table) -> pa.Table:
    """The same with marks, in the columns of a data file."""
    schema = SCHEMA.to_arrow()
    arrays = [
        _required(rows.column(slot.name), slot, schema.field(slot.name).type) for slot in SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _required(column: pa.ChunkedArray, slot: Slot, type_: pa.DataType) -> pa.Array:
    values = slot_values(column, slot)
    if isinstance(values, Ragged):
        return pa.ListArray.from_arrays(
            pa.array(values.offsets.astype(np.int32)), pa.array(values.values), type=type_
        )
    return pa.array(values)


def write(rows: pa.Table, variant: Variant, path: Path) -> None:
    """Writes the rows, with nulls or required as the variant says, to a file that appears whole."""
    if variant.is_own:
        _write_own(rows, variant, path)
        return
    made = path.with_suffix(".part")
    group = rows.slice(0, variant.rows_per_row_group)
    pq.write_table(
        rows,
        made,
        row_group_size=variant.rows_per_row_group,
        **_encoded(group, variant),
        **variant.options,
    )
    made.rename(path)


def _encoded(group: pa.Table, variant: Variant) -> dict[str, Any]:
    if variant.encoding is None:
        return {}
    if variant.encoding == "chosen":
        chosen = encoding.choose_encodings(group)
        return {"use_dictionary": list(chosen.dictionary)}
    names = SCHEMA.names if variant.encoding == "BYTE_STREAM_SPLIT" else (*LISTS, *IDS)
    leaves = [f"{name}.list.element" if name in LISTS else name for name in names]
    return {"use_dictionary": False, "column_encoding": dict.fromkeys(leaves, variant.encoding)}


def _write_own(rows: pa.Table, variant: Variant, path: Path) -> None:
    """By the writer of data files, some of its constants changed."""
    constants = dict(variant.options)
    compression = constants.pop("compression", encoding.COMPRESSION)
    metadata = FileMetadata(spec_hash="", spec_version=1)
    with (
        _changed(constants),
        writer.open_data_file(
            str(path), SCHEMA, metadata, variant.rows_per_row_group, compression
        ) as to,
    ):
        for batch in rows.to_batches(max_chunksize=16_384):
            to.write(batch)


@contextlib.contextmanager
def _changed(constants: Mapping[str, Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, value in constants.items():
            stack.enter_context(mock.patch(f"featstore.table.{name}", value))
        yield
