"""From mixtures to blocks in the order of delivery: views of a window, or, if rows are shuffled,
rows gathered into the memory of their batches.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from featstore.base.processes import cached_property
from featstore.loader.batches.bad_files import Skip, is_bad_file
from featstore.loader.batches.batch_cap import BatchCap
from featstore.loader.batches.batch_slices import BatchAligner
from featstore.loader.batches.blocks import Block, ColumnDemand
from featstore.loader.batches.drawn_rows import DrawnRows, copied
from featstore.loader.batches.memory_budget import Budget
from featstore.loader.batches.mixtures import Mixture, WindowShare
from featstore.loader.batches.progress import BlockSource
from featstore.loader.batches.split_reader import Window
from featstore.loader.batches.stats import Stats
from featstore.loader.request.decode import (
    NO_EXTRAS,
    WindowColumns,
    block_columns,
    block_extras,
)
from featstore.loader.request.request import Request
from featstore.reading.buffers import Array, SharedLists
from featstore.reading.gather import ColumnBuffers, Places, ShareRows, places_of
from featstore.reading.reader import Rows
from featstore.tensors.buffer_pool import BufferPools
from featstore.tensors.column_arrays import Keys
from featstore.tensors.packed import UnpackedColumns

# Pieces of rows that wait for a batch. Each takes as many calls as one of any size. Chosen, not
# measured.
_MOST_WAITING = 64


@dataclass(eq=False, kw_only=True)
class _Converted:
    """A window's rows as they are delivered.

    Attributes:
        pieces: Their columns, a piece for each row group.
        lengths: As of `DrawnRows`.
        piece_rows: How many rows each piece has.
        extras: The extra columns of all pieces.
        rows: For each row of the window's stream, its row in the pieces, numbered through all of
            them: int64 (num_rows,), arbitrary for those that are left out.
        passes: Which rows of the stream are delivered: bool (num_rows,); None: all.
        ascends: Whether the rows that are delivered ascend in the pieces.
    """

    pieces: list[ColumnBuffers]
    lengths: list[Array]
    piece_rows: list[int]
    extras: pa.Table
    rows: Array
    passes: Array | None
    ascends: bool

    @cached_property
    def places(self) -> Places:
        """Where the rows of the window's stream lie in the pieces."""
        if not any(self.piece_rows):  # None is delivered.
            return Places(self.rows.astype(np.uint32), 0, np.zeros(1, np.int64))
        return places_of(self.rows, self.piece_rows, np.array([0, len(self.rows)]))


