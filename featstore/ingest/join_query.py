"""The expressions of a join of logs, as Spark SQL text. Pure functions of the join's definition.

Times are microseconds since 1970 UTC in `bigint`, so that time zones and daylight saving cannot
shift an interval. Columns that the join makes begin with `__`; the index i of a label or j of a
lookup ends their names.

No impression can be duplicated: labels are joined as one array of events per key, lookups by
intervals that do not overlap. The attribution of an event is decided by intervals too. Order the
impressions of one key by time and row id. The last impression at or before an event is the one
whose successor comes after the event. The first impression whose window holds the event is the one
whose predecessor's window ended before it.
"""

from collections.abc import Iterable, Mapping, Sequence

from featstore.ingest.join_options import SAMPLE_WEIGHT, Label, Lookup, NegativeSampling

DELAY_BOUNDARIES_S = (1, 10, 60, 300, 900, 3_600, 21_600, 86_400, 259_200, 604_800, 2_592_000)
NUM_BUCKETS = len(DELAY_BOUNDARIES_S) + 1
_US = 1_000_000
_BEFORE_NEXT = "(__next is null or e.time < __next)"


def quote(name: str) -> str:
    """Quotes a column name for SQL, whatever characters it contains."""
    return "`" + name.replace("`", "``") + "`"


def names(columns: Iterable[str]) -> str:
    """Quotes column names and joins them with commas."""
    return ", ".join(map(quote, columns))


def micros(column: str, types: Mapping[str, str]) -> str:
    """A time in microseconds since 1970 UTC; a timestamp without a zone is taken as UTC."""
    naive = types[column] == "timestamp_ntz"
    return f"unix_micros({f'cast({quote(column)} as timestamp)' if naive else quote(column)})"


def known_micros(log_time: str | None, event_time: str, types: Mapping[str, str]) -> str:
    """When a row became known: at its log time, or without one at its event time."""
    happened = micros(event_time, types)
    return happened if log_time is None else f"coalesce({micros(log_time, types)}, {happened})"


def present(columns: Iterable[str]) -> str:
    """The condition that none of the columns is null."""
    return " and ".join(f"{quote(column)} is not null" for column in columns)


def content_hash(columns: Iterable[str], types: Mapping[str, str]) -> str:
    """A hash of the row's values, which breaks ties between rows of equal rank."""
    hashed = (
        f"map_entries({quote(column)})" if types[column].startswith("map<") else quote(column)
        for column in columns
    )
    return f"xxhash64({', '.join(hashed)})"


def row_hash(row_id: Sequence[str]) -> str:
    return f"xxhash64({names(row_id)})"


def digest_metrics(row_id: Sequence[str], where: str = "true") -> dict[str, str]:
    """Metrics for the count and digest of rows with `where`, by the hash of their ids.

    Equal sets of rows have equal metrics; a duplicated or lost row changes them. The sum uses the
    top 30 bits of each hash, so that it cannot overflow `bigint` below 2^33 rows.
    """
    hashed = row_hash(row_id)
    return {
        "num_rows": count(where),
        "key_xor": f"bit_xor(if({where}, {hashed}, null))",
        "key_sum": f"sum(if({where}, shiftrightunsigned({hashed}, 34), null))",
    }


def first_of_equals(row_id: Sequence[str]) -> str:
    """The rank of a row among those with its id.

    Ordered by event time, then by when the row became known, then by content hash.
    """
    return f"row_number() over (partition by {names(row_id)} order by __time, __known, __content)"


def sample(row_id: Sequence[str], types: Mapping[str, str], negatives: NegativeSampling) -> str:
    """The condition that `sample(row id, rate, seed)` of a `where` draws the row.

    It compares the sign of the row id, with the seed as the slot number, to the rate.
    """
    texts = ", ".join(f"xxhash64({_text(column, types)})" for column in row_id)
    # A sign is uniform in [1, 2^63): compare it with the same share of that range.
    signed = f"greatest(xxhash64(cast({negatives.seed} as int), {texts}) & {2**63 - 1}, 1L)"
    return "true" if negatives.rate >= 1 else f"{signed} < {int(negatives.rate * 2**63)}L"


def _text(column: str, types: Mapping[str, str]) -> str:
    if types[column].startswith("timestamp"):
        return f"cast({micros(column, types)} as string)"
    value = f"cast({quote(column)} as int)" if types[column] == "boolean" else quote(column)
    return f"cast({value} as string)"


def needs_neighbours(label: Label, row_id: Sequence[str]) -> bool:
    """Whether an event may lie in the windows of several impressions of its key.

    It cannot if the row id is part of the key.
    """
    return not set(row_id) <= set(label.key)


def neighbours(labels: Sequence[Label], on: Sequence[str], row_id: Sequence[str]) -> list[str]:
    """Columns with the times of the neighbouring impressions, for labels that share a key.

    `__next` is the time of the next impression of the key; `__previous`, only for the attribution
    `first`, that of the one before.

    Args:
        on: The columns of the key, and the salt if there is one.
    """
    over = f"over (partition by {names(on)} order by __time, {names(row_id)})"
    previous = (
        [f"lag(__time) {over} as __previous"]
        if any(label.attribution == "first" for label in labels)
        else []
    )
    return [f"lead(__time) {over} as __next", *previous]


