"""The definition of a join of raw logs: impressions, label logs and dimension lookups.

The event time is when something happened; the log time is when it became known. In a log without a
log time, each row is known at its event time. All intervals are half open: a label event belongs to
impressions with `event time <= its time < event time + window`, and is known at the cut-off if `log
time < cut-off`.
"""

import dataclasses
import datetime
import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from featstore.base.errors import ConfigError, nearest
from featstore.base.redaction import redact, redact_text
from featstore.table.layout import check_partition_value

KINDS = ("any", "count", "sum", "first", "last")
ATTRIBUTIONS = ("last", "first", "all")
SAMPLE_WEIGHT = "sample_weight"
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class LogSource:
    """The source of a log's rows; exactly one attribute must be set.

    Attributes:
        url: A Parquet file, a directory or a glob.
        sql: A Spark SQL query.
        table: The name of a table in the metastore.

    Raises:
        ConfigError: None or several of them are set.
    """

    url: str | None = field(default=None, repr=False)
    sql: str | None = None
    table: str | None = None

    def __post_init__(self) -> None:
        given = [value for value in (self.url, self.sql, self.table) if value]
        _require(
            len(given) == 1,
            f"a log needs one of from=URL, sql=QUERY and table=NAME, found {len(given)} of them",
        )

    def __str__(self) -> str:
        return (
            redact(self.url) if self.url else self.table or f"query {redact_text(self.sql or '')!r}"
        )


@dataclass(frozen=True, kw_only=True)
class EventLog:
    """A log of events.

    Attributes:
        event_time: The timestamp column of the event.
        log_time: The timestamp column of when the row was logged, None to use the event time.
    """

    source: LogSource
    event_time: str
    log_time: str | None = None


@dataclass(frozen=True, kw_only=True)
class KeyedLog(EventLog):
    """A log that is joined to the impressions.

    Attributes:
        name: The name of what it adds.
        key: The columns shared with the impressions.
    """

    name: str
    key: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Impressions(EventLog):
    """The log whose rows get labels.

    Attributes:
        row_id: The columns that identify an impression. Rows with the same values are duplicates.
    """

    row_id: tuple[str, ...]

    def __post_init__(self) -> None:
        _require(
            bool(self.row_id),
            "impressions: expected row_id=COLUMN,..., the columns that name a row",
        )


