from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base import host
from featstore.base.errors import DispatchError
from featstore.base.host import network_mount
from featstore.dispatch.stores.sqlite import SqliteStore

MOUNTINFO = """\
22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /home rw,relatime shared:2 master:7 - nfs4 server:/home rw,vers=4.2
24 22 0:22 / /home/local rw - xfs /dev/sdb1 rw
25 22 0:23 / /mnt/my\\040data rw - fuse.sshfs me@host: rw
26 22 0:24 / /scratch rw - lustre mds@tcp:/scratch rw
27 22 0:25 / /over rw - ext4 /dev/sdc1 rw
28 27 0:26 / /over rw - cifs //server/share rw
29 22 0:27 / /under rw - nfs server:/under rw
30 29 0:28 / /under rw - tmpfs tmpfs rw
31 22 0:29 / /fuse rw - fuse.fuse-overlayfs fuse-overlayfs rw
a torn line
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/var/x.db", None),
        ("/home/me/x.db", ("/home", "nfs4")),
        ("/homes/me/x.db", None),
        ("/home/local/x.db", None),
        ("/mnt/my data/x.db", ("/mnt/my data", "fuse.sshfs")),
        ("/scratch/run/x.db", ("/scratch", "lustre")),
        ("/over/x.db", ("/over", "cifs")),
        ("/under/x.db", None),
        ("/fuse/x.db", None),
    ],
)
def test_the_innermost_and_latest_mount_decides(path: str, expected: Any) -> None:
    assert network_mount(MOUNTINFO, path) == expected


@given(text=st.text(), path=st.text().map(lambda name: f"/{name}"))
def test_any_text_is_read_without_an_error(text: str, path: Any) -> None:
    found = network_mount(text, path)
    assert found is None or path.startswith(found[0].rstrip("/"))


def test_a_sqlite_store_on_a_network_file_system_is_refused_before_a_file_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's mount table is replaced by one that shows this directory as a network share,
    because the test cannot mount one.
    """
    table = tmp_path / "mountinfo"
    table.write_text(
        f"1 0 0:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:2 / {tmp_path.resolve()} rw - nfs4 server:/ "
        f"rw\n"
    )
    monkeypatch.setattr(host, "_MOUNTS", table)
    with pytest.raises(
        DispatchError, match=r"lies on nfs4 \(mounted at .*local path.* or tcp://host:port"
    ):
        SqliteStore(tmp_path / "run" / "x.db")
    assert not (tmp_path / "run").exists()


def test_without_proc_mountinfo_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_MOUNTS", tmp_path / "nothing")
    SqliteStore(tmp_path / "x.db").close()
