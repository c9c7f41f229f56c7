"""Which rows of a condition a run has delivered: the receipts of its epochs, for single rows.

A receipt counts rows in the delivery order of splits. Seed, epoch and windows give the rows of the
files in that order, and the loader's own filters tell those that it read and left out.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from featstore.base.errors import ConfigError, StateError
from featstore.base.redaction import redact
from featstore.base.text_table import Printed
from featstore.decoded.file_sources import files_in_place
from featstore.dispatch.epochs import EpochNote, announced_in_run, read_splits
from featstore.dispatch.plan import Done, Plan, Split, as_ranges
from featstore.dispatch.receipt import (
    EpochSize,
    Fate,
    Stretch,
    maybe_repeated,
    no_epoch,
    stretches,
)
from featstore.dispatch.recording import plan_in
from featstore.dispatch.stores.address import open_read_only
from featstore.dispatch.stores.base import Store
from featstore.files.listings import find_file
from featstore.files.storage import open_read
from featstore.loader.iteration.job import Job
from featstore.loader.iteration.state import LoaderState
from featstore.loader.iteration.worker import LoaderWorker
from featstore.loader.plan.shuffle import RowOrder, split_windows
from featstore.loader.request.decode import passing
from featstore.loader.request.matching import Listed, matching
from featstore.loader.request.request import Request, resolve
from featstore.reading.aligned import aligned_reader
from featstore.reading.buffers import Array, rows_left
from featstore.reading.open_file import OpenFile
from featstore.table.snapshot import Snapshot

Ranges = tuple[tuple[int, int], ...]
# The table as a run read it, and what was read of it.
Read = tuple[Snapshot, Job]


@dataclass(frozen=True, kw_only=True)
class FileRows:
    """Rows of one data file of which the same is known.

    Attributes:
        path: The file's path in its table.
        fate: As of `Fate`; `left out`; or `unknown` of rows of a file that is gone.
        worker: Who delivered or reserved them; empty: nobody, or a state says so, which names none.
        num_rows: How many they are. Of a file that is gone: how many of its rows, whichever match.
        rows: Their numbers in the file: ranges, ends excluded. Empty of a file that is gone.
        num_twice_at_most: How many of them may have been delivered twice.
    """

    path: str
    fate: str
    worker: str = ""
    num_rows: int
    rows: Ranges = ()
    num_twice_at_most: int = 0

    def __str__(self) -> str:
        which = ", ".join(str(a) if b - a == 1 else f"{a}-{b - 1}" for a, b in self.rows)
        rows = f"rows {which}" if which else f"{self.num_rows:,} rows, which of them is not known"
        twice = f", {self.num_twice_at_most:,} at most twice" if self.num_twice_at_most else ""
        return f"{self.path}: {rows}{twice}" + (f"; {self.worker}" if self.worker else "")


@dataclass(frozen=True, kw_only=True)
class EpochRows:
    """What became of the rows in one epoch.

    Attributes:
        name: As of `EpochNote`, or that it is the epoch of the state.
        epoch: The epoch's number.
        files: The rows, by file, fate and worker.
    """

    name: str
    epoch: int
    files: tuple[FileRows, ...]


@dataclass(frozen=True, kw_only=True)
class RowHistory(Printed):
    """What became of the rows of a condition in the epochs of a run.

    Attributes:
        table: The table.
        version: Its version that the run read.
        where: The condition.
        num_rows: Rows that match and were not deleted; without those of files that are gone.
        left_out: Those of them that the loader's filters leave out of every epoch.
        gone: The files that may have such rows, and that are gone.
        epochs: The epochs, in the order in which they began.
        unrecorded: Epochs that a state counts as delivered, and that the store knows nothing of.
    """

    table: str
    version: int | str | None
    where: str
    num_rows: int
    left_out: tuple[FileRows, ...]
    gone: tuple[str, ...]
    epochs: tuple[EpochRows, ...]
    unrecorded: tuple[int, ...] = ()

    def text(self, width: int | None = None) -> str:
        return "\n".join(_text(self))

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return asdict(self)


def row_history(
    store_url: str,
    run_id: str,
    where: str,
    *,
    epoch: int | None,
    state_url: str | None,
    read_by: Callable[[Sequence[EpochNote], LoaderState | None], Read],
) -> RowHistory:
    """What a run has delivered of the rows of a condition.

    Args:
        store_url: The dispatch store.
        run_id: The run.
        where: The condition.
        epoch: The one epoch to report on; None is all. None with a state.
        state_url: The state of all workers in a checkpoint, as JSON: only what its model has seen.
        read_by: Finds the table, as the loader of these epochs read it.

    Raises:
        DispatchError: The store cannot be read, or has no such epoch, and there is no state.
        StateError: The state is not that of all workers of one loader of these epochs.
        ConfigError: The run's windows are not those of the config.
        SelectionError: The condition is invalid.
        DataFileError: A data file is damaged.
    """
    state = None if state_url is None else _saved_state(state_url)
    with closing(open_read_only(store_url)) as store:
        notes = list(announced_in_run(store, run_id, epoch))
        if not notes and state is None:
            raise no_epoch(store_url, run_id, epoch)
        snapshot, job = read_by(notes, state)
        notes = [note for note in notes if note.loader == job.key]
        rows = _matching_rows(snapshot, job, where)
        epochs, unrecorded = list[EpochRows](), tuple[int, ...]()
        if state is not None:
            state.require_fit(job.start(state.epoch, state.first_epoch, LoaderWorker.here()))
            notes = _before(state, notes)
            missing = set(range(state.first_epoch, state.epoch)) - {note.epoch for note in notes}
            unrecorded = tuple(sorted(missing))
        for note in notes:
            _require_windows(store, note, job)
            epochs.append(_epoch_rows(note.name, job, note.epoch, rows, _in_store(store, note)))
        if state is not None:
            for number, done in state.delivered.items():
                name = f"epoch {number} of the state"
                epochs.append(_epoch_rows(name, job, number, rows, _in_state(done)))
    return RowHistory(
        table=redact(snapshot.url),
        version=snapshot.version,
        where=where,
        num_rows=sum(len(each.numbers) for each in rows.files.values()) + _num_rows(rows.left_out),
        left_out=tuple(rows.left_out),
        gone=tuple(sorted(rows.gone)),
        epochs=tuple(epochs),
        unrecorded=unrecorded,
    )


def _saved_state(url: str) -> LoaderState:
    with open_read(url) as file:
        try:
            content = json.loads(file.read())
        except ValueError as error:
            raise StateError(
                f"{redact(url)}: expected what `state_dict()` or `merge_states()` returned, as "
                f"JSON, found {error}: write it with json.dump"
            ) from error
    state = LoaderState.from_json(content)
    state.require_complete()
    return state


def _before(state: LoaderState, notes: Sequence[EpochNote]) -> list[EpochNote]:
    """The epochs before that of a state: of each as it was read the last time, since a restore
    begins it again.
    """
    restart_of = {note.epoch: _restart(note) for note in notes}
    return [
        note
        for note in notes
        if note.epoch < state.epoch and _restart(note) == restart_of[note.epoch]
    ]


def _restart(note: EpochNote) -> str:
    return note.prefix.rstrip("/").rpartition("/")[0]


def _require_windows(store: Store, note: EpochNote, job: Job) -> None:
    """ConfigError if the epoch's rows were permuted in other windows than the config says."""
    expected, (_, found) = job.plan(note.epoch).window_rows, plan_in(store, note.keys)
    if found != expected:
        raise ConfigError(
            f"{note.name}: expected windows of {expected} rows of a split, as the config says "
            f"(shuffle.window_rows / shuffle.interleave), found that the run had {found}: rows "
            f"would be others; give the config of the run"
        )


