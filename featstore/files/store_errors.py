"""Translates errors of file store clients to featstore's: one line with the URL, the cause and what
to do.

obstore, delta-rs, fsspec's file systems and sockets each have errors of their own, with many lines,
colours and responses of the server. Only this module interprets them. Causes are recognised by text
since the clients' exception classes do not distinguish them; see
`docs/design/files.md`.
"""

import contextlib
import email.utils
import errno
import os
import re
import time
import traceback
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from featstore.base.errors import (
    AccessError,
    CommitConflictError,
    DataFileError,
    DiskFullError,
    FeatstoreError,
    ReplacedError,
    StoreError,
)
from featstore.base.libraries import LazyModule
from featstore.base.redaction import redact, redact_text, secrets_in, secrets_of
from featstore.files.credentials import DEAD_PROXY, variables_of
from featstore.files.retry import NO_LIMIT, gave_up

if TYPE_CHECKING:
    import obstore.exceptions as obstore_errors
else:
    obstore_errors = LazyModule("obstore.exceptions")

_MAX_CHARACTERS = 300  # of a client's own words in a message
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_STATUS = re.compile(r"status(?: code)?\W*([45]\d\d)|\b([45]\d\d) (?:Client|Server) Error")
_CODE = re.compile(r"<Code>(\w+)</Code>")
# The host that a client contacted: obstore and delta-rs report the URL, requests host and port.
_ASKED_URL = re.compile(r"Error performing \w+ https?://(?:[^\s/?]*@)?([^\s/?]+)")
_ASKED_HOST = re.compile(r"host='([^']+)', port=(\d+)")
# The start of what is for developers only: the fields of the Rust error, or a backtrace.
_INNER_PARTS = re.compile(r"\n\nDebug source|\n\s+0: ")
# How long and how often obstore and delta-rs have tried, in their words.
_TRIES = re.compile(
    r" in ([\d.]+)(m?)s, after (\d+) retries, max_retries: (\d+), retry_timeout: ([\d.]+)s"
)
_HEAD = re.compile(r"Error performing HEAD ")
_BUSY = (408, 429)
# The responses of which pyiceberg's clients of catalogs raise an error of their own.
_CATALOGS = "pyiceberg.exceptions"
_ANSWERS_OF_CATALOGS = {
    "AuthorizationExpiredError": 401,
    "OAuthError": 401,
    "UnauthorizedError": 401,
    "ForbiddenError": 403,
    "TooManyRequestsError": 429,
    "ServerError": 500,
    "ServiceUnavailableError": 503,
    "BadRequestError": 400,
    "RESTError": 400,  # of any other refusal
}
# An error of the system in delta-rs' words, other than that a file is missing (2).
_OS_ERROR = re.compile(r"\(os error (?!2\))\d+\)")
# What a name node says while it starts or hands over, and data nodes have not reported to it yet.
PASSING_WORDS = re.compile(
    r"zero blocklocations|failed to find datanode|no live (data ?)?nodes?\b|startup mode|"
    r"no active .*nodes contain this block|"
    r"namenode still not started|could only be (written|replicated) to 0 ",
    re.IGNORECASE,
)
_UNSUPPORTED = 501  # of a method that the server does not know: another try would be refused, too
_FULL = (errno.ENOSPC, errno.EDQUOT)
# Of whoever wrote the code: the words of a failing store would hide them.
_MISTAKES = (LookupError, TypeError, AttributeError, NameError, AssertionError)


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """A cause, recognised by a pattern in the client's text.

    `cause` and `advice` may use the fields {host}, {code} and {words} (the client's own), and those
    of `StoreVariables.message_fields`. `errno` is EINVAL if a retry would fail too.
    """

    pattern: re.Pattern[str]
    cause: str
    advice: str
    kind: type[StoreError] = StoreError
    errno: int = errno.EINVAL


def _rule(pattern: str, cause: str, advice: str, **options: Any) -> _Rule:
    return _Rule(pattern=re.compile(pattern, re.IGNORECASE), cause=cause, advice=advice, **options)


