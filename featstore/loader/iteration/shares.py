"""Merges the states of one DataLoader's workers in the workers themselves.

torchdata's StatefulDataLoader saves one state per worker, and gives each new worker the one of its
number. A worker cannot continue from its own state only, since it would read again what others
delivered. So each worker puts its state into the store and waits for the others.

With `snapshot_every_n_steps` above 1 it saves the workers' last states and the number of batches
since. After a restart it asks the workers for as many batches and drops them, but these need not be
the same: which worker reads which rows is decided anew. So rows would come twice, and others never.
Nothing that a worker is given says so: the DataLoader itself has to be found, to refuse it.
"""

import inspect
import json
import threading
import time
import traceback
from typing import Any

from torch.utils.data import DataLoader

from featstore.base.errors import ConfigError, StateError
from featstore.dispatch.stores.address import Store
from featstore.loader.iteration.state import LoaderState, merge_states
from featstore.loader.iteration.worker import LoaderWorker

# Workers of one DataLoader start within seconds of each other, but import torch, which may take a
# minute on a busy host.
_TIMEOUT_S, _PAUSE_S = 120.0, 0.01


def require_own(share: LoaderState, worker: LoaderWorker) -> None:
    """StateError if the state is not that of this worker."""
    if (share.workers, share.num_workers) != ((worker.index,), worker.num_workers):
        raise StateError(
            f"loader state: of worker {list(share.workers)} of {share.num_workers}, loaded by "
            f"worker {worker.index} of {worker.num_workers}: use the same number of workers, or "
            "merge the states with FeatureLoader.merge_states([...]) and load them before the "
            "DataLoader is made"
        )


def united(
    store: Store, prefix: str, worker: LoaderWorker, share: LoaderState
) -> tuple[str, LoaderState]:
    """Meets the other workers in the store.

    Args:
        store: The store.
        prefix: Prefix of keys that only these workers use.
        worker: Which worker this process is.
        share: Its state.

    Returns:
        A name for the meeting, equal in all workers and new each time, and the state of all of
        them.

    Raises:
        StateError: A worker does not come.
    """
    session = worker.session if worker.num_ranks == 1 else "job"
    name = f"{session}/{store.add(f'{prefix}shares/{session}/{worker.index}', 1)}"
    store.set(f"{prefix}shares/{name}/{worker.index}/state", json.dumps(share.to_json()))
    states = [
        _awaited(store, f"{prefix}shares/{name}/{index}/state", index)
        for index in range(worker.num_workers)
    ]
    return name, LoaderState.from_json(merge_states(json.loads(state) for state in states))


def _awaited(store: Store, key: str, worker: int) -> str:
    deadline, never = time.monotonic() + _TIMEOUT_S, threading.Event()
    while (state := store.get_or_none(key)) is None:
        if time.monotonic() > deadline:
            raise StateError(
                f"loader state: waited {_TIMEOUT_S:.0f} s for the state of worker {worker}, which "
                f"did not come"
            )
        never.wait(_PAUSE_S)
    return state


def require_exact_states(num_ranks: int) -> None:
    """Looks at the DataLoader that is starting workers, if one is: in a forked worker it is on the
    stack, and elsewhere while the loader is pickled for one.

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
