"""The client of WebHDFS against name nodes and data nodes on loopback. The contract of all stores
runs against them too (tests/contracts/test_file_contract.py)."""

import contextlib
import datetime
import io
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import certifi
import pyspark
import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from featstore.base.errors import AccessError, DiskFullError, StoreError
from featstore.extraction.spark.java import java_environment
from featstore.files import listings, storage
from featstore.files.hdfs_files import HdfsError
from featstore.files.retry import RetryPolicy, retrying
from featstore.files.store_errors import as_store_errors
from featstore.files.webhdfs import (
    FailedNodes,
    WebHdfs,
    error_of,
    redirect_of,
    transfer_addresses,
)
from featstore.staging import Source, StageItem, Stager, Staging
from tests.full_disk import fill
from tests.http_servers import serving
from tests.programs import free_ports, run_python
from tests.store_clients import clients_of, forget_clients
from tests.threads import run_together
from tests.webhdfs_server import (
    TICKET,
    Cluster,
    NameNodeHandler,
    RemoteError,
    hdfs_cluster,
    transfer_port,
    write_site,
)

DATA = bytes(range(256)) * 4_000


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with hdfs_cluster() as cluster, clients_of({"HADOOP_USER_NAME": "ann"}):
        yield cluster


@pytest.fixture
def url(cluster: Cluster) -> str:
    return f"webhdfs://127.0.0.1:{cluster.name_ports[0]}/t"


@pytest.fixture
def service(cluster: Cluster, tmp_path: Path) -> Iterator[str]:
    """A name service with the name node, and one on another port that is always on standby."""
    with hdfs_cluster() as other:
        other.standby.update(other.name_ports)
        both = Cluster(name_ports=[*other.name_ports, *cluster.name_ports])
        write_site(tmp_path, "prod", both)
        with clients_of({"HADOOP_USER_NAME": "ann", "HADOOP_CONF_DIR": str(tmp_path)}):
            yield "webhdfs://prod/t"
            assert other.asked, "the name node on standby was never asked"


def write(url: str, data: bytes = DATA) -> None:
    with storage.open_write(url) as file:
        file.write(data)


def read(url: str) -> bytes:
    with storage.open_read(url) as file:
        return file.read()


def test_a_file_is_created_in_two_steps_and_renamed_when_it_is_whole(
    cluster: Cluster, url: str
) -> None:
    visible: list[set[str]] = []
    cluster.fail("data", "CREATE", lambda: visible.append(set(cluster.files())))
    write(f"{url}/a b%20.bin")
    assert cluster.files() == {"/t/a b%20.bin": DATA}
    assert read(f"{url}/a b%20.bin") == DATA
    assert visible == [set()]
    assert [
        (kind, op) for kind, op, _ in cluster.asked if op in ("CREATE", "RENAME", "APPEND")
    ] == [
        ("name", "CREATE"),
        ("data", "CREATE"),
        ("name", "RENAME"),
    ]
    for kind in ("name", "data"):
        assert cluster.queries(kind, "CREATE")[0]["user.name"] == "ann"


def test_a_file_that_is_replaced_is_there_all_the_time(cluster: Cluster, url: str) -> None:
    write(f"{url}/x", b"first")
    seen: list[bytes] = []
    cluster.fail("name", "RENAME", lambda: seen.append(cluster.files()["/t/x"]))
    write(f"{url}/x", b"second")
    assert seen == [b"first"]
    assert cluster.files() == {"/t/x": b"second"}


def test_an_empty_file_is_written(cluster: Cluster, url: str) -> None:
    write(f"{url}/x", b"")
    assert (cluster.files(), read(f"{url}/x")) == ({"/t/x": b""}, b"")


@pytest.mark.parametrize("fault", ["drop", "lost", "cut", 503])
def test_a_broken_upload_is_sent_again_whole_to_another_data_node(
    cluster: Cluster, url: str, fault: object
) -> None:
    cluster.fail("data", "CREATE", fault)
    write(f"{url}/x")
    assert cluster.files() == {"/t/x": DATA}
    assert len(cluster.queries("data", "CREATE")) == 2
    ports = [port for kind, op, port in cluster.served if (kind, op) == ("data", "CREATE")]
    assert sorted(ports) == sorted(cluster.data_ports)


