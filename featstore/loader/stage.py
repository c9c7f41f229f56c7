"""The commands of `featstore stage`: fill a cache before a run, list it, empty it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from featstore.base.errors import ConfigError, StagingError
from featstore.base.host import num_cores
from featstore.base.redaction import redact
from featstore.base.text_table import text_table
from featstore.decoded.decoding import entries_ahead
from featstore.decoded.file_sources import stage_items, staging_source
from featstore.files.storage import local_path
from featstore.loader.request.matching import matching, resolved
from featstore.loader.request.options import as_options
from featstore.loader.request.request import Request
from featstore.loader.request.train_config import column_arguments, load_of_table, mixed_tables
from featstore.staging.budget import format_bytes
from featstore.staging.cache import Cache, Limits
from featstore.staging.cache_listing import number_of
from featstore.staging.counts import StagingStats
from featstore.staging.options import Staging
from featstore.staging.stager import Stager
from featstore.statistics.stale_groups import ERROR
from featstore.table.snapshot import DataFile


@dataclass(frozen=True, kw_only=True)
class WarmReport:
    """What `warm` brought into a cache.

    Attributes:
        num_files: Files that the config reads.
        counts: What the stager did with them.
        decoded_bytes: What their decoded columns take; None: `staging.decoded` is not set.
    """

    num_files: int
    counts: StagingStats
    decoded_bytes: int | None = None

    def __str__(self) -> str:
        counts = self.counts
        decoded = ""
        if self.decoded_bytes is not None:
            decoded = f"; {format_bytes(self.decoded_bytes)} of decoded columns are in the cache"
        return (
            f"{self.num_files:,} files: {counts.num_staged:,} staged ({counts.num_ranges:,} of "
            f"them by ranges), "
            f"{counts.num_hits:,} were there, {counts.num_direct:,} left to be read in place; "
            f"{format_bytes(counts.fetched_bytes)} fetched, {counts.num_evicted:,} files "
            f"evicted{decoded}"
        )


def warm(config_url: str, *, table: str | None = None) -> WarmReport:
    """Stages what a training config reads into its `staging.directory`, where the run finds it.
    With `staging.decoded` its columns are decoded there instead.

    The cache keeps no more than its budget. Files that do not fit are evicted, the first staged
    first.

    Args:
        config_url: Path or URL of the training config.
        table: Replaces the config's table.

    Raises:
        ConfigError: The config is invalid, or names no `staging.directory`.
        SelectionError: A column is not in the table.
        StaleGroupError: A slot group that is read is stale.
        BudgetError: A file does not fit into the budget.
        StagingError: A file cannot be fetched.
    """
    config = load_of_table(config_url, table)
    configs = mixed_tables(config).configs if "tables" in config else [config]
    return _together([_warm(each) for each in configs])


def _warm(config: Mapping[str, Any]) -> WarmReport:
    """Stages what is read of one table."""
    options = as_options(Staging, config.get("staging"), "staging") or Staging()
    options.require_directory()
    stale_groups = config.get("stale_groups", ERROR)
    snapshot, request = resolved(config["table"], column_arguments(config), stale_groups)
    files = [file for file, _ in matching(snapshot, request).values()]
    chosen = [file for file in files if options.stages(file.url)]
    with Stager(options, staging_source(request.selection)) as stager:
        if options.decoded:
            decoded_bytes = _decoded(files, request, stager)
            return WarmReport(
                num_files=len(files), counts=stager.stats(), decoded_bytes=decoded_bytes
            )
        left: tuple[str, ...] = ()
        for staged in stager.stage(item for file in chosen for item in stage_items(file, file)):
            left += () if staged.path else (redact(staged.key.url),)
            staged.release()
        if left:
            raise StagingError(
                f"{len(left)} files cannot be staged, as the warnings say, {left[0]} first; "
                f"restore them, or write their partitions again"
            )
        return WarmReport(num_files=len(chosen), counts=stager.stats())


def _together(reports: Sequence[WarmReport]) -> WarmReport:
    """The sums of the reports of several tables."""
    names = [field.name for field in fields(StagingStats)]
    counts = {name: sum(getattr(each.counts, name) for each in reports) for name in names}
    decoded = [each.decoded_bytes for each in reports if each.decoded_bytes is not None]
    return WarmReport(
        num_files=sum(each.num_files for each in reports),
        counts=StagingStats(**counts),
        decoded_bytes=sum(decoded) if decoded else None,
    )


def list(directory: str, *, width: int | None = None) -> str:  # noqa: A001  named like its command
    """The files in a cache as a text table, the last used first: URL, bytes that are held, share of
    the file, when it was used, and whether it is pinned now. The table has lines of at most `width`
    characters if given.
    """
    entries = _cache(directory).entries()
    rows = [
        (
            entry.record.url,
            f"{entry.record.held_bytes:,}",
            f"{entry.record.held_bytes / max(entry.record.size_bytes, 1):.0%}",
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.used_at_ns / 1e9)),
            "pinned" if entry.is_pinned else "",
        )
        for entry in entries
    ]
    held_bytes = sum(entry.record.held_bytes for entry in entries)
    headers = ("file", "bytes", "of the file", "last used", "")
    align = ("left", "right", "right", "left", "left")
    table = text_table(rows, headers, align=align, width=width)
    total = f"{len(entries):,} files, {format_bytes(held_bytes)}"
    return f"{table}\n\n{total}" if entries else total


def clear(directory: str) -> str:
    """Removes the files of a cache that no process reads or downloads. Returns what was removed, as
    text.
    """
    removed = _cache(directory).clear()
    return f"{len(removed):,} files removed, {format_bytes(sum(map(number_of, removed)))}"


def _decoded(files: Sequence[DataFile], request: Request, stager: Stager) -> int:
    """Makes the decoded columns of files, one after the other. Returns their bytes."""
    num_bytes = 0
    with entries_ahead(stager, files, request.selection, num_cores()) as (cache, wanted):
        for each in wanted:
            [entry] = cache.open_all([each])
            num_bytes += entry.held_bytes
            entry.close()
    return num_bytes


def _cache(directory: str) -> Cache:
    if local_path(directory) is None or not Cache.is_at(directory):
        raise ConfigError(
            f"{redact(directory)}: expected a directory that was a staging.directory, found no "
            f"cache in it"
        )
    return Cache(directory, Limits(budget_bytes=0))
