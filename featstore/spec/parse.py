"""Parses a spec document to its model.

This checks the structure of the document: known keys, the types of their values, and names.
`spec.graph` checks operators, params and types. Every error begins with the document's file, if it
has one, and the path in the document.
"""

import contextlib
import datetime
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from featstore.base.byte_sizes import parse_bytes
from featstore.base.documents import DocumentError, item_lines, load_yaml
from featstore.base.errors import ConfigError, SpecError, nearest
from featstore.base.redaction import redact, shown
from featstore.files import storage
from featstore.ops.registry import OPERATORS
from featstore.ops.signature import MAX_COUNT, OPTIONS
from featstore.spec.lock import Lock, load_lock, lock_url
from featstore.spec.model import (
    CHECKS,
    COMPRESSIONS,
    ON_ERROR,
    SEVERITIES,
    TYPE_NAMES,
    VALUES,
    VERSION,
    DataCheck,
    Input,
    Node,
    OutputOptions,
    Sequence,
    Spec,
    read_type,
)
from featstore.spec.vocabulary import load_vocabularies

TOP_KEYS = (
    "spec",
    "inputs",
    "labels",
    "weight",
    "keep",
    "retired",
    "sequences",
    "slots",
    "output",
    "checks",
    "values",
    "on_error",
)
INPUT_KEYS = ("type", "on_error", "optional")
SEQUENCE_KEYS = ("of", "max_len", "truncate", "empty_as_null")
OUTPUT_KEYS = tuple(field.name for field in fields(OutputOptions))
# The keys of an entry of `checks`, by figure.
CHECK_KEYS = {
    "rows": ("check", "against", "at_least", "at_most", "severity"),
    "coverage": ("check", "of", "at_least", "at_most", "severity"),
    "label_rate": ("check", "of", "at_least", "at_most", "severity"),
    "distinct": ("check", "of", "at_least", "at_most", "severity"),
    "drift": ("check", "of", "last", "at_most", "severity"),
}
AGAINST = "replaced"  # what `rows` may be compared with
TRUNCATE = ("head", "tail")
ENCODE = ("sign", "index")
MAX_SLOT = 2**31 - 1
T = TypeVar("T")


def load_spec(
    source: str | Path | Mapping[str, Any],
    errors: list[SpecError] | None = None,
    *,
    lock: Lock | None = None,
) -> Spec:
    """Loads a spec. This checks the document; `Extractor` looks up operators and types.

    Files that the spec names are relative to the spec, or to the working directory for a document.

    Args:
        source: A path or URL, or a document that is parsed already.
        errors: If given, wrong entries of `inputs` and `slots` are left out of the spec and their
            errors appended here.
        lock: The lock for a document. For a path or URL it is read from the file beside the spec.

    Raises:
        SpecError: There is no such spec, or it is wrong.
    """
    if isinstance(source, Mapping):
        return with_lock(_spec(source, errors), lock, errors)
    name = redact(str(source))
    try:
        with storage.open_read(str(source)) as file:
            text = file.read().decode()
    except FileNotFoundError as error:
        raise SpecError(f"{name}: expected a spec, found no such file") from error
    except (IsADirectoryError, UnicodeDecodeError) as error:
        raise SpecError(f"{name}: expected a spec in YAML, found {error}") from error
    spec = parse_spec(text, str(source), errors)
    if not freezes(spec):
        return spec
    spec = replace(spec, base_url=str(source).rpartition("/")[0])
    return with_lock(spec, lock or load_lock(lock_url(str(source))), errors)


def freezes(spec: Spec) -> bool:
    """Whether a spec has operators with frozen params, which only a lock provides."""
    return any(node.op in OPERATORS and OPERATORS[node.op].frozen for node in spec.nodes)


def with_lock(spec: Spec, lock: Lock | None, errors: list[SpecError] | None = None) -> Spec:
    """The spec with the frozen params of a lock; fits of other nodes and operators are ignored."""
    if lock is None:
        return spec
    fitted = {
        node.name: lock.fitted[node.name]
        for node in spec.nodes
        if _op_fitted(lock, node.name) == node.op
    }
    try:
        return load_vocabularies(replace(spec, fitted=fitted), lock.vocabularies)
    except SpecError as error:
        if errors is None:
            raise
        errors.append(error)
    return replace(spec, fitted=fitted)


def _op_fitted(lock: Lock, name: str) -> str | None:
    return lock.fitted[name].op if name in lock.fitted else None


