"""Turns raw batches into the input columns of a graph, and applies `on_error` to malformed values.

If the spec has no `on_error` for a column, its malformed values are left to the graph, which makes
them missing (invalid UTF-8 is replaced) and counts them; a column of another type is rejected.
"""

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from featstore.base.errors import InputError, all_nearest, nearest, not_once
from featstore.extraction.units.findings import BatchOrigin, Findings, Malformed
from featstore.ops.arrays import Integers
from featstore.ops.columns import readable
from featstore.ops.lists import array_of_bits
from featstore.ops.malformed import (
    ABSENT,
    MalformedValues,
    all_wrong,
    find_malformed,
    find_unequal,
    is_number_as_text,
    narrow,
    narrowable,
    without_views,
)
from featstore.spec.model import Sequence, Spec, type_name

_MAX_NAMES = 20


class Form(enum.Enum):
    """How a raw column compares with its declaration."""

    READABLE = enum.auto()
    NARROWABLE = enum.auto()
    WRONG = enum.auto()
    ABSENT = enum.auto()


@dataclass(frozen=True, kw_only=True)
class Taken:
    """The columns of a batch without skipped rows.

    Attributes:
        kept: Positions of the rows in the raw batch, int (num_rows,); None if no row was skipped.
    """

    columns: list[pa.Array]
    num_rows: int
    kept: Integers | None = None

    def position(self, i: int) -> int:
        """Returns the position of the i-th row in the raw batch."""
        return i if self.kept is None else int(self.kept[i])

    def positions(self, rows: Integers) -> Integers:
        """Returns the positions of these rows in the raw batch."""
        return rows if self.kept is None else self.kept[rows]


class Intake:
    """Reads raw batches, one schema at a time. Not thread-safe.

    Args:
        columns: The columns to read and their declared types.
    """

    def __init__(self, spec: Spec, columns: Mapping[str, pa.DataType]) -> None:
        self._columns = columns
        self._on_error = {name: spec.on_error.get(name) for name in columns}
        self._optional = spec.optional
        self._text = spec.text
        self._sequences = [
            (sequence, on_error)
            for sequence in spec.sequences
            if (on_error := self._strictest(sequence))
        ]
        self._forms: dict[str, Form] = {}

    def bind(self, raw: pa.Schema) -> None:
        """Checks a raw schema; must be called before `take`.

        Raises:
            InputError: Columns are missing, or one has the wrong type; the error names them.
        """
        # `raw.names` and a field by name read the whole schema each time.
        found = Counter(raw.names)
        missing = [
            name for name in self._columns if name not in found and name not in self._optional
        ]
        if missing or not self._columns.keys() & found.keys():
            raise missing_columns(missing or list(self._columns), raw.names)
        types = dict(zip(raw.names, raw.types, strict=True))
        self._forms = {
            name: self._form(name, found[name], types.get(name)) for name in self._columns
        }

    def take(
        self, batch: pa.RecordBatch, origin: BatchOrigin, findings: Findings, *, skips: bool = True
    ) -> Taken:
        """Returns the batch's columns, and records malformed values in `findings`.

        Raises:
            InputError: A malformed value whose `on_error` is `fail`, or, unless `skips`, `skip`.
        """
        columns: dict[str, pa.Array] = {}
        problems: list[_Problem] = []
        for name in self._columns:
            columns[name], found = self._read(name, batch, origin, findings)
            expected = f"column {name!r}: expected {type_name(self._columns[name])}"
            problems += [
                _Problem(owner=name, on_error=self._on_error[name], expected=expected, found=one)
                for one in found
            ]
        for sequence, on_error in self._sequences:
            found = find_unequal(
                [_as_list(columns[name], self._columns[name]) for name in sequence.of]
            )
            expected = (
                f"sequence {sequence.name!r}: expected lists of one length in "
                f"{', '.join(sequence.of)}"
            )
            problems += [
                _Problem(owner=sequence.name, on_error=on_error, expected=expected, found=one)
                for one in found
            ]
        if not problems:
            return Taken(columns=list(columns.values()), num_rows=batch.num_rows)
        _raise_first(problems, ("fail",) if skips else ("fail", "skip"), origin)
        for problem in problems:
            findings.add(problem.owner, problem.found, origin)
        return _without_skipped(list(columns.values()), batch.num_rows, problems, findings)

    def _read(
        self, name: str, batch: pa.RecordBatch, origin: BatchOrigin, findings: Findings
    ) -> tuple[pa.Array, list[MalformedValues]]:
        """Returns a column for the graph, and malformed values that the graph must not handle."""
        declared, form = self._columns[name], self._forms[name]
        if form is Form.ABSENT:
            findings.counts[f"{name}: {ABSENT}"] += batch.num_rows
            findings.keep([Malformed(column=name, what=ABSENT, source=origin.source)])
            return pa.nulls(batch.num_rows, declared), []
        array = batch.column(name)
        if form is Form.WRONG:
            return pa.nulls(batch.num_rows, declared), all_wrong(array)
        if form is Form.READABLE:
            return array, find_malformed(array, declared) if self._on_error[name] in (
                "fail",
                "skip",
            ) else []
        counts: Counter[str] = Counter()
        array, found = narrow(array, declared, counts)
        findings.counts.update({f"{name}: {what}": number for what, number in counts.items()})
        return array, found

    def _form(self, name: str, times: int, found: pa.DataType | None) -> Form:
        """The form of a column that occurs this often in a schema, with this type."""
        if found is None:
            return Form.ABSENT
        if times != 1:
            raise InputError(not_once(name, times))
        declared, on_error = self._columns[name], self._on_error[name]
        if readable(found, declared):
            return Form.READABLE
        is_text = is_number_as_text(found, declared)
        if is_text and name in self._text:
            return Form.NARROWABLE
        narrows = narrowable(found, declared)
        if on_error is None or (on_error == "fail" and not narrows):
            hint = (
                ""
                if on_error
                else "; `on_error: null` or `skip` in the spec goes on without such values"
            )
            if is_text:
                hint = (
                    f"; `{name}: {{type: {type_name(declared)}, text: true}}` among the spec's "
                    f"inputs reads numbers as text{hint}"
                )
            raise InputError(
                f"column {name!r}: expected {type_name(declared)}, found {found}{hint}"
            )
        return Form.NARROWABLE if narrows else Form.WRONG

    def _strictest(self, sequence: Sequence) -> str | None:
        policies = {self._on_error.get(name) for name in sequence.of}
        return next((on_error for on_error in ("fail", "skip") if on_error in policies), None)


