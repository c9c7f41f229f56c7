"""Which worker a process is."""

import os
from dataclasses import dataclass

from torch import distributed
from torch.utils.data import get_worker_info


@dataclass(frozen=True, kw_only=True)
class LoaderWorker:
    """Which worker this process is: of a DataLoader, of a torchrun job, of both, or the only one.

    `session` is equal for the workers of one DataLoader and changes when workers are started anew.
    `in_step`: the process is one of several ranks, as its launcher or its process group says.
    """

    index: int
    num_workers: int
    session: str
    is_dataloader: bool
    rank: int = 0
    num_ranks: int = 1
    in_step: bool = False

    @property
    def num_siblings(self) -> int:
        """How many workers the process's DataLoader has, this one included."""
        return self.num_workers // self.num_ranks

    @property
    def static_index(self) -> int:
        """The worker's number where batches are dealt in turn: so that a rank gets the same ones
        with any number of DataLoader workers, and, as a DataLoader asks these in turn, in the same
        order."""
        per_rank = self.num_siblings
        return (self.index - self.rank * per_rank) * self.num_ranks + self.rank

    @classmethod
    def here(cls) -> "LoaderWorker":
        worker, in_step = get_worker_info(), _is_one_of_several_ranks()
        rank, world = int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
        if worker is None:
            return cls(
                index=rank,
                num_workers=world,
                session="direct",
                is_dataloader=False,
                rank=rank,
                num_ranks=world,
                in_step=in_step,
            )
        return cls(
            index=rank * worker.num_workers + worker.id,
            num_workers=world * worker.num_workers,
            session=f"{worker.num_workers}-{worker.seed - worker.id}",
            is_dataloader=True,
            rank=rank,
            num_ranks=world,
            in_step=in_step,
        )


def _is_one_of_several_ranks() -> bool:
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        return True
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )
