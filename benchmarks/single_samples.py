"""Samples one at a time: `SampleStore[i]` beside plain SQLite by text id, for the same samples.

Plain SQLite is a table `(id TEXT PRIMARY KEY, payload BLOB)`, made and opened with the defaults of
Python's `sqlite3`, and `SELECT payload FROM samples WHERE id = ?` for each sample. The payload
becomes what `SampleStore[i]` becomes, and both are compared with the sample that was stored:

- rows: 40 int64 in 320 bytes. Both sides: `numpy.frombuffer`.
- few rows: as many as fit into SQLite's cache of pages, so that none is read from the file.
- records: a text of 300 characters, two numbers and a list of texts. Plain SQLite: JSON, by
  `json.loads`. SampleStore: four fields, of which one is JSON, as a dict.
- images: 20,000 bytes. Both sides: `numpy.frombuffer`.

Plain SQLite has no checksum, does not notice deletes, and is for one thread. Told besides, without
a demand: plain SQLite in WAL mode, which is the mode of a SampleStore, and `SampleStore.by_id`.

Figures are microseconds of CPU time a sample, user and system, the files being in the page cache. In
each round all sides read the same random samples, in turn; a ratio is the median of the rounds'. At
most 1.5 is demanded of `SampleStore[i]` over plain SQLite, of each kind of samples.

    python benchmarks/single_samples.py [--small]
"""

import argparse
import gc
import json
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from featstore.samples.sample_store import SampleStore
from random_access_parts.rows import Rows
from shared_parts.machine import print_result

