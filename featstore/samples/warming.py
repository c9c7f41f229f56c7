"""Decodes what a training config selects before a run, for `featstore stage warm --decoded`."""

from dataclasses import dataclass

from featstore.base.errors import ConfigError
from featstore.loader.request.options import as_options
from featstore.loader.request.train_config import column_arguments, load_of_table
from featstore.samples.sample_dataset import SampleDataset
from featstore.staging.budget import format_bytes
from featstore.staging.options import Staging


@dataclass(frozen=True, kw_only=True)
class DecodedReport:
    """What `warm_decoded` found or made in a cache.

    Attributes:
        num_samples: The samples of a `SampleDataset` with the options of the config.
        num_files: The data files that they are of.
        size_bytes: What their decoded columns, and indices, take of the budget.
    """

    num_samples: int
    num_files: int
    size_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.num_samples:,} samples of {self.num_files:,} files: "
            f"{format_bytes(self.size_bytes)} of decoded columns are in the cache"
        )


def warm_decoded(config_url: str, *, table: str | None = None) -> DecodedReport:
    """Decodes the columns that a training config selects into its `staging.directory`, where each
    `SampleDataset` with the same `slots`, `labels`, `weight`, `extras` and `where` finds them.

    Args:
        config_url: Path or URL of the training config.
        table: Replaces the config's table.

    Raises:
        ConfigError: The config is invalid, or names no `staging.directory`.
        Everything that `SampleDataset` raises.
    """
    config = load_of_table(config_url, table)
    if "tables" in config:
        raise ConfigError(
            "tables: expected `table`, since a SampleDataset is of one table, found `tables`: warm "
            "each of them with a config of its own"
        )
    options = as_options(Staging, config.get("staging"), "staging") or Staging()
    options.require_directory()
    chosen = {**column_arguments(config), "staging": options}
    chosen.pop("negatives", None)  # A training run leaves rows out, a SampleDataset does not.
    with SampleDataset(str(config["table"]), **chosen, progress=True) as dataset:
        return DecodedReport(
            num_samples=len(dataset),
            num_files=dataset.num_files,
            size_bytes=dataset.decoded_bytes,
        )
