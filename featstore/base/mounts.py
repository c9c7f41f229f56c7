"""Whether a path is on a network file system, where SQLite's locks and shared memory do not reach
the other machines.
"""

import re
from pathlib import Path

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
    innermost: tuple[str, str] | None = None
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split()
        if not separator or len(fields) < 5 or not after.split():
            continue
        point, kind = _unescaped(fields[4]), after.split()[0]
        # The deepest mount point holds the path; of several mounts at one point, the last one.
        if _lies_below(path, point) and (innermost is None or len(point) >= len(innermost[0])):
            innermost = point, kind
    return innermost if innermost is not None and _is_network(innermost[1]) else None


def network_mount_of(path: Path) -> tuple[str, str] | None:
    """The network file system that a path is on: mount point and type; None if it is local, or
    where /proc is not mounted.
    """
    try:
        mounts = _MOUNTS.read_text(errors="surrogateescape")
    except FileNotFoundError:
        return None
    return network_mount(mounts, str(path.resolve()))


def _is_network(kind: str) -> bool:
    return kind in _NETWORK or _NETWORK_FUSE.fullmatch(kind) is not None


def _lies_below(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def _unescaped(field: str) -> str:
    """Decodes space, tab, newline and backslash, which mountinfo has as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
