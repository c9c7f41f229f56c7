"""`where x in (...)`: as many values as one likes, looked up in a table of hashes, and compared
with bounds of row groups.
"""

import datetime
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.selection.predicate import Range, Ranges
from featstore.selection.where import parse_where
from tests.process import least_cpu_s
from tests.tiers import tiered

DAYS = [datetime.date(2026, 1, day) for day in range(1, 6)]
INSTANTS = [datetime.datetime(2026, 1, 1, hour) for hour in range(6)]
# The values of a column, and literals to look them up among, some of which it cannot have.
LISTS: dict[pa.DataType, tuple[list[Any], list[Any]]] = {
    pa.int8(): ([-128, -1, 0, 1, 127], [-300, -128, -1, 0, 1, 127, 300]),
    pa.int64(): ([-(2**63), -1, 0, 2**53 + 1], [-(2**63), -1, 0, 2**53, 2**53 + 1, 2**63 - 1]),
    pa.uint64(): ([0, 1, 2**63, 2**64 - 1], [-1, 0, 1, 2**63 - 1]),
    pa.float32(): ([0.0, -0.0, 0.5, 2.0**24, math.inf, math.nan], [0, 0.5, -0.0, 2**24, 2**24 + 1]),
    pa.float64(): ([0.0, -0.0, 0.1, 1.0, -math.inf, math.nan], [0, 0.1, -0.0, 1]),
    pa.string(): (["", "a", "ab", "é", "\U0001f600"], ["", "a", "ab", "b", "é", "\U0001f600"]),
    pa.large_string(): (["", "a", "ab"], ["", "a", "b"]),
    pa.bool_(): ([True, False], [True, False]),
    pa.date32(): (DAYS, DAYS),
    pa.timestamp("us"): (INSTANTS, INSTANTS),
}
LOOKED_UP = st.sampled_from(list(LISTS)).flatmap(
    lambda type_: st.tuples(
        st.just(type_),
        st.lists(st.none() | st.sampled_from(LISTS[type_][0]), min_size=1, max_size=5),
        st.lists(st.sampled_from(LISTS[type_][1]), min_size=1, max_size=5),
    )
)


def _written(value: object) -> str:
    return repr(value) if isinstance(value, int | float) else f"'{value}'"


def _bounds(column: pa.Array) -> Ranges:
    """What statistics say of one row group with these values."""
    there = column.drop_null()
    there = there.filter(pc.equal(there, there))  # NaN counts as null
    least, greatest = (pa.array([bound(there).as_py()], column.type) for bound in (pc.min, pc.max))
    range_ = Range(
        low=least,
        high=greatest,
        may_be_null=np.array([len(there) < len(column)]),
        may_be_value=np.array([len(there) > 0]),
    )
    return Ranges(num_row_groups=1, columns={"x": range_})


@given(LOOKED_UP)
def test_a_value_is_in_a_list_if_it_equals_one_of_it_and_no_bounds_rule_out_that_it_is(
    drawn: Any,
) -> None:
    type_, values, items = drawn
    column = pa.array(values, type_)
    known = [None if value is None or value != value else value for value in column.to_pylist()]
    text = f"x in ({', '.join(map(_written, items))})"
    for where, is_wanted in ((text, True), (f"not {text}", False)):
        parsed = parse_where(where, {"x": type_})
        expected = [value is not None and (value in items) == is_wanted for value in known]
        assert parsed.mask(pa.table({"x": column})).to_pylist() == expected
        assert parsed.can_match(_bounds(column))[0] or not any(expected)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1, 2, "f"), (1, 3, "tf"), (3, 3, "t"), (4, 4, "f"), (4, 6, "f"), (5, 8, "tf"), (8, 9, "f"),
        (None, 3, "tf"), (4, None, "tf"), (None, None, "tf"),
    ],
)  # fmt: skip
def test_row_groups_between_the_values_of_a_list_are_ruled_out(
    low: int | None, high: int | None, expected: str
) -> None:
    bounds = {"low": pa.array([low], pa.int16()), "high": pa.array([high], pa.int16())}
    range_ = Range(**bounds, may_be_null=np.array([False]), may_be_value=np.array([True]))
    for text, letters in (("x in (7, 3, 100000)", "tf"), ("x not in (7, 3, 100000)", "ft")):
        where = parse_where(text, {"x": pa.int16()})
        found = where.terms[0].predicate.outcomes(Ranges(num_row_groups=1, columns={"x": range_}))
        may = [found.true[0], found.false[0]]
        assert {letter for letter, has in zip(letters, may, strict=True) if has} == set(expected)
        assert not found.null[0]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("x in (1, y)", [0, 1]),
        ("x in (y)", [1]),
        ("x % 5 in (1, 3)", [0, 2]),
        ("(x) in (1, 8.0)", [0, 2]),
        ("d in ('2026-01-01', '2026-01-03 00:00:00+00:00')", [0, 2]),
        ("x not in (1, 8)", [1]),
        ("x not in (1000000000000000000)", [0, 1, 2]),
    ],
)
def test_lists_of_more_than_literals_and_of_times_written_unlike_work_too(
    text: str, rows: Any
) -> None:
    table = pa.table(
        {
            "x": pa.array([1, 5, 8, None], pa.int16()),
            "y": pa.array([2, 5, 9, None], pa.int64()),
            "d": pa.array(
                [*INSTANTS[:1], *INSTANTS[1:2], datetime.datetime(2026, 1, 3), None],
                pa.timestamp("us", "UTC"),
            ),
        }
    )
    mask = parse_where(text, {field.name: field.type for field in table.schema}).mask(table)
    assert [row for row, kept in enumerate(mask.to_pylist()) if kept] == rows


DAY = np.datetime64("1700-01-01")
LONG: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "integers": (pa.int64(), lambda number: number),
    "texts": (pa.string(), lambda number: f"user{number}"),
    "days": (pa.date32(), lambda number: (DAY + number).astype(object)),
}


@pytest.mark.parametrize("kind", tiered(LONG, lambda kind: kind != "texts"))
def test_a_list_of_100000_values_works(kind: Any) -> None:
    """sqlglot takes 3 to 5 s of one core for it, all else together a few tenths."""
    type_, value = LONG[kind]
    text = ", ".join(_written(value(number)) for number in range(0, 200_000, 2))
    where = parse_where(f"x in ({text}) and x is not null", {"x": type_})
    column = pa.array([value(0), value(1), value(2), None], type_)
    range_ = Range(
        low=column[:1].take(pa.array([0] * 1_000)),
        high=column[1:2].take(pa.array([0] * 1_000)),
        may_be_null=np.zeros(1_000, bool),
        may_be_value=np.ones(1_000, bool),
    )
    rows = pa.table({"x": column.take(pa.array([0, 1, 2, 3] * 25_000))})

    def match() -> None:
        assert pc.sum(where.mask(rows)).as_py() == 50_000
        assert where.can_match(Ranges(num_row_groups=1_000, columns={"x": range_})).all()

    assert least_cpu_s(match, time.process_time) < 3
