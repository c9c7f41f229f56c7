"""A state to begin with, of a loader that is not there."""

from featstore.loader.iteration.state import LoaderState

START = LoaderState(
    table="t",
    plan="p",
    request="r",
    seed=0,
    window_rows=None,
    num_epochs=1,
    epoch=0,
    first_epoch=0,
)
