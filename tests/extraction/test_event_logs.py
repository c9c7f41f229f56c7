"""Days of a table with histories: a late event makes those again whose rows may see it."""

import base64
import hashlib
import json
import os
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featstore
from featstore.base.errors import ConfigError
from featstore.extraction import event_logs
from featstore.extraction.days import extract_days
from featstore.extraction.event_logs import as_told, with_events
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.units.unit import UnitReport
from featstore.files.listings import FileEntry
from featstore.table.delta import history, open_delta
from tests.extraction.test_histories import EVENTS, ROWS, job_of, spec_of, time_of
from tests.parquet_files import put_parquet

HOUR, DAY = 3_600, 86_400
MINUTE = 60_000_000  # in microseconds
DAYS = "2026-01-01..2026-01-03"


def put_events(path: Path, *events: tuple[str, int], arrived: int | None = None) -> Path:
    """Writes a file of a log: keys and times in seconds."""
    rows = [
        {
            "user": user,
            "at": time_of(at),
            "arrived": time_of(arrived or at),
            "item": "i",
            "price": 1,
        }
        for user, at in events
    ]
    return put_parquet(path, pa.Table.from_pylist(rows, EVENTS))


@pytest.fixture
def job(tmp_path: Path) -> ExtractJob:
    """Each day has a user of its own and one of all days, at noon; the log has a file of each."""
    for day in range(3):
        rows = [
            {"row": day, "user": user, "ts": time_of(day * DAY + 12 * HOUR), "item": "i"}
            for user in (f"u{day}", "all", None)
        ]
        place = tmp_path / f"raw/dt=2026-01-0{day + 1}"
        put_parquet(place / "a.parquet", pa.Table.from_pylist(rows, ROWS))
        put_events(tmp_path / f"log/{day}.parquet", (f"u{day}", day * DAY), ("all", day * DAY))
    spec = spec_of(logged_at="arrived", window="2d")
    job = replace(job_of(tmp_path, spec), no_partition=False, input_url=f"{tmp_path}/raw/dt={{dt}}")
    assert reasons(job) == ["missing"] * 3
    return job


def reasons(job: ExtractJob, **options: Any) -> list[str]:
    return [str(day.reason) for day in extract_days(job, DAYS, **options).days]


def lengths(job: ExtractJob) -> dict[str | None, list[int]]:
    """Of each day how many events its rows see."""
    return {
        file.partition["dt"]: pq.read_table(file.url)["clicks_length"].to_pylist()
        for file in open_delta(job.table_url).data_files
    }


@pytest.mark.parametrize(
    ("user", "at", "arrived", "stale"),
    [
        ("u0", HOUR, HOUR, [0]),
        ("u1", HOUR, HOUR, [1]),
        ("u1", HOUR, DAY + 13 * HOUR, []),  # known after all of its rows
        ("u2", HOUR, HOUR, []),  # older than the window of its rows
        ("all", HOUR, 2 * HOUR, [0, 1]),
        ("all", HOUR, DAY + HOUR, [1, 2]),  # too old for the last day, and one of `max_len`
        ("all", 3 * DAY, 3 * DAY, []),
        ("nobody", HOUR, HOUR, []),
    ],
)
def test_a_late_event_makes_days_stale_whose_rows_may_see_it(
    job: ExtractJob, tmp_path: Path, user: str, at: int, arrived: int, stale: Sequence[int]
) -> None:
    before = lengths(job)
    put_events(tmp_path / "log/late.parquet", (user, at), arrived=arrived)
    again = replace(job, run_id="again")
    assert reasons(again) == ["stale input" if day in stale else "up to date" for day in range(3)]
    assert reasons(job) == ["up to date"] * 3
    now = lengths(job)
    for day, (dt, found) in enumerate(sorted(now.items())):
        assert sum(found) == sum(before[dt]) + (day in stale)


def test_a_run_without_news_reads_no_events(job: ExtractJob, tmp_path: Path) -> None:
    """Pages that cannot be read are not missed: of new files the footer tells that they are later."""
    put_events(tmp_path / "log/later.parquet", *[("all", 3 * DAY)] * 10)
    for path in (tmp_path / "log").iterdir():
        data, modified = bytearray(path.read_bytes()), path.stat().st_mtime_ns
        data[4:40] = b"\xff" * 36
        path.write_bytes(data)
        os.utime(path, ns=(modified, modified))
    assert reasons(job) == ["up to date"] * 3


