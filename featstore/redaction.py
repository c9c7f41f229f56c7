"""Passwords and tokens are taken out of what is shown. Pure.

This is the one place that knows what in a URL is secret: user and password, query and fragment.
"""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

# Links of an fsspec chain, such as `simplecache::https://host/x`; an IPv6 address has `::` too.
LINKS = re.compile(r"::(?=[A-Za-z][A-Za-z0-9+.-]*(?:::|://))")
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]+://"
# A user ends with the last @ before the path; one with a password that is not escaped, with the
# first one there is.
_USER = re.compile(rf"^({_SCHEME})([^/?#]*@|(?!\[)[^/?#@:]*:(?!\d*(?:[/?#]|$))[^@]*@)")
# After a colon in the host's place stands a port. Anything else may be a password without its @.
_NO_PORT = re.compile(rf"^({_SCHEME}(?:\[[0-9A-Fa-f:.]*\]|[^/?#:\[]*)):(?!\d*(?:[/?#]|$))[^/?#]*")
_REST = re.compile(r"[?#].*$", re.DOTALL)
# A closing bracket ends a URL in a text, but not that of an IPv6 address.
_IN_TEXT = re.compile(rf"{_SCHEME}(?:\[[0-9A-Fa-f:.]+\]|[^\s'\"<>)\]])+")
_SECRET_NAME = re.compile(r"KEY|SECRET|TOKEN|PASS|SAS|SIGNATURE|CONNECTION_STRING", re.IGNORECASE)
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


def secrets_of(url: str) -> set[str]:
    """What `redact` takes out of the URL, as a client may repeat it without the URL around it."""
    found: set[str] = set()
    for link in LINKS.split(url):
        if user := _USER.match(link):
            name, _, password = user.group(2).removesuffix("@").partition(":")
            found.add(password or name)
        pairs = re.split(r"[?#&]", without_user(link))[1:] if "://" in link else []
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
