"""The keys of the coordinator's store. They are composed here and nowhere else."""

import re
from dataclasses import dataclass

from featstore.base.errors import ConfigError

# Without "/", which joins the parts of a key.
_PART = re.compile(r"[A-Za-z0-9._-]{1,128}")


def run_prefix(run_id: str, *, restart: int = 0, loader: str = "0") -> str:
    """`featstore/{run_id}/{restart}/{loader}/`: the prefix of every key of one loader in one start
    of a run.

    Args:
        run_id: The run.
        restart: How often the run was restarted.
        loader: The loader's key; a run may have several loaders.

    Raises:
        ConfigError: `run_id` or `loader` holds anything but letters, digits, `.`, `_` and `-`, is
            empty, or is longer than 128 characters.
    """
    for what, part in (("run_id", run_id), ("loader", loader)):
        if not _PART.fullmatch(part):
            raise ConfigError(
                f"{what} {part!r} may hold only letters, digits, '.', '_' and '-', 128 at the most"
            )
    return f"featstore/{run_id}/{restart}/{loader}/"


def restores_key(run_id: str, *, launch: str, worker: str) -> str:
    """The key that counts how often a worker of a run was restored from one state.

    `worker="latest"` is the key of the largest of these counts.
    """
    return f"featstore/{run_id}/restores/{launch}/{worker}"


@dataclass(frozen=True)
class EpochKeys:
    """The keys of one epoch below a run's prefix, as `run_prefix` makes it."""

    prefix: str
    epoch: int

    @property
    def plan(self) -> str:
        """Holds the digest of the plan and of the restored rows. Equal for all workers."""
        return f"{self.prefix}{self.epoch}/plan"

    @property
    def cursor(self) -> str:
        """Counts the positions of the plan that were handed out."""
        return f"{self.prefix}{self.epoch}/cursor"

    def begun(self, index: int) -> str:
        """Counts the workers of one index that have begun the epoch, one after the other."""
        return f"{self.prefix}{self.epoch}/begun/{index}"

    def split(self, index: int) -> str:
        """Holds the lease of the split at one position of the plan."""
        return f"{self.prefix}{self.epoch}/split/{index}"

    def part(self, part: tuple[int, int]) -> str:
        """Holds the lease of a split, `(position, 0)`, or of a part, `(position, first row)`, that
        was cut off it at that row of its delivery order.
        """
        index, first = part
        return f"{self.split(index)}/{first}" if first else self.split(index)

    @property
    def low(self) -> str:
        """Holds a hint: every split below this position, with all its parts, is done."""
        return f"{self.prefix}{self.epoch}/low"

    @property
    def given_back(self) -> str:
        """Holds a hint: how often a worker gave a lease back."""
        return f"{self.prefix}{self.epoch}/given_back"

    def gave_back(self, number: int) -> str:
        """Holds `{position} {first row}` of the part that was given back as the `number`-th, from
        1.
        """
        return f"{self.given_back}/{number}"

    def quarantined(self, number: int) -> str:
        """Holds `{position} {first row}` of a part that a worker was about to quarantine."""
        return f"{self.prefix}{self.epoch}/quarantined/{number}"

    @property
    def version(self) -> str:
        """Holds the version of a followed table whose new partitions make up this epoch's plan."""
        return f"{self.prefix}{self.epoch}/version"

    @property
    def size(self) -> str:
        """Holds how many splits and rows the plan has, and how much of it a restored state had
        delivered.
        """
        return f"{self.prefix}{self.epoch}/size"
