"""The cases of `benchmarks/loader.py` that are held against a share, and what is demanded of them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from loader_parts.plain_workload import DLRM, PLAIN, PLAIN_WIDE
from loader_parts.workload import NARROW, WIDE

WINDOW_ROWS = 100_000
DLRM_BATCH_SIZE = 2048
_DLRM: dict[str, Any] = {"workload": DLRM, "batch_size": DLRM_BATCH_SIZE}


class Source(Protocol):
    """What a workload must offer: files and the columns of them that are read."""

    @property
    def num_rows(self) -> int: ...

    @property
    def columns(self) -> list[str]:
        """Names of slots and, last, the label."""

    def smaller(self, times: int) -> "Source":
        """The same with so many times fewer files."""

    def write(self, directory: Path) -> list[str]:
        """Writes the files into a folder of `directory` unless they are there; their paths."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """A case of speed, and the share of the floor's that it must reach."""

    workload: Source
    required: float
    num_cores: int = 2
    batch_size: int = 4096
    shuffle_rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class Serial:
    """A case of the training thread's share of the CPU, and the most that it may be."""

    workload: Source
    batch_size: int
    most: float


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A case of the interpreter's and numpy's share of the CPU, and the most that it may be."""

    workload: Source
    most: float
    batch_size: int = 2048  # The shortest batches of which 5 % are demanded.
    shuffle_rows: int | None = None


def _on_cores(name: str, required: tuple[float, float], **of: Any) -> dict[str, Speed]:
    """A case on one core and on two, with what is required on each."""
    return {
        f"{name}-{num_cores}": Speed(num_cores=num_cores, required=share, **of)
        for num_cores, share in enumerate(required, 1)
    }


def _interpreter(prefix: str, workload: Source, most: float) -> dict[str, Interpreter]:
    in_order = Interpreter(workload=workload, most=most)
    return {
        f"{prefix}interpreter": in_order,
        f"{prefix}interpreter-shuffled": replace(in_order, shuffle_rows=WINDOW_ROWS),
    }


SPEEDS = {
    **_on_cores("unshuffled", (1.8, 1.5), workload=NARROW),
    **_on_cores("batch-512", (1.4, 1.2), workload=NARROW, batch_size=512),
    **_on_cores("shuffled", (1.0, 0.95), workload=NARROW, shuffle_rows=WINDOW_ROWS),
    **_on_cores("wide", (2.0, 1.8), workload=WIDE),
    **_on_cores("plain-unshuffled", (1.8, 1.5), workload=PLAIN),
    **_on_cores("plain-batch-512", (1.4, 1.2), workload=PLAIN, batch_size=512),
    **_on_cores("plain-shuffled", (1.0, 0.95), workload=PLAIN, shuffle_rows=WINDOW_ROWS),
    **_on_cores("plain-wide", (2.0, 1.8), workload=PLAIN_WIDE),
    **_on_cores("dlrm-unshuffled", (1.8, 1.8), **_DLRM),
    **_on_cores("dlrm-batch-512", (1.4, 1.2), **_DLRM | {"batch_size": 512}),
    **_on_cores("dlrm-shuffled", (1.1, 1.1), **_DLRM, shuffle_rows=WINDOW_ROWS),
}
SERIAL = {
    "serial-41": Serial(workload=NARROW, batch_size=4096, most=0.06),
    "plain-serial-41": Serial(workload=PLAIN, batch_size=4096, most=0.06),
    "dlrm-serial-40": Serial(**_DLRM, most=0.12),  # batches of half as many rows
    "serial-400": Serial(workload=WIDE, batch_size=512, most=0.20),
    "plain-serial-400": Serial(workload=PLAIN_WIDE, batch_size=512, most=0.20),
}
INTERPRETER = {
    **_interpreter("", NARROW, 0.05),
    **_interpreter("wide-", WIDE, 0.05),
    **_interpreter("plain-", PLAIN, 0.05),
    **_interpreter("plain-wide-", PLAIN_WIDE, 0.05),
    **_interpreter("dlrm-", DLRM, 0.10),
}
