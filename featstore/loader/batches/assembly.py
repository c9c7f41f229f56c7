"""From mixtures to blocks in the order of delivery: views of a window, or, if rows are shuffled,
rows gathered into the memory of their batches.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from featstore.loader.bad_files import Skip, is_bad_file
from featstore.loader.batches.blocks import Block, BlockSource, UnpackedColumns
from featstore.loader.batches.gathering import gather_batches
from featstore.loader.plan.request import Request
from featstore.loader.rows.decode import block_columns, block_extras
from featstore.loader.rows.memory_budget import Budget
from featstore.loader.rows.mixing import Mixture, WindowShare
from featstore.loader.rows.split_reader import Window
from featstore.loader.stats import Stats
from featstore.reading.buffers import Array, Ragged, Values
from featstore.reading.gather import places_of
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.column_keys import Key
from featstore.tensors.dtypes import array_of, tensor_of
from featstore.tensors.packed import PackedColumns

_NO_COLUMNS = pa.table({})


@dataclass(eq=False, kw_only=True)
class _Converted:
    """A window's rows as they are delivered.

    Attributes:
        pieces: Their columns, a piece for each row group.
        piece_rows: How many rows each piece has.
        extras: The extra columns of all pieces.
        rows: For each row of the window's stream, its row in the pieces, numbered through all of
            them: int64 (num_rows,), arbitrary for those that are left out.
        passes: Which rows of the stream are delivered: bool (num_rows,); None: all.
    """

    pieces: list[dict[Key, Values]]
    piece_rows: list[int]
    extras: pa.Table
    rows: Array
    passes: Array | None = None


@dataclass(eq=False)
class _Drawn:
    """Rows that are drawn and not yet in a block, in the order of delivery.

    Attributes:
        passes: Which of them are delivered: bool (num_drawn,).
        order: Where those lie that are delivered: their rows, numbered through all pieces, int64
            (num_delivered,).
        pieces: The columns of each piece.
        piece_rows: How many rows each piece has.
        extras: The extra columns, of as many rows in all.
        sources: Where rows come from, with their places among those that are drawn, int64
            (num_rows,). A claim that ends without rows has the place of the row before its end.
    """

    passes: Array
    order: Array
    pieces: list[dict[Key, Values]] = field(default_factory=list)
    piece_rows: list[int] = field(default_factory=list)
    extras: list[pa.Table] = field(default_factory=list)
    sources: list[tuple[BlockSource, Array]] = field(default_factory=list)

    def add(self, packed: PackedColumns, num_rows: int, extras: pa.Table) -> None:
        """Adds a piece, all rows of which are delivered after the others, in their order."""
        rows = np.arange(num_rows) + sum(self.piece_rows)
        self.order = np.concatenate([self.order, rows])
        self.pieces.append(
            {key: _narrow(values) for key, values in UnpackedColumns(packed).items()}
        )
        self.piece_rows.append(num_rows)
        self.extras.append(extras)


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
    """

    def __init__(
        self,
        request: Request,
        batch_size: int,
        stats: Stats,
        skip: Skip | None = None,
        budget: Budget | None = None,
    ) -> None:
        self._request, self._batch_size, self._stats, self._skip = request, batch_size, stats, skip
        self._budget = budget or Budget(None)
        self._left_out: set[tuple[int, int, int]] = set()
        self._pool, self._scratch, self._rest_pool = BufferPool(), BufferPool(), BufferPool()
        self._windows: dict[Window, _Converted] = {}
        self._rest = _nothing()

    def blocks(self, mixture: Mixture) -> list[Block]:
        """The blocks of a mixture, without rows that were delivered before: one in the file's
        order, or one for each whole batch if rows are shuffled.
        """
        with self._stats.timed("assemble_s"):
            if mixture.draws is None:
                return self._in_order(mixture.shares[0].window)
            drawn = self._add(mixture.shares, mixture.draws)
            blocks = self._budgeted(drawn, mixture.shares)
            for share in mixture.shares:
                if share.is_end:
                    self._windows.pop(share.window, None)
                    self._budget.let_go(share.window.held_bytes)
            return blocks

    def rest(self) -> list[Block]:
        """The blocks of the rows that wait for more, once no more come."""
        with self._stats.timed("assemble_s"):
            return self._gathered(self._rest, is_end=True)

    def _in_order(self, window: Window) -> list[Block]:
        """The block of a window in the file's order. It takes the window's place in the budget."""
        blocks = []
        if window.work.claim.key not in self._left_out:
            with self._leaving_out(window):
                blocks = [self._view(window)]
        size_bytes = sum(block.size_bytes for block in blocks)
        size_bytes = self._budget.exchange(window.held_bytes, size_bytes)
        for block in blocks:
            block.held_bytes = size_bytes
        return blocks

    def _view(self, window: Window) -> Block:
        index, places = window.select()
        rows = window.rows if index is None else window.rows.take(index)
        source = _source(WindowShare(window=window, begin=0, end=window.num_rows), places)
        return Block.of(
            block_columns(rows, self._request, self._stats),
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
        rows = window.rows
        assert index is not None
        if len(index) < rows.num_rows:
            # Rows that are left out are not converted: a null label in them is not an error.
            chosen = np.sort(index)
            rows, index = rows.take(chosen), np.searchsorted(chosen, index)
        pieces, order, passes = rows.pieces(), index, None
        if places is not None:
            order, passes = np.zeros(window.num_rows, np.int64), np.zeros(window.num_rows, bool)
            order[places], passes[places] = index, True
        return _Converted(
            pieces=[block_columns(piece, self._request, self._stats) for piece in pieces],
            piece_rows=[piece.num_rows for piece in pieces],
            extras=block_extras(rows, self._request, window.work.partition),
            rows=order,
            passes=passes,
        )

    def _add(self, shares: Sequence[WindowShare], draws: Array) -> _Drawn:
        """The rows that wait, and after them those of the shares."""
        rest, num_before = self._rest, len(self._rest.passes)
        passes, order = np.ones(len(draws), bool), np.zeros(len(draws), np.int64)
        drawn = _Drawn(
            passes,
            order,
            list(rest.pieces),
            list(rest.piece_rows),
            list(rest.extras),
            list(rest.sources),
        )
        num_rows = sum(rest.piece_rows)
        for number, share in enumerate(shares):
            at = np.flatnonzero(draws == number)
            if (converted := self._converted(share.window)) is None:
                passes[at] = False
                continue
            source = _source(share)
            if len(at):
                drawn.sources.append((source, num_before + at))
            elif source.is_last:
                drawn.sources.append((source, np.array([max(0, num_before + len(draws) - 1)])))
                continue
            if converted.passes is not None:
                passes[at] = converted.passes[share.begin : share.end]
            order[at] = converted.rows[share.begin : share.end] + num_rows
            drawn.pieces += converted.pieces
            drawn.piece_rows += converted.piece_rows
            drawn.extras.append(converted.extras)
            num_rows += sum(converted.piece_rows)
        drawn.passes = np.concatenate([rest.passes, passes])
        drawn.order = np.concatenate([rest.order, order[passes]])
        return drawn

    def _budgeted(self, drawn: _Drawn, shares: Sequence[WindowShare]) -> list[Block]:
        """Like `_gathered`. Takes what the blocks need of the budget; the last block holds what all
        of them take, since they share memory, which is free only after the last.
        """
        needed_bytes = sum(
            share.window.held_bytes * (share.end - share.begin) // max(1, share.window.num_rows)
            for share in shares
        )
        with self._budget.held(needed_bytes) as held_bytes:
            blocks = self._gathered(drawn, is_end=False)
        size_bytes = sum(block.size_bytes for block in blocks)
        size_bytes = self._budget.exchange(held_bytes, size_bytes)
        if blocks:
            blocks[-1].held_bytes = size_bytes
        return blocks

    def _gathered(self, drawn: _Drawn, *, is_end: bool) -> list[Block]:
        """The blocks of whole batches, and at the end of the rest. Keeps what is left."""
        before, self._rest = self._rest, _nothing()
        delivered = np.flatnonzero(drawn.passes)
        num_rows = len(delivered)
        if not num_rows:
            sources = tuple(source for source, _ in drawn.sources)
            return [Block.of({}, sources, num_rows=0, extras=_NO_COLUMNS)] if sources else []
        cuts = list(range(0, num_rows + 1, self._batch_size))
        if is_end and cuts[-1] < num_rows:
            cuts.append(num_rows)
        if len(cuts) == 1:
            self._wait(before, drawn)
            return []
        # Where batches end among the rows that are drawn. Rows that are not delivered come with the
        # batch before the next one that is.
        ends = [0, *(int(delivered[cut - 1]) + 1 for cut in cuts[1:])]
        if cuts[-1] == num_rows:
            ends[-1] = len(drawn.passes)
        parts = cuts if cuts[-1] == num_rows else [*cuts, num_rows]
        batches = _columns(drawn, drawn.order, parts, self._pool, self._scratch)
        extras = _extras(drawn, drawn.order)
        if len(parts) > len(cuts):
            # A copy, which does not keep the memory of all batches alive.
            rest = _copy(batches.pop(), self._rest_pool)
            self._rest.add(rest, num_rows - cuts[-1], extras.slice(cuts[-1]))
        self._rest.passes = drawn.passes[ends[-1] :]
        self._rest.sources = list(_after(drawn.sources, ends[-1]))
        return [
            Block.of(
                UnpackedColumns(packed),
                sources,
                num_rows=cut - begin,
                extras=extras.slice(begin, cut - begin) if extras.num_columns else extras,
                packed=packed,
                draws=draws,
            )
            for (begin, cut), packed, (sources, draws) in zip(
                pairwise(cuts), batches, _sources(drawn, delivered, cuts, ends), strict=True
            )
        ]

    def _wait(self, before: _Drawn, drawn: _Drawn) -> None:
        """Keeps all rows. Copies those that were not waiting before, so that their windows can be
        let go.
        """
        self._rest = _Drawn(
            drawn.passes,
            before.order,
            before.pieces,
            before.piece_rows,
            before.extras,
            drawn.sources,
        )
        if (order := drawn.order[len(before.order) :]).size:
            [packed] = _columns(drawn, order, [0, len(order)], self._rest_pool, self._scratch)
            self._rest.add(packed, len(order), _extras(drawn, order))


def _copy(packed: PackedColumns, pool: BufferPool) -> PackedColumns:
    """The columns in memory of the pool."""
    buffers = []
    for buffer in map(array_of, packed.buffers):
        memory = pool.take(buffer.nbytes)[: buffer.nbytes].view(buffer.dtype)
        memory[:] = buffer
        buffers.append(tensor_of(memory))
    return replace(packed, buffers=tuple(buffers))


def _narrow(values: Values) -> Values:
    """Lists with offsets of 32 bits, as those of Arrow's columns mostly are: pieces are gathered
    together only if their offsets are of one width.
    """
    if not isinstance(values, Ragged) or len(values.values) >= 2**31:
        return values
    return Ragged(values.values, values.offsets.astype(np.int32))


def _nothing() -> _Drawn:
    return _Drawn(np.ones(0, bool), np.zeros(0, np.int64))


def _columns(
    drawn: _Drawn, order: Array, cuts: Sequence[int], pool: BufferPool, scratch: BufferPool
) -> list[PackedColumns]:
    """The columns of these rows, in parts."""
    columns = {key: [piece[key] for piece in drawn.pieces] for key in drawn.pieces[0]}
    places = places_of(order, drawn.piece_rows, np.array(cuts))
    return gather_batches(columns, places, pool, scratch)


def _after(
    sources: list[tuple[BlockSource, Array]], num_drawn: int
) -> Iterator[tuple[BlockSource, Array]]:
    """What the sources cover after the first `num_drawn` rows that are drawn."""
    for source, at in sources:
        first = int(np.searchsorted(at, num_drawn))
        if first < len(at):
            yield source.between(first, len(at), len(at)), at[first:] - num_drawn


def _source(share: WindowShare, places: Array | None = None) -> BlockSource:
    window = share.window
    claim = window.work.claim
    return BlockSource(
        split_index=claim.index,
        fence=claim.fence,
        part=claim.part,
        split_rows=claim.split.num_rows,
        first_row=window.first_row + share.begin,
        end_row=window.first_row + share.end,
        is_last=window.is_last and share.is_end,
        places=places,
    )


def _extras(drawn: _Drawn, order: Array) -> pa.Table:
    if not drawn.extras or not drawn.extras[0].num_columns:
        return _NO_COLUMNS
    return pa.concat_tables(drawn.extras).take(pa.array(order))


def _sources(
    drawn: _Drawn, delivered: Array, cuts: Sequence[int], ends: Sequence[int]
) -> Iterator[tuple[tuple[BlockSource, ...], Array | None]]:
    """Of each batch, its sources and, if there are several, the source of each row.

    Args:
        drawn: The rows.
        delivered: The places of those that are delivered, among those that are drawn.
        cuts: Where batches begin and end, among those that are delivered.
        ends: The same among those that are drawn.
    """
    passes = None if len(delivered) == len(drawn.passes) else drawn.passes
    of_source = np.zeros(len(drawn.passes), np.int32)
    for number, (source, at) in enumerate(drawn.sources):
        if not source.is_empty:
            of_source[at] = number
    counts = [np.searchsorted(at, ends).tolist() for _, at in drawn.sources]
    numbers = np.zeros(len(drawn.sources), np.int32)
    for batch, (first, cut) in enumerate(pairwise(cuts)):
        found, num_found = [], 0
        for number, (source, at) in enumerate(drawn.sources):
            begin, end = counts[number][batch : batch + 2]
            if begin == end:
                continue
            numbers[number] = num_found
            num_found += 1
            part = source.between(begin, end, len(at))
            if passes is not None and not passes[at[begin:end]].all():
                part = part._replace(places=np.flatnonzero(passes[at[begin:end]]))
            found.append(part)
        draws = numbers[of_source[delivered[first:cut]]] if len(found) > 1 else None
        yield tuple(found), draws
