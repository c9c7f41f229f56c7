"""The paths of a table's files: Hive partition directories and attempt-named data files. Only this
module composes or parses them.
"""

import hashlib
import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote

from featstore.base.errors import InputError
from featstore.base.redaction import redact, shown
from featstore.files.hadoop import HADOOP_SCHEMES
from featstore.files.storage import absolute, canonical, join, local_path, scheme

LOG_DIR = "_delta_log"
RUNS_DIR = "_runs"
GROUPS_DIR = "_groups"
LABELS = "labels"  # the slot group of labels that were rewritten
STATISTICS_DIR = "_stats"
ICEBERG_DIR = "_iceberg"
_STATISTICS = ".statistics"  # not .parquet: a glob for Parquet files must not match it
_VALUES = ".values"
_DELTA_SCHEMES = HADOOP_SCHEMES | {"file", "s3", "gs", "az", "abfs", "abfss"}
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_TAG_CHARS = 8  # hex digits of each of a tag's two parts
_DATA_FILE = re.compile(
    r"part-(?P<unit>\d{5,})-(?P<tag>[0-9a-f]{8}-[0-9a-f]{8})-\d+([-_](?P<part>\d{5,}))?\.parquet"
)
_TAG = re.compile(r"(?P<tag>[0-9a-f]{8}-[0-9a-f]{8})\.(statistics|values)")
_PARTIAL = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.partial")
_NAME_BYTES = 255  # the limit of Linux file systems, and the default of HDFS
_GROUP_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_SUFFIX = ".parquet"
_WHOLE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
_HOST = re.compile(r"[^:/]+://[^/]*")
# The characters that Hive escapes in partition directories, `}` and the space.
_UNSAFE = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{}\[\]^ ]")


def partition_path(partition: Mapping[str, str | None]) -> str:
    """The directory of a partition: `month=2013-01` for `{"month": "2013-01"}`.

    There is one level per key, in the given order, escaped as Hive does. Without partition keys the
    path is empty.
    """
    return "/".join(
        f"{_escape(key)}={_escape(value) if value else NULL_PARTITION}"
        for key, value in partition.items()
    )


def check_partition_value(key: str, value: object, where: str) -> None:
    """Checks that Delta will return a partition's value unchanged.

    Delta stores an empty value as null, and a commit cannot replace a null partition; its rows
    would be added to the existing ones.

    Raises:
        InputError: The value is not text, is empty, or too long for the name of a directory.
    """
    if not isinstance(value, str):
        raise InputError(
            f"{where}: key {key!r}: expected the value as text, found {shown(value)}; write "
            f"'{shown(value)}'"
        )
    if not key or value in ("", NULL_PARTITION):
        raise InputError(
            f"{where}: expected a key and a value, found {key!r} and {value!r}: a partition "
            f"without a value cannot be "
            f"replaced; give its rows a value of their own, such as 'unknown'"
        )
    check_partition_name(key, value, where)


def overwrite_filters(
    partitions: Iterable[Mapping[str, str]], existing: Iterable[Mapping[str, str | None]]
) -> list[tuple[str, str, Any]] | None:
    """The partition filters for delta-rs that select `partitions` and no other existing one.

    delta-rs takes only a conjunction of `key in values`, which may select more partitions than the
    given ones.

    Returns:
        The conjunction. None, for a table without partition keys, selects everything.

    Raises:
        InputError: Every such conjunction would select another partition too.
    """
    targets = [dict(partition) for partition in partitions]
    values = {key: {partition[key] for partition in targets} for key in targets[0]}
    target_keys = {frozenset(partition.items()) for partition in targets}
    matched = (p for p in existing if all(p[key] in texts for key, texts in values.items()))
    others = [p for p in matched if frozenset(p.items()) not in target_keys]
    if others:
        raise InputError(
            f"one run cannot replace {', '.join(map(partition_path, targets))} without "
            f"{partition_path(others[0])}; run each value of {next(iter(values))} alone"
        )
    return [(key, "in", sorted(texts)) for key, texts in values.items()] or None


def check_partition_name(key: str, value: str, where: str) -> None:
    """Checks that `key=value` is short enough for the name of a directory.

    Args:
        key: The partition key.
        value: Its value.
        where: The beginning of the error message.

    Raises:
        InputError: The name is too long.
    """
    num_bytes = len(partition_path({key: value}).encode())
    if num_bytes > _NAME_BYTES:
        raise InputError(
            f"{where}: key {shown(key)}: the directory {shown(f'{key}={value}')} would have a name "
            f"of {num_bytes:,} bytes: expected at most {_NAME_BYTES}, with special characters "
            f"escaped; shorten the value, for example to its hash"
        )


def parse_partition(path: str) -> dict[str, str | None]:
    """The keys and values of the `key=value` directories of a file's path. The file name is
    ignored. Hive's default partition is null.

    Raises:
        InputError: A key has two values.
    """
    found: dict[str, str | None] = {}
    for directory in path.split("/")[:-1]:
        key, equals, value = directory.partition("=")
        if not (key and equals):
            continue
        name = unquote(key)
        value_of_key = None if value == NULL_PARTITION else unquote(value)
        if found.setdefault(name, value_of_key) != value_of_key:
            raise InputError(
                f"{redact(path)}: expected one value of the partition key {name!r}, found "
                f"directories of {found[name]!r} and {value_of_key!r}; move the file, or rename "
                f"one of the directories"
            )
    return found


def new_tag(run_id: str) -> str:
    """The tag in the names of all files of one start of a run: digits of the id's sha256, then
    random ones.

    A run id alone does not do: it may be used again, even by two runs at once, and ids that people
    choose often share a prefix. A tag is unique.
    """
    run = hashlib.sha256(run_id.encode()).hexdigest()
    return f"{run[:_TAG_CHARS]}-{uuid.uuid4().hex[:_TAG_CHARS]}"


def data_file_name(tag: str, unit: int, attempt: int, part: int = 0) -> str:
    """The name of the file that one attempt at one unit of a run writes.

    No two attempts share a name, so a retried or speculative attempt never overwrites a file that a
    snapshot references.

    Args:
        tag: The run's tag, from `new_tag`.
        unit: The number of the unit of work.
        attempt: The number of the attempt.
        part: The number of the file, if an attempt writes several.
    """
    # Files are read in the order of their names, so the further ones must sort after the first,
    # whose name ends in ".parquet": "_" is above "." and "-", which older versions had, below it.
    suffix = f"_{part:05d}" if part else ""
    return f"part-{unit:05d}-{tag}-{attempt}{suffix}.parquet"


def statistics_path(partition: Mapping[str, str | None], tag: str) -> str:
    """The path of the merged statistics of the files that a run wrote into a partition."""
    return "/".join(
        filter(None, [STATISTICS_DIR, partition_path(partition), f"{tag}{_STATISTICS}"])
    )


def file_statistics_path(path: str) -> str:
    """The path of one data file's statistics, until they are merged."""
    return f"{STATISTICS_DIR}/{path}{_STATISTICS}"


def values_path(partition: Mapping[str, str | None], tag: str) -> str:
    """The path of the texts of values in the files that a run wrote into a partition."""
    return "/".join(filter(None, [STATISTICS_DIR, partition_path(partition), f"{tag}{_VALUES}"]))


def file_values_path(path: str) -> str:
    """The path of the texts of values of a unit, by its last data file, until they are merged."""
    return f"{STATISTICS_DIR}/{path}{_VALUES}"


def statistics_tag(path: str) -> str | None:
    """The tag in the path of a partition's merged statistics, or of its texts of values; None for
    all other files.
    """
    match = _TAG.fullmatch(path.rpartition("/")[2])
    return None if match is None else match["tag"]


def has_tag(name: str, tag: str) -> bool:
    """Whether a data file, or one of statistics or texts, by name or path, has this tag."""
    return tag in (tag_of(name), statistics_tag(name))


def is_data_file(name: str) -> bool:
    """Whether a file's name or path has the form of `data_file_name`."""
    return _DATA_FILE.fullmatch(name.rpartition("/")[2]) is not None


