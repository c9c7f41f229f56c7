"""What a run put in place of what: raw files, data files and rows of a partition, before and now.
A part of the raw files that is missing shows here. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from featstore.table.delta import Commit, with_origins
from featstore.table.layout import partition_path
from featstore.table.metadata import CommitMetadata, to_json
from featstore.table.snapshot import DataFile, by_partition

_NUM_SHOWN = 10  # partitions of a run that its text names


@dataclass(frozen=True, kw_only=True)
class Holding:
    """What a table holds of a partition.

    Attributes:
        num_raw_files: The raw files that it was made of; None if unknown, as for a DataFrame.
        num_files: Its data files.
        num_rows: Its rows.
    """

    num_raw_files: int | None
    num_files: int
    num_rows: int


@dataclass(frozen=True, kw_only=True)
class ReplacedPartition:
    """A partition that a run replaced."""

    partition: Mapping[str, str]
    before: Holding
    now: Holding

    @property
    def loses_rows(self) -> bool:
        """Whether it has fewer rows than before."""
        return self.now.num_rows < self.before.num_rows

    def __str__(self) -> str:
        raw = (self.before.num_raw_files, self.now.num_raw_files)
        counts = [
            _change(*raw, "raw files") if raw != (None, None) else "",
            _change(self.before.num_files, self.now.num_files, "data files"),
            _change(self.before.num_rows, self.now.num_rows, "rows"),
        ]
        lost = self.before.num_rows - self.now.num_rows
        told = f"{lost:,} rows fewer than before in" if self.loses_rows else "replaced"
        return (
            f"{told} {partition_path(self.partition) or 'the table'}: "
            f"{', '.join(filter(None, counts))}"
        )


class KnownHoldings:
    """Tells what a table holds of partitions.

    Args:
        commits: The commits of the table.
    """

    def __init__(self, commits: Iterable[Commit]) -> None:
        self._makers = {
            path: commit
            for commit in commits
            if commit.metadata is not None
            for path in commit.metadata.crc32s
        }

    def of(self, partition: Mapping[str, str], files: Sequence[DataFile]) -> Holding:
        """What these data files of a partition, all that it has, hold."""
        makers = [self._makers.get(file.path) for file in files]
        maker = makers[0] if all(other is makers[0] for other in makers) else None
        # Of a commit that rewrote the rows, an origin tells it.
        told = (
            num_raw_files_by_partition(made).get(to_json(partition))
            for _, made in with_origins([maker] if maker is not None else [])
        )
        return _holding(files, next((number for number in told if number is not None), None))


def replaced_partitions(
    before: Sequence[DataFile],
    commits: Iterable[Commit],
    files: Iterable[DataFile],
    written: CommitMetadata,
) -> tuple[ReplacedPartition, ...]:
    """The partitions of which a table held something before a run replaced it.

    Args:
        before: The data files that were replaced.
        commits: The commits that made them, among others.
        files: The data files of the run.
        written: The metadata of its commit.
    """
    old, new, holdings = by_partition(before), by_partition(files), KnownHoldings(commits)
    raw_files = num_raw_files_by_partition(written)
    return tuple(
        ReplacedPartition(
            partition=partition,
            before=holdings.of(partition, old[key]),
            now=_holding(new.get(key, ()), raw_files.get(key)),
        )
        for partition in written.partitions
        if (key := to_json(partition)) in old
    )


def texts_of(replaced: Sequence[ReplacedPartition]) -> list[str]:
    """A line for each partition, those that lose rows first, as warnings; of many the first ones,
    and a summary.
    """
    ordered = sorted(replaced, key=lambda one: not one.loses_rows)
    lines = [f"{'warning: ' if one.loses_rows else ''}{one}" for one in ordered[:_NUM_SHOWN]]
    if more := ordered[_NUM_SHOWN:]:
        num_losing = sum(one.loses_rows for one in more)
        rows = _change(
            sum(one.before.num_rows for one in more), sum(one.now.num_rows for one in more), "rows"
        )
        lines.append(f"and {len(more):,} more replaced, {num_losing:,} of which lose rows: {rows}")
    return lines


def num_raw_files_by_partition(metadata: CommitMetadata) -> dict[str, int]:
    """The number of raw files of each partition of a commit, by the partition's JSON; empty if
    unknown.
    """
    numbers = metadata.num_raw_files
    return dict(zip(map(to_json, metadata.partitions), numbers, strict=bool(numbers)))


def _holding(files: Sequence[DataFile], num_raw_files: int | None) -> Holding:
    return Holding(
        num_raw_files=num_raw_files,
        num_files=len(files),
        num_rows=sum(file.num_rows for file in files),
    )


def _change(before: int | None, now: int | None, what: str) -> str:
    shown = ("unknown" if count is None else f"{count:,}" for count in (before, now))
    return f"{' -> '.join(shown)} {what}"