@dataclass(frozen=True, kw_only=True)
class Label(KeyedLog):
    """A label column made from the events of another log.

    Attributes:
        window_s: Events up to this time after the impression count, in seconds.
        horizon_s: The label is null until this time has passed between the impression and the
            cut-off, in seconds; at least `window_s`, which is the default. After that an impression
            without an event gets 0.
        event_id: The columns that identify an event. Rows with the same key and id are one event;
            without an id, rows with the same key, event time and value are.
        value: The column that `sum`, `first` and `last` read.
        kind: What the label holds about the attributed events: whether there is `any`, their
            `count`, the `sum` of their values, or the value of the `first` or `last` one.
        attribution: Which impressions get an event that lies in the window of several impressions
            with the same key: the `last`, the `first` or `all`.
        with_time: Whether to add the column `{name}_time`, the event time of the first attributed
            event.

    Raises:
        ConfigError: The options do not fit each other.
    """

    window_s: int
    horizon_s: int | None = None
    event_id: tuple[str, ...] = ()
    value: str | None = None
    kind: str = "any"
    attribution: str = "last"
    with_time: bool = False

    def __post_init__(self) -> None:
        where = f"label {self.name!r}"
        _check_name(self.name, where)
        _require(
            bool(self.key),
            f"{where}: expected key=COLUMN,..., the columns shared with the impressions",
        )
        _require_one_of(self.kind, KINDS, f"{where}: kind")
        _require_one_of(self.attribution, ATTRIBUTIONS, f"{where}: attribution")
        _require(self.window_s > 0, f"{where}: expected a window above 0, found {self.window_s} s")
        _require(
            self.ripe_after_s >= self.window_s,
            f"{where}: expected a horizon of at least the window ({self.window_s} s), found "
            f"{self.ripe_after_s} s: events may still come while the window is open",
        )
        needs_value = self.kind in ("sum", "first", "last")
        _require(
            not needs_value or self.value is not None,
            f"{where}: kind {self.kind!r} needs value=COLUMN",
        )
        _require(
            needs_value or self.value is None,
            f"{where}: kind {self.kind!r} reads no value; leave value= out",
        )

    @property
    def ripe_after_s(self) -> int:
        return self.window_s if self.horizon_s is None else self.horizon_s

    @property
    def time_column(self) -> str:
        return f"{self.name}_time"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the label adds."""
        return (self.name, self.time_column) if self.with_time else (self.name,)


@dataclass(frozen=True, kw_only=True)
class Lookup(KeyedLog):
    """A lookup of a dimension's latest row at or before the impression.

    Its columns are added as `{name}_{column}`. If the dimension has a log time, only rows known at
    the impression count. Among rows with the same time, the row known last wins, then one chosen by
    a hash of its values.

    Attributes:
        columns: The columns to add.
        max_age_s: Older rows give nulls; in seconds, None for no limit.

    Raises:
        ConfigError: The options do not fit each other.
    """

    columns: tuple[str, ...]
    max_age_s: int | None = None

    def __post_init__(self) -> None:
        where = f"lookup {self.name!r}"
        _check_name(self.name, where)
        _require(
            bool(self.key and self.columns),
            f"{where}: expected key=COLUMN,... and columns=COLUMN,...",
        )
        _require(
            self.max_age_s is None or self.max_age_s >= 0,
            f"{where}: expected a max_age of 0 or more",
        )

    @property
    def added(self) -> tuple[str, ...]:
        """The columns that the lookup adds."""
        return tuple(f"{self.name}_{column}" for column in self.columns)


@dataclass(frozen=True, kw_only=True)
class NegativeSampling:
    """Sampling of negatives: rows whose label is 0.

    A negative is kept if `sample(row id, rate, seed)` draws it, and gets `1 / rate` in the column
    `sample_weight`; all other rows are kept with weight 1. Rows kept at a lower rate are also kept
    at a higher one.

    Attributes:
        rate: Share of negatives to keep, above 0 and at most 1.
        seed: An int32 seed of the draw.
        label: The label that must be 0; None if all labels must be.

    Raises:
        ConfigError: The rate or seed is out of range.
    """

    rate: float
    seed: int = 0
    label: str | None = None

    def __post_init__(self) -> None:
        _require(
            0 < self.rate <= 1,
            f"negatives: expected a rate above 0 and at most 1, found {self.rate}",
        )
        _require(
            -(2**31) <= self.seed < 2**31, f"negatives: expected an int32 seed, found {self.seed}"
        )


@dataclass(frozen=True, kw_only=True)
class LabelJoin:
    """A complete join: its inputs, the cut-off and the output.

    Rows are written to the directory `{output_url}`, below it `key=value/` for each key of
    `partition`.

    Attributes:
        cut_off: Only rows logged before this time are known; must have a time zone.
        partition_by: Columns whose values become further directories.
        drop_incomplete: Drop impressions without a row id or event time; otherwise they fail the
            join.

    Raises:
        ConfigError: The options do not fit each other.
        InputError: A partition value is empty, or cannot be the name of a directory.
    """

    impressions: Impressions
    labels: tuple[Label, ...]
    cut_off: datetime.datetime
    output_url: str = field(repr=False)
    lookups: tuple[Lookup, ...] = ()
    negatives: NegativeSampling | None = None
    partition: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()
    drop_incomplete: bool = False

    def __post_init__(self) -> None:
        _require(bool(self.labels), "expected at least one label")
        _require(
            self.cut_off.tzinfo is not None,
            f"cut_off: expected a time zone, found {self.cut_off.isoformat()}",
        )
        names = [*(label.name for label in self.labels), *(lookup.name for lookup in self.lookups)]
        _require(
            len(set(names)) == len(names),
            f"expected each label and lookup under a name of its own, found {names}",
        )
        drawn = None if self.negatives is None else self.negatives.label
        known = [label.name for label in self.labels]
        _require(
            drawn is None or drawn in known,
            f"negatives: no label {drawn!r} among {known}{nearest(drawn or '', known)}",
        )
        for key, value in self.partition.items():
            check_partition_value(key, value, "partition")

    @property
    def added(self) -> tuple[str, ...]:
        """The columns that the join adds to those of the impressions, in order."""
        columns = [column for part in self.lookups for column in part.added]
        columns += [column for label in self.labels for column in label.columns]
        return (*columns, SAMPLE_WEIGHT) if self.negatives is not None else tuple(columns)

    @property
    def sources(self) -> tuple[LogSource, ...]:
        labels, lookups = (
            (label.source for label in self.labels),
            (lookup.source for lookup in self.lookups),
        )
        return (self.impressions.source, *labels, *lookups)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of what the join does, independent of where its rows are written."""
        document = dataclasses.asdict(self) | {"output_url": None, "cut_off": self.cut_off_us}
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()

    @property
    def cut_off_us(self) -> int:
        """The cut-off in microseconds since 1970-01-01 UTC."""
        epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        return (self.cut_off - epoch) // datetime.timedelta(microseconds=1)


