"""The join of raw logs, on Spark, against a join in plain Python over small and nasty logs."""

import datetime
import math
import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from featstore.base.errors import InputError
from featstore.ingest.join import read_source
from featstore.ingest.join_options import (
    Impressions,
    Label,
    LabelJoin,
    LogSource,
    Lookup,
    NegativeSampling,
)
from featstore.ops.hashing import row_hash
from featstore.selection.where import Sample
from tests.ingest.conftest import Engine, LocalEngine, SparkEngine
from tests.parquet_files import put_parquet

NEW_YORK_FALLS_BACK_US = 1_793_512_800_000_000  # 2026-11-01T06:00:00Z
SECOND_US = 1_000_000
CUT_OFF_US = NEW_YORK_FALLS_BACK_US + 14 * SECOND_US
TIME = pa.timestamp("us", tz="UTC")
Row = dict[str, Any]

IMPRESSIONS = pa.schema(
    {"rid": pa.string(), "user": pa.string(), "ts": TIME, "logged": TIME, "price": pa.float64()}
)
EVENTS = pa.schema(
    {
        "eid": pa.string(),
        "user": pa.string(),
        "ts": pa.timestamp("us"),
        "logged": TIME,
        "value": pa.float64(),
    }
)
PROFILES = pa.schema(
    {"user": pa.string(), "ts": TIME, "logged": TIME, "age": pa.int64(), "country": pa.string()}
)


