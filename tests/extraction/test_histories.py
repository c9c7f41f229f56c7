"""Tables with histories: each row that a loader gives has what `Extractor.one` says of it."""

import datetime
import json
import math
import random
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from featstore import api
from featstore.base.errors import ConfigError, InputError, SpecError, StaleGroupError
from featstore.explore.preview import preview
from featstore.explore.profile import Profile
from featstore.explore.replay import replay
from featstore.explore.report.report import report
from featstore.explore.table import open_table
from featstore.extraction.days import DaysReport, Reason
from featstore.extraction.deletion import delete_rows
from featstore.extraction.group_job import GroupJob, extract_group
from featstore.extraction.job import ExtractJob, ExtractReport, extract_files
from featstore.extraction.local import LocalRunner
from featstore.extraction.rewriting import compact
from featstore.extraction.units.extractor import Extractor
from featstore.histories.stored import stored_histories
from featstore.loader.feature_loader import FeatureLoader
from featstore.ops.hashing import sign, value_hash
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.table.delta import history, open_delta, open_delta_or_none
from featstore.table.layout import unit_and_part
from featstore.table.metadata import KEY
from featstore.table.open import open_snapshot
from featstore.tools.cli.program import cli
from tests.histories import oracle
from tests.parquet_files import put_parquet
from tests.process import num_unnamed_files, our_files
from tests.programs import run_python

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


def events_by_user(job: ExtractJob) -> dict[str | None, list[_Row]]:
    found: dict[str | None, list[_Row]] = {}
    for event in read(job.events["clicks"]).to_pylist():
        found.setdefault(event["user"], []).append(event)
    return found


def check_rows(job: ExtractJob, gone: Sequence[int] = (), **options: Any) -> int:
    """Each row of a loader is that of `Extractor.one`. Returns the number of events of all rows."""
    rows = {row["row"]: row for row in read(job.input_url).to_pylist()}
    events = events_by_user(job)
    extractor = Extractor(job.spec)
    slots, num_events = ["item", "clicks_*"], 0
    given: dict[str, Any] = {"slots": slots, "extras": ["row", "ts"], "batch_size": 64} | options
    seen = list[int]()
    with FeatureLoader(job.table_url, **given) as loader:
        for batch in loader:
            numbers = batch.extras["row"].to_pylist()
            assert batch.extras["ts"].to_pylist() == [rows[number]["ts"] for number in numbers]
            found: dict[str, list[list[Any]]] = {}
            for name in ("clicks_item", "clicks_price", "clicks_age"):
                values, offsets = batch[name].values.tolist(), batch[name].offsets.tolist()
                found[name] = [values[a:b] for a, b in pairwise(offsets)]
            for i, number in enumerate(numbers):
                own = events.get(rows[number]["user"], [])
                expected = extractor.one(rows[number], {"clicks": own})
                assert batch["item"].tolist()[i] == expected["item"]
                for name, lists in found.items():
                    assert str(lists[i]) == str(expected[name]), (number, name)
                num_events += len(found["clicks_item"][i])
            seen += numbers
    assert sorted(seen) == sorted(rows.keys() - gone)
    return num_events


@pytest.mark.parametrize(
    ("changes", "output"),
    [
        ({}, {}),
        ({"max_len": 1_000}, {"rows_per_row_group": 17, "rows_per_file": 60}),
        ({"logged_at": "arrived", "window": "90s", "max_len": 50}, {"compression": "zstd"}),
        ({"window": "3m", "max_len": 9}, {"bytes_per_file": 3_000}),
        (
            {"max_len": 400},
            {"rows_per_row_group": 500, "rows_per_file": 500, "bytes_per_file": 20_000},
        ),
    ],
    ids=str,
)
def test_each_row_has_its_events(
    job: ExtractJob, changes: dict[str, Any], output: dict[str, Any]
) -> None:
    job = replace(job, spec=spec_of(output, **changes))
    extract_files(job)
    assert check_rows(job) > 1_000
    check_files(job)


def check_files(job: ExtractJob) -> None:
    """Row groups are as the spec says, their rows by time, and no list has what no row sees."""
    output, [stored] = job.spec.output, stored_histories(job.spec)
    widest = 8 * (len(stored.lists) + 1)
    for path in files_of(job):
        with pq.ParquetFile(path) as file:
            assert file.metadata.num_rows <= output.rows_per_file
            for i in range(file.num_row_groups):
                rows = file.read_row_group(i).to_pylist()
                assert 0 < len(rows) <= output.rows_per_row_group
                times = [row["ts"] or START - datetime.timedelta(1) for row in rows]
                assert times == sorted(times)
                lists = [row["clicks_at"] for row in rows if row["clicks_at"]]
                num_bytes = widest * sum(map(len, lists))
                assert num_bytes <= output.bytes_per_file or len(lists) == 1
                check_ranges(rows)


def check_ranges(rows: Sequence[_Row]) -> None:
    ends = dict[int, int]()
    for number, row in enumerate(rows):
        held = rows[number - row["clicks_back"]]
        assert held["clicks_key"] == row["clicks_key"]
        end, length = row["clicks_end"], row["clicks_length"]
        seen = held["clicks_at"][end - length : end]
        assert len(seen) == length
        as_of = -math.inf if row["ts"] is None else row["ts"].timestamp() * 1e6
        assert all(at < as_of for at in seen)
        ends[number - row["clicks_back"]] = max(ends.get(number - row["clicks_back"], 0), end)
    assert all(len(rows[holder]["clicks_at"]) == end for holder, end in ends.items())
    assert all(row["clicks_at"] == [] for i, row in enumerate(rows) if i not in ends)


