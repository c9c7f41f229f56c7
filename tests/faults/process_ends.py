"""How processes end on a core that other work fills: each command and each training script has its
own exit code, and standard error holds nothing but its own message.

    python tests/faults/process_ends.py [--runs 200] [--few 50] [--only TEXT ...]

What still runs when the interpreter ends (a thread of a store's client, or of Arrow's pool, that
calls Python) aborts the process in a moment that an idle core never shows. So all processes share
one core with a busy loop. They are forked from one process that has imported everything and used
nothing: a run costs no imports, and ends as a program does. Prints a line for each case; ends with
a line `RESULT {json}`, and exits 1 if any process ended otherwise than it should.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import pyarrow as pa

from featstore.base.processes import REFUSED
from tests.parquet_files import put_parquet
from tests.programs import CLI, Program, run_python

SPEC = """
spec: 1
inputs: {id: string, user: string, price: double, clicked: long}
keep: [id]
labels: {click: clicked}
slots:
  - {slot: 101, name: user, op: hash, of: user}
  - {slot: 102, name: price, op: log1p, of: price}
"""
CHECKED = f"{SPEC}checks: [{{check: label_rate, of: click, at_least: 0.9}}]\n"
S3_SERVER = Path(__file__).parents[1] / "table" / "s3_server.py"
# Forks a process for each line of its input, and tells how it ended. The process runs a command, or
# a program in its own globals, as a script does.
FORKS = """
import json, os, signal, sys, warnings
os.sched_setaffinity(0, {int(sys.argv[1])})
import deltalake, fsspec.asyn, obstore.fsspec, pyarrow.acero, pyarrow.parquet
import featstore.api, featstore.tools.cli, featstore.explore.table, featstore.extraction.progress_bar
import featstore.loader.feature_loader
import featstore.explore.label_profile, featstore.explore.whatis, featstore.table.vacuum
print("ready", flush=True)
for line in iter(sys.stdin.readline, ""):
    task = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
signal.alarm(120)  # A process that does not end is told as -14.
for descriptor, path in enumerate((os.devnull, os.devnull, task["stderr"])):
    os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
sys.argv = ["featstore", *task["arguments"]]
exec(task["program"])
"""
BUSY = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
while True:
    pass
"""
TRAINING = """
import featstore
loader = featstore.FeatureLoader(sys.argv[1], slots=["*"], batch_size=64)
batches = iter(loader)
print(next(batches).num_rows)
"""
STAGED = """
import featstore
where = {"directory": sys.argv[2], "budget_bytes": "100MB"}
loader = featstore.FeatureLoader(sys.argv[1], slots=["*"], batch_size=64, staging=where)
print(sum(batch.num_rows for batch in loader))
batches = iter(loader)
print(next(batches).num_rows)
"""
EXTRACTING = """
import featstore
dry = {"days": "2026-11-01..2026-11-01", "dry_run": True}
print(featstore.extract(*sys.argv[1:], **dry))
"""
LOOKING = """
import featstore
table = featstore.open_table(sys.argv[1])
print(table.label_profile("click"), table.to_arrow().num_rows)
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A process, its exit code, and how many lines of its own it writes to standard error."""

    name: str
    program: str = CLI
    arguments: tuple[str, ...]
    status: int = 0
    num_lines: int = 0
    is_rare: bool = False


def cases(store: str, url: str, inputs: Path) -> Iterator[Case]:
    """The cases on one store, whose table is at `url`. Raw rows and specs are local."""
    spec, checked = str(inputs / "spec.yaml"), str(inputs / "checked.yaml")
    raw, day = f"{url}-raw/dt=2026-11-01", ("--partition", "dt=2026-11-01")
    days = ("--days", "2026-11-01..2026-11-01", "--dry-run")
    lost = "s3://no-such-bucket/raw" if store == "s3" else str(inputs / "nothing")

    def extract(name: str, spec: str, raw: str, *options: str, status: int = 0) -> Case:
        arguments = ("extract", "--spec", spec, "--input", raw, "--table", url, *options)
        return Case(
            name=f"{store} extract {name}",
            arguments=arguments,
            status=status,
            num_lines=int(status > 0),
        )

    yield extract("no-op", spec, raw, *day)
    yield extract("dry run", spec, f"{url}-raw/dt={{dt}}", *days)
    yield extract("refused", checked, raw, "--partition", "dt=2026-11-02", status=REFUSED)
    yield extract("missing bucket", spec, lost, *day, status=2)
    profile = ("table", "profile", url, "--label", "click")
    yield Case(name=f"{store} profile --label", arguments=profile)
    for name, *options in (("inspect",), ("show", "--rows", "10"), ("vacuum",)):
        yield Case(name=f"{store} {name}", arguments=("table", name, url, *options), is_rare=True)
    whatis = ("whatis", "--table", url, "--text", "u1")
    yield Case(name=f"{store} whatis", arguments=whatis, is_rare=True)
    scripts = {"training": TRAINING, "staged training": STAGED, "looking": LOOKING}
    for name, program in scripts.items():
        arguments = (url, str(inputs / "cache"))
        yield Case(name=f"{store} {name}", program=program, arguments=arguments, is_rare=True)
    given = (spec, f"{url}-raw/dt={{dt}}", url)
    yield Case(name=f"{store} extracting", program=EXTRACTING, arguments=given, is_rare=True)