def test_a_file_of_the_log_that_is_gone_or_changed_makes_days_stale_that_may_have_seen_it(
    job: ExtractJob, tmp_path: Path
) -> None:
    put_events(tmp_path / "log/1.parquet", ("nobody", 0))
    # Rows of the first day knew nothing of the second day's events.
    assert reasons(job, dry_run=True) == ["up to date", "stale input", "stale input"]
    (tmp_path / "log/1.parquet").unlink()
    assert reasons(replace(job, run_id="2")) == ["up to date", "stale input", "stale input"]
    assert reasons(job) == ["up to date"] * 3
    (tmp_path / "log/0.parquet").unlink()
    # They are older than the window of the third day's rows.
    assert reasons(replace(job, run_id="3")) == ["stale input", "stale input", "up to date"]
    assert reasons(job) == ["up to date"] * 3
    without = replace(job, spec=spec_of(), run_id="4", table_url=f"{job.table_url}2")
    put_events(tmp_path / "log/0.parquet", ("all", 0))
    assert reasons(without) == ["missing"] * 3
    (tmp_path / "log/0.parquet").unlink()
    assert reasons(without, dry_run=True) == ["stale input"] * 3


def test_a_log_of_text_is_read_for_late_events(job: ExtractJob, tmp_path: Path) -> None:
    job = replace(job, events={"clicks": str(tmp_path / "text")}, run_id="text")
    expected = ["stale input"] * 3
    for name, user in (("a", "nobody"), ("b", "nobody"), ("c", "u1")):
        event = {"user": user, "at": str(time_of(HOUR)), "arrived": str(time_of(HOUR))}
        path = tmp_path / f"text/{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(event | {"item": "i", "price": 1}))
        if user == "u1":
            expected = ["up to date", "stale input", "up to date"]
        assert reasons(replace(job, run_id=name)) == expected
        expected = ["up to date"] * 3


