"""The logs of histories from one run to the next: of which files a run read them, and whether
events that its rows may see have come since.
"""

import base64
import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

import numpy as np

from featstore.base.redaction import redact
from featstore.extraction.units.extractor import EventExtractor, times_key, widen
from featstore.extraction.units.raw import (
    LogFile,
    as_input_errors,
    first_times,
    input_digest,
    list_input,
    open_raw,
    opened_files,
    plan_units,
    rows_part,
)
from featstore.extraction.units.unit import UnitReport, extract_unit
from featstore.histories.stored import stored_histories
from featstore.histories.visibility import oldest_seen
from featstore.ops.arrays import Integers, values_of
from featstore.ops.hashing import MISSING
from featstore.spec.model import EventHistory, Spec
from featstore.table.metadata import to_json
from featstore.table.open import OpenedTables
from featstore.table.snapshot import DataFile

# Its mark; and in whole minutes since 1970 when its first event became known, and its last one. A
# file without any has the last minute of all, and the first.
_FILE = struct.Struct(">8sii")
_MINUTE, _FIRST_MINUTE, _LAST_MINUTE = 60_000_000, -(2**31), 2**31 - 1
_NEVER, _ALWAYS = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_UNIT_ROWS = 1 << 20


def file_marks(history: EventHistory, listed: Iterable[LogFile]) -> dict[bytes, LogFile]:
    """Files of a log, as of `list_input`, by their marks: 8 bytes, others once a file changes."""
    columns = EventExtractor(history).input_columns
    return {
        hashlib.sha256(input_digest([file], columns).encode()).digest()[:8]: file for file in listed
    }


def as_told(
    logs: Mapping[str, Mapping[bytes, LogFile]], reports: Iterable[UnitReport]
) -> dict[str, dict[str, object]]:
    """What a commit tells of the logs: `CommitMetadata.events`.

    Args:
        logs: By history, the files of its log.
        reports: What the run's units and buckets reported.
    """
    times = dict[str, tuple[int, int]]()
    for report in reports:
        for name, span in report.times.items():
            widen(times, name, np.array(span))
    told = dict[str, dict[str, object]]()
    for name, marks in logs.items():
        records = list[bytes]()
        for mark, (entry, _) in sorted(marks.items()):
            first, last = times.get(times_key(name, redact(entry.url)), (_ALWAYS, _NEVER))
            records.append(_FILE.pack(mark, _minute(first), _minute(last)))
        files = base64.b64encode(b"".join(records)).decode()
        told[name] = {"files": files, "as_of": list(times[name]) if name in times else None}
    return told


