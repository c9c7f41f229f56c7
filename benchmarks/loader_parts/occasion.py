"""A run of `benchmarks/loader.py` as the text that benchmarks/loader.md keeps of it.

python benchmarks/loader.py > FILE
python -m loader_parts.occasion FILE        # in benchmarks/
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Figures = Mapping[str, Any]
_PARTS_SHOWN = 6


def occasion(lines: Iterable[str]) -> str:
    """The machine's line and tables of all cases.

    Args:
        lines: What the benchmark printed.

    Raises:
        ValueError: It has no line `RESULT {json}`.
    """
    told = {name: line for line in lines for name in ("machine: ", "RESULT ") if name in line[:9]}
    if "RESULT " not in told:
        raise ValueError(
            "expected a line 'RESULT {json}' in the benchmark's output, found none; let it finish"
        )
    result = json.loads(told["RESULT "].removeprefix("RESULT "))
    cases = {name: of for name, of in result.items() if isinstance(of, dict) and "ok" in of}
    speeds = {name: of for name, of in cases.items() if "limit" in of}
    others = {name: of for name, of in cases.items() if name not in speeds}
    tables = [_speeds(speeds), _profiles(speeds), _others(others)]
    head = told.get("machine: ", "").removeprefix("machine: ").strip()
    return "\n\n".join([f"### {head}", *filter(None, tables)]) + "\n"


def _speeds(cases: Mapping[str, Figures]) -> str:
    head = "| case | required | by the clock (least to most) | by CPU time | share of the limit, "
    rows = [
        _row(
            f"{name}{'' if of['ok'] else ' (missed)'}",
            of["required"],
            "{median} ({least} to {most})".format(**of["featstore"]),
            of["by_cpu_time"]["featstore"],
            "{featstore} ({floor})".format(**of["share_of_limit_by_cpu_time"]),
        )
        for name, of in cases.items()
    ]
    return "\n".join([head + "by CPU time (the floor's) |", "|---|---|---|---|---|", *rows])


def _profiles(cases: Mapping[str, Figures]) -> str:
    rows = [
        _row(
            name,
            of["costs"]["user_ms"] + of["costs"]["system_ms"],
            " / ".join(f"{ms:g}" for ms in of["limit"]["one_core_ms"].values()),
            of["costs"]["training_thread_ms"],
            of["costs"]["minor_faults"],
            _largest(of["profile"]),
        )
        for name, of in cases.items()
    ]
    head = "| case | CPU ms of an epoch | limit: read / decompress / write | training thread | "
    return "\n".join(
        [head + "minor faults | shares of the CPU |", "|---|---|---|---|---|---|", *rows]
    )


def _largest(profile: Mapping[str, float] | str) -> str:
    if isinstance(profile, str):
        return profile
    shown = list(profile.items())[:_PARTS_SHOWN]
    return ", ".join(f"{name} {round(100 * share)} %" for name, share in shown)


def _others(cases: Mapping[str, Figures]) -> str:
    rows = [
        _row(
            f"{name}{'' if of['ok'] else ' (missed)'}",
            ", ".join(f"{key} {value}" for key, value in of.items() if _is_shown(key, value)),
        )
        for name, of in cases.items()
    ]
    return "\n".join(["| case | found |", "|---|---|", *rows]) if rows else ""


def _is_shown(key: str, value: Any) -> bool:
    return key != "ok" and isinstance(value, int | float | str | list)


def _row(*cells: object) -> str:
    return f"| {' | '.join(f'{c:.1f}' if isinstance(c, float) and c > 10 else str(c) for c in cells)} |"


if __name__ == "__main__":
    print(occasion(Path(sys.argv[1]).read_text().splitlines()))
