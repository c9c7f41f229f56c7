"""Hosts are cut off, slowed down and taken away as they say, and nothing of them is left."""

import subprocess
import time
from pathlib import Path

import pytest

from tests.hosts.hosts import Host, Network, children
from tests.programs import Program, run_python

RECEIVE = """
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("", 4000))
print("ready", flush=True)
while True:
    said, peer = server.recvfrom(100)
    print(said.decode(), flush=True)
    server.sendto(said, peer)
"""
# Says a number, and prints what comes back within 0.3 s.
SAY = """
import socket, sys
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.settimeout(0.3)
client.sendto(sys.argv[2].encode(), (sys.argv[1], 4000))
try:
    print(client.recv(100).decode())
except OSError as error:
    print(type(error).__name__)
"""
LISTEN = """
import socket, sys
server = socket.create_server(("", 4001))
print("ready", flush=True)
connection, _ = server.accept()
size = 0
while data := connection.recv(1 << 16):
    size += len(data)
    print(size, flush=True)
print("closed", flush=True)
"""
CONNECT = """
import socket, sys, time
client = socket.create_connection((sys.argv[1], 4001))
client.sendall(bytes(int(sys.argv[2])))
print("sent", flush=True)
sys.stdin.readline()
"""


def started(host: Host, program: str, *arguments: object) -> Program:
    """A program on the host that has said that it is ready."""
    server = host.start(program, *arguments)
    assert server.line() == "ready"
    return server


@pytest.mark.parametrize("is_routed", [True, False])
def test_a_cut_loses_everything_either_way_or_both(network: Network, is_routed: bool) -> None:
    network.is_routed = is_routed
    left, right = network.add("left", "right")
    with started(right, RECEIVE) as server:

        def say(number: int) -> str:
            return left.run(SAY, "right", number).strip()

        assert (say(1), server.line()) == ("1", "1")
        for host in (left, right):
            host.cut()
            assert say(2) == "TimeoutError"
            host.restore()
            assert (say(3), server.line()) == ("3", "3")
        # One way: what is said arrives, and only the answer is lost.
        left.cut(sends=False)
        assert (say(4), server.line()) == ("TimeoutError", "4")
        left.restore()
        right.cut(sends=True, receives=False)
        assert (say(5), server.line()) == ("TimeoutError", "5")
        right.restore()
        right.cut(sends=False)
        assert say(6) == "TimeoutError"
        right.cut()
        right.restore()
        assert (say(7), server.line()) == ("7", "7")  # Nothing came of 6.


def test_a_host_has_its_own_name_processes_shared_memory_and_monotonic_clock(
    network: Network,
) -> None:
    left, right = network.add("left", "right")
    program = (
        "import os, socket, sys, time\n"
        "shm = os.listdir('/dev/shm')\n"
        "open('/dev/shm/x', 'x').close()\n"
        "print(socket.gethostname(), socket.gethostbyname('right'), os.getpid() < 50, len(shm), time.monotonic())"
    )
    found = [host.run(program).split() for host in (left, right)]
    assert [line[:4] for line in found] == [
        [host.name, right.address, "True", "0"] for host in (left, right)
    ]
    assert float(found[1][4]) - float(found[0][4]) > 80_000


def test_a_host_that_vanishes_says_nothing_and_comes_back_with_its_name_and_address(
    network: Network,
) -> None:
    left, right = network.add("left", "right")
    with started(left, LISTEN) as server, right.start(CONNECT, "left", 10) as client:
        assert (client.line(), server.line()) == ("sent", "10")
        (inner,) = children(client.pid)
        right.vanish()
        assert client.wait(120) != 0
        assert not Path(f"/proc/{inner}").exists()
        time.sleep(0.3)
        server.kill()
        assert server.communicate()[0] == ""  # Its kernel was not told that the peer is gone.
    right.come_back()
    with started(right, RECEIVE):
        assert left.run(SAY, "right", 8).strip() == "8"


def test_a_slow_link_lets_through_what_it_says(network: Network) -> None:
    left, right = network.add("left", "right")
    right.slow_down(500_000)
    with started(left, LISTEN) as server:
        begun = time.monotonic()
        with right.start(CONNECT, "left", 1_000_000) as client:
            sizes = iter(server.line, "1000000")
            assert len(list(sizes)) > 1
            assert 1.2 < time.monotonic() - begun < 30  # The program's start counts.
            assert client.line() == "sent"


def test_a_killed_program_dies_and_its_host_lives(network: Network) -> None:
    (left,) = network.add("left")
    with left.start("input()") as program:
        program.die()
    assert left.run("print('alive')") == "alive\n"


LEAVES = """
import os, sys
from pathlib import Path
from tests.hosts.hosts import Network
network = Network(Path(sys.argv[1])).__enter__()
(host,) = network.add("left")
program = host.start("import time; print('up', flush=True); time.sleep(1000)")
assert program.line() == "up"
print(host.spaces.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_nothing_of_a_network_outlives_its_process(network: Network, tmp_path: Path) -> None:
    before = _links()
    done = run_python(LEAVES, tmp_path, status=-9)
    pid = int(done.stdout)
    until = time.monotonic() + 120
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    assert _links() == before


def _links() -> str:
    found = subprocess.run(["ip", "-oneline", "link"], capture_output=True, text=True, check=True)
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return found.stdout + spaces.stdout
