"""Extracts a range of days in order, one commit per day.

Only days that the table lacks, or that were made from another spec or input, are extracted. The
decision is separate from the work: `plan_days` is a pure function of the days, of the commits that
made the table's partitions, and of the current input.
"""

import enum
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date, timedelta
from typing import Any

from featstore.base.errors import EmptyInputError, InputError
from featstore.base.redaction import redact
from featstore.base.telemetry import span
from featstore.extraction.event_logs import EventLogs
from featstore.extraction.group_job import GroupJob, slots_to_add
from featstore.extraction.job import ExtractJob, ExtractReport, check_events, extract_files
from featstore.extraction.replaced import Holding, KnownHoldings
from featstore.extraction.units.extractor import Extractor
from featstore.extraction.units.part import is_made_by
from featstore.extraction.units.raw import input_digest, list_input
from featstore.extraction.units.unit import Progress, Runner, ignore_progress
from featstore.spec.lint import check_meanings
from featstore.spec.model import Spec
from featstore.table.delta import history, with_origins
from featstore.table.groups import GroupOrigins
from featstore.table.layout import partition_path
from featstore.table.metadata import GroupOrigin
from featstore.table.open import OpenedTables, open_existing, open_for_writing
from featstore.table.snapshot import DataFile, Snapshot, files_digest

DAY, HOUR = "dt", "hour"
_ENDS = re.compile(r"(?P<first>\d{4}-\d\d-\d\d|\d{8})(\.\.(?P<last>\d{4}-\d\d-\d\d|\d{8}))?")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_MAX_DAYS = 10_000  # 27 years: a mistyped year fails here rather than list thousands of paths


class Reason(enum.StrEnum):
    """Why a day is extracted or not."""

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
class Day:
    """One day, or one hour of a day: its partition and the URL of its raw files."""

    partition: Mapping[str, str]
    input_url: str = field(repr=False)

    def __str__(self) -> str:
        return partition_path(self.partition)


@dataclass(frozen=True, kw_only=True)
class Held:
    """The table's current data of a day, and from what it was made.

    Attributes:
        version: The commit that made it; None if no commit in the log tells, nor what follows.
        spec_hash: The hash of its spec. Where slot groups beside the files, or folded into them,
            add what the spec to extract with has besides, it is the hash of that spec.
        input_digest: The digest of its raw files.
        events: As of `CommitMetadata`.
        files: The data files.
    """

    holding: Holding
    version: int | None = None
    spec_hash: str = ""
    input_digest: str | None = None
    events: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    files: Sequence[DataFile] = ()


@dataclass(frozen=True, kw_only=True)
class DayInput:
    """The raw files of a day: the digest of their listing, and their number."""

    digest: str
    num_files: int


@dataclass(frozen=True, kw_only=True)
class DayReport:
    """The decision about one day, and what came of it.

    Attributes:
        held: What the table held of the day; None for nothing.
        num_raw_files: The raw files that the day has now.
        version: The commit that made what the table held, None if unknown.
        slots: In a dry run, those that a slot group would give the day.
        report: The extraction; None if nothing was extracted.
    """

    day: Day
    reason: Reason
    held: Holding | None = None
    num_raw_files: int = 0
    version: int | None = None
    slots: tuple[str, ...] = ()
    report: ExtractReport | None = None

    def __str__(self) -> str:
        version_text = "" if self.version is None else f" (version {self.version})"
        decided = f"{self.day}: {self.reason}{version_text}"
        if self.slots:
            return f"{decided}, slots to be added: {', '.join(self.slots)}"
        if self.report is None:
            return f"{decided}{self._held_text}"
        first, *rest = str(self.report).splitlines()
        return "\n".join([f"{decided}: {first}", *(f"  {line}" for line in rest)])

    @property
    def _held_text(self) -> str:
        """What the table holds, where that is not what the raw files make; else empty."""
        if self.held is None or self.reason is Reason.UP_TO_DATE:
            return ""
        if self.reason is Reason.NO_INPUT:
            return f", what the table holds is kept: {self.held.num_rows:,} rows"
        known = self.held.num_raw_files
        before = "" if known is None else f" of {known:,} raw files"
        return (
            f", {self.held.num_rows:,} rows{before} to be replaced by those of "
            f"{self.num_raw_files:,} raw files"
        )

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON types."""
        return {
            "partition": dict(self.day.partition),
            "reason": str(self.reason),
            "version": self.version,
            "held": None if self.held is None else asdict(self.held),
            "num_raw_files": self.num_raw_files,
            "slots": list(self.slots),
            "report": None if self.report is None else self.report.as_dict(),
        }


@dataclass(frozen=True, kw_only=True)
class DaysReport:
    """The results of all days in order. With `dry_run`, what would be done."""

    table_url: str = field(repr=False)
    days: tuple[DayReport, ...]
    dry_run: bool = False

    @property
    def extracted(self) -> list[ExtractReport]:
        """The reports of the days that were extracted."""
        return [day.report for day in self.days if day.report is not None]

    @property
    def num_extracted(self) -> int:
        return sum(report.committed for report in self.extracted)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON types."""
        return {
            "table": redact(self.table_url),
            "dry_run": self.dry_run,
            "num_extracted": self.num_extracted,
            "days": [day.as_dict() for day in self.days],
        }

    def __str__(self) -> str:
        num_wanted = sum(day.reason.extracts for day in self.days)
        summary = f"{num_wanted} to extract" if self.dry_run else f"{self.num_extracted} extracted"
        return "\n".join(
            [*map(str, self.days), f"{redact(self.table_url)}: {len(self.days)} in all, {summary}"]
        )


