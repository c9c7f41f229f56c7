"""Credentials are sent only to the store's own hosts. Two real servers, the first of which
redirects to the second.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from featstore.files.credentials import own_hosts_only
from tests.http_servers import Handler, serving
from tests.programs import run_python
from tests.tiers import tiered

SECRETS = ("AKID", "SECRET", "TOKEN", "SIGNATURE", "authorization", "x-amz-security-token")
BODY = b"x" * 100


@dataclass
class Site:
    """A server: the target of its redirects (empty: it responds itself), and the requests it
    received, with headers, as text.
    """

    port: int = 0
    target: str = ""
    requests: list[str] = field(default_factory=list)


class _Handler(Handler):
    site: Site

    def _answer(self) -> None:
        self.site.requests.append(f"{self.command} {self.path}\n{self.headers}")
        self.send_response(307 if self.site.target else 200)
        if self.site.target:
            self.send_header("Location", f"{self.site.target}/x.bin")
        self.send_header("Content-Length", "0" if self.site.target else str(len(BODY)))
        self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        self.end_headers()
        if self.command == "GET" and not self.site.target:
            self.wfile.write(BODY)


@pytest.fixture
def pair() -> Iterator[tuple[Site, Site]]:
    """A store, on 127.0.0.1, that redirects every request to another host, localhost."""
    store, other = Site(), Site()
    with serving(_Handler, site=store) as store.port, serving(_Handler, site=other) as other.port:
        store.target = f"http://localhost:{other.port}"
        yield store, other


CLIENT = """
import io, os, sys
from deltalake import DeltaTable
from featstore.files import storage
from featstore.files import listings
from featstore.files import transfer
from featstore.table import delta
url, what = sys.argv[1:]
acts = {
    "fetch": lambda: storage.fetch(url, io.BytesIO()),
    "size": lambda: storage.size_bytes(url),
    "read": lambda: list(transfer.read_span(url, 0, 100, size_bytes=100).blocks),
    "list": lambda: listings.list_files(url.rpartition("/")[0]),
    "open": lambda: DeltaTable(url, storage_options=delta._storage_options(url) | {"allow_http": "true"}),
}
try:
    acts[what]()
    print("done")
except OSError as error:
    print(type(error).__name__, error)
sys.stdout.flush()
os._exit(0)  # the client's threads may outlive Python's own end
"""


def _run(url: str, what: str, environment: dict[str, str]) -> str:
    return run_python(CLIENT, url, what, env=environment | {"PATH": "/usr/bin"}).stdout


def _stores(site: Site) -> dict[str, tuple[str, dict[str, str]]]:
    place = f"http://127.0.0.1:{site.port}"
    aws = {
        "AWS_ENDPOINT_URL": place,
        "AWS_ACCESS_KEY_ID": "AKID",
        "AWS_SECRET_ACCESS_KEY": "SECRET",
        "AWS_SESSION_TOKEN": "TOKEN",
        "AWS_REGION": "eu-central-1",
    }
    azure = {
        "AZURE_STORAGE_ENDPOINT": place,
        "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "AZURE_STORAGE_SAS_KEY": "sv=1&sig=SIGNATURE",
    }
    return {"s3": ("s3://bucket/x.bin", aws), "azure": ("az://bucket/x.bin", azure)}


@pytest.mark.parametrize(
    "what", tiered(["fetch", "size", "read", "list", "open"], lambda what: what == "open")
)
@pytest.mark.parametrize("store", ["s3", "azure"])
def test_a_store_that_redirects_to_another_host_gets_an_error_and_the_host_gets_nothing(
    pair: tuple[Site, Site], store: str, what: str
) -> None:
    home, stranger = pair
    url, environment = _stores(home)[store]
    said = _run(url, what, environment)
    assert any(secret in request for secret in SECRETS for request in home.requests), (
        "no credentials were sent at all"
    )
    assert stranger.requests == []
    assert ("OSError" if what == "open" else "redirects to another host") in said
    assert not any(secret in said for secret in SECRETS)


def test_a_redirect_within_the_host_is_followed(pair: tuple[Site, Site]) -> None:
    home, other = pair
    home.target = f"http://127.0.0.1:{other.port}"
    url, environment = _stores(home)["s3"]
    assert _run(url, "fetch", environment) == "done\n"


@pytest.mark.parametrize("what", ["fetch", "size", "read"])
def test_http_is_read_without_credentials_so_that_a_redirect_has_none_to_carry(
    pair: tuple[Site, Site], what: str
) -> None:
    home, stranger = pair
    assert _run(f"http://AKID:SECRET@127.0.0.1:{home.port}/x.bin", what, {}) == "done\n"
    assert home.requests
    assert stranger.requests
    assert not any(
        secret in request for secret in SECRETS for request in home.requests + stranger.requests
    )


def test_only_stores_whose_credentials_would_be_sent_along_are_restricted() -> None:
    assert own_hosts_only("http", {}) == own_hosts_only("gs", {}) == {}
    excludes = own_hosts_only("s3", {"aws_endpoint_url": "https://minio.example:9000"})[
        "proxy_excludes"
    ].split(",")
    assert {"minio.example", "amazonaws.com", "169.254.169.254"} <= set(excludes)
    assert own_hosts_only("abfss", {}) == own_hosts_only("az", {})
    assert (
        "localhost"
        in own_hosts_only("az", {"AZURE_STORAGE_USE_EMULATOR": "true"})["proxy_excludes"]
    )


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "http_proxy", "ALL_PROXY"])
def test_a_configured_proxy_is_respected(name: str) -> None:
    assert own_hosts_only("s3", {name: "http://proxy.example:3128"}) == {}
