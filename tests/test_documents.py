"""Foreign YAML is parsed strictly and within bounds: errors come at once, and say what is wrong and
where.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from featstore.base import documents
from featstore.base.documents import MAX_NESTING, DocumentError, item_lines, load_yaml
from featstore.base.errors import ConfigError, SpecError
from featstore.base.redaction import short, shown
from featstore.loader.request.train_config import load_train_config
from featstore.spec.lint import lint
from featstore.spec.parse import load_spec, parse_spec
from tests.process import least_cpu_s

NINES = "9" * 6_000
HOSTILE = {
    "brackets": (
        "slots: " + "[" * 20_000,
        r"nested more than 50 deep: expected fewer levels \(line 1, column 57\)",
    ),
    "closed brackets": ("[" * 20_000 + "]" * 20_000, "nested more than 50 deep"),
    "braces": ("{a: " * 20_000, "nested more than 50 deep"),
    "dashes": ("- " * 20_000 + "a", "nested more than 50 deep"),
    "questions": ("? " * 20_000 + "a", "nested more than 50 deep"),
    "indented": (
        "\n".join(f"{' ' * depth}a:" for depth in range(1_000)),
        "nested more than 50 deep",
    ),
    "an integer": (
        f"spec: {NINES}",
        r"an integer of 6,000 digits: expected one of 64 bits \(line 1, column 7\)",
    ),
    "a negative integer": (f"a: [1, -{NINES}]", "an integer of 6,001 digits"),
    "a binary integer": ("a: 0b" + "1" * 6_000, "an integer of 6,002 digits"),
    "base 60": ("a: 1" + ":59" * 2_000, "an integer of 6,001 digits"),
    "an integer as a key": (f"? {NINES}\n: 1", "an integer of 6,000 digits"),
    "a tag of an integer": (f"a: !!int '{NINES}'", "an integer of 6,000 digits"),
    "no integer": ("a: !!int x", "invalid literal for int"),
    "a day that is none": ("a: 2026-99-99", "month must be in 1..12"),
    "merges of merges": (
        "a: &a {k: 1}\n"
        + "\n".join(
            f"{new}: &{new} {{<<: [{', '.join([f'*{old}'] * 20)}]}}"
            for old, new in zip("abcdefgh", "bcdefghi", strict=True)
        ),
        "a mapping of more than 100,000 keys, with merged ones: merge fewer",
    ),
    "an endless alias": ("a: &a [*a]", r"alias \*a within its own anchor \(line 1"),
    "a key twice": ("a: 1\nb: 2\na: 3", r"key 'a' appears twice \(line 3, column 1\)"),
    "a key that is a list": ("? [1]\n: 2", "found unhashable key"),
}


@pytest.fixture(scope="module")
def second() -> float:
    """About a second of an idle machine: five times the CPU of a sound document of 20,000 keys."""
    text = "\n".join(f"key{i}: {i}" for i in range(20_000))
    return 5 * least_cpu_s(lambda: load_yaml(text))


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_document_is_refused_within_a_second(
    kind: Any, tmp_path: Path, second: float
) -> None:
    text, said = HOSTILE[kind]
    path = tmp_path / "x.yaml"
    path.write_text(text)
    readers: tuple[tuple[type[Exception], Callable[[Any], Any], str | Path], ...] = (
        (DocumentError, load_yaml, text),
        (SpecError, parse_spec, text),
        (SpecError, load_spec, path),
        (SpecError, lint, str(path)),
        (ConfigError, load_train_config, path),
    )
    for error, read, source in readers:

        def refused(error: Any = error, read: Any = read, source: Any = source) -> None:
            with pytest.raises(error, match=said) as found:
                read(source)
            assert "\n" not in str(found.value)
            assert len(str(found.value)) < 500

        assert least_cpu_s(refused) < second


def test_a_document_may_be_nested_up_to_the_limit_and_have_many_keys() -> None:
    deep = "[" * (MAX_NESTING - 1) + "1" + "]" * (MAX_NESTING - 1)
    assert str(load_yaml(deep)) == deep
    text = "\n".join(f"key{i}: {i}" for i in range(20_000))
    since = time.thread_time()
    wide = load_yaml(text)
    assert time.thread_time() - since < 30, "each key was compared with all before it"
    assert isinstance(wide, dict)
    assert len(wide) == 20_000


def test_the_lines_of_a_list_are_those_on_which_its_items_begin() -> None:
    text = "a: 1\nlist:\n  - x\n  - {y: 1,\n     z: 2}\n\n  - [1,\n     2]\nother: [3]\n"
    assert item_lines(text, "list") == (3, 4, 7)
    assert item_lines(text, "other") == (9,)
    assert item_lines(text, "a") == item_lines(text, "none") == item_lines("[1]", "a") == ()
    assert item_lines("", "a") == ()
    other = "%YAML 1.3\n---\na: [1,\n2]\n"  # which libyaml refuses
    assert load_yaml(other) == {"a": [1, 2]}
    assert item_lines(other, "a") == (3, 4)


def test_aliases_that_expand_to_billions_are_not_expanded() -> None:
    lines = ["- &a [x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"- &{new} [{', '.join([f'*{old}'] * 9)}]"
        for old, new in zip("abcdefghi", "bcdefghij", strict=True)
    ]

    def refused() -> None:
        with pytest.raises(
            SpecError, match="spec: expected the semantics version 1, found"
        ) as found:
            parse_spec("spec:\n" + "\n".join(lines))
        assert len(str(found.value)) < 600

    assert least_cpu_s(refused) < 1


PIECES = (
    *("a", "bc", ": ", "- ", "? ", "\n", "  ", "\n  ", "[", "]", "{", "}", ", ", "# c", "|\n"),
    *("'1'", '"x', '"', "1", "-7", "0x1f", "0b1", "1_000", "1:30", "1.5", "1e5", ".nan", "~"),
    *("null", "true", "No", "2026-01-01", "2026-13-01", "2026-01-01 10:00:00", "<<: ", "=", "<<"),
    *("&x ", "*x", "!!int ", "!!set ", "!x ", "---\n", "...\n", "\t", "\ufeff", "\x00"),
)
PARSERS = [yaml.SafeLoader, yaml.CSafeLoader] if yaml.__with_libyaml__ else [yaml.SafeLoader]


def outcome(load: Callable[[], object]) -> str:
    """The value with the types of its parts, or that there is an error."""
    try:
        return repr(load())
    except (yaml.YAMLError, ValueError, RecursionError, AttributeError, LookupError):
        return "error"  # the last two if a text does not fit its tag


@pytest.mark.parametrize("parser", PARSERS)
@example("=: ")
@given(st.lists(st.sampled_from(PIECES), max_size=20).map("".join))
def test_what_is_made_from_events_is_what_nodes_give(parser: Any, text: str) -> None:
    found = outcome(lambda: documents._Document(parser(text)).value)
    expected = outcome(lambda: yaml.load(text, parser))
    if found != expected:
        assert found == "error"
        # A tag or the key "=", both of which are refused, or an endless document.
        assert "!!set" in text or "'=': " in expected or "..." in expected


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates()
VALUES = st.recursive(
    SCALARS,
    lambda values: (
        st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=3), values, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("parser", PARSERS)
@given(VALUES, st.booleans())
def test_a_plain_document_is_made_from_events(parser: Any, value: object, flow: bool) -> None:
    class NoAliases(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

    text = yaml.dump(value, Dumper=NoAliases, default_flow_style=flow, allow_unicode=True)
    expected = outcome(lambda: yaml.load(text, yaml.SafeLoader))
    assert outcome(lambda: documents._Document(parser(text)).value) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- !!set {a, b}", r"no tag such as 'tag:yaml.org,2002:set' .* \(line 1, column 3\)"),
        ("a: !!map [1, 2]", r"no tag such as '.*map' of a list \(line 1, column 4\)"),
        ("a: !!seq {b: 1}", r"no tag such as '.*seq' of a mapping \(line 1, column 4\)"),
        ("a: !x 12", r"could not determine a constructor for the tag '!x' \(line 1, column 4\)"),
        ("a: !!int", r"expected a value of the tag '.*int', found '' \(line 1, column 4\)"),
        ("a: !!bool x", "expected a value of the tag '.*bool', found 'x'"),
        ("a: !!timestamp x", "expected a value of the tag '.*timestamp', found 'x'"),
        ("=: 1", "could not determine a constructor for the tag .*value"),
        ("a: *x", r"found undefined alias 'x' \(line 1, column 4\)"),
        ("a: &x 1\nb: &x 2", r"found duplicate anchor 'x' \(line 2, column 4\)"),
        ("<<: [1]", "expected a mapping or a list of mappings for merging"),
        ("a: 1\n--- 2", "expected a single document, found another one"),
    ],
)
def test_what_is_no_plain_document_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(DocumentError, match=said):
        load_yaml(text)


def test_anchors_tags_and_merges_are_read() -> None:
    text = "base: &b {op: hash, of: x}\nslots: [{<<: *b, of: y}, *b, !!str 1]"
    base = {"op": "hash", "of": "x"}
    assert load_yaml(text) == {"base": base, "slots": [{"op": "hash", "of": "y"}, base, "1"]}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (int(NINES[:4_000]), "an integer of about 4,000 digits"),
        (10**9_000, "an integer of about 9,000 digits"),
        (-(10**9), "-1000000000"),
        ("x" * 1_000, repr(f"{'x' * 200}... (1,000 characters)")),
        (["s3://user:Sk3yPass@b/k", True, None], "['s3://b/k', True, None]"),
        ({"a": 1.5}, "{'a': 1.5}"),
        (list(range(100)), f"[{', '.join(map(str, range(20)))}, ...]"),
    ],
    ids=range(7),
)
def test_a_large_value_is_truncated(value: Any, text: Any) -> None:
    assert shown(value) == text


def test_a_url_that_is_cut_shows_no_part_of_its_secrets() -> None:
    for length in range(150, 210):
        said = short(f"{'x' * length} https://user:Sk3yPass@host/x?sig=Sk3y {'y' * 100}")
        assert "Sk3" not in said


def test_a_text_of_a_million_letters_is_shown_at_once() -> None:
    secret = "https://" + "x" * 1_000_000 + ":Sk3y@host"
    assert "Sk3y" not in short(secret)
    assert least_cpu_s(lambda: (short("x" * 1_000_000), short(secret))) < 1


# What YAML 1.1 and 1.2 read differently: the text, and what the error says that it has meant.
READ_DIFFERENTLY = {
    "0101": "65 in YAML 1.1, as it has been read so far, and 101",
    "-010": "-8 in YAML 1.1, as it has been read so far, and -10",
    "07": "7 in YAML 1.1, as it has been read so far, and 7",
    "08": "the text '08' in YAML 1.1, as it has been read so far, and 8",
    "0o17": "the text '0o17' in YAML 1.1, as it has been read so far, and 15",
    "0b11": "3 in YAML 1.1, as it has been read so far, and the text '0b11'",
    "-0x1F": "-31 in YAML 1.1, as it has been read so far, and the text '-0x1F'",
    "1_000": "1000 in YAML 1.1, as it has been read so far, and the text '1_000'",
    "1_000.5": "1000.5 in YAML 1.1, as it has been read so far, and the text",
    "1:30": "90 in YAML 1.1, as it has been read so far, and the text '1:30'",
    "1:30.5": "90.5 in YAML 1.1",
    "1e3": "the text '1e3' in YAML 1.1, as it has been read so far, and 1000.0",
    "-.5": "the text '-.5' in YAML 1.1, as it has been read so far, and -0.5",
    "no": "false in YAML 1.1, as it has been read so far, and the text 'no'",
    "On": "true in YAML 1.1, as it has been read so far, and the text 'On'",
}


@pytest.mark.parametrize("written", READ_DIFFERENTLY)
@pytest.mark.parametrize("document", ["a: [1, {b: %s}]", "x: &x 1\na: [*x, {b: %s}]"])
def test_what_versions_of_yaml_read_differently_is_refused_with_key_and_line(
    written: str, document: str
) -> None:
    text = document % written
    said = f"^{re.escape(f'a[1].b: {written} is {READ_DIFFERENTLY[written]}')}.* in YAML"
    with pytest.raises(DocumentError, match=said) as found:
        load_yaml(text)
    line, column = text.count("\n") + 1, text.splitlines()[-1].index(written) + 1
    assert str(found.value).endswith(f"(line {line}, column {column})")
    assert load_yaml(document % f"'{written}'")["a"][1] == {"b": written}  # type: ignore[index]
    for parser in PARSERS:
        assert len(documents._Document(parser(text)).problems) == 1


@pytest.mark.parametrize(
    "written", ["0", "-7", "+7", "0x1F", "1.50", "00.5", ".5", "1.0e+3", "True", "~", "2026-01-01"]
)
def test_what_all_versions_read_alike_is_read(written: str) -> None:
    assert load_yaml(f"a: {written}") == yaml.load(f"a: {written}", yaml.SafeLoader)


def test_all_such_values_and_equal_keys_are_told_in_one_error() -> None:
    text = "a: 010\nb: 2\nb: 3\non: 1\nc: !!int 012\nd: !!str 012"
    with pytest.raises(DocumentError) as found:
        load_yaml(text)
    places = re.findall(r"\(line (\d), column (\d)\)", str(found.value))
    assert places == [("1", "4"), ("3", "1"), ("4", "1"), ("5", "4")]
    assert "a key of the document: on is true" in str(found.value)
    many = "\n".join(f"- 0{i}1" for i in range(30))
    with pytest.raises(DocumentError, match=r"; and 20 more$") as found:
        load_yaml(many)
    assert len(str(found.value)) < 2_500


def test_lint_tells_each_of_them_beside_other_errors(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "spec: 1\ninputs: {x: double}\nslots:\n"
        "  - {slot: 0101, name: a, op: bucketize, of: x, boundaries: [010, 12:30]}\n"
        "  - {slot: 2, name: b, op: hahs, of: x}\n"
    )
    first, second, third, other = lint(str(path)).findings
    assert first.startswith(f"{path}: slots[0].slot: 0101 is 65 in YAML 1.1")
    assert first.endswith("(line 4, column 12)")
    assert "slots[0].boundaries[0]: 010 is 8" in second
    assert "slots[0].boundaries[1]: 12:30 is 750" in third
    assert "hahs" in other
    with pytest.raises(SpecError, match=r"0101 is 65 .*; .*010 is 8 .*; .*12:30 is 750"):
        load_spec(path)


def test_a_training_config_is_refused_for_them(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text("table: t\nslots: [a]\nbatch_size: 0100\n")
    with pytest.raises(ConfigError, match=r"batch_size: 0100 is 64 .* and 100 .*line 3, column 13"):
        load_train_config(path)
