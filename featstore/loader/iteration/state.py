"""The state of a loader as JSON: what was delivered of each split of the epoch, by its position in
the plan.

The format is a contract (docs/contracts.md, tests/golden/loader_state.json). Rows are counted in a
split's stream: in the order of delivery, and including those that filters leave out. So a state
fits any batch size and any number of workers.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from featstore.base.errors import StateError
from featstore.base.intervals import united
from featstore.dispatch.plan import Done, Rows, as_ranges, compact

FORMAT = 1
MIXED_FORMAT = "mixed_format"  # The key by which the state of a mixture is known.
_SAME = ("seed", "window_rows", "num_epochs", "table", "plan", "request")
_WORDS = {"window_rows": "size of a split's windows (shuffle.window_rows / shuffle.interleave)"}
# A state holds only hashes of these, which say nothing to people: what differs, and what to do.
_DIFFERENCES = {
    "table": (
        "table, or another version of it",
        "; if the table has had a commit since, such as a new day or slot, open the version of "
        "then: from_config(..., table=featstore.open_table(URL, version=NUMBER)), of those that "
        "`featstore table inspect --history` lists",
    ),
    "where": ("`where`, by which other files are read", ""),
    "plan": (
        "division of the files (shuffle.within, dispatch.split_rows or split_bytes, or order)",
        "",
    ),
    "request": (
        "selection: slots, their order or options (also which end of lists is kept), labels, "
        "weight, extras, negatives, `where`, or candidates or their pool",
        " (a state holds only a hash of them: compare the configs, slots in their order and with "
        "their options, and what their globs match)",
    ),
}
_EPOCHS_APART = (
    ": expected states of one step, of one epoch or of two that follow each other (of a followed "
    "table one): keep the checkpoint before and save some steps later; where an epoch has few "
    "batches for each worker, or in order rank, in which some may have a split more in each epoch "
    "and go further apart, iterate once for each epoch (num_epochs 1)"
)


@dataclass(frozen=True, kw_only=True)
class LoaderState:
    """The state of some or all workers of one step.

    Attributes:
        table: Digest of the snapshot.
        plan: Hash of the splits.
        request: Hash of the rows and columns that are delivered.
        seed: The loader's seed.
        window_rows: The rows of a window of one split, `Shuffle.split_window_rows`; None without
            shuffling.
        num_epochs: Epochs per iteration.
        epoch: The current epoch.
        first_epoch: The epoch with which the iteration began.
        num_workers: How many workers took part in the step.
        workers: Those whose state this is.
        done: What was delivered of the current epoch.
        followed: Of a followed table, as `Follower.followed`; otherwise None.
        ended: What one of several workers had delivered of the epoch before, in which others may
            still be.
        ahead: What workers that were an epoch further had delivered of the next epoch.
    """

    table: str
    plan: str
    request: str
    seed: int
    window_rows: int | None
    num_epochs: int
    epoch: int
    first_epoch: int
    num_workers: int = 1
    workers: tuple[int, ...] = (0,)
    done: Done = field(default_factory=dict)
    followed: tuple[int | None, int | None] | None = None
    ended: Done | None = None
    ahead: Done = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain data for `json.dumps`. Complete splits are ranges that include both ends."""
        fields = {
            key: value
            for key, value in asdict(self).items()
            if key not in ("done", "ended", "ahead", "followed")
        }
        fields |= {} if self.followed is None else {"followed": list(self.followed)}
        ended = {} if self.ended is None else {"ended": _done_to_json(self.ended)}
        ahead = {"ahead": _done_to_json(self.ahead)} if self.ahead else {}
        return {
            "format": FORMAT,
            **fields,
            "workers": list(self.workers),
            **_done_to_json(self.done),
            **ended,
            **ahead,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "LoaderState":
        """The state. StateError for data of another format, or damaged data."""
        if isinstance(data, Mapping) and MIXED_FORMAT in data:
            raise StateError(
                "loader state: expected that of a loader of one table, found that of a mixture: "
                "load it into a loader made of the config with which it was saved"
            )
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, Mapping) else data
            raise StateError(f"loader state: expected format {FORMAT}, found {found!r}")
        try:
            apart = ("format", "complete", "partial", "workers", "ended", "ahead", "followed")
            fields = {key: value for key, value in data.items() if key not in apart}
            followed = tuple(data["followed"]) if "followed" in data else None
            ended = _done_of_json(data["ended"]) if "ended" in data else None
            return cls(
                **fields,
                workers=tuple(data["workers"]),
                done=_done_of_json(data),
                followed=followed,
                ended=ended,
                ahead=_done_of_json(data["ahead"]) if "ahead" in data else {},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"loader state: damaged, or edited by hand: {error}") from error

    @property
    def digest(self) -> str:
        """A hash of the state: 16 hex digits."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    def require_fit(self, other: "LoaderState") -> None:
        """StateError if `other`, the state of a loader, has another table, plan or order."""
        if (self.followed is None) is not (other.followed is None):
            is_followed = (
                "one that is not followed" if self.followed is None else "a followed table"
            )
            raise StateError(
                f"loader state: saved for {is_followed}, and this loader is of the other kind: see "
                "`follow`"
            )
        for key in _SAME:
            if getattr(self, key) != getattr(other, key):
                what, advice = _difference(
                    key, self, other, "expected {1}, as this loader has, found {0}"
                )
                raise StateError(
                    f"loader state: saved with another {what}: load it into a loader with the "
                    f"arguments of the saved one{advice}"
                )

    @property
    def delivered(self) -> dict[int, Done]:
        """What was delivered, by epoch."""
        return {self.epoch: self.done} | ({self.epoch + 1: self.ahead} if self.ahead else {})

    def in_epoch(self, epoch: int) -> "LoaderState":
        """The state as of the epoch before its own, in which other workers still are; the state
        itself if it is of another epoch, or does not know what the worker had delivered then.
        """
        if self.epoch != epoch + 1 or self.ended is None:
            return self
        has_ended = self.epoch == self.first_epoch  # Its iteration, at the end of the last epoch.
        first_epoch = self.epoch - self.num_epochs if has_ended else self.first_epoch
        before = replace(self, epoch=epoch, first_epoch=first_epoch, done=self.ended)
        return replace(before, ended=None, ahead=self.done)

    def require_own(self, index: int, num_workers: int) -> None:
        """StateError if the state is not that of this worker alone."""
        if (self.workers, self.num_workers) != ((index,), num_workers):
            raise StateError(
                f"loader state: of worker {list(self.workers)} of {self.num_workers}, loaded by "
                f"worker {index} of {num_workers}: use the same number of workers, or merge the "
                "states with FeatureLoader.merge_states([...]) and load them before the DataLoader "
                "is made"
            )

    def require_complete(self) -> None:
        """StateError if workers of the step are missing."""
        missing = sorted(set(range(self.num_workers)) - set(self.workers))
        if missing:
            raise StateError(
                f"loader state: of worker {list(self.workers)} of {self.num_workers}; worker "
                f"{missing} missing: "
                "merge the states of all workers with FeatureLoader.merge_states([...])"
            )


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merges the states that all workers saved at one step into one state.

    Workers may be in two epochs that follow each other, and some may have ended their iteration.

    Args:
        states: The results of `state_dict` of all workers.

    Returns:
        A state for `load_state_dict`, with any number of workers.

    Raises:
        StateError: The states are not of one step of one run, or are further apart.
    """
    parsed = [LoaderState.from_json(state) for state in states]
    if not parsed:
        raise StateError("merge_states: expected the states of all workers, found none")
    epoch = min(state.epoch for state in parsed)
    parsed = [state.in_epoch(epoch) for state in parsed]
    first = next((state for state in parsed if not _awaits_plan(state)), parsed[0])
    workers: set[int] = set()
    done: Done = {}
    ahead: Done = {}
    for state in parsed:
        _require_same_run(state, first, workers)
        workers.update(state.workers)
        done, ahead = _united(done, state.done), _united(ahead, state.ahead)
    merged = replace(first, workers=tuple(sorted(workers)), done=done, ended=None, ahead=ahead)
    return merged.to_json()


