"""Errors of a store's client, as featstore's: one line with the URL, the cause and what to do.

obstore, delta-rs, fsspec's file systems and sockets each have errors of their own: of many lines,
with colours, with what the server sent. This is the one place that reads them.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from obstore.exceptions import PermissionDeniedError, PreconditionError, UnauthenticatedError

from featstore.errors import (
    AccessError,
    CommitConflictError,
    DataFileError,
    DiskFullError,
    FeatstoreError,
    ReplacedError,
    StoreError,
)
from featstore.files.credentials import variables_of
from featstore.files.redirects import NOWHERE
from featstore.redaction import redact, redact_text, secrets_in, secrets_of

_MOST_CHARACTERS = 300
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_STATUS = re.compile(r"status(?: code)?\W*([45]\d\d)|\b([45]\d\d) (?:Client|Server) Error")
_CODE = re.compile(r"<Code>(\w+)</Code>")
# Where a client was: obstore and delta-rs tell the URL, requests the host and the port.
_ASKED_URL = re.compile(r"Error performing \w+ https?://(?:[^\s/?]*@)?([^\s/?]+)")
_ASKED_HOST = re.compile(r"host='([^']+)', port=(\d+)")
# What follows is for developers: the Rust error's fields, or a backtrace.
_INNER_PARTS = re.compile(r"\n\nDebug source|\n\s+0: ")
_BUSY = (408, 429)
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """A cause that is known by its text. `says` and `do` may name who was asked, the code that it
    answered with, the client's own {words}, and fields of the store's `Variables`."""

    pattern: re.Pattern[str]
    says: str
    do: str
    kind: type[StoreError] = StoreError
    code: int = errno.EINVAL


def _rule(pattern: str, says: str, do: str, **options: Any) -> _Rule:
    return _Rule(pattern=re.compile(pattern, re.IGNORECASE), says=says, do=do, **options)


# What the server answered: looked for first, since an answer may hold any other words.
_ANSWERED = (
    _rule(
        r"no credentials|credentials? provider|Missing ?(AccessKeyId|SecretAccessKey)|"
        r"Account must be specified|169\.254\.169\.254|/security-credentials|/latest/api/token|"
        r"computeMetadata|metadata/identity",
        "no usable credentials",
        "set {credentials}",
        kind=AccessError,
    ),
    _rule(
        r"NoSuchBucket|ContainerNotFound|specified (bucket|container) does not exist",
        "there is no such bucket at {host}",
        "check the bucket in the URL, and {endpoint}",
    ),
    _rule(
        r"no space left|disk quota exceeded|StorageFull",
        "cannot be written, since the disk, or the quota on it, is full ({words})",
        "free space there or use another disk, then run it again",
        kind=DiskFullError,
        code=errno.ENOSPC,
    ),
    _rule(
        r"URL scheme is not allowed",
        "{host} is plain http, which is refused",
        "set {plain_http}=true to allow it, or use an https:// endpoint",
    ),
)
_UNREACHED = (
    _rule(
        r"dns error|failed to lookup address|name or service not known|failed to resolve|"
        r"no address associated|nodename nor servname|name resolution|gaierror|UnknownHost",
        "the name of {host} does not resolve",
        "check the spelling, and {endpoint}",
        code=errno.EIO,
    ),
    _rule(
        r"connection ?refused|unable to connect to port|new connection: \[Errno 111\]",
        "{host} refuses the connection",
        "check that the server runs, and {endpoint}",
        code=errno.EIO,
    ),
    _rule(
        r"timed ?out|TimeoutError|kind: timeout|unreachable|no route to|HDFS connection",
        "{host} does not answer ({words})",
        "check that the server runs and the network reaches it, and {endpoint}",
        code=errno.EIO,
    ),
    _rule(
        r"certificate|InvalidContentType|corrupt message|UnknownIssuer|handshake|SSLError",
        "{host} and this client agree on no TLS connection",
        "check that the endpoint speaks https, and SSL_CERT_FILE for a certificate of your own",
        code=errno.EIO,
    ),
    _rule(
        r"libjvm|libhdfs|No FileSystem for scheme|CLASSPATH",
        "Hadoop's client cannot be loaded",
        "set JAVA_HOME, HADOOP_HOME and CLASSPATH=$(hadoop classpath --glob)",
    ),
)
# A proxy where nothing listens keeps a redirect from being followed, see redirects.py.
_REDIRECTED = _rule(
    rf"tcp connect error\W+{re.escape(NOWHERE)},",
    "{host} redirects to another host, where credentials may not go",
    "set {endpoint} to the host that answers",
)
_DENIED = _rule(
    "",
    "the store refuses access{code}",
    "{denied}",
    kind=AccessError,
)
_REFUSED = _rule("", "the store refuses the request ({words})", "check the URL, and {endpoint}")
_TROUBLED = _rule("", "the store is in trouble ({words})", "try again later", code=errno.EIO)
_FAILED = _rule("", "the store failed ({words})", "check the URL, and {endpoint}", code=errno.EIO)


@contextlib.contextmanager
def as_store_errors(url: str) -> Iterator[None]:
    """What a client raises in the block, as `store_error` says it.

    Errors of featstore pass, and of a local path those of the operating system, which name it.
    """
    try:
        yield
    except (FeatstoreError, MemoryError):
        raise
    except Exception as error:  # other libraries' boundary: each has its own errors
        if _is_local(url) and isinstance(error, OSError) and error.errno is not None:
            raise
        raise store_error(url, error) from None


@contextlib.contextmanager
def naming_full_disks(url: str) -> Iterator[None]:
    """What the system raises in the block for a full disk, as DiskFullError; all else passes.

    On a write into an open file the system names no path: then it is that of `url`.
    """
    try:
        yield
    except FeatstoreError:
        raise
    except OSError as error:
        if error.errno not in _FULL:
            raise
        named = error.filename2 or error.filename  # of two, the second is the one that is written
        raise store_error(str(named or url), error) from None


def _is_local(url: str) -> bool:
    return "://" not in url or url.startswith("file://")


def store_error(url: str, error: Exception) -> Exception:
    """The error to raise in the place of a client's.

    Returns:
        FileNotFoundError where there is no such file; AccessError where access is refused;
        DiskFullError where a disk is full;
        ReplacedError where the file is not of the version that was asked for; DataFileError where a
        Delta log cannot be read, CommitConflictError where a commit lost against others; StoreError
        for all else.
    """
    text = _plain(error)
    rule = _rule_of(url, error, _without_path(url, text))
    if isinstance(error, PreconditionError):
        return ReplacedError(f"{redact(url)} was replaced while it was read")
    if rule is None and isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "No such file", redact(url))
    if rule is None and (ours := _of_delta(url, error, text)) is not None:
        return ours
    return _made(rule or _FAILED, url, text)


def _rule_of(url: str, error: Exception, text: str) -> _Rule | None:
    answered = next((rule for rule in _ANSWERED if rule.pattern.search(text)), None)
    if answered is not None or isinstance(error, FileNotFoundError):
        return answered
    return _by_status(error, text) or _by_connection(url, text)


def _by_status(error: Exception, text: str) -> _Rule | None:
    found = _STATUS.search(text)
    status = int(found.group(1) or found.group(2)) if found else 0
    refusals = (PermissionError, PermissionDeniedError, UnauthenticatedError)
    if status in (401, 403) or isinstance(error, refusals) or "AuthenticationException" in text:
        return _DENIED
    if status >= 500 or status in _BUSY:
        return _TROUBLED
    return _REFUSED if status else None


def _by_connection(url: str, text: str) -> _Rule | None:
    if _is_local(url):
        return None
    if _REDIRECTED.pattern.search(text) and _host(url, text) != NOWHERE:
        return _REDIRECTED
    return next((rule for rule in _UNREACHED if rule.pattern.search(text)), None)


def _of_delta(url: str, error: Exception, text: str) -> FeatstoreError | None:
    """What delta-rs raises that is not of the store. It is known by the name of its class: this
    module serves files too, which must not load delta-rs."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if "DeltaError" not in names:
        return None
    words = _words(url, text)
    if "CommitFailedError" in names:
        return CommitConflictError(
            f"{redact(url)}: other writers committed first, again and again ({words}); nothing of "
            f"this run is visible: run it again"
        )
    what = f"the Delta log cannot be read ({words})"
    return DataFileError(f"{redact(url)}: {what}; restore its files, or write the table anew")


