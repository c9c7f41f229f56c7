"""Extracts slot groups from raw rows: slots that a table lacks, or new labels.

A group's files lie beside the table's base files and have the same rows. Rows are matched in one of
two ways. *By input*: the raw files are those that made the base files, as proven by the digest in
the base's commit, so equal units have equal rows. *By key*: a kept column of the base identifies
each row. A group is first committed to its own table; one commit to the base then names it
(`table.groups`).
"""

import hashlib
import itertools
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from featstore.base.closing import noted_on_failure
from featstore.base.errors import CommitConflictError, ConfigError, EmptyInputError, InputError
from featstore.base.redaction import redact
from featstore.base.schema import SlotSchema
from featstore.extraction.by_key import KeyRunner, keyed_partitions, run_by_key
from featstore.extraction.event_logs import with_events
from featstore.extraction.job import (
    CommitFunction,
    ExtractionRun,
    ExtractJob,
    ExtractReport,
    check_apart,
    check_raw_schemas,
    commit_of_input,
    digest_of,
    event_files,
    marks_of,
    raw_files_of,
    report_of_commit,
    require_logs,
    runs_here,
    write_and_commit,
)
from featstore.extraction.local import LocalRunner
from featstore.extraction.units.extractor import Extractor
from featstore.extraction.units.part import GroupTask, Part, Target, labels_part, slots_part
from featstore.extraction.units.raw import RawFile, Unit, files_part, plan_units
from featstore.extraction.units.unit import Progress, Runner, UnitReport, ignore_progress
from featstore.spec.lint import check_meanings
from featstore.spec.meaning import short_meanings
from featstore.spec.model import Spec
from featstore.statistics.stale_groups import holds
from featstore.table import delta
from featstore.table.groups import (
    groups_commit,
    matches_base,
    merge_group_schema,
    open_group_for_writing,
    publish_group,
)
from featstore.table.layout import (
    LABELS,
    group_url,
    is_whole,
    new_tag,
    partition_path,
    unit_and_part,
)
from featstore.table.metadata import KEY, CommitMetadata, require_input_order, to_json
from featstore.table.open import open_existing
from featstore.table.parquet_dir import each_footer
from featstore.table.snapshot import DataFile, Snapshot, by_partition, files_digest

# By the index of a unit, or of a base file if rows are matched by key.
Targets = Mapping[int, tuple[Target, ...]]


@dataclass(frozen=True, kw_only=True)
class GroupJob:
    """The extraction of a slot group.

    Attributes:
        job: The spec, the raw input and the base table.
        name: The name of the group.
        key: A kept column of the table whose values identify its rows; None to match rows by the
            raw files.
        labels: The group holds the spec's labels and weight, which replace the table's.

    Raises:
        InputError: The name is reserved, or `key` is not a kept column.
    """

    job: ExtractJob
    name: str
    key: str | None = None
    labels: bool = False

    def __post_init__(self) -> None:
        if self.name == LABELS and not self.labels:
            raise InputError(
                f"slot group {LABELS!r} is that of `featstore table relabel`; take another name"
            )
        if self.key is not None and self.key not in self.job.spec.keep:
            raise InputError(
                f"key {self.key!r}: expected a column that the spec and the table keep, found "
                f"keep: {list(self.job.spec.keep)}; name one that is different in every row"
            )


