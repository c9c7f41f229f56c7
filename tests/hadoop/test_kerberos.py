"""Both clients of HDFS against one with Kerberos: with a ticket, and what is said without one."""

import ctypes
import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from featstore.base.errors import AccessError, StoreError
from featstore.files import listings, storage
from tests.hadoop.clusters import PROTECTION, HadoopCluster, secured_cluster, write_site
from tests.hadoop.test_hadoop_clients import DATA, read, write
from tests.store_clients import clients_of

pytestmark = pytest.mark.slow
CORE = {"hadoop.security.authentication": "kerberos"}
HAS_REST = importlib.util.find_spec("requests_kerberos") is not None
SHORT_S = 10.0


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HadoopCluster]:
    try:
        ctypes.CDLL("libgssapi_krb5.so.2")
    except OSError:
        pytest.skip("libgssapi_krb5 is not installed: `make servers` installs it")
    with secured_cluster(tmp_path_factory.mktemp("secured")) as cluster:
        yield cluster


def variables(
    cluster: HadoopCluster, site: Path, core: Mapping[str, str], hdfs: Mapping[str, str]
) -> dict[str, str]:
    """The variables of a client with this configuration, which has a ticket."""
    for name, properties in (("core", core), ("hdfs", hdfs)):
        write_site(site / f"{name}-site.xml", properties)
    return cluster.environment | {"HADOOP_CONF_DIR": str(site)}


def lives(url: str) -> None:
    """Writes, reads, lists and renames."""
    write(f"{url}/x")
    assert read(f"{url}/x") == DATA
    assert storage.put_new(f"{url}/y", b"y")
    assert not storage.put_new(f"{url}/y", b"z")
    with pytest.raises(FileExistsError):
        storage.filesystem(url).mv(f"{url}/x", f"{url}/y")
    assert read(f"{url}/y") == b"y"
    assert [file.name for file in listings.list_own(url)] == ["x", "y"]


@pytest.mark.parametrize("protection", ["authentication", "integrity", "privacy"])
def test_with_a_ticket_files_are_read_and_written(
    secured: HadoopCluster, tmp_path: Path, protection: str
) -> None:
    with clients_of(variables(secured, tmp_path, CORE, {PROTECTION: protection})):
        lives(f"{secured.root('hdfs')}/{protection}")


@pytest.mark.parametrize(
    ("ticket", "said"),
    [("none", r"No Kerberos credentials available \(.*none\)"), ("short", "Ticket expired")],
)
def test_without_a_valid_ticket_the_error_says_so_and_what_to_do(
    secured: HadoopCluster, tmp_path: Path, ticket: str, said: str
) -> None:
    assert secured.kerberos is not None
    path = secured.kerberos / ticket
    if path.exists():
        time.sleep(max(0.0, path.stat().st_mtime + SHORT_S + 1 - time.time()))
    url = f"{secured.root('hdfs')}/x"
    ours = variables(secured, tmp_path, CORE, {PROTECTION: "privacy"}) | {"KRB5CCNAME": str(path)}
    with (
        clients_of(ours),
        pytest.raises(
            AccessError,
            match=rf"^{url}: localhost:\d+ refuses access \(.*demands Kerberos: {said} .*\); run "
            r"`kinit`",
        ),
    ):
        read(url)


@pytest.mark.parametrize(
    ("core", "act"), [({}, read), (CORE, read), (CORE, partial(write, data=b"x"))]
)
def test_a_client_that_is_configured_otherwise_than_the_cluster_is_told_where(
    secured: HadoopCluster, tmp_path: Path, core: Mapping[str, str], act: Callable[[str], object]
) -> None:
    url = f"{secured.root('hdfs')}/told"
    with clients_of(variables(secured, tmp_path, CORE, {PROTECTION: "integrity"})):
        write(f"{url}/x")
    said = "ends the connection .*hadoop.security.authentication .*dfs.data.transfer.protection"
    with (
        clients_of(variables(secured, tmp_path, core, {})),
        pytest.raises(StoreError, match=said),
    ):
        act(f"{url}/x")


@pytest.mark.skipif(HAS_REST, reason="requests-kerberos is installed")
def test_by_rest_the_error_says_which_package_is_missing(secured: HadoopCluster) -> None:
    with (
        clients_of(secured.environment),
        pytest.raises(AccessError, match=r"demands Kerberos: the package requests-kerberos is not"),
    ):
        read(f"{secured.root('webhdfs')}/x")


@pytest.mark.skipif(not HAS_REST, reason="requests-kerberos is not installed")
def test_by_rest_with_a_ticket_files_are_read_and_written(secured: HadoopCluster) -> None:
    with clients_of(secured.environment):
        lives(f"{secured.root('webhdfs')}/rest")
    with (
        clients_of(secured.environment | {"KRB5CCNAME": "/none"}),
        pytest.raises(AccessError, match="demands Kerberos: no valid ticket was found"),
    ):
        read(f"{secured.root('webhdfs')}/rest/x")