def parse_spec(text: str, source: str = "", errors: list[SpecError] | None = None) -> Spec:
    """Parses a YAML text.

    Args:
        text: The document.
        source: The path or URL, for errors.
        errors: See `load_spec`.

    Raises:
        SpecError: The text is not YAML, or not a spec.
    """
    name, problems = redact(source) or "spec", list[str]()
    try:
        document = load_yaml(text, None if errors is None else problems)
    except DocumentError as error:
        raise SpecError(f"{name}: expected YAML, found: {error}") from None
    if errors is not None:
        errors += [SpecError(f"{name}: {problem}") for problem in problems]
    # Found only where they are needed, since the document is parsed once more for them.
    has_checks = isinstance(document, Mapping) and document.get("checks")
    lines = item_lines(text, "checks") if has_checks else ()
    with naming(source):
        try:
            return replace(_spec(document, errors, lines), source=source)
        except SpecError as error:
            raise SpecError("; ".join([*problems, str(error)])) from error


@contextlib.contextmanager
def naming(source: str) -> Iterator[None]:
    """Prefixes each SpecError of the block with the spec's file, if there is one."""
    try:
        yield
    except SpecError as error:
        if not source:
            raise
        raise type(error)(f"{redact(source)}: {error}") from error


def wrong(
    where: str, expected: str, found: object, known: Iterable[str] = (), *, note: str = ""
) -> SpecError:
    """Builds the error of a check.

    Args:
        where: The path in the document.
        expected: What was expected, in words.
        found: What was found.
        known: The valid names, of which the nearest is suggested.
        note: A remark on what was found.
    """
    hint = nearest(found, known) if isinstance(found, str) else ""
    hint = hint or _yaml_hint(found)
    return SpecError(
        f"{where}: expected {expected}, found {shown(found)}{note and ', ' + note}{hint}"
    )


def _yaml_hint(found: object) -> str:
    """What to write instead of a value that YAML reads as another type than it seems to have."""
    if isinstance(found, datetime.date) and not isinstance(found, datetime.datetime):
        return f"; write a timestamp: {found} 00:00:00"
    return ""


def _spec(
    document: object, errors: list[SpecError] | None, lines_of_checks: tuple[int, ...] = ()
) -> Spec:
    top = _mapping(document, "document")
    _known_keys(top, TOP_KEYS, "")
    if top.get("spec") != VERSION or type(top.get("spec")) is not int:
        raise wrong("spec", f"the semantics version {VERSION}", top.get("spec"))
    on_error = _on_error(top, "on_error")
    entries = (
        (name, value, f"inputs.{name}")
        for name, value in _mapping(top.get("inputs"), "inputs").items()
    )
    inputs = dict(_each(entries, _input, errors))
    labels = _mapping(top.get("labels") or {}, "labels")
    weight = top.get("weight")
    output = _output(_mapping(top.get("output") or {}, "output"))
    checks = tuple(parse_checks(top.get("checks") or [], errors, lines_of_checks))
    if checks and not output.statistics:
        raise wrong("output.statistics", "true, since `checks` are run on statistics", False)
    return Spec(
        version=VERSION,
        inputs={name: given.type for name, given in inputs.items()},
        on_error={
            name: said
            for name, given in inputs.items()
            if (said := given.on_error or on_error) is not None
        },
        optional=frozenset(name for name, given in inputs.items() if given.optional),
        labels={
            _column_name(name, "labels"): _text(of, f"labels.{name}") for name, of in labels.items()
        },
        weight=None if weight is None else _text(weight, "weight"),
        keep=tuple(
            _text(name, f"keep[{i}]") for i, name in enumerate(_list(top.get("keep") or [], "keep"))
        ),
        retired=frozenset(
            _number(n, f"retired[{i}]")
            for i, n in enumerate(_list(top.get("retired") or [], "retired"))
        ),
        sequences=tuple(
            _sequence(name, value)
            for name, value in _mapping(top.get("sequences") or {}, "sequences").items()
        ),
        nodes=tuple(
            _each(
                (
                    (value, f"slots[{i}]")
                    for i, value in enumerate(_list(top.get("slots"), "slots"))
                ),
                _node,
                errors,
            )
        ),
        output=output,
        checks=checks,
        values=_values(top, "") or "auto",
    )


def _each(
    entries: Iterable[tuple[Any, ...]], read: Callable[..., T], errors: list[SpecError] | None
) -> Iterator[T]:
    """Yields `read(*entry)` for each entry; errors are raised, or appended to `errors`."""
    for entry in entries:
        try:
            yield read(*entry)
        except SpecError as error:
            if errors is None:
                raise
            errors.append(error)


