"""A dispatch server with a certificate, and what its clients accept."""

import os
import re
import secrets
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from featstore.base.errors import DispatchError
from featstore.dispatch import serve
from featstore.dispatch.stores.address import bind
from featstore.dispatch.stores.endpoint import parse_endpoint
from featstore.dispatch.stores.server import DispatchServer
from featstore.dispatch.stores.tcp import TcpStore
from featstore.dispatch.stores.wire import CA_VARIABLE, TOKEN_VARIABLE
from tests.dispatch.stores.forwarder import Forwarder
from tests.dispatch.stores.served import ServerProcess
from tests.dispatch.stores.test_tcp import FORKED
from tests.programs import CLI, Program, run_python
from tests.threads import beside


class Certificate:
    """Files of a certificate for a host and of its authority."""

    def __init__(self, directory: Path, host: str = "127.0.0.1") -> None:
        authority = trustme.CA()
        issued = authority.issue_cert(host)
        self.ca, self.file = directory / f"ca-{host}.pem", directory / f"{host}.pem"
        self.key = directory / f"{host}.key"
        authority.cert_pem.write_to_path(self.ca)
        issued.private_key_pem.write_to_path(self.key)
        for pem in issued.cert_chain_pems:
            pem.write_to_path(self.file, append=True)

    @property
    def options(self) -> dict[str, Any]:
        return {"certificate": self.file, "key": self.key}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def server(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> Iterator[DispatchServer]:
    monkeypatch.setenv(CA_VARIABLE, str(certificate.ca))
    with serve(**certificate.options) as served:
        yield served


def test_a_handle_that_is_closed_in_a_handshake_ends_the_wait(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CA_VARIABLE, str(certificate.ca))
    monkeypatch.setattr("featstore.dispatch.stores.served._ATTEMPT_S", 100.0)
    with ServerProcess(**certificate.options) as server:
        store = bind(server.url, timeout_s=600).open()
        server.kill()
    assert isinstance(store, TcpStore)

    def ask() -> None:
        with pytest.raises(DispatchError, match="closed"):
            store.add("n", 1)

    with socket.create_server(("127.0.0.1", parse_endpoint(server.url).port)) as silent:
        with beside(ask):
            connection = silent.accept()[0]  # Says nothing.
            while not isinstance(store._connection, ssl.SSLSocket):
                time.sleep(0.001)
            began_s = time.monotonic()
            store.close()
        assert time.monotonic() - began_s < 50
        connection.close()


def test_damaged_records_close_the_connection_with_a_warning(
    server: DispatchServer, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(bind(server.url).open()) as store:
        assert isinstance(store, TcpStore)
        assert store.add("n", 1) == 1
        assert store._connection is not None
        os.write(store._connection.fileno(), b"no record of TLS" * 4)
        assert store.add("n", 1) == 2
    assert any("closed: [SSL" in record.getMessage() for record in caplog.records)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def refusal(url: str, timeout_s: float = 600) -> str:
    with pytest.raises(DispatchError) as caught:
        bind(url, timeout_s=timeout_s).open()
    return str(caught.value)


def test_a_run_over_a_server_of_the_command_line(certificate: Certificate, tmp_path: Path) -> None:
    arguments = ["dispatch", "serve", "--port", 0, "--file", tmp_path / "d.db"]
    arguments += ["--certificate", certificate.file, "--key", certificate.key]
    variables = {CA_VARIABLE: str(certificate.ca), TOKEN_VARIABLE: "secret"}
    script = """
import sys
from featstore.dispatch.stores.address import bind
store = bind(sys.argv[1]).open()
print(sys.argv[1].split(":")[0], store.add("n", 2), store.get_many(["n", "x" * 100_000]))
store.close()
"""
    with Program(CLI, *arguments, variables=variables) as program:
        found = run_python(script, program.line(), variables=variables).stdout
    assert found.split("\n")[0] == "tls 2 ['2', None]"


def test_nothing_can_be_read_on_the_way(server: DispatchServer) -> None:
    word = secrets.token_hex(16)
    with Forwarder(server.url) as between, closing(bind(between.url).open()) as store:
        store.set("key", word)
        assert store.get_many(["key"]) == [word]
    assert len(between.passed) > 4
    assert word.encode() not in b"".join(between.passed)


def test_requests_whose_replies_are_lost_are_done_once(
    certificate: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CA_VARIABLE, str(certificate.ca))
    losses = iter([False] * 12 + [True, *([False] * 9)] * 4)
    with (
        ServerProcess(file=tmp_path / "d.db", **certificate.options) as server,
        Forwarder(server.url, lambda: next(losses, False)) as between,
        closing(bind(between.url, timeout_s=600).open()) as store,
    ):
        assert [store.add("n", 1) for _ in range(40)] == list(range(1, 41))
        assert between.num_lost == 4
        server.kill()
        with server.again():
            assert store.add("n", 1) == 41


def test_forked_children_use_connections_of_their_own(server: DispatchServer) -> None:
    assert run_python(FORKED, server.url).stdout.strip() == "[0, 0, 0] 501"


def test_a_child_of_the_server_serves_nothing(server: DispatchServer) -> None:
    with closing(bind(server.url).open()) as store:
        assert store.add("n", 1) == 1
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert store.add("n", 1) == 2


def test_a_handle_that_is_closed_while_it_waits_ends_the_wait(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CA_VARIABLE, str(certificate.ca))
    with ServerProcess(**certificate.options) as server:
        store = bind(server.url, timeout_s=600).open()
        assert isinstance(store, TcpStore)
        server.stop()

        def ask() -> None:
            with pytest.raises(DispatchError, match="closed"):
                store.add("n", 1)

        with beside(ask):
            while not store._lock.locked():
                time.sleep(0.001)
            store.close()


def test_another_authority_is_refused_at_once(
    server: DispatchServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Certificate(tmp_path)
    monkeypatch.setenv(CA_VARIABLE, str(other.ca))
    assert re.search(rf"does not hold for 127.0.0.1: .*{other.ca}", refusal(server.url))
    monkeypatch.delenv(CA_VARIABLE)
    assert f"the list of the system ({CA_VARIABLE} " in refusal(server.url)
    for bad in (tmp_path / "missing.pem", other.key):
        monkeypatch.setenv(CA_VARIABLE, str(bad))
        assert f"{CA_VARIABLE}={bad} cannot be used" in refusal(server.url)


def test_a_certificate_of_another_host_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Certificate(tmp_path, "dispatch.internal")
    monkeypatch.setenv(CA_VARIABLE, str(other.ca))
    with serve(**other.options) as server:
        assert "does not hold for 127.0.0.1: IP address mismatch" in refusal(server.url)


def test_either_end_without_tls_is_told_so(server: DispatchServer) -> None:
    with serve() as plain:
        assert "does not speak TLS" in refusal(plain.url.replace("tcp:", "tls:"))
    found = refusal(server.url.replace("tls:", "tcp:"), timeout_s=1)
    assert "is its server running (`featstore dispatch serve` without --certificate)" in found


def test_a_token_is_asked_for_with_tls_too(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CA_VARIABLE, str(certificate.ca))
    with serve(token="right", **certificate.options) as server:
        assert "another token" in refusal(server.url)


def test_files_that_cannot_be_used_are_errors_before_anything_is_served(
    certificate: Certificate, tmp_path: Path
) -> None:
    locked = tmp_path / "locked.key"
    key = serialization.load_pem_private_key(certificate.key.read_bytes(), None)
    password = serialization.BestAvailableEncryption(b"word")
    pkcs8, pem = serialization.PrivateFormat.PKCS8, serialization.Encoding.PEM
    locked.write_bytes(key.private_bytes(pem, pkcs8, password))
    other = Certificate(tmp_path)
    for bad in (tmp_path / "none.pem", other.key, locked, certificate.ca):
        with pytest.raises(DispatchError, match=rf"certificate .*, key {bad}: cannot be used"):
            serve(certificate=certificate.file, key=bad)
    with pytest.raises(DispatchError, match="expected its certificate too"):
        serve(key=certificate.key)
