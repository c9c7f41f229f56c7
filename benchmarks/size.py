"""What a table weighs: the demo's flights and the synthetic click log, against the same rows as
TFRecord, raw and gzip.

Each data file's rows are written as one TFRecord file (`tf.train.Example`, all columns, missing
values left out) and read back. Then bytes a row by kind of column, and layouts that the writer does
not choose: rows sorted within a file, other dictionary limits, zstd, other row groups; each written
by `featstore.extraction.units.writer`, its bytes beside the CPU seconds to decode it with
`ParquetFile.read_row_group` in one thread, the layouts in turn, median of 3.

Systems that store such rows in columns told of 80 % saved; no share is demanded here. `ok` says
that everything written was read back equal, row by row.

    python benchmarks/size.py [--small]
"""

import argparse
import contextlib
import filecmp
import gzip
import importlib.util
import io
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from featstore import api
from featstore.base.schema import SlotSchema
from featstore.explore.table import open_table
from featstore.extraction.units import encoding, writer
from featstore.spec.model import OutputOptions
from featstore.table.metadata import KEY, FileMetadata
from featstore.tools import demo_flights as flights
from featstore.tools import demo_synthetic as synthetic
from shared_parts.machine import print_result
from size_parts import tfrecord

REPEATS, TOLD = 3, 0.8
KIND_PARTS, KIND_PART_ROWS = 16, 1_024
Figures = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How all rows are written into one data file; the defaults are the writer's."""

    name: str
    sorted_by: str | None = None
    compression: str = encoding.COMPRESSION
    dictionary_limit_bytes: int = encoding.DICTIONARY_LIMIT_BYTES
    rows_per_row_group: int = OutputOptions().rows_per_row_group


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where anything was not read back equal."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--small",
        action="store_true",
        help="flights of 600 planes and 65,536 clicks instead of all and 524,288",
    )
    small = parser.parse_args().small
    framed = io.BytesIO()
    tfrecord.write_records(framed, [b"foo"])
    result: Figures = {
        "told_saved": TOLD,
        "framing_as_known": framed.getvalue() == tfrecord.RECORD_OF_FOO,
    }
    if importlib.util.find_spec("tensorflow") is None:
        print("tensorflow is not installed: records are read back by this benchmark's own reader")
    with tempfile.TemporaryDirectory() as found:
        directory = Path(found)
        result["flights"] = measure(
            _flights(directory / "flights", small), ("plane", "flight_number"), directory
        )
        result["clicks"] = measure(
            _clicks(directory / "clicks", small), ("user", "item"), directory
        )
    result["ok"] = result["framing_as_known"] and all(
        result[name]["read_back_equal"] for name in ("flights", "clicks")
    )
    print_result(result)
    return 0 if result["ok"] else 1


def _flights(directory: Path, small: bool) -> list[Path]:
    data = flights.load_flights()
    flights.write_flights(directory / "raw", data.of_planes(600) if small else data)
    return _extracted("flights", directory, flights.PARTITION_KEY)


def _clicks(directory: Path, small: bool) -> list[Path]:
    """One day, so that a data file is as large as it may be."""
    synthetic.write_click_log(directory / "raw", 1 << 16 if small else 1 << 19, num_days=1)
    return _extracted("synthetic", directory, synthetic.PARTITION_KEY)


def _extracted(name: str, directory: Path, partition_key: str) -> list[Path]:
    table_url = directory / "table"
    with package_files("featstore.tools").joinpath(f"{name}.spec.yaml").open("rb") as text:
        (directory / "spec.yaml").write_bytes(text.read())
    api.extract(
        directory / "spec.yaml",
        str(directory / "raw"),
        table_url,
        partition_from_path=(partition_key,),
    )
    return [table_url / file.path for file in open_table(table_url).data_files()]


def measure(paths: list[Path], sort_columns: tuple[str, str], directory: Path) -> Figures:
    """All figures of one table, whose data files lie at `paths`; prints them as it goes."""
    each = [_read(path.read_bytes()) for path in paths]
    rows = pa.concat_tables(each).combine_chunks()
    print(
        f"\n{paths[0].parents[2].name}: {len(rows):,} rows of {rows.num_columns} columns in "
        f"{len(paths)} data files"
    )
    records = [compare_with_records(one, directory) for one in each]
    raw, gzipped = (sum(found[name] for found in records) for name in ("raw_bytes", "gzip_bytes"))
    table_bytes = sum(path.stat().st_size for path in paths)
    result: Figures = {"num_rows": len(rows), "num_files": len(paths)}
    result["bytes_per_row"] = _per_row(
        len(rows), featstore=table_bytes, tfrecord=raw, tfrecord_gzip=gzipped
    )
    result["saved"] = {
        "of_tfrecord": round(1 - table_bytes / raw, 3),
        "of_tfrecord_gzip": round(1 - table_bytes / gzipped, 3),
    }
    print(
        f"  bytes a row {result['bytes_per_row']}, saved {result['saved']} (told: {TOLD})",
        flush=True,
    )
    result["kinds"] = compare_kinds(paths, rows)
    metadata = FileMetadata.from_json(
        pq.read_metadata(paths[0]).metadata[KEY.encode()], str(paths[0])
    )
    result["layouts"], layouts_equal = compare_layouts(rows, metadata, sort_columns, directory)
    for found in result["layouts"].values():
        found["saved"] = round(1 - found["bytes_per_row"] * len(rows) / raw, 3)
    result["read_back_equal"] = layouts_equal and all(found["equal"] for found in records)
    return result


