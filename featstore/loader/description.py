"""What a `FeatureLoader` is made of: its keywords are read into frozen groups, and these, with the
table, into a `LoaderDescription`. No loader is made here, and no store is asked.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from featstore.base.errors import ConfigError, parse_bytes, require_boolean, require_integer
from featstore.base.redaction import redact
from featstore.dispatch.options import AUTO, END, Dispatch
from featstore.loader.batches.bad_files import SKIP, checked
from featstore.loader.batches.batch_cap import BatchCap, HistoryCap
from featstore.loader.batches.stats import OnStats, on_stats_options
from featstore.loader.batches.transform import checked_transform
from featstore.loader.iteration.candidates import CandidatePool
from featstore.loader.iteration.job import BatchOptions, EpochOptions, Job, ProcessOptions
from featstore.loader.iteration.staging_share import divided, limited, staging_for
from featstore.loader.iteration.step_agreement import require_in_step, tail_of
from featstore.loader.plan.follow import Follow, Following
from featstore.loader.plan.ordering import (
    DYNAMIC,
    RANK,
    STATIC,
    Ordering,
    in_sections,
    matching_in_sections,
    section_key,
)
from featstore.loader.plan.shuffle import Shuffle
from featstore.loader.plan.splitting import (
    Cut,
    Listing,
    clustered_by,
    make_splits,
    split_list,
    split_size,
)
from featstore.loader.request.candidates import Candidates
from featstore.loader.request.matching import (
    SelectedFiles,
    TableLike,
    matching_files,
    naming_table,
    require_fresh_files,
    resolved,
    selected,
    snapshot_of,
)
from featstore.loader.request.options import as_options
from featstore.loader.request.request import Request, number_field
from featstore.loader.request.train_config import (
    ALL_EXHAUSTED,
    FIRST_EXHAUSTED,
    MixedTables,
    column_arguments,
    naming,
    num_passes,
    require_alike,
    table_names,
)
from featstore.selection.where import parse_where
from featstore.staging.options import Staging
from featstore.statistics.stale_groups import ERROR
from featstore.table.iceberg import is_metadata_file
from featstore.table.open import data_files_of, open_snapshot, open_without_files
from featstore.table.snapshot import FileList, Snapshot

# As that for verdicts.
_LOG = logging.getLogger("featstore.loader")
Group = TypeVar("Group")


@dataclass(frozen=True, kw_only=True)
class LoaderDescription:
    """What a loader is made of.

    Attributes:
        job: What is read and how.
        url: The table.
        version: Its version; None if it has none.
        dispatch: Where workers meet.
        staging: How files come to the local disk; None if none is staged.
        on_stats: What is called with metrics.
        pool: What candidates are drawn of; None: there are none.
    """

    job: Job
    url: str = field(repr=False)
    version: int | str | None = None
    dispatch: Dispatch
    staging: Staging | None
    on_stats: OnStats | None
    pool: CandidatePool | None = None

    def shared(self, num_loaders: int) -> "LoaderDescription":
        """The description of one of several loaders that one loop reads in turn. It takes an equal
        part of memory, threads and staging budget, and does not wait for rows that living workers
        hold, as these may wait for it.

        Args:
            num_loaders: How many there are, this one included.
        """
        job, staging = replace(self.job, num_sharing=num_loaders, in_step=True), self.staging
        if staging is not None:
            if staging.directory is None:
                staging = divided(staging, num_loaders)
            job, staging = _staged(job, staging)
        return replace(self, job=job, staging=staging)


def _staged(job: Job, staging: Staging | None) -> tuple[Job, Staging | None]:
    """The job with as many splits open as staging can hold, and the staging options; None if no
    file is staged. Of a job that lists its files later, the largest ones are known.
    """
    largest = job if job.census is None else replace(job, files=job.census.largest)
    options = staging_for(staging, largest)
    return replace(job, most_open=limited(options, largest).most_open), options


def described(table: TableLike | Snapshot | str | Path, **keywords: Any) -> LoaderDescription:
    """The description of a loader with these arguments of `FeatureLoader`, which says what is
    raised.
    """
    given = {
        _FIELDS.get(key, key): _READERS[key](value) if key in _READERS else value
        for key, value in keywords.items()
    }
    epochs, process = _group(EpochOptions, given), _group(ProcessOptions, given)
    batches, dispatch = _group(BatchOptions, given), given.get("dispatch", Dispatch())
    require_in_step(batches.tail, dispatch.in_step)
    with naming_table(table):
        # Data files that can be streamed later are left out if they will be.
        opened = open_without_files if epochs.ordering.kind == RANK else open_snapshot
        stale_groups = given.get("stale_groups", ERROR)
        snapshot, request = resolved(table, column_arguments(given), stale_groups, opened)
        if (cap := batches.cap) is not None:
            history = request.list_slot("batch.of", cap.of).history
            if history is not None:
                batches = replace(batches, cap=HistoryCap(**vars(cap), history=history))
        pool = None
        if (options := given.get("candidates")) is not None:
            request, pool = _with_candidates(request, options, keywords)
        key = section_key(epochs.shuffle, snapshot.schema, epochs.ordering)
        size = split_size(dispatch)
        cut = partial(make_splits, size=size, accepts_bad=process.on_bad_file == SKIP)
        parts = (
            _listed_later(snapshot, request, cut, epochs, whole=size is None)
            if epochs.ordering.kind == RANK
            else _listed_now(snapshot, request, key, cut, whole=size is None)
        )
        job = Job(
            **vars(epochs) | vars(batches) | vars(process),
            **parts,
            request=request,
            candidates=None if pool is None else pool.drawing,
            cut=cut,
            section_key=key,
            terms=dispatch.terms,
            in_step=None if dispatch.in_step == AUTO else bool(dispatch.in_step),
            ends_finished=dispatch.finished == END,
            follow=_followed(given.get("follow"), snapshot, request, key, epochs),
        )
        if job.shuffle is None:
            _warn_of_order(snapshot.url, job)
        asked = given.get("staging")
        job, staging = _staged(job, asked)
        if staging is None and asked is not None and asked.directory is not None:
            _LOG.info(
                "staging.directory %s: not used, since files of a local table are read in place; "
                "staging.mode whole or ranges stages them, too",
                redact(str(asked.directory)),
            )
        return LoaderDescription(
            job=job,
            url=snapshot.url,
            version=snapshot.version,
            dispatch=dispatch,
            staging=staging,
            on_stats=given.get("on_stats"),
            pool=pool,
        )


# Parameters of a loader that hold for its pool, too.
_OF_POOL = ("memory_budget", "decode_threads", "stale_groups")


def _with_candidates(
    request: Request, options: Candidates, keywords: Mapping[str, Any]
) -> tuple[Request, CandidatePool]:
    """The request with what candidates are drawn by, and the pool, which is not read yet.

    Args:
        request: What is read of the rows.
        options: What is drawn.
        keywords: The loader's arguments.
    """
    own = {key: keywords[key] for key in _OF_POOL if key in keywords}
    columns = {"slots": options.slots, "weight": options.by, "where": options.where}
    with naming("candidates"):
        pool = snapshot_of(options.pool, partial(open_snapshot, version=options.version))
        if options.by is not None:
            number_field(pool.schema, options.by, "by")
        made = described(pool, **columns, **own)
    found = made.job.request
    of_row, of_pool = options.own_item(request.schema, found.schema)
    found.require_no_histories("candidates.slots")
    found = replace(found, own_item=of_pool, slots=options.slots_as(request.slots, found.slots))
    job = replace(made.job, request=found)
    digest = {
        "pool": job.table,
        "request": found.digest,
        "id": options.id,
        "per_row": options.per_row,
    }
    name = f"candidates.pool {redact(made.url)}"
    return replace(request, own_item=of_row, candidates=digest), CandidatePool(options, job, name)


def _group(kind: type[Group], given: Mapping[str, Any]) -> Group:
    """The group, of those parameters that are given."""
    names = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: given[name] for name in names if name in given})


def _short(kind: type[Group], key: str, what: str, value: Any) -> Group:
    """Options that a text may stand for: the value of their field `key`."""
    return as_options(kind, {key: value} if isinstance(value, str) else value, what) or kind()


def _switched(kind: type[Group], what: str, value: Any) -> Group | None:
    """Options that true takes the defaults of, and false leaves out."""
    if isinstance(value, bool):
        return kind() if value else None
    return as_options(kind, value, what)


def _unless_auto(reader: Callable[[Any], int], value: Any) -> int | None:
    return None if value == AUTO else reader(value)


# Parameters that have another name in their group.
_FIELDS = {"batch": "cap", "order": "ordering", "memory_budget": "budget_bytes"}
_READERS: Mapping[str, Callable[[Any], Any]] = {
    "seed": partial(require_integer, "seed", minimum=0),
    **{name: partial(require_integer, name) for name in ("num_epochs", "batch_size")},
    **{name: partial(require_boolean, name) for name in ("drop_last", "debug", "progress")},
    "batch": partial(as_options, BatchCap, what="batch"),
    "candidates": partial(as_options, Candidates, what="candidates"),
    "order": partial(_short, Ordering, "kind", "order"),
    "shuffle": partial(_switched, Shuffle, "shuffle"),
    "tail": tail_of,
    "transform": checked_transform,
    "memory_budget": partial(_unless_auto, partial(parse_bytes, option="memory_budget")),
    "decode_threads": partial(_unless_auto, partial(require_integer, "decode_threads")),
    "on_bad_file": checked,
    "dispatch": partial(_short, Dispatch, "store", "dispatch"),
    "staging": partial(as_options, Staging, what="staging"),
    "follow": partial(_switched, Follow, "follow"),
    "on_stats": on_stats_options,
}


def _listed_now(
    snapshot: Snapshot, request: Request, key: pa.Field | None, cut: Cut, *, whole: bool
) -> dict[str, Any]:
    """The files, and the splits of all of them. SelectionError if `where` matches no file."""
    files = in_sections(matching_files(snapshot, request), key)
    splits = split_list(files, cut, whole=whole)
    return {"files": files, "splits": splits, "table": snapshot.digest}


def _listed_later(
    snapshot: Snapshot, request: Request, cut: Cut, epochs: EpochOptions, *, whole: bool
) -> dict[str, Any]:
    """How to list the files of each part, and their census. They are not kept if the snapshot can
    be opened again. SelectionError if `where` matches no file.
    """
    kept = snapshot if snapshot.version is None else replace(snapshot, data_files=FileList.of())
    listing = Listing(
        list_files=partial(data_files_of, kept),
        select=partial(selected, kept, request),
        split=partial(split_list, cut=cut, whole=whole),
    )
    census = listing.count(epochs.seed, shuffle=epochs.shuffle is not None)
    if census.num_splits == 0 and request.where is not None:
        matching_files(replace(snapshot, data_files=data_files_of(snapshot)), request)
    table = snapshot.digest if snapshot.data_files else census.table
    return {"files": SelectedFiles.of(()), "listing": listing, "census": census, "table": table}


def _followed(
    options: Follow | None,
    snapshot: Snapshot,
    request: Request,
    key: pa.Field | None,
    epochs: EpochOptions,
) -> Following | None:
    """How the table is followed. ConfigError if it cannot be followed."""
    if options is None:
        return None
    if snapshot.version is None or is_metadata_file(snapshot.url):
        raise ConfigError(
            "follow: expected a Delta table, or one of a catalog of Iceberg, each partition of "
            "which is read once, found plain Parquet files, or a metadata file, which never change"
        )
    if epochs.num_epochs != 1:
        raise ConfigError(
            f"follow: each partition is read once: expected num_epochs 1, found num_epochs "
            f"{epochs.num_epochs}"
        )
    if epochs.ordering.kind not in (DYNAMIC, STATIC):
        raise ConfigError(f"follow: expected order dynamic or static, found {epochs.ordering.kind}")
    until = (
        None
        if options.until is None
        else parse_where(options.until, {f.name: f.type for f in snapshot.schema.partition_keys})
    )
    return Following(
        options=options,
        url=snapshot.url,
        version=snapshot.version,
        until=until,
        select=partial(matching_in_sections, request=request, key=key),
        require=partial(require_fresh_files, request=request),
        reads_stale=snapshot.reads_stale,
        schema_id=snapshot.schema_id,
    )


def mixed_descriptions(tables: MixedTables) -> list[LoaderDescription]:
    """One description for each table, of loaders that one loop reads in turn.

    Raises:
        ConfigError: The tables have different columns, two entries read the same rows, a table has
            no rows, or the tail does not go with `stop`; and everything that `described` raises,
            with the table's name.
    """
    names = table_names(tables.configs)
    own = {"num_epochs": num_passes(tables.stop), "on_stats": None}
    found = []
    for name, config in zip(names, tables.configs, strict=True):
        with naming(name):
            found.append(described(**{**config, **own}))
    if tables.stop == ALL_EXHAUSTED and (tail := found[0].job.tail).agrees:
        raise ConfigError(
            f"tail: {tail.name!r} with stop {ALL_EXHAUSTED}: ranks read different numbers of "
            f"passes, so they cannot agree on a last step: expected tail join, or stop "
            f"{FIRST_EXHAUSTED}"
        )
    require_alike([each.job.request for each in found], names)
    _require_mixable(names, found)
    shared = []
    for name, each in zip(names, found, strict=True):
        with naming(name):
            shared.append(each.shared(len(found)))
    return shared


def _require_mixable(names: Sequence[str], found: Sequence[LoaderDescription]) -> None:
    """ConfigError if a table has no rows, so that an epoch would end at its first turn, or if two
    entries read the same rows: they would share them through the store, each row once for both.
    """
    seen: dict[str, str] = {}
    for name, each in zip(names, found, strict=True):
        if not each.job.has_rows:
            raise ConfigError(
                f"{name}: expected rows to draw batches of, found none in its data files: leave "
                "the entry out until the table has some"
            )
        other = seen.setdefault(each.job.key, name)
        if other is not name:
            raise ConfigError(
                f"{name}: expected other rows than those of {other}, found the same table with "
                "the same `where`: make them one entry, with the sum of the weights"
            )


def _warn_of_order(url: str, job: Job) -> None:
    """Warns that batches of rows in the order of files have few keys of a history. The last file
    tells: earlier ones may be from before the history.
    """
    files = job.files.files if job.census is None else job.census.largest.files
    if not job.request.histories or not files:
        return
    if (key := clustered_by(files[-1])) is not None:
        _LOG.warning(
            "%s: rows are read as they lie in files, by %s in %s: a batch has few keys; set "
            "shuffle to train (docs/shuffle.md)",
            *(redact(url), key, redact(files[-1].path)),
        )
