"""The conditions of a `where`: as Arrow expressions for rows, and what bounds say of them.

A predicate is true, false or null for a row. For row-group pruning `outcomes` returns, for each of
several row groups, which of the three may occur in it. It is conservative: a value that cannot be
excluded may occur. Conditions that bounds do not decide, such as a sample, may have any value.
"""

import importlib
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from featstore.base.processes import cached_property
from featstore.ops.arrays import array_of, values_of

Flags = NDArray[np.bool_]  # (num_row_groups,)
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
FLIPPED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def evaluate(expression: pc.Expression, table: pa.Table) -> pa.ChunkedArray:
    """Evaluates an Arrow expression for each row of a table, on the calling thread."""
    acero = importlib.import_module("pyarrow.acero")  # Imports pandas, where it is installed.
    plan = [
        acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
        acero.Declaration("project", acero.ProjectNodeOptions([expression], ["value"])),
    ]
    return acero.Declaration.from_sequence(plan).to_table(use_threads=False).column("value")


@dataclass(frozen=True, kw_only=True)
class Range:
    """The bounds of one column in each of several row groups.

    Attributes:
        low: The smallest value, `(num_row_groups,)`, in the column's type; null where unknown.
        high: The largest value, likewise.
        may_be_null: Whether a row may hold null or NaN.
        may_be_value: Whether a row may hold a value.
    """

    low: pa.Array
    high: pa.Array
    may_be_null: Flags
    may_be_value: Flags

    def take(self, indices: NDArray[Any]) -> "Range":
        """The bounds in these of the row groups."""
        rows = array_of(indices)
        return Range(
            low=self.low.take(rows),
            high=self.high.take(rows),
            may_be_null=self.may_be_null[indices],
            may_be_value=self.may_be_value[indices],
        )


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """The bounds of some row groups. A column that is not listed may hold any value."""

    num_row_groups: int
    columns: Mapping[str, Range]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Which values a predicate may have for the rows of each row group."""

    true: Flags
    false: Flags
    null: Flags


class Predicate(Protocol):
    """A part of a `where`."""

    @property
    def expression(self) -> pc.Expression:
        """Its value for each row, for Arrow."""

    def outcomes(self, ranges: Ranges) -> Outcomes:
        """Which values it may have in each row group."""


@dataclass(frozen=True)
class Unknown:
    """A condition that bounds do not decide."""

    expression: pc.Expression = field(compare=False)

    def outcomes(self, ranges: Ranges) -> Outcomes:
        may = np.ones(ranges.num_row_groups, bool)
        return Outcomes(may, may, may)


@dataclass(frozen=True)
class OfColumn(Predicate):
    """A condition on one column.

    Attributes:
        column: The column's name.
        value: The column, cast to the type that is compared.
    """

    column: str
    value: pc.Expression = field(compare=False)

    def outcomes(self, ranges: Ranges) -> Outcomes:
        known = ranges.columns.get(self.column)
        if known is None:
            return Unknown(self.expression).outcomes(ranges)
        return self._within(known)

    def _within(self, known: Range) -> Outcomes:
        """Which values it may have, given the column's bounds."""
        raise NotImplementedError


@dataclass(frozen=True)
class IsNull(OfColumn):
    @property
    def expression(self) -> pc.Expression:
        return self.value.is_null()

    def _within(self, known: Range) -> Outcomes:
        return Outcomes(known.may_be_null, known.may_be_value, np.zeros_like(known.may_be_null))


