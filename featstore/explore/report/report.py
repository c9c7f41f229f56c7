"""The report of a table: gathers what it shows, and writes one file."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from featstore.base.redaction import redact, redact_text
from featstore.explore.plots.frame import short_text
from featstore.explore.questions import Question
from featstore.explore.report.contents import ReportFigures, contents
from featstore.explore.report.page import page
from featstore.explore.table import Table, open_table
from featstore.files import storage
from featstore.statistics.stale_groups import ERROR

MOST_PARTITIONS = 60  # the last ones, whose coverage and drift each slot's charts show
_MOST_CHARACTERS = 300  # of a URL, a predicate or what was malformed


@dataclass(frozen=True, kw_only=True)
class WrittenReport:
    """A report that was written.

    Attributes:
        url: Where.
        num_slots: The slots that it shows.
        size_bytes: Its size.
    """

    url: str = field(repr=False)
    num_slots: int
    size_bytes: int

    def __str__(self) -> str:
        return f"{redact(self.url)}: {self.num_slots:,} slots, {self.size_bytes:,} bytes"


def report(
    url: str | Path,
    output: str | Path,
    *,
    version: int | None = None,
    stale_groups: str = ERROR,
    where: str | None = None,
    slots: Sequence[str] | None = None,
    exact: bool = False,
    label: str | None = None,
    compare: str | None = None,
    compare_version: int | None = None,
    days: tuple[str, str] | None = None,
) -> WrittenReport:
    """Writes what is known of a table's slots into one HTML file.

    The file needs nothing else: no network, no server, no other file. It appears whole or not at
    all, and equal tables give equal files. Figures come from stored statistics where these are,
    otherwise from the rows, which are then read once for the slots and once for the partitions.

    Args:
        url: A Delta table, or a directory or glob of Parquet files. Local or remote.
        output: The file to write, local or remote. One that is there is replaced.
        version: A version of a Delta table; by default the newest.
        stale_groups: As of `open_table`.
        where: A predicate; by default every row counts.
        slots: Names and globs of slots; by default all.
        exact: Count the rows exactly, even if statistics are stored.
        label: Show the rate of this label of 0 and 1 by value and partition, and the AUC of each
            slot alone. The rows are read once more.
        compare: Compare with this table, which came before.
        compare_version: Its version, by default the newest. Without `compare` it is a version of
            the table itself.
        days: Compare two values of the first partition key, the earlier one first. The report is
            about the later one.

    Returns:
        What was written.

    Raises:
        TableNotFoundError: There is no table at a URL, or not in this version.
        InputError: Both `compare` and `days` are given; there is no such day; the label has values
            besides 0 and 1; or a slot holds ids on one side and floats on the other.
        SelectionError: There is no such column, slot or label.
        StaleGroupError: A slot group of the selection is stale.
        DiskFullError: The disk is full.
        StoreError: A file store cannot be reached or refuses.
    """
    question = Question(
        where=where,
        slots=slots or (),
        exact=exact,
        compare=compare,
        compare_version=compare_version,
        days=days,
    )
    table = open_table(url, version, stale_groups=stale_groups)
    before, after = question.sides(table)
    rows, slots = question.rows(table), slots or None
    partitions = None
    if table.schema.partition_keys:
        # The last partitions; with `days` too all of them, since two days alone say less.
        partitions = table.profile_partitions(where, slots, stored=not exact, last=MOST_PARTITIONS)
    found = ReportFigures(
        about=_about(table, question),
        profile=after,
        costs=table.reading_costs(rows, slots, decode=False),
        before=before,
        label=None if label is None else table.label_profile(label, rows, slots),
        partitions=partitions,
    )
    title = short_text(f"featstore report: {redact(table.url)}", _MOST_CHARACTERS)
    text = page(title, contents(found))
    with storage.open_write(str(output)) as file:
        file.write(text)
    return WrittenReport(
        url=str(output), num_slots=len(found.profile.summaries), size_bytes=len(text)
    )


def _about(table: Table, question: Question) -> list[tuple[str, str]]:
    """What the report is about, without secrets of URLs."""
    found: list[tuple[str, Any]] = [("table", redact(table.url)), ("version", table.version)]
    found.append(("where", None if question.where is None else redact_text(question.where)))
    if question.compare is not None or question.compare_version is not None:
        newest = "newest" if question.compare_version is None else question.compare_version
        url = question.compare or table.url
        found.append(("compared with", f"{redact(url)}, version {newest}"))
    if question.days is not None:
        found.append(("days", " → ".join(question.days)))
    found.append(("malformed", "; ".join(table.inspect().malformed) or None))
    return [
        (name, short_text(str(value), _MOST_CHARACTERS))
        for name, value in found
        if value is not None
    ]
