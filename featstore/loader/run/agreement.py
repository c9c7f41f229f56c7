"""How the ranks of one pass agree on the number of steps."""

from featstore.errors import DispatchError
from featstore.loader.run.job import Job
from featstore.loader.run.passes import Pass
from featstore.loader.run.state import LoaderState
from featstore.loader.run.tail import JOIN, Agreed, Counted, Steps


def agreement(job: Job, begun: Pass, start: LoaderState) -> Steps | None:
    """By counting where the order is static, else through the store; None where ranks may end
    apart, or there is only one.

    DispatchError where what was said in an earlier start of the run is still in the store.
    """
    place = begun.place
    if job.tail == JOIN or place.num_ranks == 1:
        return None
    if (num_steps := job.num_steps(start, place)) is not None:
        return Counted(num_steps)
    if begun.is_repeated:
        raise DispatchError(
            f"tail {job.tail}: this pass was begun before, in an earlier start of the run, and "
            f"ranks do not know how many "
            "steps were made then: load the state of a checkpoint in all ranks, or choose another "
            "run_id"
        )
    prefix = f"{begun.prefix}{begun.first_epoch}/"
    return Agreed(job.tail, begun.address.open(), prefix, place, patience_s=job.terms.stall_s)
