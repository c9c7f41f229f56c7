import datetime
from dataclasses import replace
from typing import Any

import pytest

from featstore.base.errors import ConfigError, InputError
from featstore.ingest.join_options import (
    Impressions,
    Label,
    LabelJoin,
    LogSource,
    Lookup,
    NegativeSampling,
    duration_s,
    parse_log,
    parse_time,
)

CLICKS = LogSource(url="/logs/clicks")
JOIN = LabelJoin(
    impressions=Impressions(
        source=LogSource(url="/logs/impressions"), row_id=("rid",), event_time="ts"
    ),
    labels=(Label(name="click", source=CLICKS, key=("rid",), event_time="ts", window_s=60),),
    cut_off=datetime.datetime(2026, 11, 2, tzinfo=datetime.UTC),
    output_url="/out",
)


def test_pairs_describe_logs() -> None:
    found = parse_log("name=buy sql='select * from orders where n > 1' key=user,item "
        "event_time=ts window=7d horizon=8d "
                        "log_time=logged kind=sum value=price attribution=first event_id=order "
                        "with_time=true", Label)  # fmt: skip
    assert found == Label(
        name="buy",
        source=LogSource(sql="select * from orders where n > 1"),
        key=("user", "item"),
        event_time="ts",
        log_time="logged",
        window_s=604_800,
        horizon_s=691_200,
        kind="sum",
        value="price",
        attribution="first",
        event_id=("order",),
        with_time=True,
    )
    assert parse_log("table=db.log row_id=a,b event_time=ts", Impressions) == Impressions(
        source=LogSource(table="db.log"), row_id=("a", "b"), event_time="ts"
    )
    assert parse_log(
        "name=user from=/u key=user event_time=ts columns=age max_age=30m", Lookup
    ) == Lookup(
        name="user",
        source=LogSource(url="/u"),
        key=("user",),
        event_time="ts",
        columns=("age",),
        max_age_s=1_800,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "name=click from=/c key=rid event_time=ts windw=1h",
            "no key 'windw'; expected .*did you mean 'window'",
        ),
        ("name=click from=/c key=rid event_time=ts", "expected window=... as well"),
        (
            "name=click from=/c key=rid event_time=ts window=1",
            "expected a duration such as 90s, 30m, 1h or 7d, found '1'",
        ),
        ("name=click from=/c key=rid event_time=ts window=1h window=2h", "expected each key once"),
        ("name=click key", "expected KEY=VALUE, found 'key'"),
        ("name='click", "No closing quotation"),
        (
            "name=click key=rid event_time=ts window=1h",
            "needs one of from=URL, sql=QUERY and table=NAME, found 0",
        ),
        ("name=click from=/c sql=x key=rid event_time=ts window=1h", "found 2 of them"),
        (
            "name=9 from=/c key=rid event_time=ts window=1h",
            "expected a name of letters, digits and _, found '9'",
        ),
        ("name=c from=/c key=, event_time=ts window=1h", "expected key=COLUMN,..."),
        ("name=c from=/c key=rid event_time=ts window=0s", "expected a window above 0, found 0 s"),
        (
            "name=c from=/c key=rid event_time=ts window=2h horizon=1h",
            "a horizon of at least the window .7200 s., found 3600 s",
        ),
        (
            "name=c from=/c key=rid event_time=ts window=2h kind=sum",
            "kind 'sum' needs value=COLUMN",
        ),
        ("name=c from=/c key=rid event_time=ts window=2h value=x", "kind 'any' reads no value"),
        (
            "name=c from=/c key=rid event_time=ts window=2h kind=cuont",
            "found 'cuont'; did you mean 'count'",
        ),
        (
            "name=c from=/c key=rid event_time=ts window=2h attribution=middle",
            "expected one of last, first, all, found 'middle'",
        ),
        (
            "name=c from=/c key=rid event_time=ts window=2h with_time=yes",
            "with_time: expected one of true, false, found 'yes'",
        ),
    ],
)
def test_a_wrong_label_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_log(text, Label)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": ()}, "expected at least one label"),
        ({"labels": JOIN.labels * 2}, "each label and lookup under a name of its own"),
        (
            {"cut_off": datetime.datetime(2026, 11, 2)},
            "cut_off: expected a time zone, found 2026-11-02T00:00:00",
        ),
        (
            {"negatives": NegativeSampling(rate=0.5, label="clik")},
            r"no label 'clik' among \['click'\]; did you mean 'click'",
        ),
    ],
)
def test_a_join_that_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(JOIN, **change)


@pytest.mark.parametrize(
    ("rate", "seed", "message"),
    [(0, 0, "a rate above 0"), (1.1, 0, "at most 1"), (1, 2**31, "int32 seed")],
)
def test_negatives_want_a_share_and_a_seed(rate: float, seed: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NegativeSampling(rate=rate, seed=seed)


def test_a_lookup_wants_columns_and_no_negative_age() -> None:
    with pytest.raises(ConfigError, match=r"expected key=COLUMN,\.\.\. and columns=COLUMN"):
        Lookup(name="user", source=CLICKS, key=("user",), event_time="ts", columns=())
    with pytest.raises(ConfigError, match="expected a max_age of 0 or more"):
        Lookup(
            name="user", source=CLICKS, key=("user",), event_time="ts", columns=("a",), max_age_s=-1
        )


def test_rows_go_into_a_partition_that_can_be_a_directory() -> None:
    with pytest.raises(
        InputError, match=r"partition: key 'dt': .* a name of 303 bytes: expected at most 255"
    ):
        replace(JOIN, partition={"dt": "x" * 300})


def test_impressions_want_a_row_id() -> None:
    with pytest.raises(
        ConfigError, match=r"expected row_id=COLUMN,..., the columns that name a row"
    ):
        Impressions(source=CLICKS, row_id=(), event_time="ts")


def test_the_digest_names_what_is_joined_and_not_where_it_goes() -> None:
    assert replace(JOIN, output_url="/elsewhere").digest == JOIN.digest
    vienna = datetime.timezone(datetime.timedelta(hours=1))
    assert replace(JOIN, cut_off=JOIN.cut_off.astimezone(vienna)).digest == JOIN.digest
    assert replace(JOIN, drop_incomplete=True).digest != JOIN.digest


def test_times_are_utc_unless_they_name_a_zone() -> None:
    assert parse_time("2026-11-02T01:00:00+01:00") == parse_time("2026-11-02") == JOIN.cut_off
    with pytest.raises(ConfigError, match="expected a time such as 2026-11-02T00:00:00"):
        parse_time("yesterday")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1_800), ("1h", 3_600), ("7d", 604_800)]
)
def test_durations(text: str, seconds: int) -> None:
    assert duration_s(text) == seconds
