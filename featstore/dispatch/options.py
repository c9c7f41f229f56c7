"""The options of dispatch, as a training config has them under `dispatch:`."""

from dataclasses import dataclass

from featstore.dispatch.keys import run_prefix
from featstore.dispatch.stores.address import bind
from featstore.errors import ConfigError

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class Dispatch:
    """How the workers of one run share the splits of an epoch.

    `store`: `auto` (the loader chooses: memory, or under torchrun the job's own store), `memory://`,
    `sqlite:///absolute/path` or `tcp://host:port`. `lease_s`: a worker silent for so long
    loses its splits. `run_id`: the same text for all workers of a run, another one for each run; None is for
    `auto` and `memory://`, and under torchrun, whose own it is then. ConfigError for what cannot be.
    """

    store: str = AUTO
    lease_s: float = 60.0
    run_id: str | None = None

    @property
    def store_timeout_s(self) -> float:
        """A store silent for so long is lost: renewing and closing wait for it, and together shorter than a lease."""
        return self.lease_s / 4

    def __post_init__(self) -> None:
        if isinstance(self.lease_s, bool) or not isinstance(self.lease_s, int | float) or not 0 < self.lease_s < 86_400:
            raise ConfigError(f"dispatch.lease_s: expected seconds above 0 and below a day, found {self.lease_s!r}")
        if self.store != AUTO:
            bind(self.store)
        if self.run_id is not None:
            run_prefix(self.run_id)
