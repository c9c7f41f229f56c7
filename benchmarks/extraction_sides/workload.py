"""What is extracted: a raw log of blocks of 31 columns, and as many features of it as one asks for.

A block of columns has 61 features; 400 features take 7 blocks, whose columns differ in their
numbers. Each feature is an entry of a spec, and the sides write the same by hand in their own
language.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

BLOCK_ROWS = 65_536
NUM_FEATURES_PER_BLOCK = 61
ROW_ID = "request_id"
TIMESTAMP = pa.timestamp("us", tz="UTC")
MAX_LEN = 20
MASK = 2**63 - 1

TEXTS = {
    "user": 1_000_000, "item": 200_000, "session": 5_000_000, "shop": 5_000, "category": 40, "brand": 2_000,
    "city": 500, "device": 30, "system": 8, "query": 100_000, "referrer": 10_000, "campaign": 300,
}  # fmt: skip
LONGS = {"item_number": 10**12, "advertiser": 20_000, "position": 50, "visits": 1_000}
DOUBLES = {"price": 3.0, "score": 0.0, "dwell": 4.0, "distance": 2.0, "rating": 1.0, "age": 3.5}
LISTS = {"tags": ("t", 3_000, 4), "interests": ("interest", 800, 3), "history": (None, 200_000, 8)}
FLOAT_LISTS = {"prices": 5, "dwells": 3}
TIMES = ("ts", "published")
MAPS = {"price_of": "category", "clicks_of": "device"}
CROSSED_WITH_USER = (
    "item",
    "shop",
    "category",
    "brand",
    "city",
    "device",
    "query",
    "advertiser",
    "position",
    "campaign",
)
CROSSED = (
    ("user", "category", "position"),
    ("city", "device", "campaign"),
    ("tags", "user"),
    ("interests", "category"),
    ("item", "history"),
)
BOUNDARIES = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)


Entry = tuple[str, tuple[str, ...], dict[str, Any]]
"""Operator, columns without their block's number, params."""


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One slot: the operator's name, the raw columns it reads with their kinds, and its params."""

    number: int
    op: str
    of: tuple[str, ...]
    kinds: tuple[str, ...]
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"f{self.number}"

    @property
    def is_list(self) -> bool:
        return any(kind.startswith("list") for kind in self.kinds) and self.op in (
            "hash",
            "cross",
            "identity",
        )

    def entry(self) -> dict[str, Any]:
        """The slot in a spec."""
        of = list(self.of) if len(self.of) > 1 else self.of[0]
        return {"slot": self.number, "name": self.name, "op": self.op, "of": of, **self.params}


def kinds_of_block() -> dict[str, str]:
    """The columns of a block with their types as a spec names them."""
    lists = {
        name: "list<long>" if prefix is None else "list<string>"
        for name, (prefix, _, _) in LISTS.items()
    }
    return {
        **dict.fromkeys(TEXTS, "string"),
        **dict.fromkeys(LONGS, "long"),
        **dict.fromkeys(DOUBLES, "double"),
        **lists,
        **dict.fromkeys(FLOAT_LISTS, "list<double>"),
        **dict.fromkeys(TIMES, "timestamp"),
        **dict.fromkeys(MAPS, "map<string, double>"),
    }


def features(count: int, *, maps: bool = True) -> list[Feature]:
    """The first `count` features over as many blocks as they take; without maps, crosses in place
    of lookups.
    """
    made = (feature for block in itertools.count() for feature in _features_of_block(block, maps))
    return list(itertools.islice(made, count))


