"""Merges the states of one DataLoader's workers in the workers themselves.

torchdata's StatefulDataLoader saves one state per worker, and gives each new worker the one of its
number. A worker cannot continue from its own state only, since it would read again what others
delivered. So each worker puts its state into the store and waits for the others.
"""

import json
import threading
import time

from featstore.dispatch.stores.address import Store
from featstore.errors import StateError
from featstore.loader.run.state import LoaderState, merge_states
from featstore.loader.run.worker import LoaderWorker

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
