"""What `featstore bench` prints: speeds by numbers of cores, and how many cores a speed needs."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from featstore.base.text_table import Printed, text_table

# The fastest over the slowest epoch, and the share of its core that one thread gets, from which on
# it is told that the machine is not quiet.
_NOISE, _QUIET = 1.15, 0.9
_HEADERS = (
    *("cores", "rows/s", "slowest to fastest", "epochs", "CPU"),
    *("of the floor", "of the limit"),
)


class Epoch(NamedTuple):
    """What an epoch took, by the clock and of all cores."""

    seconds: float
    cpu_s: float


@dataclass(frozen=True, kw_only=True)
class Speed:
    """A speed by the median epoch.

    Attributes:
        num_cores: The cores that read.
        rows_per_s: Of the median epoch.
        least_rows_per_s: Of the slowest one.
        most_rows_per_s: Of the fastest one.
        num_epochs: The epochs that were measured.
        cpu_share: Which share of these cores' time it got.
        share_of_floor: Over that of Arrow's bare loop on as many cores, if it were divided evenly.
        share_of_limit: Over what as many cores could do at best.
    """

    num_cores: int
    rows_per_s: float
    least_rows_per_s: float
    most_rows_per_s: float
    num_epochs: int
    cpu_share: float
    share_of_floor: float
    share_of_limit: float

    @classmethod
    def of(
        cls, num_cores: int, num_rows: int, epochs: Sequence[Epoch], floor_s: float, limit_s: float
    ) -> "Speed":
        """The speed of these epochs, beside the seconds of the floor and the limit on one core."""
        seconds = [epoch.seconds for epoch in epochs]
        core_s = num_cores * median(seconds)
        return cls(
            num_cores=num_cores,
            rows_per_s=num_rows / median(seconds),
            least_rows_per_s=num_rows / max(seconds),
            most_rows_per_s=num_rows / min(seconds),
            num_epochs=len(seconds),
            cpu_share=sum(epoch.cpu_s for epoch in epochs) / num_cores / sum(seconds),
            share_of_floor=floor_s / core_s,
            share_of_limit=limit_s / core_s,
        )


@dataclass(frozen=True, kw_only=True)
class Bench(Printed):
    """How fast a table is read.

    Attributes:
        table: The table, without secrets.
        num_files: The data files of an epoch that was measured, the first ones.
        num_all_files: The data files that a run reads.
        num_rows: The rows of an epoch that was measured.
        batch_size: Rows of a batch.
        is_shuffled: Whether rows were shuffled.
        has_histories: Whether batches have lists that are stored once for many rows.
        limit_rows_per_s: What one core could do at best.
        floor: Arrow's bare loop on one core.
        speeds: The loader, by numbers of cores.
        wanted_rows_per_s: What an accelerator takes; None: not asked for.
        num_cores_needed: The cores for that.
    """

    table: str
    num_files: int
    num_all_files: int
    num_rows: int
    batch_size: int
    is_shuffled: bool
    has_histories: bool
    limit_rows_per_s: float
    floor: Speed
    speeds: tuple[Speed, ...]
    wanted_rows_per_s: float | None
    num_cores_needed: int | None

    def text(self, width: int | None = None) -> str:
        """The speeds as text, with a table of `width` characters at most if given."""
        named = [("floor", self.floor), *((str(speed.num_cores), speed) for speed in self.speeds)]
        rows = [
            (
                name,
                f"{speed.rows_per_s:,.0f}",
                f"{speed.least_rows_per_s:,.0f} to {speed.most_rows_per_s:,.0f}",
                speed.num_epochs,
                f"{speed.cpu_share:.0%}",
                f"{speed.share_of_floor:.2f}",
                f"{speed.share_of_limit:.2f}",
            )
            for name, speed in named
        ]
        align = ("left", *["right"] * (len(_HEADERS) - 1))
        table = text_table(rows, _HEADERS, align=align, width=width)
        return "\n".join([table, "", *self._notes()])

    def _notes(self) -> Iterator[str]:
        yield (
            f"An epoch: {self.num_rows:,} rows of {self.num_files:,} of {self.num_all_files:,} "
            f"files, {'shuffled' if self.is_shuffled else 'in order'}, in batches of "
            f"{self.batch_size:,}."
        )
        yield (
            "floor: a bare loop of pyarrow's read_row_group over the same columns, on one core. "
            f"limit: {self.limit_rows_per_s:,.0f} rows/s on one core that only copies and "
            "decompresses. Shares are of as many cores."
        )
        if self.has_histories:
            yield (
                "The floor reads the lists of histories once, as they are stored; batches have "
                "those of each row. The limit writes these, too: compare with that."
            )
        every = (self.floor, *self.speeds)
        noise = max(speed.most_rows_per_s / speed.least_rows_per_s for speed in every)
        own = self.floor.cpu_share
        if noise > _NOISE or own < _QUIET:
            yield (
                f"Epochs differ by {noise - 1:.0%}, and the floor got {own:.0%} of its core: other "
                "work runs here, or CPU time is limited; these speeds are what is left beside that."
            )
        if self.num_cores_needed is not None:
            needed, most = self.num_cores_needed, self.speeds[-1].num_cores
            cores = "1 core" if needed == 1 else f"{needed:,} cores"
            beyond = f", if each reads as much as one of {most}" if needed > most else ""
            yield f"{self.wanted_rows_per_s:,.0f} rows/s need {cores}{beyond}."


def cores_needed(speeds: Sequence[Speed], rows_per_s: float) -> int:
    """How many cores read so many rows in a second. Pure.

    Between two numbers of cores that were measured, and below the first, the speed grows evenly.
    Beyond the last, each core adds what each of those did.
    """
    cores, speed = 0, 0.0
    for each in speeds:
        if each.rows_per_s >= rows_per_s:
            share = (rows_per_s - speed) / (each.rows_per_s - speed)
            return math.ceil(cores + share * (each.num_cores - cores))
        cores, speed = each.num_cores, each.rows_per_s
    return math.ceil(rows_per_s * cores / speed)
