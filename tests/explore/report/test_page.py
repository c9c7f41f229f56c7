"""The document around the figures: what it lets run, and that nothing breaks out of it."""

import base64
import hashlib
import json
from html.parser import HTMLParser
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.explore.report.page import page, script_json

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "]]>",
    "\u2028\u2029",
    "\"'&amp;<img src=x onerror=alert(1)>",
    "\\u003c/script>",
    "$data ${script}",
    "\x00\x07\u202e",
    "\ud800",
)


class _Parsed(HTMLParser):
    """The elements of a document by name, with their attributes and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), []))
        self._open = True

    def handle_endtag(self, tag: str) -> None:
        self._open = False

    def handle_data(self, data: str) -> None:
        if self._open:
            self.found[-1][2].append(data)

    def texts(self, tag: str) -> list[str]:
        return ["".join(texts) for name, _, texts in self.found if name == tag]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_breaks_out_of_its_place(text: str) -> None:
    contents = {"about": [[text, text]]}
    found = _Parsed(page(text, contents).decode())
    data, script = found.texts("script")
    assert json.loads(data) == contents
    assert script == files("featstore.explore.report").joinpath("page.js").read_text().strip()
    shown = text.encode("utf-8", "replace").decode()
    assert found.texts("title") == [shown]
    plain = _Parsed(page("plain", {"about": []}).decode())
    assert [name for name, _, _ in found.found] == [name for name, _, _ in plain.found]


@given(st.text())
def test_json_in_a_script_is_ascii_without_characters_of_html(text: str) -> None:
    written = script_json({text: [text]})
    assert written.isascii()
    assert not set("<>&'\n\r") & set(written)
    assert json.loads(written) == {text: [text]}


def test_a_number_that_json_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_json([float("nan")])


def test_the_policy_lets_only_this_style_and_this_script_work() -> None:
    found = _Parsed(page("t", {}).decode())
    [policy] = [
        str(attributes["content"])
        for name, attributes, _ in found.found
        if name == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules == {
        "default-src": "'none'",
        "style-src": _digest(found.texts("style")[0]),
        "script-src": _digest(found.texts("script")[1]),
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_document_names_no_address_and_its_script_sets_no_html() -> None:
    parts = files("featstore.explore.report")
    script, style, frame = (
        parts.joinpath(name).read_text() for name in ("page.js", "page.css", "page.html")
    )
    assert "</" not in script
    assert not [
        word for word in ("innerHTML", "outerHTML", "insertAdjacent", "eval") if word in script
    ]
    # The namespace of SVG is a name, and nothing is fetched from it.
    assert script.replace("http://www.w3.org/2000/svg", "").count("://") == 0
    assert "url(" not in style
    assert "@import" not in style
    assert not [word for word in ("src=", "href=", "style=", " on") if word in frame]


def test_equal_figures_give_equal_bytes() -> None:
    assert page("t", {"a": [1, None]}) == page("t", {"a": [1, None]})
