"""The raw log that pages speak of: seven days of impressions, with clicks and users in logs of
their own.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NUM_ROWS = 400
DAYS = tuple(f"2026-11-0{day}" for day in range(1, 8))


def impressions(day: str) -> pa.Table:
    """One day of the log, with the columns of the spec of docs/extract.md."""
    draw = np.random.default_rng(int(day[-1]))
    numbers = np.arange(NUM_ROWS)
    ts = np.datetime64(f"{day}T00:00", "us") + numbers * np.timedelta64(200, "s")
    return pa.table(
        {
            "request_id": [f"r-{day[-1]}-{number}" for number in numbers],
            "user_id": [f"u{number}" for number in draw.integers(40, size=NUM_ROWS)],
            "item_id": [f"i{number}" for number in draw.integers(20, size=NUM_ROWS)],
            "tags": [[f"t{tag}" for tag in range(number % 4)] for number in numbers],
            "price": draw.uniform(1, 300, size=NUM_ROWS),
            "ts": pa.array(ts, pa.timestamp("us")),
            "clicked": draw.integers(2, size=NUM_ROWS),
        }
    )


def write_raw(directory: Path) -> None:
    """Writes `raw/dt=.../log.parquet` for each day, and the logs that are joined into one."""
    for day in DAYS:
        _write(impressions(day), directory / f"raw/dt={day}/log.parquet")
    shown = impressions(DAYS[0]).drop_columns(["clicked", "tags"])
    soon = pa.array(shown["ts"].to_numpy() + np.timedelta64(5, "s"), pa.timestamp("us"))
    shown = shown.append_column("logged", soon)
    _write(shown, directory / f"logs/impressions/dt={DAYS[0]}/log.parquet")
    clicks = shown.select(["request_id", "item_id", "ts", "logged"]).take(
        list(range(0, NUM_ROWS, 5))
    )
    _write(clicks, directory / "logs/clicks/log.parquet")
    users = pa.table(
        {
            "user_id": [f"u{number}" for number in range(40)],
            "updated": pa.array([np.datetime64("2026-10-30", "us")] * 40, pa.timestamp("us")),
            "age": list(range(20, 60)),
            "country": ["de", "fr"] * 20,
        }
    )
    _write(users, directory / "logs/users/log.parquet")


def _write(rows: pa.Table, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path)