def extract_group(
    group: GroupJob,
    *,
    runner: Runner | None = None,
    run_keyed: KeyRunner = run_by_key,
    progress: Progress = ignore_progress,
    commit: CommitFunction = delta.commit,
    publish: delta.Publish | None = None,
) -> ExtractReport:
    """Extracts the group for the partitions of the input.

    Only the group's columns are computed and written; base files stay untouched. If an equal run
    was committed before, nothing is written; if it died before the base named its files, this run
    names them. An error leaves the table at the version it had.

    Args:
        runner: Runs the units of rows matched by input; by default in threads.
        run_keyed: Runs whole partitions, for rows matched by key.
        commit: Commits to the group's table; a parameter so that tests can inject faults.
        publish: Commits to the base; likewise.

    Raises:
        TableNotFoundError: There is no base table.
        InputError: The raw rows do not fit the spec or the base's rows.
        OperatorError: An operator failed.
        CommitConflictError: The base was replaced in the meantime.
    """
    started_s, job = time.monotonic(), group.job
    check_apart(job.input_url, job.table_url)
    expected = f"one to add slot group {group.name!r} to"
    base = open_existing(job.table_url, "add a slot group", expected)
    files = _raw_files(job, base, with_text=runs_here(runner))
    if not (with_rows := by_partition(file for file in files if any(file.row_groups))):
        raise EmptyInputError(f"{redact(job.input_url)} holds no rows; the table is left as it is")
    partitions = tuple(found[0].partition for found in with_rows.values())
    base_files = _base_files(base, partitions)
    part, schema = _part(group, base, base_files)
    check_raw_schemas(part.spec, files)
    logs = event_files(job, with_text=runs_here(runner))
    marks = marks_of(part.spec, logs)
    most = job.spec.output.rows_per_file
    task = GroupTask(
        spec=part.spec,
        table_url=group_url(job.table_url, group.name),
        run_id=job.run_id,
        tag=new_tag(job.run_id),
        part=part,
        targets={},
        bound_by="input" if group.key is None else f"key {group.key}",
        events={name: plan_units(of_log, most) for name, of_log in logs.items()},
    )
    run = ExtractionRun(
        task=task,
        schema=schema,
        base=open_group_for_writing(base, group.name),
        partitions=partitions,
        input_digest=with_events(_digest(files, group, part.spec), marks),
        started_s=started_s,
        logs=marks,
    )

    def run_units(targets: Targets, units: Sequence[Unit]) -> list[UnitReport]:
        bound = replace(task, targets=targets)
        if group.key is None:
            return _with_checked_rows(bound, (runner or LocalRunner())(bound, units, progress))
        # No check of row counts here: matching by key yields exactly the base's rows.
        bases = [base_file.file for base_file in base_files]
        found = run_keyed(bound, keyed_partitions(group.key, bases, units), progress)
        # Each partition has read the logs, and reported of their units under the same paths.
        return [*{report.path: report for report in found}.values()]

    listed = [file.listed for file in (*files, *itertools.chain(*logs.values()))]
    input_bytes = sum(file.size_bytes for file in listed)
    report = (
        # That of an equal run, if its files still match the current base files.
        report_of_commit(run, commit_of_input(run, run.base), input_bytes)
        if run.base is not None and matches_base(run.base, partitions, base)
        else None
    ) or _write(group, run, part, base_files, files, run_units, commit, input_bytes)
    return _publish(group, base, run, report, publish)


def slots_to_add(group: GroupJob, base: Snapshot, partition: Mapping[str, str]) -> tuple[str, ...]:
    """The slots that `extract_group` would give to a partition of the base. Reads its footers.

    Raises:
        ConfigError: A history needs a key, or its events are not named.
        InputError: The partition has all slots already, or one of them would have two meanings.
    """
    part, _ = _part(group, base, _base_files(base, [partition]))
    return tuple(node.name for node in group.job.spec.all_nodes if node.name in part.names)


def _raw_files(job: ExtractJob, base: Snapshot, *, with_text: bool) -> list[RawFile]:
    files = raw_files_of(job, base, with_text=with_text)
    keys = [key.name for key in base.schema.partition_keys]
    if list(files[0].partition) != keys:
        raise InputError(
            f"{redact(job.table_url)} is partitioned by {', '.join(keys) or 'nothing'}, the input "
            f"by {', '.join(files[0].partition) or 'nothing'}; say which partition the raw rows "
            "belong to"
        )
    return files


@dataclass(frozen=True, kw_only=True)
class BaseFile:
    """A base data file, the rows of each of its row groups, the names of its columns that are not
    filled with nulls, and the text of featstore in its footer.
    """

    file: DataFile
    row_groups: tuple[int, ...]
    names: frozenset[str]
    text: bytes | None = None


def _base_files(base: Snapshot, partitions: Sequence[Mapping[str, str]]) -> list[BaseFile]:
    for partition in partitions:
        if not base.in_partitions([partition]):
            name = partition_path(partition) or "the table"
            raise InputError(
                f"{redact(base.url)} has no {name}; extract its rows into the table first"
            )
    files = base.in_partitions(partitions)
    if outside := [file.path for file in files if is_whole(file.path)]:
        raise InputError(
            f"{redact(base.url)}: {redact(outside[0])} lies in another table, as the files of a "
            f"clone do: expected files of the table itself, beside which slot groups go; add the "
            f"group to the other table, or extract the partition into this one"
        )
    found = each_footer(
        [file.url for file in files],
        lambda footer: (
            footer.row_group_rows,
            frozenset(name for name in footer.file_schema.by_name if holds(footer, name)),
            footer.key_values.get(KEY.encode()),
        ),
    )
    return [
        BaseFile(file=file, row_groups=row_groups, names=names, text=text)
        for file, (row_groups, names, text) in zip(files, found, strict=True)
    ]


