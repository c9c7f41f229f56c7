"""How pytest-xdist distributes the tests over processes, and ends one in which a test hangs: that test
is named, with the stacks of its threads, and the others run.

It is ended from outside, since nothing within a process ends one whose thread waits in native code
with the interpreter's lock; and its children end too, since a forked one would hold the pipe by whose
end pytest-xdist knows that a process has ended.
"""

import contextlib
import faulthandler
import functools
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.programs import kill_with_children

LIMIT_S = 1200.0
_DUMP_S = 2.0  # for the stacks to be written, once that has begun
_SIGNAL_S = 60.0  # until it begins
_STACKS = ".stacks"


# The annotations of fixtures that take long to start: of each, all modules that use it run in one
# process.
SPARK, HADOOP = r"\bspark: Any\b", r"\bhadoop(_service)?: HadoopCluster\b"


class OnePerFixture(LoadScopeScheduling):  # type: ignore[misc]
    """Distributes whole modules over processes, and all modules that use the Spark session to one
    of them, as those that use an HDFS.

    The distributing process collects nothing itself, so it searches the modules for the fixtures'
    annotations.
    """

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        path = self.config.rootpath / module
        return next((fixture for fixture in (SPARK, HADOOP) if uses(path, fixture)), module)

    def remove_node(self, node: Any) -> str | None:
        """As of its base class, which would run the test again in which a process ended, and end
        the next process.
        """
        for unit in self.assigned_work[node].values():
            for test, has_ended in unit.items():
                if not has_ended:
                    unit[test] = True
                    super().remove_node(node)
                    return str(test)
        super().remove_node(node)
        return None


@functools.cache
def uses(module: Path, fixture: str) -> bool:
    return re.search(fixture, module.read_text()) is not None


def watch(config: pytest.Config, limit_s: float = LIMIT_S) -> None:
    """Ends processes in which a test takes longer than `limit_s`, with its fixtures, where
    pytest-xdist has started them.
    """
    told = getattr(config, "workerinput", None)
    if told is not None:
        config.pluginmanager.register(Noted(Path(told["noted"])))
    elif config.getoption("tx", None):
        place = Path(tempfile.mkdtemp())
        config.add_cleanup(lambda: shutil.rmtree(place, ignore_errors=True))
        config.pluginmanager.register(Watched(place, limit_s))


class Noted:
    """In a process that runs tests: notes in a file named by the process which one it runs.

    Args:
        directory: Of those files.
    """

    def __init__(self, directory: Path) -> None:
        self._file = directory / str(os.getpid())
        self._stacks = self._file.with_suffix(_STACKS).open("w")
        faulthandler.register(signal.SIGUSR2, self._stacks)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._file.write_text(f"{psutil.Process().create_time()} {item.nodeid}")
        try:
            return (yield)
        finally:
            self._file.unlink()


class Watched:
    """In the process that distributes tests: looks at the others' files.

    Args:
        directory: Of those files.
        limit_s: How long a test may take.
    """

    def __init__(self, directory: Path, limit_s: float) -> None:
        self._directory, self._limit_s = directory, limit_s
        self._told, self._ended = list[str](), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def pytest_sessionstart(self) -> None:
        self._thread.start()

    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["noted"] = str(self._directory)

    def pytest_sessionfinish(self) -> None:
        self._ended.set()
        self._thread.join()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for text in self._told:
            terminalreporter.section("a test hung")
            terminalreporter.write_line(text)

    def _watch(self) -> None:
        while not self._ended.wait(min(10.0, self._limit_s / 4)):
            for file in self._directory.iterdir():
                # Its test, or its process, may end meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    since_s = time.time() - file.stat().st_mtime
                    if file.suffix != _STACKS and since_s > self._limit_s:
                        self._end(file)

    def _end(self, file: Path) -> None:
        noted = file.read_text()
        begun, _, test = noted.partition(" ")
        # A process that has crashed leaves its file, and another one may have its number.
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(file.name))
            if process.status() != psutil.STATUS_ZOMBIE and str(process.create_time()) == begun:
                process.send_signal(signal.SIGUSR2)
                stacks, until_s = file.with_suffix(_STACKS), time.monotonic() + _SIGNAL_S
                while not stacks.stat().st_size and time.monotonic() < until_s:
                    time.sleep(0.05)
                time.sleep(_DUMP_S)
                if file.read_text() == noted:
                    self._told.append(
                        f"{test} had not ended after {self._limit_s:.0f} s:\n{stacks.read_text()}"
                    )
                    kill_with_children(process)
                return
        file.unlink()
