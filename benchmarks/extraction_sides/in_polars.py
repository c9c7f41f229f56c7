"""The features in one polars process, as one writes them there: lazily, hashed by the plugin
polars-hash.

The plugin makes h(value). What it cannot make is the chained sign, whose seed differs from row to
row: as polars expressions that takes 65 ns a value, so numpy does it here, in blocks, in 5.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import polars_hash  # noqa: F401  (registers the namespace `nchash`)
import pyarrow as pa

from extraction_sides.workload import MASK, ROW_ID, Feature
from featstore.ops.hashing import SEED, _hash_int

Words = np.ndarray[Any, np.dtype[np.uint64]]

_BLOCK_ROWS = 16_384  # the temporaries of a block fit into the L2 cache
# Primes 1 to 5 of XXH64.
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        *(0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9),
        *(0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5),
    )
)
_HOUR_US = 3_600_000_000


def write_features(raw_url: str, out_url: str, chosen: list[Feature]) -> None:
    """One lazy query from Parquet to Parquet; a column is hashed once, as in featstore."""
    hashed = {
        name: kind
        for feature in chosen
        if feature.op in ("hash", "cross")
        for name, kind in zip(feature.of, feature.kinds, strict=True)
    }
    frame = pl.scan_parquet(f"{raw_url}/*.parquet").with_columns(
        **{f"h_{name}": _value_hash(name, kind) for name, kind in hashed.items()}
    )
    columns = {feature.name: _EXPRESSIONS[feature.op](feature) for feature in chosen}
    frame.select(**columns, request_id=pl.col(ROW_ID)).sink_parquet(
        out_url, compression="snappy", mkdir=True
    )


def _value_hash(name: str, kind: str) -> pl.Expr:
    if not kind.startswith("list"):
        return _hash_text(pl.col(name), kind)
    return pl.col(name).list.eval(_hash_text(pl.element(), kind))


def _hash_text(value: pl.Expr, kind: str) -> pl.Expr:
    text = value.cast(pl.String) if "string" not in kind else value
    hashed: pl.Expr = text.nchash.xxhash64(seed=SEED)
    return hashed


def _hash(feature: Feature) -> pl.Expr:
    if not feature.is_list:
        return _signs(feature.number, [pl.col(f"h_{feature.of[0]}")])
    return _list_signs(
        feature.number, pl.col(f"h_{feature.of[0]}").list.head(feature.params["max_len"]), [], 0
    )


def _cross(feature: Feature) -> pl.Expr:
    hashes = [pl.col(f"h_{name}") for name in feature.of]
    if not feature.is_list:
        return _signs(feature.number, hashes)
    at = next(i for i, kind in enumerate(feature.kinds) if kind.startswith("list"))
    lists = hashes.pop(at)
    return _list_signs(feature.number, lists, hashes, at)


def _signs(number: int, hashes: list[pl.Expr]) -> pl.Expr:
    def chain(columns: Any) -> pl.Series:
        return pl.Series(_chained(number, [_words(column) for column in columns]))

    signs = pl.map_batches(hashes, chain, return_dtype=pl.Int64, is_elementwise=True)
    return pl.when(pl.all_horizontal(h.is_not_null() for h in hashes)).then(signs).otherwise(0)


def _list_signs(number: int, lists: pl.Expr, scalars: list[pl.Expr], at: int) -> pl.Expr:
    """Signs of each element with the row's scalars; `at` is the list's place among the members."""

    def chain(columns: Any) -> pl.Series:
        array = columns[0].to_arrow()
        offsets, values = array.offsets.to_numpy(), array.values.to_numpy(zero_copy_only=False)
        members = [np.repeat(_words(column), np.diff(offsets)) for column in columns[1:]]
        members.insert(at, values[offsets[0] : offsets[-1]])
        signs = pa.array(_chained(number, members))
        return pl.Series(
            pl.from_arrow(pa.LargeListArray.from_arrays(pa.array(offsets - offsets[0]), signs))
        )

    filled = [lists.fill_null([]), *scalars]
    signs = pl.map_batches(filled, chain, return_dtype=pl.List(pl.Int64), is_elementwise=True)
    known = pl.all_horizontal(column.is_not_null() for column in [lists, *scalars])
    return pl.when(known).then(signs).otherwise(pl.lit([0], pl.List(pl.Int64)))


def _words(column: pl.Series) -> Words:
    """The column without nulls: numpy would make floats of integers with them."""
    words: Words = column.cast(pl.UInt64).fill_null(0).to_numpy()
    return words


def _chained(number: int, members: list[Words]) -> np.ndarray[Any, np.dtype[np.int64]]:
    signs = np.empty(len(members[0]), np.uint64)
    for start in range(0, len(signs), _BLOCK_ROWS):
        chained: Any = np.uint64(_hash_int(number))
        for member in members:
            chained = _hash_longs(member[start : start + _BLOCK_ROWS], chained)
        np.bitwise_and(chained, np.uint64(MASK), out=signs[start : start + _BLOCK_ROWS])
    signs[signs == 0] = 1
    return signs.view(np.int64)


def _hash_longs(values: Words, seed: Words | np.uint64) -> Words:
    """XXH64 of 8 bytes each, with one seed, or one for each value."""
    # The sum of scalars wraps around, which numpy reports for scalars though not for arrays.
    with np.errstate(over="ignore"):
        hashes = np.empty(len(values), np.uint64)
        hashes[:] = seed + (_P5 + np.uint64(8))
    words = _rotate(values * _P2, 31)
    words *= _P1
    words ^= hashes
    hashes = _rotate(words, 27)
    hashes *= _P1
    hashes += _P4
    hashes ^= hashes >> np.uint64(33)
    hashes *= _P2
    hashes ^= hashes >> np.uint64(29)
    hashes *= _P3
    hashes ^= hashes >> np.uint64(32)
    return hashes


def _rotate(words: Words, bits: int) -> Words:
    """`words`, which is overwritten, rotated to the left."""
    high = words << np.uint64(bits)
    words >>= np.uint64(64 - bits)
    high |= words
    return high


def _signed(number: int, value: pl.Expr) -> pl.Expr:
    return _signs(number, [_hash_text(value, "long")])


def _bucketize(feature: Feature) -> pl.Expr:
    bounds = np.array(feature.params["boundaries"])

    def buckets(column: pl.Series) -> pl.Series:
        return pl.Series(np.searchsorted(bounds, column.to_numpy(), side="right").astype(np.int64))

    value = pl.col(feature.of[0])
    found = value.fill_null(0).map_batches(buckets, return_dtype=pl.Int64, is_elementwise=True)
    return _signed(feature.number, pl.when(value.is_not_null()).then(found))


def _float(value: pl.Expr) -> pl.Expr:
    return value.cast(pl.Float32).fill_null(float("nan"))


def _identity(feature: Feature) -> pl.Expr:
    value = pl.col(feature.of[0])
    if not feature.is_list:
        return _float(value)
    missing = pl.lit([float("nan")], pl.List(pl.Float32))
    return value.list.head(feature.params["max_len"]).cast(pl.List(pl.Float32)).fill_null(missing)


_EXPRESSIONS: dict[str, Callable[[Feature], pl.Expr]] = {
    "hash": _hash,
    "cross": _cross,
    "bucketize": _bucketize,
    "identity": _identity,
    "clip": lambda feature: _float(
        pl.col(feature.of[0]).clip(feature.params["min"], feature.params["max"])
    ),
    "log1p": lambda feature: _float(pl.col(feature.of[0]).log1p()),
    "hour": lambda feature: _signed(feature.number, pl.col(feature.of[0]).dt.hour()),
    "day_of_week": lambda feature: _signed(feature.number, pl.col(feature.of[0]).dt.weekday() - 1),
    "combine": lambda feature: _float(pl.col(feature.of[0]).list.mean()),
    "length": lambda feature: _signed(feature.number, pl.col(feature.of[0]).list.len()),
    "time_since": lambda feature: _float(
        (pl.col(feature.of[0]) - pl.col(feature.of[1])).dt.total_microseconds() / _HOUR_US
    ),
}
