"""The samples of a dataset, opened in one process: entries of the cache, mapped, and what is found
through them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from featstore.base.closing import Closing, cleaned_up_on_failure
from featstore.base.processes import cached_property
from featstore.base.redaction import redact
from featstore.decoded.decoded_cache import EntryRequest
from featstore.decoded.decoded_file import (
    Piece,
    has_columns,
    no_rows,
    piece_of,
    row_groups_of,
)
from featstore.decoded.decoding import entries_ahead
from featstore.decoded.entry_file import FileState, MappedEntry
from featstore.decoded.file_sources import staging_source
from featstore.loader.request.matching import Listed, Partition
from featstore.loader.request.options import SlotRequest
from featstore.loader.request.request import Request
from featstore.ops.arrays import array_of
from featstore.reading.buffers import Array, one_array
from featstore.reading.file_columns import ColumnCache, Selection
from featstore.reading.histories import lists_of_rows
from featstore.samples.decoded_rows import DecodedRows
from featstore.samples.lookups import (
    filters_rows,
    id_entry,
    index_entry,
    index_of,
    places_of_ids,
    require_no_nulls,
)
from featstore.staging.options import Staging
from featstore.staging.stager import Stager
from featstore.tensors.batch import Batch


@dataclass(frozen=True, kw_only=True)
class SamplePlan:
    """What a dataset is made of. Other processes open the same samples by it.

    Attributes:
        request: What is delivered.
        files: The data files, in the order of their samples.
        staging: Where they are staged and decoded.
        num_threads: In how many threads columns are decoded.
        id_column: The column of ids.
        checked_states: What was seen when entries of these names were last checked.
    """

    request: Request
    files: tuple[Listed, ...]
    staging: Staging
    num_threads: int
    id_column: pa.Field | None = None
    checked_states: Mapping[str, FileState] | None = None

    @property
    def selection(self) -> Selection:
        """All columns to decode."""
        selection, id_column = self.request.selection, self.id_column
        if id_column is None or any(id_column.name == field.name for field in selection.others):
            return selection
        return Selection(slots=selection.slots, others=(*selection.others, id_column))


class OpenSamples(Closing):
    """The samples, opened. For one thread. Whoever opened it closes it; forked copies of the
    process may use it, too.

    Args:
        plan: What to open. What is not in the cache is decoded first.
        progress: Whether to show a progress bar on standard error.

    Raises:
        BudgetError: The decoded columns do not fit into the staging budget.
        DataFileError: A data file cannot be read.
        MissingValueError: A label or weight is null, and the request does not say what to do.
        StagingError: The disk fails.
    """

    def __init__(self, plan: SamplePlan, *, progress: bool = False) -> None:
        self._entries: list[tuple[str, MappedEntry]] = []
        self._stager = Stager(plan.staging, staging_source(plan.selection))
        with cleaned_up_on_failure(self.close):
            self._open(plan, progress=progress)

    def _open(self, plan: SamplePlan, *, progress: bool) -> None:
        self.plan = replace(plan, staging=self._stager.options)
        column_cache, files = ColumnCache(), [file for file, _ in plan.files]
        num_rows = [file.num_rows for file in files]
        with (
            entries_ahead(self._stager, files, plan.selection, plan.num_threads, column_cache) as (
                self._cache,
                wanted,
            ),
            tqdm(
                desc="decoding",
                total=sum(num_rows),
                unit=" rows",
                unit_scale=True,
                disable=None if progress else True,
            ) as bar,
        ):
            entries = self._opened(wanted, on_open=lambda number: bar.update(num_rows[number]))
        self._rows = DecodedRows(_pieces(self.plan, entries), plan.request)
        self._index = self._filtered([request.name for request in wanted])
        # Another process has checked the same rows if it has checked their bytes.
        if plan.checked_states is None:
            require_no_nulls(plan.request, self._rows, self._index)
            for entry in entries:
                column_cache.note(plan.selection, has_found=has_columns(entry.schema))
            for file, _ in plan.files[:1]:
                column_cache.warn_if_none(redact(file.table_url))

    def _opened(
        self,
        wanted: Sequence[EntryRequest],
        on_open: Callable[[int], object] = lambda number: None,
    ) -> list[MappedEntry]:
        entries = self._cache.open_all(
            wanted, checked_states=self.plan.checked_states, on_open=on_open
        )
        self._entries += zip((request.name for request in wanted), entries, strict=True)
        return entries

    def _filtered(self, files: Sequence[str]) -> Array | None:
        """The numbers of the rows that are samples; None: all are."""
        request, listed = self.plan.request, self.plan.files
        self._identity = json.dumps(list(files))
        if not filters_rows(request, listed):
            return None
        wanted = index_entry(request, self._rows, listed, files)
        self._identity = wanted.name
        [entry] = self._opened([wanted])
        return index_of(entry)

    @property
    def num_samples(self) -> int:
        """How many samples there are."""
        return self._rows.num_rows if self._index is None else len(self._index)

    @property
    def checked_states(self) -> dict[str, FileState]:
        """What was seen when each open entry was last checked."""
        return {name: seen for name, entry in self._entries if (seen := entry.state) is not None}

    @property
    def held_bytes(self) -> int:
        """What all open entries take of the budget."""
        return sum(entry.held_bytes for _, entry in self._entries)

    def batch(self, positions: Array) -> Batch:
        """The samples at positions, int64 (num_rows,), each from 0 to `num_samples`.

        Raises:
            StagingError: An entry was written to, or truncated, and its bytes are wrong now.
        """
        self._require_unchanged()
        return self._rows.batch(self._rows_at(positions))

    def lengths(self, item: SlotRequest) -> Array:
        """How many values each sample has of a list slot: int64 (num_samples,)."""
        self._require_unchanged()
        lengths = self._rows.lengths(item)
        return lengths if self._index is None else lengths[self._index]

    def ids(self) -> pa.ChunkedArray:
        """The ids of all samples, in order."""
        self._require_unchanged()
        columns = [self._ids_of(piece) for piece, _ in self._rows.pieces]
        if self._index is None:
            return pa.chunked_array(columns)
        cuts = np.searchsorted(self._index, self._rows.firsts)
        return pa.chunked_array(
            [
                column.take(array_of(self._index[begin:end] - first))
                for column, first, (begin, end) in zip(
                    columns, self._rows.firsts[:-1], pairwise(cuts), strict=True
                )
            ]
        )

    def find(self, wanted: pa.Array) -> Array:
        """The positions of these ids, -1 for unknown ones: int64 (num_ids,)."""
        entry = self._id_index
        self._require_unchanged()
        return places_of_ids(entry, wanted, self._ids_at)

    def close(self) -> None:
        """Lets the entries be evicted, and removes a private directory."""
        for _, entry in self._entries:
            entry.close()
        self._stager.close()

    @cached_property
    def _id_index(self) -> MappedEntry:
        assert self.plan.id_column is not None
        wanted = id_entry(
            self._identity,
            self.plan.id_column.name,
            self.num_samples,
            lambda: one_array(self.ids()),
        )
        [entry] = self._cache.open_all([wanted], checked_states=self.plan.checked_states)
        first: MappedEntry = self.__dict__.setdefault("_id_index", entry)
        if first is entry:
            self._entries.append((wanted.name, entry))
        else:  # Threads looked for ids at once.
            entry.close()
        return first

    def _require_unchanged(self) -> None:
        for _, entry in self._entries:
            entry.require_unchanged()

    def _rows_at(self, positions: Array) -> Array:
        return positions if self._index is None else self._index[positions]

    def _ids_at(self, positions: Array) -> pa.Array:
        parts, places = self._rows.by_piece(self._rows_at(positions))
        found = [
            self._ids_of(self._rows.pieces[number][0]).take(array_of(local))
            for number, local in parts
        ]
        return pa.concat_arrays(found).take(array_of(places))

    def _ids_of(self, piece: Piece) -> pa.Array:
        return one_array(piece.rows.other(self.plan.id_column))


def _pieces(plan: SamplePlan, entries: Sequence[MappedEntry]) -> list[tuple[Piece, Partition]]:
    """The pieces of all files; one without rows if there are none."""
    pieces = list[tuple[Piece, Partition]]()
    for (file, partition), entry in zip(plan.files, entries, strict=True):
        groups = iter(enumerate(row_groups_of(entry.schema)))
        for batch in entry.batches:
            sizes, num_rows = dict[int, int](), 0
            while num_rows < batch.num_rows:
                index, (group_rows, _) = next(groups)
                sizes[index], num_rows = group_rows, num_rows + group_rows
            if num_rows:
                piece = piece_of(batch, plan.selection, file.path)
                pieces.append((_with_histories(piece, plan.request, sizes), partition))
    nothing = _with_histories(no_rows(plan.selection), plan.request, {})
    return pieces or [(nothing, Partition(values={}, is_decided=True))]


def _with_histories(piece: Piece, request: Request, sizes: Mapping[int, int]) -> Piece:
    """The piece with the histories of its rows, whose ranges are in the memory of this process.

    Args:
        piece: The rows of whole row groups.
        request: What is delivered.
        sizes: How many rows each of these row groups has.
    """
    found, _ = lists_of_rows(request.histories, piece.rows, [*sizes], [*sizes.values()])
    return replace(piece, rows=replace(piece.rows, histories=found))
