"""The end of an epoch where ranks train in step: how many steps all of them make, though they get
different numbers of batches.

No rank asks at each step. One that has rows at hand for some steps promises them in the store, once
for a block of rows; one that has no batch for a step waits until it is told by the promises of the
others whether they make it.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from threading import Event
from typing import Protocol

from featstore.dispatch.stores.address import Store
from featstore.errors import ConfigError, DispatchError, StateError
from featstore.loader.run.worker import LoaderWorker

DROP, PAD, JOIN = TAILS = ("drop", "pad", "join")
_LOG = logging.getLogger(__name__)
_GOES, _ENDED, _LEFT = "goes", "ended", "left"
_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.25


class StepDecision(Enum):
    """Whether a step is made."""

    GO = "go"
    STOP = "stop"
    WAIT = "wait"


@dataclass(frozen=True)
class Announcement:
    """What a worker said last: it `goes` through so many steps at least, it has `ended` after them,
    or `left` its loop.
    """

    what: str
    steps: int

    @classmethod
    def of(cls, text: str | None) -> "Announcement":
        what, _, steps = (text or f"{_GOES} 0").partition(" ")
        return cls(what, int(steps))


def decide(step: int, others: Sequence[Announcement], *, is_mine: bool) -> StepDecision:
    """Whether `step` is made, as far as the others have said: with a batch of one's own for it
    (`is_mine`) if all of them make it, without one if any of them does."""
    makes = [told.steps >= step for told in others]
    is_over = [told.what == _ENDED and told.steps < step for told in others]
    if is_mine:
        return (
            StepDecision.STOP
            if any(is_over)
            else StepDecision.GO
            if all(makes)
            else StepDecision.WAIT
        )
    return (
        StepDecision.GO if any(makes) else StepDecision.STOP if all(is_over) else StepDecision.WAIT
    )


class Steps(Protocol):
    """The agreement of one worker with the others on how many steps there are. Steps count from
    1.
    """

    def makes(self, step: int, ahead: int) -> bool:
        """Whether all make this step, for which there is a batch here, as for `ahead` more."""

    def pads(self, step: int) -> bool:
        """Whether this step is made with a padding batch, as there is no other one left here."""

    def leave(self) -> None:
        """The loop was left before the end. May be called more than once, and after the end."""


class Counted:
    """Where the number of steps follows from the plan: `num_steps` for every rank."""

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps

    def makes(self, step: int, ahead: int) -> bool:
        return step <= self._num_steps

    def pads(self, step: int) -> bool:
        return step <= self._num_steps

    def leave(self) -> None:
        """Nobody waits for a word."""


class Agreed:
    """Where ranks learn it from each other, in a store of which this is the only user. One
    consumer.

    DispatchError where another worker has left its loop and this one would wait for it, or where
    one says nothing for `patience_s`.
    """

    def __init__(
        self, kind: str, store: Store, prefix: str, worker: LoaderWorker, *, patience_s: float
    ) -> None:
        self._kind, self._store, self._worker, self._patience_s = kind, store, worker, patience_s
        self._keys = {index: f"{prefix}tail/{index}" for index in range(worker.num_workers)}
        self._promised = self._known = self._step = 0
        self._has_ended, self._closed = False, Event()

    def makes(self, step: int, ahead: int) -> bool:
        self._step = step
        if step > self._promised:
            self._promised = step + ahead
            self._tell(_GOES, self._promised)
        if self._kind == PAD or step <= self._known or self._agree(step, is_mine=True):
            return True
        self._end(step - 1)
        return False

    def pads(self, step: int) -> bool:
        """Also in a tail that drops: who lost its rows after promising steps keeps the promise with
        padding.
        """
        self._step = step
        if step <= self._promised:
            return True
        self._end(step - 1)
        return self._kind == PAD and self._agree(step, is_mine=False)

    def leave(self) -> None:
        self._closed.set()
        if not self._has_ended:
            self._has_ended = True
            with suppress(DispatchError):
                self._tell(_LEFT, self._step)
            _LOG.warning(
                "%s left its loop at step %d, before the end of the epoch: ranks that train in "
                "step with it wait for it in "
                "vain; with tail %s a loop may be left early only by all ranks at one step",
                self._name(self._worker.index),
                self._step,
                self._kind,
            )
        self._store.close()

    def _end(self, steps: int) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._tell(_ENDED, steps)

    def _tell(self, what: str, steps: int) -> None:
        self._store.set(self._keys[self._worker.index], f"{what} {steps}")

    def _agree(self, step: int, *, is_mine: bool) -> bool:
        """Waits until the others have said enough."""
        began, pause_s = time.monotonic(), _PAUSE_S
        while True:
            others = self._others()
            found = decide(step, list(others.values()), is_mine=is_mine)
            if found is not StepDecision.WAIT:
                self._known = min(told.steps for told in others.values())
                return found is StepDecision.GO
            self._require_company(step, others, time.monotonic() - began)
            if self._closed.wait(pause_s):
                raise StateError("this iteration was closed before its end; iterate anew")
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _others(self) -> Mapping[int, Announcement]:
        others = [index for index in self._keys if index != self._worker.index]
        texts = self._store.get_many([self._keys[index] for index in others])
        return {index: Announcement.of(text) for index, text in zip(others, texts, strict=True)}

    def _require_company(
        self, step: int, others: Mapping[int, Announcement], waited_s: float
    ) -> None:
        for index, told in others.items():
            if told.what == _LEFT and told.steps < step:
                raise DispatchError(
                    f"{self._name(index)} left its loop at step {told.steps}, before the end of "
                    f"the epoch, and {self._name(self._worker.index)} waits for it at step {step}: "
                    f"with tail {self._kind} a loop may be left early only by all ranks at one "
                    "step; see that rank's log, or choose tail join"
                )
        if waited_s > self._patience_s:
            silent = [
                f"{self._name(i)} (step {told.steps})"
                for i, told in others.items()
                if told.steps < step
            ]
            raise DispatchError(
                f"waited {waited_s:.0f} s at step {step} for {', '.join(silent)}, which went no "
                f"further"
            )

    def _name(self, index: int) -> str:
        per_rank = self._worker.num_workers // self._worker.num_ranks
        rank = f"rank {index // per_rank}"
        return rank if per_rank == 1 else f"worker {index % per_rank} of {rank}"


def require_tail(value: object, *, in_step: object) -> str:
    """ConfigError for what is no tail, and for one that the option `dispatch.in_step`
    contradicts.
    """
    if value not in TAILS:
        raise ConfigError(f"tail: expected one of {', '.join(TAILS)}, found {value!r}")
    if value != JOIN and in_step is False:
        raise ConfigError(
            f"tail {value} and dispatch.in_step false contradict each other: with this tail all "
            "ranks make the same steps; leave in_step out, or choose tail join"
        )
    return str(value)
