"""Writes the corpus of the C targets: small column chunks, texts and footers as pyarrow
writes them, one file each."""

import io
import struct
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from featstore.native import checks, kernels
from featstore.native.bounds import COLUMN
from featstore.native.footers import CheckedFooter, read_checked
from featstore.native.format import CHUNKS, PLAN, ROW_GROUPS, walk

FOLDER = Path(__file__).parent / "corpus"
NUM_ROWS = 24
CODECS = {"none": 0, "snappy": 1}


def main() -> None:
    for name, data in {
        **pages(),
        **texts(),
        **footers(),
        **chunk_checks(),
        **hashed(),
        **rows(),
        **orders(),
        **windows(),
        **histories(),
    }.items():
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def columns() -> dict[str, pa.Array]:
    ids = [row * 7919 % 11 + 1 for row in range(NUM_ROWS)]
    lists = [ids[: row % 4] for row in range(NUM_ROWS)]
    return {
        "ids": pa.array(ids, pa.int64()),
        "nulls": pa.array([None if row % 5 == 0 else row for row in ids], pa.int64()),
        "floats": pa.array([row / 3 for row in ids], pa.float32()),
        "lists": pa.array(lists, pa.list_(pa.int64())),
        "null-lists": pa.array(
            [None if row % 7 == 0 else row_ids for row, row_ids in enumerate(lists)],
            pa.list_(pa.int64()),
        ),
    }


def pages() -> dict[str, bytes]:
    """A chunk of each kind, after the bytes that `fuzz_pages.c` says."""
    found = {}
    for (name, array), codec, version, encoding in product(
        columns().items(), CODECS, ("1.0", "2.0"), ("dictionary", "plain", "deltas")
    ):
        if encoding == "deltas" and "float" in name:
            continue
        file, is_dictionary = io.BytesIO(), encoding == "dictionary"
        options = {
            "compression": codec,
            "data_page_version": version,
            "use_dictionary": is_dictionary,
        }
        if encoding == "deltas":
            path = "c.list.element" if "lists" in name else "c"
            options["column_encoding"] = {path: "DELTA_BINARY_PACKED"}
        pq.write_table(
            pa.table({"c": array}),
            file,
            write_page_checksum=codec == "none",
            write_statistics=False,
            **options,
        )
        chunk = pq.read_metadata(file).row_group(0).column(0)
        column = pq.ParquetFile(file).schema.column(0)
        first = chunk.dictionary_page_offset or chunk.data_page_offset
        is_list, levels = column.max_repetition_level, column.max_definition_level
        known = (
            CODECS[codec] | (4 if encoding == "deltas" else 0),
            0 if "float" in name else 3,
            is_list | levels << 1 | 1 << 3,
            NUM_ROWS,
            8,
            16,
        )
        chunk_bytes = file.getvalue()[first : first + chunk.total_compressed_size]
        found[f"pages/{name}-{codec}-v{version[0]}-{encoding}"] = bytes(known) + chunk_bytes
        if codec == "none":  # every third row is left out
            left_out = bytes([known[0], known[1] | 3 << 3, *known[2:]])
            found[f"pages/{name}-v{version[0]}-{encoding}-kept"] = left_out + chunk_bytes
    return found


def texts() -> dict[str, bytes]:
    found = {
        "copies": b"abcabcabcabc" * 20,
        "literals": bytes(range(200)),
        "zeros": bytes(300),
        "nothing": b"",
    }
    return {
        f"snappy/{name}": struct.pack("<HB", len(text), min(len(text), 6))
        + pa.Codec("snappy").compress(text, asbytes=True)
        for name, text in found.items()
    }


def footers() -> dict[str, bytes]:
    """A footer of each kind, after the plan by which it is walked."""
    head = bytes(map(len, PLAN)) + b"".join(part.astype("<i2").tobytes() for part in PLAN)
    return {f"footer/{name}": head + footer for name, footer in _footers()}


def chunk_checks() -> dict[str, bytes]:
    """What `fuzz_chunk_checks.c` takes: the tables of each footer, and by what they are checked."""
    found = {}
    for name, file in _files():
        footer = read_checked(io.BytesIO(file))
        tables = walk(footer.data)
        widths = (tables[ROW_GROUPS].shape[1], tables[CHUNKS].shape[1])
        head = struct.pack("<BBBxH", *widths, NUM_ROWS, len(file) - len(footer.data) - 8)
        found[f"chunk_checks/{name}"] = head + _parts(
            tables[ROW_GROUPS],
            tables[CHUNKS],
            *(checks.LAYOUT, checks.OF_RANGES),
            *checks.bounds(footer.file_schema),
            footer.file_schema.levels,
        )
    return found


def hashed() -> dict[str, bytes]:
    """Width, seed, texts and their offsets, as `fuzz_hash.c` takes them, fixed and changing."""
    text = bytes(range(64))
    offsets = np.array([0, 0, 3, 35, 64], np.int32)
    return {f"hash/texts-{seed}": bytes([seed, 42]) + _parts(text, offsets) for seed in range(4)}


