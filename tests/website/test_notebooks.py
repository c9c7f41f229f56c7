"""Notebooks as Markdown."""

import json
from typing import Any

from website.notebooks import notebook_text


def text_of(*outputs: dict[str, Any]) -> str:
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "Text."]},
        {"cell_type": "code", "source": ["x = 1\n", "x"], "outputs": list(outputs)},
    ]
    return notebook_text(json.dumps({"cells": cells}))


def test_texts_and_code_follow_each_other() -> None:
    assert text_of() == "# Title\nText.\n\n````python\nx = 1\nx\n````\n"


def test_what_code_prints_is_shown_as_text() -> None:
    printed = {"output_type": "stream", "name": "stdout", "text": ["a\n", "b\n"]}
    assert text_of(printed).endswith("\n\n````text\na\nb\n````\n")


def test_a_figure_is_part_of_the_page() -> None:
    data = {"image/png": "iVBO\n", "text/plain": ["<Figure>"]}
    expected = "\n\n![Figure](data:image/png;base64,iVBO)\n"
    assert text_of({"output_type": "execute_result", "data": data}).endswith(expected)


def test_a_table_is_html_without_empty_lines_and_without_links_of_markdown() -> None:
    data = {"text/html": ["<table>\n", "\n", "<td>[a](b)</td></table>"], "text/plain": ["a"]}
    expected = "\n\n<table>\n<td>[a]&#40;b)</td></table>\n"
    assert text_of({"output_type": "execute_result", "data": data}).endswith(expected)


def test_other_results_are_shown_as_text() -> None:
    result = {"output_type": "execute_result", "data": {"text/plain": ["327346"]}}
    assert text_of(result).endswith("\n\n````text\n327346\n````\n")
