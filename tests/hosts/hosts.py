"""Hosts on one machine: namespaces of the kernel that a bridge connects, which are cut off, slowed
down and killed as a whole.

A host has its own network, processes, shared memory, host name, `/etc/hosts` and monotonic clock.
Its file system is that of the machine. All of it is the property of the host's first process: when
that ends, the kernel kills the host's other processes and removes the rest, so nothing is left
however a test ends. Nothing is made in the network of the machine itself.
"""

import functools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from tests.programs import LIMIT_S, Program

PROGRAMS = ("ip", "tc", "unshare", "nsenter")
_SPACES = ("--net", "--uts", "--ipc", "--pid", "--mount", "--time")
# Ends with its standard input, thus with whoever made the host; bash also buries the dead.
_FIRST = (
    'hostname "$0" && mount -t tmpfs tmpfs /dev/shm && mount --bind "$1" /etc/hosts && '
    "ip link set lo up && echo up && read"
)
_ROOT = Path(__file__).parents[2]  # Programs start in the root directory.
_LINK = "eth0"
_SINK = "sink"
_ALL = ("protocol", "all", "u32", "match", "u32", "0", "0")
_DAY_S = 86_400


def children(pid: int) -> list[int]:
    """The processes that the first thread of a process has started, and that still run."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def run(command: Iterable[object]) -> str:
    """What a short command prints.

    Raises:
        RuntimeError: It failed.
    """
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, done.args))}: {done.stderr.strip()}")
    return done.stdout


class Spaces:
    """The namespaces of one host, which last as long as the host's first process.

    Args:
        name: The name of the host.
        names: The file that is its `/etc/hosts`.
        monotonic_s: How far its monotonic clock is ahead of the machine's.
    """

    def __init__(self, name: str, names: Path, monotonic_s: int) -> None:
        clocks = ["--monotonic", str(monotonic_s), "--boottime", str(monotonic_s)]
        command = ["unshare", *_SPACES, *clocks, "--fork", "--mount-proc"]
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self._process = subprocess.Popen(
            [*command, "bash", "-c", _FIRST, name, str(names)], text=True, **pipes
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "up\n":
            raise RuntimeError(f"host {name}: {self._process.communicate()[1].strip()}")
        (self.pid,) = children(self._process.pid)

    def entered(self, *spaces: str) -> list[str]:
        """The beginning of a command that is to run in these namespaces of the host."""
        return ["nsenter", "--target", str(self.pid), *spaces]

    def run(self, *command: object) -> str:
        """Runs a command of the machine in the host's network."""
        return run([*self.entered("--net"), *command])

    def kill(self) -> None:
        """Kills every process of the host at once. Returns when all have ended."""
        if self._process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self._process.communicate()


class HostProgram(Program):
    """A Python program on a host; signals reach the program itself."""

    def send_signal(self, sig: int) -> None:
        """Sends the signal to the program. `nsenter`, of which it is a child, ends as it does."""
        while self.poll() is None:
            for child in children(self.pid):
                with suppress(ProcessLookupError):  # It has just ended.
                    os.kill(child, sig)
                return
            time.sleep(0.001)  # nsenter has not started the program yet.


class Host:
    """A host of a network; `Network.add` makes it."""

    def __init__(self, network: "Network", name: str, number: int) -> None:
        self.name, self.number = name, number
        self._network = network
        self.come_back()

    @property
    def address(self) -> str:
        """Its IPv4 address, which it keeps."""
        return f"10.77.0.{self.number}"

    @property
    def mac(self) -> str:
        """The address of its network card, which it keeps."""
        return f"02:00:0a:4d:00:{self.number:02x}"

    def come_back(self) -> None:
        """Starts the host, which has vanished, with the same name and address."""
        self.spaces = self._network.make_spaces(self.name, _DAY_S * self.number)
        self.is_cut: set[str] = set()
        self._port = self._network.plug_in(self)
        self.spaces.run("ip", "addr", "add", f"{self.address}/24", "dev", _LINK)
        self.spaces.run("ip", "link", "set", _LINK, "up")
        self.is_up = True
        if self._network.is_routed:
            for other in self._network.hosts.values():
                self.know(other)
                other.know(self)

    def know(self, other: "Host") -> None:
        """Needs no ARP request to reach the other host."""
        if self.is_up:
            told = ("replace", other.address, "lladdr", other.mac, "dev", _LINK, "nud", "permanent")
            self.spaces.run("ip", "neigh", *told)

    def start(
        self,
        program: str | Path,
        *arguments: object,
        variables: Mapping[str, str] | None = None,
        **how: Any,
    ) -> HostProgram:
        """Starts a Python program on the host."""
        within = self.spaces.entered("--all")
        ours = {"PYTHONPATH": f"{_ROOT}:{os.environ.get('PYTHONPATH', '')}"} | dict(variables or {})
        return HostProgram(program, *arguments, variables=ours, within=within, **how)

    def run(
        self,
        program: str | Path,
        *arguments: object,
        variables: Mapping[str, str] | None = None,
        status: int = 0,
        timeout_s: float = LIMIT_S,
    ) -> str:
        """What a Python program on the host prints, which must end with this status."""
        with self.start(program, *arguments, variables=variables) as started:
            return started.result(status=status, timeout_s=timeout_s)

    def cut(self, *, sends: bool = True, receives: bool = True) -> None:
        """Loses all that the host sends, or is sent, or both. Nobody is told."""
        for way, is_lost in (("ingress", sends), ("egress", receives)):
            if is_lost and way not in self.is_cut:
                self._network.lose(self._port, way)
                self.is_cut.add(way)

    def restore(self) -> None:
        """Ends what `cut` began."""
        for way in sorted(self.is_cut):
            self._network.tc("filter", "del", "dev", self._port, way)
        self.is_cut.clear()

    def slow_down(self, bytes_per_s: int) -> None:
        """Lets at most so many bytes a second through to the host, and as many from it."""
        rate = ("tbf", "rate", f"{8 * bytes_per_s}bit", "burst", "32kb", "latency", "200ms")
        self._network.tc("qdisc", "replace", "dev", self._port, "root", *rate)
        self.spaces.run("tc", "qdisc", "replace", "dev", _LINK, "root", *rate)

    def vanish(self) -> None:
        """Takes the host away, as when its power fails: its peers are told nothing, not even by the
        kernel that closes the sockets of processes that are killed.
        """
        self.cut()
        self.spaces.kill()
        self.is_up = False


