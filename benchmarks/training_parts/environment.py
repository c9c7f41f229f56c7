"""Environments that have tensorflow, or JAX too, beside the project's own libraries.

They are not installed for the project: they are large, and bind numpy and protobuf to versions of
their own. An environment here holds them and what they depend on; everything else, torch among it,
it finds in the project's environment. So each side of a comparison runs the same torch.
"""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

TENSORFLOW, JAX = "tensorflow-cpu==2.21.0", "jax[cpu]==0.10.2"


def tensorflow_python(directory: Path) -> str:
    """The interpreter of the environment in this directory, which is made if it is not there.

    Installing takes about a minute and 1.5 GB of disk.
    """
    return python_with(directory / TENSORFLOW.replace("==", "-"), TENSORFLOW)


def python_with(root: Path, *packages: str, with_dependencies: bool = True) -> str:
    """The interpreter of the environment at this path, which is made with these packages if it is
    not there.

    Args:
        root: The environment.
        packages: What is installed into it.
        with_dependencies: False leaves out what the packages depend on: it is among them, or in
            the project's environment.
    """
    python, done = root / "bin" / "python", root / "installed"
    if not done.exists():
        print(f"installing {', '.join(packages)} into {root}", flush=True)
        venv.create(root, clear=True, symlinks=True)
        pip = [sys.executable, "-m", "pip", "--python", str(python)]
        options = [] if with_dependencies else ["--no-deps"]
        subprocess.run([*pip, "install", "--quiet", *options, *packages], check=True)
        own = Path(sysconfig.get_path("purelib", vars={"base": str(root)}))
        # Searched after the environment's own libraries.
        (own / "project.pth").write_text(sysconfig.get_path("purelib") + "\n")
        done.touch()
    return str(python)


if __name__ == "__main__":
    python_with(Path(sys.argv[1]), TENSORFLOW, JAX)