SMALL = st.integers(0, 12)
ANY_EVENTS = st.lists(
    st.builds(oracle.Event, oracle.USERS, SMALL | st.none(), SMALL, oracle.ITEMS, st.just(1.0)),
    max_size=40,
)
ANY_ROWS = st.lists(st.tuples(oracle.USERS, SMALL | st.none()), min_size=1, max_size=25)


@settings(max_examples=settings().max_examples // 12, deadline=None)
@given(
    rows=ANY_ROWS,
    events=ANY_EVENTS,
    rows_per_row_group=st.integers(1, 9),
    bytes_per_file=st.sampled_from([1, 100, 10_000]),
    logged_at=st.sampled_from([None, "arrived"]),
    max_len=st.sampled_from([1, 3, 50]),
)
def test_any_rows_have_the_events_of_the_oracle(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str | None, int | None]],
    events: list[oracle.Event],
    rows_per_row_group: int,
    bytes_per_file: int,
    logged_at: str | None,
    max_len: int,
) -> None:
    place = tmp_path_factory.mktemp("any")
    output = {"rows_per_row_group": rows_per_row_group, "bytes_per_file": bytes_per_file}
    job = job_of(place, spec_of(output, logged_at=logged_at, max_len=max_len))
    users, times = zip(*rows, strict=True)
    columns = {
        "row": pa.array(range(len(rows)), pa.int64()),
        "user": pa.array(users, pa.string()),
        "ts": pa.array(times, US),
        "item": pa.nulls(len(rows), pa.string()),
    }
    put_parquet(place / "raw/a.parquet", columns, row_group_size=7)
    log = pa.Table.from_batches([oracle.batch_of(events)])
    put_parquet(place / "log/a.parquet", log, row_group_size=11)
    extract_files(job, runner=LocalRunner(1))
    found = dict[int, list[int]]()
    for path in files_of(job):
        with pq.ParquetFile(path) as file:
            for i in range(file.num_row_groups):
                stored = file.read_row_group(i).to_pylist()
                for number, row in enumerate(stored):
                    items = stored[number - row["clicks_back"]]["clicks_item"]
                    first = row["clicks_end"] - row["clicks_length"]
                    found[row["row"]] = items[first : row["clicks_end"]]
    [own] = job.spec.histories
    seen = [oracle.seen(events, user, time, own) for user, time in rows]
    signs = [[item_sign(event.item) for event in of_row] for of_row in seen]
    assert found == dict(enumerate(signs))


def item_sign(item: str | None) -> int:
    return int(sign(1, value_hash(pa.array([item], pa.string())))[0].as_py())


def files_of(job: ExtractJob) -> list[Path]:
    return [Path(file.url) for file in open_delta(job.table_url).data_files]


def test_a_key_may_fill_row_groups_and_files(job: ExtractJob) -> None:
    extract_files(job)
    counted: dict[int, list[tuple[str, int]]] = {}
    for path in files_of(job):
        with pq.ParquetFile(path) as file:
            for i in range(file.num_row_groups):
                rows = file.read_row_group(i)
                for key in set(rows["clicks_key"].to_pylist()) - {0}:
                    counted.setdefault(key, []).append((path.name, i))
    holders = max(counted.values(), key=len)
    assert len(holders) > 3
    assert len({name for name, _ in holders}) > 1
    assert len({(unit_and_part(name) or (0, 0))[0] for name, _ in holders}) == 1


def test_files_do_not_depend_on_threads_or_on_how_the_log_is_cut(
    job: ExtractJob, tmp_path: Path
) -> None:
    extract_files(job, runner=LocalRunner(1))
    expected = [path.read_bytes() for path in files_of(job)]
    events = read(job.events["clicks"])
    put_parquet(tmp_path / "other/x.parquet", events.take(list(range(899, -1, -1))))
    other = replace(job, events={"clicks": str(tmp_path / "other")}, table_url=f"{job.table_url}2")
    extract_files(other, runner=LocalRunner(3))
    assert [path.read_bytes() for path in files_of(other)] == expected
    told = history(other.table_url)[0].metadata
    assert told is not None
    assert told.spec_hash == job.spec.hash


def test_the_schema_has_ranges_and_files_have_lists(job: ExtractJob) -> None:
    extract_files(job)
    snapshot = open_delta(job.table_url)
    kept = [column.name for column in snapshot.schema.kept]
    assert kept == ["ts", "row", "clicks_end", "clicks_length", "clicks_back"]
    hidden = ["clicks_key", "clicks_item", "clicks_price", "clicks_at"]
    for path in files_of(job):
        found = pq.read_schema(path)
        assert found.names == ["item", *kept, *hidden]
        metadata = json.loads(found.metadata[KEY.encode()])
        assert [metadata[name] for name in ("format", "cluster_by", "histories")] == [
            *(3, "user"),
            ["clicks"],
        ]
        with pq.ParquetFile(path) as file:
            column = file.metadata.row_group(0).column(len(found.names) - 1)
            assert column.path_in_schema == "clicks_at.list.element"
            assert "DELTA_BINARY_PACKED" in column.encodings
    rows = open_table(job.table_url).to_arrow()
    assert set(rows.column_names) == {"item", *kept}
    assert rows.num_rows == 500


def test_what_is_left_out_is_counted(job: ExtractJob) -> None:
    events = read(job.events["clicks"]).to_pylist()
    num_incomplete = sum(None in (event["user"], event["at"]) for event in events)
    num_nan = sum(event["price"] is not None and math.isnan(event["price"]) for event in events)
    assert min(num_incomplete, num_nan) > 10
    report = extract_files(job)
    assert report.counts == {
        "clicks.events without key or time": num_incomplete,
        "clicks.price: nan": num_nan,
    }


