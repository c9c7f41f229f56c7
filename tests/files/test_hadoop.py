import gc
import os
import pwd
import re
from pathlib import Path

import pytest

from featstore.base.errors import ConfigError, StagingError, StoreError
from featstore.files import storage
from featstore.files.hadoop import hadoop_properties, name_nodes_of, rpc_options, web_options
from featstore.files.hdfs_rpc import HdfsRpc
from tests.forks import in_a_fork
from tests.programs import run_python
from tests.store_clients import clients_of, forget_clients

SITE = """<?xml version="1.0"?>
<configuration>
  <property><name>dfs.nameservices</name><value>prod</value></property>
  <property><name>dfs.ha.namenodes.prod</name><value>a, b</value></property>
  <property><name>dfs.namenode.http-address.prod.a</name><value>nn-a:9870</value></property>
  <property><name>dfs.namenode.http-address.prod.b</name><value> nn-b:9870 </value></property>
  <property><name>dfs.namenode.https-address.prod.b</name><value>nn-b:9871</value></property>
</configuration>
"""


CORE = """<configuration>
  <property><name>fs.defaultFS</name><value>hdfs://prod</value></property>
</configuration>"""


@pytest.fixture
def conf(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "hdfs-site.xml").write_text(SITE)
    (tmp_path / "core-site.xml").write_text(CORE)
    return {"HADOOP_CONF_DIR": str(tmp_path)}


@pytest.mark.parametrize(
    ("url", "name_nodes", "is_secure"),
    [
        ("webhdfs://prod/t", ("nn-a:9870", "nn-b:9870"), False),
        ("swebhdfs://prod/t", ("nn-b:9871",), True),
        ("webhdfs://prod:50070/t", ("prod:50070",), False),  # with a port it is a host
        ("webhdfs://other/t", ("other:9870",), False),
        ("swebhdfs://other/t", ("other:9871",), True),
        ("webhdfs://[::1]:1234/t", ("[::1]:1234",), False),
    ],
)
def test_a_name_service_has_the_name_nodes_of_its_configuration(
    conf: dict[str, str], url: str, name_nodes: tuple[str, ...], is_secure: bool
) -> None:
    options = web_options(url, conf)
    assert (options["name_nodes"], options["is_secure"]) == (name_nodes, is_secure)


def test_credentials_come_from_the_url_then_from_a_token_then_from_the_users_name() -> None:
    name, token = {"HADOOP_USER_NAME": "ann"}, {"FEATSTORE_HDFS_TOKEN": "abc"}

    def credentials(url: str, environment: dict[str, str]) -> dict[str, object]:
        options = web_options(url, environment)
        return {key: options[key] for key in ("user", "password", "token") if options.get(key)}

    assert credentials("webhdfs://bob:p%40ss@nn:1/t", name | token) == {
        "user": "bob",
        "password": "p@ss",
    }
    assert credentials("webhdfs://bob@nn:1/t", name | token) == {"user": "bob"}
    assert credentials("webhdfs://nn:1/t", name | token) == {"token": "abc"}
    assert credentials("webhdfs://nn:1/t", name) == {"user": "ann"}
    system_user = pwd.getpwuid(os.geteuid()).pw_name
    assert credentials("webhdfs://nn:1/t", {}) == {"user": system_user}


def test_with_kerberos_the_ticket_says_who_asks(tmp_path: Path) -> None:
    (tmp_path / "core-site.xml").write_text(
        "<configuration><property><name>hadoop.security.authentication</name>"
        "<value>kerberos</value></property></configuration>"
    )
    assert web_options("webhdfs://nn:1/t", {"HADOOP_CONF_DIR": str(tmp_path)})["user"] is None


def test_a_certificate_of_ones_own_is_checked() -> None:
    options = web_options("swebhdfs://nn:1/t", {"SSL_CERT_FILE": "/etc/own.pem"})
    assert options["certificates"] == "/etc/own.pem"


def test_without_a_configuration_there_is_no_name_service(tmp_path: Path) -> None:
    assert hadoop_properties(tmp_path / "hdfs-site.xml") == {}
    assert name_nodes_of("prod", {"dfs.ha.namenodes.prod": "a,b"}, is_secure=False) == ()


def test_a_configuration_that_is_no_xml_is_named(tmp_path: Path) -> None:
    (tmp_path / "hdfs-site.xml").write_text("<configuration><property>")
    with pytest.raises(OSError, match=r"hdfs-site\.xml is not a configuration file of Hadoop"):
        hadoop_properties(tmp_path / "hdfs-site.xml")


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("hdfs://nn:9000/t", "hdfs://nn:9000"),
        ("hdfs://nn/t", "hdfs://nn:8020"),  # it is no name service
        ("hdfs://prod/t", "hdfs://prod"),
        ("hdfs:///t", "hdfs://prod"),
        ("hdfs://[::1]:1234/t", "hdfs://[::1]:1234"),
        ("viewfs://mounts/t", "viewfs://mounts"),
    ],
)
def test_a_url_of_hdfs_has_the_name_service_or_the_name_node(
    conf: dict[str, str], url: str, root: str
) -> None:
    assert rpc_options(url, conf)["root"] == root


