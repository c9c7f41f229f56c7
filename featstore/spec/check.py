"""Checks of a spec: names, numbers, references, order, params and constants.

Every function raises or yields a SpecError with the path in the document.
"""

import graphlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from featstore.base.errors import NotFittedError, SpecError, nearest
from featstore.base.schema import Slot, SlotKind
from featstore.ops.ids import hashed_type
from featstore.ops.kinds import options_of, scalar_of, wrong
from featstore.ops.lists import is_list
from featstore.ops.maps import is_map
from featstore.ops.registry import OPERATORS
from featstore.ops.signature import Operator
from featstore.selection.slot_names import matching, select
from featstore.spec.model import (
    APART,
    CONTENT,
    VALUES,
    DataCheck,
    EventHistory,
    Node,
    Spec,
    changed_options,
    type_name,
)
from featstore.spec.user import is_user_operator, load_operator

T = TypeVar("T")
FIT = "run `featstore spec fit SPEC --input RAW`, which writes the lock beside the spec"
RECORD = "run `featstore spec lint SPEC --update-lock`"


def document_errors(spec: Spec, retired: frozenset[int]) -> Iterator[SpecError]:
    """Yields the errors that need no operators: in names, numbers, sequences, histories, checks.

    Args:
        spec: The spec.
        retired: The retired numbers of the spec, and maybe of its lock.
    """
    yield from name_errors(spec)
    yield from number_errors(spec, retired)
    yield from sequence_errors(spec)
    for history in spec.histories:
        yield from history_errors(spec, history)
    yield from data_check_errors(spec)
    yield from cluster_errors(spec)


def name_errors(spec: Spec) -> Iterator[SpecError]:
    """Yields an error for each duplicate name.

    Names of nodes are unique, also within a history. Names of stored columns of all roles are
    unique regardless of case, because SQL ignores it.
    """
    for scope in (spec.nodes, *(history.nodes for history in spec.histories)):
        nodes: dict[str, str] = {}
        for node in scope:
            if node.name in nodes:
                yield wrong(
                    f"{node.where}.name",
                    f"a unique name, not that of {nodes[node.name]}",
                    node.name,
                )
            nodes.setdefault(node.name, node.where)
    columns: dict[str, str] = {}
    stored = [(f"{node.where}.name", node.name) for node in spec.all_nodes if node.store]
    stored += [(column.where, column.name) for column in spec.columns]
    of_histories = ((f"{of.where}.name", name) for of in spec.histories for name in of.columns)
    for where, name in (*stored, *of_histories):
        if name.casefold() in columns:
            yield wrong(
                where, f"a unique column name, not that of {columns[name.casefold()]}", name
            )
        columns.setdefault(name.casefold(), where)


def number_errors(spec: Spec, retired: frozenset[int]) -> Iterator[SpecError]:
    """Yields an error for each slot number that is used twice or retired."""
    owners: dict[int, Node] = {}
    for node in spec.all_nodes:
        if node.slot is None:
            continue
        if node.slot in retired:
            in_lock = "which the lock file knows as retired: give the slot a number of its own"
            note = "which is in `retired`" if node.slot in spec.retired else in_lock
            yield wrong(
                f"{node.where}.slot", "a number that was never used before", node.slot, note=note
            )
        if node.slot in owners:
            owner = owners[node.slot]
            note = f"which is that of {owner.where} ({owner.name!r})"
            yield wrong(f"{node.where}.slot", "a unique number", node.slot, note=note)
        owners.setdefault(node.slot, node)
    if not owners and not spec.is_part:
        yield SpecError("slots: expected at least one slot with a number, found none")


def sequence_errors(spec: Spec) -> Iterator[SpecError]:
    """Yields errors unless sequences have two or more list inputs, each in one sequence only."""
    owners: dict[str, str] = {}
    for sequence in spec.sequences:
        if len(sequence.of) < 2:
            yield wrong(f"{sequence.where}.of", "two or more list columns", list(sequence.of))
        for i, name in enumerate(sequence.of):
            where = f"{sequence.where}.of[{i}]"
            if name not in spec.inputs:
                yield wrong(where, "an input column", name, spec.inputs)
            elif not is_list(spec.inputs[name]):
                yield wrong(where, "a list", name, note=f"a {type_name(spec.inputs[name])}")
            elif name in owners:
                yield wrong(
                    where, f"a column that nothing else uses, not that of {owners[name]}", name
                )
            owners.setdefault(name, where)


