"""Which store a loader's workers meet in, under which keys, and which epoch each iteration is.

An iteration over a loader is a pass: `num_epochs` epochs. Workers of one DataLoader agree on a pass
without talking: all of them name it alike (the DataLoader's base seed and how often they were
iterated), and the store numbers the names in the order in which they first come up.
"""

import hashlib
import multiprocessing
import os
import re
import shutil
import uuid
from contextlib import closing
from dataclasses import dataclass

from featstore.dispatch.accounts.recording import NOT_RECORDED, Recording, recorded_by
from featstore.dispatch.accounts.unfinished import UnreadEpochs
from featstore.dispatch.leases.clock import SYSTEM_CLOCK, Clock
from featstore.dispatch.options import AUTO, Dispatch
from featstore.dispatch.store_keys import restores_key, run_prefix
from featstore.dispatch.stores.address import Store, StoreAddress, bind, bind_job
from featstore.dispatch.stores.endpoint import num_processes
from featstore.errors import ConfigError, DispatchError, StateError
from featstore.files.private_directory import PrivateDirectory
from featstore.loader.run.shares import united
from featstore.loader.run.state import LoaderState
from featstore.loader.run.worker import LoaderWorker

_STORE, _LEFT = "store.sqlite", "left"


@dataclass(frozen=True, kw_only=True)
class StartedIteration:
    """One iteration: its store, the prefix of its keys, its number since the last restore, and its
    first epoch.

    `is_repeated`: a worker of this index has begun the same pass before, in an earlier start of the
    run or another loader. `siblings`: the prefix of keys that only the workers of one DataLoader
    use in this pass. `left_open`: epochs that ended for this loader before all was read.
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
        """Says that this worker of a DataLoader has nothing left to claim of an epoch; whether all
        of its siblings had said so before. To be called once for each epoch."""
        with closing(self.address.open()) as store:
            return store.add(f"{self.siblings}{epoch}/ended", 1) >= self.worker.num_siblings

    @property
    def is_dataloader(self) -> bool:
        return self.worker.is_dataloader

    @property
    def run_id(self) -> str:
        return self.prefix.split("/")[1]


class Iterations:
    """Numbers the passes of one loader and of its copies in DataLoader workers. Belongs to the
    process that made it.
    """

    def __init__(
        self,
        options: Dispatch,
        loader_key: str,
        num_epochs: int,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`clock`: what leases are judged by."""
        if (
            options.run_id is None
            and _torchrun_id() is None
            and options.store.startswith(("sqlite:", "tcp:"))
        ):
            raise ConfigError(
                f"dispatch: expected a run_id with store {options.store!r}, found none: what a run "
                "has read stays in the store, so a second run under the same name would find "
                "nothing left; give each run a run_id of its own, equal in all of its workers "
                "(torchrun --rdzv-id does)"
            )
        self._options, self._loader_key, self._num_epochs = options, loader_key, num_epochs
        self._client = uuid.uuid4().hex
        self._owner = os.getpid()
        self._in_job = in_job = options.store == AUTO and num_processes(os.environ) > 1
        # What is shared beyond this process and its workers: a store that was named, or that of the
        # job.
        self._shared = _shared_address(options, in_job)
        # Memory for this process, made again in a copy that was sent to another one; workers meet
        # in the run directory.
        self._memory = bind(f"memory://{self._client}") if self._shared is None else None
        self._private = PrivateDirectory() if self._shared is None else None
        self._first_epoch, self._clock = 0, clock
        # The store of a job outlives a restart of its workers, which read anew unless a state is
        # loaded.
        self._restart, self._num_restores = (_restart_count() if in_job else 0), 0

    def begin(self, worker: LoaderWorker) -> StartedIteration:
        """The next pass of this worker: the same for all workers of its DataLoader."""
        address = self._address(worker)
        store = address.open()
        try:
            self._hear(store)
            count = store.add(f"{self._prefix}iterations/{worker.session}/{worker.index}", 1)
            number = self._number(store, f"{worker.session}/{count}")
            first_epoch = self._epoch_of(store, number)
            if worker.is_dataloader:
                store.set(f"{self._prefix}workers", "seen")
                store.set(f"{self._prefix}workers/{os.getpid()}", "seen")
            prefix = self._pass_prefix(number)
            is_repeated = store.add(f"{prefix}{first_epoch}/starts/{worker.index}", 1) > 1
        finally:
            store.close()
        return StartedIteration(
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

    def recording(self, epoch: int | None) -> Recording:
        """What was recorded of an epoch that this loader, or another worker's, read last.
        DispatchError where nothing was.
        """
        for address in self._addresses():
            with closing(address.open()) as store:
                found = recorded_by(store, self._loader_key, self._run_id, epoch)
            if found is not None:
                return found
        raise DispatchError(
            NOT_RECORDED.format(epoch="(any)" if epoch is None else epoch, run_id=self._run_id)
        )

    def set_epoch(self, epoch: int) -> None:
        """The next pass begins with this epoch."""
        self._hear_all()
        self._first_epoch = epoch
        for address in self._addresses():
            store = address.open()
            store.set(f"{self._prefix}epoch", f"{self._num_passes(store)} {epoch}")
            store.close()

    def next_pass(self) -> tuple[int, int]:
        """The number of this process's next pass, and the epoch with which it begins."""
        self._hear_all()
        with closing((self._shared or self._memory or self._workers_address).open()) as store:
            number = self._num_passes(store)
            return number, self._epoch_of(store, number)

    def restore(self, state: str, first_epoch: int, worker: LoaderWorker) -> None:
        """Forgets all passes: the next has number 0, under keys that are new to this run.

        Workers that restore together find the same keys: all of a launch restore the same state
        equally often. A launch after it, from the same state once more, must not meet the keys
        under which the last one has read.
        """
        self._num_restores += 1
        launch = f"{state}-{_restart_count()}-{worker.num_workers}"
        number = self._num_restores if self._shared is None else self._count_restore(launch, worker)
        self._restart = _hashed(f"{launch}-{number}")
        self._first_epoch = first_epoch

    def meet(self, share: LoaderState, worker: LoaderWorker) -> LoaderState:
        """Goes on with the other workers of a DataLoader, each of which has a share of the state;
        returns all of it.

        Those that start after them, and the loader that they are copies of, hear of it in the
        store.
        """
        if self._shared is not None and not self._in_job:
            raise StateError(
                "loader state: of one DataLoader worker, for a loader with store "
                f"{self._options.store!r}: expected auto, in which workers can tell who is of "
                "their launch; unite the states with FeatureLoader.merge_states([...])"
            )
        told = self._prefix
        alike = (
            told
            if self._shared is None
            else run_prefix(self._run_id, restart=self._restart, loader=self._loader_key)
        )
        with closing(self._address(worker).open()) as store:
            name, state = united(store, alike, worker, share)
            self._restart, self._first_epoch = _hashed(f"{state.digest}-{name}"), state.first_epoch
            store.set(f"{told}restored", f"{self._restart} {self._first_epoch}")
        return state

    def _hear(self, store: Store) -> None:
        """Goes on under the keys of workers that met in this store."""
        while (told := store.get_or_none(f"{self._prefix}restored")) is not None:
            self._restart, self._first_epoch = map(int, told.split())

    def _hear_all(self) -> None:
        for address in self._addresses():
            with closing(address.open()) as store:
                self._hear(store)

    def _count_restore(self, launch: str, worker: LoaderWorker) -> int:
        """Which restore from this state this is. A worker that missed one, as it died before, joins
        the others at theirs.
        """
        assert self._shared is not None
        mine, latest = (
            restores_key(self._run_id, launch=launch, worker=name)
            for name in (str(worker.index), "latest")
        )
        with closing(self._shared.open()) as store:
            number = store.add(mine, 1)
            behind = int(store.get_or_none(latest) or 0) - number
            if behind >= 0:
                return store.add(mine, behind)
            store.set(latest, str(number))
            return number

    def has_workers(self) -> bool:
        """Whether DataLoader workers of this loader have iterated since it was made, or
        restored.
        """
        return self._holds("workers")

    def has_living_workers(self) -> bool:
        """Whether such workers still run: those of a DataLoader that persist, or that is in the
        middle.
        """
        return any(
            self._holds(f"workers/{child.pid}") for child in multiprocessing.active_children()
        )

    def left_open(self) -> UnreadEpochs | None:
        """Epochs that ended for this loader, or for workers of its DataLoaders, before all was
        read; None where no other rank shares the store."""
        return (
            None
            if self._shared is None
            else UnreadEpochs(self._shared, f"{self._prefix}{_LEFT}", self._clock)
        )

    def close(self) -> None:
        """Removes the run directory, in the process that chose it, and closes connections; the next
        pass has the epochs after those that were counted there."""
        if self._owner == os.getpid() and self._has_run_directory():
            self._hear_all()
            self.set_epoch(max(self._next_epoch(address) for address in self._addresses()))
        if self._shared is not None:
            self._shared.disconnect()
        self.remove()

    def remove(self) -> None:
        """Removes the run directory, in the process that chose it."""
        if self._private is not None and self._owner == os.getpid():
            self._private.remove()
            shutil.rmtree(
                self._private.path, ignore_errors=True
            )  # workers that began after close() made it again

    @property
    def _run_id(self) -> str:
        return re.sub(r"[^A-Za-z0-9._-]", "_", self._options.run_id or _torchrun_id() or "default")[
            :128
        ]

    @property
    def _prefix(self) -> str:
        """Of the keys that only this loader and its copies use."""
        return run_prefix(self._run_id, restart=self._restart, loader=self._client)

    def _pass_prefix(self, number: int) -> str:
        """Of the keys that all workers of a pass share."""
        return run_prefix(
            self._run_id, restart=self._restart, loader=f"{self._loader_key}-{number}"
        )

    @property
    def _workers_address(self) -> StoreAddress:
        assert self._private is not None
        return bind(f"sqlite://{self._private.path}/{_STORE}")

    def _address(self, worker: LoaderWorker) -> StoreAddress:
        if self._shared is not None:
            return self._shared
        if self._memory is not None and not worker.is_dataloader:
            return self._memory
        assert self._private is not None
        self._private.path.mkdir(mode=0o700, exist_ok=True)
        return self._workers_address

    def _has_run_directory(self) -> bool:
        return self._private is not None and (self._private.path / _STORE).exists()

    def _addresses(self) -> list[StoreAddress]:
        """The stores that hold passes already, or may do so unseen."""
        known = [address for address in (self._memory, self._shared) if address is not None]
        return known + ([self._workers_address] if self._has_run_directory() else [])

    def _holds(self, key: str) -> bool:
        """Whether one of the stores has this key of the loader's own."""
        for address in self._addresses():
            with closing(address.open()) as store:
                if store.check([f"{self._prefix}{key}"]):
                    return True
        return False

    def _next_epoch(self, address: StoreAddress) -> int:
        with closing(address.open()) as store:
            return self._epoch_of(store, self._num_passes(store))

    def _number(self, store: Store, name: str) -> int:
        number = 0
        while store.compare_set(f"{self._prefix}passes/{number}", "", name) != name:
            number += 1
        return number

    def _num_passes(self, store: Store) -> int:
        number = 0
        while store.get_or_none(f"{self._prefix}passes/{number}") is not None:
            number += 1
        return number

    def _epoch_of(self, store: Store, number: int) -> int:
        told = store.get_or_none(f"{self._prefix}epoch")
        first_number, first_epoch = map(int, told.split()) if told else (0, self._first_epoch)
        return first_epoch + (number - first_number) * self._num_epochs


def _shared_address(options: Dispatch, in_job: bool) -> StoreAddress | None:
    if in_job:
        return bind_job(os.environ, timeout_s=options.store_timeout_s).keeping_connections()
    if options.store == AUTO:
        return None
    return bind(options.store, timeout_s=options.store_timeout_s).keeping_connections()


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _restart_count() -> int:
    """How often torchrun has restarted the workers."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)


def _torchrun_id() -> str | None:
    """The run's name where torchrun was given one: without `--rdzv-id` it calls every run
    `none`.
    """
    run_id = os.environ.get("TORCHELASTIC_RUN_ID")
    return None if run_id in (None, "", "none") else run_id
