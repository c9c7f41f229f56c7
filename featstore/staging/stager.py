"""The stager: stages data files ahead of the reader, in order, under a byte budget."""

import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from featstore.base.closing import Closing
from featstore.base.errors import StateError
from featstore.staging.cache import Cache, Limits, entry_name
from featstore.staging.counts import Counts, StagingStats
from featstore.staging.fetcher import Fetcher, Key, Source, StageItem
from featstore.staging.options import Staging
from featstore.staging.stream import Staged, Stream

__all__ = ["Staged", "Stager"]


class Stager(Closing):
    """Stages files into one cache. A context manager; whoever made it closes it. `stage` and
    `close` may be called from any thread.

    Args:
        options: The staging options.
        source: How files are read and checked; None stages whole files of any kind.
        grace_s: How long iteration waits for room that only the reader itself could free, before a
            BudgetError.
    """

    def __init__(
        self, options: Staging, source: Source | None = None, *, grace_s: float = 30.0
    ) -> None:
        self._grace_s = grace_s
        limits = Limits(
            budget_bytes=options.num_budget_bytes,
            min_free_bytes=options.num_min_free_bytes,
            max_connections=options.max_connections,
        )
        self.cache = Cache(options.directory, limits)
        # With the private directory, if none is named, which other processes may open.
        self.options = replace(options, directory=str(self.cache.root.parent))
        self.counts = Counts()
        self.fetcher = Fetcher(options, self.cache, source or Source(), self.counts)
        self._streams: list[Stream[Any]] = []
        # Guards the list, so that `close` ends every stream before it removes the cache. Reentrant:
        # a finalizer may close the stager in the thread that holds it.
        self._opening = threading.RLock()
        self._is_closed = False

    def stage(self, items: Iterable[StageItem[Key]]) -> Stream[Key]:
        """Starts to stage files in the background.

        Args:
            items: The files. The stager's threads take them one at a time, no further ahead than
                the options allow.

        Returns:
            The staged files in order, each pinned until it is released. An error, also one that
            `items` raises, is raised after the files before it. May be closed on its own.

        Raises:
            StateError: The stager was closed.
        """
        with self._opening:
            if self._is_closed:
                raise StateError("the stager was closed: it stages no more files")
            stream = Stream(self.fetcher, items, self.counts, self.options, self._grace_s)
            self._streams = [*(s for s in self._streams if not s.is_over), stream]
        if self._is_closed:
            stream.close()
        return stream

    def has(self, url: str, size_bytes: int, version: str = "") -> bool:
        """Whether the file, or a part of it, is in the cache now."""
        return self.cache.has(entry_name(url, size_bytes, version))

    def stats(self) -> StagingStats:
        """A copy of the counts."""
        return self.counts.stats(self.cache.num_evicted)

    def close(self) -> None:
        """Ends downloads, joins the threads, releases files that were not taken, and removes a
        private directory.

        A download that a stalled remote holds up is abandoned; its thread ends when the remote's
        client returns. The owner of `items` has to wake them first if they wait: close the
        coordinator before the stager.
        """
        with self._opening:
            self._is_closed = True
            streams = self._streams
        for stream in streams:
            stream.close()
        self.cache.close()
