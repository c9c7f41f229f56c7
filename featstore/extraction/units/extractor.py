"""The extractor: runs the graph of a spec over record batches."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from featstore.base.errors import ConfigError, InputError, OperatorError
from featstore.base.schema import SlotSchema
from featstore.extraction.units.findings import (
    BATCH,
    REQUEST,
    Attribution,
    BatchOrigin,
    Findings,
    Malformed,
)
from featstore.extraction.units.intake import Intake, Taken, missing_columns
from featstore.extraction.units.values import several, single
from featstore.histories.visibility import Events, ages, complete, keys_of_rows, ordered, visible
from featstore.ops.arrays import Integers, Mask, array_of, nulls_of, values_of
from featstore.ops.columns import clean, read_column
from featstore.ops.lists import align
from featstore.ops.malformed import ABSENT, KINDS, MalformedValues, find_malformed, find_unequal
from featstore.spec.explanation import Explanation, explanation_of
from featstore.spec.graph import Step, build_graph
from featstore.spec.model import EventHistory, Spec

# What a step counted: its position, the counts, and its inputs, for examples of malformed values.
_StepCounts = tuple[int, Counter[str], list[pa.Array]]
INCOMPLETE = "events without key or time"
SKIPPED = "skipped events"
_Rows: TypeAlias = Sequence[Mapping[str, object]]
_EXPLAINED = (pa.ArrowException, MemoryError, TypeError, ValueError)


class Extractor:
    """Turns raw record batches into slot columns.

    The output has the same rows in the same order, without rows that the spec skips. Values do not
    depend on how rows are cut into batches. The only state is `findings`, which accumulates what
    was dropped or replaced. An extractor can be pickled; the copy starts without findings. Not
    thread-safe: use one per thread.

    Args:
        spec: The features to extract.

    Raises:
        SpecError: The spec is not valid.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.findings = Findings()
        self.graph = build_graph(spec)
        self._intake = Intake(spec, self.graph.columns)
        self._attribution = Attribution(self.graph, spec)
        self._required = sorted((self.graph.required | spec.keys) - spec.optional)
        self._bound: pa.Schema | None = None
        self._events = {history.name: EventExtractor(history) for history in spec.histories}
        self._watches: list[Callable[[pa.RecordBatch], None]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return Extractor, (self.spec,)

    @property
    def counts(self) -> Counter[str]:
        """Number of dropped or replaced values, by `<slot or column>: <kind>`."""
        return self.findings.counts

    @property
    def counts_by_slot(self) -> dict[str, dict[str, int]]:
        """Dropped or replaced values by slot.

        Counts of a shared column or node appear with each slot that reads it. `filled` counts the
        rows in which `default` or `fill` replaced a missing value.
        """
        return self._attribution.by_slot(self.counts)

    def watch(self, watch: Callable[[pa.RecordBatch], None]) -> None:
        """Adds a callback that receives each batch of raw rows once it has been extracted.

        The batch does not hold skipped rows.
        """
        self._watches.append(watch)

    @property
    def schema(self) -> SlotSchema:
        """Slots in declared order, then labels, weight and kept columns."""
        return self.graph.schema

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The raw columns that are read, in declared order; all others are ignored."""
        return tuple(self.graph.columns)

    def columns_in(self, names: Iterable[str]) -> list[str]:
        """Returns those of `names` that are read. All but optional columns must be among them."""
        present = frozenset(names)
        return [name for name in self.graph.columns if name in present]

    def bind(self, raw: pa.Schema) -> None:
        """Checks a raw schema.

        Raises:
            InputError: Columns are missing, or one has the wrong type; the error names them.
        """
        self._intake.bind(raw)
        self._bound = raw

    def __call__(self, batch: pa.RecordBatch, origin: BatchOrigin = BATCH) -> pa.RecordBatch:
        """Extracts one batch, of a spec without histories: `one` and extraction into tables know
        the events.

        Args:
            batch: Raw rows; must hold all but the optional columns.
            origin: Where the batch comes from, for error messages.

        Returns:
            The slots, labels, weight and kept columns, in the schema `self.schema.to_arrow()`.

        Raises:
            ConfigError: The spec has histories.
            InputError: As for `bind`, or a value is malformed and its `on_error` is `fail`.
            OperatorError: An operator failed; names the slot, the operator and the row.
        """
        check_no_histories(self.spec, "a batch of rows")
        return self._extract(batch, origin)[0]

    def rows(self, batch: pa.RecordBatch, origin: BatchOrigin = BATCH) -> pa.RecordBatch:
        """What units make of a batch: as calling it, without histories, which a bucket adds."""
        return self._extract(batch, origin)[0]

    def one(
        self,
        row: Mapping[str, object],
        events: Mapping[str, _Rows] | None = None,
    ) -> dict[str, object]:
        """Extracts one row through the same operators.

        Args:
            row: Raw values by column. Optional columns, and columns that only labels, weight or
                kept columns read, may be absent; they are then null.
            events: The raw events of each history, by its name, in any order. Those of other keys,
                and those that the row does not see, are left out.

        Returns:
            The values as in a data file: missing slots are 0, NaN, `[0]` or `[NaN]`. Slots of
            histories are lists with a value for each event that the row sees, the last known one
            at the end; without key or `as_of` they are `[]`.

        Raises:
            InputError: As for a batch, and also for values whose `on_error` is `skip`: a table
                would not hold the row, so there is nothing to return. Or the events of a history
                are missing.
            OperatorError: An operator failed.
        """
        absent = self._check_row(row)
        given = self._given(events or {})
        self.counts.update(f"{name}: {ABSENT}" for name in absent)
        batch, keys = self._extract(self._single(row), REQUEST, skips=False)
        values = dict(batch.to_pylist()[0])
        for (name, extractor), key in zip(self._events.items(), keys, strict=True):
            values |= extractor.of_row(given[name], key, batch.column(extractor.history.as_of))
            self.counts.update(extractor.named_findings()[0])
            extractor.findings = Findings()
        return values

    def explain(self, row: Mapping[str, object]) -> Explanation:
        """Shows what each step makes of one row: raw values, nodes, hashes and stored signs.

        Nothing is counted.

        Args:
            row: Raw values by column, as for `one`, or a row of a pandas DataFrame: NaN is missing
                in every column.

        Returns:
            The values. `str()` of it is a table, and `.of(slot)` only what a slot is made of.

        Raises:
            InputError, OperatorError: As for `one`.
        """
        self._check_row(row)
        batch = self._single({name: _without_nan(value) for name, value in row.items()})
        self.bind(batch.schema)
        values = list(self._intake.take(batch, REQUEST, Findings(), skips=False).columns)
        for step in self.graph.steps:
            values.append(_result(step, [values[i] for i in step.inputs], Counter()))
        return explanation_of(self.graph, values)

    def _check_row(self, row: Mapping[str, object]) -> list[str]:
        """The optional columns that a row lacks. Raises InputError if it lacks others that slots
        need.
        """
        absent = [name for name in self._required if name not in row]
        if absent:
            raise missing_columns(absent, row)
        optional = self.spec.optional
        return [name for name in self.graph.columns if name not in row and name in optional]

    def _single(self, row: Mapping[str, object]) -> pa.RecordBatch:
        """One row as a batch of raw columns."""
        said = self.spec.on_error
        arrays = [
            single(name, row.get(name), declared, said=said.get(name), text=name in self.spec.text)
            for name, declared in self.graph.columns.items()
        ]
        return pa.RecordBatch.from_arrays(arrays, names=list(self.graph.columns))

    def _extract(
        self, batch: pa.RecordBatch, origin: BatchOrigin, *, skips: bool = True
    ) -> tuple[pa.RecordBatch, list[pa.Array]]:
        """The extracted columns, and the signs of each history's key."""
        taken = self._take(batch, origin, skips=skips)
        counted, filled = list[_StepCounts](), dict[int, Mask]()
        try:
            outputs = self._run(taken.columns, counted, filled)
        except OperatorError as error:
            raise self._with_row(error, taken, origin) from error.__cause__
        for position, counts, inputs in counted:
            self._count(position, counts, inputs, taken, origin)
        if self.findings.rejects is not None:
            self.findings.rejects.take(batch, origin, taken.kept)
        self._attribution.fill(filled)
        if self._watches:
            raw = pa.RecordBatch.from_arrays(taken.columns, names=list(self.graph.columns))
            for watch in self._watches:
                watch(raw)
        num_columns = len(self.graph.outputs)
        extracted = pa.RecordBatch.from_arrays(
            outputs[:num_columns], schema=self.graph.arrow_schema
        )
        return extracted, outputs[num_columns:]

    def _take(self, batch: pa.RecordBatch, origin: BatchOrigin, *, skips: bool = True) -> Taken:
        # Files of one run may differ in schema, for instance in optional columns.
        if self._bound is None or not batch.schema.equals(self._bound):
            self.bind(batch.schema)
        return self._intake.take(batch, origin, self.findings, skips=skips)

    def _run(
        self, columns: list[pa.Array], counted: list[_StepCounts], filled: dict[int, Mask]
    ) -> list[pa.Array]:
        """Runs all steps and returns the output columns, then the signs of keys. Adds what steps
        counted, and by position the rows that they filled.
        """
        values: dict[int, pa.Array] = dict(enumerate(columns))
        for position, (step, last) in enumerate(
            zip(self.graph.steps, self.graph.last_reads, strict=True), len(columns)
        ):
            found: Counter[str] | None = Counter() if step.counted else None
            inputs = [values[i] for i in step.inputs]
            values[position] = _result(step, inputs, found)
            if found:
                counted.append((position, found, inputs))
            if position in self._attribution.filling and (nulls := nulls_of(inputs[0])) is not None:
                filled[position] = nulls
                # Bounds memory: a column is dropped after the last step that reads it.
            for i in last:
                del values[i]
        return [values[i] for i in (*self.graph.outputs, *self.graph.keys)]

    def _given(self, events: Mapping[str, _Rows]) -> Mapping[str, _Rows]:
        """The events of all histories; InputError if some are missing or of others."""
        known = f"those of {', '.join(self._events)}" if self._events else "none"
        for name in events:
            if name not in self._events:
                raise InputError(f"events: expected {known}, found {name!r}")
        for name in self._events:
            if name not in events:
                raise InputError(
                    f"events: expected those of the history {name!r}, found nothing; give [] "
                    "for none"
                )
        return events

    def _count(
        self,
        position: int,
        counts: Counter[str],
        inputs: list[pa.Array],
        taken: Taken,
        origin: BatchOrigin,
    ) -> None:
        """Adds the counts of a step, with examples if any of its values are malformed."""
        step = self.graph.steps[position - len(self.graph.columns)]
        self._attribution.count(position, counts)
        for what, num_found in counts.items():
            self.counts[f"{step.owner}: {what}"] += num_found
        if any(what in KINDS for what in counts):
            for found in _malformed(step, inputs):
                self.findings.show(
                    step.owner, replace(found, rows=taken.positions(found.rows)), origin
                )

    def _with_row(self, error: OperatorError, taken: Taken, origin: BatchOrigin) -> OperatorError:
        """Returns the error with the first row that fails by itself.

        Bisects the rows, first half first. If neither half fails alone, the error names the
        smallest range found.
        """
        first, last = 0, taken.num_rows
        while last - first > 1:
            middle = (first + last) // 2
            for low, high in ((first, middle), (middle, last)):
                if (smaller := self._failure(taken.columns, low, high)) is not None:
                    first, last, error = low, high, smaller
                    break
            else:
                text = f"{error} (only for these rows together: either half of them passes)"
                return OperatorError(
                    origin.in_rows(taken.position(first), taken.position(last - 1), text)
                )
        row = taken.position(first) if last > first else 0
        return OperatorError(origin.in_rows(row, row, str(error)))

    def _failure(self, columns: list[pa.Array], first: int, last: int) -> OperatorError | None:
        try:
            self._run([array.slice(first, last - first) for array in columns], [], {})
        except OperatorError as error:
            return error
        return None


class EventExtractor(Extractor):
    """Turns raw events of one history into the values of its stored slots, one for each event.

    Args:
        history: The history.
    """

    def __init__(self, history: EventHistory) -> None:
        super().__init__(history.events)
        self.history = history
        self.times = dict[str, tuple[int, int]]()  # of the events so far; as of `UnitReport`

    def __reduce__(self) -> tuple[Any, ...]:
        return EventExtractor, (self.history,)

    def take_events(self, batch: pa.RecordBatch, origin: BatchOrigin = BATCH) -> Events:
        """Puts raw events in order. The extractor takes what `Events.take` returns.

        Events that the spec skips, and those without key or time, are left out and counted.

        Args:
            batch: Raw events of any keys; must hold all but the optional columns.
            origin: Where the batch comes from, for error messages.

        Raises:
            InputError: As for a batch of rows.
        """
        return self._ordered([self._cleaned(batch, origin)])

    def rows(self, batch: pa.RecordBatch, origin: BatchOrigin = BATCH) -> pa.RecordBatch:
        """What units make of a batch: raw events in their declared types, with the signs of their
        keys as the last column, int64, whose name may be that of another. Those without key or time
        are left out and counted, as in `take_events`.
        """
        columns = dict(zip(self.graph.columns, self._cleaned(batch, origin), strict=True))
        keys, rows = complete(self.history, columns)
        cleaned = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        if num_incomplete := len(keys) - len(rows):
            self.counts[INCOMPLETE] += num_incomplete
            cleaned, keys = cleaned.take(array_of(rows)), keys[rows]
        events = cleaned.append_column("key", array_of(keys))
        widen(self.times, times_key(self.history.name, origin.source), self.known(events))
        return events

    def known(self, events: pa.RecordBatch) -> Integers:
        """When events, as of `rows`, became known: int64 microseconds (num_events,)."""
        places = map(self.input_columns.index, self.history.times)
        known: Integers = np.maximum.reduce([values_of(events.column(i)) for i in places])
        return known

    def named_findings(self) -> tuple[dict[str, int], tuple[Malformed, ...]]:
        """What was counted, and malformed values, with the history's name before columns."""
        name, found = self.history.name, self.findings
        counts = {f"{name}.{what}": number for what, number in found.counts.items()}
        if found.num_rows_skipped:
            counts[f"{name}.{SKIPPED}"] = found.num_rows_skipped
        examples = (replace(one, column=f"{name}.{one.column}") for one in found.examples)
        return counts, tuple(examples)

    def of_row(self, events: _Rows, key: pa.Array, as_of: pa.Array) -> dict[str, list[Any]]:
        """The slots of the history in one row.

        Args:
            events: Raw events by column, of any keys and in any order.
            key: The sign of the row's key, int64 `(1,)`.
            as_of: The row's time, `(1,)`.
        """
        found = self._events_of(events)
        ranges = visible(found, self.history, keys_of_rows(key, as_of), values_of(as_of))
        begin, end, oldest = (int(of[0]) for of in (ranges.begin, ranges.end, ranges.oldest))
        seen = found.take(begin + np.flatnonzero(found.at[begin:end] >= oldest))
        values = self(seen).to_pydict()
        now = as_of.take(array_of(np.zeros(len(seen), np.int64)))
        for node in self.history.derived:
            values[node.name] = ages(now, seen.column(self.history.at), node).to_pylist()
        return {node.name: values[node.name] for node in self.history.nodes if node.store}

    def _events_of(self, rows: _Rows) -> Events:
        for row in rows:
            self._check_row(row)
        origin = BatchOrigin(source=f"events of {self.history.name}")
        columns = self.graph.columns
        arrays = [several([row.get(name) for row in rows], columns[name]) for name in columns]
        if all(array is not None for array in arrays):
            batch = pa.RecordBatch.from_arrays(arrays, names=list(columns))
            return self.take_events(batch, origin)
        # Each value may have a type of its own, as if each event came from another file.
        parts = []
        for i, row in enumerate(rows):
            try:
                batch = self._single(row)
            except InputError as error:
                raise InputError(origin.in_rows(i, i, str(error))) from error
            parts.append(self._cleaned(batch, origin.after(i)))
        return self._ordered(parts)

    def _cleaned(self, batch: pa.RecordBatch, origin: BatchOrigin) -> list[pa.Array]:
        """The raw columns of a batch in their declared types, as operators take them."""
        cleaned, columns = list[pa.Array](), self.graph.columns.items()
        taken = self._take(batch, origin)
        for array, (name, declared) in zip(taken.columns, columns, strict=True):
            counts = Counter[str]()
            read = read_column(array, declared=declared, counts=counts)
            cleaned.append(clean(read, counts=counts))
            self.counts.update({f"{name}: {what}": number for what, number in counts.items()})
        return cleaned

    def _ordered(self, parts: list[list[pa.Array]]) -> Events:
        arrays = [pa.concat_arrays(of_column) for of_column in zip(*parts, strict=True)]
        found = ordered(self.history, dict(zip(self.graph.columns, arrays, strict=True)))
        if num_incomplete := found.columns.num_rows - len(found.order):
            self.counts[INCOMPLETE] += num_incomplete
        return found


def times_key(history: str, source: str) -> str:
    """The key of a file of a log in `UnitReport.times`."""
    return f"{history}/{source}"


def widen(times: dict[str, tuple[int, int]], name: str, more: Integers) -> None:
    """Has the first and last time of a name be those of more times, too."""
    if len(more):
        low, high = int(more.min()), int(more.max())
        before = times.get(name, (low, high))
        times[name] = min(low, before[0]), max(high, before[1])


def check_no_histories(spec: Spec, what: str) -> None:
    """Raises ConfigError if a spec has histories: `what` cannot have them."""
    added = [history.name for history in spec.histories]
    if added:
        names = ", ".join(added)
        raise ConfigError(
            f"histories: expected none for {what}, which this release cannot make with them, found "
            f"{names}; extract whole partitions into a table with `--events "
            f"{added[0]}=URL` (events={{...}}), or those of single rows by "
            f"`Extractor.one`"
        )


def _without_nan(value: object) -> object:
    return None if isinstance(value, (float, np.floating)) and np.isnan(value) else value


def _result(step: Step, inputs: list[pa.Array], counts: Counter[str] | None) -> pa.Array:
    try:
        return step.run(inputs, counts)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # An operator may be user code. Whatever it raises is reported with its slot.
        text = " ".join(str(error).split())
        named = isinstance(error, _EXPLAINED) and text
        raise OperatorError(
            f"{step.owner} ({step.op}): {text if named else f'{type(error).__name__}: {text}'}"
        ) from error


def _malformed(step: Step, inputs: list[pa.Array]) -> list[MalformedValues]:
    if step.function is read_column:
        return find_malformed(inputs[0], step.type)
    return find_unequal(inputs) if step.function is align else []
