"""Every operator against a row-at-a-time reading of the rules in plain Python, over arbitrary
rows.
"""

import datetime
import itertools
import math
import operator
import re
import struct
import zoneinfo
from bisect import bisect_right
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from featstore.extraction.units.extractor import Extractor
from featstore.ops.registry import OPERATORS
from featstore.spec.parse import load_spec

INPUTS = {
    "text": "string",
    "other": "string",
    "other_price": "double",
    "count": "long",
    "flag": "boolean",
    "price": "double",
    "at": "timestamp",
    "tags": "list<string>",
    "codes": "list<long>",
    "scores": "list<double>",
    "words": "list<string>",
    "pairs": "list<string>",
    "before": "timestamp",
    "times": "list<timestamp>",
    "prices": "map<string, double>",
    "levels": "map<string, long>",
    "names": "map<string, string>",
    "nested": "map<string, map<string, double>>",
    "items": "list<long>",
    "amounts": "list<double>",
    "moments": "list<timestamp>",
}
SEQUENCES: dict[str, Any] = {
    "clicks": {"of": ["items", "amounts", "moments"], "max_len": 2, "truncate": "tail"}
}
ARROW = {
    "text": pa.string(),
    "other": pa.string(),
    "other_price": pa.float64(),
    "count": pa.int64(),
    "flag": pa.bool_(),
    "price": pa.float64(),
    "at": pa.timestamp("us", tz="UTC"),
    "tags": pa.list_(pa.string()),
    "codes": pa.list_(pa.int64()),
    "scores": pa.list_(pa.float64()),
    "words": pa.list_(pa.string()),
    "pairs": pa.list_(pa.string()),
    "before": pa.timestamp("us", tz="UTC"),
    "times": pa.list_(pa.timestamp("us", tz="UTC")),
    "prices": pa.map_(pa.string(), pa.float64()),
    "levels": pa.map_(pa.string(), pa.int64()),
    "names": pa.map_(pa.string(), pa.string()),
    "nested": pa.map_(pa.string(), pa.map_(pa.string(), pa.float64())),
    "items": pa.list_(pa.int64()),
    "amounts": pa.list_(pa.float64()),
    "moments": pa.list_(pa.timestamp("us", tz="UTC")),
}
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
NEW_YORK = zoneinfo.ZoneInfo("America/New_York")


def h(value: Any) -> int:
    if isinstance(value, bool):
        value = int(value)
    if isinstance(value, datetime.datetime):
        value = (value - EPOCH) // datetime.timedelta(microseconds=1)
    return xxhash.xxh64_intdigest(str(value).encode(), 42)


def sign(slot: int, *values: Any) -> int:
    seed = xxhash.xxh64_intdigest(struct.pack("<i", slot), 42)
    for value in values:
        seed = xxhash.xxh64_intdigest(struct.pack("<Q", h(value)), seed)
    return seed & (2**63 - 1) or 1


def signed(value: Any) -> int:
    return 0 if value is None else sign(7, value)


def signs(values: list[Any] | None) -> list[int]:
    return (
        [0] if values is None else [sign(7, *(v if isinstance(v, tuple) else (v,))) for v in values]
    )


def known(values: list[Any] | None) -> Any:
    return None if values is None else [v for v in values if v is not None and v == v]


def pairs(left: list[Any] | None, right: list[Any] | None) -> list[Any] | None:
    return None if left is None or right is None else [(a, b) for a in left for b in right]


def float32(value: float | None) -> float:
    if value is None or not math.isfinite(value):
        return math.nan
    try:
        found: float = struct.unpack("<f", struct.pack("<f", value))[0] + 0.0
        return found
    except OverflowError:
        return math.nan


def number(value: float | None) -> float | None:
    return None if value is None or value != value else value + 0.0


def float_list(values: list[Any] | None, first: int) -> list[float]:
    floats = [math.nan] if values is None else [float32(v) for v in known(values)[:first]]
    return floats if values is None else [v for v in floats if v == v]


def log1p(value: float | None) -> float:
    value = number(value)
    return math.nan if value is None or value <= -1 else float32(math.log1p(value))


def bucket(value: float | None) -> int | None:
    return None if value is None or value != value else bisect_right([-1.5, 0, 10], value)


CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "hash text": ({"op": "hash", "of": "text"}, lambda r: signed(r["text"])),
    "hash integer": ({"op": "hash", "of": "count"}, lambda r: signed(r["count"])),
    "hash boolean": ({"op": "hash", "of": "flag"}, lambda r: signed(r["flag"])),
    "hash timestamp": ({"op": "hash", "of": "at"}, lambda r: signed(r["at"])),
    "hash with default": (
        {"op": "hash", "of": "text", "default": "none", "empty_as_null": True},
        lambda r: signed(r["text"] or "none"),
    ),
    "hash list": ({"op": "hash", "of": "tags"}, lambda r: signs(known(r["tags"]))),
    "hash list of integers": ({"op": "hash", "of": "codes"}, lambda r: signs(known(r["codes"]))),
    "hash list head": (
        {"op": "hash", "of": "tags", "max_len": 2},
        lambda r: signs(None if r["tags"] is None else known(r["tags"])[:2]),
    ),
    "hash list tail": (
        {"op": "hash", "of": "tags", "max_len": 2, "truncate": "tail"},
        lambda r: signs(None if r["tags"] is None else known(r["tags"])[-2:]),
    ),
    "hash list with default": (
        {"op": "hash", "of": "tags", "default": ["x", "y"]},
        lambda r: signs(["x", "y"] if r["tags"] is None else known(r["tags"])),
    ),
    "hash list without empty text": (
        {"op": "hash", "of": "tags", "empty_as_null": True},
        lambda r: signs(None if r["tags"] is None else [t for t in r["tags"] if t]),
    ),
    "cross of three": (
        {"op": "cross", "of": ["text", "count", "flag"]},
        lambda r: (
            0
            if None in (r["text"], r["count"], r["flag"])
            else sign(7, r["text"], r["count"], r["flag"])
        ),
    ),
    "cross with default": (
        {"op": "cross", "of": ["text", "other"], "default": {"other": "none"}},
        lambda r: (
            0
            if r["text"] is None
            else sign(7, r["text"], "none" if r["other"] is None else r["other"])
        ),
    ),
    "cross with list": (
        {"op": "cross", "of": ["text", "tags"]},
        lambda r: signs(pairs(None if r["text"] is None else [r["text"]], known(r["tags"]))),
    ),
    "cross with list cut": (
        {"op": "cross", "of": ["tags", "text"], "max_cross": 2},
        lambda r: signs(
            (lambda p: p if p is None else p[:2])(
                pairs(known(r["tags"]), None if r["text"] is None else [r["text"]])
            )
        ),
    ),
    "cross of lists": (
        {"op": "cross", "of": ["tags", "codes"]},
        lambda r: signs(pairs(known(r["tags"]), known(r["codes"]))),
    ),
    "cross of lists cut": (
        {"op": "cross", "of": ["tags", "codes"], "max_cross": 3},
        lambda r: signs(
            (lambda p: p if p is None else p[:3])(pairs(known(r["tags"]), known(r["codes"])))
        ),
    ),
    "bucketize": (
        {"op": "bucketize", "of": "price", "boundaries": [-1.5, 0, 10]},
        lambda r: signed(bucket(r["price"])),
    ),
    "bucketize integers": (
        {"op": "bucketize", "of": "count", "boundaries": [-1.5, 0, 10], "default": 10},
        lambda r: signed(bucket(10 if r["count"] is None else float(r["count"]))),
    ),
    "bucketize with fill": (
        {"op": "bucketize", "of": "price", "boundaries": [-1.5, 0, 10], "fill": 99},
        lambda r: signed(99 if bucket(r["price"]) is None else bucket(r["price"])),
    ),
    "bucketize as index": (
        {"op": "bucketize", "of": "price", "boundaries": [-1.5, 0, 10], "encode": "index"},
        lambda r: 0 if (found := bucket(r["price"])) is None else found + 1,
    ),
    "log1p": ({"op": "log1p", "of": "price"}, lambda r: log1p(r["price"])),
    "log1p with default": (
        {"op": "log1p", "of": "price", "default": 3},
        lambda r: log1p(3 if number(r["price"]) is None else r["price"]),
    ),
    "clip": (
        {"op": "clip", "of": "price", "min": -2, "max": 5.5},
        lambda r: float32(None if number(r["price"]) is None else min(max(r["price"], -2), 5.5)),
    ),
    "clip below": (
        {"op": "clip", "of": "price", "min": 0},
        lambda r: float32(None if number(r["price"]) is None else max(r["price"], 0)),
    ),
    "identity": ({"op": "identity", "of": "price"}, lambda r: float32(r["price"])),
    "identity with fill": (
        {"op": "identity", "of": "price", "fill": -1},
        lambda r: (
            float32(r["price"]) if r["price"] is not None and math.isfinite(r["price"]) else -1.0
        ),
    ),
    "identity of integers": (
        {"op": "identity", "of": "count"},
        lambda r: float32(None if r["count"] is None else float(r["count"])),
    ),
    "identity of booleans": ({"op": "identity", "of": "flag"}, lambda r: float32(r["flag"])),
    "identity of list": (
        {"op": "identity", "of": "scores", "max_len": 3},
        lambda r: float_list(r["scores"], 3),
    ),
    "identity of the last of a list": (
        {"op": "identity", "of": "scores", "max_len": 2, "truncate": "tail"},
        lambda r: float_list(None if r["scores"] is None else known(r["scores"])[-2:], 2),
    ),
    "hour": (
        {"op": "hour", "of": "at"},
        lambda r: signed(None if r["at"] is None else r["at"].hour),
    ),
    "hour in a time zone": (
        {"op": "hour", "of": "at", "tz": "America/New_York"},
        lambda r: signed(None if r["at"] is None else r["at"].astimezone(NEW_YORK).hour),
    ),
    "day of week": (
        {"op": "day_of_week", "of": "at", "tz": "America/New_York"},
        lambda r: signed(None if r["at"] is None else r["at"].astimezone(NEW_YORK).weekday()),
    ),
}


