"""The marks of runs at work: a small file for each, renewed while the run lives, so that nobody removes what it writes.

A run may last longer than any age at which a file without a snapshot counts as left over; its mark says that it lives.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from featstore.files import delete, join, modified_s, open_write
from featstore.listings import list_files
from featstore.table.layout import RUNS_DIR
from featstore.table.store import check_store

RENEW_S = 60.0
MAX_UNRENEWED_S = 1800.0
"""Half of the least age at which `vacuum` takes a mark for dead."""


@dataclass(kw_only=True)
class Mark:
    """The mark of one run. `keep()` leaves it behind, for a run that does not know whether it was committed."""

    url: str
    clock: Callable[[], float] = time.time
    renewed_s: float = 0.0
    lapsed: bool = False
    """Whether it went unrenewed for so long that another may have taken the run for dead."""
    _kept: bool = False
    _ended: threading.Event = field(default_factory=threading.Event)

    def renew(self) -> None:
        """Writes the mark, and notices if that comes too late."""
        with open_write(self.url) as file:
            file.write(json.dumps({"format": 1}).encode())
        self.check()
        self.renewed_s = self.clock()

    def check(self) -> bool:
        """Whether the mark has been there, without a gap, since the run began."""
        self.lapsed = self.lapsed or (self.renewed_s > 0 and self.clock() - self.renewed_s > MAX_UNRENEWED_S)
        return not self.lapsed

    def keep(self) -> None:
        self._kept = True

    def run(self) -> None:
        """Renews the mark until it ends. A renewal that fails is tried again; `lapsed` tells if that went on too long."""
        while not self._ended.wait(RENEW_S):
            with contextlib.suppress(OSError):
                self.renew()

    def end(self) -> None:
        self._ended.set()

    def remove(self) -> None:
        if not self._kept:
            with contextlib.suppress(OSError):
                delete(self.url)


@contextlib.contextmanager
def marked(table_url: str, tag: str) -> Iterator[Mark]:
    """The run of this tag is at work until the end of the block.

    Before any work is done: OSError where nothing can be written to the table, UnsafeStoreError where it could not be committed
    safely.
    """
    check_store(table_url)
    mark = Mark(url=join(table_url, RUNS_DIR, tag))
    mark.renew()
    thread = threading.Thread(target=mark.run, name="featstore-mark")
    thread.start()
    try:
        yield mark
    finally:
        mark.end()
        thread.join()
        mark.remove()


def running(table_url: str, *, now_s: float, grace_s: float) -> set[str]:
    """The tags of the runs whose marks were renewed within the last `grace_s`."""
    found = list_files(join(table_url, RUNS_DIR), suffix="")
    return {entry.name for entry in found if now_s - _modified_s(entry.url, now_s) <= grace_s}


def _modified_s(url: str, now_s: float) -> float:
    """A mark that is gone meanwhile was that of a live run, whose commit may have landed or not."""
    try:
        return modified_s(url)
    except FileNotFoundError:
        return now_s
