"""Outcomes of predicates over bounds: whatever a row gives is among them."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from featstore.selection.predicate import (
    And,
    Compare,
    IsNull,
    Not,
    Range,
    Ranges,
    Unknown,
    either,
)

ONE = np.ones(1, bool)


def over(low: Any, high: Any, *, null: bool = False, value: bool = True) -> Ranges:
    bounds = (pa.array([low], pa.int64()), pa.array([high], pa.int64()))
    range_ = Range(low=bounds[0], high=bounds[1], may_be_null=ONE & null, may_be_value=ONE & value)
    return Ranges(num_row_groups=1, columns={"a": range_})


def outcomes(predicate: Any, ranges: Any) -> Any:
    found = predicate.outcomes(ranges)
    return "".join(
        letter
        for letter, may in (("t", found.true), ("f", found.false), ("n", found.null))
        if may[0]
    )


def compare(comparison: Any, literal: Any) -> Compare:
    return Compare("a", pc.field("a"), comparison, pc.scalar(literal))


@pytest.mark.parametrize(
    ("comparison", "literal", "expected"),
    [
        ("<", 3, "f"), ("<", 4, "tf"), ("<", 6, "t"), ("<=", 2, "f"), ("<=", 3, "tf"), ("<=", 5, "t"),
        (">", 5, "f"), (">", 4, "tf"), (">", 2, "t"), (">=", 6, "f"), (">=", 5, "tf"), (">=", 3, "t"),
        ("=", 2, "f"), ("=", 3, "tf"), ("=", 4, "tf"), ("=", 6, "f"), ("!=", 2, "t"), ("!=", 4, "tf"),
    ],
)  # fmt: skip
def test_a_comparison_with_values_from_3_to_5(comparison: str, literal: int, expected: str) -> None:
    assert outcomes(compare(comparison, literal), over(3, 5)) == expected
    assert outcomes(compare(comparison, literal), over(3, 5, null=True)) == expected + "n"
    assert outcomes(compare(comparison, literal), over(None, None)) == "tf"
    assert outcomes(compare(comparison, literal), over(None, None, null=True, value=False)) == "n"


def test_one_value_decides_equality() -> None:
    assert [outcomes(compare("=", literal), over(3, 3)) for literal in (2, 3)] == ["f", "t"]
    assert [outcomes(compare("!=", literal), over(3, 3)) for literal in (2, 3)] == ["t", "f"]


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (And(IsNull("a", pc.field("a")), compare(">", 9)), "fn"),
        (And(compare(">", 9), Unknown(pc.scalar(None))), "fn"),
        (either(compare(">", 2), Unknown(pc.scalar(None))), "tn"),
        (either(compare("<", 2), compare(">", 9)), "fn"),
        (Not(compare(">", 9)), "tn"),
        (IsNull("a", pc.field("a")), "tf"),
        (Not(IsNull("b", pc.field("b"))), "tfn"),
        (Compare("b", pc.field("b"), "=", pc.scalar(1)), "tfn"),
    ],
)
def test_predicates_put_together_follow_sql(predicate: Any, expected: str) -> None:
    assert outcomes(predicate, over(3, 5, null=True)) == expected
