import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from featstore.base.libraries import LazyModule
from tests.programs import run_python


def test_a_library_is_imported_when_its_first_attribute_is_asked_for() -> None:
    code = (
        "import sys; from featstore.base.libraries import LazyModule; it = LazyModule('colorsys');"
        "print('colorsys' in sys.modules); it.rgb_to_hsv(0, 0, 0); print('colorsys' in sys.modules)"
    )
    assert run_python(code).stdout.split() == ["False", "True"]


def test_attributes_are_those_of_the_library_itself() -> None:
    import json.decoder

    assert LazyModule("json.decoder").JSONDecodeError is json.decoder.JSONDecodeError


def test_several_threads_may_be_the_first_that_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    library, together = LazyModule("colorsys"), Barrier(8)

    def use(_: int) -> object:
        together.wait()
        return library.rgb_to_hsv

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(use, range(8)))) == 1


def test_a_library_that_is_not_installed_is_missed_at_its_use() -> None:
    library = LazyModule("no_such_library")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        library.anything  # noqa: B018


def test_what_a_library_lacks_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        LazyModule("json").no_such_name  # noqa: B018


def test_a_tool_that_asks_for_special_attributes_imports_nothing() -> None:
    code = (
        "import sys, inspect; from featstore.base.libraries import LazyModule;"
        "it = LazyModule('colorsys'); hasattr(it, '__wrapped__'); repr(it); inspect.ismodule(it);"
        "print('colorsys' in sys.modules)"
    )
    assert run_python(code).stdout.split() == ["False"]
