"""Formats the graph of a spec as a table of text."""

from tabulate import tabulate

from featstore.spec import check
from featstore.spec.graph import build_graph
from featstore.spec.model import Node, Spec, type_name
from featstore.spec.parse import load_spec


def show(spec_url: str) -> str:
    """A table of the nodes of a spec in topological order, then labels, weight and kept columns.

    The column `inputs` has the raw columns that a node reads, directly or through others.

    Args:
        spec_url: The path or URL of the spec.

    Raises:
        SpecError: The spec is wrong.
    """
    spec = load_spec(spec_url)
    schema, sources = build_graph(spec).schema, inputs_of(spec)
    rows: list[tuple[object, ...]] = []
    for node in check.ordered(spec):
        kind, shape = (
            (schema[node.name].kind, schema[node.name].shape_text)
            if node.store
            else ("inner", None)
        )
        text = f"{node.op}({', '.join(node.of)})"
        rows.append(
            (
                node.slot,
                node.name,
                kind,
                shape,
                text,
                _options(spec, node),
                ", ".join(_typed(spec, sources[node.name])),
            )
        )
    others = [
        ("label", schema.labels),
        ("weight", (schema.weight,) if schema.weight else ()),
        ("kept", schema.kept),
    ]
    rows += [
        (None, field.name, role, None, spec.labels.get(field.name), None, None)
        for role, fields in others
        for field in fields
    ]
    return tabulate(
        rows,
        headers=("slot", "name", "kind", "shape", "operator", "params", "inputs"),
        disable_numparse=True,
    )


def inputs_of(spec: Spec) -> dict[str, tuple[str, ...]]:
    """The raw columns that each node reads, directly or through others, in order of first use."""
    found: dict[str, tuple[str, ...]] = {}
    for node in check.ordered(spec):
        names: dict[str, None] = {}
        for i, name in enumerate(node.of):
            inner = check.resolve(spec, name, node.name, check.of_path(node, i))
            names |= dict.fromkeys(found[name] if inner else (name,))
        found[node.name] = tuple(names)
    return found


def _typed(spec: Spec, names: tuple[str, ...]) -> list[str]:
    return [f"{name}: {type_name(spec.inputs[name])}" for name in names]


def _options(spec: Spec, node: Node) -> str:
    options = dict(node.params) | {
        "default": node.default,
        "fill": node.fill,
        "empty_as_null": node.empty_as_null or None,
    }
    options["encode"] = None if node.encode == "sign" else node.encode
    options |= spec.fitted[node.name].params if node.name in spec.fitted else {}
    vocabulary = spec.vocabularies.get(str(node.params.get("file")))
    options |= {} if vocabulary is None else {"num_values": len(vocabulary)}
    return ", ".join(f"{name}={value}" for name, value in options.items() if value is not None)