def test_events_that_the_spec_skips_are_counted_and_shown(job: ExtractJob, tmp_path: Path) -> None:
    inputs = oracle.document_of()["histories"][0]["inputs"]
    inputs |= {"price": {"type": "long", "on_error": "skip"}}
    spec = spec_of(inputs=inputs)
    events = read(job.events["clicks"]).slice(0, 3)
    prices = pa.array([1.5, 2.0, 1e30])
    put_parquet(tmp_path / "c/x.parquet", events.set_column(4, "price", prices))
    report = extract_files(replace(job, spec=spec, events={"clicks": str(tmp_path / "c")}))
    assert report.counts["clicks.skipped events"] == 2
    assert report.num_rows_skipped == 0
    assert {example.column for example in report.examples} == {"clicks.price"}


def test_a_table_without_any_event_or_any_key_is_whole(job: ExtractJob, tmp_path: Path) -> None:
    put_parquet(tmp_path / "none/x.parquet", EVENTS.empty_table())
    nothing = replace(job, events={"clicks": str(tmp_path / "none")})
    extract_files(nothing)
    assert check_rows(nothing) == 0
    rows = read(job.input_url)
    unknown = rows.set_column(1, "user", pa.nulls(len(rows), pa.string()))
    put_parquet(tmp_path / "unknown/x.parquet", unknown)
    without = replace(
        job, input_url=str(tmp_path / "unknown"), table_url=f"{job.table_url}2", run_id="b"
    )
    extract_files(without)
    assert check_rows(without) == 0


def test_each_partition_sees_the_whole_log(job: ExtractJob, tmp_path: Path) -> None:
    rows = read(job.input_url)
    for day in range(3):
        of_day = rows.filter(pa.array([row % 3 == day for row in rows["row"].to_pylist()]))
        put_parquet(tmp_path / f"days/day={day}/x.parquet", of_day, row_group_size=50)
    days = replace(
        job,
        input_url=str(tmp_path / "days"),
        partition_from_path=("day",),
        no_partition=False,
    )
    extract_files(days)
    assert len({str(file.partition) for file in open_delta(days.table_url).data_files}) == 3
    for day in range(3):
        of_day = replace(days, input_url=str(tmp_path / f"days/day={day}"))
        assert check_rows(of_day, where=f"day = '{day}'") > 300


@pytest.mark.parametrize("form", ["csv", "jsonl", "delta"])
def test_the_log_may_be_any_raw_input(job: ExtractJob, tmp_path: Path, form: str) -> None:
    extract_files(job)
    events, place = read(job.events["clicks"]), tmp_path / form
    url = str(place)
    if form == "delta":
        write_deltalake(url, events)
        url = f"delta+{url}"
    else:
        place.mkdir()
        plain = [{**event, "price": event["price"]} for event in events.to_pylist()]
        if form == "csv":
            pyarrow.csv.write_csv(events, place / "log.csv")
        else:
            lines = (json.dumps(without_none(event), default=str) for event in plain)
            (place / "log.jsonl").write_text("\n".join(lines))
    other = replace(job, events={"clicks": url}, table_url=f"{job.table_url}2")
    extract_files(other)
    assert (
        open_table(other.table_url)
        .to_arrow()
        .sort_by("row")
        .equals(open_table(job.table_url).to_arrow().sort_by("row"))
    )


def without_none(event: _Row) -> _Row:
    return {
        name: value
        for name, value in event.items()
        if value is not None and not (isinstance(value, float) and math.isnan(value))
    }


def test_an_equal_run_has_equal_events(job: ExtractJob, tmp_path: Path) -> None:
    assert extract_files(job).committed
    assert not extract_files(replace(job, run_id="again")).committed
    put_parquet(tmp_path / "log/c.parquet", read(job.events["clicks"]).slice(0, 5))
    assert extract_files(replace(job, run_id="more")).committed


def test_events_of_all_histories_are_named_and_no_others(job: ExtractJob) -> None:
    with pytest.raises(
        ConfigError, match=r"^events: expected the log of the history 'clicks', found none: give -"
    ):
        extract_files(replace(job, events={}))
    both = {**job.events, "views": "log"}
    with pytest.raises(ConfigError, match=r"^events: expected those of clicks, found 'views'"):
        extract_files(replace(job, events=both))
    with pytest.raises(ConfigError, match=r"found 'click'; did you mean 'clicks'\?$"):
        extract_files(replace(job, events={"click": "log"}))
    plain = load_spec(oracle.document_of() | {"histories": []})
    with pytest.raises(ConfigError, match=r"^events: expected none, as the spec .* found 'clicks'"):
        extract_files(replace(job, spec=plain))
    wrong: tuple[tuple[Any, str], ...] = (
        ("log", "a log by the name of its history, found 'log'"),
        ({"clicks": 5}, "the URL of the log of clicks, or a DataFrame .*, found int"),
    )
    for events, said in wrong:
        with pytest.raises(ConfigError, match=f"^events: expected {said}"):
            api.extract(job.spec, job.input_url, job.table_url, events=events)
    assert open_delta_or_none(job.table_url) is None


def test_histories_have_one_key_by_which_rows_are_clustered(job: ExtractJob) -> None:
    with pytest.raises(SpecError, match=r"^output.cluster_by: expected 'user', the key of the fir"):
        Extractor(spec_of({"cluster_by": "item"}))
    document = oracle.document_of()
    [first] = document["histories"]
    slots = [{"slot": 401, "name": "sold_price", "op": "identity", "of": "price"}]
    second = first | {"name": "sold", "key": "item", "slots": slots}
    spec = load_spec(document | {"histories": [first, second]})
    events = {**job.events, "sold": job.events["clicks"]}
    with pytest.raises(ConfigError, match=r"^histories\[1\].key: expected 'user', .* found 'item'"):
        extract_files(replace(job, spec=spec, events=events))