def seconds(now: datetime.datetime | None, past: datetime.datetime | None) -> float | None:
    return (
        None
        if now is None or past is None
        else (now - past) / datetime.timedelta(microseconds=1) / 1e6
    )


def entries(pairs: list[tuple[str, Any]] | None) -> dict[str, Any] | None:
    return (
        None
        if pairs is None
        else {key: value for key, value in pairs if value is not None and value == value}
    )


def found(values: dict[str, Any] | None, keys: list[Any] | None) -> list[Any] | None:
    return (
        None
        if values is None or keys is None
        else [values[str(key)] for key in known(keys) if str(key) in values]
    )


def first_found(values: dict[str, Any] | None, key: Any) -> Any:
    return next(iter(found(values, [key]) or []), None)


def combined(values: list[float] | None, by: str) -> float | None:
    values = known(values)
    if not values:
        return None
    try:
        sums: dict[str, Any] = {
            "sum": sum,
            "mean": lambda v: sum(v) / len(v),
            "max": max,
            "min": min,
        }
        return float(
            sums[by](float(v) for v in values)
            if by != "mean"
            else sums[by]([float(v) for v in values])
        )
    except OverflowError:
        return None


def cut(values: list[Any] | None, part: slice) -> list[Any] | None:
    return None if values is None else known(values)[part]


def shared(left: list[Any] | None, right: list[Any] | None, measure: str) -> float | None:
    if left is None or right is None:
        return None
    first, second = set(known(left)), set(known(right))
    whole = {"count": 1, "ratio": len(first | second), "containment": len(first)}[measure]
    return len(first & second) / whole if whole else None


def quotient(above: float | None, below: float | None) -> float | None:
    above, below = number(above), number(below)
    return None if above is None or not below or not math.isfinite(above) else above / below


def to_power(value: float | None, exponent: float) -> float | None:
    try:
        result = None if value is None or number(value) is None else float(value) ** exponent
    except (OverflowError, ZeroDivisionError):
        return None
    return None if isinstance(result, complex) else result


def related(left: Any, right: Any, relation: Any) -> bool | None:
    return (
        None
        if left is None or right is None or left != left or right != right
        else relation(left, right)
    )


def runs(parts: list[str] | str | None, n: int, joint: str) -> list[str] | None:
    return (
        None if parts is None else [joint.join(parts[i : i + n]) for i in range(len(parts) - n + 1)]
    )


