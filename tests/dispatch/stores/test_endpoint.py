from typing import Any

import pytest

from featstore.base.errors import ConfigError, DispatchError
from featstore.dispatch.stores.endpoint import (
    Endpoint,
    job_store,
    num_processes,
    parse_endpoint,
)

JOB = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


@pytest.mark.parametrize("url", ["tcp://node0:29500", "torch://127.0.0.1:1", "tcp://[::1]:29500"])
def test_an_endpoint_round_trips_through_its_url(url: str) -> None:
    assert parse_endpoint(url).url == url


@pytest.mark.parametrize(
    "url",
    [
        "tcp://",
        "tcp://host",
        "tcp://:1",
        "tcp://host:0",
        "tcp://host:70000",
        "tcp://h:1/x",
        "tcp://u@h:1",
    ],
)
def test_a_url_without_host_or_port_or_with_more_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"expected tcp://host:port, with a port from 1 to 65535"):
        parse_endpoint(url)


@pytest.mark.parametrize(
    ("changes", "is_hosted_here"),
    [
        ({}, True),
        ({"RANK": "1"}, False),
        ({"TORCHELASTIC_USE_AGENT_STORE": "True"}, False),
        ({"TORCHELASTIC_USE_AGENT_STORE": "False"}, True),
        ({"TORCHELASTIC_USE_AGENT_STORE": "False", "RANK": "3"}, False),
    ],
)
def test_rank_0_starts_the_server_where_the_launcher_keeps_none(
    changes: Any, is_hosted_here: bool
) -> None:
    endpoint = Endpoint(host="node0", port=29500, kind="torch")
    assert job_store(JOB | changes) == (endpoint, is_hosted_here)


@pytest.mark.parametrize("missing", ["MASTER_ADDR", "MASTER_PORT"])
def test_without_a_place_to_meet_the_error_says_what_to_set(missing: str) -> None:
    with pytest.raises(
        DispatchError,
        match=r"one of 2 processes \(WORLD_SIZE\) needs a place to meet: .*tcp://host:port",
    ):
        job_store({key: value for key, value in JOB.items() if key != missing})


def test_without_world_size_there_is_one_process() -> None:
    assert [
        num_processes(environ) for environ in ({}, {"WORLD_SIZE": ""}, {"WORLD_SIZE": "4"})
    ] == [1, 1, 4]
