"""Parses a spec document to its model.

This checks the structure of the document: known keys, the types of their values, and names.
`spec.graph` checks operators, params and types. Every error begins with the document's file, if it
has one, and the path in the document.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from featstore.base.documents import DocumentError, item_lines, load_yaml
from featstore.base.errors import SpecError, nearest
from featstore.base.redaction import redact
from featstore.files import storage
from featstore.ops.kinds import (
    Param,
    known_keys,
    options_of,
    or_null,
    read_list,
    read_mapping,
    read_options,
    wrong,
)
from featstore.ops.lists import element_type
from featstore.ops.registry import OPERATORS
from featstore.spec.lock import Lock, load_lock, lock_url
from featstore.spec.model import (
    CHECK_BOUNDS,
    ON_ERROR,
    SHARE_BOUND,
    TYPE,
    VERSION,
    DataCheck,
    EventHistory,
    Input,
    Node,
    OutputOptions,
    Sequence,
    Spec,
    type_name,
)
from featstore.spec.vocabulary import load_vocabularies

TOP_KEYS = ("spec", "inputs", *options_of(Spec), "slots", "histories", "checks", "on_error")
HISTORY_KEYS = (*options_of(EventHistory), "inputs", "slots")
# The keys of an entry of `checks`, by figure.
CHECK_KEYS = {
    "rows": ("check", "against", "at_least", "at_most", "severity"),
    "coverage": ("check", "of", "but", "at_least", "at_most", "severity"),
    "label_rate": ("check", "of", "at_least", "at_most", "severity"),
    "distinct": ("check", "of", "but", "at_least", "at_most", "severity"),
    "drift": ("check", "of", "but", "last", "at_most", "severity"),
}
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
    # Only operators with frozen params need a lock, which provides these.
    if not any(node.op in OPERATORS and OPERATORS[node.op].frozen for node in spec.nodes):
        return spec
    spec = replace(spec, base_url=str(source).rpartition("/")[0])
    return with_lock(spec, lock or load_lock(lock_url(str(source))), errors)


def with_lock(spec: Spec, lock: Lock | None, errors: list[SpecError] | None = None) -> Spec:
    """The spec with the frozen params of a lock; fits of other nodes and operators are ignored."""
    if lock is None:
        return spec
    fitted = {
        node.name: lock.fitted[node.name]
        for node in spec.nodes
        if node.name in lock.fitted and lock.fitted[node.name].op == node.op
    }
    try:
        return load_vocabularies(replace(spec, fitted=fitted), lock.vocabularies)
    except SpecError as error:
        if errors is None:
            raise
        errors.append(error)
    return replace(spec, fitted=fitted)


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


def _spec(
    document: object, errors: list[SpecError] | None, lines_of_checks: tuple[int, ...] = ()
) -> Spec:
    top = known_keys(document, TOP_KEYS, "")
    if top.get("spec") != VERSION or type(top.get("spec")) is not int:
        raise wrong("spec", f"the semantics version {VERSION}", top.get("spec"))
    on_error = ON_ERROR.read(top["on_error"], "on_error") if "on_error" in top else None
    inputs = _inputs(top.get("inputs"), "inputs", on_error, errors)
    options = read_options(options_of(Spec), top, "")
    checks = tuple(parse_checks(top.get("checks") or [], errors, lines_of_checks))
    nodes = ((value, f"slots[{i}]") for i, value in enumerate(read_list(top.get("slots"), "slots")))
    histories = (
        (value, f"histories[{i}]", on_error)
        for i, value in enumerate(read_list(top.get("histories") or [], "histories"))
    )
    spec = Spec(
        **options
        | {
            "retired": frozenset(options.get("retired", ())),
            "sequences": tuple(
                Sequence(name=name, **given) for name, given in options.get("sequences", {}).items()
            ),
            "output": OutputOptions(**options.get("output", {})),
        },
        version=VERSION,
        **inputs,
        histories=tuple(_each(histories, _history, errors)),
        checks=checks,
        nodes=tuple(_each(nodes, _node, errors)),
    )
    _check_output(spec)
    return spec


def _check_output(spec: Spec) -> None:
    output = spec.output
    if output.rows_per_row_group > output.rows_per_file:
        expected = f"at least rows_per_row_group ({output.rows_per_row_group})"
        raise wrong("output.rows_per_file", expected, output.rows_per_file)
    if spec.checks and not output.statistics:
        raise wrong("output.statistics", "true, since `checks` are run on statistics", False)


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


def _inputs(
    value: object, where: str, on_error: str | None, errors: list[SpecError] | None
) -> dict[str, Any]:
    """The fields of a spec, or a history, that a mapping of inputs gives."""
    entries = (
        (entry, f"{where}.{name}", name) for name, entry in read_mapping(value, where).items()
    )
    inputs = dict(_each(entries, _input, errors))
    return {
        "inputs": {name: given.type for name, given in inputs.items()},
        "on_error": {
            name: said
            for name, given in inputs.items()
            if (said := given.on_error or on_error) is not None
        },
        "optional": frozenset(name for name, given in inputs.items() if given.optional),
        "text": frozenset(name for name, given in inputs.items() if given.text),
    }


def _history(value: object, where: str, on_error: str | None) -> EventHistory:
    entry = known_keys(value, HISTORY_KEYS, where)
    slots = read_list(entry.get("slots"), f"{where}.slots")
    return EventHistory(
        **read_options(options_of(EventHistory), entry, where),
        **_inputs(entry.get("inputs"), f"{where}.inputs", on_error, None),
        nodes=tuple(_node(slot, f"{where}.slots[{i}]") for i, slot in enumerate(slots)),
        where=where,
    )


def _input(value: object, where: str, name: str) -> tuple[str, Input]:
    if not isinstance(value, Mapping):
        return name, Input(type=TYPE.read(value, where))
    options = options_of(Input)
    given = Input(**read_options(options, known_keys(value, options, where), where))
    if given.text and element_type(given.type) not in (pa.int64(), pa.float64()):
        expected = "it with double, long or a list of these"
        raise wrong(f"{where}.text", expected, True, note=f"with {type_name(given.type)}")
    return name, given


def _node(value: object, where: str) -> Node:
    entry, options = read_mapping(value, where), options_of(Node)
    for key in ("name", "op", "of"):
        if key not in entry:
            raise SpecError(
                f"{where}: expected the keys name, op and of, found no {key!r}{nearest(key, entry)}"
            )
    node = Node(
        **read_options(options, entry, where),
        params={key: value for key, value in entry.items() if key not in options},
        where=where,
    )
    if node.store and node.slot is None:
        raise SpecError(
            f"{where}: expected a slot number (`slot: ...`), or `store: false` for an inner node, "
            f"found neither"
        )
    if not node.store and node.slot is not None:
        raise SpecError(f"{where}: expected either a slot number or `store: false`, found both")
    if not node.store and node.values is not None:
        raise wrong(f"{where}.values", "it at a stored slot, whose signs have texts", node.values)
    return node


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
            itertools.zip_longest(read_list(value, "checks"), at, fillvalue="")
        )
    )
    yield from _each(placed, _data_check, errors)


def check_options(figure: str, *, against: bool) -> dict[str, Param]:
    """The options of an entry of `checks`.

    Args:
        figure: Its figure.
        against: Whether it is a share of another figure.
    """
    bound = Param(kind=or_null(SHARE_BOUND if against else CHECK_BOUNDS[figure]))
    options = {**options_of(DataCheck), "at_least": bound, "at_most": bound}
    needed = ("check", "of", "last", *(["against"] if against else []))
    return {
        key: replace(options[key], required=key in needed)
        for key in CHECK_KEYS[figure]
        if against or key != "against"
    }


def _data_check(value: object, where: str) -> DataCheck:
    entry = read_mapping(value, where)
    figure = options_of(DataCheck)["check"].kind.read(entry.get("check"), f"{where}.check")
    known_keys(entry, CHECK_KEYS[figure], where)
    options = check_options(figure, against="against" in entry)
    found = DataCheck(**read_options(options, entry, where), where=where)
    if found.at_least is None and found.at_most is None:
        keys = " or ".join(key for key in CHECK_KEYS[figure] if key.startswith("at_"))
        raise SpecError(f"{where}: expected a bound ({keys}), found none")
    if found.at_least is not None and found.at_most is not None and found.at_least > found.at_most:
        expected = f"at least at_least ({found.at_least:g}), since no data could pass"
        raise wrong(f"{where}.at_most", expected, found.at_most)
    return found
