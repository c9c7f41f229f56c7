"""The extractor: a spec's graph, run over record batches."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from featstore.errors import InputError, OperatorError, nearest
from featstore.ops.columns import readable
from featstore.schema import SlotSchema
from featstore.spec.graph import Step, build_graph
from featstore.spec.model import Spec, type_name

_FAILURES = (pa.ArrowException, ArithmeticError, LookupError, MemoryError, TypeError, ValueError)


class Extractor:
    """Turns raw record batches into slot columns: the same rows in the same order.

    Pure but for `counts`, which adds up what was dropped or replaced, by `<slot or column>: <what>`; so how rows are cut into
    batches changes no value. It can be pickled. SpecError where the spec is wrong. Not for several threads at once.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.counts: Counter[str] = Counter()
        self._graph = build_graph(spec)
        self._arrow_schema = self.schema.to_arrow()
        self._bound: pa.Schema | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Extractor, (self.spec,)

    @property
    def schema(self) -> SlotSchema:
        """Slots in declared order, labels, weight and kept columns."""
        return self._graph.schema

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The raw columns that are read, in declared order; others are ignored."""
        return tuple(self._graph.columns)

    def bind(self, raw: pa.Schema) -> None:
        """Checks a raw schema. InputError names the columns that are missing, or the one that has the wrong type."""
        missing = [name for name in self.input_columns if name not in raw.names]
        if missing:
            hints = ", ".join(f"{name!r}{nearest(name, raw.names)}" for name in missing)
            raise InputError(f"missing input column: expected {hints}; found {', '.join(raw.names) or 'no columns'}")
        for name, declared in self._graph.columns.items():
            found = raw.field(name).type if raw.names.count(name) == 1 else None
            if found is None:
                raise InputError(f"column {name!r}: expected once, found {raw.names.count(name)} times")
            if not readable(found, declared):
                raise InputError(f"column {name!r}: expected {type_name(declared)}, found {found}")
        self._bound = raw

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch's slots, labels, weight and kept columns, in the schema `self.schema.to_arrow()`.

        InputError as for `bind`; OperatorError names the slot and the operator that failed.
        """
        if self._bound is None or not batch.schema.equals(self._bound):
            self.bind(batch.schema)
        values = [batch.column(name) for name in self._graph.columns]
        for step in self._graph.steps:
            values.append(self._run(step, values))
        return pa.RecordBatch.from_arrays([values[i] for i in self._graph.outputs], schema=self._arrow_schema)

    def one(self, row: Mapping[str, object]) -> dict[str, object]:
        """One row, through the same operators: slots as in a data file, missing marked with 0, NaN, `[0]` or `[NaN]`.

        Columns that only labels, weight or kept columns read may be absent, and are then null. InputError as for `bind`.
        """
        absent = [name for name in sorted(self._graph.required) if name not in row]
        if absent:
            hints = ", ".join(f"{name!r}{nearest(name, row)}" for name in absent)
            raise InputError(f"missing input column: expected {hints}; found {', '.join(row) or 'no columns'}")
        arrays = [_single(name, row.get(name), declared) for name, declared in self._graph.columns.items()]
        batch = pa.RecordBatch.from_arrays(arrays, names=list(self._graph.columns))
        return dict(self(batch).to_pylist()[0])

    def _run(self, step: Step, values: list[pa.Array]) -> pa.Array:
        inputs = [values[i] for i in step.inputs]
        try:
            if not step.counted:
                return step.function(*inputs, **step.params)
            counts: Counter[str] = Counter()
            result = step.function(*inputs, **step.params, counts=counts)
        except _FAILURES as error:
            raise OperatorError(f"{step.owner} ({step.op}): {error}") from error
        for what, num_found in counts.items():
            self.counts[f"{step.owner}: {what}"] += num_found
        return result


def _single(name: str, value: object, declared: pa.DataType) -> pa.Array:
    """One value as an array of the declared type; bytes stay bytes, to be repaired as in a file."""
    arrow_type = pa.binary() if isinstance(value, bytes) and declared == pa.string() else declared
    try:
        if pa.types.is_list(declared) and isinstance(value, str | bytes):
            raise TypeError("a text is no list")
        return pa.array([_entries(value) if pa.types.is_map(declared) else value], arrow_type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"column {name!r}: expected {type_name(declared)}, found {value!r}") from error


def _entries(value: object) -> object:
    """A mapping, nested or not, as the entries that Arrow takes."""
    return [(key, _entries(item)) for key, item in value.items()] if isinstance(value, Mapping) else value
