"""Errors of a store are one line with the URL, the cause and what to do, in Python and on the
command line.
"""

import errno
import io
import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake.exceptions
import obstore.exceptions
import pyarrow as pa
import pytest
import requests
from deltalake import write_deltalake

from featstore.base.errors import (
    AccessError,
    CommitConflictError,
    DataFileError,
    DiskFullError,
    FeatstoreError,
    ReplacedError,
    StoreError,
    TableNotFoundError,
)
from featstore.base.processes import BAD_INPUT, MAY_PASS
from featstore.base.redaction import redact
from featstore.base.schema import Slot, SlotKind
from featstore.files import storage
from featstore.files.hdfs_files import HdfsError
from featstore.files.listings import list_files
from featstore.files.store_errors import as_store_errors, retry_after_s, store_error
from featstore.table import delta
from featstore.table.delta import is_delta
from featstore.table.open import open_snapshot
from tests.http_servers import Handler, serving
from tests.programs import Program, run_python
from tests.store_clients import clients_of, forget_clients
from tests.tiers import tiered

KEYS = {
    "AWS_ACCESS_KEY_ID": "someone",
    "AWS_SECRET_ACCESS_KEY": "Sk3yEnvironment",
    "AWS_REGION": "us-east-1",
}
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message><Token-0>Sk3yToken</Token-0></Error>"
CLIENT = """
import json, sys
import featstore
from featstore.tools.cli import console
try:
    featstore.open_table(sys.argv[1])
except Exception as error:
    kinds = [kind.__name__ for kind in type(error).__mro__]
    print(json.dumps({"said": str(error), "kinds": kinds}), flush=True)
sys.argv = ["featstore", "table", "inspect", sys.argv[1]]
console()
"""


