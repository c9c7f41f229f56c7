"""The lock of a spec.

It records what each slot number meant when it was last approved, so that no number silently gets a
new meaning. It also records what was fitted on data or read from files, so that extraction depends
on spec and lock alone.

A lock is a JSON file beside the spec with one slot per line, so that merges and reviews show single
slots. All functions are pure except `load_lock` and `write_lock`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from featstore.base.errors import SpecError
from featstore.base.redaction import redact
from featstore.files import storage
from featstore.spec.model import Fitted

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class LockedSlot:
    """The name of a slot when it was locked, and its semantic hash (see `meaning`)."""

    name: str
    hash: str


@dataclass(frozen=True, kw_only=True)
class LockedVocabulary:
    """The recorded values of a vocabulary file.

    Attributes:
        num_values: How many values, from the start of the file.
        digest: The SHA-256 (hex) of these values, each followed by a newline.
        marks: The first 8 digits of the same for the first 1, 2, 4, ... values. They narrow down
            where a changed file differs.
    """

    num_values: int
    digest: str
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Lock:
    """The content of a lock file.

    Attributes:
        spec: The semantics version of the hashes.
        slots: The slots by number.
        retired: Every number that was ever retired.
        fitted: The fitted constants by node.
        vocabularies: The recorded files by name in the spec.
    """

    spec: int
    slots: Mapping[int, LockedSlot]
    retired: frozenset[int] = field(default_factory=frozenset)
    fitted: Mapping[str, Fitted] = field(default_factory=dict)
    vocabularies: Mapping[str, LockedVocabulary] = field(default_factory=dict)


def to_json(lock: Lock) -> str:
    """The text of a lock file: keys in order, one entry per line, no empty optional sections."""
    document: dict[str, Any] = {
        "fitted": {
            name: {"op": of.op, "hash": of.hash, "num_values": of.num_values, **of.params}
            for name, of in sorted(lock.fitted.items())
        },
        "format": FORMAT,
        "retired": sorted(lock.retired),
        "slots": {
            str(number): {"hash": slot.hash, "name": slot.name}
            for number, slot in sorted(lock.slots.items())
        },
        "spec": lock.spec,
        "vocabularies": {
            file: {"num_values": of.num_values, "digest": of.digest, "marks": " ".join(of.marks)}
            for file, of in sorted(lock.vocabularies.items())
        },
    }
    sections = [
        f'  "{name}": {_section(content) if isinstance(content, dict) else content}'
        for name, content in document.items()
        if content != {} or name == "slots"
    ]
    return "\n".join(["{", ",\n".join(sections), "}", ""])


def _section(entries: Mapping[str, object]) -> str:
    lines = [
        f"    {json.dumps(key, ensure_ascii=False)}: {json.dumps(entry, ensure_ascii=False)}"
        for key, entry in entries.items()
    ]
    return "\n".join(["{", ",\n".join(lines), "  }"])


def from_json(text: str, source: str) -> Lock:
    """Parses the text of a lock file.

    Args:
        text: The text.
        source: The path or URL, for errors.

    Raises:
        SpecError: The text is not a lock, or has another format version.
    """
    where = redact(source)
    try:
        document = json.loads(text)
        found, lock = document["format"], _lock(document) if document["format"] == FORMAT else None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise SpecError(
            f"{where}: expected a lock file as `--update-lock` writes it, found {error!r}"
        ) from error
    if lock is None:
        raise SpecError(f"{where}: expected a lock of format {FORMAT}, found {found!r}")
    return lock


def _lock(document: Mapping[str, Any]) -> Lock:
    slots = {
        int(number): LockedSlot(name=slot["name"], hash=slot["hash"])
        for number, slot in document["slots"].items()
    }
    return Lock(
        spec=int(document["spec"]),
        slots=slots,
        retired=frozenset(map(int, document["retired"])),
        fitted={
            name: Fitted(
                op=entry.pop("op"),
                hash=entry.pop("hash"),
                num_values=int(entry.pop("num_values")),
                params=entry,
            )
            for name, entry in document.get("fitted", {}).items()
        },
        vocabularies={
            file: LockedVocabulary(
                num_values=int(entry["num_values"]),
                digest=entry["digest"],
                marks=tuple(entry["marks"].split()),
            )
            for file, entry in document.get("vocabularies", {}).items()
        },
    )


def lock_url(spec_url: str) -> str:
    """The URL of a spec's lock: `flights.spec.lock.json` for `flights.spec.yaml`."""
    stem, dot, suffix = spec_url.rpartition(".")
    return f"{stem if dot and suffix.lower() in ('yaml', 'yml', 'json') else spec_url}.lock.json"


def load_lock(url: str) -> Lock | None:
    """The lock at a path or URL, None where there is none."""
    try:
        with storage.open_read(url) as file:
            return from_json(file.read().decode(), url)
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise SpecError(
            f"{redact(url)}: expected a lock file as `--update-lock` writes it, found {error}"
        ) from error


def write_lock(lock: Lock, url: str) -> None:
    """Writes the lock file atomically."""
    with storage.open_write(url) as file:
        file.write(to_json(lock).encode())