def salt(label: Label, row_id: Sequence[str]) -> str | None:
    """A column that spreads impressions without a key over all tasks; None if not needed.

    Such impressions match nothing, but without a salt their null keys would all go to one task.
    """
    spread = not needs_neighbours(label, row_id) or set(label.key) <= set(row_id)
    return None if spread else f"if({present(label.key)}, 0L, {row_hash(row_id)})"


def event_identity(label: Label) -> list[str]:
    """What rows of one event share besides the key.

    That is the event id, or without one its time and value.
    """
    if _is_identified_by_time(label):
        return ["__time"]
    ids = [f"__id{n}" for n in range(len(label.event_id))]
    unnamed = present(ids) if ids else "false"
    return [
        *ids,
        *(
            f"if({unnamed}, null, __{name}) as __id_{name}"
            for name in _fields(label)
            if name != "known"
        ),
    ]


def known_first(label: Label) -> str:
    """The aggregate that picks, from the rows of one event, the one known first.

    If only times matter, it is a plain minimum, which Spark compiles.
    """
    if _is_identified_by_time(label):
        return "min(__known) as __known"
    value = ", __value as value" if label.value else ""
    return f"min(struct(__known as known, __time as time{value})) as __event"


def event(label: Label) -> str:
    """The struct of an event in the array of its key."""
    of = "__" if _is_identified_by_time(label) else "__event."
    return f"struct({', '.join(f'{of}{name} as {name}' for name in _fields(label))})"


def _is_identified_by_time(label: Label) -> bool:
    """Whether its time alone identifies an event."""
    return not label.event_id and label.value is None


def _fields(label: Label) -> list[str]:
    return ["time", "known", *(["value"] if label.value else [])]


def attributed(i: int, label: Label, row_id: Sequence[str]) -> list[str]:
    """Columns with what the events of its key mean for an impression.

    All are null if the key has no events, which costs almost nothing.

    `__mine{i}` holds the attributed events in the window. `__pairs{i}` is the number of events in
    the window, and `__once{i}` the number of events counted at this impression if each is counted
    at one only; both are made only where they differ from the size of `__mine{i}`.
    """
    columns = [f"{_mine(i, label, row_id)} as __mine{i}"]
    if _pairs(i, label, row_id) != _num_mine(i):
        columns.append(f"size({_events_where(i, _within(label))}) as {_pairs(i, label, row_id)}")
    if _once(i, label, row_id) != _num_mine(i):
        columns.append(
            f"size({_events_where(i, _within(label), _BEFORE_NEXT)}) as {_once(i, label, row_id)}"
        )
    return columns


def _num_mine(i: int) -> str:
    return f"size(__mine{i})"


def _pairs(i: int, label: Label, row_id: Sequence[str]) -> str:
    return (
        f"__pairs{i}"
        if needs_neighbours(label, row_id) and label.attribution != "all"
        else _num_mine(i)
    )


def _once(i: int, label: Label, row_id: Sequence[str]) -> str:
    return (
        f"__once{i}"
        if needs_neighbours(label, row_id) and label.attribution == "all"
        else _num_mine(i)
    )


def _mine(i: int, label: Label, row_id: Sequence[str]) -> str:
    """The events in the window that are attributed to this impression."""
    if label.attribution == "all" or not needs_neighbours(label, row_id):
        return _events_where(i, _within(label))
    if label.attribution == "last":
        return _events_where(i, _within(label), _BEFORE_NEXT)
    after = f"(__previous is null or e.time >= __previous + {label.window_s * _US}L)"
    return _events_where(i, _within(label), after)


def _events_where(i: int, *conditions: str) -> str:
    return f"filter(__events{i}, e -> {' and '.join(conditions)})"


def _within(label: Label) -> str:
    return f"e.time >= __time and e.time < __time + {label.window_s * _US}L"


def _value(i: int, label: Label) -> str:
    return {
        "any": "1",
        "count": _num_mine(i),
        "sum": f"aggregate(__mine{i}, 0D, (total, e) -> total + coalesce(e.value, 0D))",
        "first": f"get(__mine{i}, 0).value",
        "last": f"get(__mine{i}, {_num_mine(i)} - 1).value",
    }[label.kind]


def _type(label: Label) -> str:
    return "double" if label.value else "int"


def _bucket(i: int, of: str) -> str:
    """The histogram bucket of the first event's delay since the impression.

    `of` is `time` (when it happened) or `known` (when it was logged).
    """
    delay = f"get(__mine{i}, 0).{of} - __time"
    cases = " ".join(
        f"when {delay} < {bound * _US}L then {n}" for n, bound in enumerate(DELAY_BOUNDARIES_S)
    )
    return f"case {cases} else {len(DELAY_BOUNDARIES_S)} end"


def _ripe_us(label: Label, cut_off_us: int) -> int:
    """The time of the youngest ripe impression."""
    return cut_off_us - label.ripe_after_s * _US


