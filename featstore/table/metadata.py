"""What featstore writes beside the data: a JSON text in each data file's footer, a JSON object in
each commit.

Both carry a format version of their own. Reading refuses a format that is newer than this code.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from featstore.errors import DataFileError

KEY = "featstore"
FORMAT = 1
_Metadata = TypeVar("_Metadata", "FileMetadata", "CommitMetadata")


@dataclass(frozen=True, kw_only=True)
class FileMetadata:
    """What a data file says of itself, under the key `featstore` of its Parquet footer.

    Nothing here differs between two runs over the same rows and spec, so that equal input gives
    equal bytes. `missing` names the mark of a missing value per slot kind. `base` is there in the
    files of slot groups: the `path` of the base data file, `bound_by` (`input`, or `key {column}`),
    and the digest of the `rows` that both have.
    """

    spec_hash: str
    spec_version: int
    missing: Mapping[str, str] = field(default_factory=lambda: {"float": "NaN", "id": "0"})
    base: Mapping[str, str] | None = None

    def to_json(self) -> str:
        found = {"format": FORMAT, **vars(self), "missing": dict(self.missing)}
        return to_json(
            {key: value for key, value in found.items() if key != "base" or value is not None}
        )

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> "FileMetadata":
        """The metadata of the file at `where`. DataFileError for a newer format or a text that is
        none of ours.
        """
        return _from_mapping(cls, _parse(text, where), where)


@dataclass(frozen=True, kw_only=True)
class CommitMetadata:
    """What a run says of its commit, under the key `featstore` of the commit.

    `input_digest` is None where the input cannot be named (a DataFrame): such a run is never taken
    for an earlier one. `data_digest` names the data files of the run's partitions right after the
    commit. `num_rows_skipped` is left out where 0, `groups` in all commits but those that name
    other versions of slot groups. `crc32s`, left out where there are none, are the CRC-32 of each
    data file that the commit adds, by its path. `origins`, left out where there are none, are of a
    compaction: what earlier commits said of rows that it wrote anew, with the `data_digest` of the
    files that hold them now.
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

    def to_mapping(self) -> dict[str, Any]:
        partitions = [dict(partition) for partition in self.partitions]
        origins = [origin.to_mapping() for origin in self.origins]
        found = {
            "format": FORMAT,
            **vars(self),
            "partitions": partitions,
            "counts": dict(self.counts),
            "origins": origins,
        }
        found["crc32s"] = dict(self.crc32s)
        left_out = {key for key in ("num_rows_skipped", "crc32s", "origins") if not found[key]}
        left_out |= {key for key in ("groups",) if found[key] is None}
        return {key: value for key, value in found.items() if key not in left_out}

    @classmethod
    def from_mapping(cls, found: Mapping[str, Any], where: str) -> "CommitMetadata":
        """The metadata of the commit at `where`. DataFileError for a newer format or a mapping that
        is none of ours.
        """
        partitions = tuple(found.get("partitions", ()))
        origins = tuple(cls.from_mapping(origin, where) for origin in found.get("origins", ()))
        return _from_mapping(cls, {**found, "partitions": partitions, "origins": origins}, where)


def to_json(found: Mapping[str, Any]) -> str:
    """JSON with sorted keys and no spaces: the same content is always the same bytes."""
    return json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _parse(text: str | bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise DataFileError(f"{where}: the metadata under {KEY!r} is no JSON ({error})") from None
    if not isinstance(found, dict):
        raise DataFileError(
            f"{where}: expected a JSON object under {KEY!r}, found {type(found).__name__}"
        )
    return found


def _from_mapping(cls: type[_Metadata], found: Mapping[str, Any], where: str) -> _Metadata:
    if found.get("format") != FORMAT:
        raise DataFileError(
            f"{where}: metadata format {found.get('format')!r}, this featstore reads {FORMAT}; "
            f"upgrade it"
        )
    known = {f.name: found[f.name] for f in fields(cls) if f.name in found}
    try:
        return cls(**known)
    except TypeError as error:
        raise DataFileError(f"{where}: incomplete metadata under {KEY!r} ({error})") from None