def _part(group: GroupJob, base: Snapshot, files: Sequence[BaseFile]) -> tuple[Part, SlotSchema]:
    """Returns what to extract, and its columns with the table's partition keys."""
    spec, keep = group.job.spec, [group.key] if group.key else []
    check_meanings(spec, base.meanings, redact(base.url))
    Extractor(spec)  # raises if any part of the spec is wrong, not only the group's
    existing = _existing(group, base, files)
    part = (
        labels_part(spec, keep)
        if group.labels
        else slots_part(spec, _missing_slots(spec, base, existing), keep)
    )
    times = frozenset(history.as_of for history in part.spec.histories)
    part = replace(part, names=part.names | times - existing)
    if group.key is None and part.spec.histories:
        raise ConfigError(
            f"histories: expected --key (key=) with the slot group {group.name!r}, to match rows "
            f"for {part.spec.histories[0].name!r}, found none; name a kept column that is "
            "different in every row"
        )
    none = f"the slot group {group.name!r} has no histories that the table lacks"
    require_logs(part.spec.histories, list(group.job.events), none)
    if not part.names:
        raise InputError(
            "the spec has no labels and no weight, so there is nothing to relabel; add labels"
            if group.labels
            else f"all slots of the spec are in {redact(base.url)} already; add slots to the spec, "
            f"or replace the partition"
        )
    stored = part.stored(Extractor(part.spec).schema)
    schema = replace(stored, partition_keys=base.schema.partition_keys)
    merge_group_schema(base.schema, delta.as_stored(schema), redact(base.url))
    return part, schema


def _existing(group: GroupJob, base: Snapshot, files: Sequence[BaseFile]) -> set[str]:
    """The columns that all base files have, with other groups' files beside them."""
    columns = {other.name: other.schema.column_names for other in base.groups}
    of_files = [
        set(file.names).union(
            *(columns[each.group] for each in file.file.groups if each.group != group.name)
        )
        for file in files
    ]
    return set.intersection(*of_files)


def _missing_slots(spec: Spec, base: Snapshot, existing: set[str]) -> set[str]:
    """The spec's slots that are not among the existing columns, those of histories too."""
    numbers = {slot.number for slot in base.schema if slot.name in existing}
    missing = {
        node.name
        for node in spec.nodes
        if node.store and node.name not in existing and node.slot not in numbers
    }
    histories = (each for each in spec.histories if not existing.issuperset(each.columns[:3]))
    return missing.union(*(history.slot_names for history in histories))


def _digest(files: Sequence[RawFile], group: GroupJob, spec: Spec) -> str:
    """Digest of the raw input and of how rows are matched, since both decide about equality."""
    read = [*Extractor(spec).input_columns, *group.job.partition_from_path]
    digest = digest_of(files, read)
    return (
        digest
        if group.key is None
        else hashlib.sha256(f"{digest}\nkey {group.key}\n".encode()).hexdigest()
    )


def _write(
    group: GroupJob,
    run: ExtractionRun,
    part: Part,
    base_files: Sequence[BaseFile],
    files: Sequence[RawFile],
    run_units: Callable[[Targets, Sequence[Unit]], list[UnitReport]],
    commit: CommitFunction,
    input_bytes: int,
) -> ExtractReport:
    units = plan_units(files, group.job.spec.output.rows_per_file)
    if group.key is None:
        makers = _makers(group, run, base_files, files)
        for made in makers:
            _check_skipped(group, made, part)
        digest = files_part(run.input_digest or "")
        targets = _targets_by_unit(units, files, base_files, makers, digest)
    else:
        targets = {i: (_target(base_file, ""),) for i, base_file in enumerate(base_files)}
    return write_and_commit(run, lambda: run_units(targets, units), commit, input_bytes)


