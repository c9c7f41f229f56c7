"""The environment with tensorflow, JAX and torchrec, which `make frameworks` makes."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / "build" / "frameworks" / "bin" / "python"

needs_frameworks = pytest.mark.skipif(
    not (PYTHON.parents[1] / "installed").exists(),
    reason="needs tensorflow, JAX and torchrec: make frameworks",
)


def variables() -> dict[str, str]:
    """What a program of that environment finds this checkout by, and logs little with."""
    return {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
