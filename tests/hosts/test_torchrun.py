"""Jobs of torchrun on two hosts: they share each epoch with nothing set, lose a host and get it back,
and go on from a checkpoint on another number of hosts.
"""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hosts.hosts import Host, HostProgram, Network, children
from tests.parquet_files import put_row_files
from tests.programs import LIMIT_S

pytestmark = pytest.mark.slow

SIZES = (40, 160, 55, 45)
TORCHRUN = "from torch.distributed.run import main; main()"
TAILS = """
import json, os, signal, sys
import torch
import torch.distributed as distributed
import featstore

signal.alarm(600)  # Nobody outlives a test that failed.
table, out = sys.argv[1:]
distributed.init_process_group("gloo")
told = {}
for seed, tail in enumerate(("join", "pad", "drop")):  # Loaders of one seed share one epoch.
    with featstore.FeatureLoader(table, slots=["row"], batch_size=7, tail=tail, seed=seed) as loader:
        steps = [[batch["row"].tolist(), batch.is_padding] for batch in loader]
        told[tail] = {"steps": steps, "dropped": loader.stats()["rows_dropped_tail"]}
        distributed.barrier()
with open(f"{out}/{os.environ['RANK']}.json", "w") as file:
    json.dump(told, file)
distributed.barrier()
distributed.destroy_process_group()
"""
# Writes a checkpoint every third step; ends with all rows that led to its state.
TRAINER = """
import json, os, signal, sys, time
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as distributed
import featstore

signal.alarm(600)  # Nobody outlives a test that failed.
table, out, pause_s = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
checkpoint = out / "checkpoint.json"
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
life = os.environ["TORCHELASTIC_RESTART_COUNT"]
distributed.init_process_group("gloo", timeout=timedelta(minutes=2))
# Ranks may begin far apart on a busy machine. From then on one that is gone is soon missed.
steps = distributed.new_group(timeout=timedelta(seconds=15))


def all_rows():
    gathered = [None] * world
    distributed.all_gather_object(gathered, mine, group=steps)
    return history + [row for rows in gathered for row in rows]


with featstore.FeatureLoader(table, slots=["row"], batch_size=4, tail="pad") as loader:
    history, mine = [], []
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        loader.load_state_dict(saved["state"])
        history = saved["rows"]
    (out / f"{world}-{life}-{rank}.begun").write_text(str(len(history)))
    for step, batch in enumerate(loader):
        mine += [] if batch.is_padding else batch["row"].tolist()
        distributed.all_reduce(torch.ones(1), group=steps)
        loader.ack()
        if step % 3 == 2:
            states = [None] * world
            distributed.all_gather_object(states, loader.state_dict(), group=steps)
            rows = all_rows()
            if rank == 0:
                state = featstore.FeatureLoader.merge_states(states)
                (out / "new.json").write_text(json.dumps({"state": state, "rows": rows}))
                (out / "new.json").rename(checkpoint)
        time.sleep(pause_s)
    rows = all_rows()
    if rank == 0:
        (out / "all.json").write_text(json.dumps(rows))
    distributed.barrier()
distributed.destroy_process_group()
"""


