"""Both clients of HDFS against a real one: who asks, what name nodes say, and servers that fail.

The contract of all stores runs there too (tests/contracts/test_file_contract.py).
"""

import os
import pwd
import re
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from featstore.base.errors import AccessError, DiskFullError, StoreError
from featstore.files import hdfs_rpc, listings, storage
from featstore.files.retry import RetryPolicy, retrying
from featstore.files.webhdfs import FailedNodes
from tests.hadoop.clusters import DIRECTORY, HadoopCluster
from tests.store_clients import clients_of, forget_clients
from tests.threads import run_together

pytestmark = pytest.mark.slow
DATA = bytes(range(256)) * 20_000


@pytest.fixture(params=["hdfs", "webhdfs"])
def url(request: pytest.FixtureRequest, hadoop: HadoopCluster) -> Iterator[str]:
    """A directory of the test's own, by one of the clients."""
    with clients_of(hadoop.environment):
        yield f"{hadoop.root(request.param)}/{re.sub('[^a-z_]', '-', request.node.name)}"


def write(url: str, data: bytes = DATA) -> None:
    with storage.open_write(url) as file:
        file.write(data)


def read(url: str) -> bytes:
    with storage.open_read(url) as file:
        return file.read()


def other(url: str, hadoop: HadoopCluster) -> str:
    """The same place by the other client."""
    ours, theirs = hadoop.root("hdfs"), hadoop.root("webhdfs")
    return url.replace(ours, theirs) if url.startswith(ours) else url.replace(theirs, ours)


@pytest.mark.parametrize("name", ["a b.bin", "%20+%2F", "k=é 漢", "q?x#y&z", "[1]{2}*"])
def test_a_name_of_any_characters_is_the_same_for_both_clients(
    url: str, hadoop: HadoopCluster, name: str
) -> None:
    write(f"{url}/{name}/x.bin", name.encode())
    assert read(f"{other(url, hadoop)}/{name}/x.bin") == name.encode()
    assert [file.name for file in listings.list_own(f"{url}/{name}")] == ["x.bin"]


def test_a_file_larger_than_its_blocks_is_read_at_any_position(url: str) -> None:
    data = DATA * 30  # 154 MB, and blocks have 128 MiB
    write(f"{url}/x", data)
    with storage.open_read(f"{url}/x") as file:
        for first in (0, 134_217_700, len(data) - 5):
            file.seek(first)
            assert file.read(1_000) == data[first : first + 1_000]
    assert read(f"{url}/x") == data


def test_an_empty_file_is_written_and_read(url: str) -> None:
    write(f"{url}/x", b"")
    assert (read(f"{url}/x"), storage.size_bytes(f"{url}/x")) == (b"", 0)


def test_of_many_writers_of_one_new_file_exactly_one_succeeds(url: str) -> None:
    together, won = threading.Barrier(8), list[bytes]()

    def put(data: bytes) -> None:
        together.wait(60)
        if storage.put_new(f"{url}/x", data):
            won.append(data)

    run_together(*(partial(put, b"%d" % index) for index in range(8)))
    assert won == [read(f"{url}/x")]
    assert [file.name for file in listings.list_own(url)] == ["x"]


def test_a_rename_never_replaces_a_file(url: str) -> None:
    write(f"{url}/a", b"a")
    write(f"{url}/b", b"b")
    with pytest.raises(FileExistsError):
        storage.filesystem(url).mv(f"{url}/a", f"{url}/b")
    assert (read(f"{url}/a"), read(f"{url}/b")) == (b"a", b"b")


def test_a_file_that_is_replaced_is_the_new_one(url: str) -> None:
    write(f"{url}/x", b"first")
    write(f"{url}/x", b"second")
    assert read(f"{url}/x") == b"second"
    storage.delete(f"{url}/x")
    storage.delete(f"{url}/x")
    assert listings.find_file(f"{url}/x") is None


def test_a_file_of_another_kind_of_client_has_the_same_version(
    url: str, hadoop: HadoopCluster
) -> None:
    write(f"{url}/x.parquet")
    ours, theirs = (listings.list_files(each) for each in (url, other(url, hadoop)))
    assert [file.version for file in ours] == [file.version for file in theirs]


def test_without_a_name_the_user_of_the_system_asks(hadoop: HadoopCluster, url: str) -> None:
    hadoop.do("mkdir", "/open", "ann")
    hadoop.do("chmod", "777", "/open")
    path = f"{url.partition(DIRECTORY)[0]}/open/{url.partition(':')[0]}"
    with clients_of({}):
        write(path, b"x")
        web = f"{hadoop.root('webhdfs').removesuffix(DIRECTORY)}/open/{url.partition(':')[0]}"
        found = storage.filesystem(web).info(web)["owner"]
    assert found == pwd.getpwuid(os.geteuid()).pw_name


def test_who_asks_may_change_within_a_process(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(f"{url}/x", b"x")
    monkeypatch.setenv("HADOOP_USER_NAME", "bob")
    with pytest.raises(AccessError, match="user=bob"):
        write(f"{url}/x", b"bob's")
    monkeypatch.setenv("HADOOP_USER_NAME", "ann")
    write(f"{url}/x", b"ann's")
    assert read(f"{url}/x") == b"ann's"


def test_a_mount_table_is_read_and_written(
    hadoop: HadoopCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = hadoop.root("hdfs").removesuffix(DIRECTORY)
    links = {"link./data": f"{root}{DIRECTORY}/mounted", "linkFallback": f"{root}/"}
    rows = (
        f"<property><name>fs.viewfs.mounttable.Mounts.{key}</name><value>{value}</value></property>"
        for key, value in links.items()
    )
    (tmp_path / "core-site.xml").write_text(f"<configuration>{''.join(rows)}</configuration>")
    with clients_of(hadoop.environment | {"HADOOP_CONF_DIR": str(tmp_path)}):
        url = "viewfs://Mounts/data/k=1"
        write(f"{url}/x")
        write(f"{url}/x", b"second")
        assert storage.put_new(f"{url}/y", b"y")
        assert not storage.put_new(f"{url}/y", b"z")
        assert [file.url for file in listings.list_own(url)] == [f"{url}/x", f"{url}/y"]
        for mounted in (
            "viewfs://Mounts/data",
            f"viewfs://Mounts{DIRECTORY}/mounted",
            links["link./data"],
        ):
            assert read(f"{mounted}/k=1/x") == b"second"
        assert listings.find_file("viewfs://Mounts/other/x") is None


def test_a_refusal_says_who_wanted_what_and_where(hadoop: HadoopCluster, url: str) -> None:
    with (
        clients_of({"HADOOP_USER_NAME": "bob"}),
        pytest.raises(
            AccessError,
            match=rf"{url}/x: \S+ refuses access .*Permission denied: user=bob, access=WRITE, "
            rf'inode="{DIRECTORY}":ann:\w+:drwxr-xr-x.*; check .*owner and permissions of the path',
        ),
    ):
        write(f"{url}/x")


def test_a_quota_that_is_full_is_a_full_disk(hadoop: HadoopCluster, url: str) -> None:
    write(f"{url}/small", b"x")
    hadoop.do("quota", 1_000_000, DIRECTORY + url.partition(DIRECTORY)[2])
    with pytest.raises(DiskFullError, match=r"DiskSpace quota of \S+ is exceeded"):
        write(f"{url}/x")
    assert [file.name for file in listings.list_own(url)] == ["small"]


def test_a_name_node_in_safe_mode_is_named_and_waited_for(hadoop: HadoopCluster, url: str) -> None:
    write(f"{url}/x", b"before")
    hadoop.do("safe-mode", "ENTER")
    try:
        with pytest.raises(StoreError, match=r"the name node is in safe mode .*dfsadmin"):
            write(f"{url}/x")
        leaves = threading.Timer(3.0, hadoop.do, ("safe-mode", "LEAVE"))
        leaves.start()
        with retrying(RetryPolicy()):
            write(f"{url}/x", b"after")
        leaves.join()
    finally:
        hadoop.do("safe-mode", "LEAVE")
    assert read(f"{url}/x") == b"after"


def test_a_directory_that_may_not_be_listed_is_an_error(hadoop: HadoopCluster, url: str) -> None:
    write(f"{url}/secret/a.parquet", b"x")
    write(f"{url}/b.parquet", b"x")
    path = DIRECTORY + url.partition(DIRECTORY)[2]
    hadoop.do("mkdir", f"{path}/secret", "carol")
    hadoop.do("chmod", "700", f"{path}/secret")
    with pytest.raises(AccessError, match=r'user=ann, access=READ_EXECUTE, inode="\S+/secret"'):
        listings.list_files(url)


@pytest.mark.parametrize("is_open", [False, True])
def test_servers_that_stop_in_silence_are_told_within_their_time_limits(
    hadoop: HadoopCluster,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    is_campaign: bool,
    is_open: bool,
) -> None:
    """They go on later, and the client with them. With a file open, data nodes are asked first."""
    # Of WebHDFS two rounds of a minute, of hdfs:// one round of 20 s for each copy and once more.
    limit_s = 130.0 if url.startswith("webhdfs:") else 70.0
    write(f"{url}/x", 10 * DATA)
    if not is_campaign:
        limit_s = 15.0
        for name in ("_CONNECT_S", "_ANSWER_S", "_DATA_S"):
            monkeypatch.setattr(hdfs_rpc, name, 1.0)
        for name in ("_NAME_TIMEOUTS_S", "_DATA_TIMEOUTS_S"):
            monkeypatch.setattr(f"featstore.files.webhdfs.{name}", (1.0, 1.0))
        forget_clients()
    with storage.open_read(f"{url}/x") as file:
        file.read(1)
        begun_s = time.monotonic()
        hadoop.process.send_signal(signal.SIGSTOP)
        try:
            told = r"does not answer .*check that the|data nodes do not answer .* 127\.0\.0\.1"
            with pytest.raises(StoreError, match=told):
                file.read() if is_open else read(f"{url}/x")
            assert time.monotonic() - begun_s < limit_s
        finally:
            hadoop.process.send_signal(signal.SIGCONT)
    monkeypatch.undo()
    forget_clients()
    assert read(f"{url}/x") == 10 * DATA


@pytest.fixture
def without_a_data_node(hadoop_service: HadoopCluster) -> Iterator[HadoopCluster]:
    """A cluster of which one of two data nodes is gone, in which the name node believes."""
    with clients_of(hadoop_service.environment):
        for number in range(20):
            write(f"{hadoop_service.root('hdfs')}/believed/{number}", b"%d" % number)
        hadoop_service.do("stop-data", 0)
        yield hadoop_service
        hadoop_service.do("start-data")


def test_a_data_node_that_is_gone_is_asked_once_although_a_name_node_believes_in_it(
    without_a_data_node: HadoopCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = list[set[str]]()
    add = FailedNodes.add

    def noted(self: FailedNodes, addresses: set[str], now_s: float) -> None:
        failed.append(addresses)
        add(self, addresses, now_s)

    monkeypatch.setattr(FailedNodes, "add", noted)
    url = f"{without_a_data_node.root('webhdfs')}/believed"
    for number in range(20):
        assert read(f"{url}/{number}") == b"%d" % number
    # Half of the 20 reads meet it if it is not left out.
    ((address,),) = failed
    assert re.fullmatch(r"127\.0\.0\.1:\d+", address)


@pytest.mark.parametrize("kind", ["hdfs", "webhdfs"])
def test_files_are_written_although_a_name_node_believes_in_a_data_node_that_is_gone(
    without_a_data_node: HadoopCluster, kind: str
) -> None:
    url = f"{without_a_data_node.root(kind)}/written-{kind}"
    with retrying(RetryPolicy()):
        for number in range(4):
            write(f"{url}/{number}")
            assert read(f"{url}/{number}") == DATA
    # They are to have as many copies as those that were written before.
    web = without_a_data_node.root("webhdfs")
    copies = {
        file["replication"]
        for place in ("believed", f"written-{kind}")
        for file in storage.filesystem(web).ls(f"{web}/{place}")
    }
    assert copies == {2}


def test_name_nodes_hand_over_between_any_two_requests(hadoop_service: HadoopCluster) -> None:
    with clients_of(hadoop_service.environment):
        for kind in ("hdfs", "webhdfs"):
            url = f"{hadoop_service.root(kind)}/{kind}"
            for active, standby in ((0, 1), (1, 0)):
                write(f"{url}/x", b"%d" % active)
                hadoop_service.do("standby", active)
                with pytest.raises(StoreError, match=r"no name node is active .*haadmin"):
                    storage.size_bytes(f"{url}/x")
                hadoop_service.do("active", standby)
                assert read(f"{url}/x") == b"%d" % active