def weighted(texts: list[str] | None, separator: str = ":") -> Any:
    pairs = []
    for element in known(texts) or []:
        value, _, weight = (
            element.rpartition(separator) if separator in element else (element, "", "1")
        )
        if (
            re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", weight, re.ASCII)
            and abs(float(weight)) <= 3.4028234663852886e38
        ):
            pairs.append((value, float(weight)))
    return None if texts is None else pairs


def values_or_none(values: list[Any] | None) -> list[float]:
    return float_list(values, 10**9)


def events(row: dict[str, Any]) -> list[tuple[Any, ...]] | None:
    columns = [row["items"], row["amounts"], row["moments"]]
    if any(column is None for column in columns) or len({len(column) for column in columns}) > 1:
        return None
    complete = [
        event
        for event in zip(*columns, strict=True)
        if None not in event and math.isfinite(float32(event[1]))
    ]
    return complete[-2:]


def of_events(row: dict[str, Any], position: int) -> list[Any] | None:
    return (lambda e: None if e is None else [event[position] for event in e])(events(row))


CASES |= {
    "sequence of items": ({"op": "hash", "of": "items"}, lambda r: signs(of_events(r, 0))),
    "sequence of amounts": (
        {"op": "identity", "of": "amounts"},
        lambda r: values_or_none(of_events(r, 1)),
    ),
    "sequence of moments": ({"op": "hash", "of": "moments"}, lambda r: signs(of_events(r, 2))),
    "lookup": (
        {"op": "lookup", "of": ["prices", "text"]},
        lambda r: float32(first_found(entries(r["prices"]), r["text"])),
    ),
    "lookup of integer by integer": (
        {"op": "lookup", "of": ["levels", "count"]},
        lambda r: signed(first_found(entries(r["levels"]), r["count"])),
    ),
    "lookup of text": (
        {"op": "lookup", "of": ["names", "text"]},
        lambda r: signed(first_found(entries(r["names"]), r["text"])),
    ),
    "lookup by list": (
        {"op": "lookup", "of": ["names", "tags"]},
        lambda r: signs(found(entries(r["names"]), r["tags"])),
    ),
    "lookup combined": (
        {"op": "lookup", "of": ["prices", "tags"], "combiner": "sum"},
        lambda r: float32(combined(found(entries(r["prices"]), r["tags"]), "sum")),
    ),
    **{
        f"lookup combined by {by}": (
            {"op": "lookup", "of": ["levels", "codes"], "combiner": by},
            partial(
                lambda r, by: float32(combined(found(entries(r["levels"]), r["codes"]), by)), by=by
            ),
        )
        for by in ("mean", "max", "min")
    },
    "match of a text": (
        {"op": "match", "of": ["nested", "count", "other"], "fill": -1.5},
        lambda r: (lambda v: v if v == v else -1.5)(
            float32(first_found(entries(first_found(entries(r["nested"]), r["count"])), r["other"]))
        ),
    ),
    "match": (
        {"op": "match", "of": ["nested", "text", "other"]},
        lambda r: float32(
            first_found(entries(first_found(entries(r["nested"]), r["text"])), r["other"])
        ),
    ),
    **{
        f"combine by {by}": (
            {"op": "combine", "of": "scores", "by": by},
            partial(lambda r, by: float32(combined(r["scores"], by)), by=by),
        )
        for by in ("mean", "sum", "max", "min")
    },
    "combine integers": (
        {"op": "combine", "of": "codes", "by": "max"},
        lambda r: float32(combined(r["codes"], "max")),
    ),
    "length": (
        {"op": "length", "of": "tags"},
        lambda r: signed(None if r["tags"] is None else len(known(r["tags"]))),
    ),
    "length of text": (
        {"op": "length", "of": "text"},
        lambda r: signed(None if r["text"] is None else len(r["text"])),
    ),
    "take": ({"op": "take", "of": "codes", "n": 2}, lambda r: signs(cut(r["codes"], slice(0, 2)))),
    "take last": (
        {"op": "take", "of": "scores", "n": 2, "end": "tail"},
        lambda r: values_or_none(cut(r["scores"], slice(-2, None))),
    ),
    "time since": (
        {"op": "time_since", "of": ["at", "before"], "unit": "minute"},
        lambda r: float32((lambda s: s if s is None else s / 60)(seconds(r["at"], r["before"]))),
    ),
    **{
        f"time since in {unit}s": (
            {"op": "time_since", "of": ["before", "at"], "unit": unit},
            partial(
                lambda r, num: float32(
                    (lambda s: s if s is None else s / num)(seconds(r["before"], r["at"]))
                ),
                num=num,
            ),
        )
        for unit, num in {"hour": 3600, "day": 86_400, "week": 604_800}.items()
    },
    "time since each": (
        {"op": "time_since", "of": ["at", "times"], "unit": "second"},
        lambda r: values_or_none(
            None
            if None in (r["at"], r["times"])
            else [seconds(r["at"], t) for t in known(r["times"])]
        ),
    ),
    "fill": (
        {"op": "fill", "of": "count", "value": -1},
        lambda r: signed(-1 if r["count"] is None else r["count"]),
    ),
    "fill with others": (
        {"op": "fill", "of": ["text", "other"]},
        lambda r: signed(r["other"] if r["text"] is None else r["text"]),
    ),
    "fill numbers": (
        {"op": "fill", "of": ["price", "other_price"], "value": 0.5},
        lambda r: float32(
            next((v for v in map(number, (r["price"], r["other_price"])) if v is not None), 0.5)
        ),
    ),
    "fill lists": (
        {"op": "fill", "of": "tags", "value": ["x", "y"]},
        lambda r: signs(["x", "y"] if r["tags"] is None else known(r["tags"])),
    ),
    "where": (
        {"op": "where", "of": ["flag", "tags", "words"]},
        lambda r: signs(
            None if r["flag"] is None else known(r["tags"] if r["flag"] else r["words"])
        ),
    ),
    "where with a constant": (
        {"op": "where", "of": ["flag", "text"], "then": "yes"},
        lambda r: signed(None if r["flag"] is None else "yes" if r["flag"] else r["text"]),
    ),
    "where with two lists": (
        {"op": "where", "of": ["flag", "codes"], "otherwise": [0, -1]},
        lambda r: signs(None if r["flag"] is None else known(r["codes"]) if r["flag"] else [0, -1]),
    ),
    "where without otherwise": (
        {"op": "where", "of": ["flag", "price"]},
        lambda r: float32(r["price"] if r["flag"] else None),
    ),
    "weighted values": (
        {"op": "weighted", "of": "pairs", "part": "value"},
        lambda r: signs(
            None if r["pairs"] is None else [value for value, _ in weighted(r["pairs"])]
        ),
    ),
    "weighted weights": (
        {"op": "weighted", "of": "pairs", "part": "weight"},
        lambda r: values_or_none(
            None if r["pairs"] is None else [weight for _, weight in weighted(r["pairs"])]
        ),
    ),
    "weighted by another separator": (
        {"op": "weighted", "of": "tags", "part": "value", "separator": "\u00e9"},
        lambda r: signs(
            None if r["tags"] is None else [v for v, _ in weighted(r["tags"], "\u00e9")]
        ),
    ),
    "ratio": (
        {"op": "ratio", "of": ["price", "count"]},
        lambda r: float32(quotient(r["price"], r["count"])),
    ),
    "power": (
        {"op": "power", "of": "price", "exponent": 0.5},
        lambda r: float32(to_power(r["price"], 0.5)),
    ),
    "power below zero": (
        {"op": "power", "of": "count", "exponent": -2},
        lambda r: float32(to_power(r["count"], -2)),
    ),
    "distinct": (
        {"op": "distinct", "of": "tags"},
        lambda r: signs(None if r["tags"] is None else list(dict.fromkeys(known(r["tags"])))),
    ),
    **{
        f"slice {start} to {stop}": (
            {"op": "slice", "of": of, "start": start, "stop": stop},
            partial(
                lambda r, of, start, stop: (
                    signed(r[of] if r[of] is None else r[of][start:stop])
                    if of == "text"
                    else signs(cut(r[of], slice(start, stop)))
                ),
                of=of,
                start=start,
                stop=stop,
            ),
        )
        for of, start, stop in [
            ("codes", 1, 3),
            ("codes", -2, None),
            ("codes", 0, -1),
            ("tags", -3, -1),
            ("text", 1, 4),
            ("text", -3, None),
            ("text", 2, 1),
            ("text", 0, -2),
            ("text", -4, -1),
            ("text", -4, 2),
            ("text", 3, -3),
        ]
    },
    "split": (
        {"op": "split", "of": "text", "separator": "é"},
        lambda r: signs(r["text"] and r["text"].split("é")),
    ),
    "words": (
        {"op": "tokenize", "of": "text", "by": "word"},
        lambda r: signs(None if r["text"] is None else r["text"].split()),
    ),
    "word pairs": (
        {"op": "tokenize", "of": "text", "by": "word", "n": 2},
        lambda r: signs(None if r["text"] is None else runs(r["text"].split(), 2, " ")),
    ),
    "character triples": (
        {"op": "tokenize", "of": "text", "by": "character", "n": 3},
        lambda r: signs(runs(r["text"], 3, "")),
    ),
    "lower": (
        {"op": "lower", "of": "text"},
        lambda r: signed(None if r["text"] is None else "".join(c.lower()[0] for c in r["text"])),
    ),
    **{
        f"overlap by {measure}": (
            {"op": "overlap", "of": ["tags", "words"], "measure": measure},
            partial(
                lambda r, measure: float32(shared(r["tags"], r["words"], measure)), measure=measure
            ),
        )
        for measure in ("ratio", "containment")
    },
    "overlap by count": (
        {"op": "overlap", "of": ["tags", "words"], "measure": "count"},
        lambda r: signed(
            (lambda c: c if c is None else int(c))(shared(r["tags"], r["words"], "count"))
        ),
    ),
    "is weekend": (
        {"op": "is_weekend", "of": "at", "tz": "America/New_York"},
        lambda r: signed(None if r["at"] is None else r["at"].astimezone(NEW_YORK).weekday() >= 5),
    ),
    "compare": (
        {"op": "compare", "of": ["text", "other"], "relation": "<"},
        lambda r: signed(related(r["text"], r["other"], operator.lt)),
    ),
    "compare with a constant": (
        {"op": "compare", "of": "count", "relation": ">=", "value": 0.5},
        lambda r: signed(related(r["count"], 0.5, operator.ge)),
    ),
    **{
        f"compare with {relation}": (
            {"op": "compare", "of": ["count", "price"], "relation": relation},
            partial(
                lambda r, compared: signed(
                    related(None if r["count"] is None else float(r["count"]), r["price"], compared)
                ),
                compared=compared,
            ),
        )
        for relation, compared in {"==": operator.eq, "<=": operator.le, ">": operator.gt}.items()
    },
    "compare instants": (
        {"op": "compare", "of": "at", "relation": ">=", "value": EPOCH},
        lambda r: signed(related(r["at"], EPOCH, operator.ge)),
    ),
    "compare numbers of two types": (
        {"op": "compare", "of": ["price", "count"], "relation": "!="},
        lambda r: signed(
            related(r["price"], None if r["count"] is None else float(r["count"]), operator.ne)
        ),
    ),
}