def parse_days(text: str) -> tuple[str, ...]:
    """Parses `2026-11-01..2026-11-07` into its days, both ends included, or a single day.

    Days are written in the same form as the ends: with dashes, or as `20261101`.

    Raises:
        InputError: The text is not a range of days, is reversed, or is too long.
    """
    ends = _ENDS.fullmatch(text)
    if ends is None:
        raise InputError(
            f"days: expected FIRST..LAST, such as 2026-11-01..2026-11-07, or a single day, found "
            f"{text!r}"
        )
    first, last = (_date(end, text) for end in (ends["first"], ends["last"] or ends["first"]))
    if ends["last"] and len(ends["first"]) != len(ends["last"]):
        raise InputError(f"days: expected both ends written alike, found {text!r}")
    if not timedelta(0) <= last - first < timedelta(_MAX_DAYS):
        raise InputError(
            f"days: expected the first day before the last, at most {_MAX_DAYS:,} in all, found "
            f"{text!r}"
        )
    form = "%Y-%m-%d" if "-" in ends["first"] else "%Y%m%d"
    return tuple((first + timedelta(n)).strftime(form) for n in range((last - first).days + 1))


def expand(days: str, input_url: str, partition: Mapping[str, str]) -> tuple[Day, ...]:
    """Returns a `Day` for each day, or for each hour (`00` to `23`) if the input has `{hour}`.

    Args:
        days: As for `parse_days`.
        input_url: A URL with the placeholder `{dt}`, and optionally `{hour}`.
        partition: Further keys that hold for all days; they follow `dt` and `hour`.

    Raises:
        InputError: The input has no `{dt}` or an unknown placeholder, or `partition` gives a key
            that is taken from the days.
    """
    places = _PLACEHOLDER.findall(input_url)
    known = [key for key in (DAY, HOUR) if key in places]
    if DAY not in known or set(places) != set(known):
        raise InputError(
            f"days: expected {{dt}} in the input, and at most {{hour}} besides, found "
            f"{redact(input_url)}"
        )
    if given := set(known) & set(partition):
        raise InputError(
            f"days: partition key {min(given)!r} is given as {partition[min(given)]!r} and is also "
            f"taken from the days; remove one of them"
        )
    hours = [{HOUR: f"{hour:02d}"} for hour in range(24)] if HOUR in known else [{}]
    values = [{DAY: day} | hour for day in parse_days(days) for hour in hours]
    return tuple(
        Day(partition={**at, **partition}, input_url=_filled(input_url, at)) for at in values
    )


def plan_days(
    days: Sequence[Day],
    held: Sequence[Held | None],
    inputs: Sequence[DayInput | None],
    spec_hash: str,
) -> tuple[DayReport, ...]:
    """Decides for each day whether to extract it. Pure.

    Args:
        held: For each day the data that the table holds; None for none.
        inputs: The input of each day; None if it has none.
        spec_hash: Hash of the spec to extract with.
    """
    return tuple(_plan_day(*known, spec_hash) for known in zip(days, held, inputs, strict=True))


