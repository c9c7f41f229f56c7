"""Where a table's files lie: Hive partition directories and attempt-named data files. Paths are
composed only here.
"""

import hashlib
import re
import uuid
from collections.abc import Mapping
from urllib.parse import unquote

from featstore.errors import InputError
from featstore.files.storage import canonical, join, scheme
from featstore.redaction import shown

LOG_DIR = "_delta_log"
RUNS_DIR = "_runs"
GROUPS_DIR = "_groups"
STATISTICS_DIR = "_stats"
_STATISTICS = ".statistics"  # not .parquet, or a glob of such files would take them for data
_DELTA_SCHEMES = frozenset({"file", "s3", "gs", "az", "abfs", "abfss", "hdfs"})
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_TAG_CHARS = 8  # of each of its two parts
_DATA_FILE = re.compile(r"part-\d{5,}-(?P<tag>[0-9a-f]{8}-[0-9a-f]{8})-\d+(-\d{5})?\.parquet")
_TAG = re.compile(r"[0-9a-f]{8}-[0-9a-f]{8}\.statistics")
_PARTIAL = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.partial")
_NAME_BYTES = 255  # of Linux's file systems, and of HDFS unless it is told otherwise
_GROUP_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_SUFFIX = ".parquet"
_UNSAFE = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{}\[\]^ ]")


def partition_path(partition: Mapping[str, str | None]) -> str:
    """`{"month": "2013-01"}` as `month=2013-01`: one directory per key in the given order, escaped
    as Hive does.

    A table without partition keys has the empty path.
    """
    return "/".join(
        f"{_escape(key)}={_escape(value) if value else NULL_PARTITION}"
        for key, value in partition.items()
    )


def check_partition_name(key: str, value: str, where: str) -> None:
    """InputError for a partition whose `key=value` is no name of a directory: it is too long.

    `where` begins the message.
    """
    num_bytes = len(partition_path({key: value}).encode())
    if num_bytes > _NAME_BYTES:
        raise InputError(
            f"{where}: key {shown(key)}: the directory {shown(f'{key}={value}')} would have a name "
            f"of "
            f"{num_bytes:,} bytes: expected at most {_NAME_BYTES}, with special characters "
            f"escaped; "
            f"shorten the value, such as to its hash"
        )


def parse_partition(path: str) -> dict[str, str | None]:
    """The keys and values of the `key=value` directories of a file's path; the file name is not
    looked at.

    What Hive calls its default partition is null.
    """
    directories = [part.partition("=") for part in path.split("/")[:-1]]
    return {unquote(key): _unescape(value) for key, equals, value in directories if key and equals}


def new_tag(run_id: str) -> str:
    """What the names of one beginning of a run have in common: digits of the id's sha256, and
    random ones.

    An id may be used again, also twice at once, and ids that people choose often begin alike; a tag
    is never shared.
    """
    run = hashlib.sha256(run_id.encode()).hexdigest()
    return f"{run[:_TAG_CHARS]}-{uuid.uuid4().hex[:_TAG_CHARS]}"


def data_file_name(tag: str, unit: int, attempt: int, part: int = 0) -> str:
    """The name of the file that one attempt at one unit of one run writes; `tag` is from `new_tag`.

    No two attempts share a name, so a retried or speculative attempt never overwrites a file that a
    snapshot names. `part` counts the files of an attempt that writes several.
    """
    suffix = f"-{part:05d}" if part else ""
    return f"part-{unit:05d}-{tag}-{attempt}{suffix}.parquet"


def statistics_path(partition: Mapping[str, str | None], tag: str) -> str:
    """Where the statistics of the files lie that a run of this tag wrote into a partition."""
    return "/".join(
        filter(None, [STATISTICS_DIR, partition_path(partition), f"{tag}{_STATISTICS}"])
    )


def file_statistics_path(path: str) -> str:
    """Where the statistics of one data file lie until they are merged."""
    return f"{STATISTICS_DIR}/{path}{_STATISTICS}"


def statistics_tag(path: str) -> str | None:
    """The tag in the path of a partition's statistics, None for other files, also for those of one
    data file.
    """
    name = path.rpartition("/")[2]
    return name.removesuffix(_STATISTICS) if _TAG.fullmatch(name) else None


def has_tag(name: str, tag: str) -> bool:
    """Whether the name or path of a data file, or of statistics, says that it was written under
    this tag.
    """
    return tag in (tag_of(name), statistics_tag(name))


def is_data_file(name: str) -> bool:
    """Whether a file's name or path is one that `data_file_name` makes."""
    return _DATA_FILE.fullmatch(name.rpartition("/")[2]) is not None


def tag_of(name: str) -> str | None:
    """The tag in the name or path of a data file, or of its statistics; None for other files."""
    found = _DATA_FILE.fullmatch(name.rpartition("/")[2].removesuffix(_STATISTICS))
    return None if found is None else found["tag"]


def partial_of(path: str) -> str | None:
    """The path that a file under a hidden name, which is being written, will have; None for other
    files.
    """
    directory, slash, name = path.rpartition("/")
    found = _PARTIAL.fullmatch(name)
    return None if found is None else f"{directory}{slash}{found['name']}"


def group_url(table_url: str, name: str) -> str:
    """Where a table's slot group lies. InputError for a name that can be no directory's on every
    store.
    """
    if not _GROUP_NAME.fullmatch(name):
        raise InputError(
            f"slot group {name!r}: expected 1 to 64 of a-z, 0-9, _ and -, the first a letter or a "
            f"digit; take another name"
        )
    return join(table_url, GROUPS_DIR, name)


def group_file_path(base_path: str, name: str) -> str:
    """The path, relative to its group, of a group's file: the base file's path without `.parquet`
    is its directory.
    """
    return f"{base_path.removesuffix(_SUFFIX)}/{name}"


def base_path(group_file: str) -> str:
    """The path of the base data file that a group's file is bound to."""
    return f"{group_file.rpartition('/')[0]}{_SUFFIX}"


def unit_of(name: str) -> int | None:
    """The unit that wrote a data file, by its name or path; None for a file that `data_file_name`
    did not name.
    """
    return int(name.rpartition("/")[2].split("-")[1]) if is_data_file(name) else None


def is_delta_scheme(url: str) -> bool:
    """Whether Delta tables can be read from where the URL points to."""
    return scheme(canonical(url)) in _DELTA_SCHEMES


def decode_path(logged: str) -> str:
    """The path of a data file as a Delta log writes it (percent-encoded once), relative to the
    table.
    """
    return unquote(logged)


def _escape(text: str) -> str:
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _unescape(text: str) -> str | None:
    return None if text == NULL_PARTITION else unquote(text)
