"""Builds the distributions of featstore and tries each in empty environments: `make dist`.

    python release/dist.py [--torch 3.11,3.12,3.13] [--only-build]

Made in dist/: an sdist; from it the wheels `cp311-abi3-manylinux_2_28` for x86_64 and aarch64,
compiled by zig, which brings the older glibc that the tag promises. auditwheel checks that they
need no newer one. Then, for each Python found, the wheel of this machine is installed into an empty
environment, in which release/smoke.py runs, and the demo where torch is wanted. Two more
environments: the sdist where no C compiler works, and the lowest versions that pyproject.toml
allows (without torch and Spark, since such old builds of them are gigabytes).
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
CONSTRAINTS = ROOT / "constraints.txt"
VERSIONS = ("3.11", "3.12", "3.13")
ARCHITECTURES = ("x86_64", "aarch64")
GLIBC = "2.28"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A distribution to install into an empty environment, and what runs there.

    Attributes:
        name: How it is told of.
        python: The interpreter.
        package: The wheel, or the sdist.
        extras: Its extras, as in `[explore]`.
        is_lowest: Whether the lowest versions that are allowed are installed.
        has_compiler: Whether a C compiler works.
        runs_demo: Whether the demo runs.
    """

    name: str
    python: Path
    package: Path
    extras: str
    is_lowest: bool = False
    has_compiler: bool = True
    runs_demo: bool = False


