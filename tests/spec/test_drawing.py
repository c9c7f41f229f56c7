"""Graphs of specs as DOT and Mermaid."""

import re
import shutil
from pathlib import Path

import pytest

from featstore.base.errors import SpecError
from featstore.spec.drawing import DOT, MERMAID, SVG, draw, drawing_of, made_of
from featstore.spec.parse import load_spec

SPEC = """
spec: 1
inputs: {raw_user: string, price: double, clicked: long, id: string, wide: double}
labels: {click: clicked, dear: bin}
weight: wide
keep: [id]
slots:
  - {slot: 2, name: crossed, op: cross, of: [user, bin]}
  - {slot: 1, name: user, op: hash, of: raw_user}
  - {name: bin, op: bucketize, of: price, boundaries: [1, 2], store: false}
"""
EDGES = {
    ("input raw_user", "node user"),
    ("node user", "node crossed"),
    ("node bin", "node crossed"),
    ("input price", "node bin"),
    ("input clicked", "label click"),
    ("node bin", "label dear"),
    ("input wide", "weight"),
    ("input id", "kept id"),
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "spec.yaml").write_text(SPEC)
    return str(tmp_path / "spec.yaml")


def test_edges_are_what_each_node_label_and_kept_column_reads(url: str) -> None:
    drawing = drawing_of(load_spec(url))
    assert set(drawing.edges) == EDGES
    assert {vertex.id for vertex in drawing.vertices} == {end for edge in EDGES for end in edge}
    kinds = {vertex.id: (vertex.kind, *vertex.lines) for vertex in drawing.vertices}
    assert kinds["node bin"] == ("inner", "bin", "bucketize")
    assert kinds["node crossed"] == ("slot", "2 crossed", "cross")
    assert kinds["input price"] == ("input", "price: double")


def test_a_node_with_the_name_of_its_input_reads_the_input(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "{spec: 1, inputs: {user: string}, slots: [{slot: 1, name: user, op: hash, of: user}]}"
    )
    drawing = drawing_of(load_spec(tmp_path / "s.yaml"))
    assert drawing.edges == (("input user", "node user"),)


def test_a_slot_is_drawn_with_what_it_is_made_of(url: str) -> None:
    part = made_of(drawing_of(load_spec(url)), "node bin")
    assert part.edges == (("input price", "node bin"),)
    for name in ("crossed", "2"):
        text = draw(url, slot=name)
        assert '"node bin" -> "node crossed"' in text
        assert "label" not in re.sub(r"label=", "", text)
    with pytest.raises(SpecError, match="found 'crosed'; did you mean 'crossed'"):
        draw(url, slot="crosed")


def test_dot_has_a_line_for_each_vertex_and_edge(url: str) -> None:
    lines = draw(url, form=DOT).splitlines()
    assert (lines[0], lines[-1]) == ("digraph spec {", "}")
    assert '  "node crossed" [label="2 crossed\\ncross", shape=box, style=rounded];' in lines
    assert sum(" -> " in line for line in lines) == len(EDGES)


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_draws_it(url: str) -> None:
    assert draw(url, form=SVG).count('class="edge"') == len(EDGES)


def test_mermaid_numbers_its_vertices_and_escapes_their_texts(url: str) -> None:
    lines = draw(url, form=MERMAID).splitlines()
    assert lines[0] == "flowchart LR"
    ids = dict(re.findall(r'^  (n\d+)\S?\S?"(.*)"', line)[0] for line in lines[1:] if '"' in line)
    edges = [re.fullmatch(r"  (n\d+) --> (n\d+)", line) for line in lines[1:] if '"' not in line]
    read = {(ids[edge[1]], ids[edge[2]]) for edge in edges if edge is not None}
    assert len(read) == len(edges) == len(EDGES)
    assert ("1 user<br>hash", "2 crossed<br>cross") in read


def test_types_with_brackets_are_escaped_in_mermaid(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "{spec: 1, inputs: {t: list<string>}, slots: [{slot: 1, name: tags, op: hash, of: t}]}"
    )
    assert '["t: list#lt;string#gt;"]' in draw(str(tmp_path / "s.yaml"), form=MERMAID)


def test_a_wrong_spec_is_not_drawn(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SPEC.replace("op: cross", "op: crss"))
    with pytest.raises(SpecError, match=r"slots\[0\]\.op.*did you mean 'cross'"):
        draw(str(tmp_path / "s.yaml"))
