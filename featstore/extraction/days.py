"""Days in order, one commit each: only those that the table lacks, or that another spec or another
input made.

What is to be done is decided before any of it is done: `plan_days` is a pure function of the days,
of what made the table's partitions, and of what the input holds now.
"""

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta

from featstore.errors import EmptyInputError, InputError
from featstore.extraction.extractor import Extractor
from featstore.extraction.job import ExtractJob, ExtractReport, extract_files
from featstore.extraction.raw import input_digest
from featstore.extraction.unit import Progress, Runner, ignore_progress
from featstore.files.listings import list_files
from featstore.redaction import redact
from featstore.table.delta import Commit, history, makers, open_delta_or_none
from featstore.table.layout import partition_path
from featstore.table.snapshot import Snapshot, files_digest

DAY, HOUR = "dt", "hour"
_ENDS = re.compile(r"(?P<first>\d{4}-\d\d-\d\d|\d{8})(\.\.(?P<last>\d{4}-\d\d-\d\d|\d{8}))?")
_PLACE = re.compile(r"\{(\w+)\}")
_MAX_DAYS = 10_000


class Reason(enum.StrEnum):
    """Why a day is extracted, or is not."""

    MISSING = "missing"
    STALE_SPEC = "stale spec"
    STALE_INPUT = "stale input"
    STALE_BOTH = "stale spec and input"
    UNKNOWN = "of unknown origin"
    UP_TO_DATE = "up to date"
    NO_INPUT = "no input"

    @property
    def extracts(self) -> bool:
        return self not in (Reason.UP_TO_DATE, Reason.NO_INPUT)


