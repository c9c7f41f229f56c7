"""Commands and epochs under one failing system call at a time.

    python -m tests.faults.failing_calls [SCENARIO ...] [--trials 500] [--seconds 120] [--seed 1]
    python -m tests.faults.failing_calls SCENARIO --call openat --path root/table/_delta_log \\
        --when 2 --error EIO

Each trial runs a scenario in a fork under strace, which makes one call fail, once or from then on,
and judges what came of it with a reader of its own. Then it runs again without a fault. Ends with a
table by scenario and one by call, and with one line `RESULT {json}`; exits 1 if an outcome is wrong.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

from tests.faults.failing_calls.commands import COMMANDS
from tests.faults.failing_calls.draws import draw
from tests.faults.failing_calls.epochs import EPOCHS
from tests.faults.failing_calls.scenario import Scenario
from tests.faults.failing_calls.strace import CALLS, Fault, why_not
from tests.faults.failing_calls.trials import HANG, HARMLESS, TOLD, UNCLEAR, WRONG, Outcome, Stage

SCENARIOS = {scenario.name: scenario for scenario in (*COMMANDS, *EPOCHS)}
VERDICTS = (TOLD, HARMLESS, UNCLEAR, WRONG, HANG)


def run_trials(
    scenarios: Sequence[Scenario], *, seed: int, num_trials: int, seconds: float, root: Path
) -> Iterator[Outcome]:
    """Trials of each scenario in turn, until there are so many that hit, or the time is over and
    each has had one.
    """
    drawn = random.Random(f"failing calls {seed}")
    until_s, num_hit = time.monotonic() + seconds, 0
    stages: dict[str, Stage] = {}
    for scenario in cycle(scenarios):
        if scenario.name not in stages:
            stages[scenario.name] = Stage(scenario, root / scenario.name)
        elif num_hit >= num_trials or time.monotonic() > until_s:
            return
        outcome = stages[scenario.name].trial(draw(stages[scenario.name].targets(), drawn))
        num_hit += outcome.hits > 0
        yield outcome


def table_of(outcomes: Sequence[Outcome], names: Sequence[str], of: str) -> str:
    heads = (of, "trials", "hits", *VERDICTS, "rerun wrong")
    lines: list[tuple[str, ...]] = [heads]
    for name in (*names, "all"):
        here = [
            outcome
            for outcome in outcomes
            if name in ("all", outcome.scenario if of == "scenario" else outcome.fault.call)
        ]
        if here:
            hit = [outcome for outcome in here if outcome.hits]
            counts = Counter(outcome.verdict for outcome in hit)
            numbers = (len(here), len(hit), *(counts[verdict] for verdict in VERDICTS))
            wrong = sum(outcome.rerun is not None for outcome in hit)
            lines.append((name, *map(str, numbers), str(wrong)))
    return "\n".join(
        line[0].ljust(24)
        + "".join(cell.rjust(13 if i == 8 else 10) for i, cell in enumerate(line[1:], 1))
        for line in lines
    )


def told(outcome: Outcome, root: Path) -> str:
    fault = outcome.fault
    path = Path(fault.path).relative_to(root / outcome.scenario)
    is_later = outcome.verdict not in (WRONG, HANG) and outcome.rerun is not None
    what = "rerun wrong" if is_later else outcome.verdict if outcome.hits else "not hit"
    how = f"{outcome.scenario} --call {fault.call} --path '{path}' --when {fault.when} --error {fault.error}"
    return f"{what.upper()} {how}\n    {outcome.why}; rerun: {outcome.rerun}\n    said: {outcome.said}\n"


def is_wrong(outcome: Outcome) -> bool:
    return outcome.hits > 0 and (outcome.verdict in (WRONG, HANG) or outcome.rerun is not None)


def _outcomes(
    options: argparse.Namespace, chosen: Sequence[Scenario], root: Path
) -> Iterator[Outcome]:
    if options.call is None:
        counts = {"num_trials": options.trials, "seconds": options.seconds}
        yield from run_trials(chosen, seed=options.seed, root=root, **counts)
        return
    stage = Stage(chosen[0], root / chosen[0].name)
    path = str(stage.place / options.path)
    yield stage.trial(Fault(call=options.call, path=path, when=options.when, error=options.error))


def _shown(
    outcomes: Iterator[Outcome], options: argparse.Namespace, root: Path
) -> Iterator[Outcome]:
    """Passes outcomes on; shows those that are wrong, and adds all to the file of results."""
    for outcome in outcomes:
        if options.results:
            with options.results.open("a") as file:
                file.write(json.dumps(outcome.as_dict()) + "\n")
        is_unclear = outcome.hits > 0 and outcome.verdict == UNCLEAR
        if is_wrong(outcome) or (is_unclear and options.unclear) or options.call:
            sys.stdout.write(told(outcome, root))
            sys.stdout.flush()
        yield outcome


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--trials", type=int, default=500, help="so many whose call was made")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, help="a file to which each outcome is added")
    parser.add_argument("--unclear", action="store_true", help="show unclear errors, too")
    parser.add_argument("--call", choices=CALLS, help="one trial: the call that fails")
    parser.add_argument("--path", help="from the scenario's place, as it is shown")
    parser.add_argument("--when", default="1")
    parser.add_argument("--error", default="EIO")
    options = parser.parse_args()
    if (reason := why_not()) is not None:
        parser.error(f"no calls can be made to fail: {reason}")
    chosen = [SCENARIOS[name] for name in options.scenarios or SCENARIOS]
    # No TemporaryDirectory: a fork that ends as an interpreter does would remove it.
    root = Path(tempfile.mkdtemp(prefix="failing-calls-")).resolve()
    try:
        outcomes = list(_shown(_outcomes(options, chosen, root), options, root))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    sys.stdout.write(f"\n{table_of(outcomes, list(SCENARIOS), 'scenario')}\n")
    sys.stdout.write(f"\n{table_of(outcomes, CALLS, 'call')}\n\n")
    hit = [outcome for outcome in outcomes if outcome.hits]
    counts = Counter(outcome.verdict for outcome in hit)
    result = {
        "seed": options.seed,
        "trials": len(outcomes),
        "hits": len(hit),
        **{verdict: counts[verdict] for verdict in VERDICTS},
        "rerun_wrong": sum(outcome.rerun is not None for outcome in hit),
    }
    sys.stdout.write(f"RESULT {json.dumps(result)}\n")
    return int(any(map(is_wrong, outcomes)))


if __name__ == "__main__":
    sys.exit(main())
