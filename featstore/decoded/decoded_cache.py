"""The cache of decoded columns: opens entries, and builds those that are missing.

An entry is a file of the staging cache like any other: it takes its part of the budget, is pinned
while it is mapped, and is evicted when it was used longest ago.
"""

import errno
import logging
import os
import resource
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from featstore.base.closing import cleaned_up_on_failure
from featstore.base.errors import BudgetError, StagingError
from featstore.base.host import allow_descriptors
from featstore.decoded.entry_file import (
    DamagedEntryError,
    EntryWriter,
    FileState,
    MappedEntry,
)
from featstore.staging.budget import format_bytes
from featstore.staging.cache import Cache, Download, Refusal, RemovedError
from featstore.staging.retry import StoppableBackoff

_LOG = logging.getLogger(__name__)
# How often in a row the directory of the cache, or an entry in it, may be removed or damaged by
# others before that is an error.
_MOST_ATTEMPTS = 10
# An open entry holds its pin, and Python's mmap a copy of it. While one is built, the data file,
# the cache's directory and connections are open, too.
_ENTRY_DESCRIPTORS, _SPARE_DESCRIPTORS = 2, 100


@dataclass(frozen=True, kw_only=True)
class EntryRequest:
    """An entry that is wanted.

    Attributes:
        name: Its name in the cache, see `staging.cache.entry_name`.
        title: What it is of, for lists and errors.
        first_bytes: What to reserve before its size is known.
        build: Writes its content.
    """

    name: str
    title: str
    first_bytes: int
    build: Callable[[EntryWriter], None]


