"""The options of staging, as a training config has them under `staging:`."""

from dataclasses import dataclass

from featstore.base.errors import (
    ConfigError,
    nearest,
    parse_bytes,
    require_boolean,
    require_integer,
    require_seconds,
    require_text,
)
from featstore.base.redaction import redact
from featstore.files.storage import local_path, scheme

AUTO, WHOLE, RANGES = _MODES = ("auto", "whole", "ranges")


@dataclass(frozen=True, kw_only=True)
class Staging:
    """How data files come to the local disk.

    Sizes are numbers of bytes, or text such as `200GB` or `4GiB`.

    Attributes:
        directory: The cache's directory, shared by the processes of a host and kept after the run.
            None is a private temporary directory, which is removed at close.
        budget_bytes: How much the cache may hold, for all processes together.
        mode: `whole` downloads each file before it is read, `ranges` only the selected parts of it.
            `auto` reads local files in place, downloads a remote file whole if the selected parts
            are at least three quarters of it and it fits into the budget, and else uses `ranges`.
        ahead_bytes: How many bytes may be staged before the reader asks for them.
        ahead_files: How many files may be staged before the reader asks for them.
        max_bytes_per_s: The bandwidth that all processes sharing the directory use together.
        max_connections: The downloads that all of them run at one time. None does not limit them,
            and lets each download have up to eight short requests in flight.
        min_free_bytes: How much must stay free on the disk.
        retry_s: How many seconds a download is tried again after failures that may pass, such as a
            store that fails over.
        decoded: Whether a loader keeps decoded columns in the cache, and reads them from the second
            epoch on.

    Raises:
        ConfigError: An option has a value that is not allowed.
    """

    directory: str | None = None
    budget_bytes: int | str = "20GB"
    mode: str = "auto"
    ahead_bytes: int | str = "4GB"
    ahead_files: int = 4
    max_bytes_per_s: int | str | None = None
    max_connections: int | None = None
    min_free_bytes: int | str | None = None
    retry_s: float = 120.0
    decoded: bool = False

    def __post_init__(self) -> None:
        if self.mode == "direct":
            raise ConfigError(
                "staging.mode: direct is no longer a mode; write auto, which reads local files in "
                "place and stages remote ones"
            )
        if self.mode not in _MODES:
            raise ConfigError(
                f"staging.mode: expected one of {', '.join(_MODES)}, found "
                f"{self.mode!r}{nearest(str(self.mode), _MODES)}"
            )
        require_integer("staging.ahead_files", self.ahead_files)
        require_boolean("staging.decoded", self.decoded)
        require_seconds("staging.retry_s", self.retry_s)
        if self.max_connections is not None:
            require_integer("staging.max_connections", self.max_connections)
        if self.directory is not None:
            require_text("staging.directory", self.directory)
            if local_path(self.directory) is None:
                found = redact(self.directory)
                raise ConfigError(f"staging.directory: expected a local directory, found {found!r}")
        for name in ("budget_bytes", "ahead_bytes"):
            parse_bytes(getattr(self, name), f"staging.{name}")
        for name in ("max_bytes_per_s", "min_free_bytes"):
            self._optional_bytes(name)

    @property
    def num_budget_bytes(self) -> int:
        """`budget_bytes` as a number."""
        return parse_bytes(self.budget_bytes, "staging.budget_bytes")

    @property
    def num_bytes_per_s(self) -> int | None:
        """`max_bytes_per_s` as a number; None for no limit."""
        return self._optional_bytes("max_bytes_per_s")

    @property
    def num_min_free_bytes(self) -> int:
        """`min_free_bytes` as a number; 0 for none."""
        return self._optional_bytes("min_free_bytes") or 0

    @property
    def num_ahead_bytes(self) -> int:
        """`ahead_bytes` as a number."""
        return parse_bytes(self.ahead_bytes, "staging.ahead_bytes")

    def may_stage(self, num_files: int, num_bytes: int, next_bytes: int = 0) -> bool:
        """Whether a file of `next_bytes` may be staged while `num_files` of `num_bytes` wait for
        the reader. A single file always may.
        """
        return num_files == 0 or (
            num_files < self.ahead_files and num_bytes + next_bytes <= self.num_ahead_bytes
        )

    def require_directory(self) -> None:
        """ConfigError if no directory is named, which a run that is to come could share."""
        if self.directory is None:
            raise ConfigError(
                "staging.directory: expected the cache to fill, found none in the config"
            )

    def stages(self, url: str) -> bool:
        """Whether a file at `url` is staged before it is read."""
        return self.mode != AUTO or scheme(url) != "file"

    def _optional_bytes(self, name: str) -> int | None:
        value = getattr(self, name)
        return None if value is None else parse_bytes(value, f"staging.{name}")
