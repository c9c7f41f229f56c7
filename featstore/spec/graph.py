"""A spec, checked and made into ordered steps.

A step is one operator function bound to its params. Equal steps are one step: a column is read once
and hashed once, however many slots and crosses use it. All that can be wrong in a spec beyond its
structure is found here, before any data is read.
"""

import collections.abc
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from featstore.base.errors import SpecError
from featstore.base.processes import cached_property
from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.ops import columns, hashing, ids, lists, numbers
from featstore.ops.kinds import wrong
from featstore.ops.signature import Operator
from featstore.spec import check, meaning
from featstore.spec.model import EventHistory, Node, Sequence, Spec, StoredColumn, type_name
from featstore.spec.parse import naming

MEANING_DIGITS = 16
_built: dict[int, "Graph"] = {}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One call of the extraction, `function(*inputs, **params)`.

    Attributes:
        function: Returns an array for arrays.
        inputs: Positions of raw columns or of earlier steps (see `Graph`).
        params: Keyword arguments.
        type: The type of the result.
        owner: The slot, inner node or column that errors and counts name.
        op: The operator, or `input` or `sequence`.
        counted: Whether the function takes `counts` too.
    """

    function: Callable[..., pa.Array]
    inputs: tuple[int, ...]
    params: Mapping[str, Any]
    type: pa.DataType
    owner: str
    op: str
    counted: bool

    def run(self, inputs: Iterable[pa.Array], counts: Counter[str] | None = None) -> pa.Array:
        """Calls the function; what it counts is added to `counts`, if given."""
        if not self.counted:
            return self.function(*inputs, **self.params)
        return self.function(*inputs, **self.params, counts=Counter() if counts is None else counts)


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The checked, ordered DAG of a spec.

    Raw columns have the positions `0 ... len(columns) - 1`, steps the positions after them.

    Attributes:
        columns: The types of the raw columns, by name.
        steps: The calls, each after those that it reads.
        schema: The schema of the extracted columns.
        outputs: The position of each column of `schema`, in its order.
        keys: The position of the signs of each history's key.
        text: The raw columns whose numbers may be written as text.
        sources: By slot, all positions that it is computed from, its own included.
    """

    columns: Mapping[str, pa.DataType]
    steps: tuple[Step, ...]
    schema: SlotSchema
    outputs: tuple[int, ...]
    sources: Mapping[str, frozenset[int]]
    keys: tuple[int, ...] = ()
    text: frozenset[str] = frozenset()

    @property
    def required(self) -> frozenset[str]:
        """The raw columns that slots need; labels, weight and kept columns may read others."""
        made_of = frozenset().union(*self.sources.values())
        return frozenset(name for position, name in enumerate(self.columns) if position in made_of)

    def step(self, position: int) -> Step | None:
        """The step at a position; None for a raw column."""
        index = position - len(self.columns)
        return self.steps[index] if index >= 0 else None

    # Every data file needs the following two, so all extractors of a spec share them.
    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the extracted columns, as data files have it."""
        return self.schema.to_arrow()

    @cached_property
    def last_reads(self) -> tuple[tuple[int, ...], ...]:
        """For each step, the positions that no later step and no output reads."""
        seen = {*self.outputs, *self.keys}
        last_reads = []
        for step in reversed(self.steps):
            last_reads.append(tuple(i for i in dict.fromkeys(step.inputs) if i not in seen))
            seen.update(step.inputs)
        return tuple(reversed(last_reads))


def build_graph(spec: Spec) -> Graph:
    """Builds the graph of a spec, once for each spec object.

    Raises:
        SpecError: The first error, with the spec's file and the path in it.
    """
    # Cached by identity, as a spec never changes: 200 slots take 20 ms to build, and every data
    # file needs the graph. The entry goes with the spec, so that a reused id finds no other graph.
    found = _built.get(id(spec))
    if found is None:
        with naming(spec.source):
            found = _built[id(spec)] = _build(spec)
        weakref.finalize(spec, _built.pop, id(spec), None).atexit = False
    return found


def _build(spec: Spec) -> Graph:
    for error in check.document_errors(spec, spec.retired):
        raise error
    nodes = check.ordered(spec)
    builder = Builder(spec)
    for node in nodes:
        builder.add_node(node)
    stored = [builder.add_slot(node) for node in spec.nodes if node.store]
    slots = [slot for slot, _ in stored]
    slots += [slot for history in spec.histories for slot in build_graph(history.events).schema]
    for error in check.share_errors(spec, {slot.number: slot for slot in slots}):
        raise error
    columns = [(column.role, *builder.add_column(column)) for column in spec.columns]
    keys = tuple(builder.add_key(history) for history in spec.histories)
    schema = SlotSchema(
        slots=tuple(slot for slot, _ in stored),
        labels=tuple(field for role, field, _ in columns if role == "label"),
        weight=next((field for role, field, _ in columns if role == "weight"), None),
        kept=tuple(field for role, field, _ in columns if role == "kept"),
    )
    return Graph(
        columns=builder.columns,
        steps=tuple(builder.steps),
        schema=schema,
        outputs=(*(at for _, at in stored), *(at for *_, at in columns)),
        keys=keys,
        text=spec.text & builder.columns.keys(),
        sources={slot.name: builder.sources_of(position) for slot, position in stored},
    )


class Builder:
    """Builds the steps of a graph; equal steps are added once.

    Nodes must be added in the order of `check.ordered`.
    """

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self.columns = {name: spec.inputs[name] for name in check.inputs_read(spec)}
        self.steps: list[Step] = []
        self._inputs: list[tuple[int, ...]] = [()] * len(self.columns)  # by position
        self._raw = {name: position for position, name in enumerate(self.columns)}
        self._results: dict[str, int] = {}
        self._known: dict[Any, int] = {}
        # What many nodes read is looked up here, as a step's key takes longer to make.
        self._cleaned: dict[str, int] = {}
        self._hashes: dict[int, int] = {}
        self._meanings: dict[str, str] = {}
        self._paths: dict[str, str] = {}
        self._sequences = {name: sequence for sequence in spec.sequences for name in sequence.of}
        self._truncates = {
            name: sequence.truncate if sequence.max_len else None
            for name, sequence in self._sequences.items()
        }
        # Of which events columns and nodes have lists: as of `Slot.sequence`.
        self._events = {name: sequence.name for name, sequence in self._sequences.items()}

    def add_node(self, node: Node) -> None:
        """Adds the steps of one node: defaults, value hashes, the operator, and `fill`."""
        operator = check.operator_of(node)
        params = check.read_params(node, operator)
        inputs = [self._operand(node, operator, i) for i in range(len(node.of))]
        types = [self._type(position) for position in inputs]
        arrow_type = self._result_type(node, operator, types, params)
        given = params | self._frozen(node, operator)
        called = {name: value for name, value in given.items() if name not in operator.fit_only}
        result = self._add(
            operator.function, inputs, called, arrow_type, (node.name, node.op), counted=True
        )
        self._results[node.name] = result if node.fill is None else self._filled(node, result)
        if node.encode == "index":
            _check_index(node, operator)
        self._meanings[node.name] = meaning.meaning(self._spec, node, self._meanings)
        self._paths[node.name] = meaning.operator_path(self._spec, node, self._paths)
        self._truncates[node.name] = self._truncate(node)
        of_lists = [name for name, of in zip(node.of, types, strict=True) if lists.is_list(of)]
        events = self._events.get(of_lists[0]) if len(of_lists) == 1 else None
        self._events.pop(node.name, None)  # A column that the node reads has its name.
        if events is not None and operator.elements is not None:
            self._events[node.name] = events + operator.elements(params)

    def _truncate(self, node: Node) -> str | None:
        """Which end of its lists a node keeps: as it says itself, or the first of its inputs, or
        their sequence; None if none is cut.
        """
        if not node.params.keys().isdisjoint(("max_len", "truncate")):
            return str(node.params.get("truncate", "head"))
        return next((end for name in node.of if (end := self._truncates.get(name))), None)

    def _frozen(self, node: Node, operator: Operator) -> dict[str, object]:
        """The frozen params of a node, after checking that they were fitted for its sub-DAG."""
        if not operator.frozen:
            return {}
        if self._spec.history is not None:
            expected = "an operator without a fit or a file, which slots of events cannot have"
            raise wrong(f"{node.where}.op", expected, node.op)
        frozen = check.frozen_params(self._spec, node, operator)
        if not operator.fills and node.fill is not None:
            raise SpecError(
                f"{node.where}.fill: expected no `fill` with {node.op}, since it could not be told "
                f"from one of its values, found {node.fill!r}; give `unknown: index` to tell "
                f"unknown values from missing ones"
            )
        meaning.check_fit(self._spec, node, self._meanings)
        return frozen

    def add_slot(self, node: Node) -> tuple[Slot, int]:
        """Adds the stored column of a node: signs or indices of discrete values, else float32."""
        position, name = self._results[node.name], (node.name, node.op)
        arrow_type = self._type(position)
        if self._spec.history is not None and lists.is_list(arrow_type):
            expected = "an operator with one value for each event"
            raise wrong(f"{node.where}.op", expected, node.op, note=f"a {_named(arrow_type)}")
        slot = self._slot(node, arrow_type)
        stored = slot.arrow_type()
        if slot.kind is SlotKind.FLOAT:
            return slot, self._add(
                columns.float_column,
                [position],
                {"arrow_type": stored},
                stored,
                name,
                counted=True,
            )
        if slot.num_indices is not None:
            return slot, self._add(
                columns.index_column, [position], {"arrow_type": stored}, stored, name
            )
        params = {"slot": node.share_slot or node.slot, "arrow_type": stored}
        return slot, self._add(
            columns.sign_column, [self._hashed(position, name)], params, stored, name
        )

    def _slot(self, node: Node, arrow_type: pa.DataType) -> Slot:
        operator = check.operator_of(node)
        is_float = pa.types.is_floating(lists.element_type(arrow_type))
        if is_float and node.values is not None:
            raise wrong(f"{node.where}.values", "it at a slot of ids, not of numbers", node.values)
        num_indices = None
        if node.encode == "index" and operator.num_values is not None:
            frozen = check.frozen_params(self._spec, node, operator)
            num_indices = operator.num_values(check.read_params(node, operator) | frozen) + 1
        return Slot(
            name=node.name,
            kind=SlotKind.FLOAT if is_float else SlotKind.ID,
            shape=(None,) if lists.is_list(arrow_type) else (),
            number=node.slot,
            op=op_text(node),
            op_path=self._paths[node.name],
            meaning=meaning.stored_hash(self._spec, node, self._meanings)[:MEANING_DIGITS],
            num_indices=num_indices,
            share_slot=node.share_slot,
            truncate=self._truncates[node.name] if lists.is_list(arrow_type) else None,
            sequence=self._events.get(node.name) if lists.is_list(arrow_type) else None,
        )

    def add_column(self, column: StoredColumn) -> tuple[pa.Field, int]:
        """Adds a label or the weight, the numbers of a node or of an input, or a kept column: an
        input in its declared type, otherwise unchanged.
        """
        source, where = column.source, column.where
        if column.role == "kept" and source not in self.columns:
            raise wrong(where, "an input column", source, self._spec.inputs)
        is_kept = column.role == "kept"
        position = self._read(source) if is_kept else self._source(source, None, where)
        arrow_type = self._type(position)
        if not is_kept and (lists.is_list(arrow_type) or not numbers.is_number(arrow_type)):
            raise wrong(where, "a double, long or boolean", source, note=f"a {_named(arrow_type)}")
        return pa.field(column.name, arrow_type), position

    def add_key(self, history: EventHistory) -> int:
        """Adds the signs of a history's key."""
        return self._add(
            hashing.key_signs,
            [self._input(history.key)],
            {},
            pa.int64(),
            (history.name, "key"),
        )

    def sources_of(self, position: int) -> frozenset[int]:
        """All positions that a value is computed from, its own included."""
        return frozenset(check.reached([position], self._inputs.__getitem__))

    def _operand(self, node: Node, operator: Operator, i: int) -> int:
        """The i-th input of a node in the form that its operator takes."""
        where, name = check.of_path(node, i), (node.name, node.op)
        position = self._source(node.of[i], node.name, where)
        if node.empty_as_null:
            if node.of[i] in self._sequences and node.of[i] not in self._results:
                of_all = f"{self._sequences[node.of[i]].where}.empty_as_null"
                raise SpecError(
                    f"{node.where}.empty_as_null: expected it at {of_all}, for all columns that "
                    f"belong together, found here"
                )
            position = self._without_empty(node, position)
        default = check.default_of(node, i)
        if default is not None:
            position = self._replaced(position, default, name, f"{node.where}.default")
        if not operator.hashes:
            return position
        try:
            return self._hashed(position, name)
        except TypeError as error:
            raise wrong(
                where, str(error), node.of[i], note=f"a {_named(self._type(position))}"
            ) from error

    def _without_empty(self, node: Node, position: int) -> int:
        arrow_type = self._type(position)
        if lists.element_type(arrow_type) != pa.string():
            if len(node.of) > 1:
                return position
            raise SpecError(
                f"{node.where}.empty_as_null: expected a string input, found a {_named(arrow_type)}"
            )
        return self._add(columns.empty_as_null, [position], {}, arrow_type, (node.name, node.op))

    def _filled(self, node: Node, position: int) -> int:
        if ids.is_hashed(self._type(position)):
            raise SpecError(
                f"{node.where}.fill: expected `default` with {node.op}, which has no value of its "
                f"own, found `fill`"
            )
        return self._replaced(position, node.fill, (node.name, node.op), f"{node.where}.fill")

    def _replaced(self, position: int, value: object, name: tuple[str, str], where: str) -> int:
        arrow_type = self._type(position)
        if ids.is_hashed(arrow_type):
            raise SpecError(
                f"{where}: expected a default at the node that is read, found one for its value "
                f"hash"
            )
        return self._add(
            lists.fill_null,
            [position],
            {"value": check.constant(value, arrow_type, where)},
            arrow_type,
            name,
        )

    def _result_type(
        self,
        node: Node,
        operator: Operator,
        types: collections.abc.Sequence[pa.DataType],
        params: Mapping[str, object],
    ) -> pa.DataType:
        try:
            return operator.result(types, params)
        except TypeError as error:
            note = "a " + " and a ".join(map(_named, types))
            raise wrong(
                f"{node.where}.of", f"{error} for {node.op}", ", ".join(node.of), note=note
            ) from error
        except ValueError as error:
            raise SpecError(f"{node.where}: {node.op} {error}") from error

    def _source(self, name: str, reader: str | None, where: str) -> int:
        """The position of a name's value: a node's result, or a cleaned column."""
        if check.resolve(self._spec, name, reader, where):
            return self._results[name]
        return self._input(name)

    def _input(self, name: str) -> int:
        """The position of a column as operators take it."""
        if name not in self._cleaned:
            type_, of = self.columns[name], (name, "input")
            self._cleaned[name] = (
                self._aligned(self._sequences[name], name)
                if name in self._sequences
                else self._add(columns.clean, [self._read(name)], {}, type_, of, counted=True)
            )
        return self._cleaned[name]

    def _aligned(self, sequence: Sequence, name: str) -> int:
        """A column of a sequence group, aligned with the others."""
        arrow_type = lists.aligned_type([self.columns[other] for other in sequence.of])
        owner = (sequence.name, "sequence")
        events = self._add(
            lists.align,
            [self._read(other) for other in sequence.of],
            sequence.options,
            arrow_type,
            owner,
            counted=True,
        )
        return self._add(
            lists.column_of,
            [events],
            {"position": sequence.of.index(name)},
            self.columns[name],
            owner,
        )

    def _read(self, name: str) -> int:
        declared = self.columns[name]
        return self._add(
            columns.read_column,
            [self._raw[name]],
            {"declared": declared},
            declared,
            (name, "input"),
            counted=True,
        )

    def _hashed(self, position: int, name: tuple[str, str]) -> int:
        if position not in self._hashes:
            arrow_type = self._type(position)
            self._hashes[position] = (
                position
                if ids.is_hashed(arrow_type)
                else self._add(ids.hash_values, [position], {}, ids.hashed_type(arrow_type), name)
            )
        return self._hashes[position]

    def _type(self, position: int) -> pa.DataType:
        return self.steps[position - len(self.columns)].type

    def _add(
        self,
        function: Callable[..., pa.Array],
        inputs: collections.abc.Sequence[int],
        params: Mapping[str, object],
        arrow_type: pa.DataType,
        name: tuple[str, str],
        *,
        counted: bool = False,
    ) -> int:
        """The position of a step, which is added only if there is no equal one."""
        key = (
            function,
            tuple(inputs),
            tuple((param, _key(value)) for param, value in params.items()),
        )
        position = self._known.get(key)
        if position is None:
            owner, op = name
            position = self._known[key] = len(self._inputs)
            self._inputs.append(key[1])
            self.steps.append(
                Step(
                    function=function,
                    inputs=key[1],
                    params=params,
                    type=arrow_type,
                    owner=owner,
                    op=op,
                    counted=counted,
                )
            )
        return position


def _key(value: object) -> object:
    return (value.type, repr(value.as_py())) if isinstance(value, pa.Scalar) else value


def _check_index(node: Node, operator: Operator) -> None:
    if operator.num_values is None:
        raise wrong(
            f"{node.where}.encode", f"sign: {node.op} has no fixed number of values", node.encode
        )
    if not node.store or node.fill is not None:
        found = "an inner node (`store: false`)" if not node.store else f"`fill: {node.fill!r}`"
        raise SpecError(
            f"{node.where}.encode: expected a stored slot without `fill` for index, found {found}"
        )


def op_text(node: Node) -> str:
    """The operator as a slot's metadata shows it: `hash(tags, max_len=20)`, without long params."""
    params = [
        f"{name}={value}"
        for name, value in sorted(node.params.items())
        if not isinstance(value, list | tuple | dict)
    ]
    return f"{node.op}({', '.join([*node.of, *params])})"


def _named(arrow_type: pa.DataType) -> str:
    return "value hash" if ids.is_hashed(arrow_type) else type_name(arrow_type)