def _input(name: str, value: object, where: str) -> tuple[str, Input]:
    if not isinstance(value, Mapping):
        return name, Input(type=_type(value, where))
    entry = _mapping(value, where)
    _known_keys(entry, INPUT_KEYS, f"{where}.")
    optional = _boolean(entry.get("optional", False), f"{where}.optional")
    arrow_type = _type(entry.get("type"), f"{where}.type")
    return name, Input(
        type=arrow_type, on_error=_on_error(entry, f"{where}.on_error"), optional=optional
    )


def _on_error(entry: Mapping[str, Any], where: str) -> str | None:
    """The entry's `on_error`, None where it is not set. YAML reads a bare `null` as None."""
    if "on_error" not in entry:
        return None
    value = "null" if entry["on_error"] is None else entry["on_error"]
    return _one_of(value, where, "fail, null or skip", ON_ERROR)


def _node(value: object, where: str) -> Node:
    entry = _mapping(value, where)
    for key in ("name", "op", "of"):
        if key not in entry:
            raise SpecError(
                f"{where}: expected the keys name, op and of, found no {key!r}{nearest(key, entry)}"
            )
    store = _boolean(entry.get("store", True), f"{where}.store")
    number = entry.get("slot")
    if store and number is None:
        raise SpecError(
            f"{where}: expected a slot number (`slot: ...`), or `store: false` for an inner node, "
            f"found neither"
        )
    if not store and number is not None:
        raise SpecError(f"{where}: expected either a slot number or `store: false`, found both")
    values = _values(entry, f"{where}.")
    if values is not None and not store:
        raise wrong(f"{where}.values", "it at a stored slot, whose signs have texts", values)
    return Node(
        name=_column_name(entry["name"], f"{where}.name"),
        op=_text(entry["op"], f"{where}.op"),
        of=_names(entry["of"], f"{where}.of"),
        slot=None if number is None else _number(number, f"{where}.slot"),
        store=store,
        params={key: value for key, value in entry.items() if key not in OPTIONS},
        default=entry.get("default"),
        fill=entry.get("fill"),
        empty_as_null=_boolean(entry.get("empty_as_null", False), f"{where}.empty_as_null"),
        encode=_one_of(entry.get("encode", "sign"), f"{where}.encode", "sign or index", ENCODE),
        share_slot=None
        if entry.get("share_slot") is None
        else _number(entry["share_slot"], f"{where}.share_slot"),
        values=values,
        where=where,
    )


def _values(entry: Mapping[str, Any], prefix: str) -> str | None:
    """Which texts of values to keep, None where it is not said."""
    if "values" not in entry:
        return None
    return _one_of(entry["values"], f"{prefix}values", "auto, top or none", VALUES)


def _sequence(name: object, value: object) -> Sequence:
    name = _column_name(name, "sequences")
    where = f"sequences.{name}"
    entry = _mapping(value, where)
    _known_keys(entry, SEQUENCE_KEYS, f"{where}.")
    max_len = entry.get("max_len")
    if max_len is not None and (
        isinstance(max_len, bool) or not isinstance(max_len, int) or not 1 <= max_len <= MAX_COUNT
    ):
        raise wrong(f"{where}.max_len", f"an integer, 1 to {MAX_COUNT}", max_len)
    truncate = _one_of(entry.get("truncate", "head"), f"{where}.truncate", "head or tail", TRUNCATE)
    return Sequence(
        name=name,
        of=_names(entry.get("of"), f"{where}.of"),
        max_len=max_len,
        truncate=truncate,
        empty_as_null=_boolean(entry.get("empty_as_null", False), f"{where}.empty_as_null"),
    )


def _output(entry: Mapping[str, Any]) -> OutputOptions:
    _known_keys(entry, OUTPUT_KEYS, "output.")
    options = dict(entry)
    for key, value in entry.items():
        if key == "compression":
            _one_of(value, "output.compression", " or ".join(COMPRESSIONS), COMPRESSIONS)
        elif key == "statistics":
            _boolean(value, "output.statistics")
        elif key == "bytes_per_file":
            options[key] = _bytes(value, "output.bytes_per_file")
        elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise wrong(f"output.{key}", "an integer of at least 1", value)
    output = OutputOptions(**options)
    if output.rows_per_row_group > output.rows_per_file:
        expected = f"at least rows_per_row_group ({output.rows_per_row_group})"
        raise wrong("output.rows_per_file", expected, output.rows_per_file)
    return output


def parse_checks(
    value: object, errors: list[SpecError] | None = None, lines: tuple[int, ...] = ()
) -> Iterator[DataCheck]:
    """Parses the entries of `checks`, of a document or as `DataCheck.as_entry` wrote them.

    Args:
        value: The list.
        errors: See `load_spec`.
        lines: The line of each entry, if they are known.
    """
    at = [f"line {line}: " for line in lines]
    placed = (
        (entry, f"{line}checks[{i}]")
        for i, (entry, line) in enumerate(
            itertools.zip_longest(_list(value, "checks"), at, fillvalue="")
        )
    )
    yield from _each(placed, _data_check, errors)


