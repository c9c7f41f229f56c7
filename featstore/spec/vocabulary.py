"""Vocabulary files: one value a line, UTF-8, to which lines may only be appended.

The vocabulary is what the lock has recorded of a file. Lines after that are ignored until they are
recorded too.
"""

import codecs
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from featstore.base.errors import SpecError
from featstore.base.redaction import redact
from featstore.files import storage
from featstore.ops.arrays import values_of
from featstore.ops.hashing import value_hash
from featstore.ops.registry import OPERATORS
from featstore.ops.vocabularies import Vocabulary
from featstore.spec.lock import LockedVocabulary
from featstore.spec.model import Node, Spec

_MAX_BYTES = 2**31 - 1  # Arrow's strings have offsets of 32 bits.
_ABSOLUTE = re.compile(r"[A-Za-z][\w+.-]*://|/|file:/|[A-Za-z]:[\\/]")


@dataclass(frozen=True, kw_only=True)
class _Lines:
    """The lines of a file.

    Attributes:
        url: The path or URL.
        values: The value of each line.
        data: The bytes of the file, with normalized newlines.
        ends: int64 `(num_lines,)`, the position in `data` after each line's newline.
    """

    url: str = field(repr=False)
    values: pa.StringArray
    data: bytes
    ends: NDArray[np.int64]

    def digest(self, num_values: int) -> str:
        return hashlib.sha256(self.data[: self._end(num_values)]).hexdigest()

    def marks(self, num_values: int) -> Iterator[str]:
        digest, first, count = hashlib.sha256(), 0, 1
        while count < num_values:
            digest.update(self.data[first : (first := self._end(count))])
            yield digest.hexdigest()[:8]
            count *= 2

    def _end(self, num_values: int) -> int:
        return int(self.ends[num_values - 1]) if num_values else 0


def files_of(spec: Spec) -> dict[str, Node]:
    """The vocabulary files that a spec names, each with the first node that names it."""
    found: dict[str, Node] = {}
    for node in spec.nodes:
        operator, file = OPERATORS.get(node.op), node.params.get("file")
        if operator is not None and operator.reads_vocabulary and isinstance(file, str) and file:
            found.setdefault(file, node)
    return found


def load_vocabularies(spec: Spec, locked: Mapping[str, LockedVocabulary]) -> Spec:
    """Loads the recorded values of the files of a spec.

    Args:
        spec: The spec.
        locked: What the lock recorded, by file.

    Returns:
        The spec with its vocabularies. Files that were never recorded are left out.

    Raises:
        SpecError: A file is missing, malformed, or differs from the recorded one other than by
            appended lines.
    """
    recorded = {
        file: _recorded(_read(spec, file, node), locked[file], node)
        for file, node in files_of(spec).items()
        if file in locked
    }
    return replace(spec, vocabularies=recorded)


def record_vocabularies(spec: Spec) -> Spec:
    """Records all values that the files of a spec have now. Known values keep their indices.

    Raises:
        SpecError: As for `load_vocabularies`.
    """
    recorded: dict[str, Vocabulary] = {}
    for file, node in files_of(spec).items():
        known = spec.vocabularies.get(file)
        if known is not None and not known.num_unrecorded:
            recorded[file] = known
            continue
        lines = _read(spec, file, node)
        if known is not None:
            _recorded(lines, _locked(known), node)
        try:
            _check(lines)
        except ValueError as error:
            raise SpecError(f"{node.where}.file: {redact(lines.url)}: {error}") from error
        num_values = len(lines.values)
        recorded[file] = Vocabulary(
            lines.values, lines.digest(num_values), marks=tuple(lines.marks(num_values))
        )
    return replace(spec, vocabularies=recorded)


def locked_vocabularies(spec: Spec) -> dict[str, LockedVocabulary]:
    """The lock entries of a spec's vocabularies."""
    return {file: _locked(entry) for file, entry in spec.vocabularies.items()}


def _locked(entry: Vocabulary) -> LockedVocabulary:
    return LockedVocabulary(num_values=len(entry), digest=entry.digest, marks=entry.marks)


