"""Batches for a Lightning Trainer, which asks for one batch more than it trains on."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from torch import distributed

from featstore.base.errors import ConfigError, StateError
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.iteration.worker import num_in_group
from featstore.tensors.batch import Batch


class Stateful(Protocol):
    """A source of batches that says how far it is: a loader, or a StatefulDataLoader over one."""

    def __iter__(self) -> Iterator[Batch]:
        """Begins an iteration, from a state that was loaded."""

    def state_dict(self) -> dict[str, Any]:
        """How far the iteration is."""

    def load_state_dict(self, state: Any) -> None:
        """Makes the next iteration continue from a state."""


class TrainerEpoch:
    """The number of the Trainer's epoch, which the Trainer tells to what it finds as
    `batch_sampler.sampler` of a loader. (A `sampler` of its own would make the loader shuffled in
    its eyes.)

    Attributes:
        epoch: The epoch that the next iteration is to read; None: the one where the source is.
    """

    epoch: int | None = None

    @property
    def sampler(self) -> "TrainerEpoch":
        return self

    def set_epoch(self, epoch: int) -> None:
        """Called by the Trainer at the begin of each epoch. An iteration under way goes on."""
        self.epoch = epoch


class LightningFeed:
    """Iterates over a source for a Lightning Trainer, whose checkpoints then hold exactly the
    batches that were trained on.

    A Trainer that does not know the number of batches has always asked for the next one when it
    trains on one, and for none at the end. So a batch counts as delivered when the next one is
    asked for, as in a FeatureLoader, where a StatefulDataLoader counts it at once. The feed has no
    length, since with one the Trainer would not ask ahead.

    Epoch n of the Trainer is iteration n of the loader, also where the Trainer makes an iteration,
    takes its first batch and drops both, as it does when it fits for a second time. For one
    consumer.

    Args:
        source: A loader, or torchdata's StatefulDataLoader over one.

    Raises:
        ConfigError: The source has no state, as torch's DataLoader: a checkpoint would be empty,
            and the epoch start over after it, silently.
    """

    def __init__(self, source: Stateful) -> None:
        if not (hasattr(source, "state_dict") and hasattr(source, "load_state_dict")):
            raise ConfigError(
                "LightningFeed: expected a loader, or torchdata's StatefulDataLoader over one, "
                f"found {type(source).__module__}.{type(source).__name__}, which has no state: a "
                "checkpoint would not say which rows were trained on; give it the loader itself, "
                "or StatefulDataLoader(loader, batch_size=None, num_workers=...)"
            )
        self._source, self._is_loader = source, isinstance(source, FeatureLoader)
        self._state: dict[str, Any] | None = None
        self.batch_sampler = TrainerEpoch()

    def __iter__(self) -> Iterator[Batch]:
        loader = getattr(self._source, "dataset", self._source)
        epoch = self.batch_sampler.epoch
        if epoch is not None and isinstance(loader, FeatureLoader):
            loader.set_epoch(epoch * loader.num_epochs)
        batches, counts_at_once = iter(self._source), not self._is_loader
        while True:
            state = self._source.state_dict() if counts_at_once else None
            batch = next(batches, None)
            if batch is None:
                self._state = None  # The source's own: all is delivered.
                return
            self._state = state
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """The source's state, in which the batch that was asked for last is not delivered, unless
        the iteration has ended. In a job of several ranks, the states of all of them: all must call
        it together, as they must call `save_checkpoint` of a Trainer.
        """
        own = self._source.state_dict() if self._state is None else self._state
        if num_in_group() == 1:
            return own
        states: list[Any] = [None] * num_in_group()
        distributed.all_gather_object(states, own)
        return {"ranks": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration continue where the state was saved. A loader takes the states of
        any number of ranks.

        Raises:
            StateError: The source is a StatefulDataLoader, and the number of ranks another one; and
                what the source's own `load_state_dict` raises.
        """
        self._state = self.batch_sampler.epoch = None
        self._source.load_state_dict(_own(state, self._is_loader))


def _own(state: Mapping[str, Any], can_merge: bool) -> Any:
    """What the source of this rank is to load of a feed's state."""
    states = state.get("ranks")
    if states is None:
        return state
    if can_merge:
        return FeatureLoader.merge_states(states)
    if len(states) != num_in_group():
        raise StateError(
            f"LightningFeed: expected the state of {num_in_group()} ranks, found that of "
            f"{len(states)}: the states of StatefulDataLoaders are for as many ranks as saved "
            "them; start so many, or give the Trainer LightningFeed of the loader itself"
        )
    return states[distributed.get_rank() if len(states) > 1 else 0]
