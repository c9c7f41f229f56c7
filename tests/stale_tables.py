"""Tables with a slot group, whose base files another engine rewrites."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

import featstore
from featstore.spec.parse import load_spec
from tests.parquet_files import put_parquet

DAYS = ("1", "2")
ROWS_PER_DAY = 50
N = {"slot": 1, "name": "n", "op": "identity", "of": "n"}
X = {"slot": 2, "name": "x", "op": "identity", "of": "x"}
Y = {"slot": 3, "name": "y", "op": "identity", "of": "y"}

REWRITES: dict[str, Callable[[DeltaTable], object]] = {
    "delete": lambda table: table.delete("n = 101"),
    "update": lambda table: table.update({"n": "n + 1000"}, predicate="n < 110"),
    "optimize": lambda table: table.optimize.compact(),
    "z-order": lambda table: table.optimize.z_order(["n"]),
}


def spec_of(*slots: dict[str, Any]) -> Any:
    return load_spec(
        {
            "spec": 1,
            "inputs": dict.fromkeys(("n", "id", "clicked"), "long")
            | {"x": "double", "y": "double"},
            "labels": {"click": "clicked"},
            "keep": ["id"],
            "slots": list(slots),
            "output": {"rows_per_row_group": 10, "rows_per_file": 20},
        }
    )


def write_raw(raw: Path, clicked: int) -> Path:
    """Two days of rows, n and id from 100 or 200, in `day=` directories."""
    for day in DAYS:
        first, last = int(day) * 100, int(day) * 100 + ROWS_PER_DAY
        columns: dict[str, Any] = {"n": range(first, last), "id": range(first, last)}
        columns |= {name: [float(n) for n in columns["n"]] for name in ("x", "y")}
        columns |= {"clicked": [clicked] * ROWS_PER_DAY}
        put_parquet(raw / f"day={day}" / "r.parquet", {k: list(v) for k, v in columns.items()})
    return raw


def make(root: Path) -> str:
    """A table of two days of 50 rows, three files each: slot `n` in the base, and `x`, which is as
    `n`, in the group `more`. Raw rows are in `raw`.
    """
    raw, url = write_raw(root / "raw", 0), str(root / "table")
    featstore.extract(spec_of(N), raw, url, partition_from_path=["day"])
    add(root, N, X)
    return url


def add(root: Path, *slots: dict[str, Any], day: str | None = None, key: str | None = None) -> Any:
    """Extracts the group `more`: those of the slots that the files lack."""
    one = {"partition": {"day": day}} if day else {"partition_from_path": ["day"]}
    raw = root / "raw" / f"day={day}" if day else root / "raw"
    more: dict[str, Any] = {"group": "more", "key": key, **one}
    return featstore.extract(spec_of(*slots), raw, root / "table", **more)


def rewrite(url: str, how: str) -> None:
    """Rewrites base files of day 1, or of both, as another engine does."""
    REWRITES[how](DeltaTable(url))
