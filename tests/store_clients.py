"""Clients of stores that know the variables of a test."""

import contextlib
import os
from collections.abc import Iterator, Mapping

import pytest

from featstore.files import hdfs_rpc, storage
from featstore.files.webhdfs import WebHdfs


def forget_clients() -> None:
    """The next access to a store makes a new client."""
    storage._store.cache_clear()
    WebHdfs.clear_instance_cache()
    hdfs_rpc.HdfsRpc.clear_instance_cache()
    hdfs_rpc._shared.cache_clear()


@contextlib.contextmanager
def clients_of(variables: Mapping[str, str]) -> Iterator[pytest.MonkeyPatch]:
    """New clients, which know these variables and no others of S3, Azure or HDFS."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("AWS_", "AZURE_", "HADOOP_", "FEATSTORE_HDFS_")):
                patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        forget_clients()
        yield patch
    forget_clients()
