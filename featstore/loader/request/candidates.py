"""Which items of a pool are drawn for each row: the options, the rows' identities, and the draws,
which depend on nothing but the pool, the seed, the epoch and the row.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from featstore.base.errors import (
    ConfigError,
    SelectionError,
    nearest,
    require_integer,
    require_text,
)
from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.base.splitmix import UNIFORM_SHIFT, CumulativeWeights, keys, mixed, words
from featstore.loader.request.options import SlotRequest, require_shared_buckets
from featstore.ops import hashing
from featstore.reading.buffers import Array

_ALL = 1 << 53  # How many uniform numbers there are, as of `CumulativeWeights.rows_of`.


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Items of a pool that are drawn for each row.

    Attributes:
        pool: The table of items, each of which has one row: as the loader's table.
        per_row: How many items are drawn for each row, at least 1.
        id: The id slot, in both tables, that names an item. A row's own item is not drawn for it.
        by: A scalar numeric column of the pool, in proportion to which items are drawn; None: all
            equally often.
        slots: The pool's slots that are delivered, as the loader's. One without options that the
            loader selects of its own table by the same name has the options given there.
        where: Which rows of the pool are items, as the loader's; None: all.
        version: The version of the pool, as of `open_table`; None: the newest.

    Raises:
        ConfigError: `per_row` is not an integer of 1 or more, or an open table is given a version.
    """

    pool: Any
    per_row: int
    id: str = "item_id"
    by: str | None = None
    slots: Iterable[str | Mapping[str, Any]] = ("*",)
    where: str | None = None
    version: int | str | None = None

    def __post_init__(self) -> None:
        require_integer("candidates.per_row", self.per_row)
        require_text("candidates.id", self.id)
        if self.version is not None and not isinstance(self.pool, str | Path):
            raise ConfigError(
                "candidates.version: expected it beside the URL of a pool, found an open table, "
                "which has a version"
            )

    def own_item(self, rows: SlotSchema, pool: SlotSchema) -> tuple[Slot, Slot]:
        """The slot that names a row's own item, and that which names an item of the pool.

        Raises:
            ConfigError: They are no scalar ids, or one item has different ids in them.
            SelectionError: There is no such slot.
        """
        for schema, where in ((rows, "the table"), (pool, "the pool")):
            if self.id not in schema:
                raise SelectionError(
                    f"candidates.id: expected a slot of {where} that names an item, found "
                    f"{self.id!r}, which it does not have{nearest(self.id, schema.names)}: give "
                    "candidates.id the name that the item's id has in both tables"
                )
        of_row, of_pool = rows[self.id], pool[self.id]
        for slot, where in ((of_row, "the table"), (of_pool, "the pool")):
            if slot.kind is not SlotKind.ID or slot.shape:
                raise ConfigError(
                    f"candidates.id: {self.id!r} of {where}: expected a slot of one id, found "
                    f"{slot.kind}, {slot.shape_text}"
                )
        meant, found = _signed_as(of_row), _signed_as(of_pool)
        if meant != found:
            raise ConfigError(
                f"candidates.id: {self.id!r}: expected one item to have one id in both tables, "
                f"found {meant} in the table and {found} in the pool: extract both with one slot "
                "number, or share_slot"
            )
        return of_row, of_pool

    def slots_as(
        self, rows: Sequence[SlotRequest], pool: Sequence[SlotRequest]
    ) -> tuple[SlotRequest, ...]:
        """The slots of the pool, with options of those of the rows where they have none.

        Raises:
            ConfigError: Slots of the pool that share signs have different buckets.
        """
        known = {(item.slot.name, item.slot.kind, item.slot.shape): item for item in rows}
        found = []
        for item in pool:
            same = known.get((item.slot.name, item.slot.kind, item.slot.shape))
            has_none = item.is_as_stored and same is not None and same.history is None
            found.append(replace(same, slot=item.slot) if has_none and same is not None else item)
        require_shared_buckets(found)
        return tuple(found)


def _signed_as(slot: Slot) -> str:
    """What its ids are, beside the values they stand for."""
    if slot.num_indices is not None:
        return f"indices below {slot.num_indices}"
    number = slot.share_slot or slot.number
    return "numbers" if number is None else f"signs of slot {number}"


