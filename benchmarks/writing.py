"""Which encodings, pages, compression, row groups and files decode fastest, at which size: what the
writer's defaults rest on.

Columns of every kind that a data file has, each written with every candidate and decoded by
`ParquetFile.read_row_group` in one thread, the candidates in turn; CPU seconds of the thread,
median of 5. Then a whole file as the writer makes it, against the same rows with version 1 pages,
snappy, and a dictionary where the share of distinct values is below 0.7; then row groups of 16k to
256k rows, and files of 128k to 1M rows.

A byte to fetch counts as much as a nanosecond to decode: a reader that gets 1 GB/s. The demanded
figures: by that sum no candidate is a sixth below what the writer chooses for a kind, and files of
all kinds, and of slots alone, are below that other one and no slower to decode.

    python benchmarks/writing.py [--small] [--rows N]
"""

import argparse
import io
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from featstore.extraction.units.encoding import parquet_options
from featstore.spec.model import OutputOptions
from shared_parts.machine import print_result

REPEATS, NUM_PASSES, NOISE = 5, 4, 1.02
ROWS_PER_ROW_GROUP = OutputOptions().rows_per_row_group
SIGNS = np.uint64((1 << 63) - 1)
Options = dict[str, Any]


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where a demanded figure is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="131,072 rows instead of 1,048,576")
    parser.add_argument("--rows", type=int, default=None)
    arguments = parser.parse_args()
    rows = columns(arguments.rows or (1 << 17 if arguments.small else 1 << 20))
    beaten = [
        found
        for name in rows.column_names
        for found in compare_column(rows.slice(0, 1 << 18).select([name]))
    ]
    slots = [name for name in rows.column_names if not name.startswith(("label", "kept"))]
    compared = {"all_kinds": compare_files(rows), "slots": compare_files(rows.select(slots))}
    result: dict[str, Any] = {
        "beaten": beaten,
        **compared,
        "row_groups": row_groups(rows),
        "files": files(rows),
    }
    result["ok"] = not beaten and all(
        r["cost_ratio"] < 1 and r["decode_ratio"] <= NOISE for r in compared.values()
    )
    print_result(result)
    return 0 if result["ok"] else 1


def columns(num_rows: int) -> pa.Table:
    """Slots are required, labels and kept columns nullable, as in data files."""
    rng = np.random.default_rng(1)
    made: dict[str, pa.Array] = {
        "id_unique": pa.array(_signs(np.arange(num_rows))),
        "id_many": pa.array(_signs(_zipf(rng, num_rows, 200_000, 0.6))),
        "id_some": pa.array(_signs(_zipf(rng, num_rows, 20_000))),
        "id_few": pa.array(_signs(_zipf(rng, num_rows, 100))),
        "index": pa.array(_zipf(rng, num_rows, 64)),
        "float_noisy": pa.array(rng.normal(size=num_rows).astype(np.float32)),
        "float_smooth": pa.array(
            np.log1p(np.round(rng.gamma(2, 20, num_rows), 2)).astype(np.float32)
        ),
        "float_steps": pa.array((np.round(rng.random(num_rows) * 100) / 100).astype(np.float32)),
        "list_id": _lists(rng, num_rows, lambda n: _signs(_zipf(rng, n, 20_000))),
        "list_id_many": _lists(rng, num_rows, lambda n: _signs(rng.integers(0, 200_000, n))),
        "list_id_unique": _lists(rng, num_rows, lambda n: _signs(rng.integers(0, 1 << 40, n))),
        "list_float": _lists(rng, num_rows, lambda n: rng.random(n).astype(np.float32)),
        "label": pa.array(
            (rng.random(num_rows) < 0.05).astype(np.int64), mask=rng.random(num_rows) < 0.1
        ),
        "kept_text": pa.array([f"{sign:016x}" for sign in _signs(np.arange(num_rows)).tolist()]),
        "kept_country": pa.array([f"country_{n}" for n in _zipf(rng, num_rows, 60).tolist()]),
        "kept_number": pa.array(np.arange(num_rows, dtype=np.int64) + 10**12),
        "kept_time": pa.array(
            10**15 + np.cumsum(rng.integers(0, 200_000, num_rows)), pa.timestamp("us", tz="UTC")
        ),
    }
    fields = [
        pa.field(name, array.type, nullable=name.startswith(("label", "kept")))
        for name, array in made.items()
    ]
    return pa.Table.from_arrays(list(made.values()), schema=pa.schema(fields))


def _signs(values: Any) -> Any:
    """Scattered positive int64, as hashes are: SplitMix64's finaliser."""
    mixed = (values.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) & SIGNS).astype(np.int64)


