import datetime
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from featstore.base.errors import InputError, JoinError
from featstore.ingest.join_options import (
    Impressions,
    Label,
    LabelJoin,
    LogSource,
    Lookup,
    NegativeSampling,
)
from featstore.ingest.join_report import (
    Digest,
    Figures,
    JoinReport,
    check,
    document,
    mismatch,
    report_text,
)
from featstore.table.metadata import to_json

GOLDEN = Path(__file__).parents[1] / "golden" / "label_report.json"
LOG = LogSource(url="/logs/clicks")
JOIN = LabelJoin(
    impressions=Impressions(
        source=LogSource(url="/logs/impressions"), row_id=("rid",), event_time="ts"
    ),
    labels=(
        Label(
            name="click", source=LOG, key=("rid",), event_time="ts", window_s=3_600, horizon_s=7_200
        ),
    ),
    lookups=(
        Lookup(
            name="user", source=LOG, key=("user",), event_time="ts", columns=("age",), max_age_s=60
        ),
    ),
    negatives=NegativeSampling(rate=0.25, seed=7),
    cut_off=datetime.datetime(2026, 11, 2, tzinfo=datetime.UTC),
    output_url="/out",
)
LABEL = {
    "label0_no_key": 1,
    "label0_unripe": 2,
    "label0_hit": 3,
    "label0_attributed": 4,
    "label0_more": 1,
    "label0_max": 2,
}
FIGURES = Figures(
    impressions={"num_input_rows": 12, "num_incomplete": 0},
    distinct={"num_rows": 10, "key_xor": 5, "key_sum": 6},
    events=[{"num_input_rows": 9, "num_incomplete": 1, "num_late": 1, "num_events": 6}],
    dimensions=[{"num_input_rows": 8, "num_incomplete": 1}],
    joined={
        "num_rows": 10, "key_xor": 5, "key_sum": 6, "num_kept": 7, "kept_xor": -1, "kept_sum": 3, "num_negatives": 4,
        "num_negatives_kept": 1, **LABEL, "label0_delays": [(11.0, 1.0), (47.0, 1.0), (47.0, 1.0)],
        "lookup0_found": 6, "lookup0_too_old": 1,
    },
    written=Digest(num_rows=7, key_xor=-1, key_sum=3),
)  # fmt: skip


def report() -> JoinReport:
    made = document(JOIN, FIGURES, input_digest=None, num_files=2, size_bytes=1_234)
    return JoinReport(url="/out", written=True, document=made)


def test_the_report_is_frozen() -> None:
    assert json.loads(to_json(report().document)) == json.loads(GOLDEN.read_text())


def test_what_comes_in_is_what_goes_out() -> None:
    label = report().document["labels"][0]
    assert label["num_input_rows"] == sum(
        label[f"num_{what}"] for what in ("incomplete", "late", "duplicates", "events")
    )
    assert label["num_events"] == label["num_attributed"] + label["num_orphans"]
    assert sum(label[f"num_{what}"] for what in ("hit", "negative", "unripe", "without_key")) == 10
    assert sum(bucket["num_impressions"] for bucket in label["delay"]) == label["num_hit"]


def test_people_read_shares_and_bars() -> None:
    text = str(report())
    assert text.startswith("wrote 7 rows in 2 files, 1,234 bytes, /out")
    assert report_text(report().document) in text
    assert "click: delay" in text
    bars = [line.split() for line in text.splitlines() if line.startswith("from 1 m")]
    assert bars == [["from", "1", "m", "66.7%", "0.0%", "#" * 27]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"written": Digest(num_rows=8, key_xor=-1, key_sum=3)},
            r"the files hold 8 \(.*\) rows instead of 7",
        ),
        (
            {"written": Digest(num_rows=7, key_xor=-2, key_sum=3)},
            "the files hold 7 .* rows instead of 7",
        ),
        (
            {"distinct": {"num_rows": 10, "key_xor": 5, "key_sum": 7}},
            "10 .* distinct impressions became 10 .* rows in",
        ),
        (
            {"distinct": {"num_rows": 13, "key_xor": 5, "key_sum": 6}},
            "13 distinct impressions of 12 rows",
        ),
    ],
)
def test_rows_that_are_not_the_impressions_fail_the_join(
    changes: dict[str, Any], message: str
) -> None:
    assert mismatch(FIGURES) is None
    with pytest.raises(JoinError, match=rf"/out: {message}.*; nothing was published"):
        check(replace(FIGURES, **changes), JOIN)


def test_impressions_without_id_or_time_fail_the_join() -> None:
    figures = replace(FIGURES, impressions={"num_input_rows": 12, "num_incomplete": 1})
    with pytest.raises(InputError, match="1 of 12 impressions have a null in rid, ts"):
        check(figures, JOIN)
    check(figures, replace(JOIN, drop_incomplete=True))
