"""Pages mean the same to code hosts and to the site's renderer."""

import re
from collections import Counter
from pathlib import Path, PurePosixPath

import markdown
import pytest
from markdown_it import MarkdownIt

from website.dialect import for_renderer
from website.pages import page_text, repository_pages

ROOT = Path(__file__).parents[2]
COMMON_MARK = MarkdownIt("commonmark").enable("table")


def blocks(html: str) -> Counter[str]:
    return Counter(re.findall(r"<(h\d|ul|ol|li|pre|table|tr)\b", html))


def as_on_the_site(text: str) -> str:
    return str(markdown.markdown(text, extensions=["tables", "pymdownx.superfences", "toc"]))


@pytest.mark.parametrize("page", repository_pages(ROOT), ids=str)
def test_both_see_the_same_lists_tables_and_code(page: PurePosixPath) -> None:
    text = page_text(ROOT, page)
    assert blocks(as_on_the_site(for_renderer(text))) == blocks(COMMON_MARK.render(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Text.\n- a\n- b\n", "Text.\n\n- a\n- b\n"),
        ("Text.\n1. a\n2. b\n", "Text.\n\n1. a\n2. b\n"),
        ("- a\n  more\n- b\n", "- a\n  more\n- b\n"),
        ("Text.\n\n- a\n", "Text.\n\n- a\n"),
        ("```\nText.\n- a\n```\n", "```\nText.\n- a\n```\n"),
    ],
)
def test_a_list_after_a_paragraph_gets_an_empty_line(text: str, expected: str) -> None:
    assert for_renderer(text) == expected