def _per_row(num_rows: int, **num_bytes: float) -> dict[str, float]:
    return {name: round(found / num_rows, 2) for name, found in num_bytes.items()}


def compare_with_records(rows: pa.Table, directory: Path) -> Figures:
    """The bytes of these rows as a TFRecord file, raw and gzip at zlib's default level as
    tensorflow; both read back.
    """
    raw, gzipped, unzipped = (
        directory / name for name in ("rows.tfrecord", "rows.tfrecord.gz", "unzipped.tfrecord")
    )
    with raw.open("wb") as sink:
        tfrecord.write_records(sink, tfrecord.examples(rows))
    with raw.open("rb") as source, gzip.open(gzipped, "wb", compresslevel=6) as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    with gzip.open(gzipped) as source, unzipped.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    return {
        "raw_bytes": raw.stat().st_size,
        "gzip_bytes": gzipped.stat().st_size,
        "equal": _holds(raw, rows) and filecmp.cmp(raw, unzipped, shallow=False),
    }


def _holds(path: Path, rows: pa.Table) -> bool:
    first = 0
    with path.open("rb") as source:
        for batch in tfrecord.parse_rows(tfrecord.read_records(source), rows.schema):
            if not equal(pa.Table.from_batches([batch]), rows.slice(first, batch.num_rows)):
                return False
            first += batch.num_rows
    return first == len(rows)


def equal(found: pa.Table, expected: pa.Table) -> bool:
    """Whether both hold the same rows in the same order; NaN, the mark of a missing float, equals
    itself.
    """
    if found.column_names != expected.column_names:
        return False
    pairs = zip(found.columns, expected.columns, strict=True)
    return all(_equal_columns(a.combine_chunks(), b.combine_chunks()) for a, b in pairs)


def _equal_columns(found: pa.Array, expected: pa.Array) -> bool:
    if pa.types.is_list(found.type):
        lengths = pc.list_value_length(found).equals(pc.list_value_length(expected))
        return bool(lengths and _equal_columns(found.flatten(), expected.flatten()))
    if pa.types.is_float32(found.type):
        found, expected = found.view(pa.int32()), expected.view(pa.int32())
    return bool(found.equals(expected))


