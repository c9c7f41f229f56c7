"""Problems found in raw rows: counts of malformed values, a few examples, and skipped rows; and the
slots that counts belong to.
"""

import itertools
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from featstore.files.storage import open_read, open_write
from featstore.ops.arrays import Integers, Mask
from featstore.ops.lists import fill_null
from featstore.ops.malformed import KINDS, MAX_EXAMPLES, MalformedValues, value_text
from featstore.spec.graph import Graph
from featstore.spec.model import Spec

FILLED = "filled"
"""Key in a slot's counts: rows in which `default` or `fill` replaced a missing value."""
NULLS_DROPPED = ("incomplete elements", "null elements")
TEXT_ERRORS = ("invalid utf-8", "malformed weights")
MAX_REJECTS = 10_000
_LAST_BYTES = 1_024  # in which the last line is
_MAX_ELEMENTS, _MAX_CHARACTERS = 100, 1_000  # of a value in the list of rejected rows


@dataclass(frozen=True, kw_only=True)
class BatchOrigin:
    """Where a batch comes from, so that errors can name the raw row.

    Attributes:
        source: The raw file or Spark partition.
        first_row: Number of the batch's first row in the source, counted from 0; None for a single
            row, which needs no number.
    """

    source: str = ""
    first_row: int | None = 0

    def after(self, num_rows: int) -> "BatchOrigin":
        """Returns the origin of the batch that follows `num_rows` rows later."""
        return replace(self, first_row=(self.first_row or 0) + num_rows)

    def rows(self, first: int, last: int) -> str:
        """Formats the range of rows from `first` to `last` (included) for an error message.

        Without a row number, the result is the source, which is empty for a single row.
        """
        if self.first_row is None:
            return self.source
        start, end = self.first_row + first, self.first_row + last
        text = f"row {start}" if start == end else f"rows {start} to {end}"
        return f"{self.source}, {text}" if self.source else text

    def in_rows(self, first: int, last: int, text: str) -> str:
        """Prefixes a message with the rows that it is about."""
        where = self.rows(first, last)
        return f"{where}: {text}" if where else text


BATCH, REQUEST = BatchOrigin(), BatchOrigin(first_row=None)