def _recorded(lines: _Lines, locked: LockedVocabulary, node: Node) -> Vocabulary:
    num_values = locked.num_values
    if len(lines.values) < num_values:
        raise _changed(lines, node, f"{len(lines.values):,} lines, {num_values:,} were recorded")
    if lines.digest(num_values) != locked.digest:
        raise _changed(lines, node, _difference(lines, locked))
    values = lines.values
    # `take` copies: a slice would be pickled with the whole array behind it.
    if len(values) > num_values:
        values = values.take(pa.array(np.arange(num_values)))
    return Vocabulary(
        values,
        locked.digest,
        marks=locked.marks,
        num_unrecorded=len(lines.values) - num_values,
    )


def _changed(lines: _Lines, node: Node, found: str) -> SpecError:
    return SpecError(
        f"{node.where}.file: expected {redact(lines.url)} as it was recorded, or with lines "
        f"appended, found {found}; "
        f"restore it, or give the changed vocabulary a new file, and its slots new numbers"
    )


def _difference(lines: _Lines, locked: LockedVocabulary) -> str:
    """The range of lines in which the first difference lies, as far as the marks narrow it down."""
    same = [
        mark == other
        for mark, other in zip(lines.marks(locked.num_values), locked.marks, strict=False)
    ]
    num_same = same.index(False) if False in same else len(same)
    first = 2 ** (num_same - 1) + 1 if num_same else 1
    last = min(2**num_same, locked.num_values)
    if not locked.marks:
        first, last = 1, locked.num_values
    at = f"line {first:,}" if first >= last else f"a line of {first:,} to {last:,}"
    return f"that {at} is the first that differs"


def _read(spec: Spec, file: str, node: Node) -> _Lines:
    url = file if _ABSOLUTE.match(file) or not spec.base_url else storage.join(spec.base_url, file)
    try:
        with storage.open_read(url) as source:
            data = source.read()
    except (FileNotFoundError, IsADirectoryError) as error:
        raise SpecError(
            f"{node.where}.file: expected a text file at {redact(url)}, found none"
        ) from error
    if len(data) > _MAX_BYTES:
        expected = f"at most {_MAX_BYTES:,} bytes"
        raise SpecError(
            f"{node.where}.file: {redact(url)}: expected {expected}, found {len(data):,}"
        )
    return _lines(data, url)


def _lines(data: bytes, url: str) -> _Lines:
    """Splits a file into lines without checks: a file with a recorded digest was checked before."""
    data = data.replace(b"\r\n", b"\n")
    data = data if data.endswith(b"\n") or not data else data + b"\n"
    # What follows the last newline is no line.
    lines = pc.split_pattern(pa.array([data]), b"\n").values[:-1]
    ends = np.cumsum(values_of(pc.binary_length(lines)) + 1, dtype=np.int64)
    return _Lines(url=url, values=lines.view(pa.string()), data=data, ends=ends)


def padded_values(spec: Spec) -> Iterator[str]:
    """Yields a note for each vocabulary with values that begin or end with white space."""
    for file, entry in spec.vocabularies.items():
        padded = values_of(pc.not_equal(pc.utf8_trim_whitespace(entry.values), entry.values))
        if padded.any():
            line = int(padded.argmax())
            yield (
                f"vocabularies: {file} has {int(padded.sum()):,} values with white space at an "
                f"end, first {entry.values[line].as_py()!r} in line {line + 1:,}; values are "
                "taken as they are"
            )


def _check(lines: _Lines) -> None:
    """Raises ValueError, with the line, where the file is not a valid vocabulary."""
    if lines.data.startswith(codecs.BOM_UTF8):
        raise ValueError(
            "expected UTF-8 without a byte order mark, found one before line 1: save the file "
            "without it"
        )
    try:
        lines.data.decode()
    except UnicodeDecodeError as error:
        line = lines.data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"expected UTF-8, found other bytes in line {line:,}") from error
    values, lengths = lines.values, np.diff(lines.ends, prepend=0) - 1
    if not len(values):
        raise ValueError("expected a value in each line, found no line")
    if not lengths.all():
        raise ValueError(
            f"expected a value in each line, found none in line {int(lengths.argmin()) + 1:,}"
        )
    hashes = np.sort(values_of(value_hash(values)))
    # Equal hashes are nearly always equal values; compare them only then.
    if (hashes[1:] == hashes[:-1]).any():
        known: dict[str, int] = {}
        for line, value in enumerate(values.to_pylist(), 1):
            if value in known:
                raise ValueError(
                    f"expected each value once, found {value!r} in lines {known[value]:,} and "
                    f"{line:,}"
                )
            known[value] = line
