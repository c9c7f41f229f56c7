"""Whether a path lies on a file system that other machines share, where SQLite's locks and shared
memory do not reach.
"""

import re
from pathlib import Path

from featstore.errors import DispatchError

_MOUNTS = Path("/proc/self/mountinfo")
# Not 9p and virtiofs: they are the disk of many a container and virtual machine.
_NETWORK = {
    "afs", "beegfs", "ceph", "cifs", "coda", "fhgfs", "glusterfs", "gpfs", "lustre",
    "ncpfs", "nfs", "nfs4", "ocfs2", "panfs", "pvfs2", "smb2", "smb3", "smbfs", "wekafs",
}  # fmt: skip
_NETWORK_FUSE = re.compile(
    r"fuse\.(sshfs|s3fs|gcsfuse|goofys|rclone|juicefs|glusterfs|ceph|mount-s3|blobfuse2?|hdfs|alluxio.*)"
)


def network_mount(mountinfo: str, path: str) -> tuple[str, str] | None:
    """The mount point and the type of the network file system that holds the absolute, resolved
    `path`; None on a local one.

    `mountinfo` is the text of /proc/self/mountinfo (proc_pid_mountinfo(5)); of mounts at one point
    the last is in force.
    """
    found: tuple[str, str] | None = None
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split()
        if not separator or len(fields) < 5 or not after.split():
            continue
        point, kind = _unescaped(fields[4]), after.split()[0]
        if _lies_below(path, point) and (found is None or len(point) >= len(found[0])):
            found = point, kind
    return found if found is not None and _is_network(found[1]) else None


def require_local(path: Path) -> None:
    """DispatchError where a SQLite store at `path` would lie on a network file system. Says nothing
    where /proc does not.
    """
    if not _MOUNTS.exists():
        return
    found = network_mount(_MOUNTS.read_text(errors="surrogateescape"), str(path.resolve()))
    if found is not None:
        raise DispatchError(
            f"dispatch store sqlite://{path} lies on {found[1]} (mounted at {found[0]}): expected "
            f"a local file system, as "
            "SQLite workers of several machines would not see each other's locks and read rows "
            "twice; choose a local path for "
            "the processes of one host (store auto takes $TMPDIR), or tcp://host:port of "
            "`featstore dispatch serve` for many"
        )


def _is_network(kind: str) -> bool:
    return kind in _NETWORK or _NETWORK_FUSE.fullmatch(kind) is not None


def _lies_below(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def _unescaped(field: str) -> str:
    """Space, tab, newline and backslash are written as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
