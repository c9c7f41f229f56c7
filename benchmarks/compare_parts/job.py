"""What a peer is asked to read."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a peer is asked to read.

    Attributes:
        files: The Parquet files.
        folder: The same rows in the peer's own format, if it has one.
        columns: What is read of them; the last one is the label.
        batch_size: Rows of a batch.
        scratch: A folder of this job, for stores and checkpoints.
        num_cores: The cores that it may use.
        shuffle: Whether rows are shuffled.
        rank: Which of the training processes it is.
        num_ranks: How many share the epoch.
    """

    files: list[str]
    folder: str
    columns: list[str]
    batch_size: int
    scratch: str
    num_cores: int = 1
    shuffle: bool = False
    rank: int = 0
    num_ranks: int = 1

    @property
    def own_files(self) -> list[str]:
        """The files of this rank, where files are dealt to ranks."""
        return self.files[self.rank :: self.num_ranks]
