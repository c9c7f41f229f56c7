"""Refuses states of torchdata's StatefulDataLoader that hold fewer batches than were handed out.

With `snapshot_every_n_steps` above 1 it saves the workers' last states and the number of batches
since. After a restart it asks the workers for as many batches and drops them, but these need not be
the same: which worker reads which rows is decided anew. So rows would come twice, and others never.
Nothing that a worker is given says so: the DataLoader itself has to be found.
"""

import inspect
import traceback
from typing import Any

from torch.utils.data import DataLoader

from featstore.errors import ConfigError, StateError


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
