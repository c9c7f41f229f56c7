"""How long `hdfs://` waits for servers that are silent: stopped, or cut off from the network."""

import contextlib
import io
import itertools
import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from featstore.base.errors import StoreError
from featstore.files import hdfs_rpc, storage
from featstore.files.hdfs_files import SilentError
from featstore.files.hdfs_rpc import HdfsRpc, num_name_nodes, seconds_of
from featstore.files.retry import RetryPolicy, retrying, with_time_limit
from tests.hdfs_servers import (
    BLOCK_BYTES,
    NO_SUCH_FILE,
    SERVER_DEFAULTS,
    Answer,
    Message,
    data_node,
    name_node,
    one_block,
    silent_server,
)
from tests.store_clients import clients_of
from tests.threads import run_together

CALL_S = 0.5


class Waits(list[str]):
    """What calls have waited for in vain.

    Attributes:
        num_silent: After so many of these a name node answers, for which it has a minute: a busy
            machine may take longer than `CALL_S`.
        together: Calls wait for each other here before they wait for an answer.
    """

    num_silent = math.inf
    together: threading.Barrier | None = None


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """What calls have waited for in vain; they have short time limits."""
    monkeypatch.setattr(hdfs_rpc, "_CONNECT_S", 0.0)
    monkeypatch.setattr(hdfs_rpc, "_ANSWER_S", CALL_S)
    found = Waits()

    def noted(act: Callable[[], Any], limit_s: float, awaited: str) -> Any:
        if found.together is not None:
            found.together.wait(60)
        is_answered = limit_s == CALL_S and len(found) >= found.num_silent
        try:
            return with_time_limit(act, 60.0 if is_answered else limit_s, awaited)
        except TimeoutError:
            found.append(awaited)
            raise

    monkeypatch.setattr(hdfs_rpc, "with_time_limit", noted)
    return found


@contextlib.contextmanager
def service_of(directory: Path, nodes: list[str], **more: object) -> Iterator[str]:
    """The URL of a file of a name service with these name nodes, and of a larger one beside it."""
    names = [f"n{number}" for number in range(len(nodes))]
    properties: dict[str, object] = {
        "dfs.ha.namenodes.quiet": ",".join(names),
        "dfs.ha.namenodes.other": "a,b,c,d",
        **{f"dfs.namenode.rpc-address.other.{name}": "127.0.0.1:1" for name in "abcd"},
        **{
            f"dfs.namenode.rpc-address.quiet.{name}": node
            for name, node in zip(names, nodes, strict=True)
        },
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    rows = (
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in properties.items()
    )
    (directory / "hdfs-site.xml").write_text(f"<configuration>{''.join(rows)}</configuration>")
    with clients_of({"HADOOP_CONF_DIR": str(directory)}):
        yield "hdfs://quiet/x"


def read(url: str) -> bytes:
    with storage.open_read(url) as file:
        return file.read()


@pytest.mark.parametrize("num_nodes", [1, 2])
@pytest.mark.parametrize("is_cut_off", [False, True])
def test_each_silent_name_node_is_waited_for_once(
    tmp_path: Path, waits: list[str], num_nodes: int, is_cut_off: bool
) -> None:
    with contextlib.ExitStack() as servers:
        nodes = [
            servers.enter_context(silent_server(is_cut_off=is_cut_off)) for _ in range(num_nodes)
        ]
        url = servers.enter_context(service_of(tmp_path, nodes))
        with pytest.raises(StoreError, match=r"quiet does not answer .*check that the server runs"):
            storage.size_bytes(url)
    assert waits == ["answer"] * num_nodes


@pytest.mark.parametrize("num_silent", [1, 2])
@pytest.mark.parametrize("is_cut_off", [False, True])
def test_the_name_node_that_answers_is_asked_after_the_silent_ones(
    tmp_path: Path, waits: Waits, num_silent: int, is_cut_off: bool
) -> None:
    waits.num_silent = num_silent
    with contextlib.ExitStack() as servers:
        nodes = [
            servers.enter_context(silent_server(is_cut_off=is_cut_off)) for _ in range(num_silent)
        ]
        nodes.append(servers.enter_context(name_node(lambda method: NO_SUCH_FILE)))
        url = servers.enter_context(service_of(tmp_path, nodes))
        for _ in range(3):  # It is the first one that is asked from then on.
            with pytest.raises(FileNotFoundError):
                storage.filesystem(url).info(url)
    assert waits == ["answer"] * num_silent


def test_threads_wait_for_a_silent_name_node_at_the_same_time(tmp_path: Path, waits: Waits) -> None:
    waits.together = threading.Barrier(16)

    def ask() -> None:
        with pytest.raises(StoreError, match="does not answer"):
            storage.size_bytes(url)

    with silent_server(is_cut_off=True) as node, service_of(tmp_path, [node]) as url:
        run_together(*[ask] * 16)
    assert len(waits) == 16


def test_a_name_node_that_is_slow_to_take_a_connection_has_the_time_of_the_configuration(
    tmp_path: Path, waits: list[str]
) -> None:
    longer = {"ipc_client_connect_timeout": 30_000}
    with (
        name_node(lambda method: NO_SUCH_FILE, accepts_after_s=2 * CALL_S) as node,
        service_of(tmp_path, [node], **longer) as url,
        pytest.raises(FileNotFoundError),
    ):
        storage.filesystem(url).info(url)
    assert waits == []


def test_an_upload_to_a_silent_name_node_is_told_after_one_wait(
    tmp_path: Path, waits: list[str]
) -> None:
    with silent_server() as node, service_of(tmp_path, [node]) as url:
        files = storage.filesystem(url)
        assert isinstance(files, HdfsRpc)
        with pytest.raises(SilentError, match="no answer came"):
            files.upload(io.BytesIO(b"x"), url)
    assert waits == ["answer"]


def test_under_a_budget_each_silence_is_warned_of(
    tmp_path: Path, waits: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "featstore"),
        silent_server() as node,
        service_of(tmp_path, [node]) as url,
        retrying(RetryPolicy(retry_s=2.5 * CALL_S, first_pause_s=0.01)),
        pytest.raises(StoreError, match=r"does not answer .*; gave up after \d attempts"),
    ):
        storage.size_bytes(url)
    assert [record.name for record in caplog.records] == ["featstore.files.hdfs_files"] * (
        len(waits) - 1
    )
    assert "is asked again until 1.25 s have passed (retry_s)" in caplog.text


