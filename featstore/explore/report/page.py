"""The HTML document of a report: self-contained, and closed to the network.

The figures are JSON in a block that is no script. The page's own script, which alone may run,
builds all elements from it and sets texts as texts, never as HTML. So nothing of a table's data is
ever parsed as HTML but the title, which is escaped, and the JSON, which holds no character that
means something to a parser of HTML.
"""

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from importlib.resources import files
from string import Template
from typing import Any

# In JSON these occur in strings alone, where the escape means the same.
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&'"}


def page(title: str, contents: Mapping[str, Any]) -> bytes:
    """The document.

    Args:
        title: Its title, as plain text.
        contents: What it shows: JSON types, without NaN and infinities.

    Returns:
        The document in UTF-8. Equal arguments give equal bytes.

    Raises:
        ValueError: A number is not finite.
    """
    style, script = _part("page.css"), _part("page.js")
    text = Template(_part("page.html")).substitute(
        title=html.escape(title),
        # This style and this script, and nothing from anywhere.
        policy=f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'",
        style=style,
        data=script_json(contents),
        script=script,
    )
    # A path of a file system may hold bytes that are no characters.
    return text.encode("utf-8", "replace")


def script_json(contents: object) -> str:
    """JSON of ASCII characters that can stand within a `script` element: none ends the element or
    begins a comment, and none is a line break to JavaScript but not to JSON (U+2028).

    Raises:
        ValueError: A number is not finite.
    """
    text = json.dumps(contents, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _part(name: str) -> str:
    """A part of the document. An element's text must be to the byte what its digest is of."""
    return files("featstore.explore.report").joinpath(name).read_text("utf-8").strip()