@dataclass(frozen=True, kw_only=True)
class _Made:
    """What one run made of the partitions to extract: what its commit says, its base files, and its
    raw files as they are listed now.
    """

    commit: CommitMetadata
    base_files: Sequence[BaseFile]
    files: Sequence[RawFile]

    @property
    def is_of_files(self) -> bool:
        """Whether it made just these files of just these raw files."""
        if self.commit.data_digest != files_digest(of.file for of in self.base_files):
            return False
        return files_part(self.commit.input_digest or "") in map(files_part, self.digests(()))

    def digests(self, columns: Sequence[str]) -> tuple[str, str]:
        """The `input_digest` of the raw files by their names below this input, and, as a run of
        one partition had them, by those below its directory.
        """
        keys = {key for file in self.files for key in file.partition}
        below = [
            replace(file, listed=replace(file.listed, name=_name_below(file.listed.name, keys)))
            for file in self.files
        ]
        return digest_of(self.files, columns), digest_of(below, columns)


def _name_below(name: str, keys: Container[str]) -> str:
    """A file's name below the last directory that is of a partition key."""
    parts = name.split("/")
    last = max((i for i, at in enumerate(parts) if at.partition("=")[0] in keys), default=-1)
    return "/".join(parts[last + 1 :])


def _makers(
    group: GroupJob,
    run: ExtractionRun,
    base_files: Sequence[BaseFile],
    files: Sequence[RawFile],
) -> list[_Made]:
    """The runs that made the base files, each of one or several of the partitions.

    Raises:
        InputError: Some were not made of these raw files in their order.
    """
    require_input_order(
        ((base_file.file.path, base_file.text) for base_file in base_files),
        "its rows are matched",
        "use --key with a kept column that names each row",
    )
    waiting = {to_json(partition): partition for partition in run.partitions}
    raw, base, makers = by_partition(files), dict[str, list[BaseFile]](), list[_Made]()
    for base_file in base_files:
        base.setdefault(to_json(base_file.file.partition), []).append(base_file)
    for _, commit in delta.with_origins(delta.history(group.job.table_url)):
        found = set(map(to_json, commit.partitions))
        keys = [key for key in raw if key in found] if found <= waiting.keys() else []
        made = _Made(
            commit=commit,
            base_files=[of for key in keys for of in base.get(key, ())],
            files=[of for key in keys for of in raw[key]],
        )
        if keys and made.is_of_files:
            makers.append(made)
            waiting = {key: of for key, of in waiting.items() if key not in keys}
    if waiting:
        raise InputError(
            f"{redact(group.job.input_url)}: these are not the raw files, whole and unchanged, "
            f"that made {_names(waiting.values())}, so it cannot be shown which raw row is which "
            "row of the table; give the same --input, or --key with a kept column that names each "
            "row, or extract the partition again"
        )
    return makers


def _names(partitions: Iterable[Mapping[str, str]]) -> str:
    return ", ".join(partition_path(partition) or "the table" for partition in partitions)


def _check_skipped(group: GroupJob, made: _Made, part: Part) -> None:
    """Checks that the rows that a run skipped are skipped again."""
    commit = made.commit
    if not commit.num_rows_skipped:
        return
    if commit.spec_hash == part.base.hash:
        # A spec that made the base has slots, so its columns can be told.
        columns = Extractor(part.base).input_columns
        read = (columns, [*columns, *group.job.partition_from_path])
        if any(commit.input_digest in made.digests(of) for of in read):
            return
    raise InputError(
        f"{commit.num_rows_skipped:,} malformed raw rows were skipped when "
        f"{_names(commit.partitions)} was made, by a spec that is not this one without the new "
        "slots, or from other columns of these names, so it cannot be shown which; use that spec "
        "with slots added, or --key"
    )


