"""Rows of any number of pieces come in the order in which they were asked for."""

import numpy as np
import pyarrow as pa

from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.decoded.decoded_file import Piece, decoded_schema, piece_of
from featstore.loader.request.matching import Partition
from featstore.loader.request.request import resolve
from featstore.reading.gather import max_pieces
from featstore.samples.decoded_rows import DecodedRows

SLOTS = (
    Slot(name="row", kind=SlotKind.ID, number=1),
    Slot(name="pair", kind=SlotKind.FLOAT, number=2, shape=(2,)),
    Slot(name="tags", kind=SlotKind.ID, number=3, shape=(None,)),
)
SCHEMA = SlotSchema(slots=SLOTS)
REQUEST = resolve(SCHEMA, slots=["*"])


def piece(first: int, num_rows: int) -> Piece:
    """Rows that say which they are in every column: the numbers from `first`."""
    rows = np.arange(first, first + num_rows)
    schema = decoded_schema(REQUEST.selection)
    cuts = np.concatenate([[0], np.cumsum(rows % 3)])
    pairs = pa.array(np.repeat(rows, 2).astype(np.float32))
    columns: list[pa.Array] = [
        pa.array(rows),
        pa.FixedSizeListArray.from_arrays(pairs, 2),
        pa.ListArray.from_arrays(pa.array(cuts, pa.int32()), np.repeat(rows, rows % 3)),
    ]
    batch = pa.record_batch(columns, schema.names).cast(schema)
    return piece_of(batch, REQUEST.selection, "part.parquet")


def test_a_batch_of_rows_in_more_pieces_than_can_be_numbered_at_once_has_the_right_rows() -> None:
    """One piece of 2^20 rows leaves 12 of 32 bits for the number of a piece."""
    large, num_small = 1 << 20, max_pieces(20) + 104
    partition = Partition(values={}, is_decided=True)
    pieces = [(piece(0, large), partition)]
    pieces += [(piece(large + 2 * number, 2), partition) for number in range(num_small)]
    rows = np.concatenate([[5, large - 1], large + 2 * np.arange(num_small) + 1])
    np.random.default_rng(1).shuffle(rows)
    batch = DecodedRows(pieces, REQUEST).batch(rows)
    assert batch.num_rows == len(rows)
    assert batch["row"].tolist() == rows.tolist()
    assert batch["pair"].tolist() == np.repeat(rows, 2).reshape(-1, 2).tolist()
    assert [tags.tolist() for tags in batch["tags"]] == [[row] * (row % 3) for row in rows.tolist()]