_NO_CREDENTIALS = _rule(
    r"no credentials|credentials? provider|Missing ?(AccessKeyId|SecretAccessKey)|"
    r"Account must be specified|169\.254\.169\.254|/security-credentials|/latest/api/token|"
    r"computeMetadata|metadata/identity",
    "no usable credentials",
    "set {credentials}",
    kind=AccessError,
)
_UNRESOLVED = _rule(
    r"dns error|failed to lookup address|name or service not known|failed to resolve|"
    r"no address associated|nodename nor servname|name resolution|gaierror|HdfsError: UnknownHost",
    "the name of {host} does not resolve",
    "check the spelling, and {endpoint}",
    errno=errno.EIO,
)
# Responses of a server. They are tried first, since a response may contain any other words.
_ANSWERED = (
    # Before others: it has the words of the system's client of Kerberos.
    _rule(
        r"the name node demands Kerberos",
        "{host} refuses access ({words})",
        "run `kinit`, install libgssapi_krb5, and check hadoop.security.authentication in "
        "core-site.xml of HADOOP_CONF_DIR",
        kind=AccessError,
    ),
    _NO_CREDENTIALS,
    _rule(
        r"types incompatible with the existing columns in their respective positions",
        "the Hive metastore refuses other columns than the table has ({words})",
        "set hive.metastore.disallow.incompatible.col.type.changes=false on the metastore, as "
        "tables of Iceberg need it, which find columns by id",
    ),
    _rule(
        r"Invalid method name: 'get_table'",
        "the Hive metastore does not know the calls of pyiceberg's client ({words})",
        "use a metastore of Hive 2 or 3, or the REST catalog of Hive 4",
    ),
    _rule(
        r"NoSuchBucket|ContainerNotFound|specified (bucket|container) does not exist",
        "there is no such bucket at {host}",
        "check the bucket in the URL, and {endpoint}",
    ),
    _rule(
        r"no space left|disk quota exceeded|StorageFull|QuotaExceededException",
        "cannot be written, since the disk, or the quota on it, is full ({words})",
        "free space there or use another disk, then run it again",
        kind=DiskFullError,
        errno=errno.ENOSPC,
    ),
    _rule(
        r"URL scheme is not allowed",
        "{host} is plain http, which is refused",
        "set {plain_http}=true to allow it, or use an https:// endpoint",
    ),
    _rule(
        r"the server demands Kerberos",
        "{host} refuses access ({words})",
        "run `kinit` and install featstore-pipeline[hdfs-kerberos], or set FEATSTORE_HDFS_TOKEN to "
        "a delegation token (`hdfs fetchdt`)",
        kind=AccessError,
    ),
    _rule(
        r"InvalidToken|token \(.*\) (can't be found in cache|is expired)",
        "{host} refuses the delegation token ({words})",
        "set FEATSTORE_HDFS_TOKEN to a new one (`hdfs fetchdt`)",
        kind=AccessError,
    ),
    _rule(
        r"No viewfs fallback",
        "{host} is no mount table with a fallback, without which hdfs-native reads none",
        "check the name, and set fs.viewfs.mounttable.NAME.linkFallback to an hdfs:// URL in "
        "core-site.xml of HADOOP_CONF_DIR, or use hdfs:// URLs of the service that holds the path",
    ),
    _rule(
        r"StandbyException",
        "no name node is active ({words})",
        "wait for the failover, look at `hdfs haadmin -getAllServiceState`, and check {endpoint}",
        errno=errno.EIO,
    ),
    _rule(
        r"SafeModeException",
        "the name node is in safe mode ({words})",
        "wait until it has left it (`hdfs dfsadmin -safemode get`), then run it again",
        errno=errno.EIO,
    ),
    _rule(
        PASSING_WORDS.pattern,
        "the name node knows no data node for it, or is starting ({words})",
        "wait until the data nodes have reported to it (`hdfs dfsadmin -report`), then run it "
        "again",
        errno=errno.EIO,
    ),
    _rule(
        r"ExpiredToken|token included in the request is expired",
        "the credentials have expired{code}",
        "get new ones, and set {credentials}",
        kind=AccessError,
    ),
    _rule(
        r"RequestTimeTooSkewed|Clock skew too great|Signature (expired|not yet current)|"
        r"iat and exp values",
        "the clock of this machine and that of {host} differ by too much{code}",
        "set this machine's clock (NTP), then run it again",
    ),
    _rule(
        r"AccessControlException",
        "{host} refuses access ({words})",
        "check {credentials}, and the owner and permissions of the path (`hdfs dfs -ls -d`)",
        kind=AccessError,
    ),
)
_UNREACHED = (
    _UNRESOLVED,
    # So servers of HDFS end connections of clients that do not speak as they are configured.
    _rule(
        r"HdfsError: (RPC listener disconnected|Connection reset by peer|no data node answers)",
        "{host}, or a data node of it, ends the connection ({words})",
        "check that the servers run, and that hadoop.security.authentication (core-site.xml) and "
        "dfs.data.transfer.protection (hdfs-site.xml) in HADOOP_CONF_DIR are those of the cluster",
        errno=errno.EIO,
    ),
    _rule(
        r"connection ?refused|unable to connect to port|new connection: \[Errno 111\]",
        "{host} refuses the connection",
        "check that the server runs, and {endpoint}",
        errno=errno.EIO,
    ),
    _rule(
        r"no data node answers",
        "the data nodes do not answer ({words})",
        "check that they run (`hdfs dfsadmin -report`) and the network reaches them",
        errno=errno.EIO,
    ),
    _rule(
        r"timed ?out|TimeoutError|kind: timeout|no answer came|unreachable|no route to",
        "{host} does not answer ({words})",
        "check that the server runs and the network reaches it, and {endpoint}",
        errno=errno.EIO,
    ),
    _rule(
        r"certificate|InvalidContentType|corrupt message|UnknownIssuer|handshake|SSLError",
        "{host} and this client agree on no TLS connection",
        "check that the endpoint speaks https, and SSL_CERT_FILE for a certificate of your own",
        errno=errno.EIO,
    ),
)
# A dead proxy keeps a redirect from being followed, see credentials.py.
_REDIRECTED = _rule(
    rf"tcp connect error\W+{re.escape(DEAD_PROXY)},",
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
# A client asks for sizes and versions by HEAD, whose answer has no words.
_REFUSED_UNSAID = _rule(
    "",
    "the store refuses the request ({words}) without saying why",
    "check whether the credentials ({credentials}) have expired, this machine's clock, the URL, "
    "and {endpoint}",
)
_TROUBLED = _rule("", "the store is in trouble ({words})", "try again later", errno=errno.EIO)
_FAILED = _rule("", "the store failed ({words})", "check the URL, and {endpoint}", errno=errno.EIO)


@contextlib.contextmanager
def as_store_errors(url: str, secrets: Collection[str] = ()) -> Iterator[None]:
    """Translates what a client raises in the block, with `store_error` and these `secrets`.

    Errors of featstore and mistakes in its code pass unchanged, and so do errors of the operating
    system about a local path, since they name it.
    """
    try:
        yield
    except (FeatstoreError, MemoryError):
        raise
    except Exception as error:  # other libraries' boundary: each has its own errors
        if not _is_of_client(error):
            raise
        if _is_local(url) and isinstance(error, OSError) and error.errno is not None:
            raise
        raise store_error(url, error, secrets) from None


def _is_of_client(error: Exception) -> bool:
    """Whether a client raised an error that arrived in `as_store_errors`.

    Clients have errors of their own, raise those of the system, and delta-rs bare Exceptions. Of
    Python's other errors those are a client's that come from its code: not from the block itself,
    whose frame is the second, and not from other code of featstore.
    """
    kind = type(error)
    if kind is Exception or isinstance(error, OSError) or kind.__module__ != "builtins":
        return True
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    module = str(frames[-1].f_globals.get("__name__"))
    is_ours = len(frames) <= 2 or module.partition(".")[0] == __name__.partition(".")[0]
    return not is_ours and not isinstance(error, _MISTAKES)


@contextlib.contextmanager
def as_write_errors(url: str) -> Iterator[None]:
    """Translates the operating system's errors about a full disk to DiskFullError. All others pass,
    with a path.

    For a write to an open file the system names no path; `url` is named then.
    """
    try:
        yield
    except FeatstoreError:
        raise
    except OSError as error:
        if error.errno not in _FULL:
            if error.filename is None and error.errno is not None:
                error.filename = redact(url)
            raise
        # An operation with two paths writes the second one.
        path = error.filename2 or error.filename
        raise store_error(str(path or url), error) from None


def _is_local(url: str) -> bool:
    return "://" not in url or url.startswith("file://")


def store_error(url: str, error: Exception, secrets: Collection[str] = ()) -> Exception:
    """The error to raise in place of a client's.

    Args:
        url: The file or table that was accessed.
        error: The client's error.
        secrets: What a message must not show, as of `client_words`.

    Returns:
        FileNotFoundError if there is no such file, AccessError if access is refused, DiskFullError
        if a disk is full, ReplacedError if the file has another version than requested,
        DataFileError if a Delta log cannot be read, CommitConflictError if a commit lost against
        others, and StoreError otherwise.
    """
    text = _plain(error)
    rule = _rule_of(url, error, _without_path(url, text))
    if isinstance(error, obstore_errors.PreconditionError):
        return ReplacedError(f"{redact(url)} was replaced while it was read")
    if rule is None and isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "No such file", redact(url))
    if rule is None and (translated := _of_delta(url, error, text)) is not None:
        return translated
    tries = getattr(error, "tried", "") or _tried(text)
    told = _from_rule(rule or _FAILED, url, text, tries, secrets)
    told.retry_after_s = retry_after_s(getattr(error, "headers", None) or {}, time.time())
    return told


