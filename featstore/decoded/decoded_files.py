"""The decoded columns of a loader's data files: found in the cache, or made when a file is read for
the first time.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

from featstore.base.errors import (
    BudgetError,
    DataFileError,
    OutOfMemoryError,
    StagingError,
)
from featstore.decoded.decoded_cache import DecodedCache
from featstore.decoded.decoded_file import DecodedFile
from featstore.decoded.decoding import DecodeTerms, entry_request, name_of_entry
from featstore.decoded.entry_file import FileState, MappedEntry
from featstore.decoded.file_sources import FileSource
from featstore.reading.file_columns import Selection
from featstore.staging.budget import format_bytes
from featstore.staging.cache import Refusal
from featstore.staging.stager import Stager
from featstore.table.snapshot import DataFile, GroupFile

_LOG = logging.getLogger(__name__)
_LIMIT = "staging.budget_bytes leaves decoded columns that are open at once"


class DecodedFiles:
    """Decoded columns for a reader that can also do without: whatever goes wrong with them is
    warned of once, and from then on files are read as if there were none.

    An entry that this process has read before, and that is gone, is a sign that the cache is too
    small for all of them. It is not made again, since each would only drive out the next.

    `open` and the closing of what it gives belong to one thread at a time; `leaves` and `has` may
    be called from others, which only look. Lock: `_naming` guards the names, and is held for
    nothing else.

    Args:
        stager: The stager of the same cache.
        selection: The columns.
        room_bytes: What entries that are open at once may take of the budget, so that the files
            that are staged beside them still fit.
    """

    def __init__(self, stager: Stager, selection: Selection, room_bytes: int) -> None:
        self._stager, self._selection, self._room_bytes = stager, selection, room_bytes
        self._cache = DecodedCache(stager.cache, max(0, room_bytes), grace_s=0, limit=_LIMIT)
        # By the name of each entry that was opened: what was seen when it was last checked.
        self._seen = dict[str, FileState | None]()
        self._names = dict[tuple[str, str, tuple[GroupFile, ...]], str]()
        self._naming = threading.Lock()
        self._held_bytes = 0
        self._is_off = False

    def has(self, file: DataFile) -> bool:
        """Whether the file's decoded columns are in the cache now."""
        return not self._is_off and self._stager.cache.has(self._name(file))

    def leaves(self, file: DataFile) -> bool:
        """Whether the file need not be staged now: its decoded columns are there, or it is read
        where it is stored.
        """
        stages = self._stager.options.stages
        return self.has(file) or not any(stages(part.url) for part in file.parts)

    def open(
        self, file: DataFile, sources: Callable[[], Sequence[FileSource]], terms: DecodeTerms
    ) -> DecodedFile | None:
        """The file's decoded columns, made if they are not there.

        Args:
            file: The data file.
            sources: Gives the file and those of its slot groups, if they have to be read.
            terms: How they are decoded.

        Returns:
            The decoded columns, which the caller closes; None if the files are to be read instead:
            another process is making them, the file cannot be read to its end, or there is no room.

        Raises:
            StateError: Decoding was cancelled.
        """
        if self._is_off:
            return None
        request = entry_request(file, lambda: nullcontext(sources()), self._selection, terms)
        try:
            if request.name in self._seen and not self._stager.cache.has(request.name):
                raise StagingError(
                    f"the decoded columns of {file.path} are gone from {self._stager.cache.root}: "
                    "evicted for others, or removed; raise staging.budget_bytes so that all fit"
                )
            found = self._cache.open(request, self._seen.get(request.name), self._held_bytes)
            if isinstance(found, MappedEntry):
                return self._opened(file, request.name, found)
            if found is Refusal.FULL:
                raise BudgetError(
                    f"staging.budget_bytes: no room for {request.title}: {found.value}; raise the "
                    f"budget or free the disk"
                )
            return None  # Another process is making it.
        except (BudgetError, StagingError) as error:
            self._is_off = True
            _LOG.warning(
                "staging.decoded: %s; files are read without decoded columns from now on", error
            )
            return None
        except (DataFileError, OutOfMemoryError, OSError):
            return None  # Whoever reads the file reports what is wrong, after the rows before it.

    def _opened(self, file: DataFile, name: str, found: MappedEntry) -> DecodedFile:
        held_bytes = found.held_bytes
        if self._held_bytes + held_bytes > self._room_bytes:
            found.close()
            raise BudgetError(
                f"{_LIMIT} {format_bytes(self._room_bytes)}: expected room for {file.path}, found "
                f"{format_bytes(held_bytes)} beside {format_bytes(self._held_bytes)}; raise it, or "
                "lower shuffle.interleave or the number of workers"
            )
        self._seen[name] = found.state
        self._held_bytes += held_bytes
        return DecodedFile(found, file.path, partial(self._let_go, held_bytes))

    def _name(self, file: DataFile) -> str:
        """The name of the file's entry. Of hundreds of columns it takes a millisecond, and order
        `dynamic` asks for many files before each claim.
        """
        key = (file.url, file.version, file.groups)
        with self._naming:
            if key not in self._names:
                self._names[key] = name_of_entry(file, self._selection)
            return self._names[key]

    def _let_go(self, held_bytes: int) -> None:
        self._held_bytes -= held_bytes