def _zipf(
    rng: np.random.Generator, num_values: int, num_distinct: int, exponent: float = 1.05
) -> Any:
    weights = 1 / np.arange(1, num_distinct + 1) ** exponent
    return rng.choice(num_distinct, num_values, p=weights / weights.sum())


def _lists(rng: np.random.Generator, num_rows: int, values: Callable[[int], Any]) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(rng.poisson(5, num_rows))]).astype(np.int32)
    array = pa.array(values(int(offsets[-1])))
    return pa.ListArray.from_arrays(
        pa.array(offsets), array, type=pa.list_(pa.field("element", array.type, nullable=False))
    )


def candidates(column: pa.Field) -> dict[str, Options]:
    """What a writer can do with one column, by name."""
    is_list = pa.types.is_list(column.type)
    leaf, value = (
        (f"{column.name}.list.element", column.type.value_type)
        if is_list
        else (column.name, column.type)
    )
    plain: Options = {"use_dictionary": False, "data_page_version": "2.0", "compression": "snappy"}
    kinds = {"plain": plain, "dictionary": plain | {"use_dictionary": [leaf]}}
    if pa.types.is_integer(value) or pa.types.is_timestamp(value):
        kinds["delta"] = plain | {"column_encoding": {leaf: "DELTA_BINARY_PACKED"}}
    if pa.types.is_string(value):
        kinds["delta length"] = plain | {"column_encoding": {leaf: "DELTA_LENGTH_BYTE_ARRAY"}}
        kinds["delta text"] = plain | {"column_encoding": {leaf: "DELTA_BYTE_ARRAY"}}
    else:
        kinds["byte stream split"] = plain | {"column_encoding": {leaf: "BYTE_STREAM_SPLIT"}}
    made = dict(kinds)
    for name in ("plain", "dictionary"):
        made[f"{name}, pages v1"] = kinds[name] | {"data_page_version": "1.0"}
        made[f"{name}, pages of 64 KiB"] = kinds[name] | {"data_page_size": 64 << 10}
        made[f"{name}, pages of 8 MiB"] = kinds[name] | {"data_page_size": 8 << 20}
    made["dictionary of 4 MiB"] = kinds["dictionary"] | {"dictionary_pagesize_limit": 4 << 20}
    return made | {
        f"{name}, zstd": options | {"compression": "zstd"} for name, options in kinds.items()
    }


def chosen(rows: pa.Table, compression: str = "snappy") -> Options:
    """What `featstore.extraction.units.writer` writes with: decided from the first row group."""
    return parquet_options(rows.slice(0, ROWS_PER_ROW_GROUP), compression)


def compare_column(rows: pa.Table) -> list[str]:
    """Prints bytes and nanoseconds a value of each candidate; those with snappy that cost a sixth
    less than the choice.
    """
    name = rows.column_names[0]
    column = rows[name]
    num_values = (
        sum(len(chunk.flatten()) for chunk in column.chunks)
        if pa.types.is_list(column.type)
        else len(column)
    )
    texts = {
        label: _written(rows, options)
        for label, options in {**candidates(rows.schema[0]), "*": chosen(rows)}.items()
    }
    seconds = _decoded(texts)
    print(f"\n{name}: {num_values:,} values")
    for label, text in texts.items():
        print(
            f"  {label:28} {len(text) / num_values:6.2f} bytes "
            f"{seconds[label] / num_values * 1e9:6.2f} ns",
            flush=True,
        )
    return [
        f"{name}: {label}"
        for label, text in texts.items()
        if not label.endswith("zstd")
        and _cost(text, seconds[label]) < 5 / 6 * _cost(texts["*"], seconds["*"])
    ]


def _cost(text: bytes, seconds: float) -> float:
    """Nanoseconds to fetch, at 1 GB/s, and to decode."""
    return len(text) + seconds * 1e9


def _written(
    rows: pa.Table, options: Mapping[str, Any], rows_per_row_group: int = ROWS_PER_ROW_GROUP
) -> bytes:
    sink = io.BytesIO()
    pq.write_table(rows, sink, row_group_size=rows_per_row_group, **options)
    return sink.getvalue()


def _decoded(texts: Mapping[str, bytes]) -> dict[str, float]:
    """CPU seconds of a pass over each file, the files in turn."""
    seconds: dict[str, list[float]] = {label: [] for label in texts}
    for _ in range(REPEATS):
        for label, text in texts.items():
            started = time.thread_time()
            for _ in range(NUM_PASSES):
                _read(text)
            seconds[label].append((time.thread_time() - started) / NUM_PASSES)
    return {label: statistics.median(found) for label, found in seconds.items()}


