"""What the end of a pass may have to say."""

QUARANTINED = (
    "rows are missing that no worker could read: each of these splits has failed {num} times in a row, or killed its worker: "
    "{splits}; all other rows were delivered; see the errors of the workers, and `featstore dispatch receipt`"
)
ALL_DONE = (
    "epochs {first} to {last}: nothing is left to read: in dispatch store {url} an earlier run, or another loader "
    "with the same selection, has read every row under this run_id; give each run, and each loader that is to read for "
    "itself, a run_id of its own; to go on after a checkpoint, call load_state_dict"
)
