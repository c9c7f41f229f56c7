"""The plan: which splits an epoch has and in which order, as a pure function of the splits, the
seed and the epoch.

The order is a keyed permutation of positions, computed one position at a time. No list of all
splits is ever shuffled, and every worker streams the same order without talking to the others. The
permutation is a contract (golden file `split_ids.json`), because a loader state names splits by
their position in it.

What was delivered of a split is kept as ranges of rows in its delivery order; leases, loader states
and receipts share them.
"""

import hashlib
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Literal, overload

from featstore.base.processes import cached_property

# Four rounds suffice if the round functions are random (Luby and Rackoff, 1988); two more make up
# for a mixer that is not, and for small domains. A position takes 3 us (docs/design/dispatch.md).
# Changing the number changes the order of every plan.
_ROUNDS = 6
_MASK = (1 << 64) - 1
# Ranges of rows, ends excluded: ascending, disjoint, not empty.
Ranges = tuple[tuple[int, int], ...]
# What was delivered of one split: a number of first rows, all of it, or ranges.
Rows = int | Literal["complete"] | Ranges
# What was delivered, by position in the plan.
Done = Mapping[int, Rows]


@dataclass(frozen=True, kw_only=True)
class Split:
    """One data file, or a range of its row groups: the unit of dispatch.

    Attributes:
        path: The file's path in its table.
        num_rows: Rows of the split.
        first_row_group: The first row group.
        last_row_group: The last row group, inclusive. None is the end of the file, for a whole
            data file whose footer was not read yet.
    """

    path: str
    num_rows: int
    first_row_group: int = 0
    last_row_group: int | None = None

    def __post_init__(self) -> None:
        last = self.first_row_group if self.last_row_group is None else self.last_row_group
        if self.num_rows < 0 or not 0 <= self.first_row_group <= last:
            raise ValueError(f"no such split: {self.id} of {self.num_rows} rows")

    @property
    def id(self) -> str:
        """`{path}#{first}-{last}`; `{path}#0-` is a whole file."""
        last = "" if self.last_row_group is None else self.last_row_group
        return f"{self.path}#{self.first_row_group}-{last}"


class SplitList(Sequence[Split]):
    """Splits that are kept in columns: the object of one is made when it is asked for."""

    @overload
    def __getitem__(self, index: int) -> Split: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Split]: ...
    def __getitem__(self, index: int | slice) -> Split | Sequence[Split]:
        found = range(len(self))[index]
        return self._split(found) if isinstance(found, int) else list(map(self._split, found))

    def __iter__(self) -> Iterator[Split]:
        return map(self._split, range(len(self)))

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """The rows of all splits."""

    def digest_lines(self) -> Iterable[bytes | memoryview]:
        """The bytes of all splits in `Plan.digest`, in as many pieces as there may be."""
        return map(_digest_line, self)

    @abstractmethod
    def _split(self, index: int) -> Split:
        """The split at an index that is in range."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The ordered splits of one epoch: `plan[i]` is the i-th to be read, in constant time and
    memory.

    Attributes:
        splits: The splits in the snapshot's order. A sequence that computes its items will do.
        seed: The seed of the shuffle.
        epoch: The epoch's number; each epoch has an order of its own.
        shuffle: Whether to permute the splits; False keeps the snapshot's order.
        window_rows: The rows of a window of one split, within which rows are permuted; None: rows
            are read in the order of the file. Not part of the digest.
        section_sizes: How many splits each section has. Sections follow each other in the
            snapshot's order, and splits are permuted within theirs. Empty: all splits are one.

    Raises:
        ValueError: The sections do not hold all splits, or one of them holds none.
    """

    splits: Sequence[Split]
    seed: int = 0
    epoch: int = 0
    shuffle: bool = True
    window_rows: int | None = None
    section_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        num_splits, sizes = len(self.splits), self.section_sizes
        if sizes and (min(sizes) < 1 or sum(sizes) != num_splits):
            raise ValueError(f"sections of {sizes} splits of a plan of {num_splits}")

    @cached_property
    def _cuts(self) -> tuple[int, ...]:
        """Where sections begin and end: from 0 to the number of splits."""
        return tuple(accumulate(self.section_sizes or (len(self.splits),), initial=0))

    def __len__(self) -> int:
        return len(self.splits)

    def __getitem__(self, index: int) -> Split:
        """The split at one position of the epoch's order.

        Raises:
            IndexError: `index` is not in `0 <= index < len(plan)`; negative ones do not count
                from the end.
        """
        if not 0 <= index < len(self.splits):
            raise IndexError(f"split {index} of a plan of {len(self.splits)}")
        if not self.shuffle:
            return self.splits[index]
        cuts = self._cuts
        number = bisect_right(cuts, index) - 1
        first, size = cuts[number], cuts[number + 1] - cuts[number]
        keys = order_keys(self.seed, self.epoch, number if self.section_sizes else None)
        return self.splits[first + permute(index - first, size, keys)]

    def __iter__(self) -> Iterator[Split]:
        return (self[index] for index in range(len(self.splits)))

    def section_of(self, index: int) -> range:
        """The positions of the section to which a position belongs."""
        end = bisect_right(self._cuts, index)
        return range(*self._cuts[end - 1 : end + 1])

    @cached_property
    def digest(self) -> str:
        """32 hex digits over everything that determines the epoch's plan.

        Workers share leases only if their digests agree.
        """
        header = f"featstore-plan-1\n{self.seed}\n{self.epoch}\n{self.shuffle}\n"
        if self.section_sizes:
            header += f"sections {' '.join(map(str, self.section_sizes))}\n"
        state, splits = hashlib.sha256(header.encode()), self.splits
        of_list = splits.digest_lines() if isinstance(splits, SplitList) else None
        for data in map(_digest_line, splits) if of_list is None else of_list:
            state.update(data)
        return state.hexdigest()[:32]

    @cached_property
    def num_rows(self) -> int:
        """Rows of all splits together."""
        if isinstance(self.splits, SplitList):
            return self.splits.num_rows
        return sum(split.num_rows for split in self.splits)