class Network:
    """Hosts and the bridge that connects them, until the end of a `with` block.

    Args:
        directory: Where the file is that is every host's `/etc/hosts`.
        is_routed: Hosts know where to send to each other without asking, as they do through a router:
            one that is cut off is silent. Otherwise its neighbours also find, after seconds, that
            it answers no ARP request, and their calls fail with EHOSTUNREACH.
    """

    def __init__(self, directory: Path, *, is_routed: bool = False) -> None:
        self._names = directory / "etc_hosts"
        self.is_routed = is_routed
        self._num_ports = 0
        self._closing = ExitStack()
        self.hosts: dict[str, Host] = {}
        self._further: dict[str, Host] = {}
        self._name_hosts()

    def __enter__(self) -> "Network":
        self._switch = self.make_spaces("switch", 0)
        for device in (("br0", "type", "bridge"), (_SINK, "type", "veth", "peer", "name", "drain")):
            self._switch.run("ip", "link", "add", *device)
        for name in ("br0", _SINK, "drain"):
            self._switch.run("ip", "link", "set", name, "up")
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()

    def add(self, *names: str) -> list[Host]:
        """Starts hosts of these names."""
        added = []
        for name in names:
            added.append(Host(self, name, len(self.hosts) + 1))
            self.hosts[name] = added[-1]
            self._name_hosts()
        return added

    def call(self, name: str, host: Host) -> None:
        """Lets a further name lead to a host from now on, on all hosts."""
        self._further[name] = host
        self._name_hosts()

    def _name_hosts(self) -> None:
        lines = [f"{host.address} {name}" for name, host in (self.hosts | self._further).items()]
        # In place: the file that hosts have mounted is this one.
        self._names.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))

    def make_spaces(self, name: str, monotonic_s: int) -> Spaces:
        """Starts a first process, which ends with the network if not before."""
        spaces = Spaces(name, self._names, monotonic_s)
        self._closing.callback(spaces.kill)
        return spaces

    def plug_in(self, host: Host) -> str:
        """Connects the host with the bridge; the name of its port there, which no other had. The
        kernel removes it with the host.
        """
        self._num_ports += 1
        port = f"port{self._num_ports}"
        card = ("name", _LINK, "netns", host.spaces.pid, "address", host.mac)
        self._switch.run("ip", "link", "add", port, "type", "veth", "peer", *card)
        self._switch.run("ip", "link", "set", port, "master", "br0", "up")
        self.tc("qdisc", "add", "dev", port, "clsact")
        return port

    def lose(self, port: str, way: str) -> None:
        """Sends what comes `ingress` from the host, or goes `egress` to it, nowhere."""
        action = ("action", "mirred", "egress", "redirect", "dev", _SINK)
        self.tc("filter", "add", "dev", port, way, *_ALL, *action)

    def tc(self, *arguments: object) -> None:
        """Runs `tc` at the bridge."""
        self._switch.run("tc", *arguments)


@functools.cache
def why_none() -> str | None:
    """Why there can be no hosts here, or None."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"hosts need {', '.join(missing)} on PATH"
    if os.geteuid():
        return "hosts are made by root"
    with tempfile.TemporaryDirectory() as made:
        try:
            with Network(Path(made)) as network:
                network.add("tried")[0].cut()
        except RuntimeError as error:
            return f"no hosts can be made here: {error}"
    return None