class _Refusing(Handler):
    """An S3 that refuses everything, and repeats the received token, as S3 does."""

    def _answer(self) -> None:
        self.send_response(403)
        self.send_header("Content-Length", str(len(DENIED)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(DENIED)

    do_PUT = do_POST = _answer  # noqa: N815


@pytest.fixture(scope="module")
def refusing() -> Iterator[str]:
    with serving(_Refusing) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    """An S3 without a bucket."""
    with Program(Path(__file__).parents[1] / "table" / "s3_server.py") as process:
        yield f"http://127.0.0.1:{process.line()}"


@pytest.fixture
def closed() -> Iterator[str]:
    """A host and a port on which nothing listens, reserved for this test."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def _said(url: str, environment: dict[str, str], *, status: int) -> tuple[str, list[str]]:
    """The message and the classes of what `open_table` raises. On the command line the message must
    be the same, with this exit code.
    """
    alone = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    done = run_python(CLIENT, url, env=alone | environment, status=status)
    told = json.loads(done.stdout)
    assert done.stderr == f"featstore: error: {told['said']}\n"
    return told["said"], told["kinds"]


CASES: dict[str, Any] = {
    "no credentials": (
        "s3://bucket/t",
        {"AWS_EC2_METADATA_DISABLED": "true"},
        r"no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
    "half of the credentials": (
        "s3://bucket/t",
        {"AWS_ACCESS_KEY_ID": "someone"},
        r"no usable credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
    "an account that is not named": (
        "az://container/t",
        {"AZURE_STORAGE_ACCOUNT_KEY": "Sk3yAccount"},
        r"no usable credentials; set AZURE_STORAGE_ACCOUNT_NAME",
    ),
    "a missing bucket": (
        "s3://missing/t",
        KEYS | {"AWS_ENDPOINT_URL": "{moto}", "AWS_ALLOW_HTTP": "true"},
        r"there is no such bucket at 127\.0\.0\.1:\d+; check the bucket in the URL, and "
        r"AWS_ENDPOINT_URL",
    ),
    "plain http": (
        "s3://bucket/t",
        KEYS | {"AWS_ENDPOINT_URL": "http://user:Sk3yPass@{closed}"},
        r"127\.0\.0\.1:\d+ is plain http, which is refused; set AWS_ALLOW_HTTP=true",
    ),
    "plain http on Azure": (
        "az://container/t",
        {
            "AZURE_STORAGE_ACCOUNT_NAME": "someone",
            "AZURE_STORAGE_ACCOUNT_KEY": "c29tZW9uZQ==",
            "AZURE_STORAGE_ENDPOINT": "http://{closed}",
        },
        r"127\.0\.0\.1:\d+ is plain http, which is refused; set AZURE_ALLOW_HTTP=true",
    ),
    "a host that is down": (
        "s3://bucket/t",
        KEYS | {"AWS_ENDPOINT_URL": "https://user:Sk3yPass@{closed}"},
        r"127\.0\.0\.1:\d+ refuses the connection; check that the server runs, and AWS_ENDPOINT_URL",
    ),
    "a name that does not resolve": (
        "s3://bucket/t",
        KEYS | {"AWS_ENDPOINT_URL": "https://user:Sk3yPass@nowhere.invalid"},
        r"the name of nowhere\.invalid does not resolve; check the spelling, and AWS_ENDPOINT_URL",
    ),
    "access denied": (
        "s3://bucket/t",
        KEYS | {"AWS_ENDPOINT_URL": "{refusing}", "AWS_ALLOW_HTTP": "true"},
        r"the store refuses access \(AccessDenied\); check AWS_ACCESS_KEY_ID .*may read and write "
        r"there",
    ),
    "HDFS that is down": (
        "hdfs://{closed}/t",
        {},
        r"127\.0\.0\.1:\d+ refuses the connection; check that the server runs, and the name node's "
        r"host",
    ),
    "HDFS whose name does not resolve": (
        "hdfs://nowhere.invalid:8020/t",
        {},
        r"the name of nowhere\.invalid:8020 does not resolve",
    ),
    "WebHDFS that is down": (
        "webhdfs://user:Sk3yPass@{closed}/t",
        {},
        r"127\.0\.0\.1:\d+ refuses the connection; check that the server runs, and the name node's "
        r"host",
    ),
    "WebHDFS whose name does not resolve": (
        "webhdfs://nowhere.invalid:9870/t",
        {},
        r"the name of nowhere\.invalid:9870 does not resolve",
    ),
    "SFTP that is down": (
        "sftp://user:Sk3yPass@{closed}/t",
        {},
        r"127\.0\.0\.1:\d+ refuses the connection; check that the server runs, and the host and "
        r"the port in the URL",
    ),
    "a web server that is down": (
        "http://user:Sk3yPass@{closed}/t.parquet",
        {},
        r"127\.0\.0\.1:\d+ refuses the connection; check that the server runs",
    ),
    "a scheme that nobody knows": (
        "weird://user:Sk3yPass@host/t",
        {},
        r"no file system for weird:// \(Protocol not known: weird\); expected",
    ),
    "a chain": (
        "simplecache::https://user:Sk3yPass@{closed}/t",
        {},
        r"a chain of file systems cannot be read; expected the URL of the file itself",
    ),
}


DOWN = ("is down", "does not resolve")
WAITS = (
    "a host that is down",
    "a name that does not resolve",
    "a web server that is down",
    "HDFS that is down",
    "HDFS whose name does not resolve",
)


@pytest.mark.parametrize("case", tiered(CASES, WAITS.__contains__))
def test_an_error_of_a_store_is_one_line(case: str, moto: str, refusing: str, closed: str) -> None:
    places = {"moto": moto, "refusing": refusing, "closed": closed}
    url, environment, expected = CASES[case]
    url = url.format(**places)
    variables = {name: value.format(**places) for name, value in environment.items()}
    said, kinds = _said(url, variables, status=MAY_PASS if case.endswith(DOWN) else BAD_INPUT)
    assert re.match(rf"{re.escape(redact(url))}[^ ]*: {expected}", said), said
    assert "\n" not in said
    assert "\x1b" not in said
    assert "Sk3y" not in said
    assert {"OSError", "FeatstoreError"} <= set(kinds) or "ConfigError" in kinds


@pytest.fixture
def s3() -> Iterator[pytest.MonkeyPatch]:
    with clients_of(KEYS) as patch:
        yield patch


ACTS = {
    "size": storage.size_bytes,
    "read": lambda url: storage.open_read(url).read(),
    "read what was listed": lambda url: storage.open_read(url, 10).read(),
    "fetch": lambda url: storage.fetch(url, io.BytesIO()),
    "delete": storage.delete,
    "time": storage.modified_s,
    "list": list_files,
}


@pytest.mark.parametrize("act", ACTS)
def test_each_operation_on_a_file_names_the_store_that_refuses(
    s3: pytest.MonkeyPatch, refusing: str, closed: str, act: str
) -> None:
    s3.setenv("AWS_ENDPOINT_URL", refusing)
    with pytest.raises(
        AccessError, match=r"^s3://bucket/x: the store refuses access.*; check AWS_ACCESS_KEY_ID"
    ) as found:
        ACTS[act]("s3://bucket/x")
    assert found.value.errno == errno.EINVAL
    s3.setenv("AWS_ENDPOINT_URL", f"http://{closed}")
    forget_clients()
    with pytest.raises(
        StoreError, match=rf"^s3://bucket/x: {closed} refuses the connection; check"
    ) as closed_error:
        ACTS[act]("s3://bucket/x")
    assert closed_error.value.errno == errno.EIO
    assert closed_error.value.__cause__ is None


def test_a_missing_bucket_is_not_reported_as_a_missing_file(
    s3: pytest.MonkeyPatch, moto: str
) -> None:
    s3.setenv("AWS_ENDPOINT_URL", moto)
    with pytest.raises(StoreError, match="there is no such bucket"):
        storage.fetch("s3://missing/x", io.BytesIO())
    with (
        pytest.raises(StoreError, match="there is no such bucket"),
        storage.open_write("s3://missing/x") as file,
    ):
        file.write(b"1")


def test_errors_of_the_caller_while_it_writes_are_not_reported_as_the_stores() -> None:
    with pytest.raises(ZeroDivisionError), storage.open_write("memory://mine/x") as file:
        file.write(b"1" * (1 // 0))


def test_an_error_of_a_client_at_any_time_names_the_url() -> None:
    with storage.open_write("memory://mine/y") as file:
        file.write(b"12345")
    with storage.open_read("memory://mine/y") as file:
        client: Any = file
        client.raw._file.read = lambda size: 1 // 0  # the client's own fault
        with pytest.raises(
            StoreError, match=r"^memory://mine/y: the store failed \(ZeroDivisionError: .*\); check"
        ):
            file.read()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    log = tmp_path / "t" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("{bad\n")
    return tmp_path / "t"


def test_the_error_about_a_damaged_log_has_no_colours_and_backtraces(table: Path) -> None:
    with pytest.raises(
        DataFileError, match=r"the Delta log cannot be read .*Json error.*; restore its files"
    ) as found:
        open_snapshot(str(table))
    said, kinds = _said(str(table), {}, status=BAD_INPUT)
    assert said == str(found.value)
    assert said.startswith(f"{table}: ")
    assert "ValueError" in kinds
    assert not re.search(r"\n|\x1b|<unknown>|start_thread", said)


def test_a_log_without_entries_is_no_table(table: Path) -> None:
    (table / "_delta_log" / f"{0:020}.json").unlink()
    assert is_delta(str(table))
    with pytest.raises(TableNotFoundError, match="no table at"):
        open_snapshot(str(table))


class DeltaError(Exception):
    """Has the name of delta-rs's class."""


class CommitFailedError(DeltaError):
    """Has the name of delta-rs's class."""


class AuthenticationException(Exception):
    """Has the name of paramiko's class."""


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (
            TimeoutError("no block came in 60 s"),
            StoreError,
            r"h:22 does not answer \(TimeoutError: no block came in 60 s\)",
        ),
        (OSError(errno.EHOSTUNREACH, "No route to host"), StoreError, "h:22 does not answer"),
        (
            AuthenticationException("Authentication failed."),
            AccessError,
            "the store refuses access; check the user",
        ),
        (PermissionError(13, "Permission denied"), AccessError, "the store refuses access"),
        (
            RuntimeError("status code: 503 Slow Down"),
            StoreError,
            "the store is in trouble .*; try again later",
        ),
        (
            OSError(errno.EDQUOT, "Disk quota exceeded"),
            DiskFullError,
            "cannot be written, since the disk, or the quota",
        ),
        (
            RuntimeError("status code: 507 <Code>XMinioStorageFull</Code>"),
            DiskFullError,
            "cannot be written",
        ),
        (RuntimeError("status code: 400 Bad Request"), StoreError, "the store refuses the request"),
        (
            DeltaError("odd: \x1b[31m↳\x1b[0m very\n  odd"),
            DataFileError,
            r"\(DeltaError: odd: : very odd\)",
        ),
        (
            CommitFailedError("busy"),
            CommitConflictError,
            "other writers repeatedly committed first.*run it again",
        ),
        (
            OSError(
                "Client error with status 400 Bad Request: <Code>ExpiredToken</Code>"
                "<Message>The provided token has expired.</Message>"
            ),
            AccessError,
            r"the credentials have expired \(ExpiredToken\); get new ones, and set",
        ),
        (
            OSError("Client error with status 403 Forbidden: <Code>RequestTimeTooSkewed</Code>"),
            StoreError,
            r"the clock of this machine and that of h:22 differ .*\(RequestTimeTooSkewed\); set "
            r"this machine's clock",
        ),
        (
            OSError("Server returned 403 Forbidden: Signature expired: 2026 is now earlier than"),
            StoreError,
            "the clock of this machine and that of h:22 differ",
        ),
        (
            # A HEAD has no body that would name the ExpiredToken.
            OSError(
                "Error performing HEAD http://h/b/x in 1ms - Server returned non-2xx status code: "
                "400 Bad Request: "
            ),
            StoreError,
            r"refuses the request .* without saying why; check whether the credentials .* have "
            r"expired, this machine's clock, the URL",
        ),
        (
            OSError("IOException: Zero blocklocations for /x (host='nn', port=9870)"),
            StoreError,
            r"the name node knows no data node for it, or is starting .*dfsadmin -report",
        ),
        (
            Exception(
                "The following columns have types incompatible with the existing columns in their "
                "respective positions :\nprices,click"
            ),
            StoreError,
            "the Hive metastore refuses other columns .*set hive.metastore.disallow.incompatible",
        ),
        (
            Exception("Invalid method name: 'get_table'"),
            StoreError,
            r"the Hive metastore does not know the calls .*use a metastore of Hive 2 or 3",
        ),
        (NotImplementedError(), StoreError, r"the store failed \(NotImplementedError\)"),
        (
            OSError("secret=Sk3yPass of Sk3yQuery " + "x" * 1000),
            StoreError,
            r"secret=\*\*\* of \*\*\* x+\.\.\.",
        ),
        (
            OSError("/no credentials/certificate is odd"),
            StoreError,
            r"the store failed .*certificate is odd",
        ),
    ],
)
def test_each_kind_of_error_has_its_message(
    error: Exception, kind: type[Exception], said: str
) -> None:
    found = store_error("sftp://user:Sk3yPass@h:22/no credentials/certificate?q=Sk3yQuery", error)
    assert type(found) is kind
    assert re.match(rf"sftp://h:22/no credentials/certificate: .*{said}", str(found)), str(found)
    assert len(str(found)) < 600
    assert not re.search(r"\n|\x1b|Sk3y", str(found))


