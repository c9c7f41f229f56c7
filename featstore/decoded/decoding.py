"""Decodes data files into entries of the cache, a file and a selection each. And the decoded
columns of a loader's data files: found in the cache, or made when a file is first read.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from featstore.base.errors import (
    BudgetError,
    DataFileError,
    OutOfMemoryError,
    StagingError,
)
from featstore.base.redaction import redact
from featstore.base.schema import FieldId
from featstore.decoded.decoded_cache import DecodedCache, EntryRequest
from featstore.decoded.decoded_file import (
    DecodedFile,
    decoded_batch,
    decoded_schema,
    num_bytes_beside,
    with_row_groups,
)
from featstore.decoded.entry_file import EntryWriter, FileState, MappedEntry
from featstore.decoded.file_sources import FileSource, SourcesAhead
from featstore.reading.aligned import aligned_reader
from featstore.reading.file_columns import ColumnCache, Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.spans import require_held
from featstore.staging.budget import format_bytes
from featstore.staging.cache import Refusal, entry_name
from featstore.staging.stager import Stager
from featstore.table.row_masks import RowMask
from featstore.table.snapshot import DataFile, GroupFile

_LOG = logging.getLogger(__name__)
_LIMIT = "staging.budget_bytes leaves decoded columns that are open at once"
OpenedSources = Callable[[], AbstractContextManager[Sequence[FileSource]]]
# Of entries that are written otherwise the names differ, so that neither reads the other's.
FORMAT = 2
# A piece is decoded and written as one record batch. Larger ones take more memory, which the kernel
# has to clear first; the more there are, the longer a gather takes.
_PIECE_BYTES, _PIECE_ROWS = 96 << 20, 1 << 20
# What Arrow's file format adds: a schema, and for each batch a header, and padding of each buffer.
_OVERHEAD_BYTES, _COLUMN_OVERHEAD_BYTES = 64 << 10, 512
# Of an entry's row groups, in the metadata of its schema.
_GROUP_BYTES = 64


@dataclass(frozen=True, kw_only=True)
class DecodeTerms:
    """How a data file is decoded.

    Attributes:
        num_threads: In how many threads.
        most_room_bytes: The working memory of all of them together, and of a piece unless a single
            row group takes more; None is no limit.
        cancelled: As of `OpenFile`.
        holding: Called with the memory that decoding will take, which it holds within the block.
        column_cache: Shared by files that are decoded one after the other.
    """

    num_threads: int
    most_room_bytes: int | None = None
    cancelled: bytes | bytearray = b"\0"
    holding: Callable[[int], AbstractContextManager[object]] = lambda num_bytes: nullcontext()
    column_cache: ColumnCache | None = None


def entry_of(
    file: DataFile,
    selection: Selection,
    sources: SourcesAhead,
    num_threads: int,
    column_cache: ColumnCache | None = None,
) -> EntryRequest:
    """The entry of a data file, whose files are staged if they are not local.

    Args:
        file: The data file.
        selection: The columns.
        sources: Opens its files.
        num_threads: In how many threads columns are decoded.
        column_cache: As of `DecodeTerms`.
    """
    terms = DecodeTerms(num_threads=num_threads, column_cache=column_cache)
    return entry_request(file, partial(sources.opened, file), selection, terms)


@contextmanager
def entries_ahead(
    stager: Stager,
    files: Sequence[DataFile],
    selection: Selection,
    num_threads: int,
    column_cache: ColumnCache | None = None,
) -> Iterator[tuple[DecodedCache, list[EntryRequest]]]:
    """The cache of decoded columns in the stager's directory, and the entries of data files, to be
    opened in this order. While one is built in the block, the files of the next ones are staged.

    Args:
        stager: Stages files that are not read in place.
        files: The data files.
        selection: The columns.
        num_threads: In how many threads columns are decoded.
        column_cache: As of `DecodeTerms`.
    """
    cache = stager.cache
    with SourcesAhead(
        stager, files, lambda file: not cache.has(name_of_entry(file, selection))
    ) as sources:
        wanted = [entry_of(file, selection, sources, num_threads, column_cache) for file in files]
        budget_bytes = stager.options.num_budget_bytes
        yield DecodedCache(cache, budget_bytes, let_go=sources.close), wanted


def entry_request(
    file: DataFile, opened: OpenedSources, selection: Selection, terms: DecodeTerms
) -> EntryRequest:
    """The entry of a data file's rows, with those of its slot groups' files: as of `decode`."""
    num_columns = len(selection.slots) + len(selection.others)
    return EntryRequest(
        name=name_of_entry(file, selection),
        title=f"{num_columns} decoded columns of {redact(file.url)}",
        first_bytes=file.size_bytes,
        build=partial(decode, file, opened, selection, terms),
    )


def name_of_entry(file: DataFile, selection: Selection) -> str:
    """The name of a data file's entry in the cache.

    It follows from the files, at their versions, from the row mask, and from the selected columns,
    in whatever order: from nothing else of the table or of the request.
    """
    columns = {
        "decoded": FORMAT,
        "version": file.version,
        "groups": [[group.url, group.size_bytes, group.version] for group in file.groups],
        "slots": sorted(
            [slot.name, str(slot.kind), list(slot.shape), slot.number] for slot in selection.slots
        ),
        "others": sorted([field.name, str(field.type)] for field in selection.others),
    }
    if file.mask is not None:
        columns["mask"] = file.mask.to_json()
    # Ids and defaults, which tables of other formats lack.
    fields = (*(slot.to_field() for slot in selection.slots), *selection.others)
    if by_id := sorted((f.name, str(found)) for f in fields if (found := FieldId.of(f))):
        columns["by_id"] = by_id
    return entry_name(file.url, file.size_bytes, json.dumps(columns, sort_keys=True))


def decode(
    file: DataFile,
    opened: OpenedSources,
    selection: Selection,
    terms: DecodeTerms,
    writer: EntryWriter,
) -> None:
    """Decodes all rows of a data file, and writes them.

    Args:
        file: The data file.
        opened: Gives where it is read, and after it the files of its slot groups, until the end of
            its block.
        selection: The columns.
        terms: In how many threads, and with how much memory.
        writer: Where they are written.

    Raises:
        DataFileError: A file cannot be read, or is not what the table says.
        StateError: Decoding was cancelled.
    """
    with ExitStack() as stack:
        sources = stack.enter_context(opened())
        base, *groups = [
            stack.enter_context(
                OpenFile(
                    each.source,
                    each.path,
                    is_checked=each.is_checked,
                    cancelled=terms.cancelled,
                    column_cache=terms.column_cache,
                )
            )
            for each in sources
        ]
        reader = aligned_reader(
            base,
            groups,
            selection,
            num_threads=terms.num_threads,
            as_values=True,
            most_room_bytes=terms.most_room_bytes,
        )
        held = {each.path: each.held for each in sources}
        for part, columns in reader.parts:
            require_held(part, columns, held[part.name])
        if base.num_rows != file.num_rows:
            raise DataFileError(
                f"{file.path}: expected {file.num_rows} rows, as the table says, found "
                f"{base.num_rows}"
            )
        sizes = [reader.size_bytes([index]) for index in range(len(base.row_group_rows))]
        pieces = list(_pieces(base.row_group_rows, sizes, terms.most_room_bytes or _PIECE_BYTES))
        writer.reserve(_expected_bytes(selection, base.row_group_rows, sizes, len(pieces)))
        schema = with_row_groups(decoded_schema(selection), base.row_group_rows, sizes)
        batches = (decoded_batch(reader.read(piece), selection) for piece in pieces)
        taken = (sum(sizes[i] for i in piece) + reader.room_bytes(piece) for piece in pieces)
        with terms.holding(max(taken, default=0)):
            writer.write(schema, batches)


def _pieces(
    row_group_rows: Sequence[int], sizes: Sequence[int], most_bytes: int
) -> Iterator[range]:
    """The row groups of each piece: as many as fit, at least one."""
    most_bytes = min(most_bytes, _PIECE_BYTES)
    first = num_rows = num_bytes = 0
    for index, group_rows in enumerate(row_group_rows):
        group_bytes = sizes[index]
        is_full = num_bytes + group_bytes > most_bytes or num_rows + group_rows > _PIECE_ROWS
        if is_full and index > first:
            yield range(first, index)
            first, num_rows, num_bytes = index, 0, 0
        num_rows, num_bytes = num_rows + group_rows, num_bytes + group_bytes
    if first < len(row_group_rows):
        yield range(first, len(row_group_rows))


def _expected_bytes(
    selection: Selection, row_group_rows: Sequence[int], sizes: Sequence[int], num_pieces: int
) -> int:
    num_rows, num_columns = sum(row_group_rows), len(selection.slots) + len(selection.others)
    overhead_bytes = _OVERHEAD_BYTES + _COLUMN_OVERHEAD_BYTES * num_columns * (1 + num_pieces)
    return (
        sum(sizes)
        + _GROUP_BYTES * len(sizes)
        + num_bytes_beside(selection, num_rows)
        + overhead_bytes
    )


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
        self._names = dict[tuple[str, str, RowMask | None, tuple[GroupFile, ...]], str]()
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
        key = (file.url, file.version, file.mask, file.groups)
        with self._naming:
            if key not in self._names:
                self._names[key] = name_of_entry(file, self._selection)
            return self._names[key]

    def _let_go(self, held_bytes: int) -> None:
        self._held_bytes -= held_bytes
