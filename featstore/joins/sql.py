"""The expressions of a join of logs, as Spark SQL text: pure functions of what the join is.

Times are microseconds since 1970 UTC in `bigint`, so that neither time zones nor daylight saving can move an edge. Columns of
the join's own begin with `__`. Number i of a label and j of a lookup stand at the end of their columns' names.

No impression can be doubled: labels are joined as one array of events per key, lookups by intervals that do not overlap.
Which impression an event belongs to is a matter of intervals too. Among impressions of one key, ordered by time and row id,
the last one at or before an event is the one whose successor comes after it; the first one whose window holds the event is
the one whose predecessor's window has ended before it.
"""

from collections.abc import Iterable, Mapping, Sequence

from featstore.joins.options import SAMPLE_WEIGHT, Label, LabelJoin, Lookup, Negatives

DELAY_BOUNDARIES_S = (1, 10, 60, 300, 900, 3_600, 21_600, 86_400, 259_200, 604_800, 2_592_000)
NO_KEY, UNRIPE, NEGATIVE, HIT = range(4)
_US = 1_000_000
_DIGEST = {"num_rows": "count(1)", "key_xor": "bit_xor(__hash)", "key_sum": "sum(shiftrightunsigned(__hash, 34))"}


def quote(name: str) -> str:
    """The column's name as SQL, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def names(columns: Iterable[str]) -> str:
    return ", ".join(map(quote, columns))


def micros(column: str, types: Mapping[str, str]) -> str:
    """A time's microseconds since 1970 UTC; a timestamp without a zone is UTC."""
    naive = types[column] == "timestamp_ntz"
    return f"unix_micros({f'cast({quote(column)} as timestamp)' if naive else quote(column)})"


def known_micros(log_time: str | None, event_time: str, types: Mapping[str, str]) -> str:
    """When a row was known: its log time, or without one its event time."""
    happened = micros(event_time, types)
    return happened if log_time is None else f"coalesce({micros(log_time, types)}, {happened})"


def present(columns: Iterable[str]) -> str:
    return " and ".join(f"{quote(column)} is not null" for column in columns)


def content_hash(columns: Iterable[str], types: Mapping[str, str]) -> str:
    """A hash of the row's values, which decides between rows that are otherwise of equal rank."""
    hashed = (f"map_entries({quote(column)})" if types[column].startswith("map<") else quote(column) for column in columns)
    return f"xxhash64({', '.join(hashed)})"


def row_hash(row_id: Sequence[str]) -> str:
    return f"xxhash64({names(row_id)})"


def digest_metrics() -> dict[str, str]:
    """Count and digest of rows by their `__hash`: equal sets of rows have equal figures, and a doubled or lost row shows."""
    return dict(_DIGEST)


def first_of_equals(row_id: Sequence[str]) -> str:
    """The rank of a row among those of its id: the earliest, the one known first, then by content."""
    return f"row_number() over (partition by {names(row_id)} order by __time, __known, __content)"


def sample(row_id: Sequence[str], types: Mapping[str, str], negatives: Negatives) -> str:
    """Whether `sample(row id, rate, seed)` of a `where` draws the row: by the sign of the id, with the seed as slot."""
    texts = ", ".join(f"xxhash64({_text(column, types)})" for column in row_id)
    signed = f"greatest(xxhash64(cast({negatives.seed} as int), {texts}) & {2**63 - 1}, 1L)"
    return "true" if negatives.rate >= 1 else f"{signed} < {int(negatives.rate * 2**63)}L"


def _text(column: str, types: Mapping[str, str]) -> str:
    if types[column].startswith("timestamp"):
        return f"cast({micros(column, types)} as string)"
    value = f"cast({quote(column)} as int)" if types[column] == "boolean" else quote(column)
    return f"cast({value} as string)"


def has_one_impression(label: Label, row_id: Sequence[str]) -> bool:
    """Whether a key names one impression at most, as the row id is part of it."""
    return set(row_id) <= set(label.key)


def neighbour(i: int, label: Label, row_id: Sequence[str], salted: bool) -> dict[str, str]:
    """The times of the next impression of an equal key, and where it matters of the previous one."""
    if has_one_impression(label, row_id):
        return {f"__next{i}": "cast(null as bigint)", f"__previous{i}": "cast(null as bigint)"}
    salt = f", __salt{i}" if salted else ""
    over = f"over (partition by {names(label.key)}{salt} order by __time, {names(row_id)})"
    previous = f"lag(__time) {over}" if label.attribution == "first" else "cast(null as bigint)"
    return {f"__next{i}": f"lead(__time) {over}", f"__previous{i}": previous}


def salt(label: Label, row_id: Sequence[str]) -> str | None:
    """Spreads impressions without a key, which match nothing, over all tasks. None where the key cannot be null."""
    return None if set(label.key) <= set(row_id) else f"if({present(label.key)}, 0L, __hash)"


def within(i: int, label: Label) -> str:
    """The events of the impression's key in its window."""
    return f"filter(__events{i}, e -> e.time >= __time and e.time < __time + {label.window_s * _US}L)"


def attributed(i: int, label: Label) -> str:
    """Of the events in the window, those that belong to this impression."""
    if label.attribution == "all":
        return f"__within{i}"
    if label.attribution == "first":
        edge = f"__previous{i} + {label.window_s * _US}L"
        return f"if(__previous{i} is null, __within{i}, filter(__within{i}, e -> e.time >= {edge}))"
    return _before_next(i)