def is_unresolved(text: str) -> bool:
    """Whether a client's text says that the name of a host does not resolve."""
    return _UNRESOLVED.pattern.search(text) is not None


def is_lasting(url: str, error: Exception) -> bool:
    """Whether a client would meet a failure again and again although it takes it for a passing one:
    a name that does not resolve, credentials that nobody gives.
    """
    return _rule_of(url, error, _without_path(url, _plain(error))) in (
        _NO_CREDENTIALS,
        _UNRESOLVED,
    )


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float:
    """The seconds that an answer asks to wait, 0 if none. Pure.

    Args:
        headers: Of the answer.
        now_s: The time, since 1970, from which a date in `Retry-After` counts.
    """
    value = headers.get("Retry-After", "").strip()
    if value.isdecimal():
        return float(value)
    date = email.utils.parsedate_tz(value)
    return max(0.0, email.utils.mktime_tz(date) - now_s) if date else 0.0


def _rule_of(url: str, error: Exception, text: str) -> _Rule | None:
    # The order matters: a response may mention a time-out or a certificate, but a broken connection
    # never quotes a response.
    answered = next((rule for rule in _ANSWERED if rule.pattern.search(text)), None)
    if answered is not None or isinstance(error, FileNotFoundError):
        return answered
    return _by_status(error, text) or _by_connection(url, text)


