"""What a table holds, and the commits that made it, from metadata alone: the result of
`Table.inspect`, and of `featstore table inspect --history`.
"""

import datetime
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

from tabulate import tabulate

from featstore.base.redaction import redact
from featstore.base.text_table import Printed, text_table, whole
from featstore.extraction.units.findings import describe as describe_findings
from featstore.ops.timestamps import duration_text
from featstore.statistics.data_checks import CheckResult
from featstore.table.delta import Commit, with_origins
from featstore.table.groups import group_commits
from featstore.table.metadata import CommitMetadata, to_json
from featstore.table.open import history_of
from featstore.table.snapshot import DataFile, FileList, Snapshot

_COMMIT_HEADERS = (
    "version",
    "time (UTC)",
    "operation",
    "partitions",
    "files",
    "rows",
    "bytes",
    "spec",
)
_COMMIT_ALIGN = ("right", "left", "left", "left", "right", "right", "right", "left")
_HASH_DIGITS = 12


@dataclass(frozen=True, kw_only=True)
class ColumnDescription:
    """A slot, label, weight or kept column.

    Attributes:
        slot: The slot number; None for other columns.
        name: The name.
        kind: `id` or `float` for a slot; otherwise `label`, `weight` or `kept`.
        shape: The shape of a slot, or the Arrow type of another column.
        operator: The operator of a slot; None where it is not known.
        share_slot: The number of the slot whose signs a slot shares; None for none.
        sequence: The sequence of events whose lists a slot has; None for none.
    """

    slot: int | None
    name: str
    kind: str
    shape: str
    operator: str | None
    share_slot: int | None = None
    sequence: str | None = None

    @property
    def note(self) -> str:
        """What a slot has in common with others."""
        shared = [] if self.share_slot is None else [f"signs of slot {self.share_slot}"]
        return ", ".join(
            [*shared, *([] if self.sequence is None else [f"events of {self.sequence}"])]
        )


@dataclass(frozen=True, kw_only=True)
class HistoryDescription:
    """A history: what a spec says of it, but for its slots; `window` as text, such as `90d`."""

    name: str
    key: str
    as_of: str
    at: str
    logged_at: str | None
    max_len: int
    window: str | None


@dataclass(frozen=True, kw_only=True)
class PartitionDescription:
    """A partition: its keys and values, and what its data files hold together."""

    keys: Mapping[str, str | None]
    num_files: int
    num_rows: int
    size_bytes: int

    @property
    def cells(self) -> tuple[str, ...]:
        """Its row of the table of text."""
        name = ", ".join(f"{key}={value}" for key, value in self.keys.items()) or "(none)"
        return (name, *_counts(self))


@dataclass(frozen=True, kw_only=True)
class GroupDescription:
    """A slot group: its version, those of its files that are read, their rows and bytes, and the
    paths of stale ones.
    """

    name: str
    version: int
    num_files: int
    num_rows: int
    size_bytes: int
    stale: tuple[str, ...]


def _counts(of: PartitionDescription | GroupDescription) -> tuple[str, ...]:
    """Files, rows and bytes as text."""
    return tuple(f"{number:,}" for number in (of.num_files, of.num_rows, of.size_bytes))


@dataclass(frozen=True, kw_only=True, repr=False)
class Description(Printed):
    """What a table holds at one version.

    Attributes:
        table: The table's URL, without secrets.
        version: The Delta version; None for plain Parquet.
        num_rows, size_bytes, num_files: Of all data files.
        spec_hash: The hash of the spec of the newest commit; None if unknown.
        num_commits: The commits in the log.
        columns: The slots in declared order, then those of histories, labels and kept columns.
        histories: The histories.
        groups: The slot groups.
        partitions: The partitions.
        warnings: The checks of severity `warn` that did not pass when the partitions were written.
        malformed: What was skipped or replaced when the partitions were written, a line for each
            input and reason.
    """

    table: str
    version: int | None
    num_rows: int
    size_bytes: int
    num_files: int
    spec_hash: str | None
    num_commits: int
    columns: tuple[ColumnDescription, ...]
    histories: tuple[HistoryDescription, ...]
    groups: tuple[GroupDescription, ...]
    partitions: tuple[PartitionDescription, ...]
    warnings: tuple[CheckResult, ...] = ()
    malformed: tuple[str, ...] = ()

    def text(self, width: int | None = None) -> str:
        """The description as text, with tables of `width` characters at most if given."""
        columns = [(c.slot, c.name, c.kind, c.shape, c.operator, c.note) for c in self.columns]
        headers = ("slot", "name", "kind", "shape", "operator", "shares")
        num_shown = len(headers) - (not any(c.note for c in self.columns))
        parts = [
            self._summary(),
            text_table([c[:num_shown] for c in columns], headers[:num_shown], width=width),
            self._histories_text(width),
            self._groups_text(width),
            text_table(
                [partition.cells for partition in self.partitions],
                ("partition", "files", "rows", "bytes"),
                align=("left", "right", "right", "right"),
                width=width,
            ),
            "\n".join(f"warning: {warning}" for warning in self.warnings),
            "\n".join(self.malformed),
        ]
        return "\n\n".join(part for part in parts if part)

    __repr__ = Printed.__str__

    def as_dict(self) -> dict[str, Any]:
        """The description as JSON types."""
        return asdict(self) | {"warnings": [warning.as_dict() for warning in self.warnings]}

    def _summary(self) -> str:
        lines = [
            ("table", self.table),
            ("version", "none (plain Parquet)" if self.version is None else self.version),
            ("rows", f"{self.num_rows:,}"),
            ("bytes", f"{self.size_bytes:,}"),
            ("data files", f"{self.num_files:,}"),
            ("spec hash", self.spec_hash or "unknown"),
            ("commits", self.num_commits),
        ]
        return tabulate(lines, tablefmt="plain", disable_numparse=True)

    def _histories_text(self, width: int | None) -> str:
        if not self.histories:
            return ""
        headers = ("history", *list(HistoryDescription.__dataclass_fields__)[1:])
        return text_table([astuple(each) for each in self.histories], headers, width=width)

    def _groups_text(self, width: int | None) -> str:
        if not self.groups:
            return ""
        rows = [(g.name, g.version, *_counts(g), len(g.stale) or "-") for g in self.groups]
        headers = ("slot group", "version", "files", "rows", "bytes", "stale")
        table = text_table(rows, headers, align=("left", *["right"] * 5), width=width)
        stale = [f"stale: {group.name}/{path}" for group in self.groups for path in group.stale]
        return "\n".join([table, *stale])


