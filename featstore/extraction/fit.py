"""The fitting pass: computes operator parameters from the data, and freezes them in the spec.

Nodes are fitted in the order in which they read one another. All nodes that are ready are fitted in
one pass, so the number of passes is the depth of fitted nodes in the graph. A pass runs the same
operators as an extraction to compute a node's input.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from featstore.base.errors import InputError, NotFittedError
from featstore.base.host import num_cores
from featstore.base.redaction import redact
from featstore.extraction.units.extractor import Extractor
from featstore.extraction.units.raw import Unit, find_raw_files, plan_units
from featstore.extraction.units.unit import extract_range
from featstore.files.retry import thread_pool
from featstore.ops.arrays import values_of
from featstore.ops.fitting import STATES, Keys, State
from featstore.ops.hashing import xxh64
from featstore.spec import check
from featstore.spec.lint import find_errors
from featstore.spec.meaning import fit_hash, meaning
from featstore.spec.model import Fitted, Node, Spec

_SEED_BITS = 62
_UNFITTABLE = (
    "fit on more rows, or remove the slots of columns that are constant or empty, or give them an "
    "operator without a fit"
)
States = Mapping[str, State]


@dataclass(frozen=True, kw_only=True)
class FitTask:
    """One pass over raw rows. Picklable.

    Attributes:
        spec: A spec whose labels are the values to fit on.
        ops: The operator to fit, by label.
        names: Names of the raw files by URL. A name and a row number identify a row wherever it is
            read.
    """

    spec: Spec
    ops: Mapping[str, str]
    names: Mapping[str, str]


FitRunner = Callable[[FitTask, Sequence[Unit]], list[States]]


def fit_spec(
    spec: Spec, input_url: str, run: FitRunner | None = None, *, again: bool = False
) -> Spec:
    """Fits the nodes of a spec on raw Parquet.

    The result depends only on the spec and the rows, not on the runner.

    Args:
        input_url: A raw Parquet file, a directory or a glob.
        run: Runs the passes; by default in threads of this process.
        again: Fit all nodes. By default only those that are not fitted, or were fitted on another
            definition, are.

    Returns:
        The spec with all nodes fitted.

    Raises:
        SpecError: The spec is not valid for another reason.
        InputError: The raw input cannot be read, or has no values to fit.
    """
    spec = replace(spec, fitted={}) if again else spec
    for error in find_errors(spec):
        if not isinstance(error, NotFittedError):
            raise error
    while ready := _ready(spec):
        spec = _fit_level(spec, ready, input_url, run or fit_in_threads)
    return spec


def fit_in_threads(task: FitTask, units: Sequence[Unit]) -> list[States]:
    """Computes states in threads of this process, one state per thread."""
    num_threads = min(num_cores(), len(units))
    with thread_pool(num_threads, "featstore-fit") as threads:
        return list(
            threads.map(
                # Which thread takes which unit does not matter: merging states is commutative.
                lambda first: fit_units(task, units[first::num_threads]),
                range(num_threads),
            )
        )


def fit_units(task: FitTask, units: Iterable[Unit]) -> States:
    """Returns the states of these units' rows. Errors name the raw file and the rows."""
    extractor = Extractor(task.spec)
    states = {label: STATES[op]() for label, op in task.ops.items()}
    for unit in units:
        for raw in unit.ranges:
            row = raw.first_row
            for batch in extract_range(raw, extractor, unit.partition):
                keys = _row_keys(task.names[raw.url], row, batch.num_rows)
                states = {
                    label: _add(state, batch.column(label), keys) for label, state in states.items()
                }
                row += batch.num_rows
    return states


def merge_states(left: States, right: States) -> States:
    """Returns the states of both sets of rows."""
    return {label: state.merge(right[label]) for label, state in left.items()}


def _add(state: State, column: pa.Array, keys: Keys) -> State:
    present = values_of(column.is_valid())
    return state.add(values_of(column)[present], keys[present])


def _row_keys(name: str, first_row: int, num_rows: int) -> Keys:
    """Returns a key per row: XXH64 of its number in the file (8 bytes, little-endian).

    The seed is the XXH64 of the file's name, cut to 62 bits.
    """
    rows = np.arange(first_row, first_row + num_rows, dtype="<i8")
    text = name.encode()
    [seed] = xxh64(text, np.array([0, len(text)], np.int32), seed=0)
    offsets = np.arange(num_rows + 1, dtype=np.int32) * np.int32(8)
    return xxh64(rows, offsets, int(seed) & (2**_SEED_BITS - 1))