text = (
    st.sampled_from(["a", "b", "7", ""])
    | st.text(max_size=70)
    | st.text("aAé 1İß\u2003\n", max_size=9)
)
integers = st.integers(-(2**63), 2**63 - 1) | st.integers(-20, 20)
floats = st.floats() | st.sampled_from([-1.5, -1.0, -0.0, 0.0, 10.0, 1e300])
times = st.datetimes(
    datetime.datetime(1930, 1, 1), datetime.datetime(2100, 1, 1), timezones=st.just(datetime.UTC)
)
pair = text | st.builds(
    lambda value, weight: f"{value}:{weight}",
    text,
    floats | integers | st.just(".5") | st.just("+1."),
)


def map_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | st.lists(st.tuples(text, st.none() | values), max_size=5)


def some_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Lists of which most have one length, as those of a sequence should."""
    three = st.lists(st.none() | values, min_size=3, max_size=3)
    return three | three | three | st.lists(values, max_size=2) | st.none()


VALUES = {
    "text": st.none() | text,
    "other": st.none() | text,
    "count": st.none() | integers,
    "flag": st.none() | st.booleans(),
    "price": st.none() | floats,
    "other_price": st.none() | floats,
    "at": st.none() | times,
    "tags": st.none() | st.lists(st.none() | text, max_size=5),
    "codes": st.none() | st.lists(st.none() | integers, max_size=4),
    "scores": st.none() | st.lists(st.none() | floats, max_size=5),
    "words": st.none() | st.lists(st.none() | text, max_size=5),
    "pairs": st.none() | st.lists(st.none() | pair, max_size=5),
    "before": st.none() | times,
    "times": st.none() | st.lists(st.none() | times, max_size=4),
    "prices": map_of(floats),
    "levels": map_of(integers),
    "names": map_of(text),
    "nested": map_of(map_of(floats)),
    "items": some_of(integers),
    "amounts": some_of(floats),
    "moments": some_of(times),
}


def rows_of(names: list[str]) -> st.SearchStrategy[list[dict[str, Any]]]:
    values = {name: VALUES[name] if name in names else st.none() for name in VALUES}
    return st.lists(st.fixed_dictionaries(values), max_size=8)


def batch_of(values: list[dict[str, Any]]) -> pa.RecordBatch:
    arrays = [
        pa.array([row[name] for row in values], arrow_type) for name, arrow_type in ARROW.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(ARROW))


def comparable(value: Any) -> Any:
    """NaN equal to itself, floats to 6 digits: libraries differ in the last bit of a logarithm."""
    if isinstance(value, list):
        return [comparable(item) for item in value]
    return f"{value:.6g}" if isinstance(value, float) else value


FROZEN = {"quantile_bucketize", "standardize", "min_max", "vocabulary"}


def test_every_operator_has_an_oracle() -> None:
    without = set(OPERATORS) - {node["op"] for node, _ in CASES.values()}
    assert without == FROZEN, "frozen operators have theirs in test_frozen.py"


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=settings().max_examples // 4)
@given(data=st.data())
def test_operator_agrees_with_plain_python_row_by_row(case: str, data: st.DataObject) -> None:
    node, expected = CASES[case]
    names = [node["of"]] if isinstance(node["of"], str) else node["of"]
    values = data.draw(
        rows_of(SEQUENCES["clicks"]["of"] if names[0] in SEQUENCES["clicks"]["of"] else names)
    )
    extractor = Extractor(
        load_spec(
            {
                "spec": 1,
                "inputs": INPUTS,
                "sequences": SEQUENCES,
                "slots": [{"slot": 7, "name": "f", **node}],
            }
        )
    )
    stored = extractor(batch_of(values)).column("f")
    stored.validate(full=True)
    assert stored.null_count == 0
    assert comparable(stored.to_pylist()) == comparable([expected(row) for row in values])


def spec_of_all_cases() -> dict[str, Any]:
    slots = [{"slot": i + 1, "name": f"f{i}", **node} for i, (node, _) in enumerate(CASES.values())]
    labels = {"clicked": "flag", "paid": "price"}
    return {
        "spec": 1,
        "inputs": INPUTS,
        "sequences": SEQUENCES,
        "labels": labels,
        "weight": "count",
        "keep": ["text", "tags", "scores"],
        "slots": slots,
    }


@settings(max_examples=settings().max_examples // 5)
@given(values=rows_of(list(VALUES)), cuts=st.lists(st.integers(0, 8), max_size=3))
def test_how_rows_are_cut_into_batches_changes_no_value_and_no_count(
    values: list[dict[str, Any]], cuts: list[int]
) -> None:
    spec = load_spec(spec_of_all_cases())
    whole, parts, single = Extractor(spec), Extractor(spec), Extractor(spec)
    batch = batch_of(values)
    bounds = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]
    expected = whole(batch)
    slices = [parts(batch.slice(a, b - a)) for a, b in itertools.pairwise(bounds)]
    assert str(pa.Table.from_batches(slices).to_pylist()) == str(expected.to_pylist())
    assert parts.counts == whole.counts
    assert str([single.one(row) for row in values]) == str(expected.to_pylist())
    assert single.counts == whole.counts
