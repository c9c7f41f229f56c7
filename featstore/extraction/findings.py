"""What a run finds in its raw rows: malformed values counted, a few of them as examples, and the
rows that were skipped.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from featstore.ops.malformed import KINDS, MAX_EXAMPLES, Found

FILLED = "filled"
"""Among a slot's counts: rows in which `default` or `fill` put a value in place of a missing
one.
"""
NULLS_DROPPED = ("incomplete elements", "null elements")
TEXT_ERRORS = ("invalid utf-8", "malformed weights")


@dataclass(frozen=True, kw_only=True)
class BatchOrigin:
    """Where a batch comes from: its file or Spark partition, and the number of its first row there,
    counted from 0.

    Without a number the batch is a single row, which needs none.
    """

    source: str = ""
    first_row: int | None = 0

    def after(self, num_rows: int) -> "BatchOrigin":
        """Where the next batch comes from."""
        return replace(self, first_row=(self.first_row or 0) + num_rows)

    def number(self, i: int) -> int | None:
        """The number of the batch's i-th row."""
        return None if self.first_row is None else self.first_row + i

    def rows(self, first: int, last: int) -> str:
        """The batch's rows from the first to the last, which is included, as errors name them; ""
        for a single row.
        """
        if self.first_row is None:
            return self.source
        start, end = self.first_row + first, self.first_row + last
        text = f"row {start}" if start == end else f"rows {start} to {end}"
        return f"{self.source}, {text}" if self.source else text

    def in_rows(self, first: int, last: int, text: str) -> str:
        """What is to be said of these rows."""
        where = self.rows(first, last)
        return f"{where}: {text}" if where else text


BATCH, REQUEST = BatchOrigin(), BatchOrigin(first_row=None)


@dataclass(frozen=True, kw_only=True)
class Malformed:
    """One malformed value, as an example: what it is (shortened), and where. An absent column has
    neither value nor row.
    """

    column: str
    what: str
    source: str
    row: int | None = None
    value: str = ""

    def __str__(self) -> str:
        where = ", ".join(
            [
                *([self.source] if self.source else []),
                *([] if self.row is None else [f"row {self.row}"]),
            ]
        )
        return f"{self.value} ({where})" if self.value and where else self.value or where


@dataclass(kw_only=True)
class Findings:
    """Adds up what is found. Neither how rows are cut into batches nor the order of the batches
    changes what it holds.
    """

    counts: Counter[str] = field(default_factory=Counter)
    num_rows_skipped: int = 0
    examples: tuple[Malformed, ...] = ()

    def add(self, column: str, found: Iterable[Found], origin: BatchOrigin) -> None:
        """Counts malformed values of a column, and keeps them as examples if they are among the
        first.
        """
        for one in found:
            self.counts[f"{column}: {one.what}"] += len(one.rows)
            self.show(column, one, origin)

    def show(self, column: str, found: Found, origin: BatchOrigin) -> None:
        """Keeps the first values as examples; they are counted elsewhere."""
        self.keep(
            Malformed(
                column=column,
                what=found.what,
                source=origin.source,
                row=origin.number(row),
                value=text,
            )
            for row, text in found.examples()
        )

    def keep(self, examples: Iterable[Malformed]) -> None:
        """Keeps the first examples of each column and kind, by source and row."""
        self.examples = first_examples([*self.examples, *examples])


def first_examples(examples: Iterable[Malformed]) -> tuple[Malformed, ...]:
    """In order of column, kind, source and row: at most three of each column and kind."""
    kept: list[Malformed] = []
    taken: Counter[tuple[str, str]] = Counter()
    for example in sorted(set(examples), key=_order):
        taken[example.column, example.what] += 1
        if taken[example.column, example.what] <= MAX_EXAMPLES:
            kept.append(example)
    return tuple(kept)


def describe(
    counts: Mapping[str, int], examples: Iterable[Malformed], num_rows_skipped: int
) -> list[str]:
    """The lines of a report: rows skipped, and each column's malformed values with examples. None
    where all was well.
    """
    lines = [f"{num_rows_skipped:,} rows skipped"] if num_rows_skipped else []
    shown: dict[str, list[str]] = {}
    for example in examples:
        shown.setdefault(f"{example.column}: {example.what}", []).append(str(example))
    for key, number in sorted(counts.items()):
        if key.rpartition(": ")[2] in KINDS:
            such = f", such as {'; '.join(shown[key])}" if key in shown else ""
            lines.append(f"{key}: {number:,}{such}")
    return lines


def _order(example: Malformed) -> tuple[str, str, str, int, str]:
    return (
        example.column,
        example.what,
        example.source,
        -1 if example.row is None else example.row,
        example.value,
    )
