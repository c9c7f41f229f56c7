"""The `checks` of a spec, run on the statistics of what a run is about to commit.

Figures and outcomes are pure functions of statistics. `check_before_commit` reads those that the
run has just merged, and those of earlier days from the table.
"""

import enum
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from featstore.base.errors import CheckFailedError
from featstore.base.redaction import redact
from featstore.base.schema import Slot, SlotSchema
from featstore.base.table_result import number_text, two_digits
from featstore.spec.check import columns_of
from featstore.spec.model import DataCheck, Spec
from featstore.spec.parse import parse_checks
from featstore.statistics.column_statistics import Statistics
from featstore.statistics.drift import DriftMethod, drift
from featstore.statistics.statistics_file import find_statistics
from featstore.statistics.summary import SlotSummary, label_mean, slot_columns, summarize
from featstore.table.delta import Commit, with_origins
from featstore.table.layout import partition_path
from featstore.table.metadata import to_json
from featstore.table.snapshot import DataFile, FileList, Snapshot

Partition = Mapping[str, str | None]
Load = Callable[[Partition], Statistics | None]
"""The statistics of a partition; None if there are none."""

_AT_LEAST = "at least: over the most frequent values, others may have drifted more"
_NUM_SHOWN = 5  # failed results that an error names


class Outcome(enum.StrEnum):
    """What a check came to. `SKIP`: there was nothing to compare with."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The result of one check for one column of one partition.

    Attributes:
        check: The figure that was checked; `rows against replaced` is a share of what was there.
        column: The slot or label; None for `rows`.
        partition: The partition.
        outcome: What it came to.
        value: The figure; None if it was skipped.
        error: How much more or less the figure may be, since it is an estimate; 0 if it is exact.
        at_least, at_most: The bounds; None for none.
        note: Why it was skipped, why an estimate beyond a bound passed, or that drift is at least
            so much.
    """

    check: str
    column: str | None
    partition: Partition
    outcome: Outcome
    value: float | None = None
    error: float = 0.0
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    @property
    def value_text(self) -> str:
        """The figure with its error, in two digits or as many as show on which side of a bound it
        is.
        """
        if self.value is None:
            return "-"
        text = _number(self.value) if isinstance(self.value, int) else self._shortest(self.value)
        return f"{text} ± {two_digits(self.error)} (estimate)" if self.error else text

    def _shortest(self, value: float) -> str:
        bounds = [bound for bound in (self.at_least, self.at_most) if bound is not None]
        sides = [_side(value, bound) for bound in bounds]
        texts = (number_text(value, digits) for digits in range(2, 18))
        return next(text for text in texts if [_side(float(text), b) for b in bounds] == sides)

    @property
    def bounds_text(self) -> str:
        """The bounds."""
        bounds = (("at least", self.at_least), ("at most", self.at_most))
        return ", ".join(f"{text} {_number(bound)}" for text, bound in bounds if bound is not None)

    def __str__(self) -> str:
        of = "" if self.column is None else f" of {self.column}"
        place = partition_path(self.partition)
        note = f"; {self.note}" if self.note else ""
        return (
            f"{self.check}{of}{place and f' in {place}'}: {self.value_text}, expected "
            f"{self.bounds_text}{note}"
        )

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON types."""
        return asdict(self) | {"outcome": str(self.outcome), "partition": dict(self.partition)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "CheckResult":
        """The inverse of `as_dict`."""
        return cls(**{**stored, "outcome": Outcome(stored["outcome"])})


@dataclass(frozen=True, kw_only=True)
class _Figure:
    """A measured value; None with a note if it could not be measured. Else a note says what kind of
    figure it is.
    """

    value: float | None
    error: float = 0.0
    note: str = ""


def run_checks(
    checks: Sequence[DataCheck],
    schema: SlotSchema,
    wanted: Iterable[Partition],
    every: Sequence[Partition],
    load: Load,
    replaced: Mapping[str, int] = MappingProxyType({}),
) -> Iterator[CheckResult]:
    """Yields the result of each check, for each of its columns in each partition.

    Args:
        checks: The checks.
        schema: The table's columns.
        wanted: The partitions to check.
        every: All partitions of the table, with those to check: drift is measured against some.
        load: Reads the statistics of a partition.
        replaced: The rows that partitions have before they are replaced, by their JSON.

    Raises:
        SpecError: A check is of a slot or label that the schema lacks.
    """
    labels = [label.name for label in schema.labels]
    columns = [(check, columns_of(check, schema.names, labels) or (None,)) for check in checks]
    slots = [schema[name] for check, names in columns for name in names if name in schema.names]
    earlier = _Earlier(load, every, slots)
    for partition in wanted:
        statistics = load(partition)
        summaries = summarize(statistics or Statistics(), slots)
        for check, names in columns:
            for name in names:
                if statistics is None:
                    figure = _Figure(value=None, note="the partition has no statistics")
                elif name is None:
                    before = replaced.get(to_json(partition)) if check.against else None
                    figure = _rows(check, statistics.num_rows, before)
                elif check.check == "label_rate":
                    rate = label_mean(statistics, name)
                    figure = _Figure(
                        value=rate, note="" if rate is not None else "no row has the label"
                    )
                elif check.check == "coverage":
                    figure = _Figure(value=summaries[name].coverage)
                elif check.last is not None:  # which `drift` has
                    days = earlier.of(partition, name, check.last)
                    figure = _drift(days, summaries[name])
                else:
                    figure = _distinct(summaries[name])
                yield _result(check, name, partition, figure)


def _rows(check: DataCheck, num_rows: int, before: int | None) -> _Figure:
    """The rows of a partition, or their share of those that it had before."""
    if not check.against:
        return _Figure(value=num_rows)
    if not before:
        return _Figure(value=None, note="nothing is replaced; a run checks it before its commit")
    note = f"{num_rows:,} rows, where the partition had {before:,}"
    return _Figure(value=num_rows / before, note=note)


def _distinct(slot: SlotSummary) -> _Figure:
    error = math.ceil(slot.distinct_error * slot.distinct) if slot.distinct_error else 0.0
    return _Figure(value=slot.distinct, error=error)


def _drift(before: Sequence[SlotSummary], after: SlotSummary) -> _Figure:
    found = drift(before, after)
    if found is None:
        return _Figure(value=None, note="no earlier day has rows with statistics")
    note = _AT_LEAST if found.method is DriftMethod.AT_LEAST else ""
    return _Figure(value=found.index, error=found.error, note=note)


def _result(
    check: DataCheck, column: str | None, partition: Partition, figure: _Figure
) -> CheckResult:
    """The result of a figure: an estimate fails only if it is beyond a bound by more than its
    error.
    """
    value, notes, outcome = figure.value, [figure.note] if figure.note else [], Outcome.PASS
    low = check.at_least if check.at_least is not None else -float("inf")
    high = check.at_most if check.at_most is not None else float("inf")
    if value is None:
        outcome = Outcome.SKIP
    elif not low <= value + figure.error or not value - figure.error <= high:
        outcome = Outcome(check.severity)
    elif not low <= value <= high:
        notes.append("passed, since the estimate may be off by that much")
    return CheckResult(
        check=f"{check.check} against {check.against}" if check.against else check.check,
        column=column,
        partition=dict(partition),
        outcome=outcome,
        value=value,
        error=figure.error,
        at_least=check.at_least,
        at_most=check.at_most,
        note="; ".join(notes),
    )


class _Earlier:
    """Slots in the days before a partition's. A partition is read once."""

    def __init__(self, load: Load, every: Sequence[Partition], slots: Sequence[Slot]) -> None:
        self._load, self._every, self._slots = load, every, slots
        self._known: dict[str, dict[str, SlotSummary]] = {}

    def of(self, partition: Partition, name: str, last: int) -> list[SlotSummary]:
        """What is known of the slot in each partition of the last days that has it."""
        parts = map(self._summaries, days_before(partition, self._every, last))
        return [part[name] for part in parts if name in part]

    def _summaries(self, partition: Partition) -> dict[str, SlotSummary]:
        key = to_json(partition)
        if key not in self._known:
            statistics = self._load(partition) or Statistics()
            columns = slot_columns(statistics, self._slots)
            there = [slot for slot in self._slots if columns[slot.name].num_rows]
            self._known[key] = summarize(statistics, there)
        return self._known[key]