def test_text_of_later_events_opens_no_data_file(
    job: ExtractJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = replace(job, events={"clicks": str(tmp_path / "text")}, run_id="text")
    event = {"user": "all", "at": str(time_of(3 * DAY)), "arrived": str(time_of(3 * DAY))}
    for name in "ab":
        path = tmp_path / f"text/{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(event | {"item": "late", "price": 1}))
        if name == "a":
            reasons(job)
            monkeypatch.setattr(event_logs._LogNow, "_rows", None)
        assert reasons(job) == ["up to date"] * 3


def test_days_without_rows_that_may_see_events_wait_for_none(tmp_path: Path) -> None:
    rows = [{"row": 1, "user": None, "ts": time_of(0), "item": "i"}]
    put_parquet(tmp_path / "raw/dt=2026-01-01/a.parquet", pa.Table.from_pylist(rows, ROWS))
    put_events(tmp_path / "log/a.parquet", ("u", 0))
    job = replace(job_of(tmp_path, spec_of()), no_partition=False)
    url, log = f"{tmp_path}/raw/dt={{dt}}", {"clicks": tmp_path / "log"}

    def num_extracted(events: dict[str, Path] | None) -> int:
        done = featstore.extract(job.spec, url, job.table_url, days="2026-01-01", events=events)
        return done.num_extracted

    assert num_extracted(log) == 1
    [made] = history(job.table_url)
    assert made.metadata is not None
    assert made.metadata.events["clicks"]["as_of"] is None
    put_events(tmp_path / "log/b.parquet", ("u", 0))
    (tmp_path / "log/a.parquet").unlink()
    assert num_extracted(log) == 0
    with pytest.raises(ConfigError, match="history 'clicks', found none"):
        num_extracted(None)


def test_the_digest_of_rows_and_logs_is_frozen() -> None:
    assert with_events("abc", {}) == "abc"
    digest = with_events("abc", {"clicks": [b"bb", b"aa"], "views": []})
    json_text = b'{"clicks":"61616262","views":""}'
    assert digest == f"abc+{hashlib.sha256(json_text).hexdigest()}"


def test_what_a_commit_tells_of_logs_is_frozen() -> None:
    clicks = {
        mark: (FileEntry(url=f"/log/{name}", name=name, size_bytes=1), None)
        for mark, name in ((b"87654321", "a"), (b"12345678", "b"))
    }
    reports = [
        UnitReport(
            path="clicks/0", partition={}, times={"clicks//log/b": (5 * MINUTE, 6 * MINUTE)}
        ),
        UnitReport(
            path="clicks/1", partition={}, times={"clicks//log/b": (6 * MINUTE, 8 * MINUTE - 1)}
        ),
        UnitReport(path="x", partition={}, times={"clicks": (3, 9)}),
        UnitReport(path="y", partition={}, times={"clicks": (-7, 8)}),
    ]
    files = "MTIzNDU2NzgAAAAFAAAABzg3NjU0MzIxf////4AAAAA="  # the second one has no event
    assert as_told({"clicks": clicks, "views": {}}, reports) == {
        "clicks": {"files": files, "as_of": [-7, 9]},
        "views": {"files": "", "as_of": None},
    }
    far = {"clicks//log/a": (-(2**62), 2**62)}
    told = as_told({"clicks": clicks}, [UnitReport(path="z", partition={}, times=far)])
    record = base64.b64decode(str(told["clicks"]["files"]))[16:]
    assert struct.unpack(">8sii", record) == (b"87654321", -(2**31), 2**31 - 1)


USERS = st.sampled_from(["a", "b", "c", None])
SECONDS = st.integers(0, 12)
ROW = st.tuples(USERS, SECONDS | st.none())
EVENT = st.tuples(USERS, SECONDS, SECONDS)


@settings(max_examples=settings().max_examples // 12, deadline=None)
@given(
    rows=st.lists(ROW, min_size=1, max_size=5),
    events=st.lists(EVENT, min_size=1, max_size=5),
    late=st.lists(EVENT, min_size=1, max_size=3),
    window=st.sampled_from([None, "3s"]),
    goes=st.booleans(),
    max_len=st.sampled_from([1, 2, 50]),
)
def test_a_day_that_is_up_to_date_would_have_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str | None, int | None]],
    events: list[tuple[str | None, int, int]],
    late: list[tuple[str | None, int, int]],
    window: str | None,
    goes: bool,
    max_len: int,
) -> None:
    place = tmp_path_factory.mktemp("any")
    table = [
        {"row": i, "user": user, "ts": time_of(ts), "item": "i"}
        for i, (user, ts) in enumerate(rows)
    ]
    put_parquet(place / "raw/dt=2026-01-01/a.parquet", pa.Table.from_pylist(table, ROWS))

    def put(name: str, found: list[tuple[str | None, int, int]]) -> None:
        of_file = [
            {"user": user, "at": time_of(at), "arrived": time_of(arrived), "item": "i", "price": 1}
            for user, at, arrived in found
        ]
        put_parquet(place / f"log/{name}.parquet", pa.Table.from_pylist(of_file, EVENTS))

    put("a", events)
    spec = spec_of(logged_at="arrived", window=window, max_len=max_len)
    job = replace(job_of(place, spec), no_partition=False, input_url=f"{place}/raw/dt={{dt}}")
    extract_days(job, "2026-01-01")
    put("b", late)
    if goes:
        (place / "log/a.parquet").unlink()
    [day] = extract_days(job, "2026-01-01", dry_run=True).days
    other = replace(
        job,
        input_url=f"{place}/raw/dt=2026-01-01",
        partition={"dt": "2026-01-01"},
        table_url=str(place / "other"),
    )
    extract_files(other)
    [before], [after] = (open_delta(url).data_files for url in (job.table_url, other.table_url))
    is_same = Path(before.url).read_bytes() == Path(after.url).read_bytes()
    assert is_same or day.reason == "stale input"
    seen = {
        user
        for user, ts in rows
        for key, at, arrived in late
        if ts is not None and user == key and max(at, arrived) < ts
    }
    assert seen or goes or day.reason == "up to date"
