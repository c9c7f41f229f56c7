"""The lock of a spec: what each slot number meant when it was last approved, so that no number silently gets a new meaning.

A lock is a JSON file beside the spec, one slot a line, so that merges and reviews see single slots. Everything here is pure
but for `load_lock` and `write_lock`.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from featstore import files
from featstore.errors import SpecError
from featstore.spec import check
from featstore.spec.model import Node, Spec, plain, type_name

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class LockedSlot:
    """What a number stands for: the slot's name when it was locked, and its semantic hash."""

    name: str
    hash: str


@dataclass(frozen=True, kw_only=True)
class Lock:
    """Slots by number, and every number that was ever retired. `spec` is the semantics version of the hashes."""

    spec: int
    slots: Mapping[int, LockedSlot]
    retired: frozenset[int] = field(default_factory=frozenset)


def make_lock(spec: Spec, earlier: Lock | None = None) -> Lock:
    """The lock of a spec that `build_graph` accepts. Numbers that `earlier` knew and the spec has no more are retired."""
    hashes = semantic_hashes(spec)
    slots = {number: LockedSlot(name=name, hash=hashes[name]) for number, name in slot_names(spec).items()}
    known = frozenset() if earlier is None else earlier.retired | frozenset(earlier.slots)
    return Lock(spec=spec.version, slots=slots, retired=spec.retired | (known - frozenset(slots)))


def slot_names(spec: Spec) -> dict[int, str]:
    """The stored slots' names by number, ascending."""
    return dict(sorted((node.slot, node.name) for node in spec.nodes if node.slot is not None))


def semantic_hashes(spec: Spec) -> dict[str, str]:
    """By stored slot: SHA-256 (hex) of the canonical JSON of all that determines its column's values.

    That is its number and encoding, operator, params and options and, in place of names, the same (but for number and
    encoding) of each node that it reads, and the name and type of each input. So names and order of nodes are no part of it,
    nor are params and options at their defaults: a param that an operator gets later leaves the hashes as they were.
    """
    meanings: dict[str, str] = {}
    for node in check.ordered(spec):
        meanings[node.name] = _digest(_meaning(spec, node, meanings))
    return {node.name: _digest(_stored(spec, node) | {"node": meanings[node.name]}) for node in spec.nodes if node.store}


def _stored(spec: Spec, node: Node) -> dict[str, object]:
    content: dict[str, object] = {"spec": spec.version, "slot": node.slot, "encode": node.encode}
    return content if node.share_slot is None else content | {"share_slot": node.share_slot}


def _meaning(spec: Spec, node: Node, meanings: Mapping[str, str]) -> dict[str, Any]:
    operator = check.operator_of(node)
    params = check.read_params(node, operator)
    content = {
        "op": node.op,
        "params": {name: plain(value) for name, value in params.items() if value != operator.params[name].default} or None,
        "of": [_source(spec, node, i, meanings) for i in range(len(node.of))],
        "fill": plain(node.fill),
        "empty_as_null": node.empty_as_null or None,
    }
    return {key: value for key, value in content.items() if value is not None}


def _source(spec: Spec, node: Node, i: int, meanings: Mapping[str, str]) -> dict[str, object]:
    name = node.of[i]
    if check.resolve(spec, name, node.name, check.of_path(node, i)):
        found: dict[str, object] = {"node": meanings[name]}
    else:
        found = {"input": name, "type": type_name(spec.inputs[name]), **_sequence(spec, name)}
    default = check.default_of(node, i)
    return found if default is None else found | {"default": plain(default)}


def _sequence(spec: Spec, name: str) -> dict[str, object]:
    """The columns that an input is cut together with, where there are any: they say which of its elements remain."""
    for sequence in spec.sequences:
        if name in sequence.of:
            columns = [[other, type_name(spec.inputs[other])] for other in sequence.of]
            options = {"max_len": sequence.max_len, "truncate": sequence.truncate, "empty_as_null": sequence.empty_as_null}
            return {"sequence": {"of": columns, **options}}
    return {}


def _digest(content: object) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def to_json(lock: Lock) -> str:
    """The lock as a file holds it: keys in order, a slot a line."""
    slots = [
        f'    "{number}": {json.dumps({"hash": slot.hash, "name": slot.name}, ensure_ascii=False)}'
        for number, slot in sorted(lock.slots.items())
    ]
    lines = [f'  "format": {FORMAT},', f'  "retired": {sorted(lock.retired)},', '  "slots": {', ",\n".join(slots), "  },"]
    return "\n".join(["{", *lines, f'  "spec": {lock.spec}', "}", ""])


def from_json(text: str, source: str) -> Lock:
    """The lock of a file's text; SpecError, naming `source`, where it is none or of a later format."""
    where = files.redact(source)
    try:
        document = json.loads(text)
        found, lock = document["format"], _lock(document) if document["format"] == FORMAT else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SpecError(f"{where}: expected a lock file as `--update-lock` writes it, found {error!r}") from error
    if lock is None:
        raise SpecError(f"{where}: expected a lock of format {FORMAT}, found {found!r}")
    return lock


def _lock(document: Mapping[str, Any]) -> Lock:
    slots = {int(number): LockedSlot(name=slot["name"], hash=slot["hash"]) for number, slot in document["slots"].items()}
    return Lock(spec=int(document["spec"]), slots=slots, retired=frozenset(map(int, document["retired"])))


def lock_url(spec_url: str) -> str:
    """Where the lock of a spec lies: `flights.spec.yaml` has `flights.spec.lock.json` beside it."""
    stem, dot, suffix = spec_url.rpartition(".")
    return f"{stem if dot and suffix.lower() in ('yaml', 'yml', 'json') else spec_url}.lock.json"


def load_lock(url: str) -> Lock | None:
    """The lock at a path or URL, None where there is none."""
    try:
        with files.open_read(url) as file:
            return from_json(file.read().decode(), url)
    except FileNotFoundError:
        return None


def write_lock(lock: Lock, url: str) -> None:
    """Replaces the lock file, whole or not at all."""
    with files.open_write(url) as file:
        file.write(to_json(lock).encode())
