"""Histories stored once against rows that have their lists (fat rows): bytes, CPU of extraction and
of reading, memory, and whether all values are the same.

A log of 93 days, 20,000 users and 20 million events, and the impressions of its last day, 22 of
each user who has any; with `--small` histories of a quarter of the users are stored. Fat rows are extracted from raw lists that `histories_parts/log.py` looks up, as a join has
to; what that takes is not counted. They are the first ones of the day, as many as hold the values
that fit into memory; bytes of the day are those of a row times its rows. CPU seconds are those of
all threads of a process that has extracted some rows before, or read a round; readers in turn. Ends
with one line `RESULT {json}`; exit code 1 if a demanded figure is missed.

    python benchmarks/histories.py [--small]
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

import featstore
from featstore.ops.lists import offsets_from, ranges_of
from histories_parts.log import Log, Rows, by_user, hours, make_log, thinned
from loader_parts import measuring
from shared_parts.machine import print_result

LENGTHS, CODECS = (100, 1_000, 4_000), ("snappy", "zstd")
LISTS = ("clicks_item", "clicks_category", "clicks_age")
BATCH_SIZE, BUDGET, PEAK_BUDGET_BYTES = 2_048, "6GB", 1 << 30
# Of fat rows, so that a row group of the longest is no larger than a window of the budget.
FAT_ROW_GROUP = 8_192
PER_USER, HOURS, DAYS = (5, 2), (2, 8, 14, 20), (1, 7, 90)
# Demanded, by `LENGTHS`.
LEAST_BYTES_RATIO, MOST_CPU_RATIO, LEAST_SPEED = (10, 25, 45), (0.5, 0.15, 0.05), (1.5, 2.5, 2.5)


class Size(NamedTuple):
    """How much is measured.

    Attributes:
        share: Histories are stored of this part of the users.
        num_values: The values of all lists of fat rows.
        rounds: How often readers take turns.
    """

    share: int
    num_values: int
    rounds: int


NUM_USERS, NUM_EVENTS, NUM_ROWS, ROWS_OF_USER = 20_000, 20_000_000, 336_304, 22
WHOLE = Size(1, 24_000_000, 7)
SMALL = Size(4, 5_000_000, 3)
# A row group of each of two files is mixed, twelve files, or all rows.
ORDERS: Mapping[str, Mapping[str, Any]] = {
    "in_order": {},
    "two_files": {"shuffle": {"window_rows": 1, "interleave": 2}},
    "mixed": {"shuffle": True},
    "global": {"shuffle": {"window_rows": NUM_ROWS, "interleave": 64}},
}
# Of each run of a reader at least, in several epochs of fat rows: each run begins with a loader
# whose memory is new.
READ_VALUES = 60_000_000


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where a demanded one is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="histories of a quarter of the users")
    parser.add_argument("--what", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.what is not None:
        what, *of = arguments.what
        print(json.dumps(_CHILDREN[what](*of)))
        return 0
    size = SMALL if arguments.small else WHOLE
    with tempfile.TemporaryDirectory() as name:
        found = _measured(Path(name), size)
    checks = {
        "equal": all(
            of["equal"]["num_rows"] == of["rows_in_both"] > 0 for of in found["lengths"].values()
        ),
        "peak": all(of["peak_bytes"] <= PEAK_BUDGET_BYTES for of in found["lengths"].values()),
    }
    bounds = zip(LEAST_BYTES_RATIO, MOST_CPU_RATIO, LEAST_SPEED, strict=True)
    for (length, of), (least_ratio, most_cpu, least_speed) in zip(
        found["lengths"].items(), bounds, strict=True
    ):
        for codec in CODECS:
            checks[f"bytes_{codec}_{length}"] = of["bytes_ratio"][codec] >= least_ratio
        checks[f"cpu_{length}"] = of["cpu_ratio"] <= most_cpu
        checks[f"speed_{length}"] = of["speed"]["in_order"] >= least_speed
    ok = all(checks.values())
    print_result({"ok": ok, "small": arguments.small, "checks": checks, **found})
    return 0 if ok else 1


def _measured(root: Path, size: Size) -> dict[str, Any]:
    log = make_log(NUM_USERS, NUM_EVENTS, NUM_ROWS, ROWS_OF_USER)
    some = log.of_users(size.share)
    some.write_events(root / "events")
    some.write_rows(some.rows, root / "day")
    few_events = pq.read_table(root / "events" / "0.parquet").slice(0, 1_000)
    pq.write_table(few_events, root / "few_events.parquet")
    found = {"rows": len(some.rows), "rows_per_user": round(some.rows.per_user, 1)}
    of_lengths = {length: _of_length(log, some, root, length, size) for length in LENGTHS}
    return {**found, "lengths": of_lengths, "others": _others(log, some, root, size)}


def _of_length(log: Log, some: Log, root: Path, length: int, size: Size) -> dict[str, Any]:
    """The column of the table for one `max_len`."""
    fat_rows = log.first_rows(log.rows, length, size.num_values)
    clustered_rows = log.first_rows(by_user(log.rows), length, size.num_values)
    log.write_fat(fat_rows, length, root / f"fat-{length}")
    log.write_fat(clustered_rows, length, root / f"clustered-{length}")
    raw = {"fat": f"fat-{length}", "once": "day", "clustered": f"clustered-{length}"}
    num_rows = {"fat": len(fat_rows), "once": len(some.rows), "clustered": len(clustered_rows)}
    pairs = [(kind, codec) for codec in CODECS for kind in ("fat", "once")]
    made = _extracted(
        root, length, [(kind, codec, raw[kind]) for kind, codec in (*pairs, ("clustered", "zstd"))]
    )
    of_row = {
        f"{kind}_{codec}": (found["bytes"] / num_rows[kind], found["cpu_s"] / num_rows[kind] * 1e6)
        for (kind, codec), found in zip((*pairs, ("clustered", "zstd")), made, strict=True)
    }
    tables = [_table(str(root), length, kind, CODECS[0], raw[kind]) for kind in ("fat", "once")]
    mean_length = log.mean_length(log.rows, length)
    epochs = [
        str(math.ceil(READ_VALUES / mean_length / num_rows[kind])) for kind in ("fat", "once")
    ]
    day_mb = {key: num_bytes * len(log.rows) / 1e6 for key, (num_bytes, _) in of_row.items()}
    found = {
        "mean_length": round(mean_length),
        "fat_rows": len(fat_rows),
        "rows_in_both": int(some.has(fat_rows).sum()),
        "row_bytes": {key: round(num_bytes, 1) for key, (num_bytes, _) in of_row.items()},
        "day_mb": {key: round(of, 1) for key, of in day_mb.items()},
        "bytes_ratio": {
            codec: round(day_mb[f"fat_{codec}"] / day_mb[f"once_{codec}"], 1) for codec in CODECS
        },
        # Each day holds what its rows see, whatever other days hold.
        "retained_mb": {
            str(days): {kind: round(days * day_mb[f"{kind}_snappy"]) for kind in ("fat", "once")}
            for days in DAYS
        },
        "cpu_us": {key: round(of, 2) for key, (_, of) in of_row.items()},
        "cpu_ratio": round(of_row["once_snappy"][1] / of_row["fat_snappy"][1], 3),
        "equal": _child("equal", *tables),
        **_child("reading", *tables, *epochs, str(size.rounds)),
        "peak_bytes": _child("peak", tables[1])["peak_bytes"],
        "unique": _child("unique", tables[1], epochs[1], str(size.rounds)),
    }
    print(length, found, flush=True)
    return found


def _others(log: Log, some: Log, root: Path, size: Size) -> dict[str, Any]:
    """Bytes with fewer rows of a user in a file, at the middle length, in snappy: those of a fat row
    over those of a row stored once.
    """
    days = {str(each): [thinned(log.rows, each)] for each in PER_USER}
    days["hourly"] = hours(log.rows, HOURS)
    found, of_parts = dict[str, Any](), list[tuple[str, str, Rows]]()
    for name, of in days.items():
        for number, rows in enumerate(of):
            fat_rows = log.first_rows(rows, LENGTHS[1], size.num_values // 4)
            own_rows = rows.where(some.has(rows))
            raw = f"{name}-{number}"
            log.write_rows(own_rows, root / raw)
            log.write_fat(fat_rows, LENGTHS[1], root / f"fat-{raw}")
            of_parts += [(name, f"fat-{raw}", fat_rows), (name, raw, own_rows)]
    made = _extracted(
        root,
        LENGTHS[1],
        [("fat" if raw.startswith("fat") else "once", "snappy", raw) for _, raw, _ in of_parts],
    )
    for name, of in days.items():
        row_bytes = {
            is_fat: statistics.mean(
                one["bytes"] / len(rows)
                for one, (part, raw, rows) in zip(made, of_parts, strict=True)
                if part == name and raw.startswith("fat") == is_fat
            )
            for is_fat in (True, False)
        }
        found[name] = {
            "rows_per_user": round(statistics.mean(rows.per_user for rows in of), 2),
            "row_bytes": {"fat": round(row_bytes[True], 1), "once": round(row_bytes[False], 1)},
            "bytes_ratio": round(row_bytes[True] / row_bytes[False], 2),
        }
    print(found, flush=True)
    return found


def _extracted(
    root: Path, length: int, tables: Sequence[tuple[str, str, str]]
) -> list[dict[str, float]]:
    """As of `_extractions`, of each kind, codec and directory of raw rows."""
    named = [",".join(of) for of in tables]
    found: list[dict[str, float]] = _child("extracted", str(root), str(length), *named)["tables"]
    return found


def _child(what: str, *of: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--what", what, *of],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def spec_of(kind: str, length: int, codec: str) -> dict[str, Any]:
    """The spec of a table of fat rows, of such in order of their users with times in place of ages,
    or of rows whose histories are stored once.
    """
    inputs = {"row": "long", "user_id": "long", "ts": "timestamp", "click": "long"}
    user = {"slot": 1, "name": "user", "op": "hash", "of": "user_id"}
    ids = [
        {"slot": 301, "name": LISTS[0], "op": "hash", "of": "items"},
        {"slot": 302, "name": LISTS[1], "op": "hash", "of": "categories"},
    ]
    spec: dict[str, Any] = {
        "spec": 1,
        "labels": {"click": "click"},
        "output": {"compression": codec},
    }
    if kind == "once":
        ages = {"slot": 303, "name": LISTS[2], "op": "time_since", "of": "event_ts"}
        history = {
            "name": "clicks",
            "key": "user_id",
            "as_of": "ts",
            "at": "event_ts",
            "inputs": {
                "user_id": "long",
                "event_ts": "timestamp",
                "item_id": "long",
                "category": "long",
            },
            "max_len": length,
            "slots": [
                ids[0] | {"of": "item_id"},
                ids[1] | {"of": "category"},
                ages | {"unit": "second"},
            ],
        }
        own = {"inputs": inputs, "keep": ["row", "ts"], "slots": [user], "histories": [history]}
        return spec | own
    inputs |= {"items": "list<long>", "categories": "list<long>"}
    if kind == "clustered":
        inputs |= {"times": "list<long>"}
        output = spec["output"] | {"cluster_by": "user_id"}
        own = {"inputs": inputs, "keep": ["row", "ts", "user_id", "times"], "slots": [user, *ids]}
        return spec | own | {"output": output}
    ages = {"slot": 303, "name": LISTS[2], "op": "identity", "of": "ages"}
    inputs |= {"ages": "list<float>"}
    own = {"inputs": inputs, "keep": ["row", "ts"], "slots": [user, *ids, ages]}
    return spec | own | {"output": spec["output"] | {"rows_per_row_group": FAT_ROW_GROUP}}


def _extractions(root: str, length: str, *tables: str) -> dict[str, list[dict[str, float]]]:
    """Of each table the CPU seconds of its extraction, and the bytes of its lists and all that
    belongs to them.
    """
    return {"tables": [_extraction(root, length, *of.split(",")) for of in tables]}


def _extraction(root: str, length: str, kind: str, codec: str, raw: str) -> dict[str, float]:
    spec = featstore.load_spec(spec_of(kind, int(length), codec))
    is_once = kind == "once"
    with tempfile.TemporaryDirectory() as warm:
        few = pq.read_table(min(Path(root, raw).iterdir())).slice(0, 16)
        pq.write_table(few, f"{warm}/few.parquet")
        few_events = {"clicks": f"{root}/few_events.parquet"} if is_once else None
        featstore.extract(spec, f"{warm}/few.parquet", f"{warm}/table", events=few_events)
    table = _table(root, length, kind, codec, raw)
    started = time.process_time()
    events = {"clicks": f"{root}/events"} if is_once else None
    featstore.extract(spec, f"{root}/{raw}", table, events=events)
    return {"cpu_s": time.process_time() - started, "bytes": _history_bytes(Path(table))}


def _table(root: str, length: str | int, kind: str, codec: str, raw: str) -> str:
    return f"{root}/table-{length}-{kind}-{codec}-{raw}"


def _history_bytes(table: Path) -> int:
    num_bytes = 0
    for path in table.rglob("*.parquet"):
        if "_delta_log" in path.parts or "_stats" in path.parts:
            continue
        footer = pq.read_metadata(path)
        for group in range(footer.num_row_groups):
            for number in range(footer.num_columns):
                column = footer.row_group(group).column(number)
                if column.path_in_schema.startswith(("clicks_", "times")):
                    num_bytes += column.total_compressed_size
    return num_bytes


def _read(
    table: str, budget: str = BUDGET, slots: Sequence[str] = LISTS, **how: Any
) -> Iterator[featstore.Batch]:
    loader = featstore.FeatureLoader(
        table,
        slots=list(slots),
        labels=["click"],
        batch_size=BATCH_SIZE,
        decode_threads=1,
        memory_budget=budget,
        **how,
    )
    with loader:
        yield from loader


def _equality(fat: str, once: str) -> dict[str, int]:
    """AssertionError unless each row that both tables have has the same lists, bit by bit, and no
    row has an event that is not before it.
    """
    expected = {name: list[Any]() for name in LISTS}
    numbers, lengths = list[Any](), list[Any]()
    for batch in _read(fat, extras=["row"]):
        numbers.append(np.asarray(batch.extras["row"]))
        lengths.append(np.diff(batch[LISTS[0]].offsets.numpy()))
        for name in LISTS:
            expected[name].append(batch[name].values.numpy().copy())
    values = {name: np.concatenate(of) for name, of in expected.items()}
    of_lengths = np.concatenate(lengths)
    begins = offsets_from(of_lengths)[:-1]
    place_of = np.full(NUM_ROWS, -1)
    place_of[np.concatenate(numbers)] = np.arange(len(of_lengths))
    num_rows = num_values = 0
    for batch in _read(once, extras=["row"]):
        ages, places = batch[LISTS[2]].values.numpy(), place_of[np.asarray(batch.extras["row"])]
        assert not len(ages) or ages.min() > 0, "an event that is not before its row"
        chosen = np.flatnonzero(places >= 0)
        for name in LISTS:
            offsets = batch[name].offsets.numpy()
            counts = np.diff(offsets)[chosen]
            assert np.array_equal(counts, of_lengths[places[chosen]]), name
            found = ranges_of(batch[name].values.numpy(), offsets[:-1][chosen], counts)
            wanted = ranges_of(values[name], begins[places[chosen]], counts)
            assert found.tobytes() == wanted.tobytes(), name
            num_values += len(found)
        num_rows += len(chosen)
    return {"num_rows": num_rows, "num_values": num_values}


def _reading(fat: str, once: str, fat_epochs: str, once_epochs: str, rounds: str) -> dict[str, Any]:
    """CPU microseconds of a row, in turn, and how many times as fast histories are read."""
    found: dict[str, Any] = {"us": {}, "speed": {}, "speeds": {}}
    for name, how in (("in_order", {}), ("shuffled", {"shuffle": True})):
        us: dict[str, list[float]] = {fat: [], once: []}
        for number in range(int(rounds) + 1):
            for (table, of_table), epochs in zip(
                us.items(), (fat_epochs, once_epochs), strict=True
            ):
                us_of_row = _us_of_row(table, num_epochs=int(epochs), **how)
                of_table += [us_of_row] if number else []
        speeds = [a / b for a, b in zip(us[fat], us[once], strict=True)]
        of_kinds = (("fat", us[fat]), ("once", us[once]))
        found["us"][name] = {kind: round(statistics.median(of), 2) for kind, of in of_kinds}
        found["speed"][name] = round(statistics.median(speeds), 2)
        found["speeds"][name] = [round(each, 2) for each in sorted(speeds)]
    return found


def _unique(table: str, epochs: str, rounds: str) -> dict[str, Any]:
    """With and without `unique`, in turn: the events that batches hold for each row, and CPU
    microseconds of a row with ids alone; by order of rows.
    """
    found = dict[str, Any]()
    for name, how in ORDERS.items():
        runs: dict[str, list[tuple[float, float]]] = {"each": [], "unique": []}
        for number in range(int(rounds) + 1):
            for form, of_form in runs.items():
                unique = {"clicks": {"unique": form == "unique"}}
                run = _run(table, slots=LISTS[:2], histories=unique, num_epochs=int(epochs), **how)
                of_form += [run] if number else []
        found[name] = {
            form: {
                "events": round(of_form[0][0], 1),
                "us": round(statistics.median(us for _, us in of_form), 2),
            }
            for form, of_form in runs.items()
        }
    return found


def _run(table: str, **how: Any) -> tuple[float, float]:
    """Events and CPU microseconds of a row."""
    num_rows, num_events, started = 0, 0, time.process_time()
    for batch in _read(table, **how):
        num_rows += len(batch)
        num_events += len(batch[LISTS[0]].values)
    return num_events / num_rows, (time.process_time() - started) / num_rows * 1e6


def _us_of_row(table: str, **how: Any) -> float:
    num_rows, started = 0, time.process_time()
    for batch in _read(table, **how):
        num_rows += len(batch)
    return (time.process_time() - started) / num_rows * 1e6


def _peak(table: str) -> dict[str, int]:
    """Bytes beyond those of a process that has read before, with a budget of 1 GB."""
    for _ in _read(table):
        break
    before = measuring.resident_bytes()
    measuring.forget_peak()
    for _ in _read(table, budget=str(PEAK_BUDGET_BYTES)):
        pass
    return {"peak_bytes": measuring.peak_bytes() - before}


_CHILDREN: Mapping[str, Callable[..., dict[str, Any]]] = {
    "extracted": _extractions,
    "equal": _equality,
    "reading": _reading,
    "peak": _peak,
    "unique": _unique,
}
if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", os.pathsep.join(sys.path))
    sys.exit(main())