def _targets_by_unit(
    units: Sequence[Unit],
    files: Sequence[RawFile],
    base_files: Sequence[BaseFile],
    makers: Sequence[_Made],
    digest: str,
) -> dict[int, tuple[Target, ...]]:
    """The base files that hold each unit's rows, found by the numbers in their names, which the
    units had in the runs that made them.
    """
    names = {file.listed.url: file.listed.name for file in files}
    of_partition, by_unit = by_partition(units), dict[int, list[BaseFile]]()
    for made in makers:
        keys = list(by_partition(made.files))
        numbers = [unit.index for key in keys for unit in of_partition.get(key, ())]
        found = _by_unit(made.base_files)
        by_unit |= {numbers[i]: of_unit for i, of_unit in found.items() if i < len(numbers)}
    if sum(map(len, by_unit.values())) < len(base_files):
        raise _file_count_error(len(units), len(base_files))
    # Stands for a unit whose rows were all skipped, so it has no base file.
    none = DataFile(path="", url="", size_bytes=0, num_rows=0, partition={})
    targets = {}
    for unit in units:
        rows = "".join(
            f"{names[raw.url]}\t{raw.first_row}\t{raw.num_rows}\n" for raw in unit.ranges
        )
        parts = by_unit.get(unit.index, [BaseFile(file=none, row_groups=(), names=frozenset())])
        if sum(base_file.file.num_rows for base_file in parts) > unit.num_rows:
            raise _file_count_error(len(units), len(base_files))
        texts = [f"{digest}\n{rows}", *(f"{digest}\n{rows}{part}" for part in range(1, len(parts)))]
        targets[unit.index] = tuple(
            _target(base_file, hashlib.sha256(text.encode()).hexdigest())
            for base_file, text in zip(parts, texts, strict=True)
        )
    return targets


def _by_unit(base_files: Sequence[BaseFile]) -> dict[int, list[BaseFile]]:
    """The base files of each unit, in the order of their rows. Files whose names do not tell it are
    left out.
    """
    numbered = [(unit_and_part(base_file.file.path), base_file) for base_file in base_files]
    known = {number: base_file for number, base_file in numbered if number is not None}
    ordered = sorted(known.items(), key=lambda item: item[0])
    units = itertools.groupby(ordered, lambda item: item[0][0])
    return {unit: [base_file for _, base_file in own] for unit, own in units}


def _target(base_file: BaseFile, digest: str) -> Target:
    return Target(
        base_path=base_file.file.path,
        num_rows=base_file.file.num_rows,
        row_groups=base_file.row_groups,
        rows_digest=digest,
    )


def _file_count_error(num_units: int, num_files: int) -> InputError:
    return InputError(
        f"the table's files do not match the spec's output.rows_per_file: expected {num_units} "
        f"files, found {num_files}; set the rows_per_file that the table was made with, or use "
        f"--key"
    )


def _with_checked_rows(task: GroupTask, reports: list[UnitReport]) -> list[UnitReport]:
    """Returns the reports if they have the same numbers of rows as the base files."""
    expected_rows = {
        target.base_path: target.num_rows
        for targets in task.targets.values()
        for target in targets
        if target.base_path
    }
    found_rows = {
        f"{report.path.rpartition('/')[0]}.parquet": report.num_rows
        for report in reports
        if report.num_rows
    }
    for path in sorted(expected_rows.keys() | found_rows.keys()):
        if expected_rows.get(path, 0) != found_rows.get(path, 0):
            raise InputError(
                f"{path or 'a raw file'}: expected its {expected_rows.get(path, 0):,} rows, found "
                f"{found_rows.get(path, 0):,} in the slot group; a group has the table's rows: use "
                "`on_error: null` for its columns, and the rows_per_file and `skip` that the "
                "table was made with, or --key"
            )
    return reports


def _publish(
    group: GroupJob,
    base: Snapshot,
    run: ExtractionRun,
    report: ExtractReport,
    publish: delta.Publish | None,
) -> ExtractReport:
    note = (
        f"The rows are committed to slot group {group.name!r} (version {report.version} of "
        f"{redact(run.task.table_url)}), and it is not known whether the table names them. Run it "
        f"again with the same input: that makes the table name them, or finds that it does."
    )
    with noted_on_failure(note):
        now = delta.open_delta(run.task.table_url, report.version)
        files = now.in_partitions(run.partitions)
        metadata = replace(
            groups_commit(
                group.job.run_id,
                base,
                files,
                counts=report.counts,
                num_rows_skipped=report.num_rows_skipped,
            ),
            meanings=short_meanings(run.task.spec),
            num_files=len(files),
            num_rows=sum(file.num_rows for file in files),
            size_bytes=sum(file.size_bytes for file in files),
        )
        try:
            version = publish_group(
                base, group.name, report.version, run.partitions, metadata, publish
            )
        except CommitConflictError as error:
            raise CommitConflictError(
                f"{redact(base.url)}: the base of slot group {group.name!r} was replaced during "
                f"this run, so the group's files are stale; run it again ({error})"
            ) from None
    return replace(report, table_url=base.url, version=version, committed=version != base.version)
