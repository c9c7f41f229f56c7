"""Numbers the iterations of a loader: in which store its workers meet, under which keys, and with
which epoch each iteration begins.

An iteration has `num_epochs` epochs. The workers of one DataLoader agree on an iteration's number
without talking to each other: all of them give it the same name (the DataLoader's base seed and how
often they were iterated), and the store numbers the names in the order in which they first occur.
"""

import hashlib
import multiprocessing
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from featstore.base.errors import ConfigError, StateError
from featstore.base.processes import OwnProcess
from featstore.base.redaction import redact
from featstore.dispatch.options import AUTO, Dispatch
from featstore.dispatch.recording import Recording, recording_in
from featstore.dispatch.store_keys import restores_key, run_prefix
from featstore.dispatch.stores.address import Store, StoreAddress, bind, bind_job
from featstore.dispatch.stores.base import counted, first_free
from featstore.dispatch.stores.endpoint import has_agent_store, num_processes
from featstore.dispatch.terms import SYSTEM_CLOCK, AnsweredClock, Clock
from featstore.dispatch.unfinished import UnreadEpochs
from featstore.files.looks import exists
from featstore.files.private_directory import PrivateDirectory
from featstore.loader.iteration.state import LoaderState
from featstore.loader.iteration.step_agreement import united
from featstore.loader.iteration.worker import LoaderWorker

_STORE, _LEFT = "store.sqlite", "left"


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """One iteration, as all workers of the loader agree on it.

    Attributes:
        address: The store.
        prefix: Prefix of the keys that all workers of the iteration share.
        number: The iteration's number since the last restore.
        first_epoch: The epoch with which it begins.
        worker: Which worker this process is.
        is_repeated: Whether a worker of this index has begun the same iteration before, in an
            earlier start of the run or in another loader.
        siblings: Prefix of the keys that only the workers of one DataLoader use in it.
        left_open: Epochs that ended for this loader before all rows were read.
        clock: The clock by which leases are judged.
    """

    address: StoreAddress
    prefix: str
    number: int
    first_epoch: int
    worker: LoaderWorker
    is_repeated: bool
    siblings: str
    left_open: UnreadEpochs
    clock: Clock = SYSTEM_CLOCK

    def is_last_sibling(self, epoch: int) -> bool:
        """Records that this DataLoader worker has nothing left to claim in an epoch. To be called
        once for each epoch.

        Returns:
            Whether all other workers of the DataLoader have recorded that before.
        """
        with closing(self.address.open()) as store:
            ended = f"{self.siblings}{epoch}/ended"
            place = first_free(store, lambda number: f"{ended}/{number}", uuid.uuid4().hex)
            return place + 1 >= self.worker.num_siblings

    @property
    def run_id(self) -> str:
        return self.prefix.split("/")[1]