def test_an_upload_that_keeps_failing_leaves_nothing_behind(cluster: Cluster, url: str) -> None:
    write(f"{url}/x", b"before")
    cluster.fail("data", "CREATE", *(5 * ["cut"]))
    with pytest.raises(StoreError, match=r"t/x: the store failed|t/x: 127"):
        write(f"{url}/x")
    assert cluster.files() == {"/t/x": b"before"}


def test_a_file_that_arrived_short_is_an_error(cluster: Cluster, url: str) -> None:
    """As behind a proxy that answers for the data node."""
    cluster.fail("data", "CREATE", 201)
    with pytest.raises(FileNotFoundError, match="No such file"):
        write(f"{url}/x")
    assert cluster.files() == {}


@pytest.mark.parametrize("fault", ["drop", "cut", 500, 503])
def test_a_broken_read_is_made_again(cluster: Cluster, url: str, fault: object) -> None:
    cluster.put("/t/x", DATA)
    cluster.fail("data", "OPEN", fault)
    assert read(f"{url}/x") == DATA
    assert len(cluster.queries("data", "OPEN")) == 2


def test_a_data_node_that_failed_is_left_out_from_then_on(cluster: Cluster, url: str) -> None:
    for name in "abcd":
        cluster.put(f"/t/{name}", DATA)
    cluster.fail("data", "OPEN", "drop")
    assert [read(f"{url}/{name}") for name in "abcd"] == 4 * [DATA]
    failed, *others = (port for kind, op, port in cluster.served if (kind, op) == ("data", "OPEN"))
    assert failed not in others
    excluded = [query.get("excludedatanodes") for query in cluster.queries("name", "OPEN")]
    assert excluded == [None, *(4 * [f"127.0.0.1:{transfer_port(failed)}"])]


def test_where_all_data_nodes_failed_none_is_left_out(cluster: Cluster, url: str) -> None:
    cluster.put("/t/x", DATA)
    cluster.fail("data", "OPEN", "drop", "drop")
    assert read(f"{url}/x") == DATA
    *_, last = cluster.queries("name", "OPEN")
    assert "excludedatanodes" not in last


def test_a_failed_data_node_is_avoided_for_a_minute() -> None:
    failed = FailedNodes()
    failed.add({"10.0.0.2:9866"}, now_s=0.0)
    failed.add({"10.0.0.1"}, now_s=30.0)
    assert failed.among(59.0) == "10.0.0.1,10.0.0.2:9866"
    assert failed.among(61.0) == "10.0.0.1"
    failed.forget()
    assert failed.among(61.0) == ""


def test_a_name_node_knows_a_data_node_by_its_address_for_data() -> None:
    node = {"ipAddr": "10.0.0.1", "hostName": "Node1", "infoPort": 9864, "xferPort": 9866}
    other = node | {"ipAddr": "10.0.0.2", "hostName": "node2"}
    located = {"LocatedBlocks": {"locatedBlocks": 2 * [{"locations": [node, other]}]}}
    assert transfer_addresses(located, "node1", 9864) == {"10.0.0.1:9866"}
    assert transfer_addresses(located, "10.0.0.2", 9864) == {"10.0.0.2:9866"}
    assert transfer_addresses(located, "node1", 9865) == set()
    assert transfer_addresses({}, "node1", 9864) == set()