def main() -> int:
    """Prints what was built and tried; 1 if anything failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--torch",
        default=",".join(VERSIONS),
        help="versions of Python for which torch is installed, and the demo runs",
    )
    parser.add_argument("--only-build", action="store_true")
    arguments = parser.parse_args()
    shutil.rmtree(DIST, ignore_errors=True)
    sdist = build("--sdist", source=ROOT)
    print(f"built {sdist.name}", flush=True)
    wheels = build_wheels(sdist)
    if not document()["tool"]["featstore"]["repository"]:
        print(
            "dist: the wheels link to no repository: set `repository` of [tool.featstore] in "
            "pyproject.toml to its public address before a release"
        )
    if arguments.only_build:
        return 0
    pythons = {version: found for version in VERSIONS if (found := interpreter(version))}
    failed = []
    for trial in trials(sdist, wheels, pythons, arguments.torch.split(",")):
        print(f"{trial.name}: installing {trial.package.name}{trial.extras}", flush=True)
        try:
            run_trial(trial)
        except subprocess.CalledProcessError as error:
            failed.append(trial.name)
            print(f"{trial.name}: FAILED: {error}", flush=True)
    for version in VERSIONS:
        if version not in pythons:
            print(f"Python {version}: not run, no interpreter was found")
    print(f"dist: {len(failed)} failed{': ' + ', '.join(failed) if failed else ''}")
    return 1 if failed else 0


def build(
    what: str,
    source: Path,
    variables: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> Path:
    """Builds a distribution into dist/; its path."""
    before = set(DIST.glob("*"))
    command = (sys.executable, "-m", "build", what, "--outdir", DIST, *options, source)
    call(*command, variables=variables, is_quiet=True)
    [built] = set(DIST.glob("*")) - before
    return built


def build_wheels(sdist: Path) -> dict[str, Path]:
    """The wheels by architecture."""
    wheels = {}
    with tempfile.TemporaryDirectory() as folder:
        shutil.unpack_archive(sdist, folder)
        [source] = Path(folder).iterdir()
        for architecture in ARCHITECTURES:
            compiler = f"{sys.executable} -m ziglang cc -target {architecture}-linux-gnu.{GLIBC}"
            variables = {"CC": compiler, "_PYTHON_HOST_PLATFORM": f"linux-{architecture}"}
            platform_tag = f"manylinux_{GLIBC.replace('.', '_')}_{architecture}"
            options = (f"-C--build-option=--plat-name={platform_tag}",)
            wheels[architecture] = build("--wheel", source, variables, options)
            check_glibc(wheels[architecture])
            shutil.rmtree(source / "build", ignore_errors=True)
    for wheel in wheels.values():
        print(f"built {wheel.name}", flush=True)
    return wheels


def check_glibc(wheel: Path) -> None:
    """Ends with an error if the wheel needs a newer glibc than its tag promises."""
    found = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", str(wheel)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    policies = [word.strip('".,') for word in found.split() if "manylinux_2_" in word]
    if not any(fits(policy) for policy in policies):
        raise SystemExit(f"dist: {wheel.name} needs a glibc newer than {GLIBC}:\n{found}")


def fits(policy: str) -> bool:
    """Whether this policy, such as manylinux_2_17_x86_64, needs no newer glibc than ours."""
    minor = policy.removeprefix("manylinux_2_").split("_")[0]
    return minor.isdigit() and int(minor) <= int(GLIBC.split(".")[1])


def interpreter(version: str) -> Path | None:
    """A Python of this version: on the PATH, or where pyenv and the system keep them."""
    home = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = [Path(path) for path in [shutil.which(f"python{version}")] if path]
    found += sorted(home.glob(f"versions/{version}.*/bin/python{version}"))
    found += [Path(place) / f"python{version}" for place in ("/usr/bin", "/usr/local/bin")]
    return next((path for path in found if is_python(path, version)), None)


def is_python(path: Path, version: str) -> bool:
    """Whether it runs, and is that version: pyenv's stand-ins refuse versions not chosen."""
    if not path.exists():
        return False
    command = [str(path), "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == version


def trials(
    sdist: Path,
    wheels: Mapping[str, Path],
    pythons: Mapping[str, Path],
    with_torch: list[str],
) -> Iterator[Trial]:
    """What is tried, on the interpreters that were found."""
    wheel = wheels.get(platform.machine(), sdist)
    for version, python in pythons.items():
        has_torch = version in with_torch
        yield Trial(
            name=f"Python {version}{'' if has_torch else ', without torch'}",
            python=python,
            package=wheel,
            extras="[all,demo]" if has_torch else "[explore,prometheus]",
            runs_demo=has_torch,
        )
    first = next(iter(pythons.values()))
    yield Trial(
        name="without a compiler", python=first, package=sdist, extras="", has_compiler=False
    )
    yield Trial(
        name="lowest versions",
        python=first,
        package=wheel,
        extras="[explore,prometheus,hdfs,tfrecord]",
        is_lowest=True,
    )


def run_trial(trial: Trial) -> None:
    """Installs, and runs the smoke suite and the demo, in a folder that holds nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        call(trial.python, "-m", "venv", f"{folder}/venv")
        binaries = Path(folder) / "venv/bin"
        install(trial, binaries / "python")
        call(binaries / "python", ROOT / "release" / "smoke.py", folder=folder)
        if trial.runs_demo:
            call(binaries / "featstore", "demo", folder=folder)


def install(trial: Trial, python: Path) -> None:
    """Installs the trial's distribution and what it needs."""
    what = f"featstore-pipeline{trial.extras} @ {trial.package.as_uri()}"
    if trial.is_lowest:
        install_lowest(trial, python)
    else:
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        variables = {} if trial.has_compiler else {"CC": "false"}
        call(*pip, "--constraint", CONSTRAINTS, what, variables=variables, is_quiet=True)


def install_lowest(trial: Trial, python: Path) -> None:
    """Installs the lowest versions that pyproject.toml allows, and the wheel without what it needs.

    uv lowers only what is named to it: of a wheel by its address, the wheel alone. So it is given
    pyproject.toml.
    """
    extras = trial.extras.strip("[]").split(",")
    uv = (sys.executable, "-m", "uv", "pip")
    floors = python.parents[2] / "floors.txt"
    options = [part for extra in extras for part in ("--extra", extra)]
    listing = (*uv, "compile", "--quiet", "--resolution", "lowest-direct", "--python", python)
    call(*listing, *options, "--output-file", floors, ROOT / "pyproject.toml", is_quiet=True)
    call(*uv, "install", "--quiet", "--python", python, "--requirement", floors)
    call(*uv, "install", "--quiet", "--python", python, "--no-deps", trial.package)
    lines = subprocess.run(
        [str(part) for part in (*uv, "freeze", "--python", python)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    versions = dict(line.split("==") for line in lines if "==" in line)
    wrong = above_floors(document(), extras, versions)
    if wrong:
        raise SystemExit(f"dist: expected the lowest versions, found {', '.join(wrong)}")


def document() -> dict[str, Any]:
    """pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def above_floors(
    pyproject: Mapping[str, Any], extras: Sequence[str], versions: Mapping[str, str]
) -> list[str]:
    """Requirements of pyproject.toml whose installed version is not the lowest that they allow.

    Args:
        pyproject: The document pyproject.toml.
        extras: The extras that were installed.
        versions: The installed versions by the packages' names.
    """
    project = pyproject["project"]
    optional = [what for extra in extras for what in project["optional-dependencies"][extra]]
    wrong = []
    for what in [*project["dependencies"], *optional]:
        name, _, bounds = what.partition(">=")
        found, floor = versions.get(name, "none"), bounds.split(",")[0]
        if numbers(found) != numbers(floor):
            wrong.append(f"{name} {found} instead of {floor}")
    return wrong


def numbers(version: str) -> str:
    """A version without zeros at its end: 20 and 20.0.0 are one."""
    return re.sub(r"(\.0)+$", "", version)


def call(
    *command: object,
    variables: Mapping[str, str] | None = None,
    folder: str | Path = ROOT,
    is_quiet: bool = False,
) -> None:
    """Runs a command. If it is to be quiet, its output is shown only if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=os.environ | (variables or {}),
        stdout=subprocess.PIPE if is_quiet else None,
        stderr=subprocess.STDOUT if is_quiet else None,
        check=False,
    )
    if done.returncode and done.stdout:
        print(done.stdout.decode(errors="replace"), flush=True)
    done.check_returncode()


if __name__ == "__main__":
    sys.exit(main())
