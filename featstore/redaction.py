"""Passwords and tokens are taken out of what is shown. Pure.

This is the one place that knows what in a URL is secret: user and password, query and fragment.
"""

import re
import reprlib
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

# Links of an fsspec chain, such as `simplecache::https://host/x`; an IPv6 address has `::` too.
LINKS = re.compile(r"::(?=[A-Za-z][A-Za-z0-9+.-]*(?:::|://))")
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]+://"
# A user ends with the last @ before the path; one with a password that is not escaped, with the
# first one there is.
_USER = re.compile(rf"^({_SCHEME})([^/?#]*@|(?!\[)[^/?#@:]*:(?!\d*(?:[/?#]|$))[^@]*@)")
# After a colon in the host's place stands a port. Anything else may be a password without its @.
_NO_PORT = re.compile(rf"^({_SCHEME}(?:\[[0-9A-Fa-f:.]*\]|[^/?#:\[]*)):(?!\d*(?:[/?#]|$))([^/?#]*)")
_REST = re.compile(r"[?#].*$", re.DOTALL)
# A closing bracket ends a URL in a text, but not that of an IPv6 address. A scheme is short: else a
# long text without a URL would take a time that grows with its square.
_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,30}://(?:\[[0-9A-Fa-f:.]+\]|[^\s'\"<>)\]])+")
_SECRET_NAME = re.compile(r"KEY|SECRET|TOKEN|PASS|SAS|SIGNATURE|CONNECTION_STRING", re.IGNORECASE)
# A URL that a text which was cut ends with: its secrets may have lost what marks them.
_CUT_URL = re.compile(r"(?<=://)\S*$")
_MOST_CHARACTERS = 200
_SECRET_CHARACTERS = 6
"""A variable's value that is shorter is no secret, but `true`, and would hide words of a text."""


def redact(url: str) -> str:
    """The URL without user, password, query and fragment: what may stand in names, logs and errors.

    A local path stays as it is. Of a chain, such as `simplecache::https://user:pw@host/x`, each
    link is redacted.
    """
    return "::".join(_bare(link) if "://" in link else link for link in LINKS.split(url))


def _bare(url: str) -> str:
    return _NO_PORT.sub(r"\1", _REST.sub("", without_user(url)))


def without_user(url: str) -> str:
    """The URL without user and password: what names the content."""
    return _USER.sub(r"\1", url)


def redact_text(text: str, secrets: Iterable[str] = ()) -> str:
    """The text with each URL in it redacted, and `***` in the place of each of the secrets."""
    shown = _IN_TEXT.sub(_redacted, text)
    for secret in sorted(set(secrets) - {""}, key=len, reverse=True):
        shown = re.sub(rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])", "***", shown)
    return shown


def _redacted(found: re.Match[str]) -> str:
    """A URL in a text; punctuation at its end is the text's."""
    url = found.group().rstrip(":;,.")
    return redact(url) + found.group()[len(url) :]


def short(text: str) -> str:
    """The text for a message: redacted, and only its beginning where it is long."""
    if len(text) <= _MOST_CHARACTERS:
        return redact_text(text)
    beginning = _CUT_URL.sub("", text[:_MOST_CHARACTERS])
    return f"{redact_text(beginning)}... ({len(text):,} characters)"


def shown(value: object) -> str:
    """The value for a message, as `repr` writes it: redacted, and in part where it is long."""
    text = _SHOWN.repr(value)
    return text if len(text) <= 2 * _MOST_CHARACTERS else f"{text[: 2 * _MOST_CHARACTERS]}..."


class _Shown(reprlib.Repr):
    """Lists may hold each other so often that all of them written out would have no end."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxlist = self.maxtuple = self.maxset = self.maxdict = 20

    def repr_str(self, text: str, level: int) -> str:
        return repr(short(text))

    def repr_int(self, number: int, level: int) -> str:
        """`repr` refuses integers of more than 4,300 digits."""
        num_digits = int(number.bit_length() * 0.30103)  # log10(2)
        if num_digits < _MOST_CHARACTERS:
            return repr(number)
        return f"an integer of about {num_digits:,} digits"

    def repr_instance(self, value: object, level: int) -> str:
        return short(repr(value))


_SHOWN = _Shown()


def secrets_of(url: str) -> set[str]:
    """What `redact` takes out of the URL, as a client may repeat it without the URL around it."""
    found: set[str] = set()
    for link in LINKS.split(url):
        if user := _USER.match(link):
            name, _, password = user.group(2).removesuffix("@").partition(":")
            found.add(password or name)
        link = without_user(link)
        if no_port := _NO_PORT.match(link):
            found.add(no_port.group(2))
        pairs = re.split(r"[?#&]", link)[1:] if "://" in link else []
        found |= {value for pair in pairs if (value := pair.partition("=")[2] or pair)}
    return found | {unquote(secret) for secret in found}


def secrets_in(environment: Mapping[str, str]) -> set[str]:
    """Values of variables that are named like credentials, and what is secret in URLs, such as
    that of an endpoint or a proxy."""
    named = {value for name, value in environment.items() if _names_secret(name)}
    found = {value for value in named if len(value) >= _SECRET_CHARACTERS}
    return found.union(*(secrets_of(value) for value in environment.values()))


def _names_secret(name: str) -> bool:
    return bool(_SECRET_NAME.search(name)) and not name.endswith(("_FILE", "_PATH"))
