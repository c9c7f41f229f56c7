"""Lists the graph of a spec, as a table of text or as JSON."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from featstore.base.schema import SlotSchema
from featstore.base.text_table import Printed, text_table
from featstore.ops.timestamps import duration_text
from featstore.spec import check
from featstore.spec.graph import build_graph
from featstore.spec.model import (
    CONTENT,
    VALUES,
    EventHistory,
    Node,
    Spec,
    changed_options,
    type_name,
)
from featstore.spec.parse import load_spec

_HEADERS = ("slot", "name", "kind", "shape", "operator", "params", "inputs")


@dataclass(frozen=True, kw_only=True)
class SpecEntry:
    """A node, label, weight, kept column, sequence or history of a spec.

    Attributes:
        slot: The slot number; None for everything else.
        name: The name.
        kind: `id` or `float` for a slot; otherwise `inner`, `label`, `weight`, `kept`, `sequence`
            or `history`.
        shape: The shape of a slot.
        operator: The operator over what it reads, or the source of a label.
        params: The operator's params and options, with what was fitted.
        inputs: The types of the raw columns that it reads, directly or through others, by name.
    """

    slot: int | None
    name: str
    kind: str
    shape: str | None
    operator: str | None
    params: dict[str, str]
    inputs: dict[str, str]

    @property
    def cells(self) -> tuple[object, ...]:
        """Its row of the table of text."""
        params = ", ".join(f"{name}={value}" for name, value in self.params.items())
        inputs = ", ".join(f"{name}: {type_text}" for name, type_text in self.inputs.items())
        return (self.slot, self.name, self.kind, self.shape, self.operator, params, inputs)


@dataclass(frozen=True, kw_only=True)
class SpecListing(Printed):
    """The nodes of a spec in topological order, then labels, weight, kept columns, sequences and
    histories.
    """

    entries: tuple[SpecEntry, ...]

    def text(self, width: int | None = None) -> str:
        """A table of text, of `width` characters at most if given."""
        return text_table([entry.cells for entry in self.entries], _HEADERS, width=width)


def show(spec_url: str) -> SpecListing:
    """Lists a spec.

    Args:
        spec_url: The path or URL of the spec.

    Raises:
        SpecError: The spec is wrong.
    """
    spec = load_spec(spec_url)
    schema = build_graph(spec).schema
    of_histories = itertools.chain.from_iterable(map(_history, spec.histories))
    entries = (*_nodes(spec, schema), *_columns(spec), *_sequences(spec), *of_histories)
    return SpecListing(entries=entries)


def _history(history: EventHistory) -> Iterator[SpecEntry]:
    """A history, and its slots as the lists that rows see."""
    rule = changed_options(history, CONTENT)
    del rule["name"]
    rule |= {} if history.window is None else {"window": duration_text(history.window)}
    yield SpecEntry(
        slot=None,
        name=history.name,
        kind="history",
        shape=None,
        operator=None,
        params={name: str(value) for name, value in rule.items()},
        inputs={name: type_name(history.inputs[name]) for name in (history.key, *history.times)},
    )
    for entry in _nodes(history.events, build_graph(history.events).schema):
        yield entry if entry.slot is None else replace(entry, shape="list")
    for node in history.derived:
        yield SpecEntry(
            slot=node.slot,
            name=node.name,
            kind="float",
            shape="list",
            operator=f"{node.op}({history.at}), while reading",
            params={name: str(value) for name, value in node.params.items()},
            inputs={history.at: type_name(history.inputs[history.at])},
        )


def _nodes(spec: Spec, schema: SlotSchema) -> Iterator[SpecEntry]:
    sources = inputs_of(spec)
    for node in check.ordered(spec):
        slot = schema[node.name] if node.store else None
        yield SpecEntry(
            slot=node.slot,
            name=node.name,
            kind="inner" if slot is None else str(slot.kind),
            shape=None if slot is None else slot.shape_text,
            operator=f"{node.op}({', '.join(node.of)})",
            params=_options(spec, node),
            inputs={name: type_name(spec.inputs[name]) for name in sources[node.name]},
        )


def _columns(spec: Spec) -> Iterator[SpecEntry]:
    for role, name, source, _ in spec.columns:
        yield SpecEntry(
            slot=None,
            name=name,
            kind=role,
            shape=None,
            operator=source if role == "label" else None,
            params={},
            inputs={},
        )


def _sequences(spec: Spec) -> Iterator[SpecEntry]:
    for sequence in spec.sequences:
        options = changed_options(sequence, CONTENT)
        yield SpecEntry(
            slot=None,
            name=sequence.name,
            kind="sequence",
            shape="list",
            operator=None,
            params={name: str(options[name]) for name in options if name not in ("name", "of")},
            inputs={name: type_name(spec.inputs[name]) for name in sequence.of},
        )


def inputs_of(spec: Spec) -> dict[str, tuple[str, ...]]:
    """The raw columns that each node reads, directly or through others, in order of first use."""
    found: dict[str, tuple[str, ...]] = {}
    for node in check.ordered(spec):
        nodes = check.nodes_read(spec, node)
        names = (found[name] if name in nodes else (name,) for name in node.of)
        found[node.name] = tuple(dict.fromkeys(itertools.chain.from_iterable(names)))
    return found


def _options(spec: Spec, node: Node) -> dict[str, str]:
    options = dict(node.params) | changed_options(node, VALUES)
    options["encode"] = None if node.encode == "sign" else node.encode
    options["share_slot"] = node.share_slot
    options |= spec.fitted[node.name].params if node.name in spec.fitted else {}
    vocabulary = spec.vocabularies.get(str(node.params.get("file")))
    options |= {} if vocabulary is None else {"num_values": len(vocabulary)}
    return {name: str(value) for name, value in options.items() if value is not None}
