"""Where a loader is, as JSON: what was delivered of the epoch's splits, by their position in the
plan.

The format is a contract (docs/contracts.md, tests/golden/loader_state.json). Rows are counted in a
split's stream, in the order of delivery and with those that filters left out, so a state fits any
batch size and any number of workers.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from featstore.dispatch.leases.delivered import Done, Rows, as_ranges, compact
from featstore.errors import StateError
from featstore.intervals import united

FORMAT = 1
_SAME = {
    "table": "table, or version of it,",
    "plan": "`where`, seed or set of files",
    "request": "`where`, slots, labels, weight or extras",
    "seed": "seed",
    "window_rows": "shuffle.window_rows",
    "num_epochs": "num_epochs",
}


@dataclass(frozen=True, kw_only=True)
class LoaderState:
    """The state of one worker, or of all `num_workers` of a step, as far as `workers` names them.

    `table` is the snapshot's digest, `plan` names the splits, `request` the rows and columns that
    are delivered. `first_epoch` is where the running pass over `num_epochs` epochs began and
    `epoch` where it is; `done` is what was delivered of it. `followed`, of a followed table: the
    version that has been read, and that whose new partitions are the plan, or None. `ended`: what
    one of several workers had delivered of the epoch before, as others may still be there.
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

    def to_json(self) -> dict[str, Any]:
        """Plain data for `json.dumps`: complete splits as ranges, both ends included."""
        fields = {
            key: value
            for key, value in asdict(self).items()
            if key not in ("done", "ended", "followed")
        }
        fields |= {} if self.followed is None else {"followed": list(self.followed)}
        ended = {} if self.ended is None else {"ended": _done_to_json(self.ended)}
        return {
            "format": FORMAT,
            **fields,
            "workers": list(self.workers),
            **_done_to_json(self.done),
            **ended,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "LoaderState":
        """StateError for data of another format."""
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, Mapping) else data
            raise StateError(f"loader state: expected format {FORMAT}, found {found!r}")
        try:
            apart = ("format", "complete", "partial", "workers", "ended", "followed")
            fields = {key: value for key, value in data.items() if key not in apart}
            followed = tuple(data["followed"]) if "followed" in data else None
            ended = _done_of_json(data["ended"]) if "ended" in data else None
            return cls(
                **fields,
                workers=tuple(data["workers"]),
                done=_done_of_json(data),
                followed=followed,
                ended=ended,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"loader state: damaged, or changed by hand: {error}") from error

    @property
    def digest(self) -> str:
        """Names the state: 16 hex digits."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    def require_fit(self, other: "LoaderState") -> None:
        """StateError where `other`, a loader's own state, is of another table, plan or order."""
        if (self.followed is None) is not (other.followed is None):
            is_followed = (
                "one that is not followed" if self.followed is None else "a followed table"
            )
            raise StateError(
                f"loader state: saved of {is_followed}, and this loader is of the other kind: see "
                f"`follow`"
            )
        for key, what in _SAME.items():
            mine, found = getattr(self, key), getattr(other, key)
            if mine != found:
                raise StateError(
                    f"loader state: of another {what} than this loader's: saved with {mine}, found "
                    f"{found}"
                )

    def before_end(self) -> "LoaderState":
        """Where a worker was that has just ended a pass: at the end of its last epoch."""
        assert self.ended is not None
        epoch, first_epoch = self.epoch - 1, self.epoch - self.num_epochs
        return replace(self, epoch=epoch, first_epoch=first_epoch, done=self.ended, ended=None)

    def require_complete(self) -> None:
        """StateError where workers of the step are missing."""
        missing = sorted(set(range(self.num_workers)) - set(self.workers))
        if missing:
            raise StateError(
                f"loader state: of worker {list(self.workers)} of {self.num_workers}; worker "
                f"{missing} missing: "
                "unite the states of all workers with FeatureLoader.merge_states([...])"
            )


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Unites the states that all workers saved at one step. StateError where they are not of one
    step of one run.

    A worker that has ended its pass may be among others that have not. Between two epochs of one
    pass workers may be in different ones: StateError; save one step later.
    """
    parsed = [LoaderState.from_json(state) for state in states]
    if not parsed:
        raise StateError("merge_states: expected the states of all workers, found none")
    epoch = min(state.epoch for state in parsed)
    parsed = [
        state.before_end() if state.epoch == epoch + 1 and state.ended is not None else state
        for state in parsed
    ]
    first = next((state for state in parsed if not _awaits_plan(state)), parsed[0])
    workers: set[int] = set()
    done: dict[int, Rows] = {}
    for state in parsed:
        _require_same_run(state, first, workers)
        workers.update(state.workers)
        done = _united(done, state.done)
    return replace(first, workers=tuple(sorted(workers)), done=done, ended=None).to_json()


def _require_same_run(state: LoaderState, first: LoaderState, workers: set[int]) -> None:
    if (
        _awaits_plan(state)
        and first.followed is not None
        and state.followed == (first.followed[0], None)
    ):
        # It has not seen the plan yet that others have begun.
        state = replace(state, followed=first.followed, table=first.table, plan=first.plan)
    for key in (*_SAME, "num_workers", "epoch", "first_epoch", "followed"):
        if getattr(state, key) != getattr(first, key):
            raise StateError(
                f"merge_states: the states differ in {key}: {getattr(state, key)} and "
                f"{getattr(first, key)}"
            )
    if workers & set(state.workers):
        raise StateError(
            f"merge_states: more than one state of worker {sorted(workers & set(state.workers))}"
        )


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
    partial = {
        str(index): _plain(rows) for index, rows in sorted(done.items()) if rows != "complete"
    }
    return {"complete": _ranges(complete), "partial": partial}


def _done_of_json(data: Mapping[str, Any]) -> dict[int, Rows]:
    done: dict[int, Rows] = {int(index): _parsed(rows) for index, rows in data["partial"].items()}
    for first, last in data["complete"]:
        done.update(dict.fromkeys(range(first, last + 1), "complete"))
    return done


def _plain(rows: Rows) -> Any:
    """First rows as a number; where a split was cut, ranges `[first, end]`, ends excluded."""
    return [list(pair) for pair in rows] if isinstance(rows, tuple) else rows


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
