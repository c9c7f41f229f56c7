"""Imports the compiled kernels as `KERNELS`, or sets it to None.

The environment variable FEATSTORE_NATIVE=0 disables them silently. A path in it loads another
build, such as one with sanitizers (`make sanitize`). If they were not built, each process warns
once.
"""

import importlib
import importlib.util
import os
import warnings
from pathlib import Path
from types import ModuleType

_SLOWER = (
    "featstore runs without its compiled kernels, of which there is no build in {}: there was no C "
    "compiler at its installation, or it is a source tree that Python imports in place of the "
    "installed package: results are the same, but hashing takes several times as long, and "
    "decoding of lists twice as long; install a C compiler and featstore again, leave the source "
    "tree, or set FEATSTORE_NATIVE=0 to run without them"
)


def load_kernels(name: str = "featstore.native.kernels") -> ModuleType | None:
    """Imports the module of compiled kernels.

    Returns:
        The module. None if it was not built, with a RuntimeWarning, or if it is disabled.

    Raises:
        ImportError: FEATSTORE_NATIVE is the path of a file that is not a build of the kernels.
    """
    setting = os.environ.get("FEATSTORE_NATIVE", "")
    if setting == "0":
        return None
    # A separator distinguishes a path from a mistyped flag, which is ignored.
    if os.sep in setting:
        return _load_file(name, setting)
    try:
        return importlib.import_module(name)
    except ImportError:
        warnings.warn(_SLOWER.format(Path(__file__).parent), RuntimeWarning, stacklevel=2)
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
