import datetime
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import featstore
from featstore.base.errors import InputError, SelectionError
from featstore.explore.questions import Question
from featstore.explore.table import Table
from featstore.spec.parse import load_spec
from tests.parquet_files import put_parquet

DAYS = ("2026-11-01", "2026-11-02")
SPEC = {
    "spec": 1,
    "inputs": {"user": "string", "clicked": "long"},
    "labels": {"click": "clicked"},
    "slots": [{"slot": 101, "name": "user", "op": "hash", "of": "user"}],
    "output": {"rows_per_row_group": 64},
}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two days of 40 rows, whose users change by a half."""
    spec = load_spec(SPEC)
    for number, day in enumerate(DAYS):
        rows: dict[str, list[Any]] = {
            "user": [f"u{row % 4 + 2 * number}" for row in range(40)],
            "clicked": [row % 2 for row in range(40)],
        }
        put_parquet(tmp_path / f"{day}.parquet", rows)
        featstore.extract(spec, tmp_path / f"{day}.parquet", tmp_path / "t", partition={"dt": day})
    return featstore.open_table(tmp_path / "t")


@pytest.mark.parametrize("exact", [False, True])
def test_two_days_are_compared(table: Table, exact: bool) -> None:
    found: Any = Question(days=DAYS, exact=exact).answer(table)
    assert (found.before.num_rows, found.after.num_rows) == (40, 40)
    assert found.before.source.startswith("from the rows" if exact else "from stored")
    [user] = found.table.to_pylist()
    assert (user["new_values"], user["vanished_values"], user["new_share"]) == (0.5, 0.5, 0.5)
    only: Any = Question(days=DAYS, where="click = 1").answer(table)
    assert only.before.num_rows == 20


def test_two_ranges_of_days_are_compared(table: Table) -> None:
    found: Any = Question(days=(DAYS[0], f"{DAYS[0]}..2026-11-30")).answer(table)
    assert (found.before.num_rows, found.after.num_rows) == (40, 80)
    assert found.after.source.startswith("from stored")
    with pytest.raises(InputError, match=r"no partition dt=1999\.\.2000; the table has 2"):
        Question(days=(DAYS[0], "1999..2000")).answer(table)


def test_of_a_table_that_is_compared_with_itself_it_is_said(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    for question in (Question(compare=table.url), Question(compare_version=1)):
        question.answer(table)
        assert "both sides of the comparison are the same rows" in caplog.text
        caplog.clear()
    Question(compare_version=0).answer(table)
    assert not caplog.records


@pytest.mark.parametrize("is_named", [True, False])
def test_a_table_is_compared_with_an_older_version(table: Table, is_named: bool) -> None:
    url = table.url if is_named else None
    question = Question(compare=url, compare_version=0, slots=["user"])
    found: Any = question.answer(table)
    assert (found.before.num_rows, found.after.num_rows) == (40, 80)


def test_a_label_gives_rates_by_value_and_day(table: Table) -> None:
    found: Any = Question(label="click").answer(table)
    assert [row["rate"] for row in found.partitions.to_pylist()] == [0.5, 0.5]
    assert found["user"]["auc"] == pytest.approx(1.0)
    with pytest.raises(SelectionError, match=r"no label 'clik'.*did you mean 'click'"):
        Question(label="clik").answer(table)


def test_a_day_that_is_not_there_is_named_with_those_that_are(table: Table) -> None:
    with pytest.raises(InputError, match="no partition dt=1999; the table has 2, from 2026-11-01"):
        Question(days=(DAYS[0], "1999")).answer(table)


def test_a_table_without_rows_has_no_days(tmp_path: Path) -> None:
    schema = pa.schema([("user", pa.int64()), ("dt", pa.string())])
    deltalake.write_deltalake(tmp_path, schema.empty_table(), partition_by=["dt"])
    with pytest.raises(InputError, match="no partition dt=1; the table has none yet"):
        Question(days=("1", "2")).answer(featstore.open_table(tmp_path))


def test_days_of_a_foreign_table_may_be_numbers_or_dates(tmp_path: Path) -> None:
    dates = [datetime.date(2026, 11, 1), datetime.date(2026, 11, 2)]
    kinds: list[list[Any]] = [[7, 8], dates]
    for number, keys in enumerate(kinds):
        rows = pa.table({"user": [1, 2, 3, 4], "dt": [keys[0]] * 3 + [keys[1]]})
        deltalake.write_deltalake(tmp_path / str(number), rows, partition_by=["dt"])
        table = featstore.open_table(tmp_path / str(number))
        found: Any = Question(days=(str(keys[0]), str(keys[1]))).answer(table)
        assert (found.before.num_rows, found.after.num_rows) == (3, 1)
        found = Question(days=(str(keys[1]), f"{keys[0]}..{keys[1]}")).answer(table)
        assert (found.before.num_rows, found.after.num_rows) == (1, 4)
    with pytest.raises(InputError, match="no partition dt=x; the table has 2, from 7 to 8"):
        Question(days=("7", "x")).answer(featstore.open_table(tmp_path / "0"))


def test_questions_that_exclude_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--label and --days: expected one of them, found 2"):
        Question(label="click", days=("1", "2"))
    with pytest.raises(InputError, match="--compare and --days: expected one of them, found 2"):
        Question(compare_version=1, days=("1", "2"))
    put_parquet(tmp_path / "a.parquet", {"user": [1, 2]})
    with pytest.raises(InputError, match="expected a table with partitions, found one without"):
        Question(days=("1", "2")).answer(featstore.open_table(tmp_path / "a.parquet"))