def _before_next(i: int) -> str:
    return f"if(__next{i} is null, __within{i}, filter(__within{i}, e -> e.time < __next{i}))"


def once(i: int, label: Label) -> str:
    """How many events are counted at this impression, if each is to be counted at one impression only."""
    return f"coalesce(size({_before_next(i) if label.attribution == 'all' else f'__mine{i}'}), 0)"


def state(i: int, label: Label, cut_off_us: int) -> str:
    """NO_KEY, UNRIPE, NEGATIVE or HIT."""
    ripe_us = cut_off_us - label.ripe_after_s * _US
    return (
        f"case when not ({present(label.key)}) then {NO_KEY} when __time > {ripe_us}L then {UNRIPE} "
        f"when coalesce(size(__mine{i}), 0) = 0 then {NEGATIVE} else {HIT} end"
    )


def label_value(i: int, label: Label) -> str:
    """The label's column: null where it is not known."""
    value = {
        "any": "1",
        "count": f"size(__mine{i})",
        "sum": f"aggregate(__mine{i}, 0D, (total, e) -> total + coalesce(e.value, 0D))",
        "first": f"__mine{i}[0].value",
        "last": f"element_at(__mine{i}, -1).value",
    }[label.kind]
    type_ = "double" if label.value else "int"
    return f"cast(case __state{i} when {NEGATIVE} then 0 when {HIT} then {value} end as {type_})"


def label_time(i: int) -> str:
    """The event time of the first event behind the label."""
    return f"case __state{i} when {HIT} then timestamp_micros(__mine{i}[0].time) end"


def bucket(i: int, of: str) -> str:
    """The number of the histogram's bucket in which the first event's `time` or `known` is, counted from the impression."""
    delay = f"(__mine{i}[0].{of} - __time)"
    cases = " ".join(f"when {delay} < {bound * _US}L then {n}" for n, bound in enumerate(DELAY_BOUNDARIES_S))
    return f"case when __state{i} != {HIT} then null {cases} else {len(DELAY_BOUNDARIES_S)} end"


def label_metrics(i: int) -> dict[str, str]:
    """What is counted of label i while rows pass: few and cheap aggregates, as each costs every row.

    `histogram_numeric` is exact for as many distinct values as it has bins, and passes over nulls.
    """
    pairs = f"coalesce(size(__within{i}), 0)"
    bins = 2 * len(DELAY_BOUNDARIES_S)
    return {
        f"label{i}_no_key": f"count_if(__state{i} = {NO_KEY})",
        f"label{i}_unripe": f"count_if(__state{i} = {UNRIPE})",
        f"label{i}_hit": f"count_if(__state{i} = {HIT})",
        f"label{i}_attributed": f"sum(__once{i})",
        f"label{i}_more": f"sum(if({pairs} > 1, {pairs} - 1, 0))",
        f"label{i}_max": f"max({pairs})",
        f"label{i}_delay": f"histogram_numeric(__bucket_time{i}, {bins})",
        f"label{i}_arrival": f"histogram_numeric(__bucket_known{i}, {bins})",
    }


def lookup_interval(lookup: Lookup) -> str:
    """Until when a row is the one looked up: until a row of higher rank is known."""
    order = "order by __at desc, __known desc, __content desc rows between unbounded preceding and 1 preceding"
    return f"min(__from) over (partition by {names(lookup.key)} {order})"


def lookup_condition(j: int, lookup: Lookup) -> str:
    keys = " and ".join(f"{quote(name)} = __key{j}_{n}" for n, name in enumerate(lookup.key))
    return f"{keys} and __time >= __from{j} and (__to{j} is null or __time < __to{j})"


def lookup_fresh(j: int, lookup: Lookup) -> str:
    oldest = "" if lookup.max_age_s is None else f" and __time - __at{j} <= {lookup.max_age_s * _US}L"
    return f"__from{j} is not null{oldest}"


def lookup_metrics(j: int) -> dict[str, str]:
    return {
        f"lookup{j}_found": f"count_if(__fresh{j})",
        f"lookup{j}_too_old": f"count_if(__from{j} is not null and not __fresh{j})",
    }


def negative(join: LabelJoin) -> str:
    """Whether the row may be sampled away."""
    if join.negatives is None:
        return "false"
    labels = enumerate(join.labels)
    drawn = [i for i, label in labels if join.negatives.label in (None, label.name)]
    return " and ".join(f"coalesce({quote(join.labels[i].name)} = 0, false)" for i in drawn)


def weight(negatives: Negatives) -> str:
    return f"if(__negative, {1 / negatives.rate!r}D, 1D) as {SAMPLE_WEIGHT}"


def kept_metrics(negatives: Negatives | None) -> dict[str, str]:
    """The digest of the rows that are written, and how many of the negatives are; nothing where all rows are written."""
    if negatives is None:
        return {}
    return {
        "num_kept": "count_if(__keep)",
        "kept_xor": "bit_xor(if(__keep, __hash, 0L))",
        "kept_sum": "sum(if(__keep, shiftrightunsigned(__hash, 34), 0L))",
        "num_negatives": "count_if(__negative)",
        "num_negatives_kept": "count_if(__negative and __keep)",
    }