class Assembler:
    """Makes blocks of mixtures. For one thread.

    Shuffled rows are gathered batch by batch. Rows after the last whole batch are copied and wait
    for those of the next mixture, so that each batch lies in one piece of memory. If rows of a lost
    claim are left out later, batches end elsewhere; those are joined when they are asked for.

    Args:
        request: What is delivered.
        batch_size: Rows of a batch.
        stats: Where rows and seconds are counted.
        skip: Called for a window that cannot be converted, whose split is then left out; None: that
            is an error.
        budget: The memory budget; None is no limit.
        pools: Memory for gathered rows; None: its own.
        demand: Whether columns are asked for; None: not yet.
        num_threads: In how many threads shuffled rows are gathered.
        cap: How many values a batch may have.
    """

    def __init__(
        self,
        request: Request,
        batch_size: int,
        stats: Stats,
        skip: Skip | None = None,
        budget: Budget | None = None,
        pools: BufferPools | None = None,
        demand: ColumnDemand | None = None,
        num_threads: int = 1,
        cap: BatchCap | None = None,
    ) -> None:
        self._num_threads, self._cap = num_threads, cap
        self._request, self._batch_size, self._stats, self._skip = request, batch_size, stats, skip
        self._budget, self._pools = budget or Budget(), pools or BufferPools()
        self._demand = demand or ColumnDemand()
        self._aligner = BatchAligner(batch_size, self._pools.joined, self._demand, cap)
        self._left_out: set[tuple[int, int, int]] = set()
        self._windows: dict[Window, _Converted] = {}
        self._rest = DrawnRows()
        self._keys = Keys()
        self._num_events = 0
        self._error: Exception | None = None  # Of rows after those of the last blocks.

    def blocks(self, mixture: Mixture) -> list[Block]:
        """The blocks of a mixture, without rows that were delivered before: as of `BatchAligner`
        in the file's order, or one for each whole batch if rows are shuffled.
        """
        self._require_none_failed()
        with self._stats.timed("assemble_s"):
            if mixture.draws is None:
                return self._named(self._in_order([share.window for share in mixture.shares]))
            drawn = self._add(mixture.shares, mixture.draws)
            blocks = self._budgeted(drawn, mixture.shares)
            for share in mixture.shares:
                if share.is_end:
                    self._windows.pop(share.window, None)
                    self._budget.let_go(share.window.held_bytes)
            return self._named(blocks)

    def rest(self) -> list[Block]:
        """The blocks of the rows that wait for more, once no more come."""
        self._require_none_failed()
        with self._stats.timed("assemble_s"):
            drawn = self._add((), np.zeros(0, np.uint16))
            return self._named(self._aligner.rest() + self._gathered(drawn, is_end=True))

    def all_blocks(self, mixtures: Iterable[Mixture]) -> Iterator[Block]:
        """The blocks of all rows of the mixtures, each of which gives back what it holds of the
        budget when the next one is asked for.
        """
        for mixture in mixtures:
            for block in self.blocks(mixture):
                yield block
                self._budget.exchange(block.held_bytes, 0)
        yield from self.rest()

    def _require_none_failed(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _named(self, blocks: list[Block]) -> list[Block]:
        """The blocks, all with one object for equal keys: the consumer looks names up in it."""
        for block in blocks:
            if block.keys == self._keys:
                block.keys = self._keys
            elif block.keys:
                self._keys = block.keys
        return blocks

    def _in_order(self, windows: Sequence[Window]) -> list[Block]:
        """The blocks of windows in the file's order. They take the windows' place in the budget,
        which the last one holds. Rows that wait for a batch hold nothing of it.
        """
        blocks, parts = list[Block](), deque(windows)
        try:
            while parts:
                if (part := parts.popleft()).work.claim.key in self._left_out:
                    continue
                with self._leaving_out(part), _one_by_one(part, parts):
                    blocks += self._aligner.add(self._view(part))
        except Exception as error:
            if not blocks:
                raise
            self._error = error  # The rows before it are delivered.
        self._exchange(sum(window.held_bytes for window in windows), blocks)
        return blocks

    def _exchange(self, held_bytes: int, blocks: list[Block]) -> None:
        """Gives bytes of the budget back for what blocks take, which the last of them holds."""
        size_bytes = self._budget.exchange(held_bytes, sum(block.size_bytes for block in blocks))
        if blocks:
            blocks[-1].held_bytes = size_bytes

    def _view(self, window: Window) -> Block:
        index, places = window.select()
        rows = window.rows if index is None else window.rows.take(index)
        source = _source(WindowShare(window=window, begin=0, end=window.num_rows), places)
        return Block.of(
            self._columns(rows),
            (source,),
            num_rows=rows.num_rows,
            extras=block_extras(rows, self._request, window.work.partition),
            begin=min(source.row_at(window.work.claim.start_row), rows.num_rows),
        )

    @contextmanager
    def _leaving_out(self, window: Window) -> Iterator[None]:
        """If the block raises, records that the window cannot be read. If its file is bad, and bad
        files are skipped, the window is left out with the rest of its split.
        """
        try:
            yield
        except BaseException as error:
            window.work.fail()
            if self._skip is None or not is_bad_file(error):
                raise
            self._left_out.add(window.work.claim.key)
            self._skip(window.work.claim, max(window.first_row, window.work.claim.start_row), error)

    def _converted(self, window: Window) -> _Converted | None:
        """The window's rows, converted once; None if its split is left out."""
        if window not in self._windows and window.work.claim.key not in self._left_out:
            with self._leaving_out(window):
                self._windows[window] = self._convert(window)
        return None if window.work.claim.key in self._left_out else self._windows[window]

    def _convert(self, window: Window) -> _Converted:
        index, places = window.select()
        rows = self._numbered(window.rows)
        if index is None:
            index = np.arange(rows.num_rows)
        if len(index) < rows.num_rows:
            # Rows that are left out are not converted: a null label in them is not an error.
            chosen = np.sort(index)
            rows, index = rows.take(chosen), np.searchsorted(chosen, index)
        pieces, order, passes = rows.pieces(), index, None
        if places is not None:
            order, passes = np.zeros(window.num_rows, np.int64), np.zeros(window.num_rows, bool)
            order[places], passes[places] = index, True
        columns, cap = [self._columns(piece) for piece in pieces], self._cap
        return _Converted(
            pieces=[of_piece.in_buffers() for of_piece in columns],
            lengths=[] if cap is None else [cap.lengths(of_piece) for of_piece in columns],
            piece_rows=[piece.num_rows for piece in pieces],
            extras=block_extras(rows, self._request, window.work.partition),
            rows=order,
            passes=passes,
            ascends=bool((index[1:] > index[:-1]).all()),
        )

    def _numbered(self, rows: Rows) -> Rows:
        """The rows; events that batches have once are numbered through all windows, so that equal
        ones are known in rows that waited for a batch, too.
        """
        known, found = dict[int, Array](), dict[str, SharedLists]()
        for name in self._request.unique_slots:
            values, ranges = rows.histories[name].values, rows.histories[name].ranges
            if id(ranges) not in known:
                known[id(ranges)] = np.column_stack([ranges, ranges[:, 0] + self._num_events])
                self._num_events += len(values)
            found[name] = SharedLists(values, known[id(ranges)])
        return replace(rows, histories={**rows.histories, **found}) if found else rows

    def _columns(self, rows: Rows) -> WindowColumns:
        stats = self._stats
        return block_columns(rows, self._request, stats.counts, stats.column_assemble_s)

    def _add(self, shares: Sequence[WindowShare], draws: Array) -> DrawnRows:
        """The rows that wait, and after them those of the shares."""
        rest, taken = self._rest, list[ShareRows]()
        drawn = replace(
            rest,
            sources=[*rest.sources],
            draws=[*rest.draws],
            passes=[*rest.passes],
            ended=[*rest.ended],
            pieces=[*rest.pieces],
            lengths=[*rest.lengths],
            piece_rows=[*rest.piece_rows],
            extras=[*rest.extras],
        )
        for share in shares:
            converted, source = self._converted(share.window), _source(share)
            if converted is None:
                num_rows = share.end - share.begin
                taken.append((bytes(4 * num_rows), 0, 0, bytes(num_rows), -1))
                continue
            if source.is_empty:
                taken.append((b"", 0, 0, b"", -1))
                if source.is_last:
                    drawn.ended.append((source, max(0, rest.num_drawn + len(draws) - 1)))
                continue
            places, rows = converted.places, slice(share.begin, share.end)
            passes = b"" if converted.passes is None else converted.passes[rows]
            first_piece, number = len(drawn.pieces), len(drawn.sources)
            taken.append((places.rows[rows], places.row_bits, first_piece, passes, number))
            drawn.sources.append(source)
            drawn.ascends &= converted.ascends
            drawn.pieces += converted.pieces
            drawn.lengths += converted.lengths
            drawn.piece_rows += converted.piece_rows
            drawn.extras.append(converted.extras)
        drawn.place(len(rest.pieces), draws, tuple(taken))
        return drawn

    def _budgeted(self, drawn: DrawnRows, shares: Sequence[WindowShare]) -> list[Block]:
        """Like `_gathered`. Takes what the blocks need of the budget; the last block holds what all
        of them take, since they share memory, which is free only after the last.
        """
        needed_bytes = sum(
            share.window.gathered_bytes * (share.end - share.begin) // max(1, share.window.num_rows)
            for share in shares
        )
        with self._budget.held(needed_bytes) as held_bytes:
            blocks = self._gathered(drawn, is_end=False)
        self._exchange(held_bytes, blocks)
        return blocks

    def _gathered(self, drawn: DrawnRows, *, is_end: bool) -> list[Block]:
        """The blocks of whole batches, and at the end of the rest. Keeps what is left."""
        before, self._rest = self._rest, DrawnRows()
        num_rows = len(drawn.places)
        if not num_rows:
            sources = (*drawn.sources, *(source for source, _ in drawn.ended))
            return [Block.of({}, sources, num_rows=0, extras=NO_EXTRAS)] if sources else []
        cap, lengths = self._cap, drawn.delivered_lengths()
        if cap is None:
            cuts = [*range(0, num_rows, self._batch_size), num_rows]
        else:
            cuts = cap.cuts(lengths, self._batch_size)
        is_end |= cuts[-1] - cuts[-2] == self._batch_size
        if len(cuts) == 2 and not is_end:
            self._wait(before, drawn)
            return []
        pools = self._pools
        batches = drawn.columns(cuts, pools.batches, pools.scratch, num_threads=self._num_threads)
        extras = drawn.extra_columns()
        parts = list(drawn.parts(cuts[1:]))
        if not is_end:
            first = cuts[-2]
            # A copy, which does not keep the memory of all batches alive.
            rest = copied(batches.pop(), pools.waiting)
            self._rest = parts.pop()
            kinds = drawn.pieces[0].kinds
            self._rest.add(rest, kinds, num_rows - first, extras.slice(first), lengths[first:])
        columns = [UnpackedColumns(packed) for packed in batches]
        if self._demand.is_seen:
            for of_batch in columns:
                of_batch.made()
        blocks = []
        for (begin, cut), of_batch, part in zip(pairwise(cuts), columns, parts, strict=False):
            sources, draws = part.delivered()
            blocks.append(
                Block.of(
                    of_batch,
                    sources,
                    num_rows=cut - begin,
                    extras=extras.slice(begin, cut - begin) if extras.num_columns else extras,
                    draws=draws,
                    demand=self._demand,
                )
            )
        return blocks

    def _wait(self, before: DrawnRows, drawn: DrawnRows) -> None:
        """Keeps all rows. Copies those that were not waiting before, so that their windows can be
        let go, and now and then all of them, so that they lie in few pieces.
        """
        if len(before.pieces) >= _MOST_WAITING:
            before = DrawnRows()
        self._rest = replace(
            drawn,
            pieces=before.pieces,
            lengths=before.lengths,
            piece_rows=before.piece_rows,
            extras=before.extras,
            ascends=True,
        )
        begin = sum(before.piece_rows)
        if num_rows := len(drawn.places) - begin:
            pools = self._pools
            [packed] = drawn.columns([0, num_rows], pools.waiting, pools.scratch, begin)
            kinds = drawn.pieces[0].kinds
            lengths = drawn.delivered_lengths()[begin:]
            self._rest.add(packed, kinds, num_rows, drawn.extra_columns(begin), lengths)


@contextmanager
def _one_by_one(window: Window, parts: deque[Window]) -> Iterator[None]:
    """If the block raises, and the window has several row groups, these take its place before
    `parts`: rows before the one that cannot be converted are delivered.
    """
    try:
        yield
    except Exception:
        if not window.group_rows:
            raise
        parts.extendleft(reversed(list(window.by_row_group())))


def _source(share: WindowShare, places: Array | None = None) -> BlockSource:
    window = share.window
    return BlockSource(
        claim=window.work.claim,
        first_row=window.first_row + share.begin,
        end_row=window.first_row + share.end,
        is_last=window.is_last and share.is_end,
        places=places,
    )