def _require_same_run(state: LoaderState, first: LoaderState, workers: set[int]) -> None:
    if (
        _awaits_plan(state)
        and first.followed is not None
        and state.followed == (first.followed[0], None)
    ):
        # This worker has not yet seen the plan that others have begun.
        state = replace(state, followed=first.followed, table=first.table, plan=first.plan)
    for key in (*_SAME, "num_workers", "epoch", "first_epoch", "followed"):
        if getattr(state, key) != getattr(first, key):
            what, _ = _difference(key, state, first, "{} and {}")
            advice = _EPOCHS_APART if key == "epoch" else ""
            raise StateError(f"merge_states: the states differ in {what}{advice}")
    if workers & set(state.workers):
        raise StateError(
            f"merge_states: more than one state of worker {sorted(workers & set(state.workers))}"
        )


def _difference(key: str, one: LoaderState, other: LoaderState, values: str) -> tuple[str, str]:
    """What differs between two states whose earlier fields are the same, in words, and advice."""
    if key == "plan" and one.request != other.request:
        key = "where"  # The request holds its text.
    if key in _DIFFERENCES:
        return _DIFFERENCES[key]
    found = values.format(getattr(one, key), getattr(other, key))
    return f"{_WORDS.get(key, key)}: {found}", ""


def _awaits_plan(state: LoaderState) -> bool:
    return state.followed is not None and state.followed[1] is None


def _united(one: Done, other: Done) -> dict[int, Rows]:
    both = dict(one)
    for index, rows in other.items():
        before = both.get(index, 0)
        is_complete = "complete" in (rows, before)
        both[index] = (
            "complete"
            if is_complete
            else compact(united([*as_ranges(rows, 0), *as_ranges(before, 0)]))
        )
    return both


def _done_to_json(done: Done) -> dict[str, Any]:
    complete = sorted(index for index, rows in done.items() if rows == "complete")
    # The number of first rows that are delivered; ranges `[first, end)` if a split was cut.
    partial = {
        str(index): list(map(list, rows)) if isinstance(rows, tuple) else rows
        for index, rows in sorted(done.items())
        if rows != "complete"
    }
    return {"complete": _ranges(complete), "partial": partial}


def _done_of_json(data: Mapping[str, Any]) -> dict[int, Rows]:
    done: dict[int, Rows] = {int(index): _parsed(rows) for index, rows in data["partial"].items()}
    for first, last in data["complete"]:
        done.update(dict.fromkeys(range(first, last + 1), "complete"))
    return done


def _parsed(rows: Any) -> Rows:
    return (
        tuple((int(first), int(end)) for first, end in rows)
        if isinstance(rows, list)
        else int(rows)
    )


def _ranges(indices: Iterable[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for index in indices:
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ranges