def _no_key(label: Label, row_id: Sequence[str]) -> str:
    return "false" if set(label.key) <= set(row_id) else f"not ({present(label.key)})"


def label_value(i: int, label: Label, row_id: Sequence[str], cut_off_us: int) -> str:
    """The label's column: null if unknown, 0 without an event."""
    unknown = f"{_no_key(label, row_id)} or __time > {_ripe_us(label, cut_off_us)}L"
    value = f"cast({_value(i, label)} as {_type(label)})"
    return (
        f"case when {unknown} then null when {_num_mine(i)} > 0 then {value} else cast(0 as "
        f"{_type(label)}) end"
    )


def label_time(i: int, label: Label, cut_off_us: int) -> str:
    """The event time of the first attributed event."""
    return (
        f"if(__time <= {_ripe_us(label, cut_off_us)}L, timestamp_micros(get(__mine{i}, 0).time), "
        f"null)"
    )


def counts(metrics: Mapping[str, str]) -> str:
    """Combines metrics in one struct column, so that Spark is called once for all of them."""
    return f"struct({', '.join(f'{text} as {name}' for name, text in metrics.items())}) as counts"


def count(condition: str) -> str:
    """Counts the rows that meet a condition.

    `count_if` would make Spark add a column for the condition, and copy each row for it.
    """
    return f"count(if({condition}, 1, null))"


def label_metrics(i: int, label: Label, row_id: Sequence[str], cut_off_us: int) -> dict[str, str]:
    """The metrics of label i, computed while rows pass.

    They are few and cheap, because each aggregate costs time for every row. `histogram_numeric`
    ignores nulls, and is exact as long as it has at least as many bins as there are distinct
    values. One histogram serves both delay and arrival, with both bucket numbers in one value.
    """
    no_key, ripe_us = _no_key(label, row_id), _ripe_us(label, cut_off_us)
    is_hit = f"{_num_mine(i)} > 0 and __time <= {ripe_us}L"
    delays = f"{NUM_BUCKETS} * ({_bucket(i, 'time')}) + {_bucket(i, 'known')}"
    return {
        f"label{i}_no_key": count(no_key),
        f"label{i}_unripe": count(f"not ({no_key}) and __time > {ripe_us}L"),
        f"label{i}_hit": count(is_hit),
        f"label{i}_attributed": f"sum({_once(i, label, row_id)})",
        f"label{i}_more": f"sum(greatest({_pairs(i, label, row_id)}, 1) - 1)",
        f"label{i}_max": f"max({_pairs(i, label, row_id)})",
        f"label{i}_delays": (
            # Twice as many bins as values, so that the histogram never merges two of them.
            f"histogram_numeric(if({is_hit}, {delays}, null), {2 * NUM_BUCKETS**2})"
        ),
    }


def lookup_interval(lookup: Lookup) -> str:
    """The end of the interval in which a row is looked up: when a row of higher rank is known."""
    order = (
        "order by __at desc, __known desc, __content desc rows between unbounded preceding and 1 "
        "preceding"
    )
    return f"min(__from) over (partition by {names(lookup.key)} {order})"


def lookup_condition(j: int, lookup: Lookup) -> str:
    """The join condition: equal keys, and an impression time within the row's interval."""
    keys = " and ".join(f"{quote(name)} = __key{j}_{n}" for n, name in enumerate(lookup.key))
    return f"{keys} and __time >= __from{j} and (__to{j} is null or __time < __to{j})"


def lookup_fresh(j: int, lookup: Lookup) -> str:
    """Whether a row was found that is not older than `max_age_s`."""
    oldest = (
        "" if lookup.max_age_s is None else f" and __time - __at{j} <= {lookup.max_age_s * _US}L"
    )
    return f"__from{j} is not null{oldest}"


def lookup_metrics(j: int) -> dict[str, str]:
    return {
        f"lookup{j}_found": count(f"__fresh{j}"),
        f"lookup{j}_too_old": count(f"__from{j} is not null and not __fresh{j}"),
    }


def negative(labels: Iterable[Label], negatives: NegativeSampling) -> str:
    """The condition that a row is a negative, which may be sampled away."""
    drawn = [label for label in labels if negatives.label in (None, label.name)]
    return " and ".join(f"coalesce({quote(label.name)} = 0, false)" for label in drawn)


def weight(negatives: NegativeSampling) -> str:
    """The column `sample_weight`."""
    return f"if(__negative, {1 / negatives.rate!r}D, 1D) as {SAMPLE_WEIGHT}"


def kept_metrics(negatives: NegativeSampling | None, row_id: Sequence[str]) -> dict[str, str]:
    """Metrics of the rows that are written, and of the negatives among them.

    Empty if all rows are written.
    """
    if negatives is None:
        return {}
    kept = {
        name.replace("key_", "kept_").replace("num_rows", "num_kept"): text
        for name, text in digest_metrics(row_id, "__keep").items()
    }
    return kept | {
        "num_negatives": count("__negative"),
        "num_negatives_kept": count("__negative and __keep"),
    }
