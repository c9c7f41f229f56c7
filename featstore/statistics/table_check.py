"""Runs checks on what a table holds: the result of `Table.check`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from featstore.base.errors import InputError, SpecError
from featstore.base.redaction import redact
from featstore.base.table_result import TableResult
from featstore.spec.check import columns_of
from featstore.spec.model import DataCheck
from featstore.statistics.data_checks import CheckResult, Load, Outcome, Partition, run_checks
from featstore.statistics.drift import DEPENDENT
from featstore.table.layout import partition_path
from featstore.table.snapshot import Snapshot

_ORDER = (Outcome.FAIL, Outcome.WARN, Outcome.SKIP, Outcome.PASS)
_HEADERS = ("outcome", "check", "column", "partition", "value", "expected", "note")


SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("outcome", "check", "column", "partition")),
        *((name, pa.float64()) for name in ("value", "error", "at_least", "at_most")),
        ("note", pa.string()),
    ]
)


@dataclass(frozen=True, kw_only=True, repr=False)
class TableCheckReport(TableResult):
    """The results of checks on a table.

    Attributes:
        table_url: The table.
        version: Its version; None for plain Parquet.
        results: The results, by partition.
        left_out: The results that `only_failed` has left out: they passed or were skipped.
        table: An Arrow table with a row per result: `outcome`, `check`, `column`, `partition` (such
            as `dt=2026-11-01`), `value`, `error`, `at_least`, `at_most` and `note`, as of
            `CheckResult`.
    """

    table_url: str = field(repr=False)
    version: int | None
    results: tuple[CheckResult, ...]
    left_out: tuple[CheckResult, ...] = ()
    table: pa.Table = field(init=False, compare=False)
    _align = ("left", "left", "left", "left", "right", "left", "left")

    def __post_init__(self) -> None:
        rows = [
            result.as_dict() | {"partition": partition_path(result.partition)}
            for result in self.results
        ]
        object.__setattr__(self, "table", pa.Table.from_pylist(rows, SCHEMA))

    @property
    def ok(self) -> bool:
        """Whether no check of severity `fail` failed."""
        return all(result.outcome is not Outcome.FAIL for result in self.results)

    def only_failed(self) -> "TableCheckReport":
        """The report with only the results that failed or warn."""
        kept = tuple(r for r in self.results if r.outcome in (Outcome.FAIL, Outcome.WARN))
        left_out = tuple(r for r in self.results if r.outcome in (Outcome.PASS, Outcome.SKIP))
        return replace(self, results=kept, left_out=self.left_out + left_out)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON types."""
        return {
            "table": redact(self.table_url),
            "version": self.version,
            "ok": self.ok,
            "results": [result.as_dict() for result in self.results],
        }

    def _shown(self) -> tuple[Sequence[str], list[Sequence[object]]]:
        """Checks that did not pass come first."""
        results = sorted(self.results, key=lambda result: _ORDER.index(result.outcome))
        return _HEADERS, [
            (
                result.outcome,
                result.check,
                result.column,
                partition_path(result.partition) or "(none)",
                result.value_text,
                result.bounds_text,
                result.note,
            )
            for result in results
        ]

    def _foot(self) -> Sequence[str]:
        """A summary, and what the errors of drift leave out."""
        found = Counter(result.outcome for result in (*self.results, *self.left_out))
        counts = ", ".join(f"{found[outcome]:,} {outcome}" for outcome in Outcome if found[outcome])
        of_drift = any(result.check == "drift" and result.error for result in self.results)
        summary = f"{redact(self.table_url)}: {found.total():,} checks: {counts}"
        return [summary, *([f"± of drift is what chance may do; {DEPENDENT}"] if of_drift else [])]


def checked_columns(snapshot: Snapshot, checks: Sequence[DataCheck]) -> set[str]:
    """The slots and labels of a table that checks are about.

    Raises:
        SpecError: The table lacks one.
    """
    labels = [label.name for label in snapshot.schema.labels]
    try:
        columns = [columns_of(check, snapshot.schema.names, labels) for check in checks]
    except SpecError as error:
        raise SpecError(
            f"{redact(snapshot.url)} lacks what a check is about (leave out the check, or extract "
            f"the slot first: --group adds one to days that are there): {error}"
        ) from error
    return {name for names in columns for name in names}


def check_snapshot(
    snapshot: Snapshot, checks: Sequence[DataCheck], wanted: Sequence[Partition], load: Load
) -> TableCheckReport:
    """Runs checks on partitions of a table.

    Args:
        snapshot: The table.
        checks: The checks.
        wanted: The partitions.
        load: Reads the statistics of a partition.

    Raises:
        InputError: There are no checks.
        SpecError: A check is of a slot or label that the table lacks, see `checked_columns`.
    """
    if not checks:
        raise InputError(
            f"{redact(snapshot.url)}: the spec that the table was made with has no `checks`; name "
            f"one that has some (--spec)"
        )
    results = run_checks(checks, snapshot.schema, wanted, snapshot.partitions, load)
    return TableCheckReport(
        table_url=snapshot.url, version=snapshot.version, results=tuple(results)
    )
