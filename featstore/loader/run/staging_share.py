"""Whether a loader stages files, how many splits can be open at once, and which part of the budget
each DataLoader worker gets.
"""

import logging
from dataclasses import replace
from itertools import accumulate

from featstore.loader.run.job import Job
from featstore.redaction import redact
from featstore.staging.budget import require_fits
from featstore.staging.options import Staging

_LOG = logging.getLogger(__name__)


def staging_for(options: Staging | None, job: Job) -> Staging | None:
    """The staging options; None if no file is staged, and no decoded columns are kept.

    Raises:
        BudgetError: The files of one split do not fit into the budget. Not checked if only ranges
            are staged, whose size is unknown before a footer is read.
    """
    options = options or Staging()
    sizes = _staged_sizes(options, job)
    if not sizes:
        return options if options.decoded else None
    if options.mode != "ranges":
        require_fits(sizes, options.num_budget_bytes, num_open=_num_parts(job))
    return options


def limited(options: Staging | None, job: Job, num_workers: int = 0) -> Job:
    """The job with as many splits open at once as their files fit into the staging budget. Warns if
    these are fewer than `shuffle.interleave`.

    Args:
        options: The staging options; None if no file is staged.
        job: The job.
        num_workers: How many DataLoader workers share the cache; 0 is a process without a
            DataLoader.
    """
    sizes = [] if options is None or options.mode == "ranges" else _staged_sizes(options, job)
    if options is None or not sizes or (num_workers and options.directory is None):
        return job
    largest = list(accumulate(sorted((size for _, size in sizes), reverse=True), initial=0))
    num_open = job.num_open
    while num_open > 1:
        num_files = _num_files(job, num_open, num_workers)
        if largest[min(num_files, len(sizes))] <= options.num_budget_bytes:
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
        BudgetError: It does not fit.
    """
    if options.directory is None:
        return options
    if options.mode == "ranges":
        return replace(
            options,
            ahead_bytes=max(
                1, min(options.num_budget_bytes // (2 * num_workers), options.ahead.max_bytes)
            ),
        )
    sizes = _staged_sizes(options, job)
    num_files = _num_files(job, job.num_open, num_workers)
    require_fits(sizes, options.num_budget_bytes, num_open=num_files)
    room_bytes = options.num_budget_bytes // num_workers - (num_files // num_workers - 1) * max(
        (size for _, size in sizes), default=0
    )
    return replace(options, ahead_bytes=max(1, min(room_bytes, options.ahead.max_bytes)))


def decoded_room(options: Staging, job: Job, num_workers: int = 0) -> int:
    """How many bytes of the budget decoded columns may take that one worker has open at once: its
    part of what the files that all of them may pin leave. Of files that are staged by ranges, or
    listed later, the sizes are unknown; half of the budget is for them.

    Args:
        options: The staging options.
        job: The job.
        num_workers: As of `limited`.
    """
    budget_bytes, num_sharing = options.num_budget_bytes, max(1, num_workers)
    sizes = sorted((size for _, size in _staged_sizes(options, job)), reverse=True)
    if options.directory is None:
        num_workers, num_sharing = 0, 1
    if options.mode == "ranges" or not job.files:
        return budget_bytes // 2 // num_sharing
    return (budget_bytes - sum(sizes[: _num_files(job, job.num_open, num_workers)])) // num_sharing


def _staged_sizes(options: Staging, job: Job) -> list[tuple[str, int]]:
    files = [part for file, _ in job.files.values() for part in file.parts]
    return [(redact(part.url), part.size_bytes) for part in files if options.stages(part.url)]


def _num_parts(job: Job) -> int:
    """How many files a split has: a data file and those of its slot groups."""
    return max((1 + len(file.groups) for file, _ in job.files.values()), default=1)


def _num_files(job: Job, num_open: int, num_workers: int) -> int:
    """How many files are pinned at once if each worker has `num_open` splits open. A worker of a
    DataLoader, which has to wait for others, also pins the one that it stages next.
    """
    num_files = num_open * _num_parts(job)
    return (num_files + 1) * num_workers if num_workers else num_files
