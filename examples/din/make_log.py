"""Writes a log of impressions and one of clicks: `python make_log.py [num_users]`.

A user's interest is a category, which changes every few days. What they click is mostly of it, so
their last clicks say what they will click next. Users also differ in how often they click, and
items in quality.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FIRST_DAY, NUM_DAYS, DAYS_WITH_ROWS = np.datetime64("2026-11-01", "us"), 28, 4
NUM_ITEMS, NUM_CATEGORIES, DAYS_OF_INTEREST = 1_000, 20, 4
CLICKS_A_DAY, DAY_S = 2, 86_400


def columns_of(users: np.ndarray, seconds: np.ndarray, items: np.ndarray) -> dict[str, pa.Array]:
    """Columns that both logs have."""
    return {
        "user_id": pa.array([f"user {user}" for user in users]),
        "item_id": pa.array([f"item {item}" for item in items]),
        "category_id": pa.array([f"category {item % NUM_CATEGORIES}" for item in items]),
        "ts": pa.array(FIRST_DAY + (seconds * 1e6).astype("m8[us]"), pa.timestamp("us", "UTC")),
    }


def make_log(directory: Path, num_users: int, *, impressions_a_day: int = 6, seed: int = 1) -> None:
    """Writes `raw/dt=.../rows.parquet`, the impressions of the last days, and `clicks.parquet`."""
    rng = np.random.default_rng(seed)
    quality, habit = rng.normal(0, 0.5, NUM_ITEMS), rng.normal(0, 0.5, num_users)
    interests = rng.integers(0, NUM_CATEGORIES, (num_users, NUM_DAYS // DAYS_OF_INTEREST + 2))
    shifts = rng.uniform(0, DAYS_OF_INTEREST, num_users)  # not all change on the same day

    def visits(rate: float, first_day: int, share: float) -> tuple[np.ndarray, ...]:
        """Users, times, and items, so many of which are of the user's interest at the time."""
        users = np.repeat(
            np.arange(num_users), rng.poisson(rate * (NUM_DAYS - first_day), num_users)
        )
        days = rng.uniform(first_day, NUM_DAYS, len(users))
        interest = interests[users, ((days + shifts[users]) / DAYS_OF_INTEREST).astype(int)]
        items = rng.integers(0, NUM_ITEMS, len(users))
        of_interest = rng.random(len(users)) < share
        items[of_interest] += interest[of_interest] - items[of_interest] % NUM_CATEGORIES
        return users, days * DAY_S, items % NUM_ITEMS, interest

    users, seconds, items, interest = visits(impressions_a_day, NUM_DAYS - DAYS_WITH_ROWS, 0.3)
    logit = quality[items] + habit[users] + 3.0 * (items % NUM_CATEGORIES == interest) - 2.0
    clicked = rng.random(len(users)) < 1 / (1 + np.exp(-logit))
    order = np.argsort(seconds)
    rows = pa.table(columns_of(users, seconds, items) | {"clicked": clicked.astype(np.int64)})
    rows = rows.take(order)
    day_of = (seconds[order] // DAY_S).astype(int)
    for day in np.unique(day_of):
        path = directory / "raw" / f"dt={FIRST_DAY.astype('M8[D]') + day}" / "rows.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows.filter(pa.array(day_of == day)), path)

    # A click on an impression comes ten seconds after it. Others come from elsewhere on the site.
    of_rows = users[clicked], seconds[clicked] + 10, items[clicked]
    elsewhere = visits(CLICKS_A_DAY, 0, 0.8)[:3]
    both = [np.concatenate(pair) for pair in zip(of_rows, elsewhere, strict=True)]
    pq.write_table(pa.table(columns_of(*both)), directory / "clicks.parquet")


if __name__ == "__main__":
    make_log(Path(), int(sys.argv[1]) if len(sys.argv) > 1 else 600)
