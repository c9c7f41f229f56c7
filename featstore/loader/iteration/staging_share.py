"""Whether a loader stages files, how many splits can be open at once, and which part of the budget
each DataLoader worker gets.
"""

import logging
from dataclasses import replace
from itertools import accumulate

import pyarrow.compute as pc

from featstore.base.errors import BudgetError
from featstore.loader.iteration.job import Job
from featstore.staging.budget import require_fits
from featstore.staging.options import AUTO, RANGES, WHOLE, Staging

_LOG = logging.getLogger(__name__)


def staging_for(options: Staging | None, job: Job) -> Staging | None:
    """The staging options; None if no file is staged, and no decoded columns are kept.

    Raises:
        BudgetError: The files of one split do not fit into the budget, in mode `whole`.
    """
    options = options or Staging()
    sizes = _staged_sizes(options, job)
    if not sizes:
        return options if options.decoded else None
    num_open = job.most_parts if options.mode == WHOLE else _num_files(job, job.num_open, 0)
    return _fitting(options, sizes, _budget_bytes(options, job), num_open)


def _fitting(
    options: Staging, sizes: list[tuple[str, int]], budget_bytes: int, num_open: int
) -> Staging:
    """The options with which that many open files fit into the budget: in mode `auto` by ranges if
    whole ones do not. The size of ranges is unknown before a footer is read.
    """
    if options.mode == RANGES:
        return options
    try:
        require_fits(sizes, budget_bytes, num_open=num_open)
    except BudgetError:
        if options.mode != AUTO:
            raise
        return replace(options, mode=RANGES)
    return options


def _budget_bytes(options: Staging, job: Job) -> int:
    """What the loader may pin. Of loaders that are read in turn, which share a directory, each may
    pin an equal part: one that waited for what an idle one pins would wait forever.
    """
    return options.num_budget_bytes // (job.num_sharing if options.directory else 1)


def divided(options: Staging, num_loaders: int) -> Staging:
    """The options of one of several loaders with private directories, for an equal part of what
    all of them may take.
    """
    connections, rate = options.max_connections, options.num_bytes_per_s
    return replace(
        options,
        budget_bytes=max(1, options.num_budget_bytes // num_loaders),
        ahead_bytes=max(1, options.num_ahead_bytes // num_loaders),
        max_connections=None if connections is None else max(1, connections // num_loaders),
        max_bytes_per_s=None if rate is None else max(1, rate // num_loaders),
    )


def limited(options: Staging | None, job: Job, num_workers: int = 0) -> Job:
    """The job with as many splits open at once as their whole files fit into the staging budget.
    Warns if these are fewer than `shuffle.interleave`. In mode `auto` ranges are staged instead.

    Args:
        options: The staging options; None if no file is staged.
        job: The job.
        num_workers: How many DataLoader workers share the cache; 0 is a process without a
            DataLoader.
    """
    sizes = _staged_sizes(options, job) if options and options.mode == WHOLE else []
    if options is None or not sizes or (num_workers and options.directory is None):
        return job
    budget_bytes = _budget_bytes(options, job)
    largest = list(accumulate(sorted((size for _, size in sizes), reverse=True), initial=0))
    num_open = job.num_open
    while num_open > 1:
        num_files = _num_files(job, num_open, num_workers)
        if largest[min(num_files, len(sizes))] <= budget_bytes:
            break
        num_open -= 1
    if num_open < job.num_open:
        _LOG.warning(
            "shuffle.interleave: %d instead of %d splits open at once, since the files of more do "
            "not fit into staging.budget_bytes: raise the budget, or write smaller files",
            *(num_open, job.num_open),
        )
    return replace(job, most_open=num_open)


def share_of(options: Staging, job: Job, num_workers: int) -> Staging:
    """The options of one of the DataLoader workers that share a cache.

    A DataLoader asks its workers in turn, so a worker that waits for space that another one pins
    would wait forever. Hence everything that all of them may pin has to fit.

    Raises:
        BudgetError: It does not fit, in mode `whole`.
    """
    if options.directory is None:
        return options
    budget_bytes = _budget_bytes(options, job)
    sizes = _staged_sizes(options, job)
    num_files = _num_files(job, job.num_open, num_workers)
    options = _fitting(options, sizes, budget_bytes, num_files)
    if options.mode == RANGES:
        return replace(
            options,
            ahead_bytes=max(1, min(budget_bytes // (2 * num_workers), options.num_ahead_bytes)),
        )
    room_bytes = budget_bytes // num_workers - (num_files // num_workers - 1) * max(
        (size for _, size in sizes), default=0
    )
    return replace(options, ahead_bytes=max(1, min(room_bytes, options.num_ahead_bytes)))


def decoded_room(options: Staging, job: Job, num_workers: int = 0) -> int:
    """How many bytes of the budget decoded columns may take that one worker has open at once: its
    part of what the files that all of them may pin leave. Of files that are staged by ranges, or
    listed later, the sizes are unknown; half of the budget is for them.

    Args:
        options: The staging options.
        job: The job.
        num_workers: As of `limited`.
    """
    budget_bytes, num_sharing = _budget_bytes(options, job), max(1, num_workers)
    sizes = sorted((size for _, size in _staged_sizes(options, job)), reverse=True)
    if options.directory is None:
        num_workers, num_sharing = 0, 1
    if options.mode == RANGES or not job.files:
        return budget_bytes // 2 // num_sharing
    return (budget_bytes - sum(sizes[: _num_files(job, job.num_open, num_workers)])) // num_sharing


def _staged_sizes(options: Staging, job: Job) -> list[tuple[str, int]]:
    """The URLs and the sizes of the files that are staged."""
    found = list[tuple[str, int]]()
    for files in job.files.files.parts:
        urls = files.columns.get("url")
        # A root has the files' scheme. To ask for that of each URL takes as long as to list them.
        is_remote = urls is not None and pc.any(pc.match_substring(urls, "://")).as_py()
        if is_remote or options.stages(files.root):
            sizes = zip(files.urls, files.values("size_bytes").tolist(), strict=True)
            found += [(url, size) for url, size in sizes if options.stages(url)]
    return found


def _num_files(job: Job, num_open: int, num_workers: int) -> int:
    """How many files are pinned at once if each worker has `num_open` splits open. A worker of a
    DataLoader, which has to wait for others, also pins the one that it stages next.
    """
    num_files = num_open * job.most_parts
    return (num_files + 1) * num_workers if num_workers else num_files