@pytest.mark.parametrize("kind", [KeyError, TypeError, AssertionError, IndexError, ValueError])
def test_a_mistake_in_the_block_is_no_failing_store(kind: type[Exception]) -> None:
    with pytest.raises(kind) as found, as_store_errors("s3://bucket/t"):
        raise kind("operation")
    assert type(found.value) is kind


def test_a_mistake_in_code_that_the_block_calls_is_none_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as in reading a log: `'operation'` was said to be a store's failure."""
    with pytest.raises(ValueError, match="expected shape"), as_store_errors("s3://bucket/t"):
        Slot(name="x", kind=SlotKind.ID, shape=(1, 2))
    write_deltalake(tmp_path, pa.table({"x": [1]}))
    monkeypatch.setattr(delta, "_NUM_RECENT_COMMITS", "many")
    with pytest.raises(ValueError, match="islice"):
        open_snapshot(str(tmp_path))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (obstore.exceptions.GenericError("broken pipe"), "broken pipe"),
        (deltalake.exceptions.DeltaError("a bad log"), "the Delta log cannot be read"),
        (Exception("a request failed"), "the store failed"),
        (requests.ConnectionError("reset by peer"), "the store failed"),
        (TimeoutError("60 s"), "does not answer"),
    ],
)
def test_errors_that_clients_raise_are_the_stores(error: Exception, words: str) -> None:
    with pytest.raises(FeatstoreError, match=words), as_store_errors("s3://bucket/t"):
        raise error