@dataclass(frozen=True, kw_only=True)
class _Problem:
    """Malformed values of one kind in a column or a sequence, and the policy for their rows."""

    owner: str
    on_error: str | None
    expected: str
    found: MalformedValues


def missing_columns(missing: Iterable[str], found: Iterable[str]) -> InputError:
    """Builds one error for all missing columns, each with the nearest existing names."""
    missing, found = list(missing), list(found)
    more = f" and {len(found) - _MAX_NAMES} more" if len(found) > _MAX_NAMES else ""
    columns = f"found {', '.join(found[:_MAX_NAMES]) or 'no columns'}{more}"
    if len(missing) == 1:
        return InputError(
            f"missing input column: expected {missing[0]!r}{nearest(missing[0], found)}; {columns}"
        )
    return InputError(
        f"missing {len(missing)} input columns: expected {all_nearest(missing, found)}; {columns}"
    )


def _raise_first(
    problems: Iterable[_Problem], stopping: tuple[str, ...], origin: BatchOrigin
) -> None:
    """Raises InputError for the first row with a value whose policy is in `stopping`."""
    stops = [problem for problem in problems if problem.on_error in stopping]
    if stops:
        first = min(stops, key=lambda problem: int(problem.found.rows[0]))
        value_text, kind = first.found.text(0), first.found.what
        problem_text = (
            f"{first.expected}, found {value_text} ({kind}), and on_error says {first.on_error}"
        )
        row = int(first.found.rows[0])
        raise InputError(origin.in_rows(row, row, problem_text))


def _without_skipped(
    columns: list[pa.Array], num_rows: int, problems: Iterable[_Problem], findings: Findings
) -> Taken:
    skipped = np.zeros(num_rows, np.bool_)
    for problem in problems:
        if problem.on_error == "skip":
            skipped[problem.found.rows] = True
    if not skipped.any():
        return Taken(columns=columns, num_rows=num_rows)
    kept: Integers = np.flatnonzero(~skipped)
    findings.num_rows_skipped += num_rows - len(kept)
    # Arrow has no `filter` for view types; `without_views` converts them first.
    mask = array_of_bits(~skipped)
    return Taken(
        columns=[without_views(array).filter(mask) for array in columns],
        num_rows=len(kept),
        kept=kept,
    )


def _as_list(array: pa.Array, declared: pa.DataType) -> pa.Array:
    return array.cast(declared) if pa.types.is_null(array.type) else array
