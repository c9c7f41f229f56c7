"""Rules about what makes a table slow to read, judged from its footers. Pure functions; each
finding has a figure, a threshold, a reason and advice.

The costs of codecs and encodings were measured with `benchmarks/writing.py`. The thresholds for
numbers of rows, bytes and files are judgement (`docs/design/writing.md`).
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

# A footer is named as large above 1 MiB, about 8 ms of parsing for each open file, if it is also
# more than 2 % of the file's bytes. Chosen.
FOOTER_BYTES = 1 << 20
FOOTER_SHARE = 0.02
# Measured: a footer of 2,000 columns in 10 row groups, 2.5-3.2 MB, takes 14 to 27 ms.
PARSE_NS_PER_BYTE = 8
# Row groups with fewer rows cost more calls and dictionaries per row; with more rows or bytes they
# take more memory to decode, and the first batch of a file comes later. Chosen.
MIN_GROUP_ROWS, MAX_GROUP_ROWS = 16_384, 1_048_576
MAX_GROUP_BYTES = 512 << 20
BEST_GROUP_ROWS = 65_536  # The default of output.rows_per_row_group.
# The largest file may have this many times the bytes of the median, and is ignored below 1 MiB.
SKEW, SKEWED_BYTES = 4.0, 1 << 20
# This many files below 16 MiB are named: opening a file then costs as much as reading it. Chosen.
SMALL_FILE_BYTES, NUM_SMALL_FILES = 16 << 20, 16
# More batches than this that straddle files, which are joined by a copy, are named. Chosen.
STRADDLING_SHARE = 0.1
# A plain slot that snappy or zstd compresses below this share repeats values, for which a
# dictionary decodes faster.
COMPRESSIBLE_SHARE = 0.7
MIN_VALUES = 1_000  # fewer values in a row group do not show what an encoding saves
SLOW_CODECS = {
    "UNCOMPRESSED": "as large as it gets",
    "GZIP": "several times slower to decode than zstd, at about its size",
}
SLOW_CODECS["BROTLI"] = SLOW_CODECS["GZIP"]
SLOW_ENCODINGS = {
    "BYTE_STREAM_SPLIT": (
        "decodes 3 to 5 times slower than plain floats, for 4 to 17 % of the bytes"
    ),
    "DELTA_BYTE_ARRAY": "decodes texts slower than DELTA_LENGTH_BYTE_ARRAY, at about the same size",
    "PLAIN_DICTIONARY": (
        "indicates version 1 pages, whose incompressible values decode 10 to 30 % slower"
    ),
}
SLOW_ENCODINGS["BIT_PACKED"] = SLOW_ENCODINGS["PLAIN_DICTIONARY"]
_WIDTHS = {"INT64": 8, "DOUBLE": 8, "INT32": 4, "FLOAT": 4, "INT96": 12}
_REWRITE = "extract the partitions again with this featstore, or rewrite the files"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One warning.

    Attributes:
        rule: The name of the rule.
        found: What was found, with its unit.
        threshold: What the rule allows, with its unit.
        reason: Why it is slow.
        advice: What to do.
    """

    rule: str
    found: str
    threshold: str
    reason: str
    advice: str

    def __str__(self) -> str:
        return (
            f"{self.rule}: {self.found} (threshold: {self.threshold}). {self.reason} To do: "
            f"{self.advice}."
        )


@dataclass(frozen=True, kw_only=True)
class ColumnFacts:
    """A leaf column in the first row group of a file.

    Attributes:
        name: The name of the column.
        physical_type: The Parquet type.
        is_slot: Whether it holds a slot's values.
        may_be_null: Whether the column, or the elements of its list, are not `required`.
        num_nulls: The number of nulls; None if the file does not say.
        has_field_id: Whether it has a slot number, or a Parquet field id.
        has_dictionary: Whether it has a dictionary page.
        codec: The compression.
        encodings: The encodings of its pages.
        num_values: The number of values, nulls included.
        stored_bytes: The compressed size.
        raw_bytes: The size before compression.
    """

    name: str
    physical_type: str
    is_slot: bool
    may_be_null: bool
    num_nulls: int | None
    has_field_id: bool
    has_dictionary: bool
    codec: str
    encodings: frozenset[str]
    num_values: int
    stored_bytes: int
    raw_bytes: int


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """The footer of a file.

    Attributes:
        path: The path below the table.
        size_bytes: The size of the file.
        footer_bytes: The size of its footer.
        group_rows: The rows of each row group.
        group_bytes: The decoded bytes of each row group.
        columns: The leaf columns of the first row group.
        fields: The name of each column, and its type, field id and meaning as text.
        is_own: Whether featstore wrote the file: then it chose codecs and dictionaries by the
            values, and would choose them again.
    """

    path: str
    size_bytes: int
    footer_bytes: int
    group_rows: tuple[int, ...]
    group_bytes: tuple[int, ...]
    columns: tuple[ColumnFacts, ...]
    fields: tuple[tuple[str, str], ...]
    is_own: bool = False

    @property
    def num_rows(self) -> int:
        return sum(self.group_rows)


