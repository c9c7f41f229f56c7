"""Whether given rows are in the history of a run: `featstore dispatch receipt --rows`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from featstore.base.errors import (
    ConfigError,
    DataFileError,
    DispatchError,
    SelectionError,
    StaleGroupError,
    TableNotFoundError,
)
from featstore.base.redaction import redact
from featstore.dispatch.epochs import EpochNote
from featstore.loader.description import described
from featstore.loader.iteration.row_history import Read, RowHistory, row_history
from featstore.loader.iteration.state import LoaderState
from featstore.loader.request.train_config import load_of_table
from featstore.table.open import history_of, open_snapshot
from featstore.table.snapshot import Snapshot


def receipt_rows(
    config_url: str,
    where: str,
    *,
    store: str,
    run_id: str,
    epoch: int | None = None,
    state: str | None = None,
) -> RowHistory:
    """What a run, or the model of a checkpoint, has seen of the rows of a condition.

    Args:
        config_url: The training config of the run.
        where: The condition, as `where` of a config. It may name any column of the table.
        store: The URL of the run's dispatch store.
        run_id: The run.
        epoch: The one epoch to report on; None is all.
        state: The merged state of all workers in a checkpoint, a JSON file. Then only what its
            model has seen counts.

    Raises:
        ConfigError: The config is invalid, reads several tables or follows one, or has other
            windows than the run; or an epoch and a state are given.
        DispatchError: The store cannot be read, or has no epoch of this config's loader.
        StateError: The state is of another loader, or not of all workers.
        SelectionError: The condition is invalid.
        DataFileError: A data file is damaged.
    """
    if epoch is not None and state is not None:
        raise ConfigError(
            f"epoch {epoch}: expected an epoch or a state, found both: a state tells its epoch"
        )
    config = load_of_table(config_url, None)
    if "tables" in config or config.get("follow"):
        raise ConfigError(
            f"{redact(config_url)}: expected the config of one table that is not followed, found "
            "`tables` or `follow`: for one of several tables, give a config of that table, with "
            "the options that all have in common"
        )
    read_by = partial(_read_by, config_url, config, run_id)
    return row_history(store, run_id, where, epoch=epoch, state_url=state, read_by=read_by)


def _read_by(
    config_url: str,
    config: Mapping[str, Any],
    run_id: str,
    notes: Sequence[EpochNote],
    state: LoaderState | None,
) -> Read:
    """The table's version that the run has read, by the hash of its plan, and what it has read."""
    loaders = {note.loader for note in notes}
    failed: Exception | None = None
    begun_s = min((note.started_unix_s for note in notes), default=math.inf)
    for snapshot in _versions(str(config["table"]), begun_s) if notes or state else ():
        try:
            job = described(**{**config, "table": snapshot}).job
        except (SelectionError, StaleGroupError, DataFileError) as error:
            failed = error  # A version without all columns, or with files that are gone.
            continue
        if job.key in loaders if state is None else job.table == state.table:
            return snapshot, job
    of_state = "" if state is None else ", of the table's version that the state names"
    raise DispatchError(
        f"run {run_id!r}: expected epochs of a loader of {redact(config_url)}{of_state}, found "
        f"{len(notes)} of other loaders: is it the run's config (its selection, `where`, seed and "
        "split size), and does the table's log still have the version that it read?"
        + (f" A version that cannot be read: {failed}" if failed else "")
    )


def _versions(url: str, begun_s: float) -> Iterator[Snapshot]:
    """The versions of a table: the one that was the newest at a time, those before it, and then
    those after it, as clocks of hosts differ.
    """
    newest = open_snapshot(url)
    if newest.version is None:
        yield newest
        return
    commits = history_of(url)
    before = [each.version for each in commits if each.timestamp_ms <= 1000 * begun_s]
    after = [each.version for each in commits if each.timestamp_ms > 1000 * begun_s]
    for version in (*before, *reversed(after)):
        try:
            yield newest if version == newest.version else open_snapshot(url, version)
        except TableNotFoundError:
            continue  # The log no longer has all of it.
