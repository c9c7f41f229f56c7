"""Notebooks as Markdown: texts, code, and the outputs that are committed with them."""

import json
from collections.abc import Iterable, Mapping
from typing import Any


def notebook_text(notebook: str) -> str:
    """A notebook as Markdown.

    A figure is part of the page, and a table is the HTML that a notebook shows.

    Args:
        notebook: The JSON of a notebook, in format 4.
    """
    cells = json.loads(notebook)["cells"]
    return "\n\n".join(part for cell in cells for part in _parts(cell)) + "\n"


def _parts(cell: Mapping[str, Any]) -> Iterable[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    return [_fenced("python", source), *map(_output, cell["outputs"])]


def _output(output: Mapping[str, Any]) -> str:
    if "text" in output:
        return _fenced("text", "".join(output["text"]))
    data = {kind: "".join(text) for kind, text in output["data"].items()}
    if "image/png" in data:
        return f"![Figure](data:image/png;base64,{data['image/png'].strip()})"
    if "text/html" in data:
        # What looks like a link of Markdown is none here, nor does HTML of a page have empty lines.
        lines = data["text/html"].replace("](", "]&#40;").splitlines()
        return "\n".join(line for line in lines if line.strip())
    return _fenced("text", data["text/plain"])


def _fenced(language: str, text: str) -> str:
    return f"````{language}\n{text.rstrip()}\n````"
