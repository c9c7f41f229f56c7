"""Removes passwords and tokens from texts that are shown. Pure functions.

This module alone knows which parts of a URL are secret: user and password, query and fragment. In
the keys of object stores and the paths of HDFS, which may hold `?` and `#`, that is what looks like
a query, such as `?sig=...`.
"""

import re
import reprlib
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

# Separates the links of an fsspec chain, such as `simplecache::https://host/x`. The lookahead keeps
# IPv6 addresses whole, which contain `::` too.
LINKS = re.compile(r"::(?=[A-Za-z][A-Za-z0-9+.-]*(?:::|://))")
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]+://"
# The user part ends with the last @ before the path. A password that is not escaped may contain a
# slash: then the user part ends with the first @ of the URL.
# What stands before the @ of Azure's abfss://container@account is a container, which identifies.
_CONTAINER = r"(?!(?:abfss?|wasbs?)://[^/?#@:]*@)"
_USER = re.compile(
    rf"^{_CONTAINER}({_SCHEME})([^/?#]*@|(?!\[)[^/?#@:]*:(?!\d*(?:[/?#]|$))[^@]*@)", re.IGNORECASE
)
# A port follows the colon of a host. Anything else there may be a password whose @ was cut off.
_NO_PORT = re.compile(rf"^({_SCHEME}(?:\[[0-9A-Fa-f:.]*\]|[^/?#:\[]*)):(?!\d*(?:[/?#]|$))([^/?#]*)")
_REST = re.compile(r"[?#].*$", re.DOTALL)
_PAIRS = re.compile(r"[?#](?:[^/?#]*&)?[\w.~%-]+=.*$", re.DOTALL)
_NOTHING = re.compile(r"(?!)")
_STORE = re.compile(r"(?:s3a?|gcs?|gs|az|azure|abfss?|s?webhdfs|hdfs|viewfs)://", re.IGNORECASE)
_FILE = re.compile(r"file:", re.IGNORECASE)
# A version of a table: nothing else is in the query.
_VERSION = re.compile(r"delta\+[^?#]*\?version=\d+")
# A closing bracket ends a URL within a text, except in an IPv6 address. The bound on the scheme's
# length keeps the search linear: without it a long text without URLs takes quadratic time.
_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,30}://(?:\[[0-9A-Fa-f:.]+\]|[^\s'\"<>)\]])+")
_SECRET_NAME = re.compile(
    r"KEY|SECRET|TOKEN|PASS|SAS|SIGNATURE|CONNECTION_STRING|CREDENTIAL$", re.IGNORECASE
)
# A URL at the end of a truncated text: the characters that mark its secrets may be cut off.
_CUT_URL = re.compile(r"(?<=://)\S*$")
_BEFORE = r"(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{2}))"  # a secret: no word, or an escape
_MAX_CHARACTERS = 200
# Shorter values of environment variables, such as `true`, are not treated as secrets: replacing
# them would hide ordinary words of a message.
_MIN_SECRET_CHARACTERS = 6


def redact(url: str) -> str:
    """The URL without user, password, query and fragment, safe for names, logs and errors.

    A local path is returned as it is. In a chain, such as `simplecache::https://user:pw@host/x`,
    each link is redacted.
    """
    return "::".join(_bare(link) if "://" in link else link for link in LINKS.split(url))


def _bare(url: str) -> str:
    return _NO_PORT.sub(r"\1", _rest_of(url).sub("", without_user(url)))


def _rest_of(url: str) -> re.Pattern[str]:
    """What to leave out at the end of a URL."""
    if _FILE.match(url) or _VERSION.fullmatch(url):
        return _NOTHING
    return _PAIRS if _STORE.match(url) else _REST


def without_user(url: str) -> str:
    """The URL without user and password: the part that identifies the content."""
    return _USER.sub(r"\1", url)


def redact_text(text: str, secrets: Iterable[str] = ()) -> str:
    """The text with each URL redacted and each of `secrets` replaced by `***`."""
    shown = _IN_TEXT.sub(_redacted, text)
    # The longest first: a secret may contain another one.
    for secret in sorted(set(secrets) - {""}, key=len, reverse=True):
        shown = re.sub(rf"{_BEFORE}{re.escape(secret)}(?![A-Za-z0-9])", "***", shown)
    return shown


def _redacted(match: re.Match[str]) -> str:
    """The redacted URL. Punctuation at its end belongs to the surrounding text."""
    url = match.group().rstrip(":;,.")
    return redact(url) + match.group()[len(url) :]


def short(text: str) -> str:
    """The text for a message: redacted, and truncated if it is long."""
    if len(text) <= _MAX_CHARACTERS:
        return redact_text(text)
    beginning = _CUT_URL.sub("", text[:_MAX_CHARACTERS])
    return f"{redact_text(beginning)}... ({len(text):,} characters)"


def shown(value: object) -> str:
    """The `repr` of a value for a message: redacted, and truncated if it is long."""
    text = _SHOWN.repr(value)
    return text if len(text) <= 2 * _MAX_CHARACTERS else f"{text[: 2 * _MAX_CHARACTERS]}..."


class _Shown(reprlib.Repr):
    """Bounds depth and length: nested lists can share elements so that the full text explodes."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxlist = self.maxtuple = self.maxset = self.maxdict = 20

    def repr_str(self, text: str, level: int) -> str:
        return repr(short(text))

    def repr_int(self, number: int, level: int) -> str:
        """Spares huge integers, of which `repr` refuses those of more than 4,300 digits."""
        num_digits = int(number.bit_length() * 0.30103)  # log10(2)
        if num_digits < _MAX_CHARACTERS:
            return repr(number)
        return f"an integer of about {num_digits:,} digits"

    def repr_instance(self, value: object, level: int) -> str:
        return short(repr(value))


_SHOWN = _Shown()


def secrets_of(url: str) -> set[str]:
    """The parts that `redact` removes, since a client may quote them without the URL around."""
    secrets: set[str] = set()
    for link in LINKS.split(url):
        if user := _USER.match(link):
            name, _, password = user.group(2).removesuffix("@").partition(":")
            secrets.add(password or name)
        link = without_user(link)
        if no_port := _NO_PORT.match(link):
            secrets.add(no_port.group(2))
        rest = _rest_of(link).search(link) if "://" in link else None
        pairs = re.split(r"[?#&]", rest.group()) if rest else []
        secrets |= {value for pair in pairs if (value := pair.partition("=")[2] or pair)}
    return secrets | {unquote(secret) for secret in secrets}


def secrets_in(environment: Mapping[str, str]) -> set[str]:
    """The values of variables whose names suggest credentials, and the secrets of URLs in any
    variable, such as an endpoint or a proxy.
    """
    named = {
        value
        for name, value in environment.items()
        if _SECRET_NAME.search(name) and not name.endswith(("_FILE", "_PATH"))
    }
    secrets = {value for value in named if len(value) >= _MIN_SECRET_CHARACTERS}
    return secrets.union(*(secrets_of(value) for value in environment.values()))
