"""Lint: reports all errors of a spec at once, without data, and compares it with its lock."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from featstore.base.errors import SpecError
from featstore.base.redaction import redact
from featstore.base.schema import Slot
from featstore.spec import check
from featstore.spec.graph import Builder, build_graph
from featstore.spec.lock import Lock, load_lock, lock_url, write_lock
from featstore.spec.meaning import (
    keep_fits,
    make_lock,
    semantic_hashes,
    short_meanings,
    slot_names,
)
from featstore.spec.model import Node, Spec
from featstore.spec.parse import load_spec, naming
from featstore.spec.vocabulary import padded_values, record_vocabularies


@dataclass(frozen=True, kw_only=True)
class LintReport:
    """The result of `lint`.

    Attributes:
        spec_url: The path or URL of the spec.
        findings: What is wrong, one sentence each.
        notes: What lint changed, and hints.
    """

    spec_url: str = field(repr=False)
    findings: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.findings

    def __str__(self) -> str:
        source = redact(self.spec_url)
        found = [
            text if text.startswith(f"{source}: ") else f"{source}: {text}"
            for text in self.findings
        ]
        return "\n".join(found or [*self.notes, f"{source}: nothing found"])

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON types."""
        return {
            "spec": redact(self.spec_url),
            "ok": self.ok,
            "findings": list(self.findings),
            "notes": list(self.notes),
        }


def lint(spec_url: str, *, update_lock: bool = False) -> LintReport:
    """Checks a spec, and that its slots mean what the lock beside it says, if there is one.

    Args:
        spec_url: The path or URL of the spec.
        update_lock: Write the lock for the spec as it is now, with the current values of vocabulary
            files and the fits of renamed nodes. It is not written if the spec is wrong or uses a
            retired number.

    Raises:
        SpecError: There is no document to check.
    """
    errors: list[SpecError] = []
    spec = load_spec(spec_url, errors)
    url = lock_url(spec_url)
    lock = load_lock(url)
    if not errors and update_lock:
        spec = _refrozen(spec, lock, errors)
    retired = frozenset() if lock is None else lock.retired
    errors += find_errors(spec, retired, is_whole=not errors)
    findings = tuple(dict.fromkeys(map(str, errors)))  # in order, each once
    if findings:
        return LintReport(spec_url=spec_url, findings=findings)
    changes = tuple(compare(spec, lock)) if lock is not None else ()
    notes = tuple(padded_values(spec))
    if not update_lock:
        hint = () if lock is not None else (f"{redact(url)}: no lock yet; --update-lock writes it",)
        return LintReport(spec_url=spec_url, findings=changes, notes=(*notes, *hint))
    write_lock(make_lock(spec, lock), url)
    return LintReport(
        spec_url=spec_url, findings=(), notes=(*notes, *changes, f"{redact(url)}: written")
    )


def _refrozen(spec: Spec, lock: Lock | None, errors: list[SpecError]) -> Spec:
    """The spec with everything that can be frozen without data.

    Only errors of vocabulary files are added; other checks report the rest.
    """
    try:
        spec = record_vocabularies(spec)
    except SpecError as error:
        errors.append(error)
    if any(check.sequence_errors(spec)):  # found again, with all the others
        return spec
    try:
        return keep_fits(spec, lock)
    except SpecError:  # of the spec itself: found again, with all the others
        return spec


def compare(spec: Spec, lock: Lock) -> Iterator[str]:
    """Yields the differences between a spec without errors and its lock.

    These are numbers with another meaning, new numbers, and removed numbers.
    """
    slots, where = make_lock(spec).slots, {node.slot: node.where for node in spec.all_nodes}
    for number, slot in slots.items():
        locked = lock.slots.get(number)
        at = f"{where[number]}: slot {number} ({slot.name!r})"
        if locked is None:
            yield f"{at} is not in the lock; --update-lock adds it"
        elif locked.hash != slot.hash:
            yield (
                f"{at} has another meaning than when it was locked (as {locked.name!r}): give it a "
                f"new number and retire {number}, or accept the change with --update-lock if no "
                "table holds it"
            )
    yield from _unrecorded(spec, lock)
    for number in sorted(lock.slots.keys() - slots.keys()):
        yield (
            f"slots: slot {number} ({lock.slots[number].name!r}) of the lock is gone; "
            f"--update-lock retires its number"
        )