def duration_s(text: str) -> int:
    """Parses `90s`, `30m`, `1h` or `7d` into seconds.

    Raises:
        ConfigError: The text has another form.
    """
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if match is None:
        raise ConfigError(f"expected a duration such as 90s, 30m, 1h or 7d, found {text!r}")
    return int(match[1]) * _UNITS_S[match[2]]


def parse_time(text: str) -> datetime.datetime:
    """Parses an ISO time; without a zone it is UTC.

    Raises:
        ConfigError: The text is not an ISO time.
    """
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"expected a time such as 2026-11-02T00:00:00+00:00, found {text!r}"
        ) from None
    return time if time.tzinfo else time.replace(tzinfo=datetime.UTC)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _boolean(text: str) -> bool:
    _require_one_of(text, ("true", "false"), "with_time")
    return text == "true"


_SOURCES = {"from": "url", "sql": "sql", "table": "table"}
# How the text of a key is read; of others it is the value.
_READERS: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("row_id", "key", "event_id", "columns"), _names),
    **dict.fromkeys(("window", "horizon", "max_age"), duration_s),
    "with_time": _boolean,
}
_Log = TypeVar("_Log", bound=EventLog)


def parse_log(text: str, log: type[_Log]) -> _Log:
    """Parses `key=value` pairs, whose keys are the attributes of `log` without units, and `from`,
    `sql` or `table`. Pairs that hold spaces are quoted as in a shell:

        from=URL row_id=a,b event_time=ts log_time=ingested
        name=click from=URL key=a,b event_time=ts window=1h kind=count
        name=user 'sql=select * from users' key=user_id event_time=ts columns=age max_age=30d

    Raises:
        ConfigError: The text has another form.
    """
    where = log.__name__.lower()
    pairs, shown = _pairs(text, where), f"{where} {redact_text(text)!r}"
    of_key = {
        attribute.name.removesuffix("_s"): attribute
        for attribute in dataclasses.fields(log)
        if attribute.name != "source"
    }
    names = [*_SOURCES, *of_key]
    for key in pairs:
        if key not in names:
            raise ConfigError(
                f"{shown}: no key {redact_text(key)!r}; expected {', '.join(names)}"
                f"{nearest(key, names)}"
            )
    given = {key: value for key, value in pairs.items() if key in of_key}
    source = LogSource(**{_SOURCES[key]: pairs[key] for key in pairs.keys() - given.keys()})
    arguments = {of_key[key].name: _READERS.get(key, str)(value) for key, value in given.items()}
    needed = [key for key, one in of_key.items() if one.default is dataclasses.MISSING]
    missing = [f"{key}=..." for key in needed if key not in given]
    if missing:
        raise ConfigError(f"{shown}: expected {', '.join(missing)} as well")
    return log(source=source, **arguments)


def _pairs(text: str, where: str) -> dict[str, str]:
    try:
        parts = [part.partition("=") for part in shlex.split(text)]
    except ValueError as error:
        raise ConfigError(f"{where} {redact_text(text)!r}: {error}") from None
    for key, equals, value in parts:
        if not (key and equals and value):
            raise ConfigError(
                f"{where} {redact_text(text)!r}: expected KEY=VALUE, found "
                f"{redact_text(key) + equals!r}"
            )
    keys = [key for key, _, _ in parts]
    _require(len(set(keys)) == len(keys), f"{where} {redact_text(text)!r}: expected each key once")
    return {key: value for key, _, value in parts}


def _check_name(name: str, where: str) -> None:
    _require(
        _NAME.fullmatch(name) is not None,
        f"{where}: expected a name of letters, digits and _, found {name!r}",
    )


def _require_one_of(value: str, known: Iterable[str], where: str) -> None:
    _require(
        value in known,
        f"{where}: expected one of {', '.join(known)}, found {value!r}{nearest(value, known)}",
    )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(message)
