"""Slots of the demo's click log as an extraction writes them, with three choices of codec.

Its ids repeat as those of sessions do, which a codec may find where it finds nothing in ids drawn
one by one.
"""

from collections.abc import Mapping
from importlib.resources import files as package_files
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from featstore import api
from featstore.base.schema import Slot
from featstore.explore.table import Table, open_table
from featstore.extraction.units.encoding import parquet_options
from featstore.spec.model import OutputOptions
from featstore.tools.demo_synthetic import PARTITION_KEY, write_click_log

SNAPPY, NONE, CHOSEN = (
    "click log, snappy",
    "click log, uncompressed",
    "click log, snappy where it saves a tenth",
)
NUM_ROWS = 1 << 18
_ROWS_PER_ROW_GROUP = OutputOptions().rows_per_row_group


def write(directory: Path) -> tuple[Mapping[str, Path], list[Slot]]:
    """The files by codec, those that are not there yet written; the slots in them."""
    table = _extracted(directory)
    paths = {
        name: directory / f"click-log-{number}.parquet"
        for number, name in enumerate((SNAPPY, NONE, CHOSEN))
    }
    if not all(path.exists() for path in paths.values()):
        rows = _rows(table)
        _write(rows, paths[SNAPPY], "snappy")
        _write(rows, paths[NONE], "none")
        _write(rows, paths[CHOSEN], _where_it_saves(paths))
    return paths, list(table.schema)


def _extracted(directory: Path) -> Table:
    url = str(directory / "table")
    if not Path(url).exists():
        write_click_log(directory / "raw", NUM_ROWS)
        spec = str(package_files("featstore.tools").joinpath("synthetic.spec.yaml"))
        print(
            api.extract(spec, str(directory / "raw"), url, partition_from_path=[PARTITION_KEY]),
            flush=True,
        )
    return open_table(url)


def _rows(table: Table) -> pa.Table:
    """All rows, in the columns of a data file."""
    found = (
        pq.read_table(file.url, columns=list(table.schema.names), partitioning=None)
        for file in table.data_files()
    )
    return pa.concat_tables(found).combine_chunks()


def _write(rows: pa.Table, path: Path, codec: str | Mapping[str, str]) -> None:
    """As the writer of data files does."""
    options = parquet_options(rows.slice(0, _ROWS_PER_ROW_GROUP)) | {"compression": codec}
    pq.write_table(rows, path, row_group_size=_ROWS_PER_ROW_GROUP, **options)


def _where_it_saves(paths: Mapping[str, Path]) -> dict[str, str]:
    compressed, stored = (_bytes(paths[name]) for name in (SNAPPY, NONE))
    return {
        leaf: "snappy" if size < 0.9 * stored[leaf] else "none" for leaf, size in compressed.items()
    }


def _bytes(path: Path) -> dict[str, int]:
    """Of the first row group's column chunks, by leaf path."""
    group = pq.read_metadata(path).row_group(0)
    chunks = [group.column(place) for place in range(group.num_columns)]
    return {chunk.path_in_schema: chunk.total_compressed_size for chunk in chunks}