def _unrecorded(spec: Spec, lock: Lock) -> Iterator[str]:
    for file, entry in spec.vocabularies.items():
        num_locked = lock.vocabularies[file].num_values if file in lock.vocabularies else 0
        num_more = len(entry) + entry.num_unrecorded - num_locked
        if num_more:
            yield (
                f"vocabularies: {file} has {num_more:,} values more than the {num_locked:,} that "
                "are recorded, and they are unknown until --update-lock records them"
            )


def check_lock(spec: Spec) -> None:
    """Checks a spec against the lock beside its file. A spec without a file has no lock.

    Numbers that the lock does not have are accepted.

    Raises:
        SpecError: The spec is wrong, or a slot differs from what the lock says of its number.
    """
    build_graph(spec)
    lock = load_lock(lock_url(spec.source)) if spec.source else None
    if lock is not None:
        with naming(spec.source):
            for error in check.number_errors(spec, spec.retired | lock.retired):
                raise error
            hashes = semantic_hashes(spec)
            for node in spec.all_nodes:
                locked = lock.slots.get(node.slot or 0)
                if locked is not None and locked.hash != hashes[node.name]:
                    raise SpecError(
                        f"{node.where}: slot {node.slot} ({node.name!r}) has another meaning than "
                        f"when it was locked (as {locked.name!r}): give it a new number and retire "
                        f"{node.slot}, or accept the change, if no table holds it, with `featstore "
                        "spec lint SPEC --update-lock`"
                    )


def check_meanings(spec: Spec, known: Mapping[str, str], table: str) -> None:
    """Checks a spec whose file has no lock beside it against what a table holds.

    Args:
        spec: The spec.
        known: The `short_meanings` of the table's slots. It may lack some.
        table: The table, for the error.

    Raises:
        SpecError: A slot number has another meaning in the table.
    """
    if not spec.source or not known or load_lock(lock_url(spec.source)) is not None:
        return
    names, now = slot_names(spec), short_meanings(spec)
    changed = [f"{n} ({names[int(n)]!r})" for n in now if known.get(n, now[n]) != now[n]]
    if changed:
        raise SpecError(
            f"{redact(spec.source)}: expected slots to mean what they mean in {table}, found "
            f"another meaning of {', '.join(changed)}, and no lock file "
            f"{redact(lock_url(spec.source))} that accepts it; nothing was extracted: give them "
            f"new numbers, or copy the lock file of the spec that this one was made from, or "
            f"accept the change with `featstore spec lint SPEC --update-lock`"
        )


def find_errors(
    spec: Spec, retired: frozenset[int] = frozenset(), *, is_whole: bool = True
) -> list[SpecError]:
    """All errors of a spec, each once: nodes that read a wrong node are not reported for it.

    Args:
        spec: The spec.
        retired: Retired numbers beyond those of the spec, from its lock.
        is_whole: False if wrong entries were left out of the spec, so that a name which it lacks,
            or which nothing reads, may be right.
    """
    retired |= spec.retired
    errors = [*check.name_errors(spec), *check.number_errors(spec, retired)]
    if is_whole:
        errors = list(check.document_errors(spec, retired))
    # A wrong sequence would make errors of each of its columns: check these as plain columns.
    if any(check.sequence_errors(spec)):
        spec = replace(spec, sequences=())
    unresolved = list(_unresolved(spec))
    errors += [error for _, error in unresolved if is_whole]
    nodes = _in_order(spec, {name for name, _ in unresolved}, errors)
    of_events = [find_errors(each.events, retired, is_whole=is_whole) for each in spec.histories]
    errors += itertools.chain.from_iterable(of_events)
    errors += _graph_errors(spec, nodes, is_whole, shares=is_whole and not any(of_events))
    return errors + (list(_unused(spec)) if is_whole and not errors else [])


