"""A home of Spark for jobs that run as on a cluster."""

from pathlib import Path

import pyspark


def make_spark_home(directory: Path) -> Path:
    """pyspark's own files under another name, as executors' directories are made in Spark's
    home.
    """
    home = directory / "spark"
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.name in ("bin", "jars", "python", "sbin"):
            (home / part.name).symlink_to(part)
    return home
