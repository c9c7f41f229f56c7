import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from featstore.base.errors import InputError
from featstore.ingest.join_inputs import (
    check_apart,
    check_impressions,
    check_label,
    check_logs,
    check_lookup,
    input_digest,
    list_logs,
)
from featstore.ingest.join_options import Impressions, Label, LabelJoin, LogSource, Lookup
from tests.parquet_files import put_parquet

TYPES = {"rid": "string", "user": "bigint", "ts": "timestamp", "price": "double"}
IMPRESSIONS = Impressions(
    source=LogSource(url="/logs/impressions"), row_id=("rid",), event_time="ts"
)
LABEL = Label(
    name="click", source=LogSource(url="/logs/clicks"), key=("user",), event_time="ts", window_s=60
)
LOOKUP = Lookup(
    name="user", source=LogSource(table="users"), key=("user",), event_time="ts", columns=("price",)
)
JOIN = LabelJoin(
    impressions=IMPRESSIONS,
    labels=(LABEL,),
    lookups=(LOOKUP,),
    cut_off=datetime.datetime(2026, 11, 2, tzinfo=datetime.UTC),
    output_url="/out",
)


def test_what_fits_is_taken() -> None:
    check_impressions(JOIN, TYPES)
    check_label(
        replace(LABEL, kind="sum", value="price"),
        TYPES,
        TYPES | {"user": "int", "price": "decimal(9,2)"},
    )
    check_lookup(LOOKUP, TYPES, TYPES | {"ts": "timestamp_ntz"})


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (
            {"rdi": "string", "user": "bigint", "ts": "timestamp"},
            "/logs/impressions: no column 'rid'; did you mean 'rdi'",
        ),
        (
            TYPES | {"ts": "bigint"},
            r"time 'ts': expected a timestamp, found bigint; convert it in a query \(sql=...\)",
        ),
        (
            TYPES | {"rid": "double"},
            "row id 'rid': expected text, integers, booleans or timestamps, found double",
        ),
        (TYPES | {"Click": "int"}, "the join would add the column 'click', which already exists"),
        (
            TYPES | {"__time": "int"},
            "columns that begin with '__' are reserved for the join, found '__time'",
        ),
    ],
)
def test_impressions_that_do_not_fit_are_refused(types: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_impressions(JOIN, types)


@pytest.mark.parametrize(
    ("label", "types", "message"),
    [
        (
            LABEL,
            TYPES | {"user": "string"},
            "key 'user' is string here and bigint in the impressions; cast one",
        ),
        (replace(LABEL, event_time="at"), TYPES, "/logs/clicks: no column 'at'"),
        (
            replace(LABEL, kind="sum", value="rid"),
            TYPES,
            "value 'rid': expected numbers or booleans, found string",
        ),
    ],
)
def test_a_label_that_does_not_fit_is_refused(
    label: Label, types: dict[str, str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        check_label(label, TYPES, types)


def test_a_lookup_of_a_missing_column_is_refused() -> None:
    with pytest.raises(InputError, match="users: no column 'prise'; did you mean 'price'"):
        check_lookup(replace(LOOKUP, columns=("prise",)), TYPES, TYPES)


@pytest.mark.parametrize("output", ["/logs/clicks/out", "/logs", "/logs/clicks"])
def test_output_and_logs_are_kept_apart(output: str) -> None:
    with pytest.raises(InputError, match="lie within each other; use separate directories"):
        check_apart(replace(JOIN, output_url=output))
    check_apart(replace(JOIN, output_url="/logs-joined"))


def write(directory: Path, **columns: Any) -> LogSource:
    put_parquet(directory / "a.parquet", columns)
    return LogSource(url=str(directory))


def test_the_digest_names_the_files(tmp_path: Path) -> None:
    join = replace(
        JOIN, lookups=(), impressions=replace(IMPRESSIONS, source=write(tmp_path / "i", a=[1]))
    )
    join = replace(join, labels=(replace(LABEL, source=write(tmp_path / "c", a=[1])),))
    logs = list_logs(join)
    first = input_digest(join, logs)
    assert input_digest(join, list_logs(join)) == first
    check_logs(logs)
    write(tmp_path / "c", a=[1, 2, 3])
    assert input_digest(join, list_logs(join)) not in (first, None)
    with_query = replace(join, lookups=(LOOKUP,))
    assert input_digest(with_query, list_logs(with_query)) is None
    with pytest.raises(
        InputError,
        match=r"c/a\.parquet changed while it was read: expected .*, found .*; nothing is committed",
    ):
        check_logs(logs)


def test_no_files_and_files_of_a_delta_table_are_refused(tmp_path: Path) -> None:
    (tmp_path / "i").mkdir()
    join = replace(
        JOIN,
        lookups=(),
        impressions=replace(IMPRESSIONS, source=LogSource(url=str(tmp_path / "i"))),
    )
    with pytest.raises(InputError, match=r"no raw files at .*i: expected a Parquet file"):
        list_logs(join)
    (tmp_path / "i" / "a.csv").write_text("ts\n1\n")
    with pytest.raises(InputError, match=r"found .*i/a\.csv: import text .*featstore import"):
        list_logs(join)
    (tmp_path / "i" / "_delta_log").mkdir()
    with pytest.raises(InputError, match=r"lies in the Delta table .*use a query \(sql=...\)"):
        list_logs(join)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("iceberg://prod/ads.clicks", "prod/ads.clicks is an Iceberg table.*query on it"),
        ("delta+/lake/clicks", r"lake/clicks is a Delta table.*use the engine `local`.*query on"),
        ("delta+s3://lake/clicks", "lake/clicks is a Delta table.*use the engine `local`"),
    ],
)
def test_a_log_that_is_a_table_is_told_to_be_queried(url: str, message: str) -> None:
    source = LogSource(url=url)
    join = replace(JOIN, impressions=replace(IMPRESSIONS, source=source))
    with pytest.raises(InputError, match=message):
        list_logs(replace(join, lookups=()))