def test_several_histories_of_one_key(job: ExtractJob) -> None:
    document = oracle.document_of()
    [first] = document["histories"]
    slots = [{"slot": 401, "name": "seen_item", "op": "hash", "of": "item"}]
    second = first | {"name": "seen", "slots": slots, "window": "2m", "max_len": 500}
    document |= {"histories": [first, second], "keep": ["ts", "row"]}
    document["inputs"] |= {"row": "long"}
    two = replace(
        job, spec=load_spec(document), events={**job.events, "seen": job.events["clicks"]}
    )
    extract_files(two)
    rows = {row["row"]: row for row in read(job.input_url).to_pylist()}
    events = events_by_user(two)
    num_found, extractor = 0, Extractor(two.spec)
    names = ["clicks_item", "seen_item"]
    with FeatureLoader(two.table_url, slots=names, extras=["row"], batch_size=100) as loader:
        for batch in loader:
            for name in names:
                values, offsets = batch[name].values.tolist(), batch[name].offsets.tolist()
                for number, (a, b) in zip(
                    batch.extras["row"].to_pylist(), pairwise(offsets), strict=True
                ):
                    given = dict.fromkeys(two.events, events.get(rows[number]["user"], []))
                    assert values[a:b] == extractor.one(rows[number], given)[name]
                    num_found += b - a
    assert num_found > 2_000


def test_events_that_do_not_fit_are_named_with_file_and_row(
    job: ExtractJob, tmp_path: Path
) -> None:
    events = read(job.events["clicks"])
    put_parquet(tmp_path / "c/x.parquet", events.drop_columns(["item"]))
    wrong = replace(job, events={"clicks": str(tmp_path / "c")})
    with pytest.raises(InputError, match=r"c/x.parquet: missing input column: expected 'item'"):
        extract_files(wrong)
    (tmp_path / "nowhere").mkdir()
    with pytest.raises(InputError, match=r"^no raw files at .*nowhere"):
        extract_files(replace(job, events={"clicks": str(tmp_path / "nowhere")}))
    inside = replace(job, events={"clicks": str(tmp_path)})
    with pytest.raises(InputError, match="lies within the input"):
        extract_files(inside)
    inputs = oracle.document_of()["histories"][0]["inputs"]
    inputs |= {"item": {"type": "string", "on_error": "fail"}}
    column = pa.array([b"ok"] * 80 + [b"\xff"] * (len(events) - 80))
    put_parquet(tmp_path / "d/x.parquet", events.set_column(3, "item", column))
    failing = replace(job, spec=spec_of(inputs=inputs), events={"clicks": str(tmp_path / "d")})
    with pytest.raises(InputError, match=r"d/x.parquet.* row 80: column 'item'"):
        extract_files(failing)
    assert open_delta_or_none(job.table_url) is None


def by_compact(job: ExtractJob) -> None:
    compact(job.table_url, field_ids=True)


def by_deletion(job: ExtractJob) -> None:
    delete_rows(job.table_url, "row = 17")


def by_group(job: ExtractJob) -> None:
    plain = replace(job, spec=plain_spec(), events={})
    extract_group(GroupJob(job=plain, name="more", key="row"))


def by_relabel(job: ExtractJob) -> None:
    api.relabel(plain_spec(), job.input_url, job.table_url, key="row", no_partition=True)


def plain_spec() -> Spec:
    document = oracle.document_of() | {"histories": []}
    document["inputs"] |= {"row": "long"}
    more = {"slot": 2, "name": "other", "op": "hash", "of": "user"}
    return load_spec(
        document
        | {"keep": ["ts", "row"], "slots": [*document["slots"], more], "labels": {"click": "row"}}
    )


def by_whole_spec(job: ExtractJob) -> None:
    """Slots that the table lacks, by a spec that has its history, too."""
    document = oracle.document_of()
    document["inputs"] |= {"row": "long"}
    more = {"slot": 2, "name": "other", "op": "hash", "of": "user"}
    document |= {"keep": ["ts", "row"], "slots": [*document["slots"], more]}
    spec = load_spec(document | {"labels": {"click": "row"}})
    wider = replace(job, spec=spec, events={}, run_id="wider")
    extract_group(GroupJob(job=wider, name="more", key="row"))
    extract_group(GroupJob(job=wider, name="labels", key="row", labels=True))


LATE = {"logged_at": "arrived", "window": "3m", "max_len": 60}


@pytest.mark.parametrize(
    ("history", "changes"),
    [
        (LATE, [by_group, by_relabel, by_deletion, by_compact]),
        ({}, [by_deletion, by_whole_spec, by_compact]),
    ],
)
def test_rows_keep_their_events_when_the_table_is_changed(
    job: ExtractJob, history: dict[str, Any], changes: list[Callable[[ExtractJob], None]]
) -> None:
    job = replace(job, spec=spec_of(**history))
    extract_files(job)
    for change in changes:
        change(job)
    assert check_rows(job, gone=[17]) > 1_000
    assert {"other", "click"} <= set(open_table(job.table_url).to_arrow().column_names)
    assert not any(file.groups for file in open_snapshot(job.table_url).data_files)


