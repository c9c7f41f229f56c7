"""`MixedLoader`: batches of several tables, each of which an ordinary loader reads."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NoReturn, Protocol

from torch.utils.data import IterableDataset

from featstore.base.closing import Closing
from featstore.base.errors import ConfigError, DispatchError, require_integer
from featstore.loader.batches.stats import summed_stats
from featstore.loader.device import DeviceFeed
from featstore.loader.iteration.batch_iterator import BatchIterator
from featstore.loader.iteration.job import Job
from featstore.loader.iteration.rendezvous import Meeting
from featstore.loader.mixed_columns import require_alike
from featstore.loader.mixed_iterator import MixedIterator
from featstore.loader.mixed_state import MixedState, merge_any_states, naming, num_passes
from featstore.loader.numpy_feed import NumpyFeed
from featstore.loader.on_stats import OnStats, StatsCalls, on_stats_options
from featstore.loader.request.mixed_tables import MixedTables, mixed_tables, table_names
from featstore.loader.turns import Turns
from featstore.tensors.batch import Batch, Device


class TableLoader(Protocol):
    """What a mixture needs of the loader of a table, a `FeatureLoader`."""

    @property
    def job(self) -> Job: ...

    def __iter__(self) -> BatchIterator: ...

    def share_with(self, num_loaders: int) -> None: ...

    def ack(self) -> None: ...

    def set_epoch(self, epoch: int) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def require_fit(self, state: Mapping[str, Any]) -> object: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def stats(self) -> dict[str, Any]: ...

    def verdict(self) -> str: ...

    def close(self) -> None: ...


class MixedLoader(IterableDataset[Batch], Closing):
    """Batches of several tables, drawn by weight. `FeatureLoader.from_config` makes one of a config
    with `tables`, and docs/mixing.md describes it.

    It has the methods of a `FeatureLoader` but `to_tf()`, with the same contracts. Each batch is of
    one table, and each table's loader keeps its guarantees: every row once in each pass.

    Args:
        loaders: One loader for each table, which this one owns and closes.
        tables: What is mixed.
        on_stats: As of `FeatureLoader`.

    Attributes:
        names: The tables, as messages name them.
        stop: When an epoch ends: `first_exhausted` or `all_exhausted`.

    Raises:
        ConfigError: The tables have different columns, two entries read the same rows, or a table
            has no rows.
    """

    def __init__(
        self,
        loaders: Sequence[TableLoader],
        tables: MixedTables,
        *,
        on_stats: OnStats
        | Mapping[str, Any]
        | Callable[[dict[str, Any]], object]
        | str
        | None = None,
    ) -> None:
        self.names, self.stop = table_names(tables.configs), tables.stop
        self._loaders, self._weights = tuple(loaders), tuple(tables.weights)
        self._stats_calls = StatsCalls(on_stats_options(on_stats))
        require_alike([loader.job.request for loader in loaders], self.names)
        self._require_rows()
        self._require_apart()
        for name, loader in zip(self.names, loaders, strict=True):
            with naming(name):
                loader.share_with(len(loaders))
        self._restored: MixedState | None = None
        self._iteration: MixedIterator | None = None
        self._pid = os.getpid()

    merge_states = staticmethod(merge_any_states)

    def __iter__(self) -> MixedIterator:
        return MixedIterator(self, self.iterators())

    def take(self, iteration: MixedIterator) -> None:
        """Makes this the current iteration, and ends the one under way. Called by `MixedIterator`.

        Args:
            iteration: It is about to begin.
        """
        self._adopt()
        if self._iteration is not None and self._iteration is not iteration:
            self._iteration.close()
        self._iteration = iteration

    @property
    def num_epochs(self) -> int:
        """How many epochs each iteration reads: one."""
        return 1

    def iterators(self) -> list[BatchIterator]:
        """A new iteration over each table. Called by `MixedIterator`."""
        return [iter(loader) for loader in self._loaders]

    def __len__(self) -> int:
        raise TypeError(
            "a mixture of tables has no len(): when it ends depends on which table is exhausted, "
            "in each worker; count batches instead"
        )

    def __bool__(self) -> bool:
        return True

    def to_device(self, device: Device, *, prefetch: int = 2) -> DeviceFeed:
        """As of `FeatureLoader`.

        Args:
            device: A torch device, or its name.
            prefetch: Number of batches that are copied ahead of the loop, at least 1.
        """
        return DeviceFeed(self, device, prefetch=prefetch)

    def numpy(self) -> NumpyFeed:
        """As of `FeatureLoader`."""
        return NumpyFeed(self)

    def ack(self) -> None:
        """Counts the last batch as delivered now, not only when the next one is asked for."""
        self._adopt()
        if self._iteration is not None:
            self._iteration.acknowledge()

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration begin with this epoch, and ends the one under way.

        Args:
            epoch: Number of the epoch, from 0.

        Raises:
            ConfigError: `epoch` is not an integer of 0 or more.
        """
        require_integer("epoch", epoch, minimum=0)
        if self._restored is not None and self._restored.epoch != epoch:
            self._restored = None
        self._forget()
        for loader in self._loaders:
            loader.set_epoch(epoch * num_passes(self.stop))

    def state_dict(self) -> dict[str, Any]:
        """What this process has delivered: the states of all tables, and how many batches each has
        given. May be called between any two batches.

        Raises:
            StateError: As of `FeatureLoader`.
        """
        self._adopt()
        states = [loader.state_dict() for loader in self._loaders]
        if self._iteration is not None:
            return self._iteration.state(states).to_json()
        first_epoch = int(states[0]["first_epoch"])
        return MixedState(
            stop=self.stop,
            epoch=first_epoch // num_passes(self.stop),
            turns=self._turns(self._restored, first_epoch),
            tables=tuple(states),
        ).to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration continue where the state was saved, on any number of workers.
        The weights may have changed: the batches from then on are drawn by the new ones.

        Args:
            state: As of `FeatureLoader`.

        Raises:
            StateError: As of `FeatureLoader`, for any of the tables, or the state has another
                `stop` or number of tables. Nothing is loaded then.
        """
        saved = MixedState.from_json(state)
        saved.require_fit(self.stop, len(self._loaders))
        saved = saved.to_continue
        parts = list(zip(self.names, self._loaders, saved.tables, strict=True))
        for name, loader, table in parts:
            with naming(name):
                loader.require_fit(table)
        self._adopt()
        self._forget()
        for name, loader, table in parts:
            with naming(name):
                loader.load_state_dict(table)
        self._restored = saved

    def recorded_order(self, epoch: int | None = None) -> NoReturn:
        """Not to be had of a mixture.

        Args:
            epoch: Number of the epoch.

        Raises:
            DispatchError: Always.
        """
        raise DispatchError(
            "recorded_order(): expected a loader of one table, found a mixture, which has no order "
            "replay; a mixture in order static is repeatable"
        )

    def stats(self) -> dict[str, Any]:
        """Metrics of this process since the loader was made, summed over the tables; under `tables`
        some of each table, by its number in the config. May be called from any thread.
        """
        return summed_stats([loader.stats() for loader in self._loaders])

    def verdict(self) -> str:
        """What the last passes over the tables waited for, in one line; empty before any has
        ended.
        """
        verdicts = [loader.verdict() for loader in self._loaders]
        told = zip(self.names, verdicts, strict=True)
        lines = [f"{name}: {verdict or 'no pass over it has ended'}" for name, verdict in told]
        return "; ".join(lines) if any(verdicts) else ""

    def close(self) -> None:
        """Ends the iteration under way, removes temporary files and frees memory.

        May be called from any thread and more than once. The loader may be iterated again.
        """
        with ExitStack() as ending:  # All are closed, even if one fails.
            for loader in self._loaders:
                ending.callback(loader.close)

    def tell_stats(self, *, is_last: bool) -> None:
        """Calls the function `on_stats` if it is time to. Called by `MixedIterator`.

        Args:
            is_last: Whether the iteration has ended by itself.
        """
        self._stats_calls.tell(self.stats, is_last=is_last)

    def turns_at(self, meeting: Meeting) -> Turns:
        """The turns with which an iteration begins: those of the loaded state, if it is of the same
        epoch and weights. Called by `MixedIterator`.

        Args:
            meeting: The iteration of the first table.
        """
        saved = self._restored if meeting.number == 0 else None
        return self._turns(saved, meeting.first_epoch)

    def _turns(self, saved: MixedState | None, first_epoch: int) -> Turns:
        begin = Turns.begin(self._weights)
        if saved is None or saved.epoch != first_epoch // num_passes(self.stop):
            return begin
        return saved.turns if saved.turns.weights == begin.weights else begin

    def _forget(self) -> None:
        if self._iteration is not None:
            self._iteration.close()
        self._iteration = None

    def _adopt(self) -> None:
        """After a fork, drops the iteration of the parent."""
        if self._pid != os.getpid():
            self._pid, self._iteration = os.getpid(), None

    def __getstate__(self) -> dict[str, Any]:
        """What a worker process gets: everything except the iteration."""
        return self.__dict__ | {"_iteration": None}

    def _require_rows(self) -> None:
        """ConfigError if a table has no rows: no batch could be drawn of it, and an epoch would end
        at its first turn.
        """
        for name, loader in zip(self.names, self._loaders, strict=True):
            if not loader.job.has_rows:
                raise ConfigError(
                    f"{name}: expected rows to draw batches of, found none in its data files: "
                    "leave the entry out until the table has some"
                )

    def _require_apart(self) -> None:
        """ConfigError if two entries read the same rows: they would share them through the store,
        each row once for both.
        """
        seen: dict[str, str] = {}
        for name, loader in zip(self.names, self._loaders, strict=True):
            other = seen.setdefault(loader.job.key, name)
            if other is not name:
                raise ConfigError(
                    f"{name}: expected other rows than those of {other}, found the same table "
                    "with the same `where`: make them one entry, with the sum of the weights"
                )


def mixed_loader(config: Mapping[str, Any], make: Callable[..., TableLoader]) -> MixedLoader:
    """The loader of a config with `tables`.

    Args:
        config: As `load_train_config` returns it.
        make: Makes the loader of one table.

    Raises:
        ConfigError: The config is invalid; and everything that `FeatureLoader` raises, with the
            table's name.
    """
    tables = mixed_tables(config)
    loaders = list(_loaders(tables, make))
    return MixedLoader(loaders, tables, on_stats=config.get("on_stats"))


def _loaders(tables: MixedTables, make: Callable[..., TableLoader]) -> Iterable[TableLoader]:
    own = {"num_epochs": num_passes(tables.stop), "on_stats": None}
    for name, config in zip(table_names(tables.configs), tables.configs, strict=True):
        with naming(name):
            yield make(**{**config, **own})