def locating(*data_nodes: str, silent: str = "") -> Answer:
    """What a name node answers: where one file is. It is silent when it is asked for `silent`."""
    answers = {"getBlockLocations": one_block(*data_nodes), "getServerDefaults": SERVER_DEFAULTS}
    return lambda method: None if method == silent else answers[method]


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_silent_data_nodes_are_told_after_one_round(
    tmp_path: Path, waits: Waits, is_cut_off: bool
) -> None:
    waits.num_silent = 0
    silent, asked = partial(silent_server, is_cut_off=is_cut_off), list[str]()

    def answer(method: str) -> "Message | None":
        asked.append(method)
        return locating(first, second)(method)

    with (
        silent() as first,
        silent() as second,
        name_node(answer) as node,
        service_of(tmp_path, [node], **{"dfs.client.socket-timeout": 1_000}) as url,
        pytest.raises(
            StoreError,
            match=f"data nodes do not answer .*: {first}, {second} .*check that they run",
        ),
    ):
        read(url)
    assert asked == ["getBlockLocations", "getServerDefaults"]  # A second round asks again.
    assert waits == []


def test_a_name_node_that_stops_between_opening_and_reading_is_told(
    tmp_path: Path, waits: Waits
) -> None:
    """hdfs-native asks it once more then, without a limit."""
    waits.num_silent = 0
    with (
        silent_server() as data_node,
        name_node(locating(data_node, silent="getServerDefaults")) as node,
        service_of(tmp_path, [node], **{"dfs.client.socket-timeout": 200}) as url,
        pytest.raises(StoreError, match=r"does not answer .*no answer came in"),
    ):
        read(url)
    assert waits == ["answer"]


@pytest.mark.parametrize(
    "silent",
    [silent_server, partial(data_node, 3, 0, breaks=False)],
    ids=["from the start", "in the middle"],
)
def test_another_data_node_is_read_from_if_one_falls_silent(
    tmp_path: Path, waits: Waits, silent: Callable[[], AbstractContextManager[str]]
) -> None:
    waits.num_silent = 0
    with (
        silent() as first,
        data_node() as other,
        name_node(locating(first, other)) as node,
        service_of(tmp_path, [node], **{"dfs.client.socket-timeout": 1_000}) as url,
    ):
        assert read(url) == bytes(BLOCK_BYTES)
    assert waits == []


def test_a_slow_stream_that_breaks_is_no_silence(
    tmp_path: Path, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for again, although it took longer than a silence may: 12 packets, each of ten
    seconds. hdfs-native has asked the data node once more.
    """
    waits.num_silent = 0
    clock = SimpleNamespace(monotonic=itertools.count(0, 10).__next__)
    monkeypatch.setattr(hdfs_rpc, "time", clock)
    with (
        data_node(12, 0) as data,
        name_node(locating(data)) as node,
        service_of(tmp_path, [node], **{"dfs.client.socket-timeout": 60_000}) as url,
    ):
        assert read(url) == bytes(BLOCK_BYTES)
    assert waits == []


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        ("hdfs://prod", 2),
        ("hdfs://nn:9000", 1),
        ("hdfs://[::1]:9000", 1),
        ("viewfs://prod", 3),  # a mount table, not the service of this name
    ],
)
def test_a_service_has_as_many_name_nodes_as_its_own_configuration_says(
    root: str, expected: int
) -> None:
    config = {"dfs.ha.namenodes.prod": "a,b", "dfs.ha.namenodes.other": "a,b,c"}
    assert num_name_nodes(root, config) == expected
    assert num_name_nodes(root, {}) == 1


def test_a_time_limit_of_the_configuration_is_in_milliseconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert seconds_of({"x": "7500"}, "x", 1.0) == 7.5
    assert seconds_of({}, "x", 1.0) == 1.0
    assert seconds_of({"x": "0"}, "x", 1.0) > 1e6
    for text in ("20s", "${y}", "-1", ""):
        assert seconds_of({"x": text}, "x", 1.5) == 1.5
        assert f"x is {text!r} in the XML" in caplog.messages.pop()
        caplog.clear()