def time_us(draw_second: int, edge_us: int) -> int:
    return NEW_YORK_FALLS_BACK_US + draw_second * SECOND_US + edge_us


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Null once in a while."""
    return st.integers(0, 11).flatmap(lambda n: st.none() if n == 0 else strategy)


TIMES = st.builds(time_us, st.integers(-2, 15), st.sampled_from([-1, 0, 0, 0, 1]))
USERS = optional(st.sampled_from("ab"))
DELAYS_US = st.sampled_from([0, 0, SECOND_US, 3 * SECOND_US, 9 * SECOND_US])
IMPRESSION = st.fixed_dictionaries(
    {
        "rid": optional(st.sampled_from("01234")),
        "user": USERS,
        "ts": optional(TIMES),
        "delay": optional(DELAYS_US),
        "price": st.sampled_from([None, 1.5]),
    }
)
EVENT = st.fixed_dictionaries(
    {
        "eid": optional(st.sampled_from("012")),
        "user": USERS,
        "ts": optional(TIMES),
        "delay": optional(DELAYS_US),
        "value": st.sampled_from([None, math.nan, 0.0, 1.0, 2.5]),
    }
)
PROFILE = st.fixed_dictionaries(
    {
        "user": USERS,
        "ts": optional(TIMES),
        "delay": optional(DELAYS_US),
        "age": st.sampled_from([None, 20, 30]),
        "country": st.sampled_from(["at", "nz"]),
    }
)
CASE = st.fixed_dictionaries(
    {
        "impressions": st.lists(IMPRESSION, max_size=7),
        "events": st.lists(EVENT, max_size=6),
        "profiles": st.lists(PROFILE, max_size=5),
    }
)


def logged_rows(cases: list[Row], log: str) -> list[Row]:
    """The rows of many small logs as one: keys of different cases never meet."""
    rows = []
    for number, case in enumerate(cases):
        for drawn in case[log]:
            row = {
                key: f"{number}-{value}" if key in ("rid", "user", "eid") and value else value
                for key, value in drawn.items()
            }
            delay = row.pop("delay")
            row["logged"] = None if None in (row["ts"], delay) else row["ts"] + delay
            rows.append(row)
    return rows


def write_log(path: Path, rows: list[Row], schema: pa.Schema) -> str:
    path.mkdir(parents=True, exist_ok=True)
    shuffled = random.Random(1).sample(rows, len(rows))
    middle = len(shuffled) // 2
    for name, part in (("a", shuffled[:middle]), ("b", shuffled[middle:])):
        pq.write_table(pa.Table.from_pylist(part, schema=schema), path / f"{name}.parquet")
    return str(path)


def rank_of_content(url: str, columns: list[str]) -> dict[str, int]:
    """The hash of the values, by the row as text."""
    table = pq.read_table(url, columns=columns).combine_chunks()
    hashes = row_hash([table[name].combine_chunks() for name in columns]).to_pylist()
    rows = (python_values(row, columns) for row in table.to_pylist())
    return {repr(row): value for row, value in zip(rows, hashes, strict=True)}


def ranked_by(engine: SparkEngine, url: str, columns: list[str]) -> dict[str, int]:
    """The same, by Spark."""
    hashed = (
        engine.spark.read.parquet(url)
        .selectExpr(*columns, f"xxhash64({', '.join(columns)}) as hash")
        .collect()
    )
    return {repr([row[name] for name in columns]): row["hash"] for row in hashed}


def in_python(rows: list[Row], schema: pa.Schema) -> list[Row]:
    """The rows as they are read back: times as datetime, naive where the column is."""
    found: list[dict[str, Any]] = pa.Table.from_pylist(rows, schema=schema).to_pylist()
    return found


def full_join(directory: Path, **changes: Any) -> LabelJoin:
    """Every kind of label, every attribution, and lookups with and without a log time."""
    clicks = LogSource(url=str(directory / "events"))
    common: Row = {"source": clicks, "key": ("user",), "event_time": "ts", "window_s": 4}
    labels = (
        Label(name="any", **common, log_time="logged", attribution="last", with_time=True),
        Label(
            name="count",
            **common,
            kind="count",
            attribution="all",
            event_id=("eid",),
            log_time="logged",
        ),
        Label(name="sum", **common, kind="sum", value="value", attribution="first"),
        Label(
            name="first",
            **common,
            kind="first",
            value="value",
            attribution="last",
            log_time="logged",
        ),
        Label(
            name="last",
            **common,
            kind="last",
            value="value",
            attribution="first",
            horizon_s=6,
            event_id=("eid",),
        ),
    )
    profiles: Row = {
        "source": LogSource(url=str(directory / "profiles")),
        "key": ("user",),
        "event_time": "ts",
    }
    lookups = (
        Lookup(
            name="known", **profiles, columns=("age", "country"), log_time="logged", max_age_s=5
        ),
        Lookup(name="plain", **profiles, columns=("age",)),
    )
    impressions = Impressions(
        source=LogSource(url=str(directory / "impressions")),
        row_id=("rid",),
        event_time="ts",
        log_time="logged",
    )
    options: Row = {
        "impressions": impressions,
        "labels": labels,
        "lookups": lookups,
        "cut_off": datetime.datetime.fromtimestamp(CUT_OFF_US / 1e6, datetime.UTC),
        "output_url": str(directory / "output"),
        "drop_incomplete": True,
    }
    return LabelJoin(**options | changes)


class Oracle:
    """The join, one impression and one event at a time. Times are microseconds."""

    def __init__(
        self, cases: list[Row], hashes: dict[str, int], ages: dict[tuple[str, ...], dict[str, int]]
    ) -> None:
        self.hashes, self.ages = hashes, ages
        self.impressions = self.distinct(logged_rows(cases, "impressions"))
        self.of_user: dict[str, list[Row]] = defaultdict(list)
        for row in self.impressions:
            self.of_user[row["user"]].append(row)
        self.events = logged_rows(cases, "events")
        self.versions: dict[str, list[Row]] = defaultdict(list)
        for row in logged_rows(cases, "profiles"):
            if row["user"] is not None and row["ts"] is not None:
                self.versions[row["user"]].append(row)

    def distinct(self, rows: list[Row]) -> list[Row]:
        best: dict[str, tuple[Any, Row]] = {}
        plain = in_python(rows, IMPRESSIONS)
        for row, read in zip(rows, plain, strict=True):
            if row["rid"] is None or row["ts"] is None:
                continue
            content = self.hashes[repr(python_values(read, IMPRESSIONS.names))]
            rank = (row["ts"], row["ts"] if row["logged"] is None else row["logged"], content)
            if row["rid"] not in best or rank < best[row["rid"]][0]:
                best[row["rid"]] = (rank, row)
        return [row for _, row in best.values()]

    def known_events(self, label: Label) -> dict[str, list[tuple[int, int, Any]]]:
        """Per user the distinct events as (time, known, value)."""
        distinct: dict[Any, tuple[Any, tuple[int, int, Any]]] = {}
        for row in self.events:
            if row["user"] is None or row["ts"] is None:
                continue
            known = row["logged"] if label.log_time and row["logged"] is not None else row["ts"]
            if known >= CUT_OFF_US:
                continue
            value = row["value"] if label.value and row["value"] == row["value"] else None
            named = bool(label.event_id) and row["eid"] is not None
            identity = (row["user"], row["eid"]) if named else (row["user"], None, row["ts"], value)
            rank = (known, row["ts"], null_first(value))
            if identity not in distinct or rank < distinct[identity][0]:
                distinct[identity] = (rank, (row["ts"], known, value))
        by_user = defaultdict(list)
        for identity, (_, event) in distinct.items():
            by_user[identity[0]].append(event)
        return by_user

    def attributed(
        self, label: Label, impression: Row, events: list[tuple[int, int, Any]]
    ) -> list[tuple[int, int, Any]]:
        """Event by event: which impressions could it belong to, and which of them does it?"""
        mine = []
        for event in events:
            able = [
                other
                for other in self.of_user[impression["user"]]
                if 0 <= event[0] - other["ts"] < label.window_s * SECOND_US
            ]
            able.sort(key=lambda other: (other["ts"], other["rid"]))
            chosen = {"first": able[:1], "last": able[-1:], "all": able}[label.attribution]
            if impression in chosen:
                mine.append(event)
        return sorted(mine, key=lambda event: (event[0], event[1], null_first(event[2])))

    def label(self, label: Label) -> dict[str, tuple[Any, int | None]]:
        """By row id: the label, and the time behind it."""
        by_user = self.known_events(label)
        found: dict[str, tuple[Any, int | None]] = {}
        for impression in self.impressions:
            mine = self.attributed(label, impression, by_user.get(impression["user"], []))
            ripe = impression["ts"] + (label.horizon_s or label.window_s) * SECOND_US <= CUT_OFF_US
            if impression["user"] is None or not ripe:
                found[impression["rid"]] = (None, None)
            else:
                found[impression["rid"]] = (
                    label_of(label.kind, mine),
                    mine[0][0] if mine else None,
                )
        return found

    def lookup(self, lookup: Lookup) -> dict[str, tuple[Any, ...]]:
        return {
            impression["rid"]: self.looked_up(lookup, impression) for impression in self.impressions
        }

    def looked_up(self, lookup: Lookup, impression: Row) -> tuple[Any, ...]:
        nothing = (None,) * len(lookup.columns)
        best: Any = None
        for row in self.versions[impression["user"]]:
            known = row["logged"] if lookup.log_time and row["logged"] is not None else row["ts"]
            if row["ts"] > impression["ts"] or known > impression["ts"]:
                continue
            values = tuple(row[column] for column in lookup.columns)
            rank = (row["ts"], known, self.ages[lookup.columns][repr(list(values))])
            if best is None or rank > best[0]:
                best = (rank, values)
        if best is None or (
            lookup.max_age_s is not None
            and impression["ts"] - best[0][0] > lookup.max_age_s * SECOND_US
        ):
            return nothing
        found: tuple[Any, ...] = best[1]
        return found


def python_values(row: Row, names: list[str]) -> list[Any]:
    """As Spark hands them to Python in the session's zone, which is UTC: datetimes without a
    zone.
    """
    return [
        value.replace(tzinfo=None) if isinstance(value, datetime.datetime) else value
        for value in (row[n] for n in names)
    ]


def null_first(value: Any) -> tuple[bool, Any]:
    return (value is not None, value or 0)


def label_of(kind: str, mine: list[tuple[int, int, Any]]) -> Any:
    values = [value for _, _, value in mine]
    if not mine:
        return 0
    return {
        "any": 1,
        "count": len(mine),
        "sum": sum(value or 0 for value in values),
        "first": values[0],
        "last": values[-1],
    }[kind]


def expected_rows(oracle: Oracle, join: LabelJoin) -> dict[str, Row]:
    labels = {label.name: oracle.label(label) for label in join.labels}
    lookups = {lookup.name: oracle.lookup(lookup) for lookup in join.lookups}
    rows: dict[str, Row] = {}
    for impression in oracle.impressions:
        rid = impression["rid"]
        row = {name: impression[name] for name in ("rid", "user", "ts", "price")}
        for lookup in join.lookups:
            row |= dict(zip(lookup.added, lookups[lookup.name][rid], strict=True))
        row |= {name: found[rid][0] for name, found in labels.items()}
        row["any_time"] = labels["any"][rid][1]
        rows[rid] = row
    return rows


def read_rows(url: str) -> dict[str, Row]:
    """The output by row id, times as microseconds. Fails where a row id comes twice."""
    table = pq.read_table(url)
    for name in table.column_names:
        if pa.types.is_timestamp(table.schema.field(name).type):
            assert table.schema.field(name).type == TIME
            table = table.set_column(
                table.column_names.index(name), name, table[name].cast(pa.int64())
            )
    rows = table.to_pylist()
    assert len({row["rid"] for row in rows}) == len(rows)
    return {row["rid"]: row for row in rows}


def write_logs(cases: list[Row], directory: Path) -> None:
    for log, schema in (("impressions", IMPRESSIONS), ("events", EVENTS), ("profiles", PROFILES)):
        write_log(directory / log, logged_rows(cases, log), schema)


def oracle_of(
    ranked: Callable[[str, list[str]], dict[str, int]], cases: list[Row], directory: Path
) -> Oracle:
    hashes = ranked(str(directory / "impressions"), IMPRESSIONS.names)
    profiles = str(directory / "profiles")
    ages: dict[tuple[str, ...], dict[str, int]] = {
        columns: ranked(profiles, list(columns)) for columns in (("age", "country"), ("age",))
    }
    return Oracle(cases, hashes, ages)


def drawn_cases() -> list[Row]:
    """As many small logs as the profile has examples, to be joined at once: a run of Spark for each
    would take minutes.
    """
    cases: list[Row] = []

    @given(case=CASE)
    @settings(phases=[Phase.generate], database=None)
    def draw(case: Row) -> None:
        cases.append(case)

    draw()
    return cases


def test_the_join_is_what_python_makes_of_the_same_logs(engine: Engine, tmp_path: Path) -> None:
    """Ties are broken by Spark's hash, on both engines."""
    cases = drawn_cases()
    assert len(cases) >= 100
    write_logs(cases, tmp_path)
    join = full_join(tmp_path, negatives=NegativeSampling(rate=0.5, seed=3, label="any"))
    ranked = rank_of_content if isinstance(engine, LocalEngine) else partial(ranked_by, engine)
    oracle = oracle_of(ranked, cases, tmp_path)
    report = engine.join(join).document
    expected, found = expected_rows(oracle, join), read_rows(join.output_url)
    drawn = (
        Sample(column="rid", rate=0.5, seed=3)
        .mask(pa.array(list(expected), pa.string()))
        .to_pylist()
    )
    kept = {
        rid
        for rid, is_drawn in zip(expected, drawn, strict=True)
        if is_drawn or expected[rid]["any"] != 0
    }
    assert found.keys() == kept
    for rid in kept:
        row = found[rid]
        logs = cases[int(rid.partition("-")[0])]
        assert row.pop("sample_weight") == (2.0 if expected[rid]["any"] == 0 else 1.0), logs
        del row["logged"]
        assert row == expected[rid], logs
    check_report(report, oracle, join)


