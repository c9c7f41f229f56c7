"""The scripts of spark_jobs/, which are no package."""

from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).parents[1] / "spark_jobs"


def job_script(name: str) -> ModuleType:
    module = ModuleType(name)
    SourceFileLoader(name, str(SCRIPTS / f"{name}.py")).exec_module(module)
    return module