@pytest.mark.slow
def test_a_host_that_does_not_answer_is_told_within_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its queue of connections is full, so that no further one is made. Two attempts are made, with
    less than a second between them.
    """
    limits_s, request = list[float](), requests.Session.request

    def noted(*arguments: Any, timeout: tuple[float, float], **options: Any) -> Any:
        limits_s.append(timeout[0])
        return request(*arguments, timeout=timeout, **options)

    monkeypatch.setattr(requests.Session, "request", noted)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = server.getsockname()
        for _ in range(2):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        with (
            clients_of({}),
            pytest.raises(StoreError, match=rf"127\.0\.0\.1:{address[1]} does not answer"),
        ):
            storage.size_bytes(f"webhdfs://127.0.0.1:{address[1]}/x")
    assert limits_s == [4.0, 4.0]


def test_under_a_budget_of_time_a_dead_port_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (port,) = free_ports(1)
    url = f"webhdfs://127.0.0.1:{port}/x"
    with (
        clients_of({}),
        retrying(RetryPolicy(retry_s=1.0)),
        pytest.raises(StoreError, match=r"refuses the connection; gave up after"),
    ):
        storage.size_bytes(url)
    (record,) = caplog.records
    assert re.search(
        r"refused.*it is asked again until 1 s have passed \(retry_s\)", record.getMessage()
    )


@pytest.mark.parametrize("op", ["GETFILESTATUS", "OPEN"])
@pytest.mark.parametrize("fault", ["drop", "lost", 503])
def test_a_broken_request_to_the_name_node_is_made_again(
    cluster: Cluster, url: str, op: str, fault: object
) -> None:
    cluster.put("/t/x", DATA)
    cluster.fail("name", op, fault)
    assert read(f"{url}/x") == DATA
    assert not cluster.faults["name", op]


def test_the_active_name_node_of_a_service_is_found_and_kept(
    cluster: Cluster, service: str
) -> None:
    write(f"{service}/x")
    num_asked = len(cluster.asked)
    assert read(f"{service}/x") == DATA
    assert [entry.url for entry in listings.list_files(service, "x")] == [f"{service}/x"]
    assert len(cluster.asked) > num_asked


def test_a_failover_between_two_requests_is_followed(tmp_path: Path) -> None:
    with hdfs_cluster(num_name_nodes=2) as cluster:
        first, second = cluster.name_ports
        cluster.standby = {second}
        write_site(tmp_path, "prod", cluster)
        with clients_of({"HADOOP_CONF_DIR": str(tmp_path)}):
            cluster.fail(
                "name",
                "RENAME",
                lambda: cluster.standby.symmetric_difference_update({first, second}),
            )
            write("webhdfs://prod/t/x")
            assert cluster.standby == {first}
            assert read("webhdfs://prod/t/x") == DATA
            cluster.standby.add(second)
            with pytest.raises(StoreError, match=r"prod/t/x: no name node is active .*haadmin"):
                storage.size_bytes("webhdfs://prod/t/x")


def test_a_name_node_that_is_down_is_passed_over(cluster: Cluster, tmp_path: Path) -> None:
    with hdfs_cluster() as gone:
        ports = [*gone.name_ports, *cluster.name_ports]
    write_site(tmp_path, "prod", Cluster(name_ports=ports))
    with clients_of({"HADOOP_CONF_DIR": str(tmp_path)}):
        write("webhdfs://prod/t/x")
    assert cluster.files() == {"/t/x": DATA}


@pytest.mark.parametrize("fault", ["lost", "drop"])
def test_a_rename_whose_reply_is_lost_is_made_once(cluster: Cluster, url: str, fault: str) -> None:
    cluster.fail("name", "RENAME", fault)
    write(f"{url}/x")
    assert cluster.files() == {"/t/x": DATA}
    assert len(cluster.queries("name", "RENAME")) == 2


def test_a_rename_never_replaces_a_file(cluster: Cluster, url: str) -> None:
    cluster.put("/t/a", b"a")
    cluster.put("/t/b", b"b")
    with pytest.raises(FileExistsError, match="refuses to rename"):
        storage.filesystem(url).mv(f"{url}/a", f"{url}/b")
    assert cluster.files() == {"/t/a": b"a", "/t/b": b"b"}


def test_a_gateway_that_cannot_replace_a_file_says_so(
    cluster: Cluster, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = cluster.rename
    monkeypatch.setattr(
        cluster, "rename", lambda source, target, option: rename(source, target, "")
    )
    write(f"{url}/x", b"first")
    with pytest.raises(StoreError, match="the gateway knows no rename that replaces a file"):
        write(f"{url}/x", b"second")
    assert cluster.files() == {"/t/x": b"first"}


class Gateway(NameNodeHandler):
    """Sends the bytes of files itself, as HttpFS does."""

    def _checked(self, op: str, path: str, query: dict[str, str], fault: Any) -> None:
        if op != "OPEN":
            super()._checked(op, path, query, fault)
            return
        first = int(query["offset"])
        self._answer(200, self.cluster.files()[path][first : first + int(query["length"])])


def test_a_gateway_sends_files_without_a_data_node(cluster: Cluster, tmp_path: Path) -> None:
    cluster.put("/t/x", DATA)
    with serving(Gateway, cluster=cluster) as port:
        url = f"webhdfs://127.0.0.1:{port}/t/x"
        with storage.open_read(url) as file:
            file.seek(1_000)
            assert file.read(500_000) == DATA[1_000:501_000]
        item = StageItem(key=0, url=url, size_bytes=len(DATA))
        with (
            Stager(Staging(directory=str(tmp_path), mode="whole")) as stager,
            next(stager.stage([item])) as staged,
        ):
            assert staged.path is not None
            assert staged.path.read_bytes() == DATA
    assert not cluster.queries("data", "OPEN")


def test_of_many_writers_of_one_new_file_exactly_one_succeeds(cluster: Cluster, url: str) -> None:
    together, won = threading.Barrier(8), list[bytes]()

    def put(data: bytes) -> None:
        together.wait(60)
        if storage.put_new(f"{url}/x", data):
            won.append(data)

    run_together(*(partial(put, b"%d" % index) for index in range(8)))
    assert len(won) == 1
    assert cluster.files() == {"/t/x": won[0]}


@pytest.mark.parametrize("fault", ["lost", "drop", 503])
def test_a_new_file_whose_rename_is_not_answered_is_ours(
    cluster: Cluster, url: str, fault: object
) -> None:
    # The first rename publishes the hidden file, the second gives it its name.
    cluster.fail("name", "RENAME", None, fault)
    assert storage.put_new(f"{url}/x", b"ours")
    assert cluster.files() == {"/t/x": b"ours"}
    assert not cluster.faults["name", "RENAME"]


def test_a_new_file_whose_name_is_taken_meanwhile_is_not_ours(cluster: Cluster, url: str) -> None:
    cluster.fail("name", "RENAME", None, lambda: cluster.put("/t/x", b"theirs"))
    assert not storage.put_new(f"{url}/x", b"ours")
    assert cluster.files() == {"/t/x": b"theirs"}


def test_a_new_file_on_a_store_that_stays_broken_is_an_error(cluster: Cluster, url: str) -> None:
    cluster.fail("name", "RENAME", None, *(5 * ["drop"]))
    with pytest.raises(StoreError, match="t/x: "):
        storage.put_new(f"{url}/x", b"ours")
    assert cluster.files() == {}


def test_a_cluster_that_demands_kerberos_is_told_apart_from_one_that_refuses_a_user(
    cluster: Cluster, url: str
) -> None:
    cluster.put("/t/x", DATA)
    cluster.read_only.add("ann")
    with pytest.raises(AccessError, match=r"Permission denied: user=ann|refuses access"):
        write(f"{url}/y")
    cluster.is_secure = True
    with pytest.raises(
        AccessError,
        match=r"t/x: 127\.0\.0\.1:\d+ refuses access \(.*the server demands Kerberos: the package "
        r"requests-kerberos is not installed.*; run `kinit` and install featstore-pipeline\[hdfs-kerberos\], "
        r"or set FEATSTORE_HDFS_TOKEN",
    ):
        storage.size_bytes(f"{url}/x")


def test_a_delegation_token_is_passed_on_to_the_data_nodes(cluster: Cluster, url: str) -> None:
    cluster.is_secure = True
    cluster.tokens.add("KAAKS2Vybml0")
    with clients_of({"FEATSTORE_HDFS_TOKEN": "KAAKS2Vybml0", "HADOOP_USER_NAME": "ann"}):
        write(f"{url}/x")
        assert read(f"{url}/x") == DATA
    for kind, op in (("name", "OPEN"), ("data", "OPEN"), ("data", "CREATE")):
        (query, *_) = cluster.queries(kind, op)
        assert (query["delegation"], "user.name" in query) == ("KAAKS2Vybml0", False)


def test_a_token_that_is_not_valid_any_more_is_named_and_never_shown(
    cluster: Cluster, url: str
) -> None:
    cluster.is_secure = True
    with clients_of({"FEATSTORE_HDFS_TOKEN": "KAAKS2Vybml0"}):
        with pytest.raises(
            AccessError, match=r"refuses the delegation token .*FEATSTORE_HDFS_TOKEN to a new one"
        ) as caught:
            storage.size_bytes(f"{url}/x")
        assert "KAAKS2Vybml0" not in str(caught.value)


def test_the_token_of_a_redirect_is_not_shown_if_the_data_node_is_down(
    cluster: Cluster, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.put("/t/x", DATA)
    cluster.is_secure = True
    with hdfs_cluster() as gone:
        cluster.data_ports[:] = gone.data_ports
    _kerberos(monkeypatch)
    with pytest.raises(OSError, match=r"\(127\.0\.0\.1:\d+\)|127\.0\.0\.1:\d+") as caught:
        read(f"{url}/x")
    assert cluster.tokens
    assert not [token for token in cluster.tokens if token in str(caught.value)]


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("", "a redirect whose Location is missing"),
        ("foo://h:1/x?delegation=SECRET", "whose Location is no URL of HTTP"),
        ("http://h:99999999/x?delegation=SECRET", "whose Location is no URL of HTTP"),
        ("http://[::1/x?delegation=SECRET", "whose Location is no URL of HTTP"),
        (
            f"http://{'h' * 64}/x?op=a b&delegation=SECRET",
            "LocationParseError: the URL of a request is invalid",
        ),
        ("http://127.0.0.1:1/x?op=a&delegation=SECRET", "127.0.0.1:1 refuses the connection"),
        ("http://h.invalid/x?op=a&delegation=SECRET", "the name of h.invalid.* does not resolve"),
    ],
)
def test_a_redirect_to_nowhere_is_told_without_its_token(
    cluster: Cluster, url: str, location: str, said: str
) -> None:
    cluster.put("/t/x", DATA)
    cluster.redirected = lambda _: location
    with pytest.raises(StoreError, match=said) as caught:
        read(f"{url}/x")
    assert "SECRET" not in "".join(traceback.format_exception(caught.value))


def test_a_relative_redirect_is_followed_to_the_host_that_gave_it(cluster: Cluster) -> None:
    """As of a gateway that sends the bytes of files itself."""

    class Redirecting(Gateway):
        def _checked(self, op: str, path: str, query: dict[str, str], fault: Any) -> None:
            if op == "OPEN" and "again" not in query:
                self._answer(307, Location=f"{self.path}&again=1")
            else:
                super()._checked(op, path, query, fault)

    cluster.put("/t/x", DATA)
    with serving(Redirecting, cluster=cluster) as port:
        assert read(f"webhdfs://127.0.0.1:{port}/t/x") == DATA


def test_the_url_of_a_redirect() -> None:
    asked = "https://gateway:8443/webhdfs/v1/t/x?op=OPEN"
    assert redirect_of(asked, "/data/x?a=b") == "https://gateway:8443/data/x?a=b"
    assert redirect_of(asked, "//node:1/x") == "https://node:1/x"
    assert redirect_of(asked, "http://[::1]:1/x?a=b") == "http://[::1]:1/x?a=b"
    for location in ("", "ftp://h/x", "http://h:0/x", "http://h:x/", "mailto:a?b=c"):
        with pytest.raises(HdfsError, match=r"Location is .* \(host='gateway', port=8443\)"):
            redirect_of(asked, location)


@pytest.mark.parametrize(
    "body", [b"<html>login</html>", b'{"x": 1}', b"[]", b'{"FileStatus": {"type": 1}}', b"null"]
)
def test_an_answer_that_is_none_of_webhdfs_is_told(
    cluster: Cluster, url: str, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    """As of a gateway's page to log in."""

    def answer(self: NameNodeHandler, value: Any, status: int = 200) -> None:
        self._answer(200, body)

    write(f"{url}/x")
    monkeypatch.setattr(NameNodeHandler, "_answer_json", answer)
    files = storage.filesystem(url)
    told = r"t: the store failed .*found HTTP 200 with a body that is none of WebHDFS"
    for act in (files.info, files.ls, partial(files.mv, path2=f"{url}/y")):
        with pytest.raises(StoreError, match=told), as_store_errors(url):
            act(f"{url}/x")


