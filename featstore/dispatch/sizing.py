"""How large a split is: data files cut by rows or bytes at their row groups. Pure: it is told what footers say."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from featstore.dispatch.plan import Split


@dataclass(frozen=True, kw_only=True)
class RowGroups:
    """A data file as its footer has it: rows and bytes of each row group, in file order."""

    path: str
    num_rows: Sequence[int]
    sizes_bytes: Sequence[int]

    def __post_init__(self) -> None:
        if len(self.num_rows) != len(self.sizes_bytes):
            raise ValueError(f"{self.path}: rows of {len(self.num_rows)} row groups, but sizes of {len(self.sizes_bytes)}")


@dataclass(frozen=True, kw_only=True)
class SplitSize:
    """The most rows, or the most bytes, of a split; a row group that is larger by itself is a split by itself."""

    num_rows: int | None = None
    size_bytes: int | None = None

    def __post_init__(self) -> None:
        given = [value for value in (self.num_rows, self.size_bytes) if value is not None]
        if len(given) != 1 or given[0] < 1:
            raise ValueError(
                f"split size: expected rows or bytes, 1 or more, found {self.num_rows} rows, {self.size_bytes} bytes"
            )


def splits_of(file: RowGroups, size: SplitSize) -> Iterator[Split]:
    """The splits of one file: runs of whole row groups, as long as fit. A file that is no larger is one whole split, as is an
    empty one: nothing goes across files."""
    weights, most = (file.num_rows, size.num_rows) if size.size_bytes is None else (file.sizes_bytes, size.size_bytes)
    assert most is not None
    if sum(weights) <= most or len(weights) < 2:
        yield Split(path=file.path, num_rows=sum(file.num_rows))
        return
    first, weight = 0, weights[0]
    for index in range(1, len(weights)):
        if weight + weights[index] > most:
            yield _run(file, first, index - 1)
            first, weight = index, 0
        weight += weights[index]
    yield _run(file, first, len(weights) - 1)


def _run(file: RowGroups, first: int, last: int) -> Split:
    return Split(path=file.path, num_rows=sum(file.num_rows[first : last + 1]), first_row_group=first, last_row_group=last)
