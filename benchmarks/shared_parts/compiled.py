"""Processes that find their modules compiled, as an installation leaves them."""

import os
from pathlib import Path


def compiled_environment(root: Path) -> dict[str, str]:
    """The environment of such processes, once one of them has run and compiled what they import.

    Args:
        root: A directory of the benchmark, in which compiled modules are kept.
    """
    environment = os.environ | {"PYTHONPYCACHEPREFIX": str(root / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment
