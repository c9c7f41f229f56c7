"""The options of dispatch, as a training config has them under `dispatch:`."""

from dataclasses import dataclass, field

from featstore.dispatch.store_keys import run_prefix
from featstore.dispatch.stores.address import bind
from featstore.dispatch.terms import Terms
from featstore.errors import ConfigError

AUTO = "auto"
ERROR, END = "error", "end"


@dataclass(frozen=True, kw_only=True)
class Dispatch:
    """How the workers of one run share the splits of an epoch.

    `store`: `auto` (the loader chooses: memory, or under torchrun the job's own store),
    `memory://`, `sqlite:///absolute/path` or `tcp://host:port`. `lease_s`: a worker silent for so
    long loses its splits, as does one that lives but does nothing for `stall_s`. A split that
    failed `max_failures` times in a row, or killed its worker, is left out and named at the end.
    `split_rows`, or `split_bytes` (a number, or text such as `200MB`): larger data files are cut at
    their row groups into splits of at most so much; None leaves them whole. `run_id`: the same text
    for all workers of a run, another one for each run; None is for `auto` and `memory://`, and
    under torchrun, whose own it is then. `in_step`: whether the workers meet in a collective
    operation at each step, so that none may wait for rows that a living one holds; `auto` is true
    where `WORLD_SIZE` is above 1 or a process group of several was initialised. `finished`: what a
    worker does that finds every epoch of its pass read by an earlier start of the run: `error`, or
    `end` with a warning, for launchers that restart everything. ConfigError for what cannot be.
    """

    store: str = field(default=AUTO, repr=False)
    lease_s: float = 60.0
    run_id: str | None = None
    stall_s: float = 1800.0
    max_failures: int = 5
    split_rows: int | None = None
    split_bytes: int | str | None = None
    in_step: bool | str = AUTO
    finished: str = ERROR

    @property
    def store_timeout_s(self) -> float:
        """A store silent for so long is lost: renewing and closing wait for it, and together
        shorter than a lease.
        """
        return self.lease_s / 4

    def __post_init__(self) -> None:
        if (
            isinstance(self.lease_s, bool)
            or not isinstance(self.lease_s, int | float)
            or not 0 < self.lease_s < 86_400
        ):
            raise ConfigError(
                f"dispatch.lease_s: expected seconds above 0 and below a day, found "
                f"{self.lease_s!r}"
            )
        if (
            isinstance(self.stall_s, bool)
            or not isinstance(self.stall_s, int | float)
            or not self.stall_s >= self.lease_s
        ):
            raise ConfigError(
                f"dispatch.stall_s: expected seconds, lease_s ({self.lease_s}) or more, found "
                f"{self.stall_s!r}"
            )
        if (
            isinstance(self.max_failures, bool)
            or not isinstance(self.max_failures, int)
            or self.max_failures < 1
        ):
            raise ConfigError(
                f"dispatch.max_failures: expected an integer of 1 or more, found "
                f"{self.max_failures!r}"
            )
        if self.split_rows is not None and self.split_bytes is not None:
            raise ConfigError("dispatch: expected split_rows or split_bytes, found both")
        if self.split_rows is not None and (
            isinstance(self.split_rows, bool) or self.split_rows < 1
        ):
            raise ConfigError(
                f"dispatch.split_rows: expected an integer of 1 or more, found {self.split_rows!r}"
            )
        if self.in_step not in (AUTO, True, False):
            raise ConfigError(
                f"dispatch.in_step: expected auto, true or false, found {self.in_step!r}"
            )
        if self.finished not in (ERROR, END):
            raise ConfigError(f"dispatch.finished: expected error or end, found {self.finished!r}")
        if self.store != AUTO:
            bind(self.store)
        if self.run_id is not None:
            run_prefix(self.run_id)

    @property
    def terms(self) -> Terms:
        """The terms of leases that a coordinator is given."""
        return Terms(lease_s=self.lease_s, stall_s=self.stall_s, max_failures=self.max_failures)