def _read(text: bytes) -> int:
    """Every row group, one at a time; the most bytes that one of them held."""
    with pq.ParquetFile(pa.BufferReader(text)) as file:
        return max(
            int(file.read_row_group(i, use_threads=False).nbytes)
            for i in range(file.num_row_groups)
        )


def compare_files(rows: pa.Table) -> dict[str, Any]:
    """All columns in one file, as the writer makes it, with zstd too, against dictionaries by the
    share of distinct values.
    """
    paths = [f"{c.name}.list.element" if pa.types.is_list(c.type) else c.name for c in rows.schema]
    repetitive = [
        path
        for path, column in zip(paths, rows.columns, strict=True)
        if _distinct_share(column) < 0.7
    ]
    texts = {
        "before": _written(rows, {"use_dictionary": repetitive, "compression": "snappy"}),
        "now": _written(rows, chosen(rows)),
        "zstd": _written(rows, chosen(rows, "zstd")),
        "without statistics": _written(rows, chosen(rows) | {"write_statistics": False}),
    }
    seconds = _decoded(texts)
    print(f"\n{len(paths)} columns in one file, bytes a row and nanoseconds a row")
    for label, text in texts.items():
        footer = pq.read_metadata(pa.BufferReader(text)).serialized_size
        print(
            f"  {label:20} {len(text) / len(rows):7.2f} {seconds[label] / len(rows) * 1e9:8.1f}, "
            f"footer {footer:,} bytes"
        )
    size, decode = len(texts["before"]), seconds["before"]
    return {
        "cost_ratio": round(
            _cost(texts["now"], seconds["now"]) / _cost(texts["before"], decode), 3
        ),
        "size_ratio": round(len(texts["now"]) / size, 3),
        "decode_ratio": round(seconds["now"] / decode, 3),
        "zstd_size_ratio": round(len(texts["zstd"]) / size, 3),
        "zstd_decode_ratio": round(seconds["zstd"] / decode, 3),
    }


def _distinct_share(column: pa.ChunkedArray) -> float:
    values = column.slice(0, ROWS_PER_ROW_GROUP).combine_chunks()
    values = values.flatten() if pa.types.is_list(values.type) else values
    return len(values.unique()) / len(values)


def row_groups(rows: pa.Table) -> dict[str, dict[str, float]]:
    """Files of row groups of 16k to 256k rows: bytes and nanoseconds a row, bytes of footer, bytes
    that a reader holds.
    """
    sizes = [size for size in (1 << 14, 1 << 15, 1 << 16, 1 << 17, 1 << 18) if size <= len(rows)]
    texts = {str(size): _written(rows, chosen(rows), size) for size in sizes}
    seconds = _decoded(texts)
    print("\nrow groups of so many rows")
    return {
        size: _described(text, seconds[size], len(rows), f"{int(size):>9,}")
        for size, text in texts.items()
    }


def files(rows: pa.Table) -> dict[str, dict[str, float]]:
    """The rows in files of 128k to 1M rows; each file is opened anew, its footer parsed."""
    sizes = [size for size in (1 << 17, 1 << 18, 1 << 19, 1 << 20) if size <= len(rows)]
    texts = {str(size): _written(rows.slice(0, size), chosen(rows)) for size in sizes}
    seconds = _decoded(texts)
    print("\nfiles of so many rows")
    return {
        size: _described(text, seconds[size], int(size), f"{int(size):>9,}")
        for size, text in texts.items()
    }


def _described(text: bytes, seconds: float, num_rows: int, label: str) -> dict[str, float]:
    found = {
        "bytes_per_row": round(len(text) / num_rows, 2),
        "ns_per_row": round(seconds / num_rows * 1e9, 1),
        "footer_bytes": pq.read_metadata(pa.BufferReader(text)).serialized_size,
        "file_bytes": len(text),
        "held_bytes": _read(text),
        "open_s": round(_opening(text), 6),
    }
    print(
        f"  {label} rows: " + ", ".join(f"{name} {value:,}" for name, value in found.items()),
        flush=True,
    )
    return found


def _opening(text: bytes) -> float:
    """CPU seconds of opening a file: its footer, parsed."""
    seconds = []
    for _ in range(REPEATS * NUM_PASSES):
        started = time.thread_time()
        pq.ParquetFile(pa.BufferReader(text)).close()
        seconds.append(time.thread_time() - started)
    return statistics.median(seconds)


if __name__ == "__main__":
    sys.exit(main())
