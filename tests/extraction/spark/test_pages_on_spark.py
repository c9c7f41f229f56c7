"""Slot columns as Spark's own writer leaves them are decoded by the kernels, differences too."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from featstore.base.schema import Slot, SlotKind
from featstore.reading.buffers import slot_values
from featstore.reading.file_columns import Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.pages import PageReader
from tests.slot_values import assert_equal

NUM_ROWS, PAGE_BYTES = 4_000, 2_000
LISTS = """CASE WHEN id % 11 = 0 THEN NULL WHEN id % 13 = 0 THEN array()
           ELSE transform(sequence(0, id % 6), n -> IF((id + n) % 9 = 0, NULL, {})) END AS {}"""
COLUMNS = [
    "id AS required",
    "IF(id % 7 = 0, NULL, xxhash64(id % 50)) AS few",
    "IF(id % 5 = 0, NULL, xxhash64(id)) AS many",
    "IF(id % 3 = 0, NULL, CAST(id / 7 AS float)) AS price",
    LISTS.format("xxhash64((id + n) % 50)", "few_lists"),
    LISTS.format("xxhash64(id * 31 + n)", "many_lists"),
    LISTS.format("CAST((id + n) / 7 AS float)", "price_lists"),
]
SLOTS = [
    *(Slot(name=name, kind=SlotKind.ID) for name in ("required", "few", "many")),
    Slot(name="price", kind=SlotKind.FLOAT),
    *(Slot(name=name, kind=SlotKind.ID, shape=(None,)) for name in ("few_lists", "many_lists")),
    Slot(name="price_lists", kind=SlotKind.FLOAT, shape=(None,)),
]


@pytest.mark.parametrize(
    ("version", "with_deltas"), [("v1", set()), ("v2", {"required", "many", "many_lists"})]
)
@pytest.mark.parametrize("codec", ["snappy", "zstd"])
def test_what_spark_wrote_is_decoded_as_arrow_does(
    spark: Any, tmp_path: Path, codec: str, version: str, with_deltas: set[str]
) -> None:
    path = _write(
        spark, tmp_path / "rows", {"parquet.writer.version": version, "compression": codec}
    )
    with OpenFile(path) as footer:
        columns = footer.resolve(Selection(slots=tuple(SLOTS)))
        decoded = PageReader(footer, SLOTS, columns).read([0])
        assert {
            slot.name for slot in SLOTS if "DELTA_BINARY_PACKED" in _chunk(footer, slot).encodings
        } == with_deltas
        assert set(decoded) == {slot.name for slot in SLOTS}
        assert (
            max(
                _chunk(footer, slot).total_uncompressed_size
                for slot in SLOTS
                if slot.name in decoded
            )
            > 3 * PAGE_BYTES
        )
        arrows = footer.arrow_file(None).read_row_group(0)
        for slot in SLOTS:
            if slot.name in decoded:
                decoded[slot.name].array.validate(full=True)
                assert_equal(decoded[slot.name].values, slot_values(arrows.column(slot.name), slot))


def _write(spark: Any, folder: Path, options: dict[str, str]) -> Path:
    """One file of one row group, each of its columns in several pages, dictionaries where they
    pay.
    """
    sizes = {
        "parquet.page.size": PAGE_BYTES,
        "parquet.page.size.row.check.min": 10,
        "parquet.page.row.count.limit": 1_000,
    }
    rows = spark.range(0, NUM_ROWS, 1, 1).selectExpr(*COLUMNS)
    rows.write.options(**sizes, **options).parquet(str(folder))
    (path,) = folder.glob("*.parquet")
    assert pq.read_metadata(path).num_row_groups == 1
    return path


def _chunk(footer: OpenFile, slot: Slot) -> pq.ColumnChunkMetaData:
    return (
        footer.arrow_file(None)
        .metadata.row_group(0)
        .column([found.name for found in SLOTS].index(slot.name))
    )