def find_held(days: Sequence[Day], table: Snapshot | None, spec: Spec) -> list[Held | None]:
    """Finds, for each day, what the table holds and which commit made it.

    A commit is matched if it wrote exactly the files of the day. Days that one commit wrote
    together have no known provenance, because its input digest covers all of them.

    Args:
        days: The days.
        table: The table with its slot groups, None if there is none.
        spec: The spec to extract with.
    """
    if table is None:
        return [None] * len(days)
    every = history(table.url)
    commits = {made.data_digest: (commit.version, made) for commit, made in with_origins(every)}
    holdings, groups = KnownHoldings(every), GroupOrigins(table)

    @functools.cache  # most days were made alike, and a large spec takes time to compare
    def hash_of(made_by: str, beside: tuple[GroupOrigin, ...]) -> str:
        return spec.hash if is_made_by(spec, made_by, beside) else made_by

    def held(day: Day) -> Held | None:
        files = table.in_partitions([day.partition])
        if not files:
            return None
        holding = holdings.of(day.partition, files)
        if (digest := files_digest(files)) not in commits:
            return Held(holding=holding)
        version, made = commits[digest]
        return Held(
            holding=holding,
            version=version,
            spec_hash=hash_of(made.spec_hash, (*made.folded, *groups.of([day.partition]))),
            input_digest=made.input_digest,
            events=made.events,
            files=files,
        )

    return list(map(held, days))


def find_inputs(
    days: Sequence[Day], columns: Sequence[str], opened: OpenedTables
) -> list[DayInput | None]:
    """Finds the current raw files of each day; None for a day without files.

    Files are listed, not opened.

    Args:
        days: The days.
        columns: The raw columns that are read.
        opened: As of `open_input`.
    """
    found: list[DayInput | None] = []
    for day in days:
        # Days lie beside each other, so what is above one is above all.
        files = list_input(day.input_url, looks_above=not found, opened=opened)
        digest = input_digest(files, columns)
        found.append(DayInput(digest=digest, num_files=len(files)) if files else None)
    return found


def check_input(planned: Sequence[DayReport]) -> None:
    """Raises InputError that names the days without input."""
    without = [plan.day for plan in planned if plan.reason is Reason.NO_INPUT]
    if without:
        shown = ", ".join(f"{day} (at {redact(day.input_url)})" for day in without[:3])
        more = f" and {len(without) - 3} more" if len(without) > 3 else ""
        raise InputError(
            f"no raw files for {shown}{more}; nothing was extracted: add them, or leave such days "
            f"out (--allow-missing, allow_missing=True)"
        )


def extract_days(
    job: ExtractJob,
    days: str,
    *,
    allow_missing: bool = False,
    dry_run: bool = False,
    runner: Runner | None = None,
    progress: Progress = ignore_progress,
    extract_group: Callable[[ExtractJob], ExtractReport] | None = None,
    opened: OpenedTables | None = None,
) -> DaysReport:
    """Extracts the days that need it, in order, one commit per day.

    The first failure ends the run; days committed before it stay. Days that are partitions of one
    table are those of one snapshot of it.

    Args:
        job: The job for all days. Its `input_url` holds `{dt}`, and optionally `{hour}`; the run id
            of a day is made of the job's run id and the day.
        days: `FIRST..LAST`, both included, or a single day.
        allow_missing: Leave out days without input, rather than fail.
        dry_run: Only report what would be done.
        extract_group: Extracts a slot group of one day. Days then need it that lack slots of the
            spec, whatever became of their input.
        opened: As of `open_input`.

    Raises:
        ConfigError: As of `extract_files`.
        InputError: Some days have no input and `allow_missing` is false, or a slot group is to be
            added to some that the table lacks; raised before any work.
    """
    opened = OpenedTables() if opened is None else opened
    planned = _plan(job, days, opened, has_events=extract_group is None)
    if extract_group is not None:
        planned = _plan_group(job, planned)
    if dry_run:
        return DaysReport(table_url=job.table_url, days=planned, dry_run=True)
    if not allow_missing:
        check_input(planned)
    done: list[DayReport] = []
    for plan in planned:
        try:
            if plan.reason.extracts:
                extract = extract_group or functools.partial(
                    extract_files, runner=runner, progress=progress, opened=opened
                )
                plan = _extract_day(job, plan, allow_missing, extract)
            done.append(plan)
        except BaseException as error:
            error.add_note(_progress_note(plan, done))
            raise
    return DaysReport(table_url=job.table_url, days=tuple(done))


def with_slots(planned: DaysReport, group: GroupJob) -> DaysReport:
    """A dry run, with the slots that the slot group would give to each day; as `slots_to_add`."""
    base = open_existing(group.job.table_url, "add a slot group")
    days = (
        replace(each, slots=slots_to_add(group, base, each.day.partition))
        if each.reason.extracts
        else each
        for each in planned.days
    )
    return replace(planned, days=tuple(days))