def tag_of(name: str) -> str | None:
    """The tag in the name or path of a data file, or of its statistics or texts of values; None for
    other files.
    """
    last = name.rpartition("/")[2].removesuffix(_STATISTICS).removesuffix(_VALUES)
    match = _DATA_FILE.fullmatch(last)
    return None if match is None else match["tag"]


def partial_of(path: str) -> str | None:
    """The final path of a file that is still being written under a hidden name; None for other
    files.
    """
    directory, slash, name = path.rpartition("/")
    match = _PARTIAL.fullmatch(name)
    return None if match is None else f"{directory}{slash}{match['name']}"


def group_url(table_url: str, name: str) -> str:
    """The URL of a table's slot group.

    Raises:
        InputError: The name is not a valid directory name on every store.
    """
    if not _GROUP_NAME.fullmatch(name):
        raise InputError(
            f"slot group {name!r}: expected 1 to 64 of a-z, 0-9, _ and -, the first a letter or a "
            f"digit; take another name"
        )
    return join(table_url, GROUPS_DIR, name)


def group_file_path(base_path: str, name: str) -> str:
    """The path of a group's file relative to the group. Its directory is the base file's path
    without `.parquet`.
    """
    return f"{base_path.removesuffix(_SUFFIX)}/{name}"


def base_path(group_file: str) -> str:
    """The path of the base data file to which a group's file belongs."""
    return f"{group_file.rpartition('/')[0]}{_SUFFIX}"


def unit_and_part(name: str) -> tuple[int, int] | None:
    """The unit that wrote a data file, and which of the unit's files it is, from its name or path;
    None for other files.
    """
    match = _DATA_FILE.fullmatch(name.rpartition("/")[2])
    return None if match is None else (int(match["unit"]), int(match["part"] or 0))


def attempt_name(name: str) -> str:
    """What the files that one attempt at a unit wrote have in common in their names: the name, or
    the path, without the part. Other files are returned as they are.
    """
    match = _DATA_FILE.fullmatch(name.rpartition("/")[2])
    if match is None or match["part"] is None:
        return name
    return name[: len(name) - len(match[0]) + match.start("part") - 1] + _SUFFIX


def mirror_path(catalog: str, table: str) -> str:
    """The directory with the metadata of an Iceberg table that shows this one.

    Args:
        catalog: The catalog's name.
        table: The Iceberg table's name in it.
    """
    return "/".join([ICEBERG_DIR, quote(catalog, safe=""), quote(table, safe="")])


def mirror_of(path: str) -> tuple[str, str] | None:
    """The catalog and the name of the Iceberg table of which a file below the table is."""
    directory, *parts = path.split("/")
    if directory != ICEBERG_DIR or len(parts) < 3:
        return None
    return unquote(parts[0]), unquote(parts[1])


def is_delta_scheme(url: str) -> bool:
    """Whether tables at URLs of this scheme can be Delta tables."""
    return scheme(canonical(url)) in _DELTA_SCHEMES


def require_delta_scheme(url: str) -> None:
    """InputError if no table at a URL of this scheme can be a Delta table: nobody looks there."""
    if not is_delta_scheme(url):
        known = ", ".join(f"{each}://" for each in sorted(_DELTA_SCHEMES))
        raise InputError(
            f"{redact(url)}: expected a Delta table by a path, or at {known}, found "
            f"{scheme(canonical(url))}://, from which Delta tables are not read: copy it, or name "
            "its place in a store"
        )


def decode_path(url: str, logged: str) -> str:
    """The path of a data file from the Delta log of a table, which percent-encodes it once.

    The path is relative to the table. A file that lies elsewhere, as those of a clone do, has its
    URL or absolute path instead.

    Args:
        url: The table.
        logged: A relative path, a URL, or an absolute path in the table's store.
    """
    path = unquote(logged)
    if not is_whole(path):
        return path
    if path.startswith("/") and local_path(url) is None:
        path = f"{_HOST.match(url)[0]}{path}"  # type: ignore[index]  # a URL has one
    return absolute(canonical(path)).removeprefix(f"{absolute(canonical(url)).rstrip('/')}/")


def is_whole(path: str) -> bool:
    """Whether a path says by itself where the file is, without the table."""
    return bool(_WHOLE.match(path))


def _escape(text: str) -> str:
    return _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", text)