def test_statistics_tell_coverage_lengths_and_ages(job: ExtractJob, tmp_path: Path) -> None:
    keyed = replace(job, no_partition=False, partition={"dt": "1"})
    plain = replace(keyed, partition={"dt": "2"}, run_id="c", spec=plain_spec(), events={})
    extract_files(keyed)
    check_statistics(job, 500)
    delete_rows(job.table_url, "row < 250")
    check_statistics(job, 250)
    extract_files(plain)
    profile = check_statistics(job, 750)
    report(job.table_url, tmp_path / "report.html")
    shown = str(profile).splitlines()[-1]
    assert re.fullmatch(
        r"history clicks: \d+\.\d% of rows have events, 2\.\d+ each, at most 3; their ages at "
        r"1 25 50 75 99 %: \S+s \S+s \S+s \S+ \S+m \(ranks ±\S+%\)",
        shown,
    )
    assert "history clicks" in (tmp_path / "report.html").read_text()
    assert "clicks" not in open_table(job.table_url).profile().histories


def check_statistics(job: ExtractJob, num_rows: int) -> Profile:
    lengths, ages = list[int](), list[float]()
    slots = ["clicks_age"]
    with FeatureLoader(job.table_url, slots=slots, batch_size=100) as loader:
        for batch in loader:
            lengths += batch["clicks_age"].offsets.diff().tolist()
            ages += batch["clicks_age"].values.tolist()
    profile = open_table(job.table_url).profile(stored=True)
    found = profile.as_dict()["histories"]["clicks"]
    has_events = [length for length in lengths if length]
    assert profile.num_rows == len(lengths) == num_rows
    assert found["coverage"] == pytest.approx(len(has_events) / num_rows)
    assert (found["num_values"], found["length_max"]) == (len(ages), max(lengths))
    assert found["length_mean"] == pytest.approx(len(ages) / len(has_events))
    assert [found["min"], found["mean"], found["max"]] == pytest.approx(
        [min(ages), sum(ages) / len(ages), max(ages)]
    )
    assert found["quantiles"][2] == pytest.approx(sorted(ages)[len(ages) // 2], abs=30)
    return profile


def test_people_see_the_events_of_rows_with_the_texts_of_signs(
    job: ExtractJob, capsys: Any
) -> None:
    extract_files(job)
    rows = {row["row"]: row for row in read(job.input_url).to_pylist()}
    events, extractor = events_by_user(job), Extractor(job.spec)
    table = open_table(job.table_url)
    num_texts = 0
    for row, texts in zip(
        table.head(20).to_pylist(), table.named(table.head(20)).to_pylist(), strict=True
    ):
        given = events.get(rows[row["row"]]["user"], [])
        expected = extractor.one(rows[row["row"]], {"clicks": given})
        for name in ("clicks_item", "clicks_price", "clicks_age"):
            gone = 0 if name == "clicks_item" else math.nan
            values: Any = expected[name]
            shown = [None if str(each) == str(gone) else each for each in values]
            assert row[name] == shown
        known = {None: None} | {item_sign(f"i{n}"): f"i{n}" for n in range(20)}
        assert texts["clicks_item"] == [known.get(sign, str(sign)) for sign in row["clicks_item"]]
        num_texts += len(set(texts["clicks_item"]) & set(known.values()))
        assert not {"clicks_end", "clicks_length", "clicks_back"} & row.keys()
    assert "clicks_item" not in table.head(1, slots=[]).column_names
    assert num_texts > 5
    where = "clicks_length = 3 and item is not null"
    options = ["table", "show", job.table_url, "--where", where]
    cli.main([*options, "--slots", "clicks_*"], standalone_mode=False)
    shown = capsys.readouterr().out
    cli.main([*options, "--rows", "1"], standalone_mode=False)
    [line] = capsys.readouterr().out.splitlines()
    first = json.loads(line)
    assert len(first["clicks_age"]) == 3
    assert next(part for part in shown.splitlines() if "clicks_age" in part).count(",") == 2
    assert ", ".join(item or "?" for item in first["clicks_item"]) in shown


def test_a_spec_without_statistics_stores_none_of_histories(job: ExtractJob) -> None:
    extract_files(replace(job, spec=spec_of({"statistics": False})))
    assert not list(Path(job.table_url).rglob("*.statistics"))


def plain_table(job: ExtractJob, **changes: Any) -> None:
    """Rows without histories, in the order of the input."""
    output = replace(job.spec.output, rows_per_row_group=90, rows_per_file=250)
    plain = replace(plain_spec(), output=output, **changes)
    extract_files(replace(job, spec=plain, events={}, run_id="base"))


def with_a_group(job: ExtractJob, key: str | None = "row", **options: Any) -> ExtractReport:
    return extract_group(GroupJob(job=job, name="seen", key=key), **options)


@pytest.mark.parametrize("changes", [{"max_len": 400}, LATE], ids=str)
def test_a_group_gives_a_history_to_a_table_in_any_order(
    job: ExtractJob, tmp_path: Path, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    job = replace(job, spec=spec_of(**changes))
    plain_table(job)
    assert with_a_group(job).committed
    [group] = open_snapshot(job.table_url).groups
    assert group.schema.column_names == ("clicks_end", "clicks_length", "clicks_back")
    by_relabel(job)
    staging = {"directory": str(tmp_path / "cache"), "mode": "ranges"}
    assert check_rows(job, staging=staging, shuffle=True, order="static") > 1_000
    by_deletion(job)
    by_compact(job)
    assert not any(file.groups for file in open_snapshot(job.table_url).data_files)
    metadata = pq.read_schema(files_of(job)[0]).metadata[KEY.encode()]
    assert json.loads(metadata)["histories"] == ["clicks"]
    assert check_rows(job, gone=[17]) > 1_000
    # Rows are as before the group, and not by its key.
    assert "a batch has few keys" not in caplog.text
    extract_files(replace(job, run_id="whole"))
    with FeatureLoader(job.table_url, slots=["clicks_*"], batch_size=64):
        pass
    assert "rows are read as they lie in files, by user in part-" in caplog.text


def test_a_group_keeps_the_time_of_rows_that_the_table_lacks(job: ExtractJob) -> None:
    plain_table(job, keep=("row",))
    with_a_group(job)
    [group] = open_snapshot(job.table_url).groups
    assert group.schema.column_names[0] == "ts"
    assert check_rows(job) > 1_000


def test_a_group_of_rows_with_other_times_than_the_table_is_refused(
    job: ExtractJob, tmp_path: Path
) -> None:
    """They would see events of the future of the table's rows."""
    plain_table(job)
    first, second = (tmp_path / f"raw/{name}.parquet" for name in "ab")
    rows = pq.read_table(first).to_pylist() + pq.read_table(second).to_pylist()
    for change in (datetime.timedelta(seconds=900), None):
        later = [dict(row) for row in rows]
        for row in later:
            if row["row"] in (3, 5):
                row["ts"] = None if change is None else (row["ts"] or START) + change
        put_parquet(tmp_path / "later/a.parquet", pa.Table.from_pylist(later, ROWS))
        with pytest.raises(
            InputError, match=r"^'ts' of 2 of 500 rows of the table .* where row is 3: expected 20"
        ):
            with_a_group(replace(job, input_url=str(tmp_path / "later")))
    assert not open_snapshot(job.table_url).groups


def test_a_history_is_read_from_its_group_beside_another_of_the_base(job: ExtractJob) -> None:
    """The key of the second one is another, by which rows cannot be clustered as well."""
    extract_files(job)
    document = oracle.document_of()
    [first] = document["histories"]
    slots = [
        {"slot": 401, "name": "sold_price", "op": "identity", "of": "price"},
        {"slot": 402, "name": "sold_age", "op": "time_since", "of": "at", "unit": "minute"},
    ]
    sold = first | {"name": "sold", "key": "item", "slots": slots, "max_len": 30}
    document |= {"histories": [first, sold], "keep": ["ts", "row"]}
    document["inputs"] |= {"row": "long"}
    two = replace(job, spec=load_spec(document), events={"sold": job.events["clicks"]})
    with_a_group(two)
    rows = {row["row"]: row for row in read(job.input_url).to_pylist()}
    by_item: dict[str | None, list[_Row]] = {}
    for event in read(job.events["clicks"]).to_pylist():
        by_item.setdefault(event["item"], []).append(event)
    events, extractor, num_found = events_by_user(job), Extractor(two.spec), 0
    names = ["clicks_item", "clicks_age", "sold_price", "sold_age"]
    for change in (None, by_deletion):
        if change is not None:
            change(two)
        with FeatureLoader(two.table_url, slots=names, extras=["row"], batch_size=90) as loader:
            for batch in loader:
                lists = {name: lists_of(batch[name]) for name in names}
                for i, number in list(enumerate(batch.extras["row"].to_pylist()))[::3]:
                    row = rows[number]
                    given = {
                        "clicks": events.get(row["user"], []),
                        "sold": by_item.get(row["item"], []),
                    }
                    expected = extractor.one(row, given)
                    for name in names:
                        assert str(lists[name][i]) == str(expected[name])
                    num_found += len(lists["sold_price"][i])
    assert num_found > 3_000


def test_days_get_slots_and_a_history_in_one_group(job: ExtractJob, tmp_path: Path) -> None:
    rows, more = read(job.input_url), {"slot": 2, "name": "other", "op": "hash", "of": "user"}
    for day, part in (("2026-01-01", rows.slice(0, 180)), ("2026-01-02", rows.slice(180))):
        put_parquet(tmp_path / f"days/dt={day}/a.parquet", part)
    document = oracle.document_of()
    document["inputs"] |= {"row": "long"}
    document |= {"keep": ["ts", "row"], "slots": [*document["slots"], more]}
    spec, url = load_spec(document), f"{tmp_path}/days/dt={{dt}}"
    base = replace(spec_of(), histories=())
    days: dict[str, Any] = {"days": "2026-01-01..2026-01-02"}
    api.extract(base, url, job.table_url, **days)
    group: dict[str, Any] = {"group": "seen", "key": "row", "events": job.events}
    planned = api.extract(spec, url, job.table_url, **days, **group, dry_run=True)
    assert str(planned).splitlines()[0] == (
        "dt=2026-01-01: stale spec (version 0), slots to be added: other, clicks_item, "
        "clicks_price, clicks_age"
    )
    both: dict[str, Any] = {"partition_from_path": ["dt"]}
    found = api.extract(spec, tmp_path / "days", job.table_url, **both, **group)
    # The log is read once for each partition, and its events are counted once.
    whole = api.extract(spec, tmp_path / "days", tmp_path / "whole", **both, events=job.events)
    assert isinstance(found, ExtractReport)
    assert isinstance(whole, ExtractReport)
    lost = "clicks.events without key or time"
    assert found.counts[lost] == whole.counts[lost] > 10
    assert check_rows(replace(job, spec=spec)) > 1_000
    # Days that hold a group's slots are up to date for it, whatever events came since.
    put_parquet(tmp_path / "log/c.parquet", read(job.events["clicks"]).slice(0, 5))
    again = api.extract(spec, url, job.table_url, **days, **group)
    assert isinstance(again, DaysReport)
    assert [day.reason for day in again.days] == [Reason.UP_TO_DATE] * 2


def test_an_equal_group_of_a_history_is_known_and_another_log_makes_it_again(
    job: ExtractJob, tmp_path: Path
) -> None:
    plain_table(job)
    assert with_a_group(job).committed
    assert not with_a_group(replace(job, run_id="again")).committed
    events = read(job.events["clicks"])
    put_parquet(tmp_path / "log/c.parquet", events.slice(0, 300))
    assert with_a_group(replace(job, run_id="more")).committed
    assert check_rows(job) > 1_000


def test_a_history_of_a_stale_group_is_not_read_as_missing(job: ExtractJob) -> None:
    plain_table(job)
    with_a_group(job)
    changed = replace(plain_spec(), keep=("row", "ts"))
    extract_files(replace(job, spec=changed, events={}, run_id="base 2"))
    with pytest.raises(
        StaleGroupError,
        match=r"slot group 'seen' is stale .* clicks_end.* --group seen --key COLUMN --events clicks=URL`, ",
    ):
        check_rows(job)
    options: dict[str, Any] = {"slots": ["clicks_item"], "batch_size": 500}
    with FeatureLoader(job.table_url, stale_groups="missing", **options) as loader:
        assert [batch["clicks_item"].values.tolist() for batch in loader] == [[]]
    with_a_group(replace(job, run_id="again"))
    assert check_rows(job) > 1_000


def test_what_a_group_with_a_history_needs(job: ExtractJob) -> None:
    plain_table(job)
    wrong: tuple[tuple[ExtractJob, str | None, str], ...] = (
        (job, None, r"^histories: expected --key .* for 'clicks', found none"),
        (
            replace(job, events={}),
            "row",
            "^events: expected the log of the history 'clicks', found none",
        ),
    )
    for one, key, said in wrong:
        with pytest.raises(ConfigError, match=said):
            with_a_group(one, key)
    with_a_group(job)
    fails = replace(job, spec=spec_of(max_len=2), run_id="other")
    with pytest.raises(InputError, match="history 'clicks' is stored in another way"):
        with_a_group(fails)
    extract_files(replace(job, table_url=f"{job.table_url}2"))
    with pytest.raises(
        ConfigError, match=r"^events: expected none, as the slot group 'seen' has no histories that"
    ):
        with_a_group(replace(job, table_url=f"{job.table_url}2"))


def lists_of(jagged: Any) -> list[list[Any]]:
    values, offsets = jagged.values.tolist(), jagged.offsets.tolist()
    return [values[a:b] for a, b in pairwise(offsets)]


def test_a_replay_cannot_make_histories(job: ExtractJob) -> None:
    with pytest.raises(
        ConfigError, match=r"^histories: expected none for a replay, .* found clicks; extr"
    ):
        replay(job.spec, job.input_url, job.table_url)
    assert open_delta_or_none(job.table_url) is None


def test_a_preview_shows_the_slots_of_rows(job: ExtractJob) -> None:
    found = preview(job.spec, job.input_url)
    assert [slot.statistics["slot"] for slot in found.slots] == ["item"]
    assert found.histories == ("clicks",)
    assert "without histories: the slots of histories need all events" in str(found)
    for slot in ("clicks_age", "303"):
        with pytest.raises(SpecError, match=f"^slots: expected a slot of the rows, found '{slot}'"):
            preview(job.spec, job.input_url, slot=slot)


def test_a_history_of_a_table_keeps_its_meaning(job: ExtractJob, tmp_path: Path) -> None:
    keyed = replace(job, no_partition=False, partition={"dt": "1"})
    extract_files(keyed)
    other = replace(keyed, partition={"dt": "2"}, run_id="b", spec=spec_of(max_len=7))
    with pytest.raises(
        InputError, match=r"history 'clicks' is stored in another way in .*; extract"
    ):
        extract_files(other)
    # Files without the history may join the table.
    plain = replace(keyed, partition={"dt": "2"}, run_id="c", spec=plain_spec(), events={})
    extract_files(plain)
    assert check_rows(keyed, where="dt = '1'") > 1_000
    options: dict[str, Any] = {"slots": ["clicks_item"], "where": "dt = '2'", "batch_size": 500}
    with FeatureLoader(job.table_url, **options) as loader:
        [batch] = [batch.clone() for batch in loader]
    assert batch["clicks_item"].values.tolist() == []


def test_a_table_may_get_a_history_later(job: ExtractJob) -> None:
    keyed = replace(job, no_partition=False, partition={"dt": "1"})
    plain = replace(keyed, partition={"dt": "2"}, run_id="c", spec=plain_spec(), events={})
    extract_files(plain)
    extract_files(keyed)
    by_deletion(job)
    compact(job.table_url, field_ids=True)
    assert check_rows(keyed, gone=[17], where="dt = '1'") > 1_000
    options: dict[str, Any] = {"slots": ["clicks_item"], "where": "dt = '2'", "batch_size": 500}
    with FeatureLoader(job.table_url, **options) as loader:
        assert [batch["clicks_item"].values.tolist() for batch in loader] == [[]]
    # The former rows are made again, with their events.
    extract_files(replace(keyed, partition={"dt": "2"}, run_id="d"))
    lengths = open_table(job.table_url).to_arrow(where="dt = '2'").column("clicks_length")
    assert sum(lengths.to_pylist()) > 1_000


def test_a_history_that_comes_later_takes_no_column_of_another(job: ExtractJob) -> None:
    document = oracle.document_of() | {"histories": []}
    document["inputs"] |= {"row": "long", "clicks_at": "long"}
    document["keep"] = ["ts", "row", "clicks_at"]
    rows = read(job.input_url)
    place = Path(job.input_url).parent / "named"
    put_parquet(place / "a.parquet", rows.append_column("clicks_at", rows["row"]))
    named = replace(job, spec=load_spec(document), input_url=str(place), events={})
    extract_files(replace(named, partition={"dt": "1"}, no_partition=False))
    with pytest.raises(
        InputError, match=r"column 'clicks_at' is of the rows in .* and would be of"
    ):
        extract_files(replace(job, partition={"dt": "2"}, no_partition=False, run_id="b"))


def test_the_command_line_takes_events(job: ExtractJob, tmp_path: Path, capsys: Any) -> None:
    spec = tmp_path / "spec.yaml"
    document = oracle.document_of()
    document["inputs"] |= {"row": "long"}
    spec.write_text(json.dumps(document | {"keep": ["ts", "row"]}))
    options = ["--spec", str(spec), "--input", job.input_url, "--table", job.table_url]
    cli.main(
        ["extract", *options, "--events", f"clicks={job.events['clicks']}"], standalone_mode=False
    )
    assert "500 rows" in capsys.readouterr().out
    assert check_rows(replace(job, spec=load_spec(str(spec)))) > 1_000
    with pytest.raises(ConfigError, match="give --events clicks=URL"):
        cli.main(["extract", *options], standalone_mode=False)


@pytest.mark.parametrize("when", ["rows", "files"])
def test_a_run_that_fails_leaves_nothing(job: ExtractJob, when: str) -> None:
    descriptors, files = num_unnamed_files(), our_files()

    def failing(num_files: int, num_files_total: int, num_rows: int) -> None:
        if num_rows and (when == "rows" or num_files):
            raise RuntimeError("stop here")

    with pytest.raises(RuntimeError, match="stop here"):
        extract_files(job, progress=failing)
    assert open_delta_or_none(job.table_url) is None
    assert [path for path in Path(job.table_url).rglob("*") if path.is_file()] == []
    assert (num_unnamed_files(), our_files()) == (descriptors, files)


KILLED = """
import os, signal, sys
import featstore

def kill(num_files, num_files_total, num_rows):
    if num_files == 2:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    spec, raw, log, table = sys.argv[1:]
    featstore.extract(spec, raw, table, events={"clicks": log}, progress=kill)
"""


def test_a_run_that_is_killed_between_files_leaves_no_version_and_no_temporary_file(
    job: ExtractJob, tmp_path: Path
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    spec = tmp_path / "spec.yaml"
    document = oracle.document_of()
    document["inputs"] |= {"row": "long"}
    output = {"rows_per_row_group": 40, "rows_per_file": 120}
    spec.write_text(json.dumps(document | {"keep": ["ts", "row"], "output": output}))
    program = tmp_path / "program.py"
    program.write_text(KILLED)
    run_python(
        program,
        *(spec, job.input_url, job.events["clicks"], job.table_url),
        status=-signal.SIGKILL,
        variables={"TMPDIR": str(temporary)},
    )
    assert list(Path(job.table_url).rglob("part-*.parquet"))
    assert open_delta_or_none(job.table_url) is None
    assert list(temporary.iterdir()) == []
    extract_files(job)
    assert check_rows(job) > 1_000


PEAK = """
import re, sys
import numpy as np, pyarrow as pa
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.local import LocalRunner
from featstore.extraction.units import history_rows
from featstore.spec.parse import load_spec
from pathlib import Path
from tests.parquet_files import put_parquet

DOCUMENT = {
    "spec": 1,
    "inputs": {"user": "long", "ts": "timestamp"},
    "keep": ["ts"],
    "slots": [{"slot": 1, "name": "user", "op": "hash", "of": "user"}],
    "output": {"rows_per_row_group": 2048, "rows_per_file": 8192},
    "histories": [
        {
            "name": "clicks", "key": "user", "as_of": "ts", "at": "at", "max_len": 200,
            "inputs": {"user": "long", "at": "timestamp", "item": "long", "note": "string"},
            "slots": [
                {"slot": 2, "name": "clicks_item", "op": "hash", "of": "item"},
                {"slot": 3, "name": "clicks_note", "op": "hash", "of": "note"},
            ],
        }
    ],
}

if __name__ == "__main__":
    # As much smaller as the log is than one whose rows of a row group have more events.
    history_rows._MOST_BYTES = 4 << 20
    place, num_files = Path(sys.argv[1]), int(sys.argv[2])
    random, us = np.random.default_rng(1), pa.timestamp("us", tz="UTC")

    def columns(num_rows, time):
        users = pa.array(random.integers(0, 5_000, num_rows))
        return {"user": users, time: pa.array(random.integers(0, 10**9, num_rows), us)}

    put_parquet(place / "raw/a.parquet", columns(16_384, "ts"), row_group_size=4096)
    note = pa.array(["a text of thirty letters or so"] * 250_000)
    for i in range(num_files):
        items = pa.array(random.integers(0, 1 << 40, 250_000))
        own = columns(250_000, "at") | {"item": items, "note": note}
        put_parquet(place / f"log/{i:02d}.parquet", own, row_group_size=250_000)
    # Pages of files do not count, which the system takes back whenever it needs them.
    pattern, peaks = re.compile(r"RssAnon:\\s+(\\d+) kB"), []

    def progress(num_files, num_files_total, num_rows):
        peaks.append(int(pattern.search(Path("/proc/self/status").read_text())[1]) << 10)

    extract_files(
        ExtractJob(
            spec=load_spec(DOCUMENT), no_partition=True, input_url=str(place / "raw"),
            table_url=str(place / "table"), events={"clicks": str(place / "log")},
        ),
        runner=LocalRunner(1),
        progress=progress,
    )
    print(max(peaks))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PEAK)
    peaks = list[int]()
    for num_files in (3, 19):
        place = tmp_path / str(num_files)
        path = {"PYTHONPATH": str(Path(__file__).parents[2])}
        peaks.append(int(run_python(program, place, num_files, variables=path).stdout))
    # 16 files more are 232 MB of events, which would be in memory several times.
    assert peaks[1] - peaks[0] < 120_000_000