MOST, NUM_DRAWN, FEW_SAMPLES = 1.5, 2_000, 5_000
STORE, PLAIN = "SampleStore[i]", "plain SQLite"
BY_ID, PLAIN_WAL = "SampleStore.by_id", "plain SQLite, WAL"
Sample = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of samples.

    Attributes:
        num_samples: How many there are; a tenth with `--small`, but not fewer than `FEW_SAMPLES`.
        fields: Of the SampleStore.
        sample: The sample of an index.
        payload: Its bytes in plain SQLite.
        of_sample: What is made of a sample of the store.
        of_payload: What is made of a payload: the same.
    """

    num_samples: int
    fields: Mapping[str, str]
    sample: Callable[[int], Sample]
    payload: Callable[[Sample], bytes]
    of_sample: Callable[[Sample], Any]
    of_payload: Callable[[bytes], Any]


def _row(index: int) -> Sample:
    return {"row": Rows(num_rows=1).at(np.array([index])).tobytes()}


def _record(index: int) -> Sample:
    text = f"{index} is the number of this sample, as any text may have one. " * 10
    tags = [f"tag {index % number}" for number in (3, 5, 7)]
    return {"text": text[:300], "label": index % 2, "price": index / 100, "tags": tags}


def _image(index: int) -> Sample:
    return {"image": random.Random(index).randbytes(20_000)}


ROWS = Kind(
    num_samples=1_000_000,
    fields={"row": "bytes"},
    sample=_row,
    payload=lambda sample: sample["row"],
    of_sample=lambda sample: np.frombuffer(sample["row"], np.int64),
    of_payload=lambda payload: np.frombuffer(payload, np.int64),
)
KINDS = {
    "rows": ROWS,
    "few rows": replace(ROWS, num_samples=FEW_SAMPLES),
    "records": Kind(
        num_samples=500_000,
        fields={"text": "text", "label": "integer", "price": "real", "tags": "json"},
        sample=_record,
        payload=lambda sample: json.dumps(sample).encode(),
        of_sample=lambda sample: sample,
        of_payload=json.loads,
    ),
    "images": Kind(
        num_samples=20_000,
        fields={"image": "bytes"},
        sample=_image,
        payload=lambda sample: sample["image"],
        of_sample=lambda sample: np.frombuffer(sample["image"], np.uint8),
        of_payload=lambda payload: np.frombuffer(payload, np.uint8),
    ),
}


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where a ratio is above what is demanded."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a tenth of the samples, fewer rounds")
    parser.add_argument("--directory", type=Path, help="where files are made; a temporary one")
    options = parser.parse_args()
    share, num_rounds = (10, 15) if options.small else (1, 51)
    found = {}
    for name, kind in KINDS.items():
        num_samples = max(FEW_SAMPLES, kind.num_samples // share)
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            found[name] = _measured(kind, num_samples, Path(directory), num_rounds)
        print(f"{name}: {found[name]}", flush=True)
    is_ok = all(of["ok"] for of in found.values())
    print_result({"ok": is_ok, "most": MOST, "held_against": PLAIN, "samples": found})
    return int(not is_ok)


def _measured(kind: Kind, num_samples: int, directory: Path, num_rounds: int) -> dict[str, Any]:
    """Microseconds of each side, and the ratios of two sides."""
    seconds = seconds_of(kind, num_samples, directory, num_rounds)
    ratio = _ratio(seconds, STORE, PLAIN)
    return {
        "ok": ratio <= MOST,
        "ratio": ratio,
        "num_samples": num_samples,
        "us": {
            side: round(1e6 * statistics.median(taken) / NUM_DRAWN, 2)
            for side, taken in seconds.items()
        },
        "ratio_to_wal": _ratio(seconds, STORE, PLAIN_WAL),
        "by_id_ratio": _ratio(seconds, BY_ID, PLAIN),
    }


def _ratio(seconds: Mapping[str, list[float]], side: str, over: str) -> float:
    pairs = zip(seconds[side], seconds[over], strict=True)
    return round(statistics.median(own / other for own, other in pairs), 3)


def seconds_of(
    kind: Kind, num_samples: int, directory: Path, num_rounds: int
) -> dict[str, list[float]]:
    """The CPU time of each round by side. The round before the first is not counted."""
    drawn = random.Random(1)
    with _sides(kind, num_samples, directory) as sides:
        seconds = {side: list[float]() for side in sides}
        for number in range(num_rounds + 1):
            indices = drawn.choices(range(num_samples), k=NUM_DRAWN)
            wanted: dict[str, list[Any]] = {"index": indices, "id": list(map(_id, indices))}
            for side, (by, read) in sides.items():
                if not number:
                    _require_stored(kind, read, indices[:100], wanted[by][:100])
                gc.collect()
                begun = time.process_time()
                for one in wanted[by]:
                    read(one)
                seconds[side] += [time.process_time() - begun] if number else []
    return seconds


@contextmanager
def _sides(
    kind: Kind, num_samples: int, directory: Path
) -> Iterator[dict[str, tuple[str, Callable[[Any], Any]]]]:
    """What reads a sample on each side, and by what."""
    plain, wal, own = (directory / name for name in ("plain", "wal", "own"))
    _make_plain(plain, kind, num_samples, "DELETE")
    _make_plain(wal, kind, num_samples, "WAL")
    samples = map(kind.sample, range(num_samples))
    with SampleStore.create(own, kind.fields) as store:
        store.append(samples, ids=map(_id, range(num_samples)))
    with (
        SampleStore(own) as store,
        closing(sqlite3.connect(plain)) as by_plain,
        closing(sqlite3.connect(wal)) as by_wal,
    ):
        yield {
            PLAIN: ("id", partial(_read_plain, by_plain, kind.of_payload)),
            STORE: ("index", lambda index: kind.of_sample(store[index])),
            PLAIN_WAL: ("id", partial(_read_plain, by_wal, kind.of_payload)),
            BY_ID: ("id", lambda one: kind.of_sample(store.by_id([one])[0])),
        }


def _read_plain(connection: sqlite3.Connection, made: Callable[[bytes], Any], one: str) -> Any:
    query = "SELECT payload FROM samples WHERE id = ?"
    return made(connection.execute(query, (one,)).fetchone()[0])


def _make_plain(path: Path, kind: Kind, num_samples: int, mode: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute("CREATE TABLE samples (id TEXT PRIMARY KEY, payload BLOB)")
        connection.executemany(
            "INSERT INTO samples VALUES (?, ?)",
            ((_id(index), kind.payload(kind.sample(index))) for index in range(num_samples)),
        )


def _require_stored(
    kind: Kind, read: Callable[[Any], Any], indices: list[int], wanted: list[Any]
) -> None:
    for index, one in zip(indices, wanted, strict=True):
        found, expected = read(one), kind.of_sample(kind.sample(index))
        assert type(found) is type(expected)
        assert np.array_equal(found, expected)


def _id(index: int) -> str:
    return f"sample-{index:09d}"


if __name__ == "__main__":
    sys.exit(main())
