"""The graph of a spec: as SVG, or as text that drawing programs read, DOT or Mermaid."""

import json
import shutil
import subprocess
from dataclasses import dataclass

from featstore.base.errors import MissingDependencyError, SpecError, nearest
from featstore.spec import check
from featstore.spec.graph import build_graph
from featstore.spec.model import Spec, type_name
from featstore.spec.parse import load_spec

DOT, MERMAID, SVG = FORMATS = ("dot", "mermaid", "svg")
_LIMIT_S = 120.0  # of laying out a graph
_DOT_SHAPES = {"input": "box", "inner": "ellipse", "slot": "box, style=rounded", "stored": "note"}
_MERMAID_SHAPES = {
    "input": '["{}"]',
    "inner": '(["{}"])',
    "slot": '("{}")',
    "stored": '[/"{}"/]',
}


@dataclass(frozen=True, kw_only=True)
class Vertex:
    """A box of the drawing.

    Attributes:
        id: Unique in the drawing.
        kind: `input` (a raw column), `inner`, `slot`, or `stored` (a label, weight or kept column).
        lines: The text in it.
    """

    id: str
    kind: str
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The vertices of a graph, and its edges from what is read to what reads it, by id."""

    vertices: tuple[Vertex, ...]
    edges: tuple[tuple[str, str], ...]


def draw(spec_url: str, *, form: str = DOT, slot: str | None = None) -> str:
    """The graph of a spec, as text.

    Args:
        spec_url: The path or URL of the spec.
        form: One of `FORMATS`.
        slot: Only what this slot, by name or number, is made of.

    Raises:
        SpecError: The spec is wrong, or has no such slot.
        MissingDependencyError: SVG is asked for, and Graphviz is not installed.
    """
    spec = load_spec(spec_url)
    build_graph(spec)
    drawing = drawing_of(spec)
    if slot is not None:
        drawing = made_of(drawing, f"node {_node_named(spec, slot)}")
    if form == MERMAID:
        return mermaid(drawing)
    return svg(dot(drawing)) if form == SVG else dot(drawing)


def _node_named(spec: Spec, name: str) -> str:
    """The name of a node, by itself or by its slot number."""
    names = {str(node.slot): node.name for node in spec.nodes} | {n: n for n in spec.by_name}
    if name not in names:
        raise SpecError(
            f"expected the name or number of a node of the spec, found "
            f"{name!r}{nearest(name, spec.by_name)}"
        )
    return names[name]


def drawing_of(spec: Spec) -> Drawing:
    """The raw columns, nodes, labels, weight and kept columns of a spec without errors."""
    vertices, edges = list[Vertex](), list[tuple[str, str]]()
    for node in check.ordered(spec):
        title = node.name if node.slot is None else f"{node.slot} {node.name}"
        kind = "slot" if node.store else "inner"
        vertices.append(Vertex(id=f"node {node.name}", kind=kind, lines=(title, node.op)))
        for i, name in enumerate(node.of):
            is_node = check.resolve(spec, name, node.name, check.of_path(node, i))
            edges.append((f"{'node' if is_node else 'input'} {name}", f"node {node.name}"))
    for role, name, source, _ in spec.columns:
        text = role if role == "weight" else f"{role} {name}"
        vertices.append(Vertex(id=text, kind="stored", lines=(text,)))
        is_node = source in spec.by_name and role != "kept"
        edges.append((f"node {source}" if is_node else f"input {source}", text))
    read = {first for first, _ in edges}
    inputs = (
        Vertex(id=f"input {name}", kind="input", lines=(f"{name}: {type_name(arrow_type)}",))
        for name, arrow_type in spec.inputs.items()
        if f"input {name}" in read
    )
    return Drawing(vertices=(*inputs, *vertices), edges=tuple(dict.fromkeys(edges)))


def made_of(drawing: Drawing, id_: str) -> Drawing:
    """The part of a drawing from which a vertex can be reached."""
    kept = check.reached([id_], lambda of: [first for first, last in drawing.edges if last == of])
    return Drawing(
        vertices=tuple(vertex for vertex in drawing.vertices if vertex.id in kept),
        edges=tuple(edge for edge in drawing.edges if kept.issuperset(edge)),
    )


def dot(drawing: Drawing) -> str:
    """The drawing in Graphviz' language, from left to right."""
    lines = ["digraph spec {", "  rankdir=LR;", '  node [fontname="sans-serif"];']
    for vertex in drawing.vertices:
        label = _quoted("\n".join(vertex.lines))
        lines.append(f"  {_quoted(vertex.id)} [label={label}, shape={_DOT_SHAPES[vertex.kind]}];")
    lines += [f"  {_quoted(first)} -> {_quoted(last)};" for first, last in drawing.edges]
    return "\n".join([*lines, "}"])


def mermaid(drawing: Drawing) -> str:
    """The drawing as a Mermaid flowchart, from left to right. Ids are numbers: names may be words
    of the language.
    """
    ids = {vertex.id: f"n{i}" for i, vertex in enumerate(drawing.vertices)}
    lines = ["flowchart LR"]
    for vertex in drawing.vertices:
        text = "<br>".join(map(_escaped, vertex.lines))
        lines.append(f"  {ids[vertex.id]}{_MERMAID_SHAPES[vertex.kind].format(text)}")
    lines += [f"  {ids[first]} --> {ids[last]}" for first, last in drawing.edges]
    return "\n".join(lines)


def svg(dot_text: str) -> str:
    """A graph in DOT as SVG, laid out by Graphviz's program `dot`.

    Args:
        dot_text: The graph, in DOT.

    Raises:
        MissingDependencyError: Graphviz is not installed, or not whole.
        SpecError: The graph takes more than two minutes to lay out.
    """
    program = shutil.which("dot")
    if program is None:
        raise MissingDependencyError(
            "the format svg needs Graphviz, whose program `dot` is not on the PATH: install it "
            "(`apt install graphviz`, `brew install graphviz`), or use the format mermaid, which "
            "code forges and notebooks draw"
        )
    try:
        done = subprocess.run(
            [program, "-Tsvg"],
            input=dot_text,
            capture_output=True,
            encoding="utf-8",
            timeout=_LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise SpecError(
            f"the graph is too large: {program} took more than {_LIMIT_S:.0f} s to lay it out; "
            f"draw a part of it (--slot NAME)"
        ) from error
    if done.returncode:
        raise MissingDependencyError(
            f"expected Graphviz's {program} to draw SVG, found exit code {done.returncode}: "
            f"{done.stderr.strip()}; install Graphviz again"
        )
    return done.stdout


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    """Text within quotes of Mermaid, which knows HTML's entities by `#`."""
    for character, entity in (("#", "35"), ('"', "quot"), ("<", "lt"), (">", "gt")):
        text = text.replace(character, f"#{entity};")
    return text
