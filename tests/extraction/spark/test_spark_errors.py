"""What a metastore says in errors of Spark, in the words of real ones."""

import errno
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from featstore.base.errors import AccessError, ChangedInputError, InputError, StoreError
from featstore.extraction.spark.runners import run_checked
from featstore.extraction.spark.spark_errors import refused_by_spark, spark_error, telling_errno

_HIVE = "org.apache.hadoop.hive.ql.metadata.HiveException: "


@pytest.mark.parametrize(
    "said",
    [
        # Hive's StorageBasedAuthorizationProvider, HDFS, Ranger, Glue.
        f"{_HIVE}MetaException(message:java.security.AccessControlException: Permission denied: "
        'user=ads, path="file:/lake":root:root:dr-xr-xr-x)',
        f"{_HIVE}MetaException(message:Got exception: org.apache.hadoop.security."
        "AccessControlException Permission denied: user=ads, access=WRITE)",
        f"{_HIVE}MetaException(message:Permission denied: user [ads] does not have [CREATE] "
        "privilege on [features/ctr])",
        f"{_HIVE}MetaException(message:User is not authorized to perform: glue:CreateTable)",
        f"{_HIVE}MetaException(message:Insufficient privileges for features.ctr)",
        f"{_HIVE}MetaException(message:Forbidden (403))",
    ],
)
def test_a_permission_that_is_missing_is_told_and_final(said: str) -> None:
    with (
        pytest.raises(AccessError, match=r"metastore does not permit it: .*; give the perm") as met,
        refused_by_spark("register features.ctr"),
    ):
        raise AnalysisException(said)
    assert said in str(met.value)
    assert met.value.errno == errno.EINVAL
    assert not met.value.may_pass


@pytest.mark.parametrize(
    "said",
    [
        "MetaException(message:Could not connect to meta store)",
        "Unable to fetch table authorizations. Could not connect to meta store",
        "Unable to fetch table authorizations. Internal error",
        "MetaException(message:AccessControlException: RangerHiveAuthorizer: connect timed out)",
    ],
)
def test_a_metastore_that_fails_may_pass(said: str) -> None:
    with (
        pytest.raises(StoreError, match="fails or cannot be reached") as failed,
        refused_by_spark("x"),
    ):
        raise AnalysisException(f"{_HIVE}{said}")
    assert failed.value.errno == errno.EIO
    assert failed.value.may_pass


def test_what_changed_under_a_worker_may_pass_in_the_driver() -> None:
    error = spark_error("  featstore.base.errors.ChangedInputError: a.parquet changed\n", "python3")
    assert isinstance(error, ChangedInputError)
    assert error.may_pass


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_store_that_fails_under_a_task_has_its_errno_in_the_driver(
    spark: Any, number: int
) -> None:
    def read(_: object) -> None:
        failed = StoreError("s3://b/a.parquet: no such bucket")
        failed.errno = number
        with telling_errno():
            raise failed

    job = spark.sparkContext.parallelize([0], 1).map(read)
    with pytest.raises(StoreError, match=r"^s3://b/a\.parquet: no such bucket$") as met:
        run_checked(spark.sparkContext, job.collect)
    assert (met.value.errno, met.value.may_pass) == (number, number == errno.EIO)
    assert not hasattr(met.value, "__notes__")


def test_what_spark_refuses_is_told() -> None:
    with pytest.raises(InputError, match="Permission denied as a column"), refused_by_spark("x"):
        raise AnalysisException("no such thing: Permission denied as a column")
