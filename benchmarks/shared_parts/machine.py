"""The machine that a figure was measured on, and the load beside it.

A benchmark ends with `print_result(result)`. That prints one line `machine: ...` for its page and
one line `RESULT {json}`, in which the same is under "machine". The load average at the begin is
that of the moment at which this module is imported, so a benchmark imports it at its top.
"""

import datetime
import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# What the kernels, Arrow and numpy choose their code by, as Linux names the flags of x86 and ARM.
_FLAGS = {
    "avx2": "AVX2",
    "bmi2": "BMI2",
    "avx512f": "AVX-512F",
    "avx512bw": "AVX-512BW",
    "avx512vbmi": "AVX-512VBMI",
    "asimd": "NEON",
    "sve": "SVE",
}
_CPU_INFO = Path("/proc/cpuinfo")
_LOAD_AT_BEGIN, _BEGUN = os.getloadavg()[0], datetime.datetime.now(datetime.UTC)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where and beside what load a benchmark ran.

    Attributes:
        cpu: The model's name as the kernel tells it.
        instruction_sets: Those that decoders choose their code by, which this CPU has.
        num_cores: Physical cores that this machine shows; 0 if it does not say.
        num_threads: Hardware threads.
        date: The day on which the benchmark began, in UTC.
        load_average: Processes that ran or were ready, averaged over a minute, at begin and end.
            The benchmark's own are among those at the end.
        arguments: What the benchmark was called with, such as `--small`.
    """

    cpu: str
    instruction_sets: list[str]
    num_cores: int
    num_threads: int
    date: str
    load_average: tuple[float, float]
    arguments: list[str]

    def __str__(self) -> str:
        """One line for a benchmark's page."""
        sets = ", ".join(self.instruction_sets) or "none of the instruction sets asked for"
        cores = f"{self.num_cores or 'unknown'} cores, {self.num_threads} threads"
        begin, end = self.load_average
        called = f" ({' '.join(self.arguments)})" if self.arguments else ""
        return f"{self.date}, {self.cpu} ({sets}), {cores}, load {begin} to {end}{called}"


def print_result(result: Mapping[str, Any]) -> None:
    """Prints the line `machine: ...` and the line `RESULT {json}` of a benchmark.

    Args:
        result: What `json` can write. "machine" is added to it.
    """
    found = machine()
    print(f"machine: {found}")
    print(f"RESULT {json.dumps({**result, 'machine': asdict(found)})}")


def machine() -> Machine:
    """This machine, with the load at the begin and now."""
    text = _CPU_INFO.read_text() if _CPU_INFO.exists() else ""
    cpu, instruction_sets, num_cores = parse_cpu_info(text)
    return Machine(
        cpu=cpu or platform.processor() or platform.machine(),
        instruction_sets=instruction_sets,
        num_cores=num_cores,
        num_threads=os.cpu_count() or 0,
        date=_BEGUN.date().isoformat(),
        load_average=(round(_LOAD_AT_BEGIN, 2), round(os.getloadavg()[0], 2)),
        arguments=sys.argv[1:],
    )


def parse_cpu_info(text: str) -> tuple[str, list[str], int]:
    """The CPU's name, its instruction sets of those asked for, and its physical cores.

    Args:
        text: `/proc/cpuinfo` of Linux.

    Returns:
        An empty name, no sets and 0 cores where the text does not say: ARM tells neither a name nor
        a core's number.
    """
    fields = [
        {key.strip(): value.strip() for key, _, value in map(_halves, block.splitlines())}
        for block in text.split("\n\n")
    ]
    cpus = [of for of in fields if "processor" in of]
    first = cpus[0] if cpus else {}
    flags = first.get("flags", first.get("Features", "")).split()
    cores = {(of.get("physical id"), of["core id"]) for of in cpus if "core id" in of}
    return (
        first.get("model name", ""),
        [name for flag, name in _FLAGS.items() if flag in flags],
        len(cores),
    )


def _halves(line: str) -> tuple[str, str, str]:
    return line.partition(":")