class Rendezvous:
    """Numbers the iterations of one loader and of its copies in DataLoader workers. The process
    that made it owns the directory in which DataLoader workers meet.

    Args:
        options: Where workers meet.
        loader_key: `Job.key`, equal for all loaders that share their reading.
        num_epochs: Epochs per iteration.
        clock: The clock by which leases are judged.

    Raises:
        ConfigError: A store that outlives the run is named without a run_id.
    """

    def __init__(
        self,
        options: Dispatch,
        loader_key: str,
        num_epochs: int,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        run_id = options.run_id or _torchrun_id()
        if run_id is None and options.store.startswith(("sqlite:", "tcp:", "tls:", "torch:")):
            raise ConfigError(
                f"dispatch: expected a run_id with store {redact(options.store)!r}, found none: "
                "what a run has read stays in the store, so a second run under the same name would "
                "find nothing left; give each run its own run_id, equal in all of its workers "
                "(torchrun --rdzv-id does)"
            )
        self._options, self._loader_key, self.num_epochs = options, loader_key, num_epochs
        self._run_id = re.sub(r"[^A-Za-z0-9._-]", "_", run_id or "default")[:128]
        self._client, self._process = uuid.uuid4().hex, OwnProcess()
        self._in_job = in_job = options.store == AUTO and num_processes(os.environ) > 1
        # The store that is shared beyond this process and its workers: the one that the options
        # name, or that of the job. None if there is none.
        self._shared = _shared_address(options, in_job)
        # Without a shared store, this process alone uses one in memory, and DataLoader workers meet
        # in a sqlite store in a private directory.
        self._own = self._shared or bind(f"memory://{self._client}")
        self._private = PrivateDirectory() if self._shared is None else None
        # The same for what the iteration under way opens: `close` lets it hurry.
        self._under_way = self._own.scoped(options.terms.leave_s)
        self._first_epoch, self._clock = 0, clock
        # The store of torchrun's agents outlives a restart of the workers. They read all rows again
        # unless a state is loaded, so their keys differ from those before the restart. Any other
        # store of a job begins with them; the agents of its hosts may have counted differently.
        is_new = in_job and not has_agent_store(os.environ)
        self._restart_count = 0 if is_new else _restart_count()
        self._restart, self._num_restores = (self._restart_count if in_job else 0), 0

    def begin(self, worker: LoaderWorker, known: tuple[int, int] | None = None) -> Meeting:
        """Begins this worker's next iteration, which is the same for all workers of its DataLoader,
        or an iteration whose number and epoch are `known` to all workers.
        """
        address = self._address(worker)
        with closing(address.open()) as store:
            number, first_epoch = known or self._counted(store, worker)
            name = str(number) if known else self._shared_name(store, number, first_epoch)
            prefix = run_prefix(  # Of the keys that all workers of the iteration share.
                self._run_id, restart=self._restart, loader=f"{self._loader_key}-{name}"
            )
            mine, starts = uuid.uuid4().hex, f"{prefix}{first_epoch}/starts/{worker.index}"
            is_repeated = store.compare_set(starts, "", mine) != mine
        return Meeting(
            address=address,
            prefix=prefix,
            number=number,
            first_epoch=first_epoch,
            worker=worker,
            is_repeated=is_repeated,
            siblings=f"{self._prefix}passes/{number}/",
            left_open=UnreadEpochs(address, f"{self._prefix}{_LEFT}", self._clock),
            clock=self._clock,
        )

    def _counted(self, store: Store, worker: LoaderWorker) -> tuple[int, int]:
        self._adopt_restore(store)
        count = counted(store, f"{self._prefix}iterations/{worker.session}/{worker.index}")
        number = self._number(store, f"{worker.session}/{count}")
        if worker.is_dataloader:
            store.set(f"{self._prefix}workers", "seen")
            store.set(f"{self._prefix}workers/{os.getpid()}", "seen")
        return number, self._epoch_of(store, number)

    def _shared_name(self, store: Store, number: int, first_epoch: int) -> str:
        """What an iteration is called by all loaders: the epoch with which it begins, and how many
        earlier ones of the loader began with the same, if any did. They are read anew.
        """
        begun = f"{self._prefix}begun/{first_epoch}"
        num_before = first_free(store, lambda place: f"{begun}/{place}", str(number))
        return f"{first_epoch}.{num_before}" if num_before else str(first_epoch)

    def recording(self, epoch: int | None) -> Recording:
        """The recorded order of an epoch of this loader, or of another one that shares its reading.

        Args:
            epoch: The epoch; None is the newest.

        Raises:
            DispatchError: There is no such recording.
        """
        return recording_in(self._stores(), self._loader_key, self._run_id, epoch)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration begin with this epoch."""
        self._adopt_restores()
        self._first_epoch = epoch
        for store in self._stores():
            store.set(f"{self._prefix}epoch", f"{self._num_iterations(store)} {epoch}")

    def next_iteration(self) -> tuple[int, int]:
        """The number of this process's next iteration, and the epoch with which it begins."""
        self._adopt_restores()
        with closing(self._own.open()) as store:
            number = self._num_iterations(store)
            return number, self._epoch_of(store, number)

    def restore(self, state: str, first_epoch: int, worker: LoaderWorker) -> None:
        """Forgets all iterations: the next one has number 0, under keys that are new to this run.

        Workers that restore together find the same keys, since all workers of a launch restore the
        same state equally often. A later launch that restores the same state gets other keys, since
        all rows are read under those of the earlier one.

        Args:
            state: The state's digest.
            first_epoch: The epoch with which the restored iteration began.
            worker: Which worker this process is.
        """
        self._num_restores += 1
        launch = f"{state}-{self._restart_count}-{worker.num_workers}"
        number = self._num_restores if self._shared is None else self._count_restore(launch, worker)
        self._restart = _hashed(f"{launch}-{number}")
        self._first_epoch = first_epoch

    def unite(self, share: LoaderState, worker: LoaderWorker) -> LoaderState:
        """Restores together with the other workers of a DataLoader, each of which has a part of the
        state.

        Workers that start later, and the loader in the main process, find the restore in the store.

        Args:
            share: The state of this worker.
            worker: Which worker this process is.

        Returns:
            The state of all workers.

        Raises:
            StateError: The store is shared with workers of other launches, or a worker does not
                come.
        """
        if self._shared is not None and not self._in_job:
            raise StateError(
                "loader state: of one DataLoader worker, for a loader with store "
                f"{redact(self._options.store)!r}: expected auto, in which workers know those of "
                "their own launch; merge the states with FeatureLoader.merge_states([...])"
            )
        own_prefix = self._prefix
        common_prefix = (
            own_prefix
            if self._shared is None
            else run_prefix(self._run_id, restart=self._restart, loader=self._loader_key)
        )
        address = self._address(worker)
        clock = AnsweredClock(SYSTEM_CLOCK, address.unanswered_s)
        with closing(address.open()) as store:
            name, state = united(store, common_prefix, worker, share, clock)
            self._restart, self._first_epoch = _hashed(f"{state.digest}-{name}"), state.first_epoch
            store.set(f"{own_prefix}restored", f"{self._restart} {self._first_epoch}")
        return state

    def _adopt_restore(self, store: Store) -> None:
        """Takes over the keys of workers that restored together in this store."""
        while (restored := store.get_or_none(f"{self._prefix}restored")) is not None:
            self._restart, self._first_epoch = map(int, restored.split())

    def _adopt_restores(self) -> None:
        for store in self._stores():
            self._adopt_restore(store)

    def _count_restore(self, launch: str, worker: LoaderWorker) -> int:
        """The number of this restore from one state. A worker that missed one, since it had died
        before, takes the number of the others.
        """
        assert self._shared is not None
        mine, latest = (
            restores_key(self._run_id, launch=launch, worker=name)
            for name in (str(worker.index), "latest")
        )
        with closing(self._shared.open()) as store:
            known = int(store.get_or_none(latest) or 0)
            number = counted(store, mine, at_least=known)
            if number > known:
                store.set(latest, str(number))
            return number

    def has_workers(self, *, briefly: bool = False) -> bool:
        """Whether DataLoader workers have iterated since the loader was made or restored.

        Args:
            briefly: Waits 2 s for a store that does not answer, in place of `store_wait_s`.

        Raises:
            DispatchError: The store cannot be reached.
        """
        return self._holds("workers", briefly=briefly)

    def has_living_workers(self) -> bool:
        """Whether such workers still run: persistent ones, or those of an unfinished iteration."""
        return any(
            self._holds(f"workers/{child.pid}") for child in multiprocessing.active_children()
        )

    def log_left_open(self) -> None:
        """Logs the rows that ranks in step left unread in epochs that ended for this loader, or for
        its DataLoader workers, if other ranks share the store.
        """
        if self._shared is not None:
            UnreadEpochs(self._shared, f"{self._prefix}{_LEFT}", self._clock).log_unread()

    def close(self) -> None:
        """Lets an iteration that waits to begin end. Closes connections and, in the process that
        made it, removes the run directory. The next iteration begins with the epoch after those
        that were counted there.
        """
        self._under_way.hurry()
        if self._process.is_this() and self._has_run_directory():
            self._adopt_restores()
            counted = [self._epoch_of(each, self._num_iterations(each)) for each in self._stores()]
            self.set_epoch(max(counted))
        if self._shared is not None:
            self._shared.disconnect()
        self.remove()

    def remove(self) -> None:
        """Removes the run directory, in the process that made it."""
        if self._private is not None and self._process.is_this():
            self._private.remove()
            # Workers that began after close() have made it again.
            shutil.rmtree(self._private.path, ignore_errors=True)

    @property
    def _prefix(self) -> str:
        """Prefix of the keys that only this loader and its copies use."""
        return run_prefix(self._run_id, restart=self._restart, loader=self._client)

    @property
    def _workers_address(self) -> StoreAddress:
        assert self._private is not None
        return bind(f"sqlite://{self._private.path}/{_STORE}")

    def _address(self, worker: LoaderWorker) -> StoreAddress:
        """The store for an iteration that begins."""
        self._under_way = self._base(worker).scoped(self._options.terms.leave_s)
        return self._under_way

    def _base(self, worker: LoaderWorker) -> StoreAddress:
        if self._shared is not None or not worker.is_dataloader:
            return self._own
        assert self._private is not None
        self._private.path.mkdir(mode=0o700, exist_ok=True)
        return self._workers_address

    def _has_run_directory(self) -> bool:
        return self._private is not None and exists(self._private.path / _STORE)

    def _stores(self, *, briefly: bool = False) -> Iterator[Store]:
        """The stores in which iterations may be counted, each open until the next one is."""
        addresses = [self._own]
        if self._has_run_directory():
            addresses.append(self._workers_address)
        for address in addresses:
            with closing((address.briefly() if briefly else address).open()) as store:
                yield store

    def _holds(self, key: str, *, briefly: bool = False) -> bool:
        """Whether one of the stores has this key under the loader's own prefix."""
        stores = self._stores(briefly=briefly)
        return any(store.check([f"{self._prefix}{key}"]) for store in stores)

    def _number(self, store: Store, name: str) -> int:
        """The number of the iteration of this name: the first one that is free, or has the name."""
        prefix = self._prefix
        return first_free(store, lambda number: f"{prefix}passes/{number}", name)

    def _num_iterations(self, store: Store) -> int:
        number, prefix = 0, self._prefix
        while store.get_or_none(f"{prefix}passes/{number}") is not None:
            number += 1
        return number

    def _epoch_of(self, store: Store, number: int) -> int:
        chosen = store.get_or_none(f"{self._prefix}epoch")
        first_number, first_epoch = map(int, chosen.split()) if chosen else (0, self._first_epoch)
        return first_epoch + (number - first_number) * self.num_epochs


def _shared_address(options: Dispatch, in_job: bool) -> StoreAddress | None:
    if in_job:
        return bind_job(os.environ, timeout_s=options.store_wait_s).keeping_connections()
    if options.store == AUTO:
        return None
    return bind(options.store, timeout_s=options.store_wait_s).keeping_connections()


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _restart_count() -> int:
    """How often torchrun's agent on this host has restarted its workers of this job."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)


def _torchrun_id() -> str | None:
    """The run's name in torchrun. None without `--rdzv-id`, for which torchrun names every run
    `none`.
    """
    run_id = os.environ.get("TORCHELASTIC_RUN_ID")
    return None if run_id in (None, "", "none") else run_id
