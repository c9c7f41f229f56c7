"""Runs checks on what a table holds: the result of `Table.check`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from featstore.errors import InputError
from featstore.redaction import redact
from featstore.spec.model import DataCheck
from featstore.table.layout import partition_path
from featstore.table.snapshot import Snapshot
from featstore.table.statistics.gates import CheckResult, Load, Outcome, Partition, run_checks
from featstore.text_table import text_table

_HEADERS = ("outcome", "check", "column", "partition", "value", "expected", "note")
_ALIGN = ("left", "left", "left", "left", "right", "left", "left")


@dataclass(frozen=True, kw_only=True)
class TableCheckReport:
    """The results of checks on a table.

    Attributes:
        table_url: The table.
        version: Its version; None for plain Parquet.
        results: The results, by partition.
    """

    table_url: str = field(repr=False)
    version: int | None
    results: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        """Whether no check of severity `fail` failed."""
        return all(result.outcome is not Outcome.FAIL for result in self.results)

    def text(self, width: int | None = None) -> str:
        """A table, of `width` characters at most if given, and a summary."""
        rows = [_cells(result) for result in self.results]
        return "\n".join([text_table(rows, _HEADERS, align=_ALIGN, width=width), self._summary()])

    def __str__(self) -> str:
        return self.text()

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON types."""
        return {
            "table": redact(self.table_url),
            "version": self.version,
            "ok": self.ok,
            "results": [result.as_dict() for result in self.results],
        }

    def _summary(self) -> str:
        found = Counter(result.outcome for result in self.results)
        counts = ", ".join(f"{found[outcome]:,} {outcome}" for outcome in Outcome if found[outcome])
        return f"{redact(self.table_url)}: {len(self.results):,} checks: {counts}"


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
        SpecError: A check is of a slot or label that the table lacks.
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


def _cells(result: CheckResult) -> tuple[object, ...]:
    return (
        result.outcome,
        result.check,
        result.column,
        partition_path(result.partition) or "(none)",
        result.value_text,
        result.bounds_text,
        result.note,
    )
