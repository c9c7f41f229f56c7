"""Tables with histories: each row that a loader gives has what `Extractor.one` says of it."""

import datetime
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.units.extractor import Extractor
from featstore.loader.feature_loader import FeatureLoader
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.table.delta import open_delta
from tests.histories import oracle
from tests.parquet_files import put_parquet

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
US = pa.timestamp("us", tz="UTC")
ROWS = pa.schema([("row", pa.int64()), ("user", pa.string()), ("ts", US), ("item", pa.string())])
EVENTS = pa.schema(
    [
        ("user", pa.string()),
        ("at", US),
        ("arrived", US),
        ("item", pa.string()),
        ("price", pa.float64()),
    ]
)
_Row = dict[str, Any]


def spec_of(output: Mapping[str, Any] | None = None, **changes: Any) -> Spec:
    document = oracle.document_of(**changes)
    document["inputs"] |= {"row": "long"}
    document["keep"] = ["ts", "row"]
    document["output"] = {"rows_per_row_group": 40, "rows_per_file": 120} | dict(output or {})
    return load_spec(document)


def time_of(seconds: float | None) -> datetime.datetime | None:
    return None if seconds is None else START + datetime.timedelta(seconds=seconds)


def make_rows(rng: random.Random, num_rows: int, users: Sequence[str | None]) -> list[_Row]:
    return [
        {
            "row": row,
            "user": rng.choice(users),
            "ts": time_of(None if rng.random() < 0.03 else rng.randrange(1_000)),
            "item": f"i{rng.randrange(20)}",
        }
        for row in range(num_rows)
    ]


def make_events(rng: random.Random, num_events: int, users: Sequence[str | None]) -> list[_Row]:
    events = []
    for _ in range(num_events):
        at = rng.randrange(1_000)
        events.append(
            {
                "user": rng.choice(users),
                "at": time_of(None if rng.random() < 0.02 else at),
                "arrived": time_of(at + rng.choice([-3, 0, 0, 5, 200])),
                "item": rng.choice([None, *(f"i{n}" for n in range(20))]),
                "price": rng.choice([None, math.nan, -0.0, 0.5, 7.25]),
            }
        )
    return events


USERS = [None, "hot", "hot", "hot", "hot", *(f"u{n}" for n in range(12))]


@pytest.fixture
def job(tmp_path: Path) -> ExtractJob:
    rng = random.Random(5)
    rows, events = make_rows(rng, 500, [*USERS, "lonely"]), make_events(rng, 900, [*USERS, "x"])
    write(tmp_path, rows, events)
    return job_of(tmp_path, spec_of())


def write(place: Path, rows: Sequence[_Row], events: Sequence[_Row]) -> None:
    for name, found, schema in (("raw", rows, ROWS), ("log", events, EVENTS)):
        half = len(found) // 2
        for part, of_part in (("a", found[:half]), ("b", found[half:])):
            table = pa.Table.from_pylist(list(of_part), schema)
            put_parquet(place / name / f"{part}.parquet", table, row_group_size=70)


def job_of(place: Path, spec: Spec, table: str = "table") -> ExtractJob:
    return ExtractJob(
        spec=spec,
        input_url=str(place / "raw"),
        events={"clicks": str(place / "log")},
        table_url=str(place / table),
        no_partition=True,
    )


def read(url: str) -> pa.Table:
    return pa.concat_tables([pq.read_table(each) for each in sorted(Path(url).glob("*.parquet"))])


def check_rows(job: ExtractJob, **options: Any) -> int:
    """Each row of a loader is that of `Extractor.one`. Returns the number of events of all rows."""
    rows = {row["row"]: row for row in read(job.input_url).to_pylist()}
    events = read(job.events["clicks"]).to_pylist()
    extractor = Extractor(job.spec)
    slots, num_events = ["item", "clicks_*"], 0
    given = {"slots": slots, "extras": ["row"], "batch_size": 64} | options
    seen = list[int]()
    with FeatureLoader(job.table_url, **given) as loader:
        for batch in loader:
            numbers = batch.extras["row"].to_pylist()
            found = {}
            for name in ("clicks_item", "clicks_price", "clicks_age"):
                values, offsets = batch[name].values.tolist(), batch[name].offsets.tolist()
                found[name] = [values[a:b] for a, b in pairwise(offsets)]
            for i, number in enumerate(numbers):
                expected = extractor.one(rows[number], {"clicks": events})
                assert batch["item"].tolist()[i] == expected["item"]
                for name, lists in found.items():
                    assert str(lists[i]) == str(expected[name]), (number, name)
                num_events += len(expected["clicks_item"])
            seen += numbers
    assert sorted(seen) == sorted(rows)
    return num_events


def test_each_row_has_its_events(job: ExtractJob) -> None:
    report = extract_files(job)
    print(report, report.counts)
    assert check_rows(job) > 1_000
    files = open_delta(job.table_url).data_files
    assert len(files) > 3
    print(len(files), [f.num_rows for f in files])
