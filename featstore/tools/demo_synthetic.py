"""A synthetic click log of any size: Zipf-distributed ids, multi-valued tags, a behaviour sequence,
and a planted signal.

Rows are drawn in blocks of fixed size, each from its own random generator. So a row depends only on
the seed, its position and the number of rows, and memory does not grow with the log. Properties of
entities (an item's shop, price and tags, a user's favourite category) are hashes of the id and are
not stored.

The signal: users differ in how often they click, and items in how often they are clicked. A user
clicks more often in the favourite category, on items that resemble the behaviour sequence, on cheap
items, and in the evening.
"""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featstore.base.splitmix import mixed
from featstore.files import storage
from featstore.tools.demo_raw_log import RawLog, write_raw_file

BLOCK_ROWS = 32_768
NUM_USERS = 1_000_000
NUM_ITEMS = 200_000
NUM_SHOPS = 5_000
NUM_CATEGORIES = 40
NUM_TAGS = 3_000
MAX_TAGS = 6
MAX_HISTORY = 50
MEAN_HISTORY = 10
NUM_DAYS = 7
FIRST_DAY = datetime.date(2026, 11, 1)
PARTITION_KEY = "dt"

RAW_SCHEMA = pa.schema(
    [
        ("request_id", pa.int64()),
        ("user_id", pa.string()),
        ("item_id", pa.int64()),
        ("shop", pa.string()),
        ("category", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("history", pa.list_(pa.int64())),
        ("price", pa.float64()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("clicked", pa.int64()),
    ]
)

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_MICROSECONDS_PER_DAY = 86_400_000_000


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """A block of rows as numpy arrays: entity ids, and the sequence as values and offsets."""

    user: Ids
    item: Ids
    history: Ids
    offsets: Ids
    price: Floats
    hour: Floats


def write_click_log(
    directory: Path,
    num_rows: int,
    *,
    seed: int = 0,
    num_days: int = NUM_DAYS,
    rows_per_file: int = 1_048_576,
) -> RawLog:
    """Writes a click log, spread evenly over directories `dt=YYYY-MM-DD/`.

    Args:
        directory: Where to write.
        num_rows: The number of rows, at least one for each day.
        seed: The same seed gives the same log.
        num_days: The number of days.
        rows_per_file: The most rows per file.
    """
    # Row `i` is of day `i * num_days // num_rows`, so a day begins at the quotient rounded up.
    starts = [-(-num_rows * day // num_days) for day in range(num_days + 1)]
    parts = [
        (day, part, first, min(first + rows_per_file, starts[day + 1]))
        for day in range(num_days)
        for part, first in enumerate(range(starts[day], starts[day + 1], rows_per_file))
    ]
    size_bytes = 0
    for day, part, first, last in parts:
        name = f"{PARTITION_KEY}={FIRST_DAY + datetime.timedelta(days=day)}"
        tables = _tables(first, last, (num_days, num_rows), seed)
        url = storage.join(str(directory), name, f"clicks-{part:05d}.parquet")
        size_bytes += write_raw_file(url, tables, RAW_SCHEMA)
    return RawLog(
        url=str(directory), num_rows=num_rows, num_files=len(parts), size_bytes=size_bytes
    )


def _tables(first: int, last: int, days_of_rows: tuple[int, int], seed: int) -> Iterator[pa.Table]:
    """Yields rows `first` to `last` (exclusive) of a log, at most a block at a time."""
    for block in range(first // BLOCK_ROWS, (last - 1) // BLOCK_ROWS + 1):
        start = block * BLOCK_ROWS
        rows = slice(max(first - start, 0), min(last - start, BLOCK_ROWS))
        yield _block(block, days_of_rows, seed).slice(rows.start, rows.stop - rows.start)


def _block(block: int, days_of_rows: tuple[int, int], seed: int) -> pa.Table:
    """A whole block, even if the log ends within it."""
    rng = np.random.default_rng([seed, block])
    position = np.arange(block * BLOCK_ROWS, (block + 1) * BLOCK_ROWS, dtype=np.int64)
    num_days, num_rows = days_of_rows
    day = position * num_days / num_rows
    rows = _draw(rng, day % 1.0)
    clicked = rng.random(BLOCK_ROWS) < _click_rate(rows)
    start = np.datetime64(FIRST_DAY, "us").astype(np.int64)
    columns = {
        "request_id": position,
        "ts": pa.array(
            start + (day * _MICROSECONDS_PER_DAY).astype(np.int64), RAW_SCHEMA.field("ts").type
        ),
        "clicked": clicked.astype(np.int64),
        **_columns(rows, rng),
    }
    return pa.table({field.name: columns[field.name] for field in RAW_SCHEMA}, RAW_SCHEMA)


def _draw(rng: np.random.Generator, share_of_day: Floats) -> _Rows:
    user, item = _zipf(rng.random(BLOCK_ROWS), NUM_USERS), _zipf(rng.random(BLOCK_ROWS), NUM_ITEMS)
    lengths = np.minimum(rng.geometric(1 / (MEAN_HISTORY + 1), BLOCK_ROWS) - 1, MAX_HISTORY)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    seen = _zipf(rng.random(offsets[-1]), NUM_ITEMS)
    favourite = np.repeat(_favourite(user), lengths)
    history = np.where(rng.random(len(seen)) < 0.5, seen - seen % NUM_CATEGORIES + favourite, seen)
    price = np.exp(1.0 + 3.0 * _uniform(item, salt=3)) * rng.uniform(0.8, 1.0, BLOCK_ROWS)
    return _Rows(
        user=user,
        item=item,
        history=history,
        offsets=offsets,
        price=price,
        hour=share_of_day * 24.0,
    )


def _click_rate(rows: _Rows) -> Floats:
    category = rows.item % NUM_CATEGORIES
    resembles = (
        rows.history % NUM_CATEGORIES == np.repeat(category, np.diff(rows.offsets))
    ).astype(np.float64)
    before = np.concatenate([[0.0], np.cumsum(resembles)])[rows.offsets]
    logit = (
        -3.2
        + 1.5 * (_uniform(rows.user, salt=1) - 0.5)
        + 2.5 * (_uniform(rows.item, salt=2) - 0.5)
        + 1.5 * (category == _favourite(rows.user))
        + 0.8 * np.minimum(np.diff(before), 3.0)
        - 0.4 * (np.log(rows.price) - 2.5)
        + 0.5 * (rows.hour >= 18.0)
    )
    return np.asarray(1.0 / (1.0 + np.exp(-logit)))


def _columns(rows: _Rows, rng: np.random.Generator) -> dict[str, pa.Array]:
    no_user, no_price, no_tags = (rng.random((3, BLOCK_ROWS)).T < [0.01, 0.03, 0.02]).T
    tags, tag_offsets = _tags(rows.item)
    return {
        "user_id": _names("u", rows.user, no_user),
        "item_id": pa.array(rows.item),
        "shop": _names("s", _zipf(_uniform(rows.item, salt=4), NUM_SHOPS)),
        "category": _names("c", rows.item % NUM_CATEGORIES),
        "tags": _lists(tag_offsets, _names("t", tags), no_tags),
        "history": _lists(rows.offsets, pa.array(rows.history)),
        "price": pa.array(rows.price.round(2), mask=no_price),
    }


def _tags(item: Ids) -> tuple[Ids, Ids]:
    lengths = (_uniform(item, salt=5) * (MAX_TAGS + 1)).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    return _zipf(_uniform(np.repeat(item, lengths) * MAX_TAGS + within, salt=6), NUM_TAGS), offsets


def _names(prefix: str, ids: Ids, missing: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    return pc.binary_join_element_wise(
        pa.scalar(prefix), pa.array(ids, mask=missing).cast(pa.string()), ""
    )


def _lists(
    offsets: Ids, values: pa.Array, missing: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    mask = None if missing is None else pa.array(missing)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, mask=mask)


def _favourite(user: Ids) -> Ids:
    return (_uniform(user, salt=7) * NUM_CATEGORIES).astype(np.int64)


def _zipf(uniform: Floats, count: int) -> Ids:
    """Ids from 0 to `count` - 1 where id k has a share close to 1 / (k + 1): Zipf's law with
    exponent 1, by inversion.
    """
    ids: Ids = np.exp(uniform * np.log(count + 1.0)).astype(np.int64) - 1
    return ids.clip(max=count - 1)


def _uniform(ids: Ids, *, salt: int) -> Floats:
    """A fixed pseudo-random number in [0, 1) for each id, with the finalizer of SplitMix64 (Steele,
    Lea and Flood, 2014).
    """
    words = ids.astype(np.uint64) * np.uint64(2) + np.uint64(1)
    words = words * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt * 0x632BE59BD9B4E019 % 2**64)
    return np.asarray(mixed(words) >> np.uint64(11), np.float64) * 2.0**-53