def _digest_line(split: Split) -> bytes:
    return f"{split.id}\n{split.num_rows}\n".encode("utf-8", "surrogateescape")


def permute(index: int, size: int, keys: Sequence[int]) -> int:
    """A keyed permutation of `range(size)`: a Feistel network over the next even number of bits.

    Cycle walking: a value outside of the range is encrypted again until it falls inside. The domain
    is less than 4 times `size`, so this takes fewer than 4 steps on average.

    Args:
        index: A number in `range(size)`.
        size: The number of items.
        keys: The keys of the rounds, see `order_keys`.
    """
    # Two halves of equal width that together hold `size - 1`.
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half_bits) - 1
    while True:
        left, right = index >> half_bits, index & mask
        for key in keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        index = left << half_bits | right
        if index < size:
            return index


@lru_cache(maxsize=256)
def order_keys(seed: int, epoch: int, section: int | None = None) -> tuple[int, ...]:
    """The keys of an epoch's permutation, or of that of one of its sections, one for each round."""
    of_section = "" if section is None else f"\n{section}"
    digest = hashlib.blake2b(
        f"featstore-order-1\n{seed}\n{epoch}{of_section}".encode(), digest_size=8 * _ROUNDS
    ).digest()
    return tuple(int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(_ROUNDS))


def _mix(value: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
    return value ^ value >> 31


@dataclass(frozen=True, kw_only=True)
class SplitSize:
    """The largest allowed split, in rows or in bytes: exactly one of them is set.

    A row group that is larger than the limit becomes a split of its own.
    """

    num_rows: int | None = None
    size_bytes: int | None = None


def splits_of(
    path: str, num_rows: Sequence[int], sizes_bytes: Sequence[int], size: SplitSize
) -> Iterator[Split]:
    """Cuts one file into splits: runs of whole row groups, each as long as `size` allows.

    A file that is no larger than `size`, and one without rows, is one split. No split spans files.

    Args:
        path: The file's path in its table.
        num_rows: The rows of each row group, in file order.
        sizes_bytes: The size of each row group.
        size: The largest allowed split.
    """
    weights, limit = num_rows, size.num_rows
    if limit is None:
        weights, limit = sizes_bytes, size.size_bytes or 0
    if sum(weights) <= limit or len(weights) < 2:
        yield Split(path=path, num_rows=sum(num_rows))
        return
    firsts, weight = [0], 0
    for index, more in enumerate(weights):
        if index > firsts[-1] and weight + more > limit:
            firsts.append(index)
            weight = 0
        weight += more
    for first, end in pairwise([*firsts, len(weights)]):
        yield Split(
            path=path,
            num_rows=sum(num_rows[first:end]),
            first_row_group=first,
            last_row_group=end - 1,
        )


@dataclass(frozen=True, kw_only=True)
class Extent:
    """The rows of an unclaimed split or part that are to be delivered.

    Attributes:
        split: The split's id.
        start_row: The first row; those before it are delivered.
        end: The row after the last one.
        cuts: The rows at which parts were cut off, ascending.
    """

    split: str
    start_row: int
    end: int
    cuts: tuple[int, ...] = ()


def as_ranges(rows: Rows, num_rows: int) -> Ranges:
    """What was delivered of a split of `num_rows` rows, as ranges."""
    if isinstance(rows, tuple):
        return rows
    through = num_rows if rows == "complete" else int(rows)
    return ((0, through),) if through else ()


def compact(ranges: Ranges) -> int | Ranges:
    """The inverse of `as_ranges`: a number if these are the split's first rows, else the ranges."""
    if not ranges:
        return 0
    return ranges[0][1] if len(ranges) == 1 and ranges[0][0] == 0 else ranges


def extent(split: Split, rows: Rows) -> Extent:
    """What is left of a split to claim.

    Rows delivered at its start and end are left out. Those in the middle become cuts: the part
    after each of them is claimed separately.
    """
    ranges = list(as_ranges(rows, split.num_rows))
    start = ranges.pop(0)[1] if ranges and ranges[0][0] == 0 else 0
    end = ranges.pop()[0] if ranges and ranges[-1][1] == split.num_rows else split.num_rows
    return Extent(
        split=split.id, start_row=start, end=end, cuts=tuple(first for first, _ in ranges)
    )


def part_extent(split: Split, rows: Rows, start: int, end: int) -> Extent:
    """The part from `start` to `end`, without the delivered rows at its start."""
    through = next((end for first, end in as_ranges(rows, split.num_rows) if first == start), start)
    return Extent(split=split.id, start_row=through, end=end)
