"""The options of staging, as a training config has them under `staging:`."""

from dataclasses import dataclass

from featstore.errors import ConfigError, nearest
from featstore.files import local_path
from featstore.staging.budget import Ahead, parse_bytes

_MODES = ("auto", "whole", "direct")


@dataclass(frozen=True, kw_only=True)
class Staging:
    """How data files come to the local disk.

    `directory`: the cache, shared by the processes of a host and kept after the run; None is a private temporary
    directory, removed at close. `budget_bytes`: what the cache may hold. `mode`: `whole` downloads each file before it is
    read, `direct` reads it where it is, `auto` is whole for remote files and direct for local ones. `ahead_bytes`,
    `ahead_files`: what may be staged before it is asked for. ConfigError for what cannot be.
    """

    directory: str | None = None
    budget_bytes: int | str = "20GB"
    mode: str = "auto"
    ahead_bytes: int | str = "4GB"
    ahead_files: int = 4

    def __post_init__(self) -> None:
        if self.mode == "ranges":
            raise ConfigError(f"staging.mode 'ranges' is not built yet; there are {', '.join(_MODES)}")
        if self.mode not in _MODES:
            raise ConfigError(
                f"staging.mode: expected one of {', '.join(_MODES)}, found {self.mode!r}{nearest(str(self.mode), _MODES)}"
            )
        if isinstance(self.ahead_files, bool) or not isinstance(self.ahead_files, int) or self.ahead_files < 1:
            raise ConfigError(f"staging.ahead_files: expected a whole number above 0, found {self.ahead_files!r}")
        if self.directory is not None and local_path(self.directory) is None:
            raise ConfigError(f"staging.directory: expected a local directory, found {self.directory!r}")
        parse_bytes(self.budget_bytes, "staging.budget_bytes")
        parse_bytes(self.ahead_bytes, "staging.ahead_bytes")

    @property
    def num_budget_bytes(self) -> int:
        return parse_bytes(self.budget_bytes, "staging.budget_bytes")

    @property
    def ahead(self) -> Ahead:
        return Ahead(max_bytes=parse_bytes(self.ahead_bytes, "staging.ahead_bytes"), max_files=self.ahead_files)

    def stages(self, url: str) -> bool:
        """Whether a file at `url` is brought to the local disk before it is read."""
        return self.mode == "whole" or (self.mode == "auto" and local_path(url) is None)
