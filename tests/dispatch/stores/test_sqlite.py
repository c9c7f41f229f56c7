import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from featstore.base.errors import DispatchError
from featstore.dispatch.stores.sqlite import SqliteStore
from tests.programs import Program, command_of, run_python

FORKED = """
import os, sys
from pathlib import Path
from featstore.dispatch.stores.sqlite import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
store.add("n", 1)
children = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        for _ in range(200):
            store.add("n", 1)
        os._exit(0)
    children.append(pid)
for _ in range(200):
    store.add("n", 1)
store.close()
print([os.waitpid(pid, 0)[1] for pid in children])
"""
# Three threads make handles as the second argument says, while the process forks. Prints how many
# forks have inherited an open file of the store.
FORKING = """
import gc, os, sys, threading, warnings
from pathlib import Path
from featstore.dispatch.stores.sqlite import SqliteStore
path, ended = Path(sys.argv[1]), threading.Event()
class Cycle:
    def __init__(self):
        self.store, self.itself = SqliteStore(path), self
def close():
    for store in [SqliteStore(path) for _ in range(5)]:
        store.close()
def drop():
    for _ in range(5):
        SqliteStore(path)
def leave_to_the_collector():
    for _ in range(5):
        Cycle()
    gc.collect()
def make():
    while not ended.is_set():
        {"close": close, "drop": drop, "collect": leave_to_the_collector}[sys.argv[2]]()
def num_open():
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            pass  # The directory that was listed.
    return sum(name.startswith(str(path)) for name in found)
# Since Python 3.12 a fork beside threads is warned of. Here it is what is tested.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
threads = [threading.Thread(target=make) for _ in range(3)]
for thread in threads:
    thread.start()
sys.setswitchinterval(1e-5)
codes = []
for _ in range(100):
    pid = os.fork()
    if pid == 0:
        os._exit(num_open() > 0)
    codes.append(os.waitpid(pid, 0)[1])
ended.set()
for thread in threads:
    thread.join()
print(sum(map(bool, codes)))
"""
OPEN_AT_ONCE = """
import sys
from pathlib import Path
from featstore.dispatch.stores.sqlite import SqliteStore
sys.stdin.readline()
store = SqliteStore(Path(sys.argv[1]))
for _ in range(100):
    store.add("n", 1)
"""
# Two handles in one process: the first one writes and is closed, the second one writes then.
HANDLES = """
import sys
from pathlib import Path
from featstore.dispatch.stores import sqlite
from featstore.dispatch.stores.sqlite import SqliteStore
sqlite._TRY_S = 0.2
first, second = SqliteStore(Path(sys.argv[1])), SqliteStore(Path(sys.argv[1]))
first.add("n", 1)
first.close()
print("written", flush=True)
sys.stdin.readline()
print(second.add("n", 1))
"""
ADDS = """
import sys
from pathlib import Path
from featstore.dispatch.stores.sqlite import SqliteStore
print(SqliteStore(Path(sys.argv[1])).add("n", 1))
"""


def test_a_handle_carried_through_a_fork_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    assert run_python(FORKED, path).stdout.strip() == "[0, 0, 0]"
    assert SqliteStore(path).get_or_none("n") == "801"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="lists open files in /proc")
@pytest.mark.parametrize("handles_are", ["close", "drop", "collect"])
def test_a_fork_inherits_no_connection_while_other_threads_make_and_lose_handles(
    tmp_path: Path, handles_are: str
) -> None:
    done = run_python(FORKING, tmp_path / "x.db", handles_are)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_several_processes_can_create_one_file_at_once(tmp_path: Path) -> None:
    programs = [Program(OPEN_AT_ONCE, tmp_path / "x.db") for _ in range(6)]
    for program in programs:
        program.result("\n")
    assert SqliteStore(tmp_path / "x.db").get_or_none("n") == "600"


def test_values_outlive_all_handles_and_any_sqlite_tool_reads_them(
    tmp_path: Path,
) -> None:
    store = SqliteStore(tmp_path / "x.db")
    store.set("k", "v")
    store.close()
    assert SqliteStore(tmp_path / "x.db").get_or_none("k") == "v"
    connection = sqlite3.connect(tmp_path / "x.db")
    assert connection.execute("SELECT key, value FROM entries").fetchall() == [("k", "v")]
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_a_file_that_is_not_a_database_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"no database" * 1000)
    with pytest.raises(DispatchError, match=r"x\.db cannot be used: file is not a database"):
        SqliteStore(tmp_path / "x.db")


def test_a_disk_failure_in_a_transaction_is_reported_instead_of_the_failed_rollback(
    tmp_path: Path,
) -> None:
    """SQLite itself ends a transaction if the disk fails. Here its log is truncated under a handle
    that has not read it.
    """
    reader, writer = SqliteStore(tmp_path / "x.db"), SqliteStore(tmp_path / "x.db")
    writer.set("n", "1")
    (tmp_path / "x.db-wal").open("wb").close()
    with pytest.raises(
        DispatchError, match=r"x\.db cannot be used: disk I/O error \(SQLITE_IOERR_SHORT_READ\)"
    ):
        reader.add("n", 1)


def test_a_path_that_cannot_hold_a_file_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DispatchError, match=r"file/x\.db cannot be used.*writable"):
        SqliteStore(tmp_path / "file" / "x.db")


def _traced(path: Path, log: Path, *more: str) -> list[str]:
    """The command of HANDLES under strace, which logs the calls that lock the shared memory."""
    tracing = ["strace", "-f", "-qq", "-o", str(log), "-P", f"{path}-shm", "-e", "trace=fcntl"]
    return [*tracing, *more, *command_of(HANDLES, path)]


def _calls(log: Path) -> list[str]:
    return log.read_text().splitlines()


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace makes the call fail")
def test_a_lock_that_the_system_fails_to_release_is_dropped_by_a_new_connection(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    dry = subprocess.run(
        _traced(tmp_path / "dry.db", log), input="\n", capture_output=True, text=True, check=False
    )
    if dry.returncode:
        pytest.skip(f"strace may trace nothing here: {dry.stderr}")
    # The write lock is byte 120 of the shared memory. It is released last by the second handle, and
    # before that by the first one.
    releases = [n for n, call in enumerate(_calls(log), 1) if "F_UNLCK" in call and "=120," in call]
    path = tmp_path / "x.db"
    inject = f"inject=fcntl:error=EIO:when={releases[-2]}"
    with subprocess.Popen(
        _traced(path, log, "-e", inject), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "written\n"
        assert sum("INJECTED" in call for call in _calls(log)) == 1
        with Program(ADDS, path) as other:
            out, _ = program.communicate("\n", timeout=60)
            assert sorted([out, other.result()]) == ["2\n", "3\n"]
