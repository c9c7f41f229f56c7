from pathlib import Path

import pytest
from fsspec.implementations.arrow import HadoopFileSystem

from featstore.files import storage
from featstore.files.hadoop import (
    hadoop_properties,
    libhdfs_options,
    missing_for_libhdfs,
    name_nodes_of,
    web_options,
)

SITE = """<?xml version="1.0"?>
<configuration>
  <property><name>dfs.nameservices</name><value>prod</value></property>
  <property><name>dfs.ha.namenodes.prod</name><value>a, b</value></property>
  <property><name>dfs.namenode.http-address.prod.a</name><value>nn-a:9870</value></property>
  <property><name>dfs.namenode.http-address.prod.b</name><value> nn-b:9870 </value></property>
  <property><name>dfs.namenode.https-address.prod.b</name><value>nn-b:9871</value></property>
</configuration>
"""


@pytest.fixture
def conf(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "hdfs-site.xml").write_text(SITE)
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
    assert credentials("webhdfs://nn:1/t", {}) == {}


def test_a_certificate_of_ones_own_is_checked() -> None:
    options = web_options("swebhdfs://nn:1/t", {"SSL_CERT_FILE": "/etc/own.pem"})
    assert options["session_verify"] == "/etc/own.pem"


def test_without_a_configuration_there_is_no_name_service(tmp_path: Path) -> None:
    assert hadoop_properties(tmp_path / "hdfs-site.xml") == {}
    assert name_nodes_of("prod", {"dfs.ha.namenodes.prod": "a,b"}, is_secure=False) == ()


def test_a_configuration_that_is_no_xml_is_named(tmp_path: Path) -> None:
    (tmp_path / "hdfs-site.xml").write_text("<configuration><property>")
    with pytest.raises(OSError, match=r"hdfs-site\.xml is not a configuration file of Hadoop"):
        hadoop_properties(tmp_path / "hdfs-site.xml")


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("hdfs://nn:8020/t", {"host": "nn", "port": 8020}),
        ("hdfs://ann@prod/t", {"host": "prod", "user": "ann"}),
        ("hdfs:///t", {"host": "default"}),
        ("viewfs://mounts/t", {"host": "viewfs://mounts"}),
        ("viewfs:///t", {"host": "viewfs://"}),
    ],
)
def test_libhdfs_is_told_the_mount_table_or_the_name_node(
    url: str, options: dict[str, object]
) -> None:
    assert libhdfs_options(url) == options
    assert HadoopFileSystem._strip_protocol(url) == "/t"


def test_what_libhdfs_lacks_is_named_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # long values are cut
    java, hadoop = Path("java"), Path("hadoop")
    environment = {
        "JAVA_HOME": str(java),
        "HADOOP_HOME": str(hadoop),
        "CLASSPATH": "/opt/hadoop/share/hadoop/common/*",
    }
    java_text, library_text, jars_text = missing_for_libhdfs(environment)
    assert java_text == f"JAVA_HOME ({java}) is no Java with lib/server/libjvm.so"
    assert library_text == f"HADOOP_HOME ({hadoop}) is no Hadoop with lib/native/libhdfs.so"
    assert jars_text.startswith("CLASSPATH (/opt/hadoop/share/hadoop/common/*) names no jar of")
    for path in (java / "lib/server/libjvm.so", hadoop / "lib/native/libhdfs.so"):
        path.parent.mkdir(parents=True)
        path.touch()
    assert missing_for_libhdfs(environment) == [jars_text]
    environment["CLASSPATH"] = "/opt/x.jar:/opt/hadoop-common-3.4.1.jar"
    assert missing_for_libhdfs(environment) == []
    del environment["HADOOP_HOME"]
    for name in ("ARROW_LIBHDFS_DIR", "LD_LIBRARY_PATH"):
        there = {name: str(hadoop / "lib/native")}
        assert missing_for_libhdfs(environment | there) == []
    assert "HADOOP_HOME (not set)" in missing_for_libhdfs(environment)[0]


@pytest.mark.parametrize("scheme", ["hdfs", "viewfs"])
def test_without_hadoop_an_error_says_what_to_set(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HADOOP_HOME", "CLASSPATH", "ARROW_LIBHDFS_DIR", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(
        OSError,
        match=rf"{scheme}://prod/t: Hadoop's client cannot be loaded .*JAVA_HOME \(/nowhere\).*"
        r"HADOOP_HOME \(not set\).*CLASSPATH \(not set\).*; set JAVA_HOME, HADOOP_HOME and CLASSPATH",
    ):
        storage.size_bytes(f"{scheme}://prod/t")