def history_errors(spec: Spec, history: EventHistory) -> Iterator[SpecError]:
    """Yields an error for each option of a history that does not fit the inputs, and for slots that
    cannot be made while reading. Other slots are checked as those of a spec.
    """
    at = history.where
    if history.as_of not in spec.keep:
        yield wrong(f"{at}.as_of", "an input that `keep` stores", history.as_of, spec.keep)
    elif (found := spec.inputs.get(history.as_of)) is not None and not pa.types.is_timestamp(found):
        yield wrong(f"{at}.as_of", "a timestamp", history.as_of, note=f"a {type_name(found)}")
    for option in ("at", "logged_at"):
        name = getattr(history, option)
        event_type = history.inputs.get(name)
        if name is not None and event_type is None:
            yield wrong(f"{at}.{option}", "an event column", name, history.inputs)
        elif event_type is not None and not pa.types.is_timestamp(event_type):
            yield wrong(f"{at}.{option}", "a timestamp", name, note=f"a {type_name(event_type)}")
    for name, arrow_type in history.inputs.items():
        if is_list(arrow_type) or is_map(arrow_type):
            expected = "a type of one value, since a history makes the lists"
            yield wrong(f"{at}.inputs.{name}", expected, type_name(arrow_type))
    yield from _key_errors(spec, history)
    if not any(node.store for node in history.nodes):
        yield SpecError(f"{at}.slots: expected at least one slot with a number, found none")
    for node in history.nodes:
        yield from _derived_errors(history, node)


def _key_errors(spec: Spec, history: EventHistory) -> Iterator[SpecError]:
    where, key = f"{history.where}.key", history.key
    of_row, of_event = spec.inputs.get(key), history.inputs.get(key)
    if of_row is None:
        yield wrong(where, "an input, which the rows have too", key, spec.inputs)
    if of_event is None:
        yield wrong(where, "an event column, which the events have too", key, history.inputs)
    if of_row is None or of_event is None:
        return
    if of_row != of_event:
        types = f"a {type_name(of_row)} of the rows and a {type_name(of_event)} of the events"
        yield wrong(where, "one type in `inputs` and in those of the history", key, note=types)
    try:
        hashed_type(of_row)
    except TypeError:
        expected = "a string, long, boolean or timestamp"
        yield wrong(where, expected, key, note=f"a {type_name(of_row)}")


def _derived_errors(history: EventHistory, node: Node) -> Iterator[SpecError]:
    """Yields what a slot that is made while reading cannot have."""
    if not history.is_derived(node):
        if node.op == "time_since" and len(node.of) == 1:
            expected = f"`at` ({history.at}), whose age is made while reading, or two times"
            yield wrong(f"{node.where}.of", expected, node.of[0])
        return
    if not node.store:
        yield SpecError(
            f"{node.where}: expected a slot number, since nothing can read what is made while "
            f"reading, found `store: false`"
        )
    options = changed_options(node, CONTENT, VALUES, APART)
    for name in sorted(options.keys() - {"slot", "name", "op", "of", "store"}):
        yield wrong(f"{node.where}.{name}", "no such option of the age of an event", options[name])
    try:
        read_params(node, OPERATORS[node.op])
    except SpecError as error:
        yield error


def data_check_errors(spec: Spec) -> Iterator[SpecError]:
    """Yields an error for each check of a slot or label that the spec does not store."""
    slots = [node.name for node in spec.nodes if node.store]
    for check in spec.checks:
        try:
            columns_of(check, slots, list(spec.labels))
        except SpecError as error:
            yield error


def cluster_errors(spec: Spec) -> Iterator[SpecError]:
    """Yields an error unless rows are clustered by an input that is read, and that has a sign."""
    where, name = "output.cluster_by", spec.output.cluster_by
    if name is None:
        return
    read = inputs_read(spec)
    if spec.histories and name != spec.histories[0].key:
        key = spec.histories[0].key
        yield wrong(where, f"{key!r}, the key of the first history, or nothing", name)
        return
    if name not in read:
        yield wrong(where, "an input that a slot, label or kept column reads", name, read)
        return
    arrow_type = spec.inputs[name]
    if is_list(arrow_type) or is_map(arrow_type) or pa.types.is_floating(arrow_type):
        note = f"a {type_name(arrow_type)}"
        yield wrong(where, "a string, long, boolean or timestamp", name, note=note)


