"""Graphs drawn as SVG by Graphviz, in a real process."""

import os
import shutil
import stat
from pathlib import Path
from xml.etree import ElementTree

import pytest

from featstore.base.errors import MissingDependencyError, SpecError
from featstore.spec import drawing
from featstore.spec.drawing import SVG, draw

NEEDS_GRAPHVIZ = pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")


def _dot(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a program `dot` the only one on the PATH, beside the shell that runs it."""
    (directory / "dot").write_text(f"#!/bin/sh\n{script}\n")
    (directory / "dot").chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", os.fspath(directory))


@NEEDS_GRAPHVIZ
def test_the_picture_has_a_text_for_each_node(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "{spec: 1, inputs: {raw: string}, slots: [{slot: 1, name: user, op: hash, of: raw}]}"
    )
    root = ElementTree.fromstring(draw(str(tmp_path / "s.yaml"), form=SVG))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"raw: string", "1 user", "hash"} <= texts


def test_without_graphviz_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    with pytest.raises(MissingDependencyError, match=r"apt install graphviz.*mermaid"):
        drawing.svg("digraph {}")


def test_a_graphviz_that_fails_is_told_with_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _dot(tmp_path, "echo 'no such format: svg' >&2; exit 1", monkeypatch)
    with pytest.raises(MissingDependencyError, match="exit code 1: no such format: svg"):
        drawing.svg("digraph {}")


def test_a_layout_without_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _dot(tmp_path, "while :; do :; done", monkeypatch)
    monkeypatch.setattr(drawing, "_LIMIT_S", 0.2)
    with pytest.raises(SpecError, match="--slot NAME"):
        drawing.svg("digraph {}")