@dataclass(frozen=True)
class Compare(OfColumn):
    """A column compared with a literal. Arrow compares the bounds exactly as it does the rows.

    Attributes:
        comparison: One of `= != < <= > >=`.
        literal: The literal, in the type of `value`.
    """

    comparison: str
    literal: pc.Expression = field(compare=False)

    @property
    def expression(self) -> pc.Expression:
        return COMPARISONS[self.comparison](self.value, self.literal)

    def _within(self, known: Range) -> Outcomes:
        true, false = self._of_values(known)
        return Outcomes(true & known.may_be_value, false & known.may_be_value, known.may_be_null)

    def _of_values(self, known: Range) -> tuple[Flags, Flags]:
        """Whether a value between the bounds may compare true, and false."""
        if self.comparison in ("=", "!="):
            # Only a row group whose bounds both equal the literal has no other value.
            inside = self._may(known.low, "<=", True) & self._may(known.high, ">=", True)
            outside = self._may(known.low, "=", False) | self._may(known.high, "=", False)
            return (inside, outside) if self.comparison == "=" else (outside, inside)
        first, last = (
            (known.low, known.high) if self.comparison in ("<", "<=") else (known.high, known.low)
        )
        return self._may(first, self.comparison, True), self._may(last, self.comparison, False)

    def _may(self, bounds: pa.Array, comparison: str, value: bool) -> Flags:
        """Whether the comparison of each bound may be `value`; an unknown bound may be either."""
        expression = COMPARISONS[comparison](self.value, self.literal)
        found = evaluate(expression, pa.table({self.column: bounds})).combine_chunks()
        return values_of(pc.equal(pc.fill_null(found, value), value))


@dataclass(frozen=True)
class IsIn(OfColumn):
    """Whether a column is one of several literals.

    Attributes:
        values: The literals, in the type of `value`.
    """

    values: pa.Array = field(compare=False)

    @property
    def expression(self) -> pc.Expression:
        is_in = self.value.isin(self.values)
        return pc.if_else(self.value.is_valid(), is_in, pa.scalar(None, pa.bool_()))

    def _within(self, known: Range) -> Outcomes:
        low, high = self._bounds(known.low), self._bounds(known.high)
        unsure = values_of(pc.or_(pc.is_null(low), pc.is_null(high)))
        least, greatest = (_sortable(pc.fill_null(bounds, self._some)) for bounds in (low, high))
        # Some literal lies within the bounds if its range in the sorted literals is not empty.
        begin = np.searchsorted(self._sorted, least, "left")
        is_met = np.searchsorted(self._sorted, greatest, "right") > begin
        is_one = ~unsure & is_met & (least == greatest)
        return Outcomes(
            (unsure | is_met) & known.may_be_value, ~is_one & known.may_be_value, known.may_be_null
        )

    def _bounds(self, bounds: pa.Array) -> pa.Array:
        return evaluate(self.value, pa.table({self.column: bounds})).combine_chunks()

    @property
    def _some(self) -> pa.Scalar:
        """A placeholder for unknown bounds, whose result is masked by `unsure`."""
        return self.values[0] if len(self.values) else pa.array([0]).cast(self.values.type)[0]

    @cached_property
    def _sorted(self) -> NDArray[Any]:
        return np.sort(_sortable(self.values))


def _sortable(values: pa.Array) -> NDArray[Any]:
    """Values without nulls as a numpy array that sorts like Arrow; texts sort by code points."""
    if pa.types.is_temporal(values.type):
        values = values.cast(pa.int32() if pa.types.is_date32(values.type) else pa.int64())
    found: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return found


@dataclass(frozen=True)
class Not:
    of: Predicate

    @property
    def expression(self) -> pc.Expression:
        return ~self.of.expression

    def outcomes(self, ranges: Ranges) -> Outcomes:
        found = self.of.outcomes(ranges)
        return Outcomes(found.false, found.true, found.null)


@dataclass(frozen=True)
class And:
    left: Predicate
    right: Predicate

    @property
    def expression(self) -> pc.Expression:
        return self.left.expression & self.right.expression

    def outcomes(self, ranges: Ranges) -> Outcomes:
        a, b = self.left.outcomes(ranges), self.right.outcomes(ranges)
        # Kleene logic: null and false is false, so null needs a null and no false.
        null = (a.null & (b.null | b.true)) | (b.null & a.true)
        return Outcomes(a.true & b.true, a.false | b.false, null)


def either(left: Predicate, right: Predicate) -> Predicate:
    """The condition that one of two is true: null if none is and one of them is null."""
    return Not(And(Not(left), Not(right)))
