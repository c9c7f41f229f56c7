"""What becomes of the errors of hdfs-native; the client itself is tested on a real HDFS
(tests/hadoop).
"""

import pytest

from featstore.base.errors import AccessError, StoreError
from featstore.files.hdfs_files import HdfsError
from featstore.files.hdfs_rpc import error_of, rotated, translated
from featstore.files.store_errors import store_error

ROOT = "hdfs://prod"
DENIED = "Permission denied: user=bob, access=WRITE"


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (
            'RPCError("org.apache.hadoop.security.AccessControlException", '
            f'"{DENIED}, inode=\\"/t\\":ann:hdfs:drwxr-xr-x\\n\\tat org.apache")',
            PermissionError,
            f'AccessControlException: {DENIED}, inode="/t":ann:hdfs:drwxr-xr-x (hdfs://prod)',
        ),
        (
            'RPCError("java.io.FileNotFoundException", "File does not exist: /x")',
            FileNotFoundError,
            "FileNotFoundException: File does not exist: /x (hdfs://prod)",
        ),
        (
            'RPCError("org.apache.hadoop.fs.FileAlreadyExistsException", "/x exists")',
            FileExistsError,
            "FileAlreadyExistsException: /x exists (hdfs://prod)",
        ),
        ("NoSASLMechanism", PermissionError, "demands Kerberos: NoSASLMechanism"),
        (
            'GSSAPIError(GssMajorCodes { raw: "0x00070000", routine_error: "GSS_S_NO_CRED" }, 25, '
            '"No credentials were supplied: No credentials available (default cache: FILE:/x)")',
            PermissionError,
            "Kerberos: No credentials available (default cache: FILE:/x) (hdfs://prod)",
        ),
        (
            'OperationFailed("Failed to load libgssapi_krb5")',
            PermissionError,
            "demands Kerberos: OperationFailed",
        ),
        (
            'DataTransferError("All DataNodes failed: [DatanodeInfoProto { id: DatanodeIdProto { '
            'ip_addr: \\"10.0.0.1\\", host_name: \\"n\\", xfer_port: 9866, info_port: 9864 } }]")',
            HdfsError,
            "no data node answers: 10.0.0.1:9866 (hdfs://prod)",
        ),
    ],
)
def test_an_error_of_rust_is_one_of_python(text: str, kind: type[OSError], said: str) -> None:
    error = error_of(text, ROOT)
    assert type(error) is kind
    assert said in str(error)


@pytest.mark.parametrize(
    ("text", "is_passing"),
    [
        ('RPCError("org.apache.hadoop.ipc.StandbyException", "standby")', True),
        ('RPCError("org.apache.hadoop.ipc.RetriableException", "starting")', True),
        ('FatalRPCError("org.apache.hadoop.ipc.RetriableException", "starting")', True),
        (
            'RPCError("java.io.IOException", "File /x could only be written to 0 of the 1 nodes")',
            True,
        ),
        ('RPCError("java.io.IOException", "odd")', False),
        ('DataTransferError("odd")', True),
        ('BlocksNotFound("/x")', True),
        ('OperationFailed("Failed to complete file in time")', True),
        ('OperationFailed("no KMS provider is configured")', False),
        ('InvalidArgument("No NameNode hosts found")', False),
    ],
)
def test_only_what_may_pass_is_tried_again(text: str, is_passing: bool) -> None:
    error = error_of(text, ROOT)
    assert isinstance(error, HdfsError)
    assert error.is_passing is is_passing


@pytest.mark.parametrize(
    ("error", "is_passing"),
    [
        (OSError("Connection refused (os error 111)"), True),
        (TimeoutError("no answer came in 30 s"), True),
        (NotImplementedError("odd"), False),
    ],
)
def test_other_errors_of_the_client_are_told_with_the_service(
    error: Exception, is_passing: bool
) -> None:
    with pytest.raises(HdfsError, match=r"\(hdfs://prod\)$") as raised, translated(ROOT):
        raise error
    assert raised.value.is_passing is is_passing


def test_the_words_of_a_name_node_stand_in_the_users_error() -> None:
    remote = f'RPCError("org.apache.hadoop.security.AccessControlException", "{DENIED}")'
    found = store_error("hdfs://prod/t", error_of(remote, ROOT))
    assert isinstance(found, AccessError)
    assert f"prod refuses access (PermissionError: AccessControlException: {DENIED}" in str(found)


def test_a_stopped_name_node_is_told_as_one_that_does_not_answer() -> None:
    with pytest.raises(HdfsError) as raised, translated(ROOT):
        raise TimeoutError("no answer came in 30 s")
    found = store_error("hdfs://prod/t", raised.value)
    assert isinstance(found, StoreError)
    assert "prod does not answer" in str(found)


def test_the_next_client_asks_another_name_node_first() -> None:
    config = {"dfs.ha.namenodes.prod": "a,b,c", "dfs.ha.namenodes.one": "x", "other": "a,b"}
    assert rotated(config) == config | {"dfs.ha.namenodes.prod": "b,c,a"}