def _ready(spec: Spec) -> dict[str, str]:
    """Returns the nodes to fit next, with the hashes of what they are fitted on.

    These read no node that has yet to be fitted.
    """
    meanings: dict[str, str] = {}
    ready: dict[str, str] = {}
    waiting: set[str] = set()
    for node in check.ordered(spec):
        if waiting.intersection(check.nodes_read(spec, node)):
            waiting.add(node.name)
            continue
        fitted = spec.fitted.get(node.name)
        if node.op in STATES and (found := fit_hash(spec, node, meanings)) != (
            fitted and fitted.hash
        ):
            ready[node.name] = found
            waiting.add(node.name)
            continue
        meanings[node.name] = meaning(spec, node, meanings)
    return ready


def _fit_level(spec: Spec, ready: Mapping[str, str], input_url: str, run: FitRunner) -> Spec:
    """Runs one pass, which fits the nodes that are ready."""
    labels = {f"value_{i}": name for i, name in enumerate(ready)}
    declared = spec.raw_types if run is fit_in_threads else None
    files = find_raw_files(input_url, {}, (), declared)
    units = plan_units(files, spec.output.rows_per_file)
    if not units:
        raise InputError(f"{redact(input_url)} holds no rows to fit {', '.join(ready)} on")
    task = FitTask(
        spec=_pass_spec(spec, labels),
        ops={label: spec.by_name[name].op for label, name in labels.items()},
        names={file.listed.url: file.listed.name for file in files},
    )
    states, *others = run(task, units)
    for other in others:
        states = merge_states(states, other)
    return replace(
        spec, fitted={**spec.fitted, **_fitted_nodes(spec, ready, states, labels, input_url)}
    )


def _fitted_nodes(
    spec: Spec, ready: Mapping[str, str], states: States, labels: Mapping[str, str], input_url: str
) -> dict[str, Fitted]:
    """Returns the fitted nodes; one InputError names all that cannot be fitted."""
    fitted, failures = dict[str, Fitted](), list[str]()
    for label, name in labels.items():
        node, state = spec.by_name[name], states[label]
        try:
            params = state.fit(check.read_params(node, check.operator_of(node)))
            fitted[name] = Fitted(
                op=node.op, hash=ready[name], num_values=state.num_values, params=params
            )
        except ValueError as error:
            failures.append(
                f"{node.where}: {node.op} ({name!r}) cannot be fitted on {redact(input_url)}: "
                f"{error}"
            )
    if failures:
        source = f"{redact(spec.source)}: " if spec.source else ""
        raise InputError(f"{source}{'; '.join(failures)}; {_UNFITTABLE}")
    return fitted


def _pass_spec(spec: Spec, labels: Mapping[str, str]) -> Spec:
    """Returns a spec whose labels are the operands of the nodes, as float64.

    It has slots only because a spec must have one. Rows that an extraction would skip take part
    with their valid columns: if they were skipped, the numbers of later rows would depend on how
    files are cut into units.
    """
    prefix = "operand"
    while any(name.startswith(prefix) for name in {*spec.by_name, *spec.inputs}):
        prefix += "_"
    operands = [
        replace(
            spec.by_name[name],
            name=f"{prefix}{i}",
            op="identity",
            params={},
            fill=None,
            encode="sign",
            share_slot=None,
        )
        for i, name in enumerate(labels.values())
    ]
    operands = [replace(node, store=True, slot=i) for i, node in enumerate(operands, 1)]
    inner = [
        replace(node, store=False, slot=None, encode="sign", share_slot=None)
        for node in _below(spec, labels.values())
    ]
    return replace(
        spec,
        nodes=(*inner, *operands),
        labels={label: node.name for label, node in zip(labels, operands, strict=True)},
        weight=None,
        keep=(),
        histories=(),
        retired=frozenset(),
        on_error={
            name: "null" if policy == "skip" else policy for name, policy in spec.on_error.items()
        },
    )


def _below(spec: Spec, names: Iterable[str]) -> list[Node]:
    """Returns all nodes that these depend on."""

    def reads(name: str) -> list[str]:
        return check.nodes_read(spec, spec.by_name[name])

    below = check.reached(itertools.chain.from_iterable(map(reads, names)), reads)
    return [node for node in spec.nodes if node.name in below]