def _kerberos(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of requests-kerberos, which needs a Kerberos server: a ticket of the test."""

    class HTTPKerberosAuth(requests.auth.AuthBase):  # type: ignore[misc]
        def __init__(self, mutual_authentication: object) -> None:
            pass

        def __call__(self, request: Any) -> Any:
            request.headers["Authorization"] = TICKET
            return request

    module = types.ModuleType("requests_kerberos")
    module.__spec__ = types.SimpleNamespace()  # type: ignore[assignment]
    module.__dict__.update(HTTPKerberosAuth=HTTPKerberosAuth, OPTIONAL=2)
    monkeypatch.setitem(sys.modules, "requests_kerberos", module)
    forget_clients()


def test_with_a_ticket_data_nodes_are_asked_with_the_token_of_the_redirect(
    cluster: Cluster, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.is_secure = True
    _kerberos(monkeypatch)
    write(f"{url}/x")
    assert read(f"{url}/x") == DATA
    assert all(query["delegation"] in cluster.tokens for query in cluster.queries("data", "OPEN"))
    monkeypatch.setattr("tests.webhdfs_server.TICKET", "Negotiate another")
    with pytest.raises(AccessError, match="no valid ticket was found"):
        storage.size_bytes(f"{url}/x")


def test_a_password_is_sent_to_the_name_nodes_host_only() -> None:
    """Data nodes of the test have the name node's address, so a host of another name is asked."""
    sent: list[str | None] = []
    client = WebHdfs(("gateway:1",), user="ann", password="Sk3yPass", skip_instance_cache=True)

    class Adapter(requests.adapters.BaseAdapter):  # type: ignore[misc]
        def send(self, request: Any, **options: Any) -> requests.Response:
            sent.append(request.headers.get("Authorization"))
            answer = requests.Response()
            answer.status_code, answer._content = 200, b"{}"
            return answer

        def close(self) -> None:
            pass

    client.session.mount("http://", Adapter())
    client._send("get", "http://gateway:1/webhdfs/v1/x")
    client._send("get", "http://data-node:2/webhdfs/v1/x")
    assert [bool(header) for header in sent] == [True, False]


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of one's own for `localhost`, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = tmp_path / "own.pem"
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


def test_a_name_node_whose_certificate_nobody_vouches_for_is_refused(
    cluster: Cluster, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    cluster.put("/t/x", DATA)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with serving(NameNodeHandler, tls=context, cluster=cluster) as port:
        url = f"swebhdfs://localhost:{port}/t/x"
        with clients_of({}), pytest.raises(StoreError, match="agree on no TLS connection"):
            storage.size_bytes(url)
        with clients_of({"SSL_CERT_FILE": str(certificate)}):
            assert storage.size_bytes(url) == len(DATA)
            monkeypatch.setenv("REQUESTS_CA_BUNDLE", certifi.where())
            assert storage.size_bytes(url) == len(DATA)


def test_a_quota_that_is_full_is_a_full_disk(
    cluster: Cluster, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise RemoteError(403, "DSQuotaExceededException", "The DiskSpace quota of /t is exceeded")

    cluster.fail("data", "CREATE", refuse)
    with pytest.raises(DiskFullError, match="DiskSpace quota of /t is exceeded"):
        write(f"{url}/x")


@pytest.mark.parametrize("last_bytes", [3 << 20, 5_000])
def test_a_full_disk_of_temporary_files_is_not_the_stores(
    cluster: Cluster, url: str, small_disk: Path, monkeypatch: pytest.MonkeyPatch, last_bytes: int
) -> None:
    """It is met by a write, or as the file is closed, where 5,000 bytes are still in a buffer."""
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    monkeypatch.setattr("featstore.files.hdfs_files._SPOOLED_BYTES", 10)

    def write_on_full_disk() -> None:
        with storage.open_write(f"{url}/x") as file:
            file.write(b"more than is kept in memory")
            fill(small_disk)
            file.write(bytes(last_bytes))

    told = rf"/t/x on HDFS cannot be kept in {small_disk} until .*: No space left .*; make room .*TMPDIR"
    with pytest.raises(DiskFullError, match=told):
        write_on_full_disk()
    assert not cluster.files()


def test_a_place_of_temporary_files_that_is_gone_is_no_missing_file(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with (
        pytest.raises(
            StoreError, match=r"x on HDFS cannot be kept in .*/gone .*: No such file .*TMPDIR"
        ),
        storage.open_write(f"{url}/x") as file,
    ):
        file.write(bytes(9 << 20))


def test_a_name_node_in_safe_mode_is_named(cluster: Cluster, url: str) -> None:
    cluster.is_in_safe_mode = True
    with pytest.raises(StoreError, match=r"the name node is in safe mode .*dfsadmin"):
        write(f"{url}/x")


def test_a_broken_stream_of_a_staged_file_is_continued(
    cluster: Cluster, url: str, tmp_path: Path
) -> None:
    """More often than the client itself tries."""
    data = DATA * 3
    cluster.put("/t/x", data)
    cluster.fail("data", "OPEN", *(6 * ["cut"]))
    source = Source(retry=RetryPolicy(first_pause_s=0.01))
    with Stager(Staging(directory=str(tmp_path)), source) as stager:
        with next(stager.stage([StageItem(key=0, url=f"{url}/x", size_bytes=len(data))])) as staged:
            assert staged.path is not None
            assert staged.path.read_bytes() == data
        assert stager.stats().num_retries >= 6
    assert not cluster.faults["data", "OPEN"]
    offsets = [int(query["offset"]) for query in cluster.queries("data", "OPEN")]
    assert offsets.count(0) == 1


@pytest.mark.parametrize(
    "words",
    [
        "Zero blocklocations for /t/x. Name node is in safe mode.",
        "Failed to find datanode, suggest to check cluster health.",
        "No live nodes contain current block",
        "Namenode is in startup mode",
    ],
)
def test_a_name_node_that_starts_is_waited_for(
    cluster: Cluster, url: str, tmp_path: Path, words: str
) -> None:

    def refuse() -> None:
        raise RemoteError(403, "IOException", words)

    cluster.put("/t/x", DATA)
    cluster.fail("name", "OPEN", *(60 * [refuse]))
    source = Source(retry=RetryPolicy(first_pause_s=0.01, longest_pause_s=0.02))
    item = StageItem(key=0, url=f"{url}/x", size_bytes=len(DATA))
    with (
        Stager(Staging(directory=str(tmp_path)), source) as stager,
        next(stager.stage([item])) as staged,
    ):
        assert staged.path is not None
        assert staged.path.read_bytes() == DATA
    assert not cluster.faults["name", "OPEN"]


def test_a_file_is_removed_once_and_a_directory_is_listed(cluster: Cluster, url: str) -> None:
    for name in ("k=a%20b/x.parquet", "k=c/y.parquet"):
        write(f"{url}/{name}", name.encode())
    found = listings.list_files(url)
    assert [entry.name for entry in found] == ["k=a%20b/x.parquet", "k=c/y.parquet"]
    assert [read(entry.url).decode() for entry in found] == [entry.name for entry in found]
    storage.delete(found[0].url)
    storage.delete(found[0].url)
    assert list(cluster.files()) == ["/t/k=c/y.parquet"]


def test_a_second_name_is_a_copy(cluster: Cluster, url: str) -> None:
    write(f"{url}/x")
    storage.link(f"{url}/x", f"{url}/y")
    assert cluster.files() == {"/t/x": DATA, "/t/y": DATA}
    sink = io.BytesIO()
    assert storage.fetch(f"{url}/y", sink) == len(DATA)


def test_without_requests_the_missing_package_is_named() -> None:
    code = (
        "import sys; sys.modules['requests'] = None; from featstore.files import storage;"
        "storage.size_bytes('webhdfs://nn:9870/x')"
    )
    said = run_python(code, status=1).stderr
    assert re.search(
        r"ConfigError: webhdfs://nn:9870/x: no file system for webhdfs:// .*install featstore-pipeline\[hdfs\]",
        said,
    )


@pytest.mark.parametrize(
    ("status", "exception", "kind", "text"),
    [
        (404, ("FileNotFoundException", "no x"), FileNotFoundError, "no x"),
        (403, ("FileAlreadyExistsException", "x"), FileExistsError, "x"),
        (403, ("AccessControlException", "x\n\tat org"), PermissionError, r"x \(host"),
        (403, ("IOException", "x"), HdfsError, "IOException: x"),
        (403, None, PermissionError, "HTTP 403"),
        (401, None, PermissionError, "HTTP 401"),
        (503, None, HdfsError, "HTTP 503"),
    ],
)
def test_the_name_of_an_exception_decides_and_else_the_status(
    status: int, exception: tuple[str, str] | None, kind: type[OSError], text: str
) -> None:
    named = exception and {"exception": exception[0], "message": exception[1]}
    error = error_of(status, {}, named, "nn:9870")
    assert type(error) is kind
    with pytest.raises(kind, match=text):
        raise error


@pytest.mark.parametrize(
    ("status", "name", "is_passing"),
    [
        (403, "StandbyException", True),
        (403, "RetriableException", True),
        (403, "SafeModeException", True),
        (403, "IOException", False),
        (500, "NullPointerException", False),
        (502, "", True),
        (429, "", True),
        (400, "", False),
    ],
)
def test_only_what_may_pass_is_tried_again(status: int, name: str, is_passing: bool) -> None:
    error = error_of(status, {}, name and {"exception": name, "message": ""}, "nn:9870")
    assert isinstance(error, HdfsError)
    assert error.is_passing is is_passing


@pytest.mark.slow
def test_hadoops_own_client_reads_our_files_and_we_read_its(cluster: Cluster, url: str) -> None:
    """It shows that the test's cluster is one for Hadoop 3.5, whose client is in Spark's jars, and
    that Hadoop's client sends the `renameoptions` that ours sends.
    """
    write(f"{url}/ours.bin")
    home = java_environment(os.environ).get("JAVA_HOME") or os.environ.get("JAVA_HOME", "/usr")
    java = Path(home, "bin", "java")
    if not java.with_name("javac").exists():
        pytest.skip(f"{java} is no JDK, which compiles the program of this test")
    jars = Path(pyspark.__file__).parent / "jars"
    program = Path(__file__).with_name("HadoopClient.java")
    command = [str(java), "-cp", f"{jars}/*", str(program), url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        f"ours.bin {len(DATA)}",
        f"sum {sum(DATA)}",
        "renamed over a file false",
        "renamed true",
        "deleted false",
    ], done.stderr
    assert cluster.files() == {"/t/ours.bin": DATA, "/t/renamed.bin": b"written again"}
    assert read(f"{url}/renamed.bin") == b"written again"
    *_, theirs = cluster.queries("name", "RENAME")
    write(f"{url}/ours.bin")
    *_, ours = cluster.queries("name", "RENAME")
    assert ours["renameoptions"] == theirs["renameoptions"] == "OVERWRITE"
