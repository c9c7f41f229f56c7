"""Which of a loader's workers this process is, and its share of the host's cores and memory."""

import inspect
import os
import re
import secrets
import socket
import traceback
from dataclasses import dataclass
from typing import Any

from torch import distributed
from torch.utils.data import DataLoader, get_worker_info

from featstore.base.errors import ConfigError, StateError
from featstore.base.host import cores_of_rank, may_be_bound, memory_bytes, num_cores, ranks_on_host

# One process takes this much, and all of a host together at most a quarter of its memory, which is
# chosen. In order, a row group of more than half the budget is decoded in slices, in two to three
# times the time (decision 33): 1 GB is twice what 65,536 rows take, extraction's default, of 400
# slots, a quarter of them lists of five ids. Shuffled windows are never sliced.
_IN_ORDER_BYTES, _SHUFFLED_BYTES, _SHARE = 1_000_000_000, 512_000_000, 4
# Names a worker instead of its host and process.
WORKER_VARIABLE = "FEATSTORE_WORKER"
# As long as a host's name may be (RFC 1123): each lease has its holder's. The end is kept, in which
# pods differ.
_MAX_HOST = 63


@dataclass(frozen=True, kw_only=True)
class LoaderWorker:
    """Which worker this process is: of a DataLoader, of a torchrun job, of both, or the only one.

    Attributes:
        index: The worker's number, from 0.
        num_workers: Workers of all ranks together.
        session: Equal for the workers of one DataLoader; changes when they are started again.
        is_dataloader: Whether this is a DataLoader worker.
        rank: The rank of the process, or of the DataLoader's process.
        num_ranks: The number of ranks.
        ranks_on_host: How many ranks run on this host.
        is_bound: Whether the launcher may have bound the rank to cores of its own.
        in_step: Whether there are several ranks, according to the launcher or the process group.
    """

    index: int
    num_workers: int
    session: str
    is_dataloader: bool
    rank: int = 0
    num_ranks: int = 1
    ranks_on_host: int = 1
    is_bound: bool = False
    in_step: bool = False

    @property
    def num_siblings(self) -> int:
        """How many workers the process's DataLoader has, this one included."""
        return self.num_workers // self.num_ranks

    @property
    def num_on_host(self) -> int:
        """How many workers this host has, this one included."""
        return self.num_siblings * self.ranks_on_host

    @property
    def static_index(self) -> int:
        """The worker's number in order `static`, where batches are dealt out in turn. With it a
        rank gets the same batches for any number of DataLoader workers, and, since a DataLoader
        asks its workers in turn, in the same order.
        """
        per_rank = self.num_siblings
        return (self.index - self.rank * per_rank) * self.num_ranks + self.rank

    @classmethod
    def here(cls) -> "LoaderWorker":
        """The worker that this process is, from torch's worker info, RANK, WORLD_SIZE and what the
        launcher tells of the host.
        """
        worker, rank = get_worker_info(), int(os.environ.get("RANK") or 0)
        num_ranks = int(os.environ.get("WORLD_SIZE") or 1)
        num_siblings = worker.num_workers if worker else 1
        return cls(
            index=rank * num_siblings + (worker.id if worker else 0),
            num_workers=num_ranks * num_siblings,
            session=f"{num_siblings}-{worker.seed - worker.id}" if worker else "direct",
            is_dataloader=worker is not None,
            rank=rank,
            num_ranks=num_ranks,
            ranks_on_host=ranks_on_host(os.environ),
            is_bound=may_be_bound(os.environ),
            in_step=num_ranks > 1 or num_in_group() > 1,
        )


def host_name() -> str:
    """What the variable FEATSTORE_WORKER names, or else the name of this host or pod up to its
    first dot.

    Has at most 63 letters, digits, `.`, `_` and `-`, and stays the same when a process restarts.
    """
    name = os.environ.get(WORKER_VARIABLE) or socket.gethostname().partition(".")[0]
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[-_MAX_HOST:]


def worker_name() -> str:
    """A name that no other worker has: `{host}-{process}-{6 hex digits}`, or, with the variable
    FEATSTORE_WORKER, which DataLoader workers inherit, `{FEATSTORE_WORKER}-{6 hex digits}`.
    """
    # The process id alone is no name: it is 1 in every container.
    process = "" if os.environ.get(WORKER_VARIABLE) else f"{os.getpid()}-"
    return f"{host_name()}-{process}{secrets.token_hex(3)}"


def num_in_group() -> int:
    """How many ranks the process group of this process has; 1 if none was made."""
    is_made = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if is_made else 1


@dataclass(frozen=True, kw_only=True)
class HostShare:
    """What one process takes.

    Attributes:
        num_threads: How many threads decode a row group.
        budget_bytes: The memory budget.
    """

    num_threads: int
    budget_bytes: int

    @classmethod
    def of(cls, worker: LoaderWorker, *, is_shuffled: bool = False) -> "HostShare":
        """What a process takes by default.

        The cores that it may run on are divided among the ranks of its host, unless the launcher
        has done so (`cores_of_rank`); a worker of a DataLoader takes one, as torch computes on one
        core there. The memory is 1 GB, or 512 MB if rows are shuffled, and less where all workers
        of the host would take more than a quarter of what they may use.
        """
        most_bytes = _SHUFFLED_BYTES if is_shuffled else _IN_ORDER_BYTES
        cores = cores_of_rank(
            worker.ranks_on_host, num_cores(), os.cpu_count() or 1, is_bound=worker.is_bound
        )
        return cls(
            num_threads=1 if worker.is_dataloader else cores,
            budget_bytes=min(most_bytes, memory_bytes() // (_SHARE * worker.num_on_host)),
        )


def require_exact_states(num_ranks: int) -> None:
    """Looks at the DataLoader that is starting workers, if one is: in a forked worker it is on the
    stack, and elsewhere while the loader is pickled for one.

    With `snapshot_every_n_steps` above 1 a StatefulDataLoader saves the workers' last states and
    the number of batches since. After a restart it asks the workers for as many batches and drops
    them, but these need not be the same: which worker reads which rows is decided again. So rows
    would come twice, and others never. Nothing that a worker is given says so: the DataLoader
    itself has to be found, to refuse it.

    Args:
        num_ranks: The number of ranks, which share an epoch as workers do.

    Raises:
        ConfigError: It saves the states of several workers not after each batch.
        StateError: It goes on from a state that was saved so.
    """
    starting = _starting()
    if starting is None or starting.num_workers == 0 or starting.num_workers * num_ranks == 1:
        return
    steps = getattr(starting, "snapshot_every_n_steps", 1)
    if steps != 1:
        raise ConfigError(
            "a StatefulDataLoader of several workers: expected snapshot_every_n_steps 1, found "
            f"{steps}: after a restart, rows of the batches since the last snapshot would come "
            "twice, and others never; leave the option out"
        )
    state = getattr(starting, "next_iter_state", None) or {}
    if num_steps := state.get("_steps_since_snapshot", 0):
        raise StateError(
            "a StatefulDataLoader of several workers: expected a state that was saved with "
            f"snapshot_every_n_steps 1, found one that lacks the last {num_steps} batches: rows "
            "would come twice, and others never; load an exact one, or start the epoch again"
        )


def _starting() -> "DataLoader[Any] | None":
    for frame, _ in traceback.walk_stack(inspect.currentframe()):
        if frame.f_code.co_name == "_get_iterator":
            found = frame.f_locals.get("self")
            if isinstance(found, DataLoader):
                return found
    return None
