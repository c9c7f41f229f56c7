"""The features as one writes them in Spark SQL, and Spark's own reader and writer around them."""

from collections.abc import Callable
from typing import Any

from extraction_sides.workload import MASK, ROW_ID, Feature

_UNIT_S = 3600


def write_features(spark: Any, raw_url: str, out_url: str, chosen: list[Feature]) -> None:
    """One select and one write, as a user has it."""
    columns = [f"{expression(feature)} AS {feature.name}" for feature in chosen]
    spark.read.parquet(raw_url).selectExpr(*columns, ROW_ID).write.mode("overwrite").parquet(
        out_url
    )


def expression(feature: Feature) -> str:
    """The feature's Spark SQL; missing values are marked as featstore marks them."""
    return _EXPRESSIONS[feature.op](feature)


def _sign(number: int, *texts: str) -> str:
    hashes = ", ".join(f"xxhash64({text})" for text in texts)
    return f"greatest(xxhash64({number}, {hashes}) & {MASK}, 1)"


def _text(value: str, kind: str) -> str:
    return f"string({value})" if "long" in kind else value


def _hash(feature: Feature) -> str:
    (name,), (kind,) = feature.of, feature.kinds
    if not feature.is_list:
        return f"if({name} IS NULL, 0, {_sign(feature.number, _text(name, kind))})"
    cut = f"slice({name}, 1, {feature.params['max_len']})"
    return f"coalesce(transform({cut}, e -> {_sign(feature.number, _text('e', kind))}), array(0L))"


def _cross(feature: Feature) -> str:
    lists = [
        name
        for name, kind in zip(feature.of, feature.kinds, strict=True)
        if kind.startswith("list")
    ]
    scalars = " OR ".join(f"{name} IS NULL" for name in feature.of if name not in lists)
    texts = [
        _text("e" if name in lists else name, kind)
        for name, kind in zip(feature.of, feature.kinds, strict=True)
    ]
    sign = _sign(feature.number, *texts)
    if not lists:
        return f"if({scalars}, 0, {sign})"
    return f"coalesce(if({scalars}, NULL, transform({lists[0]}, e -> {sign})), array(0L))"


def _float(value: str) -> str:
    return f"coalesce(float({value}), float('NaN'))"


def _index_sign(number: int, value: str, missing: str) -> str:
    return f"if({missing} IS NULL, 0, {_sign(number, f'string({value})')})"


def _bucketize(feature: Feature) -> str:
    name = feature.of[0]
    cases = " ".join(
        f"WHEN {name} < {bound}D THEN {i}" for i, bound in enumerate(feature.params["boundaries"])
    )
    return _index_sign(
        feature.number, f"CASE {cases} ELSE {len(feature.params['boundaries'])} END", name
    )


def _clip(feature: Feature) -> str:
    name, low, high = feature.of[0], feature.params["min"], feature.params["max"]
    return _float(
        f"CASE WHEN {name} < {low}D THEN {low}D WHEN {name} > {high}D THEN {high}D ELSE {name} END"
    )


def _identity(feature: Feature) -> str:
    if not feature.is_list:
        return _float(f"double({feature.of[0]})")
    return (
        f"coalesce(transform(slice({feature.of[0]}, 1, {feature.params['max_len']}), e -> "
        f"float(e)), array(float('NaN')))"
    )


def _mean(feature: Feature) -> str:
    name = feature.of[0]
    return _float(
        f"if(size({name}) > 0, aggregate({name}, 0D, (s, e) -> s + e) / size({name}), NULL)"
    )


def _time_since(feature: Feature) -> str:
    now, past = feature.of
    return _float(f"(unix_micros({now}) - unix_micros({past})) / {_UNIT_S * 1_000_000}D")


_EXPRESSIONS: dict[str, Callable[[Feature], str]] = {
    "hash": _hash,
    "cross": _cross,
    "bucketize": _bucketize,
    "identity": _identity,
    "clip": _clip,
    "log1p": lambda feature: _float(f"log1p({feature.of[0]})"),
    "hour": lambda feature: _index_sign(feature.number, f"hour({feature.of[0]})", feature.of[0]),
    "day_of_week": lambda feature: _index_sign(
        feature.number, f"weekday({feature.of[0]})", feature.of[0]
    ),
    "lookup": lambda feature: _float(f"try_element_at({feature.of[0]}, {feature.of[1]})"),
    "combine": _mean,
    "length": lambda feature: _index_sign(feature.number, f"size({feature.of[0]})", feature.of[0]),
    "time_since": _time_since,
}