@pytest.mark.parametrize("kind", [ValueError, NotImplementedError, EOFError])
def test_pythons_errors_are_the_stores_if_a_client_raises_them(kind: type[Exception]) -> None:
    def client() -> None:
        raise kind("odd")

    with pytest.raises(StoreError, match="the store failed"), as_store_errors("sftp://h/t"):
        client()


@pytest.mark.parametrize(
    ("headers", "expected_s"),
    [
        ({}, 0),
        ({"Retry-After": "30"}, 30),
        ({"Retry-After": "Thu, 01 Jan 1970 00:01:40 GMT"}, 60),
        ({"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0),
        ({"Retry-After": "soon"}, 0),
    ],
)
def test_a_store_says_how_long_to_wait(headers: dict[str, str], expected_s: float) -> None:
    assert retry_after_s(headers, now_s=40) == expected_s


def test_the_error_has_the_pause_that_a_client_tells_of() -> None:
    error = HdfsError("HTTP 503 (host='nn', port=1)", headers={"Retry-After": "7"})
    found = store_error("webhdfs://nn:1/x", error)
    assert isinstance(found, StoreError)
    assert (found.retry_after_s, found.errno) == (7, errno.EIO)


def test_our_own_errors_and_those_of_local_files_pass_as_they_are() -> None:
    for error in (ReplacedError("replaced"), FileNotFoundError(errno.ENOENT, "No such file", "/x")):
        with pytest.raises(type(error)) as found, as_store_errors("/x"):
            raise error
        assert found.value is error


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://bucket/x", "s3://bucket/x: the store's endpoint refuses the connection"),
        ("hdfs://namenode:8020/x", "hdfs://namenode:8020/x: namenode:8020 refuses the connection"),
        ("sftp://[::1/x", "sftp://[::1/x: the store's endpoint refuses the connection"),
    ],
)
def test_a_bucket_is_not_reported_as_a_host(url: str, said: str) -> None:
    assert str(store_error(url, ConnectionRefusedError(111, "Connection refused"))).startswith(said)


def test_variables_of_the_environment_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "Sk3yToken")
    said = str(
        store_error(
            "s3://bucket/x",
            RuntimeError("status code: 400 Bad Request: <Token-0>Sk3yToken</Token-0>"),
        )
    )
    assert "Sk3y" not in said
    assert "<Token-0>***</Token-0>" in said
