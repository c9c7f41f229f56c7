"""Vocabulary files: what is recorded of them, and what may become of them after that."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from featstore.base.errors import SpecError
from featstore.ops.vocabularies import Vocabulary
from featstore.spec.lock import Lock, from_json, to_json
from featstore.spec.meaning import make_lock
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.spec.vocabulary import locked_vocabularies, record_vocabularies

WORDS = [f"w{i}" for i in range(100)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "words.txt").write_text("\n".join(WORDS) + "\n")
    return tmp_path / "words.txt"


def document(file: Path) -> dict[str, Any]:
    slot = {"slot": 1, "name": "w", "op": "vocabulary", "of": "x", "file": str(file)}
    return {"spec": 1, "inputs": {"x": "string"}, "slots": [slot]}


def values_of(spec: Spec) -> list[str]:
    (vocabulary,) = spec.vocabularies.values()
    assert isinstance(vocabulary, Vocabulary)
    found: list[str] = vocabulary.values.to_pylist()
    return found


def recorded(file: Path) -> Lock:
    return make_lock(record_vocabularies(load_spec(document(file))))


def test_values_are_lines(file: Path) -> None:
    file.write_bytes("a\r\nß\r\n a b ".encode())
    spec = record_vocabularies(load_spec(document(file)))
    assert values_of(spec) == ["a", "ß", " a b "]
    file.write_bytes("a\nß\n a b \n".encode())
    assert record_vocabularies(load_spec(document(file))).hash == spec.hash


def test_a_lock_reads_back_what_was_recorded(file: Path) -> None:
    lock = recorded(file)
    assert from_json(to_json(lock), "x") == lock
    spec = load_spec(document(file), lock=lock)
    assert values_of(spec) == WORDS
    assert locked_vocabularies(spec) == lock.vocabularies


def test_appended_lines_are_no_part_of_it_until_they_are_recorded(file: Path) -> None:
    lock = recorded(file)
    with file.open("a") as lines:
        lines.write("new\nnewer\n")
    spec = load_spec(document(file), lock=lock)
    assert values_of(spec) == WORDS
    assert [vocabulary.num_unrecorded for vocabulary in spec.vocabularies.values()] == [2]
    assert values_of(record_vocabularies(spec)) == [*WORDS, "new", "newer"]
    assert b"newer" not in pickle.dumps(spec)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (1, "line 1 is"),
        (2, "line 2 is"),
        (3, "a line of 3 to 4 is"),
        (64, "a line of 33 to 64 is"),
        (100, "a line of 65 to 100 is"),
    ],
)
def test_a_changed_line_is_an_error_that_says_where(file: Path, line: int, named: str) -> None:
    lock = recorded(file)
    file.write_text("\n".join("changed" if i == line else word for i, word in enumerate(WORDS, 1)))
    with pytest.raises(
        SpecError,
        match=rf"slots\[0\]\.file: expected .*words\.txt as it was recorded.* {named} the first",
    ):
        load_spec(document(file), lock=lock)


def test_a_file_that_changes_while_it_is_recorded_again_is_refused(file: Path) -> None:
    with file.open("a") as lines:
        lines.write("new\n")
    lock = recorded(file)
    file.write_text(file.read_text() + "newer\n")
    spec = load_spec(document(file), lock=lock)
    file.write_text("other\n" + file.read_text())
    with pytest.raises(SpecError, match="found that line 1 is the first that differs"):
        record_vocabularies(spec)


def test_removed_lines_are_an_error(file: Path) -> None:
    lock = recorded(file)
    file.write_text("\n".join(WORDS[:-1]))
    with pytest.raises(
        SpecError,
        match=r"found 99 lines, 100 were recorded; restore it, or give the changed vocabulary",
    ):
        load_spec(document(file), lock=lock)
    file.unlink()
    with pytest.raises(
        SpecError, match=r"slots\[0\]\.file: expected a text file at .*words\.txt, found none"
    ):
        load_spec(document(file), lock=lock)
    errors: list[SpecError] = []
    assert load_spec(document(file), errors, lock=lock).vocabularies == {}
    assert len(errors) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "expected a value in each line, found no line"),
        (b"a\n\nb\n", "expected a value in each line, found none in line 2"),
        (b"a\nb\na\n", "expected each value once, found 'a' in lines 1 and 3"),
        (b"a\nb\xff\n", "expected UTF-8, found other bytes in line 2"),
    ],
)
def test_a_malformed_file_is_an_error_that_names_the_line(
    file: Path, content: bytes, said: str
) -> None:
    file.write_bytes(content)
    with pytest.raises(SpecError, match=said):
        record_vocabularies(load_spec(document(file)))


def test_a_file_of_more_than_an_arrow_array_can_hold_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("featstore.spec.vocabulary._MAX_BYTES", 50)
    with pytest.raises(SpecError, match="expected at most 50 bytes, found 390"):
        record_vocabularies(load_spec(document(file)))


def test_the_hash_of_a_spec_has_its_vocabulary_and_the_meaning_of_a_slot_has_not(
    file: Path,
) -> None:
    spec = record_vocabularies(load_spec(document(file)))
    shorter = Vocabulary(pa.array(WORDS[:2]), "another digest")
    other = replace(spec, vocabularies={str(file): shorter})
    assert other.hash != spec.hash
    assert make_lock(other).slots == make_lock(spec).slots
