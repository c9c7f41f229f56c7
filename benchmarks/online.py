"""How long one request takes: `Extractor.one(dict)` and small batches, without Spark and without
torch.

Checks first that a request gives the values that a batch of all rows gives. Ends with one line
`RESULT {json}`; exit code 1 if values differ, or if Spark or torch was imported.
"""

import argparse
import datetime
import functools
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from featstore.extraction.units.extractor import Extractor
from featstore.spec.model import TIMESTAMP
from featstore.spec.parse import load_spec
from shared_parts.machine import print_result

DEMO = Path(__file__).parents[1] / "featstore" / "tools"
SMALL: dict[str, Any] = {
    "spec": 1,
    "inputs": {"user": "string", "item": "long", "tags": "list<string>", "price": "double"},
    "slots": [
        {"slot": 1, "name": "user_id", "op": "hash", "of": "user"},
        {"slot": 2, "name": "item_id", "op": "hash", "of": "item"},
        {"slot": 3, "name": "tag_ids", "op": "hash", "of": "tags", "max_len": 5},
        {"slot": 4, "name": "user_x_item", "op": "cross", "of": ["user", "item"]},
        {"slot": 5, "name": "price_log", "op": "log1p", "of": "price"},
    ],
}
SPECS: dict[str, Any] = {
    "small": SMALL,
    "synthetic": DEMO / "synthetic.spec.yaml",
    "flights": DEMO / "flights.spec.yaml",
}
BATCH_ROWS = (1, 16, 64, 1024)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="fewer repetitions")
    num_repeats = 20 if parser.parse_args().small else 200
    figures = {
        name: _measure(name, Extractor(load_spec(source)), num_repeats)
        for name, source in SPECS.items()
    }
    heavy = sorted({"torch", "pyspark"} & sys.modules.keys())
    ok = not heavy and all(figure["same_values"] for figure in figures.values())
    print_result({"ok": ok, "heavy_modules": heavy, "specs": figures})
    return 0 if ok else 1


def _measure(name: str, extractor: Extractor, num_repeats: int) -> dict[str, Any]:
    """Microseconds per request, the median over repetitions."""
    draw = random.Random(0)
    inputs = {column: extractor.spec.inputs[column] for column in extractor.input_columns}
    rows = [
        {column: _value(draw, type_) for column, type_ in inputs.items()}
        for _ in range(max(BATCH_ROWS))
    ]
    raw = pa.RecordBatch.from_pylist(rows, schema=pa.schema(list(inputs.items())))
    figures: dict[str, Any] = {
        "num_slots": len(extractor.schema.slots),
        "one_us": _median_us(lambda: extractor.one(rows[0]), num_repeats),
    }
    for num_rows in BATCH_ROWS:
        spent_us = _median_us(functools.partial(extractor, raw.slice(0, num_rows)), num_repeats)
        figures[f"batch_{num_rows}_us_per_row"] = round(spent_us / num_rows, 1)
    together = extractor(raw).to_pylist()
    figures["same_values"] = repr([extractor.one(row) for row in rows[:100]]) == repr(
        together[:100]
    )
    print(f"{name}: {figures}")
    return figures


def _median_us(call: Callable[[], object], num_repeats: int) -> float:
    call()
    seconds = []
    for _ in range(num_repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return round(statistics.median(seconds) * 1e6, 1)


def _value(draw: random.Random, arrow_type: pa.DataType) -> Any:
    if pa.types.is_list(arrow_type):
        return [_value(draw, arrow_type.value_type) for _ in range(draw.randrange(8))]
    if draw.random() < 0.05:
        return None
    if arrow_type == TIMESTAMP:
        return datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC) + datetime.timedelta(
            seconds=draw.randrange(10**6)
        )
    values: dict[Any, Any] = {
        pa.string(): f"value_{draw.randrange(10**6)}",
        pa.int64(): draw.randrange(10**6),
    }
    return values.get(arrow_type, draw.random() * 100)


if __name__ == "__main__":
    sys.exit(main())