@dataclass(frozen=True, kw_only=True)
class Malformed:
    """An example of a malformed value: its kind, its text (shortened) and its place.

    For an absent column, `value` is empty and `row` is None.
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
    """Accumulates what is found in raw rows.

    The result depends neither on how rows are cut into batches nor on the order of the batches.
    """

    counts: Counter[str] = field(default_factory=Counter)
    num_rows_skipped: int = 0
    examples: tuple[Malformed, ...] = ()
    rejects: "Rejects | None" = None

    def add(self, column: str, found: MalformedValues, origin: BatchOrigin) -> None:
        """Counts malformed values of a column, and keeps the first ones as examples."""
        self.counts[f"{column}: {found.what}"] += len(found.rows)
        self.show(column, found, origin)

    def show(self, column: str, found: MalformedValues, origin: BatchOrigin) -> None:
        """Keeps the first values as examples, without counting them."""
        if self.rejects is not None:
            self.rejects.note(column, found)
        self.keep(
            Malformed(
                column=column,
                what=found.what,
                source=origin.source,
                row=None if origin.first_row is None else origin.first_row + row,
                value=text,
            )
            for row, text in found.examples()
        )

    def keep(self, examples: Iterable[Malformed]) -> None:
        """Keeps the first examples of each column and kind, ordered by source and row."""
        self.examples = first_examples([*self.examples, *examples])


@dataclass(kw_only=True)
class Rejects:
    """The first raw rows of a unit that have malformed values.

    Attributes:
        most: How many are kept.
        num_rows: How many there are.
        kept: Those that are kept: source, row, and a line of JSON.
    """

    most: int
    num_rows: int = 0
    kept: list[tuple[str, int, str]] = field(default_factory=list)
    _noted: list[tuple[str, MalformedValues]] = field(default_factory=list)

    def note(self, column: str, found: MalformedValues) -> None:
        """Notes malformed values of the batch that `take` is then called with."""
        self._noted.append((column, found))

    def take(self, batch: pa.RecordBatch, origin: BatchOrigin, left: Integers | None) -> None:
        """Keeps the rows of a raw batch that have noted values.

        Args:
            left: The rows that were not skipped; None for all.
        """
        noted, self._noted = self._noted, []
        if not noted:
            return
        rows = np.unique(np.concatenate([found.rows for _, found in noted]))
        self.num_rows += len(rows)
        rows = rows[: self.most - len(self.kept)]
        reasons: dict[int, list[dict[str, str]]] = {row: [] for row in rows.tolist()}
        for column, found in noted:
            bad, numbers = np.unique(found.rows, return_index=True)
            is_kept = np.isin(bad, rows)
            for row, number in zip(bad[is_kept].tolist(), numbers[is_kept].tolist(), strict=True):
                reason = {"column": column, "what": found.what, "value": found.text(number)}
                reasons[row].append(reason)
        skipped = set() if left is None else set(rows.tolist()).difference(left.tolist())
        for row, why in reasons.items():
            number = (origin.first_row or 0) + row
            line = {"source": origin.source, "row": number, "skipped": row in skipped}
            values = {name: _plain(batch.column(name), row) for name in batch.schema.names}
            text = json.dumps({**line, "reasons": why, "values": values}, ensure_ascii=False)
            self.kept.append((origin.source, number, text))


def write_rejects(url: str, found: Iterable[Rejects]) -> None:
    """Writes rejected rows as lines of JSON, by source and row; the last line has their numbers.

    The file appears whole or not at all.
    """
    every = list(found)
    kept = sorted(line for rejects in every for line in rejects.kept)[:MAX_REJECTS]
    num_rows = sum(rejects.num_rows for rejects in every)
    last = {"num_rows": num_rows, "num_listed": len(kept), "complete": num_rows == len(kept)}
    with open_write(url) as file:
        for *_, line in kept:
            file.write(line.encode(errors="replace") + b"\n")
        file.write(json.dumps(last).encode() + b"\n")


def may_hold_rejects(url: str) -> bool:
    """Whether there is no such file, or one that `write_rejects` wrote."""
    try:
        with open_read(url) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
            last = file.read().splitlines()[-1:]
    except FileNotFoundError:
        return True
    return any(line.startswith(b'{"num_rows": ') and b'"complete": ' in line for line in last)


def _plain(array: pa.Array, row: int) -> object:
    try:
        return _shown(array[row].as_py())
    except (ValueError, OverflowError):  # a Python value cannot be every Arrow value
        return value_text(array, row)


def _shown(value: Any) -> object:
    """A value as JSON types, cut where it is long."""
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value[:_MAX_ELEMENTS]]
    is_finite = isinstance(value, float) and math.isfinite(value)
    if value is None or isinstance(value, bool | int) or is_finite:
        return value
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text[:_MAX_CHARACTERS]


def first_examples(examples: Iterable[Malformed]) -> tuple[Malformed, ...]:
    """Returns at most three examples of each column and kind.

    They are sorted by column, kind, source and row.
    """
    ordered = sorted(
        set(examples),
        key=lambda of: (of.column, of.what, of.source, -1 if of.row is None else of.row, of.value),
    )
    kinds = itertools.groupby(ordered, lambda of: (of.column, of.what))
    return tuple(of for _, alike in kinds for of in itertools.islice(alike, MAX_EXAMPLES))


def describe(
    counts: Mapping[str, int], examples: Iterable[Malformed], num_rows_skipped: int
) -> list[str]:
    """Returns the report lines about skipped rows and malformed values; empty if there are none."""
    lines = [f"{num_rows_skipped:,} rows skipped"] if num_rows_skipped else []
    shown: dict[str, list[str]] = {}
    for example in examples:
        shown.setdefault(f"{example.column}: {example.what}", []).append(str(example))
    for key, number in sorted(counts.items()):
        if key.rpartition(": ")[2] in KINDS:
            examples_text = f", such as {'; '.join(shown[key])}" if key in shown else ""
            lines.append(f"{key}: {number:,}{examples_text}")
    return lines


class Attribution:
    """Counts by step, and reports each count for every slot that the step contributes to, since
    several slots share steps and columns.
    """

    def __init__(self, graph: Graph, spec: Spec) -> None:
        self._graph, self._spec = graph, spec
        self._num_columns = len(graph.columns)
        self.filling = frozenset(
            position
            for position, step in enumerate(graph.steps, self._num_columns)
            if step.function is fill_null
        )
        """The positions of the steps that replace missing values."""
        self._fillings = {
            slot: sorted(sources & self.filling)
            for slot, sources in graph.sources.items()
            if not self.filling.isdisjoint(sources)
        }
        self._counted = Counter[tuple[int, str]]()
        self._filled = Counter[str]()

    def count(self, position: int, counts: Mapping[str, int]) -> None:
        """Adds the counts of a step."""
        for what, number in counts.items():
            self._counted[position, what] += number

    def fill(self, masks: Mapping[int, Mask]) -> None:
        """Adds the rows of one batch that steps filled.

        A row counts once per slot, even if several steps filled it.
        """
        for slot, positions in self._fillings.items() if masks else ():
            of_slot = [masks[position] for position in positions if position in masks]
            if of_slot:
                self._filled[slot] += int(np.count_nonzero(np.logical_or.reduce(of_slot)))

    def by_slot(self, counts: Mapping[str, int]) -> dict[str, dict[str, int]]:
        """Returns the counts by slot.

        Args:
            counts: All counts by `<owner>: <kind>`. What remains after the counts of steps belongs
                to raw columns.
        """
        earlier = Counter(counts)
        for (position, what), number in self._counted.items():
            earlier[f"{self._graph.steps[position - self._num_columns].owner}: {what}"] -= number
        if not (earlier or self._filled):
            return {slot: {} for slot in self._graph.sources}
        return {
            slot: self._of_slot(slot, sources, earlier)
            for slot, sources in self._graph.sources.items()
        }

    def _of_slot(
        self, slot: str, sources: frozenset[int], earlier: Mapping[str, int]
    ) -> dict[str, int]:
        counts = Counter[str]({FILLED: self._filled[slot]})
        for (position, what), number in self._counted.items():
            if position in sources:
                counts[what] += number
        columns = list(self._graph.columns)
        read = {columns[position] for position in sources if position < self._num_columns}
        # The raw columns among the sources, and the sequences that have them.
        owners = read | {of.name for of in self._spec.sequences if not read.isdisjoint(of.of)}
        for key, number in earlier.items():
            owner, _, what = key.rpartition(": ")
            if owner in owners:
                counts[what] += number
        return {what: number for what, number in sorted(counts.items()) if number}