def _minute(time: int) -> int:
    return min(max(time // _MINUTE, _FIRST_MINUTE), _LAST_MINUTE)


def with_events(rows: str, logs: Mapping[str, Iterable[bytes]]) -> str:
    """The `input_digest` of rows and, by history, of the files of logs.

    It is that of the rows and, if there are logs, `+` and the SHA-256 (hex) of the JSON of the
    sorted marks of each, in hex.
    """
    if not logs:
        return rows
    texts = {name: b"".join(sorted(marks)).hex() for name, marks in logs.items()}
    return f"{rows}+{hashlib.sha256(to_json(texts).encode()).hexdigest()}"


class EventLogs:
    """The logs of a spec's histories as they are now. Not thread-safe.

    Args:
        spec: The spec.
        urls: By history, its log.
        opened: As of `open_input`.
    """

    def __init__(self, spec: Spec, urls: Mapping[str, str], opened: OpenedTables) -> None:
        self._logs = {
            history.name: _LogNow(
                history, stored.key_column, list_input(urls[history.name], opened=opened)
            )
            for history, stored in zip(spec.histories, stored_histories(spec), strict=True)
        }
        self._marks = {name: log.marks for name, log in self._logs.items()}

    def digest(
        self,
        rows: str,
        held: str,
        logs: Mapping[str, Mapping[str, object]],
        files: Iterable[DataFile],
    ) -> str:
        """The `input_digest` that an extraction of raw rows would have now, or that of an earlier
        one, if it would see the same events.

        Args:
            rows: The `input_digest` of the raw rows.
            held: The `input_digest` of the earlier extraction; empty if unknown.
            logs: Its `CommitMetadata.events`.
            files: The data files that hold its rows.

        Raises:
            InputError: A file that came late, or a data file, cannot be read.
        """
        now = with_events(rows, self._marks)
        is_known = rows_part(held) == rows and logs.keys() == self._logs.keys()
        if not is_known or held == now:
            return now
        changes = any(log.changes(logs[name], files) for name, log in self._logs.items())
        return now if changes else held


class _LogNow:
    """The log of one history."""

    def __init__(self, history: EventHistory, key_column: str, files: Iterable[LogFile]) -> None:
        self.marks = file_marks(history, files)
        self._history, self._key_column = history, key_column
        self._first_known = dict[bytes, int]()
        self._events_of = cache(self._read)

    def changes(self, told: Mapping[str, object], files: Iterable[DataFile]) -> bool:
        """Whether rows may see other events than in the run that told this of the log."""
        if not isinstance(told["as_of"], Sequence):
            return False
        first, last = told["as_of"]
        # An event that became known before the window is too old, as are all before it in order.
        oldest = _NEVER if self._history.window is None else first - self._history.window
        before = set[bytes]()
        for mark, low, high in _FILE.iter_unpack(base64.b64decode(str(told["files"]))):
            before.add(mark)
            is_early = low == _FIRST_MINUTE or low * _MINUTE < last
            is_new = high == _LAST_MINUTE or (high + 1) * _MINUTE > oldest
            if mark not in self.marks and is_early and is_new:
                return True
        new = sorted(self.marks.keys() - before)
        unknown = [mark for mark in new if mark not in self._first_known]
        found = first_times([self.marks[mark] for mark in unknown], self._history.times)
        self._first_known |= dict(zip(unknown, found, strict=True))
        late = list[Integers]()
        for mark in new:
            if self._first_known[mark] < last:
                events = self._events_of(mark)
                # Of text and of files without statistics it is known once they are read.
                self._first_known[mark] = int(events[1].min(initial=_ALWAYS))
                if self._first_known[mark] < last:
                    late.append(events)
        return bool(late) and any(
            self._sees(keys, as_of, late) for file in files for keys, as_of in self._rows(file)
        )

    def _read(self, mark: bytes) -> Integers:
        """The different signs of keys of a file's events, ascending, and of each when its first
        event became known, and its last one: int64 (3, num_keys).
        """
        extractor, found = EventExtractor(self._history), np.zeros((3, 0), np.int64)
        files = opened_files([self.marks[mark]], self._history.inputs)
        for unit in plan_units(files, _UNIT_ROWS):
            parts = [found]
            for events in extract_unit(unit, extractor):
                known = extractor.known(events)
                parts.append(np.stack([values_of(events.columns[-1]), known, known]))
            keys, low, high = np.concatenate(parts, axis=1)
            order = np.argsort(keys, kind="stable")
            first = np.flatnonzero(np.diff(keys[order], prepend=MISSING))
            if len(first):
                lows, highs = (
                    reduce.reduceat(of[order], first)
                    for reduce, of in ((np.minimum, low), (np.maximum, high))
                )
                found = np.stack([keys[order][first], lows, highs])
        return found

    def _rows(self, file: DataFile) -> Iterator[tuple[Integers, Integers]]:
        """The signs of keys and the times of the rows of each row group."""
        columns = [self._key_column, self._history.as_of]
        with as_input_errors(redact(file.url)), open_raw(file.url, file.size_bytes) as parquet:
            for index in range(parquet.num_row_groups):
                rows = parquet.read_row_group(index, columns=columns, use_threads=False)
                keys, as_of = (rows.column(name).combine_chunks() for name in columns)
                yield values_of(keys), values_of(as_of)

    def _sees(self, keys: Integers, as_of: Integers, late: Iterable[Integers]) -> bool:
        """Whether any row may see an event."""
        window = self._history.window
        oldest = np.full(len(keys), _NEVER) if window is None else oldest_seen(as_of, window)
        for of_keys, low, high in late:  # each has events, of which one became known
            own = np.minimum(np.searchsorted(of_keys, keys), len(of_keys) - 1)
            seen = (of_keys[own] == keys) & (low[own] < as_of) & (high[own] >= oldest)
            if seen.any():
                return True
        return False