def _data_check(value: object, where: str) -> DataCheck:
    entry = _mapping(value, where)
    check = _one_of(entry.get("check"), f"{where}.check", f"one of {', '.join(CHECKS)}", CHECKS)
    _known_keys(entry, CHECK_KEYS[check], f"{where}.")
    last = entry.get("last")
    if check == "drift" and (isinstance(last, bool) or not _is_count(last) or not last):
        raise wrong(f"{where}.last", "a number of days, at least 1", last)
    against = entry.get("against")
    if "against" in entry:
        _one_of(against, f"{where}.against", AGAINST, (AGAINST,))
    bounds = _SHARES if against else _BOUNDS[check]
    found = DataCheck(
        check=check,
        of=_names(entry.get("of"), f"{where}.of") if "of" in CHECK_KEYS[check] else (),
        at_least=_bound(entry, bounds, "at_least", where),
        at_most=_bound(entry, bounds, "at_most", where),
        last=last,
        against=against,
        severity=_one_of(
            entry.get("severity", SEVERITIES[0]),
            f"{where}.severity",
            " or ".join(SEVERITIES),
            SEVERITIES,
        ),
        where=where,
    )
    if found.at_least is None and found.at_most is None:
        keys = " or ".join(key for key in CHECK_KEYS[check] if key.startswith("at_"))
        raise SpecError(f"{where}: expected a bound ({keys}), found none")
    if found.at_least is not None and found.at_most is not None and found.at_least > found.at_most:
        expected = f"at least at_least ({found.at_least:g}), since no data could pass"
        raise wrong(f"{where}.at_most", expected, found.at_most)
    return found


def _bound(entry: Mapping[str, Any], bounds: "Bounds", key: str, where: str) -> float | None:
    """A bound of a figure, which must be a value that the figure can have."""
    value, (expected, is_possible) = entry.get(key), bounds
    if value is not None and (isinstance(value, bool) or not is_possible(value)):
        raise wrong(f"{where}.{key}", expected, value)
    return value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 2**63


def _is_number(value: object) -> bool:
    if isinstance(value, int):
        return abs(value) < 2**63
    return isinstance(value, float) and math.isfinite(value)


Bounds: TypeAlias = tuple[str, Callable[[Any], bool]]
_SHARES: Bounds = (
    "a share of the rows before, at least 0",
    lambda value: _is_number(value) and value >= 0,
)
_BOUNDS: Mapping[str, Bounds] = {
    "rows": ("an integer of at least 0", _is_count),
    "coverage": ("a share, 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1),
    "label_rate": ("a number", _is_number),
    "distinct": ("an integer of at least 0", _is_count),
    "drift": ("a number of at least 0", lambda value: _is_number(value) and value >= 0),
}


def _bytes(value: Any, where: str) -> int:
    try:
        return parse_bytes(value, where)
    except ConfigError:
        raise wrong(where, "a number of bytes above 0, or text such as 512MB", value) from None


def _known_keys(entry: Mapping[str, Any], known: tuple[str, ...], prefix: str) -> None:
    for key in entry:
        if key not in known:
            raise wrong(f"{prefix}{key}", f"one of {', '.join(known)}", key, known)


def _type(value: object, where: str) -> pa.DataType:
    arrow_type = read_type(value) if isinstance(value, str) else None
    if arrow_type is None:
        raise wrong(where, f"a type ({', '.join(TYPE_NAMES)})", value, TYPE_NAMES)
    return arrow_type


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise wrong(where, "a mapping", value)
    for key in value:
        if not isinstance(key, str):
            raise wrong(where, "text as key (quote it)", key)
    return value


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise wrong(where, "a list", value)
    return list(value)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise wrong(where, "text", value)
    return value


def _names(value: object, where: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return (_text(value, where),)
    if not isinstance(value, list | tuple) or not value:
        raise wrong(where, "a name or a list of names", value)
    return tuple(_text(name, f"{where}[{i}]") for i, name in enumerate(value))


def _column_name(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.isidentifier():
        raise wrong(where, "a name of letters, digits and _, no digit first", value)
    return value


def _number(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SLOT:
        raise wrong(where, f"a slot number, 1 to {MAX_SLOT}", value)
    return value


def _boolean(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise wrong(where, "true or false", value)
    return value


def _one_of(value: object, where: str, expected: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise wrong(where, expected, value, known)
    return str(value)
