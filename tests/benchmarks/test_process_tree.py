"""CPU seconds of trees of processes, of real ones."""

import signal
import subprocess
import sys
import time

from shared_parts.process_tree import pss_bytes, spent_s, tree_cpu_s, tree_pss_bytes

BURN = "import time\nwhile time.process_time() < 0.5: pass\n"
# And then waits until it is told to end, for which it needs next to no time.
BURN_AND_WAIT = f"{BURN}import os, sys\nprint(flush=True)\nsys.stdin.read()\nos._exit(0)"
# Its child burns, and waits until it is told to end. The parent ignores SIGCHLD as Spark's daemon
# of Python workers does, so that the system forgets what the child has spent.
DAEMON = f"""
import signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", {BURN_AND_WAIT!r}],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print("burnt", flush=True)
input()
child.stdin.close()
child.stdout.read()
print("ended", flush=True)
input()
"""


def test_what_children_spend_is_counted_while_they_run_and_when_they_have_ended() -> None:
    before = tree_cpu_s()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert 0.4 < spent_s(before, tree_cpu_s()) < 5.0


def test_what_a_child_spent_before_is_not_counted_when_it_ends() -> None:
    program = [sys.executable, "-c", BURN_AND_WAIT]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        before = tree_cpu_s()
        assert before[child.pid].own_s > 0.4
        child.stdin.close()
        child.wait()
        assert -0.05 < spent_s(before, tree_cpu_s()) < 0.3


def test_memory_of_a_tree_is_that_of_its_processes_and_nothing_of_an_ended_one() -> None:
    # Margins of 16 MB: what a process shares is divided anew whenever another program starts.
    child = "kept = b'y' * (128 << 20); print(flush=True); input()"
    parent = f"import subprocess, sys; kept = b'x' * (64 << 20); subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        assert 64 << 20 < pss_bytes(process.pid) < 80 << 20
        assert 192 << 20 < tree_pss_bytes(process.pid) < 224 << 20
        process.stdin.write(b"\n")
        process.stdin.close()
        process.wait()
        assert tree_pss_bytes(process.pid) == 0


def test_a_process_that_ends_is_not_subtracted_from_what_others_spend_meanwhile() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DAEMON], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "burnt\n"
        before = tree_cpu_s()
        daemon.stdin.write("\n")
        daemon.stdin.flush()
        assert daemon.stdout.readline() == "ended\n"
        deadline = time.monotonic() + 120
        while len(tree_cpu_s()) >= len(before) and time.monotonic() < deadline:
            time.sleep(0.01)
        after = tree_cpu_s()
        assert len(after) < len(before), "the child is still there"
        assert 0.0 <= spent_s(before, after) < 0.4
        daemon.send_signal(signal.SIGTERM)