def find(
    files: Sequence[FileFacts], listed: Sequence[tuple[str, int]], batch_size: int
) -> tuple[Finding, ...]:
    """Applies all rules. None advises what a table has already.

    Args:
        files: The files whose footers were read; at least one.
        listed: The path and the size in bytes of every file of the table.
        batch_size: The batch size, in rows, of the jobs that read the table.
    """
    return (
        *footers(files),
        *row_groups(files),
        *file_sizes(listed),
        *batches(files, batch_size),
        *schemas(files),
        *columns(files),
    )


def footers(files: Sequence[FileFacts]) -> Iterator[Finding]:
    """Footers that are long, absolutely or as a share of their file."""
    widest = max(files, key=lambda file: file.footer_bytes)
    share = widest.footer_bytes / max(1, widest.size_bytes)
    if widest.footer_bytes <= FOOTER_BYTES and (
        share <= FOOTER_SHARE or widest.size_bytes < SMALL_FILE_BYTES
    ):
        return
    num_columns = max(1, len(widest.columns))
    parse_ms = widest.footer_bytes * PARSE_NS_PER_BYTE / 1e6
    yield Finding(
        rule="wide footer",
        found=f"{widest.path} has a footer of {widest.footer_bytes:,} bytes, {share:.1%} of the "
        f"file, parsed in about "
        f"{parse_ms:.0f} ms: {parse_ms / min(10, num_columns):.1f} ms for each of 10 selected "
        f"columns of {num_columns:,}",
        threshold=f"{FOOTER_BYTES:,} bytes, or {FOOTER_SHARE:.0%} of a file of "
        f"{SMALL_FILE_BYTES >> 20} MiB or more",
        reason="Every reader fetches and parses the whole footer, however few columns it selects.",
        advice=_shorter_footer(widest),
    )


def _shorter_footer(file: FileFacts) -> str:
    fewer_slots = "extract fewer slots into one table, for instance some into a slot group"
    best = _best_group_rows([file])
    if len(file.group_rows) > 1 and 2 * file.group_rows[0] <= best:
        return f"set output.rows_per_row_group to {best:,}, and extract again; or {fewer_slots}"
    if file.num_rows < best and file.size_bytes < SMALL_FILE_BYTES:
        return f"write fewer and larger partitions; or {fewer_slots}"
    return fewer_slots


def row_groups(files: Sequence[FileFacts]) -> Iterator[Finding]:
    """Row groups with too few rows (the last of a file aside), or with too many rows or bytes."""
    inner = [rows for file in files for rows in file.group_rows[:-1]]
    best = _best_group_rows(files)
    if inner and (median := statistics.median(inner)) < min(MIN_GROUP_ROWS, best):
        yield Finding(
            rule="small row groups",
            found=f"{median:,.0f} rows in the median row group",
            threshold=f"at least {min(MIN_GROUP_ROWS, best):,}",
            reason="Each row group adds to the footer, repeats dictionaries, and costs a call for "
            "every column.",
            advice=f"set output.rows_per_row_group to {best:,}, and extract again",
        )
    rows = max(rows for file in files for rows in (*file.group_rows, 0))
    size = max(size for file in files for size in (*file.group_bytes, 0))
    if (rows > MAX_GROUP_ROWS or size > MAX_GROUP_BYTES) and best < rows:
        yield Finding(
            rule="large row groups",
            found=f"{rows:,} rows, {size:,} bytes decoded, in the largest",
            threshold=f"{MAX_GROUP_ROWS:,} rows, {MAX_GROUP_BYTES:,} bytes",
            reason="A reader holds a row group at a time, of all columns that it selects.",
            advice=f"set output.rows_per_row_group to {best:,}, and extract again",
        )


def _best_group_rows(files: Sequence[FileFacts]) -> int:
    """The rows of a row group to advise: a power of two of at most `BEST_GROUP_ROWS`, with fewer
    bytes than `MAX_GROUP_BYTES` in the file with the widest rows.
    """
    row_bytes = max(sum(file.group_bytes) / max(1, file.num_rows) for file in files)
    fitting = int(MAX_GROUP_BYTES / max(1, row_bytes))
    return min(BEST_GROUP_ROWS, 1 << max(0, fitting.bit_length() - 1))