def row_keys(path: str, positions: Array) -> Array:
    """The identities of rows: int64 (num_rows,), which only the path of their data file in the
    table and their positions in it decide over.
    """
    of_path = np.asarray(hashing.value_hash(pa.array([path]))).view(np.uint64)
    return words(of_path, positions).view(np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemSampler:
    """Draws items of a pool.

    Attributes:
        weights: Their cumulative popularity.
        log_shares: The logarithm of the part of all uniform numbers that gives each item: float32
            (num_items,).
        ids: The ids of all items, ascending: int64 (num_items,).
        rows: Their rows in the pool: int64 (num_items,).
    """

    weights: CumulativeWeights
    log_shares: Array
    ids: Array
    rows: Array

    @classmethod
    def of(cls, ids: Array, popularity: Array | None, by: str | None = None) -> "ItemSampler":
        """The sampler of a pool.

        Args:
            ids: The id of each row of the pool: int64 (num_items,).
            popularity: The popularity of each; None: all are equally popular.
            by: The column of the popularity, for errors.

        Raises:
            ConfigError: An item has no id, or several rows; a popularity is no number of at least
                0; or there are less than two items that can be drawn, of which one is left where
                the other is a row's own.
        """
        if num_missing := int(np.count_nonzero(ids == 0)):
            raise ConfigError(
                f"expected an id other than 0 of each item, found 0 or none in {num_missing} of "
                f"{len(ids)} rows: leave them out by candidates.where"
            )
        rows = np.argsort(ids, kind="stable")
        ids = ids[rows]
        if num_again := int(np.count_nonzero(ids[1:] == ids[:-1])):
            raise ConfigError(
                f"expected one row of each item, found {num_again} of {len(ids)} rows with "
                "the id of another: choose rows by candidates.where, such as one day's"
            )
        num_drawn = len(ids) if popularity is None else int(np.count_nonzero(popularity))
        if num_drawn < 2:
            above = "" if by is None else f" with a {by!r} above 0"
            raise ConfigError(
                f"expected at least two items{above}, so that one is left beside a row's "
                f"own, found {num_drawn}"
            )
        given = np.ones(len(ids), np.int8) if popularity is None else popularity
        weights = CumulativeWeights(given, repr(by))
        firsts, ends = weights.intervals(np.arange(len(ids)))
        if (ends - firsts).max() == _ALL:
            raise ConfigError(
                f"{by!r}: expected at least two items with a chance, found that all others "
                "together have less than 2^-53 of the sum"
            )
        with np.errstate(divide="ignore"):  # Of an item that is never drawn.
            log_shares = np.log((ends - firsts) / _ALL).astype(np.float32)
        return cls(weights=weights, log_shares=log_shares, ids=ids, rows=rows)

    @property
    def num_bytes(self) -> int:
        """The memory that it takes."""
        parts = (self.log_shares, self.ids, self.rows)
        return self.weights.num_bytes + sum(part.nbytes for part in parts)

    def draw(
        self, row_keys: Array, own_ids: Array, per_row: int, *, seed: int, epoch: int
    ) -> tuple[Array, Array]:
        """Draws items for rows, each independently of all others, so that a row may get an item
        more than once.

        Args:
            row_keys: The rows' identities: int64 (num_rows,).
            own_ids: The ids of their own items, which they do not get: int64 (num_rows,).
            per_row: How many items each row gets.
            seed: With the epoch and the row it decides over the draws.
            epoch: The epoch.

        Returns:
            The items' rows in the pool, int64 (num_rows, per_row). And the logarithm of the
            probability with which a draw for the row gives the item, its own left out: float32.
        """
        found = np.minimum(np.searchsorted(self.ids, own_ids), len(self.ids) - 1)
        firsts, ends = self.weights.intervals(self.rows[found])
        # The uniform numbers of the own item are cut out: those above it close the gap.
        gaps = np.where(self.ids[found] == own_ids, ends - firsts, 0)[:, None]
        streams = mixed(row_keys.view(np.uint64) ^ keys(f"candidates {seed} {epoch}", 1))
        uniform = words(streams[:, None], np.arange(per_row)) >> UNIFORM_SHIFT
        # Below `_ALL - gaps`: a product that is exact, or rounded to 53 bits, does not reach it.
        numbers = (uniform * 2.0**-53 * (_ALL - gaps)).astype(np.int64)
        numbers += np.where(numbers >= firsts[:, None], gaps, 0)
        items = self.weights.rows_of(numbers.view(np.uint64))
        log_q = self.log_shares[items] - np.log1p(-gaps / _ALL).astype(np.float32)
        return items, log_q
