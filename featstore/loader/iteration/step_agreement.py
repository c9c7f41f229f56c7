"""How workers agree through the store: ranks that train in step on the number of steps, though they
get different numbers of batches, and the workers of a DataLoader on a state that they restore.

No rank asks the others at each step. A rank that has rows for some steps announces them in the
store, once for each block of rows. A rank that has no batch for a step waits until the
announcements of the others say whether they make the step.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Event

import torch

from featstore.base.errors import ConfigError, DispatchError, DispatchUnavailableError, StateError
from featstore.dispatch.stores.address import Store
from featstore.dispatch.stores.base import KEYS_PER_READ, counted
from featstore.dispatch.terms import SYSTEM_CLOCK, Clock
from featstore.loader.iteration.state import LoaderState, merge_states
from featstore.loader.iteration.worker import LoaderWorker
from featstore.tensors.batch import Batch
from featstore.tensors.column_arrays import WEIGHT
from featstore.tensors.packed import TensorColumns

_LOG = logging.getLogger(__name__)
_GOES, _ENDED, _LEFT = "goes", "ended", "left"
# Seconds between two looks at the announcements: doubled from the first to the second value.
_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.25
# Workers of one DataLoader start within seconds of each other, but import torch, which may take a
# minute on a busy host.
_SHARES_TIMEOUT_S, _SHARES_PAUSE_S = 120.0, 0.01


@dataclass(frozen=True, kw_only=True)
class Tail:
    """What ranks do at the end of an iteration if they have different numbers of batches: all that
    is known of the values of the option `tail`.

    Attributes:
        name: The value.
        agrees: Whether all ranks make the same number of steps.
        pads: Whether these are the steps of the rank with the most batches, which the others make
            with padding; otherwise those of the rank with the fewest.
    """

    name: str
    agrees: bool = True
    pads: bool = False

    def __str__(self) -> str:
        return self.name

    def num_steps(self, num_batches: Sequence[int]) -> int:
        """The steps that ranks with these numbers of batches make."""
        return max(num_batches) if self.pads else min(num_batches)

    def padding(self, batch: Batch) -> Batch:
        """What a rank without rows makes a step with: the rows of `batch`, an earlier one, with
        `is_padding` true, and weights, if any, zero. With tail `drop`, too: a rank may lose rows
        for which it has announced steps.
        """
        columns = dict(batch.made())
        for name in batch.columns.keys.names[WEIGHT]:
            columns[WEIGHT, name] = torch.zeros(len(batch))
        return batch.with_columns(TensorColumns(columns), is_padding=True)


JOIN = Tail(name="join", agrees=False)
_TAILS = (Tail(name="drop"), Tail(name="pad", pads=True), JOIN)


def tail_of(value: str) -> Tail:
    """The option `tail`. ConfigError for an unknown one."""
    for tail in _TAILS:
        if tail.name == value:
            return tail
    known = ", ".join(tail.name for tail in _TAILS)
    raise ConfigError(f"tail: expected one of {known}, found {value!r}")


def require_in_step(tail: Tail, in_step: object) -> None:
    """ConfigError if `dispatch.in_step` contradicts the tail."""
    if tail.agrees and in_step is False:
        raise ConfigError(
            f"tail {tail} and dispatch.in_step false contradict each other: with this tail "
            "all ranks make the same steps; leave in_step out, or choose tail join"
        )


@dataclass(frozen=True)
class Announcement:
    """The last announcement of a worker.

    Attributes:
        what: `goes`: it makes at least these steps; `ended`: it has no batches after them; `left`:
            it left its loop after them.
        steps: A number of steps.
    """

    what: str
    steps: int

    @classmethod
    def of(cls, text: str | None) -> "Announcement":
        what, _, steps = (text or f"{_GOES} 0").partition(" ")
        return cls(what, int(steps))


def decide(step: int, others: Sequence[Announcement], *, is_mine: bool) -> bool | None:
    """Whether a step is made; None as long as the announcements do not say.

    Args:
        step: The step, counted from 1.
        others: Announcements of the other workers.
        is_mine: Whether this worker has a batch for the step. If so, the step is made if all others
            make it; if not, it is made, with padding, if any of them does.
    """
    makes = [other.steps >= step for other in others]
    is_over = [other.what == _ENDED and other.steps < step for other in others]
    if is_mine:
        is_made, is_left_out = all(makes), any(is_over)
    else:
        is_made, is_left_out = any(makes), all(is_over)
    return is_made if is_made or is_left_out else None


class Counted:
    """Steps in order `static`, where their number follows from the plan. They are counted from 1,
    as those of `Agreed`.
    """

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps

    def makes(self, step: int, ahead: int) -> bool:
        """Whether all ranks make this step. This one has a batch for it and for `ahead` more."""
        return step <= self._num_steps

    def pads(self, step: int) -> bool:
        """Whether this rank, which has no batches left, makes the step with a padding batch."""
        return step <= self._num_steps

    def leave(self) -> None:
        """Does nothing, since no rank waits for another one."""


class Agreed:
    """Steps on which ranks agree through announcements in the store. For one consumer.

    Args:
        tail: A tail with which ranks agree.
        store: A handle of its own, which `leave` closes.
        prefix: Prefix of the iteration's keys.
        worker: Which worker this process is.
        patience_s: Seconds to wait for the announcement of another worker.
        clock: The clock by which they are counted.

    Raises:
        DispatchUnavailableError: In `makes` and `pads`: another worker has left its loop and this
            one would wait for it, or one announces nothing for `patience_s`.
    """

    def __init__(
        self,
        tail: Tail,
        store: Store,
        prefix: str,
        worker: LoaderWorker,
        patience_s: float,
        clock: Clock,
    ) -> None:
        self._tail, self._store, self._worker = tail, store, worker
        self._patience_s, self._clock = patience_s, clock
        # The keys of all announcements, by worker.
        self._others = {index: f"{prefix}tail/{index}" for index in range(worker.num_workers)}
        self._own = self._others.pop(worker.index)
        self._announced = self._known = self._step = 0
        self._has_ended, self._closed = False, Event()

    def makes(self, step: int, ahead: int) -> bool:
        """As of `Counted`."""
        self._step = step
        if step > self._announced:
            self._announced = step + ahead
            self._announce(_GOES, self._announced)
        if self._tail.pads or step <= self._known or self._agree(step, is_mine=True):
            return True
        self._end(step - 1)
        return False

    def pads(self, step: int) -> bool:
        """As of `Counted`. Pads in tail `drop`, too: a rank that lost its rows to another one makes
        the steps that it has announced.
        """
        self._step = step
        if step <= self._announced:
            return True
        self._end(step - 1)
        return self._tail.pads and self._agree(step, is_mine=False)

    def leave(self) -> None:
        """Called when the loop is left. May be called more than once, and after the end."""
        self._closed.set()
        if not self._has_ended:
            self._has_ended = True
            with suppress(DispatchError):
                self._announce(_LEFT, self._step)
            _LOG.warning(
                "%s left its loop at step %d, before the end of the epoch: ranks that train in "
                "step with it wait for it in vain; with tail %s a loop may be left early only by "
                "all ranks at the same step",
                self._name(self._worker.index),
                self._step,
                self._tail,
            )
        self._store.close()

    def _end(self, steps: int) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._announce(_ENDED, steps)

    def _announce(self, what: str, steps: int) -> None:
        self._store.set(self._own, f"{what} {steps}")

    def _agree(self, step: int, *, is_mine: bool) -> bool:
        """Waits until the announcements of the others decide about the step."""
        began, pause_s = self._clock.now_s(), _PAUSE_S
        while True:
            texts = zip(self._others, self._texts_of_others(), strict=True)
            others = {index: Announcement.of(text) for index, text in texts}
            found = decide(step, list(others.values()), is_mine=is_mine)
            if found is not None:
                self._known = min(other.steps for other in others.values())
                return found
            self._require_company(step, others, self._clock.now_s() - began)
            if self._closed.wait(pause_s):
                raise StateError("this iteration was closed before its end; iterate anew")
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _texts_of_others(self) -> Iterator[str | None]:
        keys = [*self._others.values()]
        for start in range(0, len(keys), KEYS_PER_READ):  # each read has the store's time limit
            yield from self._store.get_many(keys[start : start + KEYS_PER_READ])

    def _require_company(
        self, step: int, others: Mapping[int, Announcement], waited_s: float
    ) -> None:
        for index, other in others.items():
            if other.what == _LEFT and other.steps < step:  # Its loop may have failed, too.
                raise DispatchUnavailableError(
                    f"{self._name(index)} left its loop at step {other.steps}, before the end of "
                    f"the epoch, and {self._name(self._worker.index)} waits for it at step {step}: "
                    f"with tail {self._tail} a loop may be left early only by all ranks at "
                    "the same step; see that rank's log, or choose tail join"
                )
        if waited_s > self._patience_s:
            silent = [
                f"{self._name(i)} (step {other.steps})"
                for i, other in others.items()
                if other.steps < step
            ]
            raise DispatchUnavailableError(
                f"waited {waited_s:.0f} s at step {step} for {', '.join(silent)}, which made no "
                "progress: see the logs of these ranks"
            )

    def _name(self, index: int) -> str:
        per_rank = self._worker.num_siblings
        rank = f"rank {index // per_rank}"
        return rank if per_rank == 1 else f"worker {index % per_rank} of {rank}"


Steps = Counted | Agreed


def united(
    store: Store,
    prefix: str,
    worker: LoaderWorker,
    share: LoaderState,
    clock: Clock = SYSTEM_CLOCK,
) -> tuple[str, LoaderState]:
    """Meets the other workers of a DataLoader in the store, and merges their states.

    torchdata's StatefulDataLoader saves one state per worker, and gives each new worker the one of
    its number. A worker cannot continue from its own state only, since it would read again what
    others delivered.

    Args:
        store: The store.
        prefix: Prefix of keys that only these workers use.
        worker: Which worker this process is.
        share: Its state.
        clock: The clock by which others are waited for.

    Returns:
        A name for the meeting, equal in all workers and new each time, and the state of all of
        them.

    Raises:
        StateError: A worker does not come.
    """
    session = worker.session if worker.num_ranks == 1 else "job"
    name = f"{session}/{counted(store, f'{prefix}shares/{session}/{worker.index}')}"
    store.set(f"{prefix}shares/{name}/{worker.index}/state", json.dumps(share.to_json()))
    states = [
        _awaited(store, f"{prefix}shares/{name}/{index}/state", index, clock)
        for index in range(worker.num_workers)
    ]
    return name, LoaderState.from_json(merge_states(json.loads(state) for state in states))


def _awaited(store: Store, key: str, worker: int, clock: Clock) -> str:
    deadline, never = clock.now_s() + _SHARES_TIMEOUT_S, Event()
    while (state := store.get_or_none(key)) is None:
        if clock.now_s() > deadline:
            raise StateError(
                f"loader state: waited {_SHARES_TIMEOUT_S:.0f} s for the state of worker {worker}, "
                f"which did not come"
            )
        never.wait(_SHARES_PAUSE_S)
    return state
