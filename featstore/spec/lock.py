"""The lock of a spec: what each slot number meant when it was last approved, so that no number silently gets a new meaning.

A lock is a JSON file beside the spec, one slot a line, so that merges and reviews see single slots. Everything here is pure
but for `load_lock` and `write_lock`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from featstore import files
from featstore.errors import SpecError
from featstore.spec.meaning import semantic_hashes
from featstore.spec.model import Spec

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