@pytest.mark.parametrize("source", ["files", "a query"])
def test_two_columns_of_one_name_in_a_log_are_refused(
    engine: Engine, tmp_path: Path, source: str
) -> None:
    """Of a file among others Spark says that it cannot be read, and of a query it names an
    expression of ours.
    """
    write_logs([], tmp_path)
    join = full_join(tmp_path)
    if source == "files":
        table = pq.read_table(tmp_path / "events")
        pq.write_table(
            table.append_column("value", table.column("value")), tmp_path / "events" / "z.parquet"
        )
        log, message = (
            join.labels[0].source,
            r"z\.parquet: column 'value': expected once, found 2 times",
        )
    else:
        log = LogSource(sql=f"select *, 1.0D as value from parquet.`{tmp_path}/events`")
        message = (
            r"query .*: the engine `local` runs no queries"
            if isinstance(engine, LocalEngine)
            else r"query .*: column 'value': expected once, found 2 times"
        )
    labels = tuple(replace(label, source=log) for label in join.labels)
    with pytest.raises(InputError, match=message):
        engine.join(replace(join, labels=labels))
    assert not (tmp_path / "output").exists()


def num_within(impression: Row, by_user: dict[str, list[tuple[int, int, Any]]]) -> int:
    return sum(
        0 <= time - impression["ts"] < 4 * SECOND_US
        for time, _, _ in by_user.get(impression["user"], [])
    )


