"""The cores, the memory, the open files and the file systems that this process may use, and the
ranks of its job beside it.
"""

import os
import re
import resource
from collections.abc import Mapping
from pathlib import Path

# Where Linux says how much memory a container may use: control groups of version 2 and 1.
_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
# Which launchers tell how many ranks they started on a host: torchrun and accelerate; Open MPI
# (docs.open-mpi.org, "Environment variables set for MPI applications"), Intel MPI and MPICH.
_TORCHRUN = "LOCAL_WORLD_SIZE"
_MPI = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
# Slurm's srun: the tasks of each node of the step, as `4(x2),3`, and the number of this node.
_STEP_TASKS, _NODE = "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID"


def num_cores() -> int:
    """The number of cores that this process may use.

    Where the system does not report that (macOS), the number of cores of the machine.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """The memory of this machine, or of the container if it may use less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _LIMITS:
        if path.exists() and (limit := path.read_text().strip()).isdigit():
            limits.append(int(limit))
    return min(limits)


def ranks_on_host(variables: Mapping[str, str]) -> int:
    """The number of ranks that a launcher started on this host, by the environment that it gives
    them. 1 without a launcher that says so.

    torchrun within a Slurm task counts the ranks that it started, not the tasks.
    """
    told = [variables[name] for name in (_TORCHRUN, *_MPI) if variables.get(name)]
    told += _slurm_tasks(variables.get(_STEP_TASKS, ""), variables.get(_NODE, ""))
    return max(1, int(told[0])) if told else 1


def may_be_bound(variables: Mapping[str, str]) -> bool:
    """Whether a launcher may have bound this rank to cores of its own, as MPI and Slurm do as a
    rule. torchrun lets each rank use all cores of the container.
    """
    return ranks_on_host(variables) > 1 and not variables.get(_TORCHRUN)


def cores_of_rank(ranks: int, cores: int, all_cores: int, *, is_bound: bool) -> int:
    """How many of the cores that a process may use are its own, as one of the ranks of its host.

    Args:
        ranks: The ranks on the host.
        cores: The cores that the process may use.
        all_cores: Those of the machine.
        is_bound: Whether `cores` may be fewer because the launcher has divided them already.
    """
    return min(cores, max(1, (all_cores if is_bound else cores) // ranks))


def allow_descriptors(num_wanted: int) -> None:
    """Lets this process, and those that it starts, open this many more files.

    Raises the soft limit (`ulimit -n`) if it is too low, as far as the hard limit allows. It is
    kept as low as it can be, since programs that use `select()` fail beyond 1,024 descriptors.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = descriptor_limit(soft, hard, num_wanted + len(list(Path("/dev/fd").iterdir())))
    if limit != soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def descriptor_limit(soft: int, hard: int, num_needed: int) -> int:
    """The soft limit to set: `num_needed`, but no less than now, and no more than the hard one."""
    if soft == resource.RLIM_INFINITY or soft >= num_needed:
        return soft
    return num_needed if hard == resource.RLIM_INFINITY else min(num_needed, hard)


def _slurm_tasks(per_node: str, node: str) -> list[str]:
    """The tasks of a Slurm step on a node; empty if the step or the node is unknown."""
    runs = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", run) for run in per_node.split(",")]
    tasks = [run[1] for run in runs if run for _ in range(int(run[2] or 1))]
    place = int(node) if node.isdecimal() else len(tasks)
    return tasks[place : place + 1] if all(runs) else []


# Network file systems: SQLite's locks and shared memory there do not reach the other machines.
_MOUNTS = Path("/proc/self/mountinfo")
# Without 9p and virtiofs, which are the disk of many containers and virtual machines.
_NETWORK = {
    "afs", "beegfs", "ceph", "cifs", "coda", "fhgfs", "glusterfs", "gpfs", "lustre",
    "ncpfs", "nfs", "nfs4", "ocfs2", "panfs", "pvfs2", "smb2", "smb3", "smbfs", "wekafs",
}  # fmt: skip
_NETWORK_FUSE = re.compile(
    r"fuse\.(sshfs|s3fs|gcsfuse|goofys|rclone|juicefs|glusterfs|ceph|mount-s3|blobfuse2?|hdfs|alluxio.*)"
)


def network_mount(mountinfo: str, path: str) -> tuple[str, str] | None:
    """The network file system that holds a path.

    Args:
        mountinfo: The text of /proc/self/mountinfo, see proc_pid_mountinfo(5).
        path: An absolute path without symbolic links.

    Returns:
        The mount point and the type of the file system; None if it is a local one.
    """
    holding = [("", "")]
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) >= 5 and kinds:
            # Space, tab, newline and backslash are written as three octal digits.
            point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
            if f"{path}/".startswith(point.rstrip("/") + "/"):
                holding.append((point, kinds[0]))
    # The deepest mount point holds the path; of several mounts at one point, the last one.
    point, kind = max(reversed(holding), key=lambda mount: len(mount[0]))
    return (point, kind) if kind in _NETWORK or _NETWORK_FUSE.fullmatch(kind) else None


def network_mount_of(path: Path) -> tuple[str, str] | None:
    """The network file system that a path is on: mount point and type; None if it is local, or
    where /proc is not mounted.
    """
    try:
        mounts = _MOUNTS.read_text(errors="surrogateescape")
    except FileNotFoundError:
        return None
    return network_mount(mounts, str(path.resolve()))