def describe(
    snapshot: Snapshot,
    num_commits: int,
    warnings: tuple[CheckResult, ...] = (),
    malformed: tuple[str, ...] = (),
) -> Description:
    """Describes a snapshot.

    Args:
        snapshot: The snapshot.
        num_commits: The number of commits in the table's log.
        warnings: Checks that did not pass when the partitions were written.
        malformed: As of `Description`.
    """
    in_use = snapshot.data_files.groups
    return Description(
        table=redact(snapshot.url),
        version=snapshot.version,
        num_rows=snapshot.num_rows,
        size_bytes=snapshot.size_bytes,
        num_files=len(snapshot.data_files),
        spec_hash=snapshot.spec_hash,
        num_commits=num_commits,
        columns=_columns(snapshot),
        histories=tuple(
            HistoryDescription(
                name=history.name,
                key=history.key,
                as_of=history.as_of,
                at=history.at,
                logged_at=history.logged_at,
                max_len=history.max_len,
                window=None if history.window_us is None else duration_text(history.window_us),
            )
            for history in snapshot.histories
        ),
        groups=tuple(
            GroupDescription(
                name=group.name,
                version=group.version,
                **_totals(in_use[group.name].files if group.name in in_use else ()),
                stale=tuple(file.path for file in group.stale),
            )
            for group in snapshot.groups
        ),
        partitions=tuple(
            PartitionDescription(
                keys=dict(total.partition),
                num_files=total.num_files,
                num_rows=total.num_rows,
                size_bytes=total.size_bytes,
            )
            for total in snapshot.data_files.totals()
        ),
        warnings=warnings,
        malformed=malformed,
    )


def _totals(files: Collection[DataFile]) -> dict[str, int]:
    return {
        "num_files": len(files),
        "num_rows": sum(file.num_rows for file in files),
        "size_bytes": sum(file.size_bytes for file in files),
    }


def stored_findings(commits: Iterable[Commit], snapshot: Snapshot) -> tuple[str, ...]:
    """What the extractions that made a table's rows and slot groups skipped or replaced as
    malformed. Those of rows that were replaced since are left out, where a commit did not make
    others besides.

    Args:
        commits: The commits of the table up to its version, newest first.
        snapshot: The table.
    """
    lines, in_use = [*_findings_of(commits, snapshot.data_files, "")], snapshot.data_files.groups
    for group in snapshot.groups:
        if group.name in in_use:
            made = group_commits(snapshot.url, group)
            lines += _findings_of(made, in_use[group.name].files, group.name)
    return tuple(lines)


def _findings_of(commits: Iterable[Commit], files: FileList, group: str) -> Iterator[str]:
    """The findings of the commits that made the partitions of these files."""
    waiting = {to_json(total.partition) for total in files.totals()}
    for _, of in with_origins(commits):
        made = waiting & {to_json(partition) for partition in of.partitions}
        if made and not of.origins and of.groups is None:
            waiting -= made
            yield from _findings(of, group, len(of.partitions) - len(made))


def _findings(of: CommitMetadata, group: str, num_replaced: int = 0) -> Iterator[str]:
    replaced = f"{num_replaced} of them replaced since" if num_replaced else ""
    names = (f"slot group {group}" if group else "", _partition_names(of.partitions), replaced)
    where = ", ".join(filter(None, names))
    for line in describe_findings(of.counts, (), of.num_rows_skipped):
        yield f"{where}: {line}" if where else line