def _by_status(error: Exception, text: str) -> _Rule | None:
    match, kind = _STATUS.search(text), type(error)
    status = int(match.group(1) or match.group(2)) if match else 0
    if kind.__module__ == _CATALOGS:
        status = _ANSWERS_OF_CATALOGS.get(kind.__name__, 0)
    refusals = (
        PermissionError,
        obstore_errors.PermissionDeniedError,
        obstore_errors.UnauthenticatedError,
    )
    if status in (401, 403) or isinstance(error, refusals) or "AuthenticationException" in text:
        return _DENIED
    if (status >= 500 and status != _UNSUPPORTED) or status in _BUSY:
        return _TROUBLED
    if status == 400 and _HEAD.search(text):
        return _REFUSED_UNSAID
    return _REFUSED if status else None


def _by_connection(url: str, text: str) -> _Rule | None:
    if _is_local(url):
        return None
    if _REDIRECTED.pattern.search(text) and _host(url, text) != DEAD_PROXY:
        return _REDIRECTED
    return next((rule for rule in _UNREACHED if rule.pattern.search(text)), None)


def _of_delta(url: str, error: Exception, text: str) -> FeatstoreError | None:
    """The error for what delta-rs raises about its log rather than the store; else None.

    Its errors are recognised by class name, because importing delta-rs here would load it for every
    access to a file.
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    if "DeltaError" not in names:
        return None
    words = _words(url, text)
    if "TableNotFoundError" in names or _OS_ERROR.search(text):
        # delta-rs names any failure to look for a table so; callers have seen its log.
        failed = StoreError(
            f"{redact(url)}: the Delta log cannot be read or written ({words}); check the disk or "
            f"mount, and the permissions, then run it again"
        )
        failed.errno = errno.EIO
        return failed
    if "CommitFailedError" in names:
        return CommitConflictError(
            f"{redact(url)}: other writers repeatedly committed first ({words}); nothing of this "
            f"run is visible: run it again"
        )
    return DataFileError(
        f"{redact(url)}: the Delta log cannot be read ({words}); restore its files, or write the "
        f"table again"
    )


def _tried(text: str) -> str:
    """How often and how long obstore or delta-rs has tried, if it had a budget of time."""
    match = _TRIES.search(text)
    if match is None or int(match[4]) != NO_LIMIT:
        return ""
    tried_s = float(match[1]) * (0.001 if match[2] else 1)
    return gave_up(int(match[3]) + 1, tried_s, "retry_s", float(match[5]))


def _from_rule(
    rule: _Rule, url: str, text: str, tries: str, secrets: Collection[str]
) -> StoreError:
    known = variables_of("file" if _is_local(url) else url.partition("://")[0].lower())
    code = _CODE.search(text)
    fields = known.message_fields | {
        "host": _host(url, text),
        "code": f" ({code.group(1)})" if code else "",
        "words": _words(url, text, secrets),
    }
    cause, advice = rule.cause.format(**fields), rule.advice.format(**fields)
    error = rule.kind(f"{redact(url)}: {cause}{tries}; {advice}")
    error.errno = rule.errno
    return error


def _host(url: str, text: str) -> str:
    """The host that the client names, or else that of the URL, unless it is a cloud's, in which the
    bucket takes the host's place.
    """
    if match := _ASKED_URL.search(text) or _ASKED_HOST.search(text):
        return ":".join(match.groups())
    host = ""
    if variables_of(url.partition("://")[0].lower()).metadata is None:
        with contextlib.suppress(ValueError):
            host = urlsplit(redact(url)).netloc
    return host or "the store's endpoint"


def client_words(url: str, error: Exception, secrets: Collection[str] = ()) -> str:
    """The client's own words as one short line, without the secrets of the URL and of environment
    variables, and without other `secrets`.
    """
    return _words(url, _plain(error), secrets)


def _without_path(url: str, text: str) -> str:
    """The text without the file's path, which may contain words that a rule looks for."""
    path = redact(url).partition("://")[2].partition("/")[2]
    for form in filter(None, (path, quote(path), quote(path, safe=""))):
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(form)}(?![A-Za-z0-9])", "", text)
    return text


def _plain(error: Exception) -> str:
    return _COLOURS.sub("", f"{type(error).__name__}: {error}").replace("↳", ":")


def _words(url: str, text: str, secrets: Collection[str] = ()) -> str:
    words = " ".join(_TRIES.sub("", _INNER_PARTS.split(text)[0]).split()).rstrip(": ")
    shown = redact_text(words, secrets_of(url) | secrets_in(os.environ) | {*secrets})
    return shown if len(shown) <= _MAX_CHARACTERS else f"{shown[:_MAX_CHARACTERS]}..."
