"""Fuzzes the kernels: each target in turn, with the address and the undefined-behaviour sanitizer,
for its share of the time.

    python fuzz/run.py [--seconds 300] [--target NAME] [--seed N]

With clang the C targets are run by libFuzzer, else by `driver.c`. They are built in `build/fuzz`.
An input that ends a target is kept there as `TARGET-found/current`: after 8 bytes with its length;
make it a test. Exits 1 if there is one.
"""

import argparse
import shutil
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BUILT = HERE.parent / "build" / "fuzz"
TARGETS = (
    "pages",
    "snappy",
    "footer",
    "chunk_checks",
    "hash",
    "rows",
    "orders",
    "columns",
    "histories",
)
SANITIZERS = [
    "-g",
    "-O1",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
]
SLOWEST_S = 2  # no input of 4 KB takes longer, sanitizers included


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=300, help="for all targets together")
    parser.add_argument(
        "--target", choices=TARGETS, action="append", help="only this one; may be given again"
    )
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    targets = arguments.target or list(TARGETS)
    seconds = max(1, arguments.seconds // len(targets))
    failed = [target for target in targets if not fuzz(target, seconds, arguments.seed)]
    print(
        f"fuzzed {', '.join(targets)}, {seconds} s each; found inputs for: "
        f"{', '.join(failed) or 'none'}"
    )
    return int(bool(failed))


def fuzz(target: str, seconds: int, seed: int) -> bool:
    """Whether no input ended the target."""
    found = BUILT / f"{target}-found"
    found.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={seconds}",
        f"-seed={seed}",
        f"-timeout={SLOWEST_S}",
        f"-artifact_prefix={found}/",
    ]
    grown = BUILT / f"{target}-corpus"  # libFuzzer adds what it finds to the first of the folders
    grown.mkdir(exist_ok=True)
    print(f"{target}:", flush=True)
    status = subprocess.run(
        [build(target), *options, grown, HERE / "corpus" / target], check=False
    ).returncode
    if status == -signal.SIGPROF:
        print(f"{target}: an input took longer than {SLOWEST_S} s", flush=True)
    return status == 0


def build(target: str) -> Path:
    """The program of a target."""
    BUILT.mkdir(parents=True, exist_ok=True)
    program, source = BUILT / target, HERE / f"fuzz_{target}.c"
    kernels = HERE.parent / "featstore" / "native"
    common = [*SANITIZERS, "-pthread", f"-I{kernels}"]
    if shutil.which("clang"):
        _compile(["clang", "-fsanitize=fuzzer", *common, source, "-o", program])
        return program
    objects = [BUILT / f"{target}.o", BUILT / "driver.o"]
    _compile(["cc", "-fsanitize-coverage=trace-pc", *common, "-c", source, "-o", objects[0]])
    _compile(["cc", "-g", "-O2", "-c", HERE / "driver.c", "-o", objects[1]])
    _compile(["cc", *common, *objects, "-o", program])
    return program


def _compile(command: list[object]) -> None:
    subprocess.run([str(part) for part in command], check=True)


if __name__ == "__main__":
    sys.exit(main())
