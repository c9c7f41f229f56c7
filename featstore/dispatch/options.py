"""The options of dispatch, as a training config has them under `dispatch:`."""

from dataclasses import dataclass, field

from featstore.base.errors import ConfigError, require_integer, require_text
from featstore.dispatch.store_keys import run_prefix
from featstore.dispatch.stores.address import STORE_WAIT_S, bind
from featstore.dispatch.terms import Terms

AUTO = "auto"
ERROR, END = "error", "end"


@dataclass(frozen=True, kw_only=True)
class Dispatch:
    """How the workers of one run share the splits of an epoch.

    Attributes:
        store: `auto` (the loader chooses: memory, or under torchrun the job's own store),
            `memory://`, `sqlite:///absolute/path`, `tcp://host:port` or `tls://host:port`.
        lease_s: A worker that does not renew its leases for this long loses its splits.
        run_id: The same text for all workers of a run, and a different one for each run. None is
            allowed for `auto` and `memory://`, and under torchrun, which brings its own.
        stall_s: A worker that renews its leases but does nothing else for this long loses its
            splits. At least `lease_s`.
        store_wait_s: A worker waits this long for a server (`tcp://`, or the job's own) that does
            not answer. One whose data are gone ends it at once.
        max_failures: A split that failed this many times in a row, or killed its worker, is left
            out and named at the end of the epoch.
        split_rows: Data files with more rows are cut at their row groups into splits of at most
            this many rows. None leaves files whole. Not together with `split_bytes`.
        split_bytes: The same in bytes: a number, or text such as `200MB`.
        in_step: Whether the workers meet in a collective operation at each step, so that none of
            them may wait for rows that a living one holds. `auto` is true if `WORLD_SIZE` is
            above 1 or a process group with several members was initialised.
        reserve_s: A worker reserves the rows that its training loop will read in this many seconds
            at its pace, and at least one batch. An idle worker may take all others.
        finished: What a worker does when an earlier start of the run has read every epoch of its
            iteration: `error`, or `end` with a warning, for launchers that restart everything.

    Raises:
        ConfigError: An option has a value that is not allowed.
    """

    store: str = field(default=AUTO, repr=False)
    lease_s: float = 60.0
    run_id: str | None = None
    stall_s: float = 1800.0
    store_wait_s: float = STORE_WAIT_S
    max_failures: int = 5
    split_rows: int | None = None
    split_bytes: int | str | None = None
    in_step: bool | str = AUTO
    reserve_s: float = 2.0
    finished: str = ERROR

    def __post_init__(self) -> None:
        for name in ("lease_s", "store_wait_s"):
            seconds = getattr(self, name)
            is_valid = _is_number(seconds) and 0 < seconds < 86_400
            self._require(name, is_valid, "seconds above 0 and below a day")
        self._require(
            "stall_s",
            _is_number(self.stall_s) and self.stall_s >= self.lease_s,
            f"seconds, lease_s ({self.lease_s}) or more",
        )
        self._require(
            "reserve_s",
            _is_number(self.reserve_s) and 0 < self.reserve_s < 86_400,
            "seconds above 0 and below a day",
        )
        require_integer("dispatch.max_failures", self.max_failures)
        if self.split_rows is not None and self.split_bytes is not None:
            raise ConfigError("dispatch: expected split_rows or split_bytes, found both")
        if self.split_rows is not None:
            require_integer("dispatch.split_rows", self.split_rows)
        is_known = isinstance(self.in_step, bool) or self.in_step == AUTO
        self._require("in_step", is_known, "auto, true or false")
        self._require("finished", self.finished in (ERROR, END), "error or end")
        require_text("dispatch.store", self.store)
        if self.store != AUTO:
            bind(self.store)
        if self.run_id is not None:
            run_prefix(self.run_id)

    @property
    def terms(self) -> Terms:
        """The terms of leases for a coordinator."""
        return Terms(
            lease_s=self.lease_s,
            stall_s=self.stall_s,
            max_failures=self.max_failures,
            reserve_s=self.reserve_s,
        )

    def _require(self, name: str, is_valid: bool, expected: str) -> None:
        if not is_valid:
            raise ConfigError(
                f"dispatch.{name}: expected {expected}, found {getattr(self, name)!r}"
            )


def _is_number(value: object) -> bool:
    """Whether a value from YAML is a number. `true` is an int in Python, but not a number here."""
    return isinstance(value, int | float) and not isinstance(value, bool)
