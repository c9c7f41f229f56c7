"""What a worker gets, and on which terms: claims on splits, and when the right to one ends."""

import enum
from dataclasses import dataclass

from featstore.dispatch.plan import Split


class WaitFor(enum.Enum):
    """What a worker that finds nothing to claim waits for.

    `ALL`: until every lease is final. `SILENT`: until each open lease is in the hands of a holder
    that was seen to renew it since the waiting began; a holder that does not is waited for until
    its lease expires. `NOTHING`: it takes what is free now.
    """

    ALL = "all"
    SILENT = "silent"
    NOTHING = "nothing"


@dataclass(frozen=True, kw_only=True)
class Terms:
    """When a lease ends; equal for all workers of an epoch.

    Attributes:
        lease_s: A worker silent for so long loses its splits.
        stall_s: A worker that lives and does nothing for so long loses its splits.
        max_failures: A split whose claims failed so often in a row, each without an acknowledged
            row, is quarantined.
        in_step: Workers meet in a collective operation at each step, so none of them may wait for
            rows that a living one holds. Leases are then renewed every half second at the end of
            the plan, which shows quickly who lives.
    """

    lease_s: float = 60.0
    stall_s: float = 1800.0
    max_failures: int = 5
    in_step: bool = False


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The right to one split: `plan[index]`, from its row `start_row` on (in delivery order; those
    before are delivered).

    It ends before `end_row`, or earlier, as `Coordinator.reserve` says. `part` is the row at which
    the part begins that was cut off the split, 0 for the split itself.
    """

    index: int
    split: Split
    fence: int
    start_row: int = 0
    part: int = 0
    end_row: int = 0

    @property
    def key(self) -> tuple[int, int, int]:
        """Names the claim: one worker may claim a split again that it lost."""
        return (self.index, self.part, self.fence)
