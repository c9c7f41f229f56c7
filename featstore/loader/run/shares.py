"""The states of one DataLoader's workers, each of which got its own alone, united by the workers
themselves.

torchdata's StatefulDataLoader saves a state per worker and hands each new worker that of its
number. No worker may go on from its own part only: it would read anew what others delivered. So
each puts its part into the store, and waits for the others'.
"""

import json
import threading
import time

from featstore.dispatch.stores.address import Store
from featstore.errors import StateError
from featstore.loader.run.state import LoaderState, merge_states
from featstore.loader.run.worker import LoaderWorker

_TIMEOUT_S, _PAUSE_S = 120.0, 0.01


def require_own(share: LoaderState, worker: LoaderWorker) -> None:
    """StateError where the share is not that of this worker."""
    if (share.workers, share.num_workers) != ((worker.index,), worker.num_workers):
        raise StateError(
            f"loader state: of worker {list(share.workers)} of {share.num_workers}, loaded by "
            f"worker {worker.index} of {worker.num_workers}: go on with as many workers, or unite "
            "the states with FeatureLoader.merge_states([...]) and load them before the DataLoader "
            "is made"
        )


def united(
    store: Store, prefix: str, worker: LoaderWorker, share: LoaderState
) -> tuple[str, LoaderState]:
    """The state of all workers that meet here, and a name for the meeting, equal in all of them and
    new each time.

    StateError where one does not come.
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
