"""What a pass has to say where it cannot go on, or ends without all of its rows."""

QUARANTINED = (
    "rows are missing that no worker could read: each of these splits has failed {num} times in a "
    "row, or killed its worker: "
    "{splits}; all other rows were delivered; see the errors of the workers, and `featstore "
    "dispatch receipt`"
)
ALL_DONE = (
    "epochs {first} to {last}: nothing is left to read: in dispatch store {url} an earlier run, or "
    "another loader "
    "with the same selection, has read every row under this run_id; give each run, and each loader "
    "that is to read for "
    "itself, a run_id of its own; to go on after a checkpoint, call load_state_dict; where a "
    "launcher restarts workers that "
    "had ended, dispatch.finished: end lets them end empty"
)
FOLLOWED_BY_WORKER = (
    "follow: expected a process that reads by itself, found a worker of a DataLoader: it asks its "
    "workers in turn, and one "
    "that waits for what is new holds up the others"
)
SEVERAL_EPOCHS = (
    "a StatefulDataLoader of several workers: expected a loader with num_epochs 1, found {num}: "
    "workers may be in different "
    "epochs, whose states do not unite; iterate once for each epoch"
)
FORKED = (
    "this iteration is of process {parent}, and was copied into {child} by a fork: iterate anew in "
    "this process, under a "
    "dispatch store that both reach, or start DataLoader workers, which share each epoch"
)
UNREAD = (
    "tail {tail}: all ranks have agreed to stop, and rows are unread whose holders have been "
    "silent for {silent_s:g} s: "
    "{leases}; load the state of a checkpoint in all ranks to read them"
)
