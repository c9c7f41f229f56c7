"""The compiled kernels if they were built and may be used: `KERNELS`, else None.

FEATSTORE_NATIVE=0 in the environment does without them, silently. Where they were not built (no compiler at installation),
a process says so once.
"""

import importlib
import os
import warnings
from types import ModuleType

_SLOWER = (
    "featstore runs without its compiled kernels, which no C compiler was there to build: the same results, and hashing "
    "takes several times as long, decoding of lists twice; install a C compiler and featstore again, or set "
    "FEATSTORE_NATIVE=0 to do without"
)


def load_kernels(name: str = "featstore._native.kernels") -> ModuleType | None:
    """The module of compiled kernels, or None, with a RuntimeWarning unless they are not wanted."""
    if os.environ.get("FEATSTORE_NATIVE") == "0":
        return None
    try:
        return importlib.import_module(name)
    except ImportError:
        warnings.warn(_SLOWER, RuntimeWarning, stacklevel=2)
        return None


KERNELS = load_kernels()