def check_report(report: Mapping[str, Any], oracle: Oracle, join: LabelJoin) -> None:
    assert report["impressions"]["num_rows"] == len(oracle.impressions)
    for label, counted in zip(join.labels, report["labels"], strict=True):
        values = oracle.label(label)
        events = [event for found in oracle.known_events(label).values() for event in found]
        assert counted["num_events"] == len(events)
        known = [value for rid, (value, _) in values.items()]
        assert counted["num_unripe"] + counted["num_without_key"] <= known.count(None)
        assert counted["num_hit"] + counted["num_negative"] + counted["num_unripe"] + counted[
            "num_without_key"
        ] == len(known)
        orphans = sum(
            not any(0 <= event[0] - row["ts"] < 4 * SECOND_US for row in oracle.of_user[user])
            for user, found in oracle.known_events(label).items()
            for event in found
        )
        assert counted["num_orphans"] == orphans
        for histogram in ("delay", "arrival"):
            assert (
                sum(bucket["num_impressions"] for bucket in counted[histogram])
                == counted["num_hit"]
            )
        pairs = [num_within(row, oracle.known_events(label)) for row in oracle.impressions]
        assert counted["max_fan_out"] == max(pairs)
        assert counted["fan_out"] == sum(max(1, number) for number in pairs) / len(pairs)
    first_delays_us = [
        found["any_time"] - found["ts"]
        for found in expected_rows(oracle, join).values()
        if found["any_time"] is not None
    ]
    below_second = sum(delay_us < SECOND_US for delay_us in first_delays_us)
    assert [bucket["num_impressions"] for bucket in report["labels"][0]["delay"][:2]] == [
        below_second,
        len(first_delays_us) - below_second,
    ]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [("dt=*", [1, 2, 3]), ("dt=[12]", [1, 2]), ("dt={1,3}", [1, 3]), ("dt=1", [1])],
)
def test_a_log_is_all_directories_that_a_pattern_matches(
    spark: Any, tmp_path: Path, pattern: str, found: list[int]
) -> None:
    for day in (1, 2, 3):
        put_parquet(tmp_path / f"dt={day}" / "a.parquet", {"day": [day]})
    frame = read_source(spark, LogSource(url=f"{tmp_path}/{pattern}"))
    assert sorted(row["day"] for row in frame.collect()) == found
    assert sorted(frame.inputFiles()) == [f"file://{tmp_path}/dt={day}/a.parquet" for day in found]


def test_a_pattern_that_matches_nothing_is_named(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Spark cannot read .*dt=\*"):
        read_source(spark, LogSource(url=f"{tmp_path}/dt=*"))