def _plan(
    job: ExtractJob, days: str, opened: OpenedTables, *, has_events: bool
) -> tuple[DayReport, ...]:
    if has_events:  # Those of a slot group are checked with its files.
        check_events(job)
    if job.partition_from_path:
        raise InputError(
            "days: partition_from_path and days cannot be combined; put {dt} in place of the "
            "directory's value"
        )
    if job.no_partition:
        raise InputError(
            f"days: no_partition and days cannot be combined, since each day is a partition "
            f"({DAY}); remove one of them"
        )
    wanted_days = expand(days, job.input_url, job.partition)
    places = set(_PLACEHOLDER.findall(job.input_url))
    if job.rejects is not None and set(_PLACEHOLDER.findall(job.rejects)) != places:
        raise InputError(
            f"rejects: expected a file for each day, with the placeholders of the input "
            f"({', '.join(f'{{{place}}}' for place in sorted(places))}), found "
            f"{redact(job.rejects)}"
        )
    extractor = Extractor(job.spec)
    spec = extractor.spec
    table = open_for_writing(job.table_url, "extract")
    if table is not None:
        check_meanings(job.spec, table.meanings, redact(job.table_url))
    held = find_held(wanted_days, table, spec)
    inputs = find_inputs(wanted_days, extractor.input_columns, opened)
    if has_events and job.spec.histories:
        inputs = _with_events(held, inputs, EventLogs(job.spec, job.events, opened))
    return plan_days(wanted_days, held, inputs, spec.hash)


def _with_events(
    held: Sequence[Held | None], inputs: Sequence[DayInput | None], logs: EventLogs
) -> list[DayInput | None]:
    """The inputs, whose digests tell the logs too: of a day whose rows would see the events that
    they see, as they were.
    """
    none = Held(holding=Holding(num_raw_files=None, num_files=0, num_rows=0))
    return [
        found
        and replace(
            found,
            digest=logs.digest(found.digest, made.input_digest or "", made.events, made.files),
        )
        for found, made in zip(inputs, (each or none for each in held), strict=True)
    ]


def _plan_group(job: ExtractJob, planned: Sequence[DayReport]) -> tuple[DayReport, ...]:
    """Of days that hold the slots nothing is done; none is replaced."""
    if missing := [str(plan.day) for plan in planned if plan.reason is Reason.MISSING]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise InputError(
            f"{redact(job.table_url)} has no {', '.join(missing[:3])}{more}; extract these days "
            f"first, which then have all slots of the spec"
        )
    holding = {Reason.STALE_INPUT: Reason.UP_TO_DATE}
    return tuple(
        replace(plan, reason=holding.get(plan.reason, plan.reason), held=None) for plan in planned
    )


def _extract_day(
    job: ExtractJob,
    plan: DayReport,
    allow_missing: bool,
    extract: Callable[[ExtractJob], ExtractReport],
) -> DayReport:
    day = plan.day
    rejects = job.rejects
    of_day = replace(
        job,
        input_url=day.input_url,
        partition=day.partition,
        run_id=f"{job.run_id}/{day}",
        rejects=None if rejects is None else _filled(rejects, day.partition),
    )
    try:
        with span("extract.day", partition=str(day)):
            return replace(plan, report=extract(of_day))
    except EmptyInputError:
        if not allow_missing:
            raise
        return replace(plan, reason=Reason.NO_INPUT, version=None)


def _plan_day(day: Day, held: Held | None, found: DayInput | None, spec_hash: str) -> DayReport:
    holding = None if held is None else held.holding
    if found is None:
        return DayReport(day=day, reason=Reason.NO_INPUT, held=holding)
    plan = DayReport(day=day, reason=Reason.MISSING, held=holding, num_raw_files=found.num_files)
    if held is None:
        return plan
    if held.version is None:
        return replace(plan, reason=Reason.UNKNOWN)
    reasons = {
        (False, False): Reason.UP_TO_DATE,
        (True, False): Reason.STALE_SPEC,
        (False, True): Reason.STALE_INPUT,
        (True, True): Reason.STALE_BOTH,
    }
    stale = (held.spec_hash != spec_hash, held.input_digest != found.digest)
    return replace(plan, reason=reasons[stale], version=held.version)


def _progress_note(failed: DayReport, done: Sequence[DayReport]) -> str:
    committed = [str(day.day) for day in done if day.report is not None]
    kept_text = (
        f"{', '.join(committed)} {'stays' if len(committed) == 1 else 'stay'} committed"
        if committed
        else "this call extracted no day before it"
    )
    return (
        f"This happened in {failed.day} ({failed.reason}); {kept_text}. The same call resumes with "
        f"{failed.day}."
    )


def _filled(url: str, values: Mapping[str, str]) -> str:
    # Not `str.format`: a URL may have other braces.
    return _PLACEHOLDER.sub(lambda found: values[found[1]], url)


def _date(text: str, whole: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise InputError(f"days: {text} is not a valid day ({error}), in {whole!r}") from None