@dataclass(frozen=True, kw_only=True)
class _Matches:
    """The rows of a file that match and are delivered.

    Attributes:
        numbers: Their numbers in the file, ascending: int64 (num_rows,).
        row_group_rows: The rows of the file's row groups.
    """

    numbers: Array
    row_group_rows: Sequence[int]

    def in_order(self, split: Split, order: RowOrder, index: int) -> tuple[Array, Array]:
        """The rows of a split in their order of delivery: their numbers in the file, int64
        (num_rows,), and whether they match, bool (num_rows,).
        """
        firsts = [*accumulate(self.row_group_rows, initial=0)]
        found = [np.empty(0, np.int64)]
        windows = split_windows(split, self.row_group_rows, order.window_rows)
        for number, window in enumerate(windows):
            first, end = firsts[window.start], firsts[window.stop]
            permutation = order.permutation(end - first, index, number)
            found.append(np.arange(first, end) if permutation is None else first + permutation)
        numbers, is_match = np.concatenate(found), np.zeros(firsts[-1], bool)
        is_match[self.numbers] = True
        return numbers, is_match[numbers]


@dataclass(frozen=True, kw_only=True)
class _FoundRows:
    """The rows of the condition.

    Attributes:
        files: Those that are delivered, by path.
        left_out: Those that are not.
        gone: The paths of files that are gone.
    """

    files: dict[str, _Matches] = field(default_factory=dict)
    left_out: list[FileRows] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)