class Job:
    """Agents of torchrun on hosts, of which the first keeps the store."""

    def __init__(
        self,
        directory: Path,
        script: str,
        hosts: list[Host],
        *given: object,
        max_restarts: int = 0,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._directory, self._given = directory, given
        self._size, self._meeting = len(hosts), hosts[0].name
        self._max_restarts, self._variables = max_restarts, variables
        (directory / "script.py").write_text(script)
        self._closing = ExitStack()
        self.agents = [self.start(host) for host in hosts]

    def start(self, host: Host) -> HostProgram:
        """Starts the agent of a host."""
        where = ["--nnodes", self._size, "--nproc-per-node", 2, "--rdzv-backend", "c10d"]
        meeting = ["--rdzv-endpoint", f"{self._meeting}:29400", "--rdzv-id", "job"]
        how = ["--max-restarts", self._max_restarts, "--monitor-interval", "0.2"]
        log = self._closing.enter_context((self._directory / f"{host.name}.log").open("a"))
        program = host.start(
            TORCHRUN,
            *where,
            *meeting,
            *how,
            self._directory / "script.py",
            *self._given,
            variables=self._variables,
            stdout=log,
            stderr=log,
        )
        return self._closing.enter_context(program)

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()

    def end(self) -> None:
        """Waits until its agents have ended well."""
        for agent in self.agents:
            assert agent.wait(LIMIT_S) == 0, self.said()

    def said(self) -> str:
        return "".join(path.read_text()[-3000:] for path in self._directory.glob("*.log"))


def test_each_tail_delivers_every_row_once_to_ranks_of_two_hosts(
    network: Network, tmp_path: Path
) -> None:
    table = put_row_files(tmp_path / "table", SIZES, row_group_size=20)
    with Job(tmp_path, TAILS, network.add("node1", "node2"), table, tmp_path) as job:
        job.end()
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    for tail in ("join", "pad", "drop"):
        rows = Counter(
            row
            for rank in ranks
            for batch, is_padding in rank[tail]["steps"]
            if not is_padding
            for row in batch
        )
        num_dropped = sum(rank[tail]["dropped"] for rank in ranks)
        assert set(rows.values()) <= {1}
        assert rows.total() + num_dropped == sum(SIZES)
        assert (num_dropped > 0) is (tail == "drop")
        num_steps = {len(rank[tail]["steps"]) for rank in ranks}
        assert tail == "join" or len(num_steps) == 1


# torchrun's own store is never named to an agent that comes later, and has the addresses of earlier
# workers (torch 2.13).
STORE_OF_EACH_START = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@pytest.mark.parametrize("lost", ["a worker", "a host"])
def test_a_job_that_loses_a_worker_or_a_host_and_gets_it_back_goes_on_from_its_checkpoint(
    network: Network, tmp_path: Path, lost: str
) -> None:
    hosts = network.add("node1", "node2")
    table = put_row_files(tmp_path / "table", [10] * 60, "{:03}.parquet")
    given = (tmp_path, TRAINER, hosts, table, tmp_path, 0.1)
    with Job(*given, max_restarts=3, variables=STORE_OF_EACH_START) as job:
        _await(tmp_path / "checkpoint.json", job)
        if lost == "a worker":
            (agent,) = children(job.agents[1].pid)
            os.kill(children(agent)[0], signal.SIGKILL)
        else:
            hosts[1].vanish()
            assert job.agents[1].wait(LIMIT_S) != 0
            hosts[1].come_back()
            # torchrun takes an agent of the same host and pid for the one that it has lost.
            hosts[1].run("pass")
            job.agents[1] = job.start(hosts[1])
        job.end()
    begun = {path.stem: int(path.read_text()) for path in tmp_path.glob("*.begun")}
    restored = {name for name, num_rows_before in begun.items() if num_rows_before}
    # The agent of a host counts the ends of its own workers: often not those that follow elsewhere.
    assert sorted(name[-1] for name in restored) == ["0", "1", "2", "3"]
    assert lost == "a worker" or restored == {"4-1-0", "4-1-1", "4-0-2", "4-0-3"}
    assert Counter(_rows(tmp_path)) == Counter(range(600))


def test_a_merged_state_goes_on_on_another_number_of_hosts(
    network: Network, tmp_path: Path
) -> None:
    hosts = network.add("node1", "node2")
    table = put_row_files(tmp_path / "table", [10] * 60, "{:03}.parquet")
    with Job(tmp_path, TRAINER, hosts, table, tmp_path, 0.1) as job:
        _await(tmp_path / "checkpoint.json", job)
        for host in hosts:
            host.vanish()
    (other,) = network.add("node3")
    with Job(tmp_path, TRAINER, [other], table, tmp_path, 0) as job:
        job.end()
    assert int((tmp_path / "2-0-0.begun").read_text()) > 0
    assert Counter(_rows(tmp_path)) == Counter(range(600))


def _await(path: Path, job: Job) -> None:
    """Waits until the file is there."""
    until = time.monotonic() + LIMIT_S
    while not path.exists():
        assert time.monotonic() < until, job.said()
        time.sleep(0.05)


def _rows(directory: Path) -> list[int]:
    rows: list[int] = json.loads((directory / "all.json").read_text())
    return rows