class DecodedCache:
    """Opens and builds entries. For one thread.

    Args:
        cache: The staging cache.
        budget_bytes: Its budget.
        grace_s: How long to wait for room that other processes have pinned, before a BudgetError.
        limit: What `budget_bytes` is, for errors.
        let_go: Called before waiting for others or for room. Lets go of what this process has
            pinned beside entries and can do without, which others may wait for.
    """

    def __init__(
        self,
        cache: Cache,
        budget_bytes: int,
        *,
        grace_s: float = 30.0,
        limit: str = "staging.budget_bytes is",
        let_go: Callable[[], object] = lambda: None,
    ) -> None:
        self._cache, self._budget_bytes, self._grace_s = cache, budget_bytes, grace_s
        self._limit, self._let_go = limit, let_go

    def open_all(
        self,
        wanted: Sequence[EntryRequest],
        *,
        checked_states: Mapping[str, FileState] | None = None,
        on_open: Callable[[int], object] = lambda number: None,
    ) -> list[MappedEntry]:
        """Opens entries, and builds those that are missing or damaged.

        An entry that another process is building is left to it: the next one is built meanwhile, so
        two processes that want the same entries share the work.

        Args:
            wanted: The entries.
            checked_states: What was seen when entries of these names were last checked. Those that
                have not changed since are not checked again.
            on_open: Called with the number of each entry once it is open.

        Returns:
            The entries in order, pinned. The caller closes them.

        Raises:
            BudgetError: They do not fit into the budget together.
            StagingError: The disk fails, entries are removed again and again, or the process may
                not open that many files.
            DataFileError: A data file cannot be read.
        """
        found = dict[int, MappedEntry]()
        backoff = StoppableBackoff(threading.Event())
        with _opening(found, len(wanted)):
            while True:
                num_before, refused = len(found), list[tuple[EntryRequest, Refusal]]()
                for number, request in enumerate(wanted):
                    if number not in found:
                        state = (checked_states or {}).get(request.name)
                        answer = self.open(request, state, _held_bytes(found))
                        if isinstance(answer, Refusal):
                            refused.append((request, answer))
                        else:
                            found[number] = answer
                            on_open(number)
                if not refused:
                    return [found[number] for number in range(len(wanted))]
                request, refusal = refused[0]
                if len(found) > num_before:
                    backoff = StoppableBackoff(threading.Event())
                else:
                    self._let_go()
                    if refusal is Refusal.FULL:
                        self._require_room(
                            request, request.first_bytes, _held_bytes(found), backoff.waited_s
                        )
                backoff.wait(f"{request.title} waits: {refusal.value}")

    def open(
        self, request: EntryRequest, state: FileState | None, held_bytes: int
    ) -> MappedEntry | Refusal:
        """Opens one entry, and builds it if it is missing or damaged.

        Args:
            request: The entry.
            state: What was seen when it was last checked.
            held_bytes: What other entries that are open take of the budget.

        Returns:
            The entry, pinned, which the caller closes; or why the call must be repeated later.

        Raises:
            Everything that `open_all` raises.
        """
        for attempt in range(_MOST_ATTEMPTS):
            try:
                answer = self._cache.request(
                    request.name, None, request.first_bytes, is_steady=True
                )
                if isinstance(answer, Refusal):
                    return answer
                if isinstance(answer, Download):
                    return self._built(request, answer, held_bytes)
                with self._cache.named_errors():
                    return MappedEntry(self._cache, answer, state)
            except (RemovedError, DamagedEntryError) as error:
                if attempt + 1 == _MOST_ATTEMPTS:
                    raise
                _LOG.warning("an entry is opened again: %s", error)
        raise AssertionError("the last attempt returns or raises")

    def _built(self, request: EntryRequest, download: Download, held_bytes: int) -> MappedEntry:
        def reserve(num_bytes: int) -> None:
            self._require_room(request, num_bytes, held_bytes, None)
            backoff = StoppableBackoff(threading.Event())
            while (refusal := download.reserve(num_bytes)) is not None:
                self._let_go()
                self._require_room(request, num_bytes, held_bytes, backoff.waited_s)
                backoff.wait(f"{request.title} waits: {refusal.value}")

        writer = EntryWriter(download, reserve)
        # Failures of the files that are read are raised as errors of featstore.
        with (
            cleaned_up_on_failure(download.abandon),
            self._cache.named_errors(request.title),
        ):
            request.build(writer)
            if writer.num_bytes > download.num_bytes:
                reserve(writer.num_bytes)
            pin = download.publish(writer.record(request.title))
            # What a crash of the machine may lose of the bytes is found when the entry is next
            # opened, so the file is not synced.
            return MappedEntry(self._cache, pin, is_new=True)

    def _require_room(
        self, request: EntryRequest, wanted_bytes: int, held_bytes: int, waited_s: float | None
    ) -> None:
        """BudgetError if the entry cannot fit beside those that are open, or others have not made
        room for it in time; None: that is not waited for yet.
        """
        is_late = waited_s is not None and waited_s >= self._grace_s
        if is_late or held_bytes + wanted_bytes > self._budget_bytes:
            raise BudgetError(
                f"{self._limit} {format_bytes(self._budget_bytes)}: no room for {request.title} of "
                f"{format_bytes(wanted_bytes)} beside {format_bytes(held_bytes)} of decoded "
                "columns that are open, and what other processes read; decoded columns have to fit "
                "all at once: raise the budget, free the disk, or select fewer slots or days"
            )


@contextmanager
def _opening(found: Mapping[int, MappedEntry], num_entries: int) -> Iterator[None]:
    """Lets this many entries be opened, and closes those that were opened if one fails."""
    try:
        allow_descriptors(_ENTRY_DESCRIPTORS * num_entries + _SPARE_DESCRIPTORS)
        yield
    except BaseException as error:
        for entry in found.values():
            entry.close()
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise StagingError(
            f"{num_entries} files of decoded columns: expected to open "
            f"{_ENTRY_DESCRIPTORS * num_entries} descriptors, found a limit of {limit}: "
            f"{os.strerror(error.errno)}; raise the hard limit of open files (ulimit -n), compact "
            "the table into fewer files, or select fewer days"
        ) from error


def _held_bytes(entries: Mapping[int, MappedEntry]) -> int:
    return sum(entry.held_bytes for entry in entries.values())
