"""A hostile `where` is answered at once, by an error of our own that says what to do."""

import sys
from functools import partial

import pyarrow as pa
import pytest

from featstore.base.errors import SelectionError
from featstore.selection.where import parse_where
from featstore.selection.where_tree import MOST_NESTED, parse_tree
from tests.process import least_cpu_s
from tests.threads import run_together

COLUMNS = {"a": pa.int64(), "s": pa.string()}
DEEP = {
    "parentheses": "(" * 5_000 + "a = 1" + ")" * 5_000,
    "parentheses that are not closed": "(" * 5_000 + "a = 1",
    "or": "a = 1 or (" * 5_000 + "a = 1" + ")" * 5_000,
    "not": "not " * 5_000 + "a = 1",
    "not and parentheses": "not (" * 5_000 + "a = 1" + ")" * 5_000,
    "signs": "a = " + "- " * 5_000 + "1",
    "calls": "f(" * 5_000 + "a" + ")" * 5_000,
    "lists": "a in " + "[" * 5_000 + "]" * 5_000,
    "case": "case when " * 5_000 + "a = 1" + " then true end" * 5_000,
}


@pytest.mark.parametrize("kind", DEEP)
def test_a_where_that_is_nested_5000_deep_is_answered_within_a_second(kind: str) -> None:
    def refused() -> None:
        with pytest.raises(
            SelectionError, match=r"nested too deeply: expected at most 30 .*; write values"
        ) as found:
            parse_where(DEEP[kind], COLUMNS)
        assert len(str(found.value)) < 600

    assert least_cpu_s(refused) < 1


def test_a_where_may_be_nested_as_deeply_as_promised_however_deep_its_caller_is() -> None:
    text = "(" * MOST_NESTED + "a = 1" + ")" * MOST_NESTED
    assert parse_where(text, COLUMNS).columns == {"a"}
    told: list[Exception] = []
    run_together(partial(_from_below, sys.getrecursionlimit() - 200, text, told))
    assert "nested too deeply" in str(told[0])


def _from_below(depth: int, text: str, told: list[Exception]) -> None:
    if depth:
        _from_below(depth - 1, text, told)
        return
    try:
        parse_where(text, COLUMNS)
    except SelectionError as error:
        told.append(error)


@pytest.mark.parametrize("join", ["or", "and"])
def test_a_long_row_of_terms_is_not_nested(join: str) -> None:
    where = parse_where(
        f" {join} ".join(f"a {'=' if join == 'or' else '!='} {i}" for i in range(5_000)), COLUMNS
    )
    values = pa.table({"a": pa.array([-1, 0, 4_999, 5_000, None], pa.int64())})
    expected = (
        [False, True, True, False, False] if join == "or" else [True, False, False, True, False]
    )
    assert where.mask(values).to_pylist() == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "a = " + "9" * 6_000,
            r"expected a number of 64 bits, found 9+\.\.\. \(6,000 characters\)",
        ),
        (
            "a = -" + "9" * 6_000,
            r"expected a number of 64 bits, found -9+\.\.\. \(6,001 characters\)",
        ),
        ("a = " + "9" * 20, "expected an integer of 64 bits, found 9{20}"),
        ("a in (1, " + "9" * 6_000 + ")", "expected a number of 64 bits"),
        ("a % " + "9" * 6_000 + " = 1", "expected a number of 64 bits"),
        ("a = 1e999", "expected a number of 64 bits, found 1e999"),
        (
            "a = 'x" + "y" * 10_000 + "'",
            r"expected values of one kind, found a \(number\), 'xy+\.\.\. \(10,003 characters\)",
        ),
        (
            "a in ('x', " + ", ".join(map(str, range(9_000))) + ")",
            r"found a \(number\), 'x' \(text\)",
        ),
        ("s = 'https://user:Sk3yPass@host/x' and", "cannot be parsed"),
        ("a = 1; a = 2", "expected one predicate, found 2"),
        ("", "expected one predicate, found 0|cannot be parsed"),
    ],
)
def test_a_long_where_is_not_repeated_in_full_and_no_secret_of_it(text: str, said: str) -> None:
    def refused() -> None:
        with pytest.raises(SelectionError, match=said) as found:
            parse_where(text, COLUMNS)
        assert len(str(found.value)) < 700
        assert "Sk3y" not in str(found.value)

    assert least_cpu_s(refused) < 1


def test_a_tree_is_that_of_one_predicate() -> None:
    assert parse_tree("a = 1;").sql() == "a = 1"
