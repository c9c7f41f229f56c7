"""Runs the kernels as the reader calls them, with the address and the undefined-behaviour
sanitizer.

    python fuzz/sanitize.py [--mutants 50000] [--seed 1] [--small]

First the tests of the kernels and of reading, then damaged files: of each the outcome is what Arrow
reads, or a DataFileError. The kernels are built into `build/sanitize`; a column's offsets and
values have memory of their own (both by `separate.py`). Files whose outcomes differ are kept, and
named. Exits 1 where a test fails, an outcome differs, or a sanitizer ends the process.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
MODULE = ROOT / "build" / "sanitize" / "kernels.abi3.so"
ABI = "0x030B0000"  # as in setup.py
FLAGS = [
    "-g",
    "-O1",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-pthread",
]
TESTS = ["tests/native", "tests/reading"]
SMALL_TESTS = [
    *(
        f"tests/native/test_{name}.py"
        for name in ("kernels", "columns", "rows", "orders", "threads")
    ),
    "tests/reading/test_pages.py",
]
BUILDERS = [
    "--ignore",
    "tests/native/test_fuzz.py",
    "--ignore",
    "tests/native/test_sanitize.py",
]  # which run the like of this
CAMPAIGN = (
    "import runpy, fuzz.separate; runpy.run_module('tests.native.mutants', run_name='__main__', "
    "alter_sys=True)"
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutants", type=int, default=50_000, help="damaged files")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--small", action="store_true", help="some of the tests, 1,000 damaged files: half a minute"
    )
    arguments = parser.parse_args()
    num_mutants = 1_000 if arguments.small else arguments.mutants
    build()
    environment = os.environ | sanitized()
    tests = SMALL_TESTS if arguments.small else [*TESTS, *BUILDERS]
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-s",
        "-p",
        "no:cacheprovider",
        "-p",
        "fuzz.separate",
        f"--hypothesis-profile={'few' if arguments.small else 'featstore'}",
        *tests,
    ]
    campaign = [sys.executable, "-c", CAMPAIGN, str(num_mutants), str(arguments.seed)]
    failed = [
        name
        for name, command in (("tests", pytest), ("damaged files", campaign))
        if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    ]
    print(
        f"sanitized kernels: tests, {num_mutants} damaged files of seed {arguments.seed}; failed: "
        f"{', '.join(failed) or 'none'}"
    )
    return int(bool(failed))


def build() -> None:
    """Builds the kernels' module with sanitizers, which `separate.py` imports."""
    source = ROOT / "featstore" / "native" / "kernels.c"
    MODULE.parent.mkdir(parents=True, exist_ok=True)
    python = ["-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", f"-DPy_LIMITED_API={ABI}"]
    subprocess.run(["cc", *FLAGS, *python, str(source), "-o", str(MODULE)], check=True)


def sanitized() -> dict[str, str]:
    """The environment of a process that runs them: the sanitizer must be loaded before all else,
    and sees memory that comes from malloc. What the interpreter keeps until it ends is no leak of
    ours."""
    libraries = [
        subprocess.check_output(["cc", f"-print-file-name={name}"], text=True).strip()
        for name in _LIBRARIES
    ]
    return {
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "PYTHONPATH": str(ROOT),
    }


_LIBRARIES = ("libasan.so", "libubsan.so")

if __name__ == "__main__":
    sys.exit(main())