def _matching_rows(snapshot: Snapshot, job: Job, where: str) -> _FoundRows:
    """The rows that match. Files that cannot have any are not opened."""
    any_slot = job.request.slots[0].slot.name
    condition = resolve(job.request.schema, slots=[any_slot], where=where)
    found = _FoundRows()
    for path, listed in matching(snapshot, condition).items():
        file, _ = listed
        of_loader = job.files.get(path)
        parts = {part.url for each in (listed, of_loader) if each for part in each[0].parts}
        if any(find_file(url) is None for url in sorted(parts)):
            found.gone.add(path)
            continue
        left = rows_left(file.deleted_rows(), 0, file.num_rows)
        mask, row_group_rows = _passing(listed, condition, left)
        if not mask.any():
            continue
        kept = np.zeros_like(mask)
        if of_loader is not None:
            kept, _ = _passing(of_loader, job.request, mask)
        if (left_out := np.flatnonzero(mask & ~kept)).size:
            found.left_out.append(_file_rows(path, "left out", "", left_out))
        if kept.any():
            numbers = np.flatnonzero(kept)
            found.files[path] = _Matches(numbers=numbers, row_group_rows=row_group_rows)
    return found


def _passing(listed: Listed, request: Request, left: Array) -> tuple[Array, Sequence[int]]:
    """Which of the rows of a file that are left pass a request's filters, bool (num_rows,), and the
    rows of its row groups. One row group at a time is in memory.
    """
    file, partition = listed
    first, _ = request.reads(is_decided=partition.is_decided)
    with ExitStack() as opened:
        base, *groups = (
            opened.enter_context(OpenFile(source.source, source.path))
            for source in files_in_place(file)
        )
        sizes = base.row_group_rows
        if first is None:
            return left, sizes
        reader, masks, row = aligned_reader(base, groups, first), [np.zeros(0, bool)], 0
        for index, num_rows in enumerate(sizes):
            rows = reader.read([index])
            masks.append(
                passing(rows, row, request, partition, Counter(), left[row : row + num_rows])
            )
            row += num_rows
        return np.concatenate(masks), sizes


# The rows of splits, by their positions in the plan: what became of each, and what may have come
# twice.
_Known = Callable[[Plan, Sequence[int]], Iterator[tuple[int, Iterable[Stretch], Ranges]]]


def _in_store(store: Store, note: EpochNote) -> _Known:
    """What the leases of an epoch say."""

    def known(plan: Plan, positions: Sequence[int]) -> Iterator[tuple[int, Any, Ranges]]:
        size = EpochSize.decode(store.get_or_none(note.keys.size) or "")
        complete = set(size.complete_before)
        of_complete = sum(plan[index].num_rows for index in complete)
        # What a state had delivered of splits that nobody has claimed since is not in the store.
        unclaimed = Fate.PERHAPS if size.rows_before > of_complete else Fate.MISSING
        for index, entries in read_splits(store, note.keys, positions):
            fate = Fate.BEFORE if index in complete else unclaimed
            num_rows = plan[index].num_rows
            yield index, stretches(entries, num_rows, unclaimed=fate), maybe_repeated(entries)

    return known