def columns_of(check: DataCheck, slots: Sequence[str], labels: Sequence[str]) -> tuple[str, ...]:
    """The slots, or the labels of a `label_rate`, that a check is about; none for `rows`.

    Args:
        check: The check.
        slots: The names of all slots.
        labels: The names of all labels.

    Raises:
        SpecError: There is no such slot or label.
    """
    where = f"{check.where}.of"
    if check.check != "label_rate":
        for key in ("of", "but"):
            for name in getattr(check, key):
                if not matching(name, slots):
                    is_label = "which is a label: its rate is checked by `label_rate`"
                    note = is_label if name in labels else ""
                    expected = "a slot, or a glob that matches some"
                    raise wrong(f"{check.where}.{key}", expected, name, slots, note=note)
        left = set(slots).difference(select(check.but, slots) if check.but else ())
        found = tuple(name for name in select(check.of, slots) if name in left)
        if check.of and not found:
            raise wrong(f"{check.where}.but", "some slots of `of` to be left", list(check.but))
        return found
    for name in check.of:
        if name not in labels:
            known = f"one of {', '.join(labels)}" if labels else "but there are no `labels`"
            note = "which is a slot without a label" if name in slots else ""
            raise wrong(where, f"a label, {known}", name, labels, note=note)
    return tuple(dict.fromkeys(check.of))


def share_errors(spec: Spec, slots: Mapping[int | None, Slot]) -> Iterator[SpecError]:
    """Yields errors unless each `share_slot` names another slot, both hold signs, and the other
    shares none itself.

    Args:
        spec: The spec; slots of histories are checked with it, if it is whole.
        slots: The slots by number, of histories too.
    """
    shared = {node.slot for node in spec.all_nodes if node.share_slot is not None}
    for node in spec.nodes if spec.is_part else spec.all_nodes:
        if node.share_slot is None or spec.history is not None:
            continue
        where, owner = f"{node.where}.share_slot", slots.get(node.share_slot)
        if owner is None or node.share_slot in shared:
            yield wrong(
                where, "the number of another slot that does not share one itself", node.share_slot
            )
            continue
        bad = [
            slot
            for slot in (owner, slots.get(node.slot))
            if slot is None or slot.kind is not SlotKind.ID or slot.num_indices is not None
        ]
        if bad:
            note = "" if bad[0] is None else f"of which {bad[0].name!r} holds none"
            yield wrong(where, "two stored slots that hold signs", node.share_slot, note=note)


def resolve(spec: Spec, name: str, reader: str | None, where: str) -> bool:
    """Whether a name refers to a node (True) or to an input column (False).

    A node that has the name of its own input reads the input. If another node reads a name that
    both an input and a node have, it is ambiguous, which is an error, unless the node only hashes
    this input: then it is the input, of which a cross has the same ids as of the node.

    Args:
        spec: The spec.
        name: The name in `of`.
        reader: The name of the node that reads it; None for labels and the weight.
        where: The path in the document, for errors.
    """
    is_node = name in spec.by_name and name != reader
    if is_node and name in spec.inputs:
        if _only_hashes(spec.by_name[name]):
            return False
        expected = (
            f"one meaning of {name!r} (an input and the node of {spec.by_name[name].where}: rename "
            f"that node, which changes none of its values)"
        )
        raise wrong(where, expected, name)
    if not is_node and name not in spec.inputs:
        raise wrong(
            where, "an input column or a node", name, {*spec.inputs, *spec.by_name} - {name}
        )
    return is_node


def _only_hashes(node: Node) -> bool:
    """Whether a node is the hash of the input of its name, and nothing else."""
    is_hash = node.op == "hash" and node.of == (node.name,)
    return is_hash and not node.params and not changed_options(node, VALUES)


def ordered(spec: Spec) -> list[Node]:
    """The nodes in topological order: each after those that it reads."""
    return in_order(spec, {node.name: nodes_read(spec, node) for node in spec.nodes})


def in_order(spec: Spec, reads: Mapping[str, Iterable[str]]) -> list[Node]:
    """The nodes that `reads` has, in topological order, given the nodes that each of them reads.

    Raises:
        SpecError: They have none. Its cause, a `graphlib.CycleError`, names the nodes of a cycle.
    """
    try:
        names = tuple(graphlib.TopologicalSorter(reads).static_order())
    except graphlib.CycleError as error:
        cycle: list[str] = list(reversed(error.args[1]))
        raise SpecError(
            f"{spec.by_name[cycle[0]].where}.of: expected no cycle, found "
            f"{' reads '.join(map(repr, cycle))}"
        ) from error
    return [spec.by_name[name] for name in names if name in reads]


def nodes_read(spec: Spec, node: Node) -> list[str]:
    """The names in `of` that are nodes."""
    return [
        name for i, name in enumerate(node.of) if resolve(spec, name, node.name, of_path(node, i))
    ]