def compare_kinds(paths: list[Path], rows: pa.Table) -> Figures:
    """Bytes a row by kind of column: in the data files, and as messages of that kind alone, of rows
    all over the table.
    """
    starts = range(0, len(rows), max(KIND_PART_ROWS, -(-len(rows) // KIND_PARTS)))
    sample = pa.concat_tables(rows.slice(start, KIND_PART_ROWS) for start in starts)
    kinds = _kinds(SlotSchema.from_arrow(rows.schema))
    stored = dict.fromkeys([*kinds.values(), "footer"], 0.0)
    for path in paths:
        stored["footer"] += path.stat().st_size
        parquet = pq.read_metadata(path)
        for group in (parquet.row_group(i) for i in range(parquet.num_row_groups)):
            for chunk in (group.column(i) for i in range(group.num_columns)):
                stored[kinds[chunk.path_in_schema.partition(".")[0]]] += chunk.total_compressed_size
                stored["footer"] -= chunk.total_compressed_size
    found: Figures = {"footer": _per_row(len(rows), featstore=stored["footer"])}
    print(f"  by kind: footer {found['footer']['featstore']}")
    for kind in dict.fromkeys(kinds.values()):
        names = [name for name, its_kind in kinds.items() if its_kind == kind]
        raw, gzipped = _as_records(sample.select(names))
        found[kind] = {"num_columns": len(names), **_per_row(len(rows), featstore=stored[kind])}
        found[kind] |= _per_row(len(sample), tfrecord=raw, tfrecord_gzip=gzipped)
        print(
            f"    {kind}: " + ", ".join(f"{name} {value}" for name, value in found[kind].items()),
            flush=True,
        )
    return found


def _kinds(schema: SlotSchema) -> dict[str, str]:
    made = {}
    for slot in schema.slots:
        value = "index" if slot.num_indices is not None else str(slot.kind)
        made[slot.name] = f"list of {value}s" if slot.is_list else value
    kept = {
        column.name: f"kept {'text' if pa.types.is_string(column.type) else 'number'}"
        for column in schema.kept
    }
    return {**made, **{column.name: "label" for column in schema.labels}, **kept}


def _as_records(rows: pa.Table) -> tuple[int, int]:
    """Bytes of these rows' messages without framing, and of the gzip of that."""
    messages = b"".join(tfrecord.examples(rows))
    return len(messages), len(gzip.compress(messages, compresslevel=6))


def layouts_of(sort_columns: tuple[str, str]) -> list[Layout]:
    first, second = sort_columns
    return [
        Layout(name="default"),
        Layout(name="zstd", compression="zstd"),
        Layout(name="row groups of 16,384", rows_per_row_group=1 << 14),
        Layout(name="row groups of 262,144", rows_per_row_group=1 << 18),
        Layout(name="dictionaries up to 256 KiB", dictionary_limit_bytes=1 << 18),
        Layout(name="dictionaries up to 4 MiB", dictionary_limit_bytes=1 << 22),
        Layout(name=f"sorted by {first}", sorted_by=first),
        Layout(name=f"sorted by {second}", sorted_by=second),
        Layout(name=f"sorted by {first}, zstd", sorted_by=first, compression="zstd"),
        Layout(name=f"sorted by {second}, zstd", sorted_by=second, compression="zstd"),
        Layout(
            name=f"sorted by {second}, zstd, dictionaries up to 4 MiB, row groups of 262,144",
            sorted_by=second,
            compression="zstd",
            dictionary_limit_bytes=1 << 22,
            rows_per_row_group=1 << 18,
        ),
    ]


def compare_layouts(
    rows: pa.Table, metadata: FileMetadata, sort_columns: tuple[str, str], directory: Path
) -> tuple[dict[str, Figures], bool]:
    """Bytes and nanoseconds a row of each layout of all rows in one file; whether each was read
    back equal.
    """
    orders: dict[str | None, pa.Table] = {
        None: rows,
        **{name: _sorted(rows, name) for name in sort_columns},
    }
    texts: dict[str, bytes] = {}
    all_equal = True
    for layout in layouts_of(sort_columns):
        texts[layout.name] = _written(
            orders[layout.sorted_by], metadata, layout, directory / "layout.parquet"
        )
        all_equal &= equal(_read(texts[layout.name]), orders[layout.sorted_by])
    seconds = _decoded(texts)
    print("  layouts, all rows in one file: bytes and nanoseconds a row")
    found = {}
    for name, text in texts.items():
        found[name] = {
            "bytes_per_row": round(len(text) / len(rows), 2),
            "ns_per_row": round(seconds[name] / len(rows) * 1e9, 1),
        }
        found[name] |= {"size_ratio": round(len(text) / len(texts["default"]), 3)}
        found[name] |= {"decode_ratio": round(seconds[name] / seconds["default"], 3)}
        print(
            f"    {name}: " + ", ".join(f"{key} {value}" for key, value in found[name].items()),
            flush=True,
        )
    return found, all_equal


def _sorted(rows: pa.Table, column: str) -> pa.Table:
    """Rows of one value keep their order: Arrow's sort is stable."""
    return rows.take(pc.sort_indices(rows, sort_keys=[(column, "ascending")])).combine_chunks()


def _written(rows: pa.Table, metadata: FileMetadata, layout: Layout, path: Path) -> bytes:
    schema = SlotSchema.from_arrow(rows.schema)
    options = (layout.rows_per_row_group, layout.compression)
    with (
        _dictionary_limit(layout.dictionary_limit_bytes),
        writer.open_data_file(str(path), schema, metadata, *options) as file,
    ):
        for batch in rows.to_batches(max_chunksize=1 << 14):
            file.write(batch)
    return path.read_bytes()


@contextlib.contextmanager
def _dictionary_limit(num_bytes: int) -> Iterator[None]:
    """The limit is a constant of the writer, no option: it is another one within the block."""
    with mock.patch.object(encoding, "DICTIONARY_LIMIT_BYTES", num_bytes):
        yield


def _read(text: bytes) -> pa.Table:
    with pq.ParquetFile(pa.BufferReader(text)) as file:
        return file.read().replace_schema_metadata(None)


def _decoded(texts: dict[str, bytes]) -> dict[str, float]:
    """CPU seconds of one pass over each file, a row group at a time, the files in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in texts}
    for _ in range(REPEATS):
        for name, text in texts.items():
            started = time.thread_time()
            with pq.ParquetFile(pa.BufferReader(text)) as file:
                for i in range(file.num_row_groups):
                    file.read_row_group(i, use_threads=False)
            seconds[name].append(time.thread_time() - started)
    return {name: statistics.median(found) for name, found in seconds.items()}


if __name__ == "__main__":
    sys.exit(main())