def _made(rule: _Rule, url: str, text: str) -> StoreError:
    known = variables_of("file" if _is_local(url) else url.partition("://")[0].lower())
    code = _CODE.search(text)
    found = {
        "host": _host(url, text),
        "code": f" ({code.group(1)})" if code else "",
        "words": _words(url, text),
    }
    says, do = (part.format(**found, **known.to_fill_in) for part in (rule.says, rule.do))
    error = rule.kind(f"{redact(url)}: {says}; {do}")
    error.errno = rule.code
    return error


def _host(url: str, text: str) -> str:
    """Who was asked, as the client says, or else the URL's host: in a cloud's URL that is a
    bucket.
    """
    if found := _ASKED_URL.search(text) or _ASKED_HOST.search(text):
        return ":".join(found.groups())
    host = ""
    if variables_of(url.partition("://")[0].lower()).metadata is None:
        with contextlib.suppress(ValueError):
            host = urlsplit(redact(url)).netloc
    return host or "the store's endpoint"


def client_words(url: str, error: Exception) -> str:
    """The client's own words in one short line, without secrets of the URL and of variables."""
    return _words(url, _plain(error))


def _without_path(url: str, text: str) -> str:
    """The text without the file's path, in which words may stand that a rule looks for."""
    path = redact(url).partition("://")[2].partition("/")[2]
    for form in filter(None, (path, quote(path), quote(path, safe=""))):
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(form)}(?![A-Za-z0-9])", "", text)
    return text


def _plain(error: Exception) -> str:
    return _COLOURS.sub("", f"{type(error).__name__}: {error}").replace("↳", ":")


def _words(url: str, text: str) -> str:
    words = " ".join(_INNER_PARTS.split(text)[0].split()).rstrip(": ")
    shown = redact_text(words, secrets_of(url) | secrets_in(os.environ))
    return shown if len(shown) <= _MOST_CHARACTERS else f"{shown[:_MOST_CHARACTERS]}..."