def _columns(snapshot: Snapshot) -> tuple[ColumnDescription, ...]:
    schema = snapshot.schema
    of_histories = (slot for history in snapshot.histories for slot in history.slots)
    slots = [
        ColumnDescription(
            slot=slot.number,
            name=slot.name,
            kind=str(slot.kind),
            shape=slot.shape_text,
            operator=slot.op,
            share_slot=slot.share_slot,
            sequence=slot.sequence,
        )
        for slot in (*schema.slots, *of_histories)
    ]
    others = [
        ColumnDescription(
            slot=None, name=field.name, kind=role, shape=str(field.type), operator=None
        )
        for role, fields in (
            ("label", schema.labels),
            ("weight", (schema.weight,)),
            ("kept", schema.kept),
        )
        for field in fields
        if field is not None
    ]
    return (*slots, *others)


@dataclass(frozen=True, kw_only=True)
class History(Printed):
    """Commits of a table.

    Attributes:
        table: The URL of the table.
        commits: The commits, newest first.
        num_more: Earlier commits that the log holds besides.
        malformed: What the runs of these commits skipped or replaced, a line for each finding.
    """

    table: str
    commits: tuple[Commit, ...]
    num_more: int
    malformed: tuple[str, ...] = ()

    def text(self, width: int | None = None) -> str:
        """A line for each commit, of `width` characters at most if given."""
        table = text_table(
            [_commit_cells(commit) for commit in self.commits],
            _COMMIT_HEADERS,
            align=_COMMIT_ALIGN,
            width=width,
        )
        more = [f"(and {self.num_more:,} earlier ones)"] if self.num_more else []
        return "\n".join([table, *more, *self.malformed])

    def as_dict(self) -> dict[str, Any]:
        """The commits as JSON types, without what they say of each file and slot."""
        return {
            "table": self.table,
            "commits": [
                {
                    "version": commit.version,
                    "timestamp_ms": commit.timestamp_ms,
                    "operation": commit.operation,
                    "metadata": _metadata(commit),
                }
                for commit in self.commits
            ],
            "num_more": self.num_more,
        }


def table_history(url: str, last: int | None = None) -> History:
    """The commits that a table's log still holds.

    Args:
        url: A table of Delta or Iceberg.
        last: How many of the newest; by default all.

    Raises:
        TableNotFoundError: There is no table.
    """
    commits = history_of(url)
    shown = commits if last is None else commits[:last]
    return History(
        table=redact(url),
        commits=tuple(shown),
        num_more=len(commits) - len(shown),
        malformed=tuple(_findings_by_version(shown, commits)),
    )


def _findings_by_version(shown: Iterable[Commit], commits: Sequence[Commit]) -> Iterator[str]:
    """The findings of some of a table's commits, newest first."""
    before, groups = dict[str, int](), dict[int, str]()
    for commit in reversed(commits):
        after = None if commit.metadata is None else commit.metadata.groups
        if after is not None:
            changed = after.items() - before.items()
            groups[commit.version] = ", ".join(sorted(name for name, _ in changed))
            before = dict(after)
    for commit in shown:
        if commit.metadata is not None and not commit.metadata.origins:
            for line in _findings(commit.metadata, groups.get(commit.version, "")):
                yield f"version {commit.version}, {line}"


def _commit_cells(commit: Commit) -> tuple[object, ...]:
    of = commit.metadata
    at = datetime.datetime.fromtimestamp(commit.timestamp_ms / 1000, datetime.UTC)
    head = (commit.version, whole(at.strftime("%Y-%m-%d %H:%M:%S")), commit.operation)
    back = "" if commit.restored is None else f"back to version {commit.restored}"
    if of is None or back:
        return (*head, back or "(by another writer)", None, None, None, None)
    numbers = (f"{number:,}" for number in (of.num_files, of.num_rows, of.size_bytes))
    where = _partition_names(of.partitions)
    if not where and of.groups is not None:
        names = ", ".join(
            whole(f"{name} (version {of.groups[name]})") for name in sorted(of.groups)
        )
        where = f"slot groups: {names or 'none'}"
    return (*head, where, *numbers, of.spec_hash[:_HASH_DIGITS])


def _partition_names(partitions: tuple[Mapping[str, str], ...]) -> str:
    """The only one, or the first and the last and how many there are."""
    names = sorted(
        ", ".join(f"{key}={value}" for key, value in of.items()) or "(none)" for of in partitions
    )
    if len(names) <= 1:
        return "".join(names)
    return f"{names[0]} to {names[-1]} ({len(names)})"


def _metadata(commit: Commit) -> dict[str, Any] | None:
    known = {} if commit.metadata is None else commit.metadata.to_mapping()
    return {of: value for of, value in known.items() if of not in ("crc32s", "meanings")} or None