def file_sizes(listed: Sequence[tuple[str, int]]) -> Iterator[Finding]:
    """Files of skewed sizes, and many small files."""
    sizes = [size for _, size in listed]
    num_files = Counter(_partition(path) for path, _ in listed)
    median, (largest_path, largest) = statistics.median(sizes), max(listed, key=lambda one: one[1])
    if len(sizes) >= 3 and largest >= SKEWED_BYTES and largest > SKEW * median:
        is_alone = num_files[_partition(largest_path)] == 1
        yield Finding(
            rule="skewed files",
            found=f"the largest of {len(sizes):,} files has {largest:,} bytes, "
            f"{largest / max(1, median):.1f} times the median",
            threshold=f"{SKEW:.0f} times",
            reason="A file is what a worker stages and leases: the others wait for the largest at "
            "the end of an epoch.",
            advice="lower output.bytes_per_file or output.rows_per_file, and cut large row groups "
            "of the raw files" + ("; or extract small days together" if is_alone else ""),
        )
    small = [path for path, size in listed if size < SMALL_FILE_BYTES]
    if len(small) >= NUM_SMALL_FILES and 2 * len(small) > len(sizes):
        # A partition's only file cannot be joined with another one.
        can_be_joined = any(num_files[_partition(path)] > 1 for path in small)
        yield Finding(
            rule="small files",
            found=f"{len(small):,} of {len(sizes):,} files are below {SMALL_FILE_BYTES >> 20} MiB",
            threshold=f"{NUM_SMALL_FILES} files and half of them",
            reason="Each file costs a listing, a request, a footer and a lease. Ranks need splits, "
            "not files, to share an epoch evenly: dispatch.split_rows cuts files at row groups.",
            advice="raise output.rows_per_file, write fewer partitions, "
            "or extract more raw files at once"
            if can_be_joined
            else "write fewer partitions, for instance one for each day instead of each hour",
        )


def batches(files: Sequence[FileFacts], batch_size: int) -> Iterator[Finding]:
    """Batches that cross the end of a row group or file."""
    files = _of_whole_batches(files, batch_size)
    num_batches = max(1, math.ceil(sum(file.num_rows for file in files) / batch_size))
    num_cuts = sum(rows % batch_size != 0 for file in files for rows in file.group_rows[:-1])
    ends = Counter(_partition(file.path) for file in files if file.num_rows % batch_size)
    # A partition's rows are rarely a multiple: one of its files ends within a batch, however they
    # are written.
    num_ends = ends.total() - len(ends)
    share = (num_cuts + num_ends) / num_batches
    if num_cuts + num_ends > 1 and share > STRADDLING_SHARE:
        yield Finding(
            rule="cut batches",
            found=f"{min(share, 1):.0%} of the batches of {batch_size:,} rows cross the end of a "
            f"row group or of a file",
            threshold=f"{STRADDLING_SHARE:.0%}",
            reason="Such a batch is assembled by copying, others are views.",
            advice="make rows_per_row_group and rows_per_file large multiples of the batch size "
            "(set with --batch-size)",
        )


def _of_whole_batches(files: Sequence[FileFacts], batch_size: int) -> list[FileFacts]:
    """The files of partitions that have at least a batch of rows. Batches of smaller partitions
    cross files however these are written.
    """
    num_rows: Counter[str] = Counter()
    for file in files:
        num_rows[_partition(file.path)] += file.num_rows
    return [file for file in files if num_rows[_partition(file.path)] >= batch_size]


def _partition(path: str) -> str:
    return path.rpartition("/")[0]


def schemas(files: Sequence[FileFacts]) -> Iterator[Finding]:
    """Columns that some files lack or define differently."""
    versions: dict[str, Counter[str]] = {}
    for file in files:
        for name, text in file.fields:
            versions.setdefault(name, Counter())[text] += 1
    mixed = {name: texts for name, texts in versions.items() if len(texts) > 1}
    absent = [name for name, texts in versions.items() if texts.total() < len(files)]
    if not mixed and not absent:
        return
    examples = [
        f"{name} is {' or '.join(sorted(texts))}" for name, texts in sorted(mixed.items())[:3]
    ]
    examples += [
        f"{name} is in {versions[name].total():,} of {len(files):,} files"
        for name in sorted(absent)[:3]
    ]
    yield Finding(
        rule="mixed schemas",
        found=f"{len(mixed):,} columns differ between files, {len(absent):,} are not in all: "
        f"{'; '.join(examples)}",
        threshold="none",
        reason=(
            "A slot reads as missing in files that lack it, and has other values in files where "
            "its meaning differs."
        ),
        advice="extract the older partitions again, or select partitions of one kind with where",
    )


