"""An environment that has tensorflow beside the project's own libraries.

tensorflow is not installed for the project: it is large, and binds numpy and protobuf to versions
of its own. The environment here holds tensorflow and what it depends on; everything else, torch
among it, it finds in the project's environment. So each side of a comparison runs the same torch.
"""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

TENSORFLOW = "tensorflow-cpu==2.21.0"


def tensorflow_python(directory: Path) -> str:
    """The interpreter of the environment in this directory, which is made if it is not there.

    Installing takes about a minute and 1.5 GB of disk.
    """
    root = directory / TENSORFLOW.replace("==", "-")
    python, done = root / "bin" / "python", root / "installed"
    if not done.exists():
        print(f"installing {TENSORFLOW} into {root}", flush=True)
        venv.create(root, clear=True, symlinks=True)
        pip = [sys.executable, "-m", "pip", "--python", str(python)]
        subprocess.run([*pip, "install", "--quiet", TENSORFLOW], check=True)
        own = Path(sysconfig.get_path("purelib", vars={"base": str(root)}))
        # Searched after the environment's own libraries.
        (own / "project.pth").write_text(sysconfig.get_path("purelib") + "\n")
        done.touch()
    return str(python)