def num_blocks(count: int) -> int:
    """How many blocks of columns so many features read."""
    return -(-count // NUM_FEATURES_PER_BLOCK)


def spec_of(chosen: list[Feature], rows_per_file: int) -> dict[str, Any]:
    """The spec document with these features as slots; the row's number is kept."""
    inputs = {
        f"{name}_{block}": kind
        for block in range(num_blocks(len(chosen)))
        for name, kind in kinds_of_block().items()
    }
    return {
        "spec": 1,
        "inputs": {ROW_ID: "long", **inputs},
        "keep": [ROW_ID],
        # Neither statistics nor texts of values: the other sides make none of them.
        "output": {"rows_per_file": rows_per_file, "statistics": False},
        "values": "none",
        "slots": [feature.entry() for feature in chosen],
    }


def write_raw(directory: Path, num_rows: int, num_files: int, blocks: int) -> None:
    """`num_files` equally long files of Parquet below `directory`; nothing is done where that
    exists.
    """
    if directory.exists():
        return
    directory.mkdir(parents=True)
    per_file = num_rows // num_files
    for number in range(num_files):
        first, last = number * per_file, (number + 1) * per_file
        tables = (
            _table(start, min(start + BLOCK_ROWS, last) - start, blocks)
            for start in range(first, last, BLOCK_ROWS)
        )
        head = next(tables)
        with pq.ParquetWriter(
            directory / f"part-{number:03d}.parquet", head.schema, compression="snappy"
        ) as writer:
            for table in itertools.chain([head], tables):
                writer.write_table(table)


def _features_of_block(block: int, maps: bool) -> Iterator[Feature]:
    kinds = kinds_of_block()
    first = 1 + block * NUM_FEATURES_PER_BLOCK
    for number, (op, names, params) in enumerate(
        itertools.chain(_hashed(), _counted(), _looked_up(maps)), first
    ):
        of = tuple(f"{name}_{block}" for name in names)
        yield Feature(
            number=number, op=op, of=of, kinds=tuple(kinds[name] for name in names), params=params
        )


def _hashed() -> Iterator[Entry]:
    for name in (*TEXTS, *LONGS):
        yield "hash", (name,), {}
    for name in LISTS:
        yield "hash", (name,), {"max_len": MAX_LEN}
    for name in CROSSED_WITH_USER:
        yield "cross", ("user", name), {}
    for members in CROSSED:
        yield "cross", members, {}


def _counted() -> Iterator[Entry]:
    for name in DOUBLES:
        yield "bucketize", (name,), {"boundaries": list(BOUNDARIES)}
    for name in ("price", "dwell", "distance", "visits"):
        yield "log1p", (name,), {}
    for name in ("score", "rating"):
        yield "clip", (name,), {"min": -1.0, "max": 5.0}
    for name in ("price", "score", "age", "visits"):
        yield "identity", (name,), {}


def _looked_up(maps: bool) -> Iterator[Entry]:
    for name, key in MAPS.items():
        yield ("lookup", (name, key), {}) if maps else ("cross", ("session", key), {})
    for name in FLOAT_LISTS:
        yield "combine", (name,), {"by": "mean"}
        yield "identity", (name,), {"max_len": MAX_LEN}
    yield "length", ("tags",), {}
    yield "length", ("history",), {}
    yield "hour", ("ts",), {}
    yield "day_of_week", ("ts",), {}
    yield "time_since", TIMES, {"unit": "hour"}


def _table(first: int, num_rows: int, blocks: int) -> pa.Table:
    """The rows `first ... first + num_rows - 1` of the log."""
    rng = np.random.default_rng([7, first])
    columns: dict[str, Any] = {ROW_ID: np.arange(first, first + num_rows)}
    for block in range(blocks):
        columns |= {f"{name}_{block}": column for name, column in _block(rng, num_rows).items()}
    return pa.table(columns)


def _block(rng: np.random.Generator, num_rows: int) -> dict[str, pa.Array]:
    start = np.datetime64("2026-11-01", "us").astype(np.int64)
    columns: dict[str, pa.Array] = {}
    for name, count in TEXTS.items():
        columns[name] = _names(name, _zipf(rng, num_rows, count), rng.random(num_rows) < 0.03)
    for name, count in LONGS.items():
        columns[name] = pa.array(rng.integers(0, count, num_rows), mask=rng.random(num_rows) < 0.02)
    for name, mean in DOUBLES.items():
        columns[name] = pa.array(
            np.exp(rng.normal(mean, 1.0, num_rows)).round(3), mask=rng.random(num_rows) < 0.03
        )
    for name, (prefix, count, mean) in LISTS.items():
        offsets = _offsets(rng, num_rows, mean)
        ids = _zipf(rng, int(offsets[-1]), count)
        columns[name] = _lists(
            rng, offsets, pa.array(ids) if prefix is None else _names(prefix, ids, None)
        )
    for name, mean in FLOAT_LISTS.items():
        offsets = _offsets(rng, num_rows, mean)
        columns[name] = _lists(rng, offsets, pa.array(rng.random(int(offsets[-1])).round(4) * 100))
    for name in TIMES:
        columns[name] = pa.array(start + rng.integers(0, 7 * 86_400_000_000, num_rows), TIMESTAMP)
    for name, key in MAPS.items():
        columns[name] = _maps(rng, num_rows, key)
    return columns


def _maps(rng: np.random.Generator, num_rows: int, key: str) -> pa.MapArray:
    """Three different keys a row, out of those that are most frequent."""
    keys = (rng.integers(0, 4, num_rows)[:, None] + np.array([0, 4, 8])).reshape(-1)
    offsets = pa.array(np.arange(num_rows + 1) * 3, pa.int32())
    return pa.MapArray.from_arrays(
        offsets, _names(key, keys, None), pa.array(rng.random(3 * num_rows).round(4))
    )


def _offsets(rng: np.random.Generator, num_rows: int, mean: int) -> np.ndarray[Any, Any]:
    lengths = np.minimum(rng.geometric(1 / (mean + 1), num_rows) - 1, 2 * MAX_LEN)
    return np.concatenate([[0], np.cumsum(lengths)])


def _lists(rng: np.random.Generator, offsets: np.ndarray[Any, Any], values: pa.Array) -> pa.Array:
    missing = pa.array(rng.random(len(offsets) - 1) < 0.02)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, mask=missing)


def _names(
    prefix: str, ids: np.ndarray[Any, Any], missing: np.ndarray[Any, Any] | None
) -> pa.Array:
    return pc.binary_join_element_wise(
        pa.scalar(f"{prefix}_"), pa.array(ids, mask=missing).cast(pa.string()), ""
    )


def _zipf(rng: np.random.Generator, size: int, count: int) -> np.ndarray[Any, Any]:
    ids: np.ndarray[Any, Any] = np.exp(rng.random(size) * np.log(count + 1.0)).astype(np.int64) - 1
    return ids.clip(max=count - 1)
