"""The compiled kernels, for tests of them."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from featstore.native import loading

KERNELS: Any = loading.KERNELS
NEEDED = pytest.mark.skipif(KERNELS is None, reason="no compiled kernels")


def without_kernels(call: Callable[[], Any], *modules: ModuleType) -> Any:
    """The result of a call for which these modules have none."""
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "KERNELS", None)
        return call()
