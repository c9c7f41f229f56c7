"""Which of DLIO's files a rank reads."""

from collections.abc import Sequence

from featstore.base.errors import ConfigError


def share_of(files: Sequence[str], rank: int, num_ranks: int) -> Sequence[str]:
    """The files of one of DLIO's ranks: neighbours, as many as each other rank has, since all of
    them meet at every step.

    Raises:
        ConfigError: There is no file for a rank, or their number is no multiple of the ranks'.
    """
    per_rank, left_over = divmod(len(files), num_ranks)
    if left_over or not per_rank:
        raise ConfigError(
            f"expected as many files for each of DLIO's {num_ranks} ranks, found {len(files)} "
            f"files; set num_files_train and num_files_eval to multiples of {num_ranks}"
        )
    return files[rank * per_rank : (rank + 1) * per_rank]
