"""`featstore spark pack`: an archive with Python and featstore, for the hosts of a Spark cluster.

Its files are copied to a temporary directory, tried there, and written to the archive, which gets
its name only when it is complete.
"""

import os
import shlex
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path, PurePosixPath

from isal import igzip

from featstore.base.closing import cleaned_up_on_failure
from featstore.base.errors import PackError
from featstore.tools.distributions import (
    distribution_files,
    installed_requirements,
    needed,
    packed_roots,
)
from featstore.tools.interpreter import (
    LAUNCHER,
    interpreter_files,
    launcher,
    needed_libraries,
    run_trial,
    running_interpreter,
    site_packages,
)

_ENDINGS = (".tar.gz", ".tgz")  # by which Spark knows what to unpack
_MISREAD = (",", "#")  # in --archives
_LEVEL = 2  # of isal's 0 to 3: the third takes longer and saves little
_WRITTEN_S = 315_532_800  # 1980, as of all files: equal content gives an equal archive
# The directory in which Spark unpacks the archive, below the working directory.
ALIAS = "environment"
PYTHON = f"./{ALIAS}/{LAUNCHER}"
_JOB = "$(featstore spark job extract) --spec URL --input URL --table URL ..."


@dataclass(frozen=True, kw_only=True)
class PackReport:
    """What was packed.

    Attributes:
        archive: The path of the archive.
        size_bytes: Its size.
        unpacked_bytes: The size of its files.
        python: The version of Python in it.
        distributions: The names of the distributions in it.
        libraries: The libraries that hosts must have, beside those of glibc.
        glibc: The glibc of this host. Others need this one or a newer one.
        lines: How to submit a job with it: commands, each with a comment above it.
    """

    archive: str
    size_bytes: int
    unpacked_bytes: int
    python: str
    distributions: tuple[str, ...]
    libraries: tuple[str, ...]
    glibc: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        size, unpacked = (f"{n / 1e6:,.0f} MB" for n in (self.size_bytes, self.unpacked_bytes))
        return "\n\n".join(
            [
                f"{self.archive}: {size}, {unpacked} unpacked: Python {self.python} and "
                f"{len(self.distributions)} packages: {', '.join(self.distributions)}\n"
                f"hosts need {self.glibc} or newer, Java and Spark; modules of Python such as ssl "
                f"also need {', '.join(self.libraries)}",
                *self.lines,
            ]
        )


def pack(output: str | Path, also: Sequence[str] = ()) -> PackReport:
    """Packs the Python that runs, featstore and what extraction on Spark needs.

    The client of HDFS is packed if it is installed: the extras `hdfs` and `hdfs-kerberos`.

    Args:
        output: The archive to write, on a local disk. One that is there is replaced.
        also: Names of further installed distributions, such as that of your own operators.

    Returns:
        What was packed, and how to submit jobs with it.

    Raises:
        PackError: Spark would misread the archive's name, its directory is missing, a package is
            missing or cannot be packed, or the packed Python does not run elsewhere.
    """
    archive = Path(output)
    if not archive.name.endswith(_ENDINGS):
        raise PackError(
            f"{archive}: expected a name that ends with {' or '.join(_ENDINGS)}, by which Spark "
            "knows how to unpack it"
        )
    if misread := [sign for sign in _MISREAD if sign in str(archive)]:
        raise PackError(
            f"{archive}: expected a path without {misread[0]!r}, which separates parts of Spark's "
            "--archives; choose another"
        )
    if not archive.parent.is_dir():
        raise PackError(f"{archive}: there is no directory {archive.parent}; make it first")
    interpreter = running_interpreter()
    names = needed([*packed_roots(installed_requirements), *also], installed_requirements)
    with tempfile.TemporaryDirectory(prefix="featstore-pack-") as directory:
        root = Path(directory).resolve()
        copy_files(interpreter_files(interpreter), root)
        (root / LAUNCHER).write_text(launcher(interpreter))
        (root / LAUNCHER).chmod(0o755)
        packages = site_packages(root)
        for name in names:
            copy_files(distribution_files(name), packages)
        libraries = needed_libraries(run_trial(root, names), root)
        unpacked_bytes = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
        write_archive(root, archive)
    return PackReport(
        archive=str(archive),
        size_bytes=archive.stat().st_size,
        unpacked_bytes=unpacked_bytes,
        python=sys.version.split()[0],
        distributions=tuple(names),
        libraries=tuple(libraries),
        glibc=os.confstr("CS_GNU_LIBC_VERSION") or "the glibc of this host",
        lines=submit_lines(str(archive), version("featstore-pipeline")),
    )


def copy_files(files: Mapping[PurePosixPath, Path], root: Path) -> None:
    """Copies files to their paths below a directory."""
    for path, source in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def write_archive(root: Path, archive: Path) -> None:
    """Writes the files of a directory, without bytecode, which names this directory.

    The archive appears under its name once it is complete, and an archive of that name is replaced.
    """
    partial = archive.with_name(f".{archive.name}.{os.getpid()}")
    with cleaned_up_on_failure(lambda: partial.unlink(missing_ok=True)):
        with (
            partial.open("wb") as file,
            igzip.IGzipFile(  # type: ignore[no-untyped-call]
                "", "wb", _LEVEL, file, mtime=0
            ) as stream,
            tarfile.open(fileobj=stream, mode="w|") as tar,
        ):
            for path in sorted(root.rglob("*")):
                if "__pycache__" not in path.parts and path.is_file():
                    tar.add(path, path.relative_to(root), filter=_alike)
        partial.replace(archive)


def _alike(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """A file as it is in every archive of the same content, whoever packs it and when."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = _WRITTEN_S
    member.mode = 0o755 if member.mode & 0o100 else 0o644
    return member


def submit_lines(archive: str, version: str) -> tuple[str, ...]:
    """How a job is submitted with an archive, for each kind of cluster.

    Args:
        archive: The path of the archive.
        version: The version of featstore in it.
    """
    archives = f"--archives {shlex.quote(archive)}#{ALIAS}"
    python = f"--conf spark.pyspark.python={PYTHON}"
    return (
        _spark_submit(
            "# YARN: driver and executors run the archive's Python; hosts need none",
            "--master yarn --deploy-mode cluster",
            archives,
            python,
        ),
        _spark_submit(
            "# Kubernetes: an image with Spark 4; archive and job are uploaded to the path",
            "--master k8s://https://HOST:6443 --deploy-mode cluster",
            "--conf spark.kubernetes.namespace=NAMESPACE",
            "--conf spark.kubernetes.authenticate.driver.serviceAccountName=spark",
            "--conf spark.kubernetes.container.image=IMAGE",
            "--conf spark.kubernetes.file.upload.path=s3a://BUCKET/PATH",
            archives,
            python,
        ),
        _spark_submit(
            "# standalone: the driver runs in this environment, executors in the archive's Python",
            "--master spark://HOST:7077",
            archives,
            python,
            "--conf spark.pyspark.driver.python=$(command -v python)",
        ),
        "# Databricks and others that install packages: without the archive, and without the extra "
        "`spark`\n"
        f"install the wheel of featstore {version} on the cluster as a library, upload\n"
        "$(featstore spark job extract), and make a job with a Python script task of that file",
    )


def _spark_submit(comment: str, *options: str) -> str:
    return f"{comment}\n" + " \\\n    ".join(["spark-submit", *options, _JOB])
