"""Whether a loader stages files, and which part of the budget each DataLoader worker gets."""

from dataclasses import replace

from featstore.loader.run.job import Job
from featstore.redaction import redact
from featstore.staging.budget import require_fits
from featstore.staging.options import Staging


def staging_for(options: Staging | None, job: Job) -> Staging | None:
    """The staging options; None if no file is staged.

    Raises:
        BudgetError: The files that are open at once do not fit into the budget. Not checked if only
            ranges are staged, whose size is unknown before a footer is read.
    """
    options = options or Staging()
    sizes = _staged_sizes(options, job)
    if not sizes:
        return None
    if options.mode != "ranges":
        require_fits(sizes, options.num_budget_bytes, num_open=_num_open(job))
    return options


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
    sizes, num_open = _staged_sizes(options, job), _num_open(job)
    require_fits(sizes, options.num_budget_bytes, num_open=(num_open + 1) * num_workers)
    room_bytes = options.num_budget_bytes // num_workers - num_open * max(
        (size for _, size in sizes), default=0
    )
    return replace(options, ahead_bytes=max(1, min(room_bytes, options.ahead.max_bytes)))


def _staged_sizes(options: Staging, job: Job) -> list[tuple[str, int]]:
    files = [part for file, _ in job.files.values() for part in file.parts]
    return [(redact(part.url), part.size_bytes) for part in files if options.stages(part.url)]


def _num_open(job: Job) -> int:
    """How many files are open at once: each open split has a data file and those of its groups."""
    num_parts = max((1 + len(file.groups) for file, _ in job.files.values()), default=1)
    return (job.shuffle.interleave if job.shuffle else 1) * num_parts