def inputs_read(spec: Spec) -> list[str]:
    """The input columns that anything reads, in declared order, if references are resolved."""
    read = {name for node in spec.nodes for name in node.of}
    read |= {column.source for column in spec.columns} | spec.keys
    for sequence in spec.sequences:
        read |= set(sequence.of) if read & set(sequence.of) else set()
    return [name for name in spec.inputs if name in read]


def reached(first: Iterable[T], reads: Callable[[T], Iterable[T]]) -> set[T]:
    """The first items and all that they read, directly or through others."""
    found, waiting = set[T](), list(first)
    while waiting:
        item = waiting.pop()
        if item not in found:
            found.add(item)
            waiting += reads(item)
    return found


def of_path(node: Node, i: int) -> str:
    """The path in the document of the i-th member of `of`."""
    return f"{node.where}.of" if len(node.of) == 1 else f"{node.where}.of[{i}]"


def operator_of(node: Node) -> Operator:
    """The node's operator, after checking the number of inputs."""
    try:
        operator = load_operator(node.op) if is_user_operator(node.op) else OPERATORS.get(node.op)
    except ValueError as error:
        raise wrong(f"{node.where}.op", str(error), node.op) from error
    if operator is None:
        raise wrong(f"{node.where}.op", f"one of {', '.join(OPERATORS)}", node.op, OPERATORS)
    low, high, num_inputs = operator.min_inputs, operator.max_inputs, len(node.of)
    if num_inputs < low or (high is not None and num_inputs > high):
        expected = (
            "1 name"
            if high == 1
            else f"{low} names"
            if low == high
            else f"{low} {'or more' if high is None else f'to {high}'} names"
        )
        raise wrong(f"{node.where}.of", f"{expected} for {node.op}", list(node.of))
    return operator


def read_params(node: Node, operator: Operator) -> dict[str, object]:
    """The operator's params in canonical form, with defaults for those that the node lacks."""
    for name, value in node.params.items():
        if name not in operator.params:
            known = (*operator.params, *options_of(Node))
            expected = (
                f"a param of {operator.name} ({', '.join(operator.params) or 'it has none'}) or an "
                f"option of all nodes"
            )
            raise SpecError(
                f"{node.where}.{name}: expected {expected}, found {name!r} "
                f"({value!r}){nearest(name, known)}"
            )
    read: dict[str, object] = {}
    for name, param in operator.params.items():
        value = node.params.get(name)
        if value is None and param.required:
            raise SpecError(
                f"{node.where}: expected `{name}` for {operator.name} ({param.kind.expected}), "
                f"found none"
            )
        given = value is not None
        read[name] = param.kind.read(value, f"{node.where}.{name}") if given else param.default
    return read


def frozen_params(spec: Spec, node: Node, operator: Operator) -> dict[str, object]:
    """The operator's frozen params, from the lock of the spec.

    Raises:
        NotFittedError: The lock does not have them. The message says which command writes them.
        SpecError: The lock has values that the operator does not accept.
    """
    if not operator.frozen:
        return {}
    if operator.reads_vocabulary:
        file = str(node.params.get("file"))
        found: Mapping[str, object] = (
            {"vocabulary": spec.vocabularies[file]} if file in spec.vocabularies else {}
        )
        missing = (
            f"{node.where}.file: expected {file!r} recorded in the lock, found it not: {RECORD}"
        )
    else:
        found = spec.fitted[node.name].params if node.name in spec.fitted else {}
        missing = f"{node.where}: {node.op} ({node.name!r}) is not fitted: {FIT}"
    if operator.frozen.keys() - found.keys():
        raise NotFittedError(missing)
    where = f"{node.where}: lock: fitted.{node.name}"
    try:
        return {name: of.kind.read(found[name], where) for name, of in operator.frozen.items()}
    except SpecError as error:
        raise wrong(where, "what `featstore spec fit` writes", dict(found)) from error


def default_of(node: Node, i: int) -> object:
    """The default of the i-th input. With several inputs, `default` maps their names to values."""
    if node.default is None or len(node.of) == 1:
        return node.default
    if not isinstance(node.default, Mapping):
        raise wrong(f"{node.where}.default", "a mapping of names in `of` to values", node.default)
    for name in node.default:
        if name not in node.of:
            raise wrong(
                f"{node.where}.default.{name}",
                f"a name in `of` ({', '.join(node.of)})",
                name,
                node.of,
            )
    return node.default.get(node.of[i])


def constant(value: object, arrow_type: pa.DataType, where: str) -> pa.Scalar:
    """A `default` or `fill` in the type of the values that it replaces."""
    try:
        return scalar_of(value, arrow_type)
    except (OverflowError, TypeError, ValueError) as error:
        raise wrong(where, f"a {type_name(arrow_type)}", value) from error