def _unresolved(spec: Spec) -> Iterator[tuple[str, SpecError]]:
    """Yields the errors of names in `of` that are unknown or ambiguous, each with its node."""
    for node in spec.nodes:
        for i, name in enumerate(node.of):
            try:
                check.resolve(spec, name, node.name, check.of_path(node, i))
            except SpecError as error:
                yield node.name, error


def _in_order(spec: Spec, unresolved: set[str], errors: list[SpecError]) -> list[Node]:
    """The nodes, each after those that it reads, without those that are `unresolved` or in a
    cycle. An error is added for each cycle.
    """
    reads = {name: _reads(spec, node) for name, node in spec.by_name.items()}
    reads = {name: read for name, read in reads.items() if name not in unresolved}
    while True:
        try:
            return check.in_order(spec, reads)
        except SpecError as error:
            errors.append(error)
            cycle = error.__cause__.args[1] if error.__cause__ else ()
            reads = {name: read for name, read in reads.items() if name not in cycle}


def _reads(spec: Spec, node: Node) -> set[str]:
    return {
        name
        for name in node.of
        if name in spec.by_name and not (name == node.name and name in spec.inputs)
    }


def _graph_errors(spec: Spec, nodes: list[Node], is_whole: bool, shares: bool) -> list[SpecError]:
    """Builds the nodes one by one; nodes that read one that failed are skipped.

    Args:
        shares: Whether shared numbers are checked, which needs the slots of all histories.
    """
    builder, errors = Builder(spec), list[SpecError]()
    failed = spec.by_name.keys() - {node.name for node in nodes}
    slots: dict[int | None, Slot] = {}
    for node in nodes:
        if failed & _reads(spec, node):
            failed.add(node.name)
            continue
        try:
            builder.add_node(node)
            if node.store:
                slots[node.slot], _ = builder.add_slot(node)
        except SpecError as error:
            errors.append(error)
            failed.add(node.name)
    if shares:
        graphs = (build_graph(history.events) for history in spec.histories)
        slots |= {slot.number: slot for graph in graphs for slot in graph.schema}
        errors += _share_errors(spec, slots, failed)
    return errors + (list(_column_errors(spec, builder, failed)) if is_whole else [])


def _share_errors(
    spec: Spec, slots: Mapping[int | None, Slot], failed: set[str]
) -> Iterator[SpecError]:
    """Yields the errors of shared numbers, except where nodes that failed are involved."""
    numbers = {node.slot for node in spec.nodes if node.name in failed and node.slot is not None}
    nodes = tuple(
        node for node in spec.nodes if node.name not in failed and node.share_slot not in numbers
    )
    return check.share_errors(replace(spec, nodes=nodes), slots)


def _column_errors(spec: Spec, builder: Builder, failed: set[str]) -> Iterator[SpecError]:
    """Yields the errors of labels, weight and kept columns."""
    for column in spec.columns:
        if column.role == "kept" or column.source not in failed:
            try:
                builder.add_column(column)
            except SpecError as error:
                yield error


def _unused(spec: Spec) -> Iterator[SpecError]:
    """Yields an error for each inner node or input that no stored column needs."""
    used = {node.name for node in spec.nodes if node.store} | {*spec.labels.values(), spec.weight}
    for node in reversed(check.ordered(spec)):
        used |= _reads(spec, node) if node.name in used else set()
    for node in spec.nodes:
        if node.name not in used:
            yield SpecError(
                f"{node.where}: expected another node to read the inner node {node.name!r}, "
                f"found none; remove it"
            )
    read = set(check.inputs_read(spec))
    where = f"{spec.history.where}.inputs" if spec.history else "inputs"
    for name in spec.inputs:
        if name not in read:
            yield SpecError(
                f"{where}.{name}: expected a node to read the input, found none; remove it"
            )
