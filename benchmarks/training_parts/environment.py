"""Environments that have tensorflow, or JAX and torchrec too, beside the project's own libraries.

They are not installed for the project: they are large, and bind numpy and protobuf to versions of
their own. An environment here holds them and what they depend on; everything else, torch among it,
it finds in the project's environment. So each side of a comparison runs the same torch.
"""

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

TENSORFLOW, JAX = "tensorflow-cpu==2.21.0", "jax[cpu]==0.10.2"
# Of the project's torch 2.13, for CPUs, and what torchrec imports beside it.
TORCHREC = (
    *("torchrec==1.8.0", "fbgemm-gpu-cpu==1.8.0", "tensordict==0.15.3", "pyvers==0.2.3"),
    *("cloudpickle==3.1.3", "pyre-extensions==0.0.32", "typing-inspect==0.9.0"),
    "mypy-extensions==1.2.0",
)


def tensorflow_python(directory: Path) -> str:
    """The interpreter of the environment in this directory, which is made if it is not there.

    Installing takes about a minute and 1.5 GB of disk.
    """
    return python_with(directory / TENSORFLOW.replace("==", "-"), TENSORFLOW)


def python_with(root: Path, *packages: str, alone: Sequence[str] = ()) -> str:
    """The interpreter of the environment at this path, which is made with these packages if it is
    not there.

    Args:
        root: The environment.
        packages: What is installed into it, with what it depends on.
        alone: Packages that are installed without what they depend on: it is among them, or in the
            project's environment.
    """
    python, done = root / "bin" / "python", root / "installed"
    if not done.exists():
        print(f"installing {', '.join([*packages, *alone])} into {root}", flush=True)
        venv.create(root, clear=True, symlinks=True)
        pip = [sys.executable, "-m", "pip", "--python", str(python)]
        for found in filter(None, (packages, ["--no-deps", *alone] if alone else ())):
            subprocess.run([*pip, "install", "--quiet", *found], check=True)
        own = Path(sysconfig.get_path("purelib", vars={"base": str(root)}))
        # Searched after the environment's own libraries.
        (own / "project.pth").write_text(sysconfig.get_path("purelib") + "\n")
        done.touch()
    return str(python)


if __name__ == "__main__":
    python_with(Path(sys.argv[1]), TENSORFLOW, JAX, alone=TORCHREC)