@dataclass(frozen=True, kw_only=True)
class Days:
    """Which days (`FIRST..LAST`), whether those without input are left out, and whether to do
    anything at all.
    """

    days: str
    allow_missing: bool = False
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What made a partition's files: the commit's version, the spec's hash and the input's
    digest.
    """

    version: int
    spec_hash: str
    input_digest: str | None


@dataclass(frozen=True, kw_only=True)
class Day:
    """One day, or one hour of it: the partition it is, and the raw files it is made of."""

    partition: Mapping[str, str]
    input_url: str = field(repr=False)

    def __str__(self) -> str:
        return partition_path(self.partition)


@dataclass(frozen=True, kw_only=True)
class Held:
    """What the table holds of a day. `origin` is None where no commit in the log says what made the
    files.
    """

    origin: Provenance | None


@dataclass(frozen=True, kw_only=True)
class Action:
    """What is to be done with a day, and why. `version` is the commit that made what the table
    holds, where it is known.
    """

    day: Day
    reason: Reason
    held: bool = False
    version: int | None = None

    def __str__(self) -> str:
        made = "" if self.version is None else f" (version {self.version})"
        kept = (
            ", what the table holds is kept" if self.held and self.reason is Reason.NO_INPUT else ""
        )
        return f"{self.day}: {self.reason}{made}{kept}"


@dataclass(frozen=True, kw_only=True)
class DayReport:
    """What was done with a day; `report` is None where nothing was."""

    action: Action
    report: ExtractReport | None = None

    def __str__(self) -> str:
        if self.report is None:
            return str(self.action)
        first, *rest = str(self.report).splitlines()
        return "\n".join([f"{self.action}: {first}", *(f"  {line}" for line in rest)])


@dataclass(frozen=True, kw_only=True)
class DaysReport:
    """What was done, or with `dry_run` would be, with each day in order."""

    table_url: str = field(repr=False)
    days: tuple[DayReport, ...]
    dry_run: bool = False

    @property
    def num_extracted(self) -> int:
        return sum(day.report is not None and day.report.committed for day in self.days)

    def __str__(self) -> str:
        wanted = sum(day.action.reason.extracts for day in self.days)
        did = f"{wanted} to extract" if self.dry_run else f"{self.num_extracted} extracted"
        return "\n".join(
            [*map(str, self.days), f"{redact(self.table_url)}: {len(self.days)} in all, {did}"]
        )


def parse_days(text: str) -> tuple[str, ...]:
    """`2026-11-01..2026-11-07` as its days, both ends included; a single day as itself. Written as
    the ends are: with dashes, or as `20261101`. InputError where that cannot be.
    """
    found = _ENDS.fullmatch(text)
    if found is None:
        raise InputError(
            f"days: expected FIRST..LAST, such as 2026-11-01..2026-11-07, or a single day, found "
            f"{text!r}"
        )
    first, last = (_date(end, text) for end in (found["first"], found["last"] or found["first"]))
    if found["last"] and len(found["first"]) != len(found["last"]):
        raise InputError(f"days: expected both ends written alike, found {text!r}")
    if not timedelta(0) <= last - first < timedelta(_MAX_DAYS):
        raise InputError(
            f"days: expected the first day before the last, at most {_MAX_DAYS:,} in all, found "
            f"{text!r}"
        )
    form = "%Y-%m-%d" if "-" in found["first"] else "%Y%m%d"
    return tuple((first + timedelta(n)).strftime(form) for n in range((last - first).days + 1))


def expand(days: str, input_url: str, partition: Mapping[str, str]) -> tuple[Day, ...]:
    """A `Day` for each day of `days`, and with `{hour}` in the input for each hour (`00` to `23`)
    of it.

    Partitions have the keys `dt`, then `hour`, then those of `partition`, which hold for all.
    InputError where the input has no `{dt}`, or another place in braces, or where `partition` gives
    a key that the days do.
    """
    places = _PLACE.findall(input_url)
    known = [key for key in (DAY, HOUR) if key in places]
    if DAY not in known or set(places) != set(known):
        raise InputError(
            f"days: expected {{dt}} in the input, and with it {{hour}} at most, found "
            f"{redact(input_url)}"
        )
    if given := set(known) & set(partition):
        raise InputError(
            f"days: partition key {min(given)!r} is given as {partition[min(given)]!r}, and by the "
            f"days; choose one"
        )
    hours = [{HOUR: f"{hour:02d}"} for hour in range(24)] if HOUR in known else [{}]
    values = [{DAY: day} | hour for day in parse_days(days) for hour in hours]
    return tuple(
        Day(partition={**at, **partition}, input_url=_filled(input_url, at)) for at in values
    )


def plan_days(
    days: Sequence[Day], held: Sequence[Held | None], digests: Sequence[str | None], spec_hash: str
) -> tuple[Action, ...]:
    """What is to be done with each day, given what the table holds of it and the digest of its
    input; None is nothing.
    """
    return tuple(_plan_day(*known, spec_hash) for known in zip(days, held, digests, strict=True))


def find_held(
    days: Sequence[Day], base: Snapshot | None, commits: Sequence[Commit]
) -> list[Held | None]:
    """What the table holds of each day: the commit that made exactly a day's files says what they
    were made of.

    Days that were written together with others by one commit are of unknown origin: it tells the
    input of all of them.
    """
    origins = {
        commit.metadata.data_digest: Provenance(
            version=commit.version,
            spec_hash=commit.metadata.spec_hash,
            input_digest=commit.metadata.input_digest,
        )
        for commit in makers(commits)
        if commit.metadata is not None
    }
    files = [() if base is None else base.in_partitions([day.partition]) for day in days]
    return [Held(origin=origins.get(files_digest(found))) if found else None for found in files]


def find_digests(days: Sequence[Day]) -> list[str | None]:
    """The digest of each day's raw files as they are now, None where there are none; no file is
    opened.
    """
    found = [list_files(day.input_url) for day in days]
    return [input_digest(files) if files else None for files in found]


def check_input(actions: Sequence[Action]) -> None:
    """InputError names the days that have no input."""
    without = [action.day for action in actions if action.reason is Reason.NO_INPUT]
    if without:
        shown = ", ".join(f"{day} (at {redact(day.input_url)})" for day in without[:3])
        more = f" and {len(without) - 3} more" if len(without) > 3 else ""
        raise InputError(
            f"no raw files for {shown}{more}; nothing was extracted: add them, or leave such days "
            f"out (allow_missing)"
        )


def extract_days(
    job: ExtractJob,
    days: Days,
    *,
    runner: Runner | None = None,
    progress: Progress = ignore_progress,
) -> DaysReport:
    """Extracts, in order, the days that are to be, one commit each. The first that fails ends it;
    those before it stay.

    `job.input_url` has `{dt}` in it, and may have `{hour}`; each day's run id is that of `job` and
    the day. Without `allow_missing` InputError names the days that have no input, before any work.
    """
    actions = _plan(job, days)
    if not (days.allow_missing or days.dry_run):
        check_input(actions)
    done: list[DayReport] = []
    for action in actions:
        try:
            done.append(_extract_day(job, action, days, runner, progress))
        except BaseException as error:
            error.add_note(_how_far(action, done))
            raise
    return DaysReport(table_url=job.table_url, days=tuple(done), dry_run=days.dry_run)


def _plan(job: ExtractJob, days: Days) -> tuple[Action, ...]:
    if job.partition_from_path:
        raise InputError(
            "days: partition_from_path and days do not go together; put {dt} in place of the "
            "directory's value"
        )
    wanted = expand(days.days, job.input_url, job.partition)
    base = open_delta_or_none(job.table_url)
    held = find_held(wanted, base, history(job.table_url) if base is not None else [])
    return plan_days(wanted, held, find_digests(wanted), Extractor(job.spec).spec.hash)


def _extract_day(
    job: ExtractJob, action: Action, days: Days, runner: Runner | None, progress: Progress
) -> DayReport:
    if days.dry_run or not action.reason.extracts:
        return DayReport(action=action)
    day = action.day
    of_day = replace(
        job, input_url=day.input_url, partition=day.partition, run_id=f"{job.run_id}/{day}"
    )
    try:
        return DayReport(
            action=action, report=extract_files(of_day, runner=runner, progress=progress)
        )
    except EmptyInputError:
        if not days.allow_missing:
            raise
        return DayReport(action=replace(action, reason=Reason.NO_INPUT, version=None))


def _plan_day(day: Day, held: Held | None, digest: str | None, spec_hash: str) -> Action:
    if digest is None:
        return Action(day=day, reason=Reason.NO_INPUT, held=held is not None)
    if held is None:
        return Action(day=day, reason=Reason.MISSING)
    if held.origin is None:
        return Action(day=day, reason=Reason.UNKNOWN, held=True)
    stale = (held.origin.spec_hash != spec_hash, held.origin.input_digest != digest)
    reasons = {
        (False, False): Reason.UP_TO_DATE,
        (True, False): Reason.STALE_SPEC,
        (False, True): Reason.STALE_INPUT,
        (True, True): Reason.STALE_BOTH,
    }
    return Action(day=day, reason=reasons[stale], held=True, version=held.origin.version)


def _how_far(failed: Action, done: Sequence[DayReport]) -> str:
    committed = [str(day.action.day) for day in done if day.report is not None]
    stay = (
        f"{', '.join(committed)} {'stays' if len(committed) == 1 else 'stay'} committed"
        if committed
        else "none before it was extracted"
    )
    return (
        f"This is of {failed.day} ({failed.reason}); {stay}. The same call again goes on with "
        f"{failed.day}."
    )


def _filled(url: str, values: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda found: values[found[1]], url)


def _date(text: str, whole: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise InputError(f"days: {text} is no day ({error}), in {whole!r}") from None
