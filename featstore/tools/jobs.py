"""The Spark jobs: programs for `spark-submit`, or for `python -m featstore.tools.job_NAME`.

Spark puts the folder of the program that it runs on Python's path. So no module here may be named
like one of another library, and a job leaves the folder before it imports modules of users.
"""

import sys
from pathlib import Path

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


def leave_folder() -> None:
    """Takes this folder off Python's path: a module of a user's operators may be named `jobs`."""
    folder = Path(__file__).resolve().parent
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != folder]