def write_inputs(directory: Path) -> None:
    (directory / "spec.yaml").write_text(SPEC)
    (directory / "checked.yaml").write_text(CHECKED)
    rows = range(2_000)
    columns = {
        "id": [f"r{row}" for row in rows],
        "user": [f"u{row % 7}" for row in rows],
        "price": [row / 10 for row in rows],
        "clicked": pa.array([row % 2 for row in rows], pa.int64()),
    }
    put_parquet(directory / "table-raw" / "dt=2026-11-01" / "log.parquet", columns)


@contextmanager
def s3(inputs: Path) -> Iterator[dict[str, str]]:
    """A server with the raw rows; the variables with which clients find it."""
    with Program(S3_SERVER) as server:
        url = f"http://127.0.0.1:{server.line()}"
        urlopen(Request(f"{url}/tables", method="PUT"), timeout=60).close()
        for path in (inputs / "table-raw").rglob("*.parquet"):
            key, how = path.relative_to(inputs), {"Content-Type": "application/octet-stream"}
            put = Request(f"{url}/tables/{key}", path.read_bytes(), how, method="PUT")
            urlopen(put, timeout=60).close()
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": "something",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }


def ending(forks: Program, case: Case, stderr: Path) -> str:
    """How one process of a case ended; empty if as it should."""
    assert forks.stdin is not None
    task = asdict(case) | {"stderr": str(stderr)}
    forks.stdin.write(f"{json.dumps(task)}\n")
    forks.stdin.flush()
    status, said = int(forks.line()), stderr.read_text()
    if status == case.status and len(said.splitlines()) == case.num_lines:
        return ""
    return f"exit code {128 - status if status < 0 else status}, said {said[-200:]!r}"


def count_ends(*, runs: int, few: int, only: Sequence[str] = ("",)) -> dict[str, tuple[int, int]]:
    """For each case with one of these texts in its name: how many processes ended as they should,
    and how many ran.
    """
    core, found = str(max(os.sched_getaffinity(0))), {}
    with ExitStack() as stack:
        inputs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_inputs(inputs)
        variables = stack.enter_context(s3(inputs))
        wanted = [
            case
            for store, url in (("local", str(inputs / "table")), ("s3", "s3://tables/table"))
            for case in cases(store, url, inputs)
        ]
        for first in (case for case in wanted if case.name.endswith("no-op")):
            run_python(CLI, *first.arguments, variables=variables)
        stack.enter_context(Program(BUSY, core))
        forks = stack.enter_context(Program(FORKS, core, variables=variables, stderr=None))
        assert forks.line() == "ready"
        for case in (case for case in wanted if any(text in case.name for text in only)):
            num_runs = few if case.is_rare else runs
            ends = Counter(ending(forks, case, inputs / "stderr") for _ in range(num_runs))
            found[case.name] = ends.pop("", 0), num_runs
            sys.stderr.write(f"{case.name}: {found[case.name]}; {dict(ends)}\n")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=200, help="of extract and profile --label")
    parser.add_argument("--few", type=int, default=50, help="of each other case")
    parser.add_argument("--only", default=[""], nargs="*", help="cases with this in their names")
    found = count_ends(**vars(parser.parse_args()))
    sys.stdout.write(f"RESULT {json.dumps(found)}\n")
    sys.exit(any(num_right < num_runs for num_right, num_runs in found.values()))
