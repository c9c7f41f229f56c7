"""The Spark jobs: programs for `spark-submit`, or for `python -m featstore.tools.job_NAME`.

Spark puts the folder of the program that it runs on Python's path. So no module here may be named
like one of another library, and a job leaves the folder before it imports modules of users.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click

from featstore.base.errors import FeatstoreError
from featstore.base.processes import end_with, exit_code

JOBS = {
    "extract": "job_extract.py",
    "join-labels": "job_join_labels.py",
    "profile-slots": "job_profile_slots.py",
    "register-table": "job_register_table.py",
}


def job_path(name: str) -> Path:
    """The installed file of a job, for `spark-submit`.

    Args:
        name: A key of `JOBS`.
    """
    return Path(__file__).resolve().with_name(JOBS[name])


def start(main: Callable[[], int]) -> NoReturn:
    """Runs the `main` of a job as a program."""
    # A module of a user's operators may be named `jobs`, like one of this folder.
    folder = Path(__file__).resolve().parent
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != folder]
    end_with(main)


def run_program(name: str, program: Callable[[], object]) -> int:
    """Runs the command line or a job. Returns the exit code: 2 or 3 after an error about the input,
    which is one line on standard error; 130 after an interrupt.
    """
    try:
        program()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    # Errors of featstore are about the input. Others are bugs, and keep their traceback.
    except (FeatstoreError, OSError) as error:
        lines = [f"{name}: error: {error}", *getattr(error, "__notes__", ())]
        click.echo("\n".join(lines), err=True)
        return exit_code(error)
    except (click.Abort, KeyboardInterrupt):
        click.echo(f"{name}: interrupted; earlier commits stay as they are", err=True)
        return 130
    return 0
