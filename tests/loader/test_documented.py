"""docs/loader.md, docs/dispatch.md and docstrings name every option, with the default of the code."""

import ast
import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from featstore.dispatch.options import Dispatch
from featstore.loader.batches.batch_cap import BatchCap
from featstore.loader.batches.stats import OnStats
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.plan.follow import Follow
from featstore.loader.plan.ordering import Ordering
from featstore.loader.plan.shuffle import Shuffle
from featstore.loader.request.candidates import Candidates
from featstore.loader.request.request import Negatives
from featstore.loader.request.train_config import KEYS
from featstore.staging.options import Staging

_DOCS = Path(__file__).parents[2] / "docs"
_REQUIRED = "required"
_METHODS = [
    name
    for name, member in vars(FeatureLoader).items()
    if not name.startswith("_")
    and name != "merge_states"
    and callable(getattr(FeatureLoader, name))
]


def _parameters(function: Any) -> dict[str, Any]:
    """Defaults by name, without `self`."""
    return {
        name: _REQUIRED if parameter.default is parameter.empty else parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self"
    }


def _fields(options: type) -> dict[str, Any]:
    return {
        field.name: _REQUIRED if field.default is dataclasses.MISSING else field.default
        for field in dataclasses.fields(options)
    }


def _table(page: str, header: str) -> dict[str, Any]:
    """Defaults by name of the table whose first column has this header."""
    lines = (_DOCS / page).read_text().splitlines()
    first = lines.index(f"| {header} | type | default | meaning |") + 2
    table = {}
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        name, _, default = (cell.strip() for cell in line.split("|")[1:4])
        table[name.strip("`")] = (
            default if default == _REQUIRED else ast.literal_eval(default.strip("`"))
        )
    return table


def _documented_args(function: Any) -> list[str]:
    """The names under `Args:` of a docstring."""
    text = inspect.getdoc(function) or ""
    _, _, args = text.partition("\nArgs:\n")
    block = re.split(r"\n\n", args)[0]
    return re.findall(r"^ {4}(\w+): ", block, re.MULTILINE)


def test_the_page_names_every_parameter_with_its_default() -> None:
    assert _table("loader.md", "parameter") == _parameters(FeatureLoader.__init__)


def test_the_docstring_names_every_parameter_in_order() -> None:
    assert _documented_args(FeatureLoader) == list(_parameters(FeatureLoader.__init__))


def test_a_config_has_a_key_for_every_parameter() -> None:
    assert set(KEYS) == set(_parameters(FeatureLoader.__init__))


@pytest.mark.parametrize("name", _METHODS)
def test_the_docstring_of_a_method_names_its_arguments(name: str) -> None:
    method = getattr(FeatureLoader, name)
    assert method.__doc__
    assert _documented_args(method) == list(_parameters(method))


@pytest.mark.parametrize(
    ("page", "options"),
    [
        ("loader.md", BatchCap),
        ("loader.md", Shuffle),
        ("loader.md", Staging),
        ("loader.md", Ordering),
        ("loader.md", Follow),
        ("loader.md", Negatives),
        ("loader.md", Candidates),
        ("loader.md", OnStats),
        ("dispatch.md", Dispatch),
    ],
)
def test_the_page_names_every_option_with_its_default(page: str, options: type) -> None:
    assert _table(page, f"`{options.__name__}`") == _fields(options)
