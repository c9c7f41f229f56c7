"""Credentials are checked before a client is made, so that nothing waits for a metadata service
that does not exist.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from featstore.base.errors import AccessError, StoreError
from featstore.files import storage
from featstore.files.credentials import require_credentials, s3_endpoint, variables_of
from featstore.files.listings import list_files
from featstore.table.open import open_snapshot
from tests.http_servers import Handler, serving

ROOT = Path(__file__).parents[2]


@pytest.fixture
def silent() -> Iterator[tuple[str, list[socket.socket]]]:
    """The address of a server that accepts connections and never responds, and the connections."""
    met: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_accept, args=(server, met))
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", met
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in met:
        connection.close()


def _accept(server: socket.socket, met: list[socket.socket]) -> None:
    while True:
        try:
            met.append(server.accept()[0])
        except OSError:
            return


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An environment without variables of any store."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "GCE_", "IDENTITY_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return monkeypatch


USES: dict[str, Callable[[str], Any]] = {
    "open a table": lambda url: open_snapshot(url),
    "list": lambda url: list_files(url),
    "read": lambda url: storage.open_read(f"{url}/x"),
    "write": lambda url: storage.open_write(f"{url}/x").__enter__(),
}


@pytest.mark.parametrize("use", USES)
def test_s3_without_credentials_does_not_wait_for_a_metadata_service_that_never_answers(
    bare: pytest.MonkeyPatch, silent: tuple[str, list[socket.socket]], use: str
) -> None:
    address, met = silent
    bare.setenv("AWS_METADATA_ENDPOINT", address)
    with pytest.raises(
        AccessError, match=r"^s3://bucket/t.*: no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET"
    ) as found:
        USES[use]("s3://bucket/t")
    assert len(met) == 1, "a client that asks it again waits for an answer each time"
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("url", "named", "address"),
    [
        ("gs://b/t", "GOOGLE_APPLICATION_CREDENTIALS", "GCE_METADATA_HOST"),
        ("s3a://b/t", "AWS_ACCESS_KEY_ID", "AWS_EC2_METADATA_SERVICE_ENDPOINT"),
    ],
)
def test_other_clouds_without_credentials_do_not_wait_either(
    bare: pytest.MonkeyPatch,
    silent: tuple[str, list[socket.socket]],
    url: str,
    named: str,
    address: str,
) -> None:
    bare.setenv(address, silent[0].removeprefix("http://") if url.startswith("gs") else silent[0])
    with pytest.raises(AccessError, match=f"{url}/x: no credentials: set {named}"):
        storage.size_bytes(f"{url}/x")
    assert silent[1]


def test_a_service_that_must_not_be_asked_is_not(
    bare: pytest.MonkeyPatch, silent: tuple[str, list[socket.socket]]
) -> None:
    bare.setenv("AWS_METADATA_ENDPOINT", silent[0])
    bare.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(AccessError, match="no credentials"):
        require_credentials("s3://b/k", "s3", os.environ)
    assert silent[1] == []


@pytest.mark.parametrize("status", [200, 403])
def test_the_client_asks_a_metadata_service_that_answers(status: int) -> None:
    asked: list[str] = []

    class Answering(Handler):
        def do_PUT(self) -> None:  # noqa: N802
            asked.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with serving(Answering) as port:
        environment = {"AWS_METADATA_ENDPOINT": f"http://127.0.0.1:{port}"}
        if status == 200:
            for _ in range(3):
                require_credentials("s3://b/k", "s3", environment)
        else:
            with pytest.raises(AccessError):
                require_credentials("s3://b/k", "s3", environment)
    assert asked == ["/latest/api/token"]


@pytest.mark.parametrize(
    ("scheme", "name"),
    [(scheme, name) for scheme in ("s3", "gs", "az") for name in variables_of(scheme).given],
)
def test_each_way_to_give_credentials_is_recognised_unless_it_is_empty(
    scheme: str, name: str
) -> None:
    require_credentials(f"{scheme}://b/k", scheme, {name: "given"})
    nowhere = {"AWS_METADATA_ENDPOINT": "http://127.0.0.1:9", "GCE_METADATA_HOST": "127.0.0.1:9"}
    if scheme != "az":  # whose service is at one address only, where it may be
        with pytest.raises(AccessError):
            require_credentials(f"{scheme}://b/k", scheme, nowhere | {name: ""})


def test_a_login_of_gcloud_is_recognised(tmp_path: Path) -> None:
    place = tmp_path / ".config/gcloud/application_default_credentials.json"
    place.parent.mkdir(parents=True)
    place.write_text("{}")
    require_credentials("gs://b/k", "gs", {"HOME": str(tmp_path)})


def test_with_keys_but_no_region_a_table_opens_without_the_metadata_service(
    bare: pytest.MonkeyPatch, silent: tuple[str, list[socket.socket]]
) -> None:
    """The AWS SDK of delta-rs would ask it for the region, for seconds, and print warnings."""
    for name in ("AWS_METADATA_ENDPOINT", "AWS_EC2_METADATA_SERVICE_ENDPOINT"):
        bare.setenv(name, silent[0])
    bare.setenv("AWS_ACCESS_KEY_ID", "someone")
    bare.setenv("AWS_SECRET_ACCESS_KEY", "something")
    bare.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # never out of this machine
    with pytest.raises(StoreError, match=r"^s3://bucket/t: "):
        open_snapshot("s3://bucket/t")
    assert silent[1] == []


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({}, "https://s3.us-east-1.amazonaws.com"),
        ({"AWS_DEFAULT_REGION": "eu-west-1"}, "https://s3.eu-west-1.amazonaws.com"),
        ({"AWS_REGION": "eu-west-1", "AWS_ENDPOINT_URL": "http://minio"}, "http://minio"),
        (
            {"AWS_ENDPOINT_URL": "http://minio", "AWS_ENDPOINT_URL_S3": "http://other"},
            "http://other",
        ),
    ],
)
def test_the_address_of_s3_is_the_endpoint_or_that_of_the_region(
    environment: dict[str, str], url: str
) -> None:
    assert s3_endpoint(environment) == url


def test_the_documentation_of_stores_names_each_variable() -> None:
    page = (ROOT / "docs" / "stores.md").read_text()
    known = [variables_of(scheme) for scheme in ("s3", "gs", "az")]
    names = {name for store in known for name in (*store.given, store.plain_http)}
    names |= {name for store in known if store.metadata for name in store.metadata.variables}
    assert {name for name in names if name not in page} == set()