def _in_state(done: Done) -> _Known:
    """What a state says of an epoch."""

    def known(plan: Plan, positions: Sequence[int]) -> Iterator[tuple[int, Any, Ranges]]:
        for index in positions:
            row, found, num_rows = 0, list[Stretch](), plan[index].num_rows
            for first, end in (*as_ranges(done.get(index, 0), num_rows), (num_rows,) * 2):
                found.append(Stretch(first=row, end=first, fate=Fate.MISSING))
                found.append(Stretch(first=first, end=end, fate=Fate.DELIVERED))
                row = end
            yield index, found, ()

    return known


def _epoch_rows(name: str, job: Job, epoch: int, rows: _FoundRows, known: _Known) -> EpochRows:
    """What became of the rows in an epoch."""
    plan = job.plan(epoch)
    order = RowOrder(seed=job.seed, epoch=epoch, shuffle=job.shuffle)
    known_paths = {*rows.files, *rows.gone}
    positions = [i for i in range(len(plan)) if plan[i].path in known_paths]
    numbers_of = defaultdict[tuple[str, str, str], list[Array]](list)
    num_twice, num_gone = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for index, found, repeated in known(plan, positions):
        split = plan[index]
        if split.path in rows.gone:
            for each in found:
                num_gone[split.path, each.fate, each.worker] += each.end - each.first
            continue
        numbers, is_match = rows.files[split.path].in_order(split, order, index)
        is_twice = np.zeros(len(numbers), bool)
        for first, end in repeated:
            is_twice[first:end] = True
        for each in found:
            key, of_rows = (split.path, each.fate, each.worker), slice(each.first, each.end)
            numbers_of[key].append(numbers[of_rows][is_match[of_rows]])
            num_twice[key] += int(np.count_nonzero((is_match & is_twice)[of_rows]))
    of_files = [
        _file_rows(*key, np.sort(np.concatenate(each)), num_twice[key])
        for key, each in numbers_of.items()
    ]
    of_files += [
        FileRows(path=path, fate=fate, worker=worker, num_rows=num_rows)
        for (path, fate, worker), num_rows in num_gone.items()
    ]
    in_order = sorted(of_files, key=lambda each: (each.path, each.fate, each.worker))
    return EpochRows(name=name, epoch=epoch, files=tuple(e for e in in_order if e.num_rows))


def _file_rows(path: str, fate: str, worker: str, numbers: Array, num_twice: int = 0) -> FileRows:
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    runs = [run for run in np.split(numbers, cuts) if run.size]
    return FileRows(
        path=path,
        fate=str(fate),
        worker=worker,
        num_rows=len(numbers),
        rows=tuple((int(run[0]), int(run[-1]) + 1) for run in runs),
        num_twice_at_most=num_twice,
    )


def _num_rows(files: Iterable[FileRows]) -> int:
    return sum(each.num_rows for each in files)


def _text(history: RowHistory) -> Iterator[str]:
    at = "" if history.version is None else f", version {history.version}"
    yield f"{history.num_rows:,} rows of {history.table}{at} where {history.where}"
    for path in history.gone:
        yield f"  and which of {path} is not known: the file is gone"
    if history.left_out:
        yield f"left out {_num_rows(history.left_out):,}, by the filters of the loader"
        yield from (f"  {each}" for each in history.left_out)
    for number in history.unrecorded:
        yield f"epoch {number}: before that of the state, and the store knows nothing of it"
    for epoch in history.epochs:
        yield epoch.name
        for fate in Fate:
            if found := [each for each in epoch.files if each.fate == fate]:
                known = [each for each in found if each.rows]
                yield f"{fate} {_num_rows(known):,}"
                yield from (f"  {each}" for each in found)
        if not epoch.files:
            yield "no such row"