def days_before(partition: Partition, every: Iterable[Partition], last: int) -> list[Partition]:
    """The partitions of the `last` days before a partition's own.

    A day is a value of the first partition key, and the order of days is that of the values: of
    numbers if all are whole numbers, else of texts. Days that the table lacks do not count.
    """
    if not partition:
        return []
    key = next(iter(partition))
    by_day: dict[str, list[Partition]] = {}
    for other in every:
        if other.get(key) is not None:
            by_day.setdefault(str(other[key]), []).append(other)
    own = str(partition[key])
    number = all(day.isdecimal() for day in (*by_day, own))
    days = sorted(by_day, key=lambda day: (int(day) if number else 0, day))
    before = [day for day in days if (int(day) < int(own) if number else day < own)]
    return [other for day in before[-last:] for other in by_day[day]]


def check_before_commit(
    spec: Spec,
    schema: SlotSchema,
    table_url: str,
    files: Sequence[DataFile],
    partitions: Sequence[Partition],
    base: Snapshot | None,
) -> tuple[CheckResult, ...]:
    """Runs the checks of a spec on the partitions that a run is about to commit.

    Args:
        spec: The spec.
        schema: The columns of the run's files.
        table_url: The table.
        files: The data files of the run, whose statistics are stored.
        partitions: The partitions that the files will replace.
        base: The table before the run; None if there was none.

    Returns:
        The results of severity `warn` that did not pass.

    Raises:
        CheckFailedError: Results of severity `fail` did not pass.
    """
    if not spec.checks:
        return ()
    written = {to_json(partition) for partition in partitions}
    new, kept = FileList.of(files), FileList.of() if base is None else base.data_files
    others = () if base is None else base.partitions
    every = [*(p for p in others if to_json(p) not in written), *partitions]

    def load(partition: Partition) -> Statistics | None:
        found = (new if to_json(partition) in written else kept).in_partitions([partition])
        if not found:
            return Statistics()
        stored = find_statistics(table_url, partition, found)
        return None if stored is None else stored.statistics

    replaced = Counter(
        {to_json(one.partition): one.num_rows for one in kept.in_partitions(partitions).totals()}
    )
    results = list(run_checks(spec.checks, schema, partitions, every, load, replaced))
    failed = [result for result in results if result.outcome is Outcome.FAIL]
    if failed:
        more = f"; and {len(failed) - _NUM_SHOWN} more" if len(failed) > _NUM_SHOWN else ""
        shown = "; ".join(map(str, failed[:_NUM_SHOWN]))
        raise CheckFailedError(
            f"{redact(table_url)}: {len(failed)} of {len(results)} checks failed: {shown}{more}. "
            f"The table is left as it is; mend the input, or change `checks` in the spec."
        )
    return tuple(result for result in results if result.outcome is Outcome.WARN)


def stored_checks(commits: Iterable[Commit]) -> tuple[DataCheck, ...]:
    """The checks of the newest extraction of a table, from its commits, newest first."""
    made = with_origins(commits)
    newest = next((m for _, m in made if m.groups is None and not m.origins), None)
    return () if newest is None else tuple(parse_checks(list(newest.checks)))


def stored_warnings(
    commits: Iterable[Commit], partitions: Iterable[Partition]
) -> tuple[CheckResult, ...]:
    """The warnings of the extractions that made these partitions.

    Args:
        commits: The commits of the table up to its version, newest first.
        partitions: The table's partitions.
    """
    waiting, found = {to_json(partition) for partition in partitions}, list[CheckResult]()
    for _, metadata in with_origins(commits):
        # A compaction rewrites what its origins made.
        if not metadata.origins:
            made = waiting & {to_json(partition) for partition in metadata.partitions}
            results = map(CheckResult.from_dict, metadata.warnings)
            found += [result for result in results if to_json(result.partition) in made]
            waiting -= made
    return tuple(found)


def _side(value: float, bound: float) -> int:
    return (value > bound) - (value < bound)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