@pytest.mark.parametrize("scheme", ["hdfs", "webhdfs"])
def test_a_name_service_may_have_upper_case_letters(
    conf: dict[str, str], tmp_path: Path, scheme: str
) -> None:
    (tmp_path / "hdfs-site.xml").write_text(SITE.replace("prod", "Prod"))
    (tmp_path / "core-site.xml").write_text(CORE.replace("prod", "Prod"))
    if scheme == "webhdfs":
        for url in ("webhdfs://Prod/t", "webhdfs://ann@Prod/t"):
            assert web_options(url, conf)["name_nodes"] == ("nn-a:9870", "nn-b:9870")
        return
    for url in ("hdfs://Prod/t", "hdfs:///t"):
        assert rpc_options(url, conf)["root"] == "hdfs://Prod"
    (tmp_path / "core-site.xml").write_text(CORE.replace("hdfs://prod", "viewfs://Mounts"))
    for url in ("viewfs://Mounts/t", "viewfs:///t", "viewfs://Mounts:/t"):
        assert rpc_options(url, conf)["root"] == "viewfs://Mounts"


def test_the_client_has_the_properties_of_both_files_without_spaces(conf: dict[str, str]) -> None:
    config = rpc_options("hdfs://prod/t", conf)["config"]
    assert config["dfs.ha.namenodes.prod"] == "a,b"
    assert config["dfs.namenode.http-address.prod.b"] == "nn-b:9870"
    assert config["fs.defaultFS"] == "hdfs://prod"


@pytest.mark.parametrize(
    "name", ["HADOOP_USER_NAME", "HADOOP_PROXY_USER", "HADOOP_TOKEN_FILE_LOCATION", "KRB5CCNAME"]
)
def test_clients_of_different_users_are_not_shared(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def client_as(value: str) -> HdfsRpc:
        monkeypatch.setenv(name, value)
        found = storage.filesystem("hdfs://nn:1/t")
        assert isinstance(found, HdfsRpc)
        return found

    ann, bob = client_as("ann"), client_as("bob")
    assert ann is client_as("ann")
    assert ann._shared is not bob._shared


def test_a_mount_table_without_a_fallback_is_told(
    conf: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", conf["HADOOP_CONF_DIR"])
    link = "<property><name>fs.viewfs.mounttable.M.link./t</name><value>hdfs://nn:1/t</value>"
    (tmp_path / "core-site.xml").write_text(f"<configuration>{link}</property></configuration>")
    with pytest.raises(
        StoreError,
        match=r"viewfs://M/t/x: M is no mount table with a fallback, .*; check the name, and set "
        r"fs\.viewfs\.mounttable\.NAME\.linkFallback .* or use hdfs:// URLs",
    ):
        storage.size_bytes("viewfs://M/t/x")


def test_a_home_of_hadoop_has_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "etc" / "hadoop").mkdir(parents=True)
    (tmp_path / "etc" / "hadoop" / "hdfs-site.xml").write_text(SITE)
    assert rpc_options("hdfs://prod/t", {"HADOOP_HOME": str(tmp_path)})["root"] == "hdfs://prod"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("hdfs:///t", r"hdfs:///t: expected a host, or hdfs:// as fs\.defaultFS .* found neither"),
        ("viewfs:///t", "expected a host, or viewfs:// as fs.defaultFS"),
        ("hdfs://ann:Sk3y@nn/t", "hdfs://nn/t: found a user in the URL.*HADOOP_USER_NAME"),
    ],
)
def test_a_url_that_does_not_say_where_or_says_who_is_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        rpc_options(url, {})
    assert "Sk3y" not in str(raised.value)


def test_a_configuration_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "hdfs-site.xml"
    for text in ("a", "longer"):
        path.write_text(
            f"<configuration><property><name>x</name><value>{text}</value></property>"
            "</configuration>"
        )
        assert hadoop_properties(path) == {"x": text}


def test_without_the_client_an_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['hdfs_native'] = None; from featstore.files import storage;"
        "storage.size_bytes('hdfs://nn:8020/x')"
    )
    said = run_python(code, status=1).stderr
    assert re.search(
        r"ConfigError: hdfs://nn:8020/x: no file system for hdfs:// \(install featstore-pipeline\[hdfs\]\)",
        said,
    )


def test_a_child_that_is_forked_from_a_user_of_the_client_is_told_so() -> None:
    url = "hdfs://127.0.0.1:1/x"
    with pytest.raises(StoreError, match="refuses the connection"):
        storage.size_bytes(url)

    def read_in_child() -> None:
        with pytest.raises(StagingError, match=r"127\.0\.0\.1:1/x cannot be read .*by 'spawn'"):
            storage.size_bytes(url)

    assert in_a_fork(read_in_child) == 0


def test_a_forked_child_that_drops_the_clients_does_not_wait_for_their_threads() -> None:
    with clients_of({}):
        with pytest.raises(StoreError, match="refuses the connection"):
            storage.size_bytes("hdfs://127.0.0.1:1/x")

        def drop_in_child() -> None:
            forget_clients()
            gc.collect()

        assert in_a_fork(drop_in_child) == 0
