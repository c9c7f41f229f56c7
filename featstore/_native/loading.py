"""The compiled kernels if they were built and may be used: `KERNELS`, else None.

FEATSTORE_NATIVE=0 in the environment does without them, silently; a path names another build of
them, such as one with sanitizers (`make sanitize`). Where they were not built (no compiler at
installation), a process says so once.
"""

import importlib
import importlib.util
import os
import warnings
from types import ModuleType

_SLOWER = (
    "featstore runs without its compiled kernels, which no C compiler was there to build: the same "
    "results, and hashing "
    "takes several times as long, decoding of lists twice; install a C compiler and featstore "
    "again, or set "
    "FEATSTORE_NATIVE=0 to do without"
)


def load_kernels(name: str = "featstore._native.kernels") -> ModuleType | None:
    """The module of compiled kernels, or None, with a RuntimeWarning unless they are not wanted.

    ImportError where FEATSTORE_NATIVE names a file that is no such module.
    """
    wanted = os.environ.get("FEATSTORE_NATIVE", "")
    if wanted == "0":
        return None
    if os.sep in wanted:
        return _load_file(name, wanted)
    try:
        return importlib.import_module(name)
    except ImportError:
        warnings.warn(_SLOWER, RuntimeWarning, stacklevel=2)
        return None


def _load_file(name: str, path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(
            f"FEATSTORE_NATIVE: expected 0, or a build of the kernels such as {name}.so, found "
            f"{path}"
        )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


KERNELS = load_kernels()
