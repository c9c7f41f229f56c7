"""The metadata that featstore stores: a JSON text in each data file's footer, and a JSON object in
each commit.

Both carry a format version. Reading refuses versions that are newer than this code.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from featstore.base.errors import DataFileError, InputError

KEY = "featstore"
COMMIT_FORMAT = 1
# In files of format 1 the slots alone have field ids: their numbers.
FILE_FORMAT = 3
# Of files without histories whose rows are in the order of the raw rows: earlier versions may write
# them again, and add slots to them by that order.
_PLAIN_FORMAT = 2
_Metadata = TypeVar("_Metadata", "FileMetadata", "CommitMetadata")


@dataclass(frozen=True, kw_only=True)
class FileMetadata:
    """Metadata of a data file, under the key `featstore` of its Parquet footer.

    Two runs over the same rows and spec write the same metadata, so that equal input gives equal
    bytes.

    Attributes:
        spec_hash: The hash of the spec.
        spec_version: The version of the spec's semantics.
        missing: The mark of a missing value, per slot kind.
        base: Set in files of slot groups: the `path` of the base data file, `bound_by` (`input` or
            `key {column}`), and a digest of the `rows` of both.
        cluster_by: The raw column whose equal values have their rows side by side; None for rows
            in the order of the raw rows.
        histories: The names of the histories whose lists the file has; None if it has none.
    """

    spec_hash: str
    spec_version: int
    missing: Mapping[str, str] = field(default_factory=lambda: {"float": "NaN", "id": "0"})
    base: Mapping[str, str] | None = None
    cluster_by: str | None = None
    histories: Sequence[str] | None = None

    def to_json(self) -> str:
        """The JSON text that the footer stores."""
        number = FILE_FORMAT if self.histories or self.cluster_by else _PLAIN_FORMAT
        mapping = {"format": number, **vars(self), "missing": dict(self.missing)}
        return to_json({key: value for key, value in mapping.items() if value is not None})

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> "FileMetadata":
        """Parses the text of a footer.

        Args:
            text: The JSON text.
            where: The file, for error messages.

        Raises:
            DataFileError: The format is another one, or the text is not featstore's.
        """
        return _from_mapping(cls, _parse(text, where), where, FILE_FORMAT)


@dataclass(frozen=True, kw_only=True)
class GroupOrigin:
    """What is known of the slots that a slot group adds to the rows of a partition.

    Attributes:
        group: The name of the slot group.
        slots: The names of its slots; some of them may be missing in this partition.
        spec_hash: The hash of the part of a spec that was extracted into the group.
    """

    group: str
    slots: tuple[str, ...]
    spec_hash: str


@dataclass(frozen=True, kw_only=True)
class CommitMetadata:
    """Metadata of a commit, under the key `featstore` of the commit.

    `num_rows_skipped`, `num_raw_files`, `crc32s`, `origins`, `folded`, `checks`, `warnings`,
    `events`, `report` and `meanings` are not stored if empty or 0, `groups` if None.

    Attributes:
        run_id: The run that made the commit.
        spec_hash: The hash of the run's spec; of a join or an import, of its options.
        spec_version: The version of the spec's semantics.
        input_digest: Identifies the raw input. None if that is impossible (a DataFrame): such a run
            is never recognised as equal to an earlier one.
        data_digest: The `files_digest` of the run's partitions right after the commit.
        partitions: The partitions that the run replaced.
        num_files: Data files added, to the table or, in commits that name a slot group, to it.
        num_rows: Rows added.
        size_bytes: Bytes added.
        counts: Counts of the extraction, by name.
        num_rows_skipped: Raw rows skipped as malformed.
        num_raw_files: The raw files of each of `partitions`, in their order; empty if unknown.
        groups: The slot groups' versions, in commits that change them.
        crc32s: The CRC-32 of each data file that the commit adds, by path.
        origins: In a compaction: the metadata of the commits whose rows it rewrote, with the
            `data_digest` of the files that hold them now.
        folded: In an origin: the slot groups folded into the files that hold its rows now.
        checks: The checks of the run's spec, as entries of `checks`.
        warnings: The results of the checks of severity `warn` that did not pass, as
            `CheckResult.as_dict` gives them.
        events: By history: `files`, 8 bytes for each file of its log, in base64; and `as_of`, the
            first and last time of rows with a key, in microseconds, or None.
        meanings: The first digits of the semantic hash of each slot of the run's spec, by number.
        report: Of a join or an import that wrote the rows: its report. `examples` are not stored.
    """

    run_id: str
    spec_hash: str
    spec_version: int
    input_digest: str | None
    data_digest: str
    partitions: tuple[Mapping[str, str], ...]
    num_files: int
    num_rows: int
    size_bytes: int
    counts: Mapping[str, int] = field(default_factory=dict)
    num_rows_skipped: int = 0
    groups: Mapping[str, int] | None = None
    crc32s: Mapping[str, int] = field(default_factory=dict)
    origins: "tuple[CommitMetadata, ...]" = ()
    folded: tuple[GroupOrigin, ...] = ()
    checks: tuple[Mapping[str, Any], ...] = ()
    warnings: tuple[Mapping[str, Any], ...] = ()
    num_raw_files: tuple[int, ...] = ()
    events: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)
    meanings: Mapping[str, str] = field(default_factory=dict)

    def to_mapping(self) -> dict[str, Any]:
        """The JSON object that the commit stores."""
        partitions = [dict(partition) for partition in self.partitions]
        origins = [origin.to_mapping() for origin in self.origins]
        mapping = {
            "format": COMMIT_FORMAT,
            **vars(self),
            "partitions": partitions,
            "counts": dict(self.counts),
            "crc32s": dict(self.crc32s),
            "origins": origins,
            "folded": [{**vars(part), "slots": list(part.slots)} for part in self.folded],
            "checks": list(self.checks),
            "warnings": list(self.warnings),
            "num_raw_files": list(self.num_raw_files),
            # Values of rows are in reports alone: a deletion could not remove them from a commit.
            "report": {key: of for key, of in self.report.items() if key != "examples"},
        }
        optional = (
            *("num_rows_skipped", "num_raw_files", "crc32s", "origins", "folded"),
            *("checks", "warnings", "events", "report", "meanings"),
        )
        left_out = {key for key in optional if not mapping[key]}
        left_out |= {key for key in ("groups",) if mapping[key] is None}
        return {key: value for key, value in mapping.items() if key not in left_out}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], where: str) -> "CommitMetadata":
        """Parses the JSON object of a commit.

        Args:
            mapping: The JSON object.
            where: The commit, for error messages.

        Raises:
            DataFileError: The format is another one, or the object is not featstore's.
        """
        names = ("partitions", "checks", "warnings", "num_raw_files")
        lists = {key: tuple(mapping.get(key, ())) for key in names}
        origins = tuple(cls.from_mapping(origin, where) for origin in mapping.get("origins", ()))
        folded = tuple(
            GroupOrigin(
                group=part["group"], slots=tuple(part["slots"]), spec_hash=part["spec_hash"]
            )
            for part in mapping.get("folded", ())
        )
        found = {**mapping, **lists, "origins": origins, "folded": folded}
        return _from_mapping(cls, found, where, COMMIT_FORMAT)


def has_field_ids(text: bytes | None, where: str) -> bool:
    """Whether all columns of a data file have field ids, by its footer's text.

    Raises:
        DataFileError: The text is not featstore's.
    """
    number = None if text is None else _parse(text, where).get("format")
    return isinstance(number, int) and number >= _PLAIN_FORMAT


def require_input_order(texts: Iterable[tuple[str, bytes | None]], why: str, instead: str) -> None:
    """Checks that data files have their rows in the order of the raw rows.

    Args:
        texts: The path of each file, and the text of its footer; None if featstore did not write
            the file.
        why: What needs the order.
        instead: What to do about it.

    Raises:
        InputError: The rows of a file are clustered.
        DataFileError: A text is not featstore's.
    """
    for path, text in texts:
        key = None if text is None else _parse(text, path).get("cluster_by")
        if key is not None:
            raise InputError(
                f"{path}: expected rows in the order of the raw rows, by which {why}, found them "
                f"clustered by {key!r} (output.cluster_by); {instead}"
            )


def to_json(mapping: Mapping[str, Any]) -> str:
    """Canonical JSON, with sorted keys and no spaces: equal content gives equal bytes."""
    return json.dumps(mapping, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _parse(text: str | bytes, where: str) -> dict[str, Any]:
    try:
        mapping = json.loads(text)
    except ValueError as error:
        raise DataFileError(f"{where}: the metadata under {KEY!r} is not JSON ({error})") from None
    if not isinstance(mapping, dict):
        raise DataFileError(
            f"{where}: expected a JSON object under {KEY!r}, found {type(mapping).__name__}"
        )
    return mapping


def _from_mapping(
    cls: type[_Metadata], mapping: Mapping[str, Any], where: str, newest: int
) -> _Metadata:
    if mapping.get("format") not in range(1, newest + 1):
        raise DataFileError(
            f"{where}: metadata format {mapping.get('format')!r}, this featstore reads up to "
            f"{newest}; upgrade it"
        )
    # Unknown keys are ignored, so that a version may add some without a new format.
    known = {f.name: mapping[f.name] for f in fields(cls) if f.name in mapping}
    try:
        return cls(**known)
    except TypeError as error:
        raise DataFileError(f"{where}: incomplete metadata under {KEY!r} ({error})") from None
