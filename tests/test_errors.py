"""Readers of options: what they take, and the errors that name the option. Which errors may pass:
whoever repeats a command goes by it, and by what the text says.
"""

import ast
import copy
import errno
import inspect
import pickle
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from featstore.base import errors
from featstore.base.errors import (
    AccessError,
    ChangedInputError,
    ChangedTableError,
    CheckFailedError,
    CommitConflictError,
    ConfigError,
    DiskFullError,
    DispatchError,
    DispatchUnavailableError,
    FeatstoreError,
    InputError,
    JoinError,
    SampleStoreError,
    StoreError,
    TableNotFoundError,
    UnsafeStoreError,
    WorkerError,
    parse_bytes,
)


@pytest.mark.parametrize(
    ("value", "num_bytes"),
    [
        (7, 7),
        ("7", 7),
        ("7B", 7),
        ("2kB", 2000),
        ("1.5 MB", 1_500_000),
        ("200GB", 200 * 10**9),
        ("4 gib", 4 << 30),
        (" 1TiB ", 1 << 40),
    ],
)
def test_bytes_are_numbers_or_text_with_a_unit(value: Any, num_bytes: Any) -> None:
    assert parse_bytes(value) == num_bytes


@pytest.mark.parametrize(
    "value", [0, -1, True, 1.5, None, "", "GB", "1 XB", "-1GB", "1GB2", "0.1B"]
)
def test_other_values_are_refused_with_the_options_name(value: Any) -> None:
    with pytest.raises(
        ConfigError,
        match=r"staging\.budget_bytes: expected a number of bytes above 0, or text such as 200GB",
    ):
        parse_bytes(value, "staging.budget_bytes")


def store_error(number: int) -> StoreError:
    error = StoreError("s3://b/x: ...")
    error.errno = number
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (CheckFailedError("share of missing"), False),
        (InputError("no raw files at raw"), False),
        (InputError("whatever it says: run it again"), False),
        (TableNotFoundError("no table"), False),
        (AccessError("refused"), False),
        (UnsafeStoreError("two writers cannot be told apart"), False),
        (store_error(errno.EINVAL), False),
        (store_error(errno.EIO), True),
        (DiskFullError("full"), True),
        (ChangedInputError("a file changed while it was read"), True),
        (ChangedTableError("removed after it was listed"), True),
        (CommitConflictError("another writer"), True),
        (JoinError("rows became others"), True),
        (DispatchError("another plan"), False),
        (DispatchUnavailableError("unreachable"), True),
        (SampleStoreError("another format"), False),
        (SampleStoreError("another process writes", errno.EBUSY), True),
        (WorkerError("died"), True),
    ],
    ids=str,
)
def test_an_error_says_whether_it_may_pass(error: FeatstoreError, *, expected: bool) -> None:
    assert error.may_pass is expected


PACKAGE = Path(errors.__file__).parents[1]
ERROR_CLASS = re.compile(r"^class .*(?:Error|Exception)\):", re.MULTILINE)


def error_classes() -> list[type[Exception]]:
    """All exceptions of the package, public and internal."""
    paths = [path for path in PACKAGE.rglob("*.py") if ERROR_CLASS.search(path.read_text())]
    modules = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in paths]
    found = [
        kind
        for module in sorted(modules)
        for kind in vars(import_module(module)).values()
        if isinstance(kind, type) and issubclass(kind, Exception) and kind.__module__ == module
    ]
    assert len(found) == sum(len(ERROR_CLASS.findall(path.read_text())) for path in paths)
    return found


def made(kind: type[Exception]) -> Exception:
    """An exception with all its arguments and attributes."""
    values = {"str": "text", "int": errno.EBUSY, "bool": True}
    _, *taken = inspect.signature(kind.__init__).parameters.values()
    given = {
        each.name: values.get(inspect.formatannotation(each.annotation), {"a": "b"})
        for each in taken
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    }
    error = kind(**given) if given else kind("text")
    for name in (name for base in kind.__mro__ for name in vars(base).get("__annotations__", {})):
        setattr(error, name, 2.5)
    if isinstance(error, FeatstoreError) and isinstance(error, OSError):
        error.errno = errno.EXDEV
    error.add_note("a note")
    return error


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_an_error_arrives_whole_in_another_process(kind: type[Exception]) -> None:
    error = made(kind)
    for found in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(found), str(found), found.args) == (kind, str(error), error.args)
        assert vars(found) == vars(error)
        assert found.__notes__ == ["a note"]
        assert getattr(found, "errno", None) == getattr(error, "errno", None)


@pytest.mark.parametrize(
    "kind",
    [kind for kind in error_classes() if kind.__module__ == errors.__name__],
    ids=lambda kind: kind.__name__,
)
def test_an_error_can_be_made_from_its_text(kind: type[Exception]) -> None:
    """As `spark_error` makes those of Spark's workers again."""
    assert str(kind("the text")) == "the text"


# "Do this, then run it again" is advice to a user; "run it again" alone says that it may pass.
REPEAT = re.compile(r"(?<!then )\b(run it again|try again)", re.IGNORECASE)
MAY_HAVE = re.compile(r"run it\b|try again", re.IGNORECASE)  # a text may be in two parts
NOTE = "a note on any error, of what a repetition would do"
# Such texts that are no argument of an error, and why.
TOLD_OTHERWISE = {
    "extraction/deletion.py": NOTE,
    "extraction/group_job.py": NOTE,
    "extraction/job.py": NOTE,
    "extraction/rewriting.py": NOTE,
    "files/store_errors.py": "a rule, with the `errno` of its StoreError",
    "ingest/table_output.py": NOTE,
    "table/parquet_dir.py": "of a ChangedTableError, and of a ChangedInputError in units/raw.py",
}


def told_to_repeat(node: ast.AST, kind: str = "") -> Iterator[str]:
    """For each text that says to repeat, the class of the error that it is an argument of."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        kind = node.func.id if node.func.id.endswith("Error") else kind
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    text = "".join(str(part.value) for part in parts if isinstance(part, ast.Constant))
    if REPEAT.search(text):
        yield kind
    else:
        for child in ast.iter_child_nodes(node):
            yield from told_to_repeat(child, kind)


def test_errors_that_say_to_repeat_what_failed_may_pass() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), kind)
        for path in PACKAGE.rglob("*.py")
        if MAY_HAVE.search(text := path.read_text())
        for kind in told_to_repeat(ast.parse(text))
    }
    assert {path for path, kind in found if not kind} == set(TOLD_OTHERWISE)
    kinds = {kind for _, kind in found if kind}
    assert {"ChangedInputError", "ChangedTableError", "CommitConflictError", "JoinError"} <= kinds
    # An OSError tells it by its `errno`, which is none if nobody sets it.
    by_errno = {"OSError", "StoreError"}
    assert [kind for kind in kinds - by_errno if getattr(errors, kind).may_pass is not True] == []