def rows() -> dict[str, bytes]:
    """What `fuzz_rows.c` takes for each of its kernels: three lists of two parts, as they are and
    changing, of pieces whose offsets are of one width, and of two.
    """
    found = {}
    for kernel, widths, others in product(range(9), range(8), (0, 2)):
        if others and (kernel not in (3, 4) or not widths & 2):
            continue
        width, offset_type = 8 if widths & 1 else 4, np.int64 if widths & 2 else np.int32
        parts = _parts(
            np.array([0, 2, 2, 5], offset_type),
            bytes(range(5 * width)),
            b"\x05",
            b"\x1d",
            np.array([2, 1 << 4, 1] if kernel < 6 else [2, 0, 1, 4, 3], np.uint32),
            np.array([0, 1, 3], np.int64),
            np.array([0, 3 * width if kernel < 8 else 40], np.int64),
            np.array([0, 16], np.int64),
        )
        name = f"rows/{kernel}-{widths}" + ("-others" if others else "")
        found[name] = bytes([kernel, widths, 0, others, 5 if kernel < 8 else 20]) + parts
    return found


def windows() -> dict[str, bytes]:
    """What `fuzz_columns.c` takes: windows of two row groups, in one buffer or several, as the file
    has them or in another order, as they are and changing; and columns that are planned.
    """
    found, rows_of, row_groups = {}, 2 * NUM_ROWS, np.array([0, 1])
    for how, (name, footer) in product((0, 1, 2, 3, 4, 5, 12), _checked()):
        columns = np.zeros((len(footer.leaves), len(COLUMN)), np.int64)
        for number, (column, leaf) in enumerate(zip(columns, footer.leaves, strict=True)):
            of = number, 8, leaf.max_repetition, leaf.max_definition, 1
            column[: len(of)] = of
        planned, num_leaves = columns.copy(), len(footer.leaves)
        chunks, rows = np.empty((num_leaves, 2, 5), np.int64), np.array([NUM_ROWS] * 2)
        kernels.plan_columns(
            *(footer.numbers, num_leaves, row_groups, rows, planned, chunks),
            *(False, False),
        )
        head = bytes([how, num_leaves - 1, rows_of, 0, 200, 255])
        found[f"columns/{name}-{how}"] = head + _parts(footer.numbers, row_groups, columns, planned)
    return found


def histories() -> dict[str, bytes]:
    """What `fuzz_histories.c` takes: two keys in two row groups, with and without times, as they
    are and changing.
    """
    found = {}
    for width, has_times, period in product((4, 8), (0, 1), (0, 1, 3, 7)):
        parts = _parts(
            *(np.array(of, np.int32) for of in ([2, 1, 3, 0, 2], [1, 1, 3, 0, 2], [0, 0, 2, 0, 1])),
            np.array([7, 9, 7, 0, 0], np.int64),
            np.array([3, 2], np.int64),
            np.array([0, 3, 4, 4, 4, 4], f"i{width}"),
            np.arange(10, 15),
            np.arange(5),
        )
        how = (width == 8) | has_times << 1 | period << 2
        found[f"histories/{width}-{has_times}-{period}"] = bytes([how, 5, 2]) + parts
    return found


def orders() -> dict[str, bytes]:
    """What `fuzz_orders.c` takes for each of its kernels, as it is and changing: two streams, two
    pieces that wait or two parts, and rows of two shares or sources.
    """
    streams = np.array([[3, 30, 0, 9, -1], [5, 50, 4, 9, -1]], np.int64)
    draws, rows = np.array([0, 1, 0, 0], np.uint16), np.array([0, 1, 1, 0], np.int32)
    numbers = (b"", streams, np.array([2, 1], np.int64), np.array([1, 4], np.int64))
    return {
        f"orders/{kernel}-{period}": bytes([kernel, period, 2, 5, 9])
        + _parts(bytes(range(12)), numbers[kernel], draws, rows, b"\1\0\1\1")
        for kernel, period in product(range(4), (0, 3))
    }


def _parts(*parts: bytes | np.ndarray) -> bytes:
    """As `parts.h` cuts them."""
    texts = [part if isinstance(part, bytes) else part.tobytes() for part in parts]
    return b"".join(struct.pack("<H", len(text)) + text for text in texts)


def _checked() -> Iterator[tuple[str, CheckedFooter]]:
    """The footers of files of two row groups."""
    names = {"scalars": ["ids", "nulls", "floats"], "lists": ["lists", "null-lists"]}
    for name, of in names.items():
        file = io.BytesIO()
        table = pa.table(columns()).select(of)
        pq.write_table(pa.concat_tables([table, table]), file, NUM_ROWS)
        yield name, read_checked(file)


def _footers() -> Iterator[tuple[str, bytes]]:
    for name, data in _files():
        yield name, data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


def _files() -> Iterator[tuple[str, bytes]]:
    for name, options in {
        "plain": {},
        "indexes": {"write_page_index": True},
        "bare": {"store_schema": False},
    }.items():
        file = io.BytesIO()
        pq.write_table(pa.table(columns()).select(["ids", "lists"]), file, NUM_ROWS // 2, **options)
        yield name, file.getvalue()


if __name__ == "__main__":
    main()
