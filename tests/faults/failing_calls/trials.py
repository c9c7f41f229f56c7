"""Trials: a scenario under one failing call, and what came of it."""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.faults.failing_calls.draws import Target, targets
from tests.faults.failing_calls.forked import Ending, run_forked
from tests.faults.failing_calls.reader import Content
from tests.faults.failing_calls.scenario import Rows, Scenario, differs, normal
from tests.faults.failing_calls.strace import CALLS, Fault, read_calls

HARMLESS, TOLD, UNCLEAR, WRONG, HANG = "harmless", "told", "unclear", "wrong", "hang"
# Exit codes of bad input, and of checks that refuse a commit.
_REFUSED = (2, 3, 75)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a trial.

    Attributes:
        hits: How many calls failed.
        verdict: `harmless`: the right result; `told`: an error that names a path, nothing half
            done; `unclear`: an error that is a traceback, or names no path; `wrong`; `hang`.
        why: What is wrong or unclear.
        rerun: What is wrong after a clean run that followed, else None.
        said: The end of what it printed on standard error.
    """

    scenario: str
    fault: Fault
    hits: int
    verdict: str
    why: str
    rerun: str | None
    said: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Stage:
    """Where a scenario is run: its directory is as at the beginning before each trial, always in
    the same place.
    """

    def __init__(self, scenario: Scenario, place: Path) -> None:
        self.scenario, self.place = scenario, place
        self.root, self._template = place / "root", place / "template"
        self.root.mkdir(parents=True)
        self._do(scenario.prepare)
        (self.root / "tmp").mkdir()
        shutil.copytree(self.root, self._template, symlinks=True)
        self.before = self._content()
        self._reset()
        self.clean = self._run("clean", ["-e", f"trace={','.join(CALLS)}"])
        self.calls = read_calls(place / "log")
        self.after = self._content()
        if self.clean.code != scenario.exit_code or "unreadable" in self.before | self.after:
            said = f"{self.clean.out[-500:]}{self.clean.err[-3000:]}"
            raise RuntimeError(f"{scenario.name}: exit code {self.clean.code}: {said}")

    def targets(self) -> list[Target]:
        return targets(self.calls, self.root, self._template)

    def trial(self, fault: Fault) -> Outcome:
        self._reset()
        ending = self._run("clean", fault.options())
        hits = sum(fault.is_hit(call) for call in read_calls(self.place / "log"))
        verdict, why = self._judged(ending, fault)
        rerun = self._again() if hits else None
        said = normal(ending.err.strip()[-600:], self.root)
        return Outcome(
            scenario=self.scenario.name,
            fault=fault,
            hits=hits,
            verdict=verdict,
            why=why,
            rerun=rerun,
            said=said,
        )

    def _judged(self, ending: Ending, fault: Fault) -> tuple[str, str]:
        if ending.code is None:
            return HANG, "it did not end"
        if ending.code < 0:
            return WRONG, f"ended by signal {-ending.code}"
        is_result = ending.code == self.clean.code and not ending.has_traceback
        if ending.code == 0 and not is_result:
            return WRONG, f"exit code 0, expected {self.clean.code}"
        is_absent = fault.error == "ENOENT" and self.scenario.may_be_absent
        wrong = self._wrong(ending, is_result=is_result and not is_absent)
        if wrong is not None:
            return WRONG, f"exit code {ending.code}; {wrong}"
        if is_result and (ending.code not in _REFUSED or ending.err == self.clean.err):
            return HARMLESS, ""
        if ending.has_traceback:
            return UNCLEAR, "a traceback"
        names = (str(self.root), Path(fault.path).name)
        is_clear = any(name in ending.err for name in names)
        return (TOLD, "") if is_clear else (UNCLEAR, "no path is named")

    def _wrong(self, ending: Ending, *, is_result: bool) -> str | None:
        """What is wrong with what was delivered, printed, and left."""
        judge = self.scenario.judge
        if judge is not None and (wrong := judge(self.clean.delivered, ending)):
            return f"delivered: {wrong}"
        if is_result and judge is None and ending.code not in _REFUSED:
            if ending.delivered != self.clean.delivered:
                return f"delivered {len(ending.delivered)} of {len(self.clean.delivered)}"
            if self.scenario.prints and self._printed(ending) != self._printed(self.clean):
                return f"printed {self._printed(ending)[-300:]!r}"
        found = self._content()
        if is_result and ending.code == 0:
            return self._unlike(found, [self.after])
        return self._unlike(found, [self.before, self.after], by_part=self.scenario.is_rising)

    def _unlike(self, found: Content, clean: list[Content], *, by_part: bool = False) -> str | None:
        """What differs, where files that were not removed are no difference."""
        if self.scenario.removes and "files" in found:
            gone = set(self.after["files"]) - set(found["files"])
            found, clean = found | {"files": ()}, [one | {"files": ()} for one in clean]
            if gone:
                return f"{min(gone)} is gone"
        return differs(found, clean, by_part=by_part)

    def _again(self) -> str | None:
        """What is wrong after a run without faults, where the other one ended."""
        ending = self._run("again")
        found = self._content()
        wrong = self._unlike(found, [self.after])
        judge = self.scenario.judge
        if wrong is None and judge is not None:
            wrong = judge(self.clean.delivered, ending)
        if wrong is not None or ending.code == self.clean.code:
            return wrong
        return f"exit code {ending.code}: {normal(ending.err.strip()[-300:], self.root)}"

    def _printed(self, ending: Ending) -> str:
        return normal(ending.out, self.root)

    def _run(self, seed: str, options: list[str] | None = None) -> Ending:
        def act(rows: Rows) -> None:
            self.scenario.act(self.root, rows)

        return run_forked(act, self.place, seed=seed, options=options, temporary=self.root / "tmp")

    def _do(self, act: Any) -> None:
        """Does what must not fail, in a fork."""
        ending = run_forked(lambda rows: act(self.root), self.place, seed="template")
        if ending.code != 0:
            raise RuntimeError(f"{self.scenario.name}: {ending.err[-3000:]}")

    def _content(self) -> Content:
        def read(rows: Rows) -> None:
            rows.append(self.scenario.read(self.root))

        ending = run_forked(read, self.place, seed="reader")
        if ending.code != 0:
            return {"unreadable": normal(ending.err.strip().splitlines()[-1], self.root)}
        content: Content = ending.delivered[0]
        return content

    def _reset(self) -> None:
        shutil.rmtree(self.root)
        shutil.copytree(self._template, self.root, symlinks=True)
