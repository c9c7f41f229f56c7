"""Hosts whose workers share epochs over a server on a host of its own."""

import json
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.hosts.hosts import Host, Network
from tests.programs import CLI, LIMIT_S

STARTER = Path(__file__).with_name("starter.py")
PORT = 29600


class Worker:
    """A worker on a host, and what it has left in the directory of its run.

    Attributes:
        started_unix_s: When it was started.
        killed_unix_s: When it was killed, by itself or with its host.
    """

    def __init__(self, station: "Station", name: str, pid: int) -> None:
        self.station, self.name, self.pid = station, name, pid
        self.started_unix_s = time.time()
        self.killed_unix_s: float | None = None

    def deliveries(self) -> list[tuple[float, list[int]]]:
        """The batches that it has delivered: when, and which rows."""
        path = Path(f"{self.name}.rows")
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        noted = [line.split(" ", 1) for line in lines if line.endswith("\n")]
        return [(float(at), json.loads(rows)) for at, rows in noted]

    @property
    def status(self) -> int | None:
        """How it ended; None while it runs."""
        if self.killed_unix_s is not None:
            return -signal.SIGKILL
        end = Path(f"{self.name}.end")
        return int(end.read_text()) if end.exists() else None

    @property
    def ended_unix_s(self) -> float:
        """When it ended."""
        return self.killed_unix_s or Path(f"{self.name}.end").stat().st_mtime

    def log(self) -> str:
        """What it has logged."""
        path = Path(f"{self.name}.log")
        return path.read_text() if path.exists() else ""

    def signal(self, sig: signal.Signals) -> None:
        """Sends it a signal."""
        self.station.tell({"signal": sig, "pid": self.pid})

    def kill(self) -> None:
        """Kills it, unless it has ended."""
        if self.status is None:
            self.signal(signal.SIGKILL)
            self.killed_unix_s = time.time()


class Station:
    """A host that starts workers. `close` ends it."""

    def __init__(self, host: Host, variables: Mapping[str, str] | None = None) -> None:
        self.host, self._variables = host, variables
        self.workers: list[Worker] = []
        self.open()

    def open(self) -> None:
        """Starts what starts workers; `ready` waits for it."""
        self._starter = self.host.start(STARTER, variables=self._variables, stderr=None)
        self._is_ready = False

    def tell(self, asked: Mapping[str, Any]) -> None:
        """Asks the host's starter for something."""
        if not self._is_ready:
            assert self._starter.line() == "ready"
            self._is_ready = True
        assert self._starter.stdin is not None
        self._starter.stdin.write(json.dumps(asked) + "\n")
        self._starter.stdin.flush()

    def begin(self, name: str, work: Mapping[str, Any]) -> Worker:
        """Starts a worker, whose files begin with `name`."""
        self.tell({"work": {"name": name} | dict(work)})
        self.workers.append(Worker(self, name, int(self._starter.line())))
        return self.workers[-1]

    def vanish(self) -> None:
        """Takes the host away, with its workers."""
        self.host.vanish()
        for worker in self.workers:
            if worker.status is None:
                worker.killed_unix_s = time.time()
        self.close()

    def come_back(self) -> None:
        """Starts the host again, without workers."""
        self.host.come_back()
        self.open()

    def close(self) -> None:
        """Ends the starter."""
        self._starter.__exit__(None, None, None)


class Crew:
    """A dispatch server and hosts for workers, until the end of a `with` block.

    Args:
        network: The network, in which the hosts are made.
        directory: Where the server's file is.
        num_hosts: Hosts for workers.
        variables: By the name of a host (`w1`, `w2`, ...), what its processes have in their
            environment.
    """

    def __init__(
        self,
        network: Network,
        directory: Path,
        num_hosts: int,
        variables: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        (self.server,) = network.add("dispatch")
        hosts = network.add(*(f"w{number}" for number in range(1, num_hosts + 1)))
        self.url = f"tcp://dispatch:{PORT}"
        self._file = directory / "dispatch.db"
        self._variables = variables or {}
        self.serve()
        self.stations = [Station(host, self._variables.get(host.name)) for host in hosts]

    def serve(self) -> None:
        """Starts the server, on the file that it had if it ran before."""
        given = ("dispatch", "serve", "--host", "0.0.0.0", "--port", PORT, "--file", self._file)
        self._program = self.server.start(
            CLI, *given, variables=self._variables.get("dispatch"), stderr=None
        )
        assert str(PORT) in self._program.line()

    def stop_server(self) -> None:
        """Kills the server."""
        self._program.die()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *error: object) -> None:
        for station in self.stations:
            station.close()
        self._program.__exit__(None, None, None)

    def receipt(self, run: str) -> dict[str, int]:
        """The totals of what `featstore dispatch receipt` says of a run."""
        given = ("dispatch", "receipt", "--store", self.url, "--run-id", run, "--json")
        with self.server.start(CLI, *given) as program:
            said, errors = program.communicate(timeout=LIMIT_S)
        assert said, errors
        parts = json.loads(said)["epochs"]
        names = ("num_rows", "delivered", "missing", "repeated_at_most")
        return {name: sum(part[name] for part in parts) for name in names}