def columns(files: Sequence[FileFacts]) -> Iterator[Finding]:
    """Columns that are slow to read, or not what they should be."""
    for applies, finding in _COLUMN_RULES:
        found = (column.name for file in files for column in file.columns if applies(file, column))
        names = list(dict.fromkeys(found))
        if names:
            more = ", ..." if len(names) > 5 else ""
            listed = f"{', '.join(names[:5])}{more}"
            yield replace(finding, found=f"{len(names):,} {finding.found}: {listed}")


def _lacks_dictionary(file: FileFacts, column: ColumnFacts) -> bool:
    """A file of featstore lacks a dictionary only where it would not pay, also if compression
    halves the values: it may be too large for the processor's cache, or the values too narrow.
    """
    return (
        not file.is_own
        and column.is_slot
        and column.num_values >= MIN_VALUES
        and not column.has_dictionary
        and column.physical_type != "BOOLEAN"
        and "PLAIN" in column.encodings
        and column.stored_bytes < COMPRESSIBLE_SHARE * column.raw_bytes
    )


def _has_dictionary_in_vain(file: FileFacts, column: ColumnFacts) -> bool:
    # Nullable columns also store levels, so their size says nothing.
    width = _WIDTHS.get(column.physical_type)
    if width is None or column.may_be_null or column.num_values < MIN_VALUES:
        return False
    num_stored = column.num_values - (column.num_nulls or 0)
    return column.has_dictionary and column.raw_bytes > 1.1 * num_stored * width


def _has_codec(codec: str, file: FileFacts, column: ColumnFacts) -> bool:
    return not file.is_own and column.codec == codec


def _has_encoding(encoding: str, file: FileFacts, column: ColumnFacts) -> bool:
    return encoding in column.encodings


# Which columns a finding is about. `found` follows their number.
_COLUMN_RULES: Sequence[tuple[Callable[[FileFacts, ColumnFacts], bool], Finding]] = (
    (
        lambda file, column: column.is_slot and not column.has_field_id,
        Finding(
            rule="no field ids",
            found="slots without a Parquet field id",
            threshold="none",
            reason=(
                "They are identified by name alone: after a renaming, the slots of older files "
                "read as missing."
            ),
            advice="extract with a spec, which gives slots numbers",
        ),
    ),
    (
        lambda file, column: column.is_slot and column.may_be_null and not column.num_nulls,
        Finding(
            rule="nullable slots",
            found="slots that may be null, although no nulls are known in them",
            threshold="none",
            reason="Required columns and list elements read 1.2 to 1.4 times faster.",
            advice=_REWRITE,
        ),
    ),
    (
        _lacks_dictionary,
        Finding(
            rule="no dictionary",
            found=f"slots without a dictionary that compress to less than {COMPRESSIBLE_SHARE:.0%}",
            threshold="none",
            reason=(
                "Values that repeat decode 4 to 7 times faster from a dictionary than from "
                "compressed plain pages."
            ),
            advice=f"{_REWRITE} with dictionaries (a list's by its leaf path, name.list.element)",
        ),
    ),
    (
        _has_dictionary_in_vain,
        Finding(
            rule="dictionary in vain",
            found="columns whose dictionary makes them larger than plain values",
            threshold="none",
            reason="Values that hardly repeat decode 3 to 4 times faster from plain pages.",
            advice=f"{_REWRITE} without a dictionary for them",
        ),
    ),
    *(
        (
            partial(_has_codec, codec),
            Finding(
                rule="codec",
                found=f"columns are {codec}",
                threshold="snappy or zstd",
                reason=f"That is {reason}.",
                advice=(
                    f"{_REWRITE} with snappy, or with zstd if bytes matter more than time "
                    "(output.compression)"
                ),
            ),
        )
        for codec, reason in SLOW_CODECS.items()
    ),
    *(
        (
            partial(_has_encoding, encoding),
            Finding(
                rule="slow encoding",
                found=f"columns are encoded as {encoding}",
                threshold="none",
                reason=f"That {reason}.",
                advice=_REWRITE,
            ),
        )
        for encoding, reason in SLOW_ENCODINGS.items()
    ),
)
