"""Registers a table in a Hive metastore, through a Spark session that is connected to it."""

import hashlib
import json
import logging
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from featstore.base.errors import InputError, StoreError, TableNotFoundError
from featstore.base.redaction import redact
from featstore.extraction.spark.spark_errors import refused_by_spark
from featstore.ingest.hive_locations import (
    Column,
    Location,
    columns,
    hive_root,
    in_order,
    locations,
    make_locations,
    partition_columns,
    remove_vacuumed,
    view_query,
)
from featstore.ingest.join_query import quote
from featstore.table.delta import open_delta
from featstore.table.layout import parse_partition, partition_path
from featstore.table.snapshot import Snapshot, require_plain_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)
_NAME = re.compile(r"\w+\.\w+", re.ASCII)
_TABLE, _VERSION, _DIGEST = "featstore.table", "featstore.version", "featstore.digest"
_QUERY = "featstore.query"  # of views alone
# What engines note of the files in a location: keys of Hive, and beginnings of those of Spark.
_STATISTICS = (
    *("COLUMN_STATS_ACCURATE", "STATS_GENERATED", "numFiles", "numRows", "rawDataSize"),
    *("totalSize", "spark.sql.statistics."),
)
# Partitions per change: more mean fewer calls to the metastore, each of which takes longer.
_NUM_AT_ONCE = 100
_TYPE_CHARS = 80  # of a type in an error
# Hive's reader then finds columns, and members of structs, by their places in the files.
_BY_PLACE = "parquet.column.index.access"


@dataclass(frozen=True, kw_only=True)
class Registration:
    """The result of a registration.

    Attributes:
        name: The metastore's table, which now shows `version`.
        num_files: Files that were linked into new locations.
        num_removed: Links to vacuumed files that were removed.
        view: The view with nulls, if it was made or changed.
    """

    name: str
    table_url: str = field(repr=False)
    version: int
    num_added: int = 0
    num_switched: int = 0
    num_dropped: int = 0
    new_columns: tuple[str, ...] = ()
    num_files: int = 0
    num_removed: int = 0
    view: str = ""
    created: bool = False

    @property
    def changed(self) -> bool:
        """Whether anything but the version number changed in the metastore."""
        counts = (self.num_added, self.num_switched, self.num_dropped)
        return self.created or any((*counts, self.new_columns, self.view))

    def __str__(self) -> str:
        shown = f"version {self.version} of {redact(self.table_url)}"
        if not self.changed:
            return f"nothing to do: {self.name} already shows what {shown} holds"
        text = (
            f"{self.name} {'made; it' if self.created else 'now'} shows {shown}: "
            f"{self.num_added:,} partitions added, {self.num_switched:,} switched, "
            f"{self.num_dropped:,} dropped, {self.num_files:,} files linked"
        )
        if self.new_columns and not self.created:
            text += f", new columns {', '.join(self.new_columns)}"
        return text + (f"; {self.view} shows missing values as null" if self.view else "")


def register(spark: "SparkSession", table_url: str, name: str) -> Registration:
    """Creates or updates the external Hive table `name` so that it shows the newest version, and
    the view `{name}_with_nulls`, in which missing values are null. Where the view cannot be made, a
    warning says why.

    Each partition is switched in one step from its former files to its current, committed ones. A
    running query keeps reading the former files, which stay until the table is vacuumed. If the
    process dies half-way, some partitions are switched; the next registration switches the rest.
    Two concurrent registrations both end at the newest version.

    Args:
        spark: A session connected to the metastore.
        name: The Hive table, as `db.table`.

    Raises:
        TableNotFoundError: There is no Delta table at `table_url`.
        InputError: The metastore has no such database, or has another table or a view of that
            name, or one with other types or partition keys, Hive has no type for a column, a reader
            of the files alone would not find the rows, or Spark refuses a statement.
        AccessError: The metastore does not permit it.
        StoreError: The metastore cannot be reached, or fails.
    """
    with refused_by_spark(f"register {name}"):
        _check_name(spark, name)
        report = _register_once(spark, open_delta(table_url), name)
        # A version may have been committed, and even registered, in the meantime.
        while (newest := open_delta(table_url)).version != report.version:
            report = _added(report, _register_once(spark, newest, name, since=report.version))
        spark.sql(f"REFRESH TABLE {name}")
    return report


def _register_once(
    spark: "SparkSession", snapshot: Snapshot, name: str, since: int | None = None
) -> Registration:
    if not snapshot.data_files:
        raise InputError(f"{redact(snapshot.url)} holds no rows; {name} is left as it is")
    require_plain_files(snapshot, f"register {name}")
    view = f"{name}_with_nulls"
    declared, keys = columns(snapshot.schema), partition_columns(snapshot.schema)
    properties = _properties(spark, name)
    if properties is None:
        properties = _make(
            spark,
            name,
            f"CREATE EXTERNAL TABLE {name} ({_declared(declared)}) "
            f"{f'PARTITIONED BY ({_declared(keys)})' if keys else ''} STORED AS PARQUET LOCATION "
            f"{_text(hive_root(snapshot.url))} "
            f"TBLPROPERTIES ({_pairs({_TABLE: _identity(snapshot)})})",
        )
    added: Sequence[Column] = declared
    if properties is not None:
        _check_ours(snapshot, name, properties)
        if added := _new_columns(spark, snapshot, name, declared, keys):
            spark.sql(f"ALTER TABLE {name} ADD COLUMNS ({_declared(added)})")
    before = _registered(snapshot, properties or {}, since)
    wanted = locations(snapshot)
    changed = [location for location in wanted if location.url not in before]
    # All links exist before the metastore shows a location, so no query sees half of one.
    num_files = make_locations(changed)
    counts = (
        _show(spark, name, wanted, changed)
        if snapshot.schema.partition_keys
        else _show_all(spark, name, changed)
    )
    view_changed = _show_view(spark, snapshot, name, view)
    done = {_TABLE: _identity(snapshot), _VERSION: str(snapshot.version), _DIGEST: snapshot.digest}
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({_pairs(done)})")
    return Registration(
        name=name,
        table_url=snapshot.url,
        version=snapshot.version or 0,
        num_added=counts[0],
        num_switched=counts[1],
        num_dropped=counts[2],
        new_columns=tuple(column.name for column in added),
        num_files=num_files,
        num_removed=remove_vacuumed(snapshot),
        view=view if view_changed else "",
        created=properties is None,
    )


def _check_name(spark: "SparkSession", name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InputError(f"expected db.table, letters, digits and _ alone, found {name!r}")
    if spark.conf.get("spark.sql.catalogImplementation") != "hive":
        raise InputError(
            f"{name}: this Spark session has no Hive metastore; make it with spark_session(..., "
            f"hive=True)"
        )
    database = name.partition(".")[0]
    if not spark.catalog.databaseExists(database):
        raise InputError(
            f"{name}: the metastore has no database {database!r}; make it first: CREATE DATABASE "
            f"{database}"
        )


def _properties(spark: "SparkSession", name: str) -> dict[str, str] | None:
    """Returns the table's properties in the metastore, None if it does not exist."""
    if not spark.catalog.tableExists(name):
        return None
    return {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {name}").collect()}


def _make(spark: "SparkSession", name: str, statement: str) -> dict[str, str] | None:
    """Runs the statement that makes `name`; returns the properties of what another registration
    made in the meantime, None if there was nothing.
    """
    from pyspark.errors import AnalysisException

    try:
        spark.sql(statement)
    except AnalysisException:
        if (found := _properties(spark, name)) is None:
            raise
        return found
    return None


def _check_ours(snapshot: Snapshot, name: str, properties: Mapping[str, str]) -> None:
    if _QUERY in properties:
        shown = "is the view of a featstore table"
    elif properties.get(_TABLE) == _identity(snapshot):
        return
    else:
        shown = f"shows {'another' if _TABLE in properties else 'no'} featstore table"
    raise InputError(
        f"{name} already exists and {shown}, not {redact(snapshot.url)}; choose another name, or "
        f"drop it"
    )


def _new_columns(
    spark: "SparkSession",
    snapshot: Snapshot,
    name: str,
    declared: Iterable[Column],
    keys: Sequence[Column],
) -> list[Column]:
    """Returns the columns that the metastore's table lacks. InputError if those that it has, or its
    partition keys, are others: the table of these files was made anew.
    """
    from pyspark.sql.types import StructType

    session = spark._jsparkSession.sessionState()
    identifier = session.sqlParser().parseTableIdentifier(name)
    found = session.catalog().getTableMetadata(identifier)
    # Of its JSON, since Spark's own texts of types are cut (spark.sql.debug.maxToStringFields).
    schema = StructType.fromJson(json.loads(found.schema().json()))
    shown = {each.name.lower(): _comparable(each.dataType.simpleString()) for each in schema}
    said = (found.properties(), found.storage().properties())
    by_place = [_as_dict(spark, each).get(_BY_PLACE, "") for each in said]
    by_place.append(session.newHadoopConf().get(_BY_PLACE, ""))
    is_by_place = "true" in map(str.lower, by_place)
    alike = str if is_by_place else in_order
    differing = [
        f"{column.name} {_differing(type_, expected)}"
        for column in (*declared, *keys)
        if (type_ := shown.get(column.name.lower()))
        and alike(type_) != alike(expected := _comparable(column.type))
    ]
    names = [column.name.lower() for column in declared]
    known = [each for each in shown if each not in {key.name.lower() for key in keys}]
    if is_by_place and known != names[: len(known)]:
        places = _differing(",".join(known), ",".join(names))
        differing.append(
            f"{places} in this order, since the table or this session says {_BY_PLACE}=true"
        )
    known_keys = found.partitionColumnNames().mkString(",").lower()
    expected_keys = ",".join(key.name.lower() for key in keys)
    if sorted(known_keys.split(",")) != sorted(expected_keys.split(",")):
        differing.append(f"partition keys {known_keys or 'none'} for {expected_keys or 'none'}")
    if differing:
        raise InputError(
            f"{name}: expected the columns of version {snapshot.version} of "
            f"{redact(snapshot.url)}, found {'; '.join(differing)}, as of a table that was there "
            f"before: DROP TABLE {name} (its files stay), then register it again"
        )
    return [column for column in declared if column.name.lower() not in shown]


def _as_dict(spark: "SparkSession", scala_map: Any) -> dict[str, str]:
    return dict(spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(scala_map))


def _comparable(type_: str) -> str:
    """Returns a type as a metastore keeps it, in lower case; Hive has one type of timestamps."""
    return type_.lower().replace("timestamp_ntz", "timestamp")


def _differing(found: str, expected: str) -> str:
    """Returns both types for an error; of long ones the part where they begin to differ."""
    first = max(0, len(posixpath.commonprefix((found, expected))) - _TYPE_CHARS // 2)
    shown = (
        f"{'...' if first else ''}{type_[first : first + _TYPE_CHARS]}"
        f"{'...' if first + _TYPE_CHARS < len(type_) else ''}"
        for type_ in (found, expected)
    )
    return " for ".join(shown)


def _identity(snapshot: Snapshot) -> str:
    """Returns a digest of the table's location.

    The URL itself cannot be used: Spark redacts properties that look like secrets, `url` among
    them.
    """
    return hashlib.sha256(hive_root(snapshot.url).encode()).hexdigest()


def _show_view(spark: "SparkSession", snapshot: Snapshot, name: str, view: str) -> bool:
    """Makes or changes the view; returns whether it did. A warning says why it could not."""
    query = view_query(snapshot.schema, name)
    done = {_TABLE: _identity(snapshot), _QUERY: hashlib.sha256(query.encode()).hexdigest()}
    try:
        with refused_by_spark(f"show {view}"):
            found = _properties(spark, view)
            if found is None:
                made = f"CREATE VIEW {view} TBLPROPERTIES ({_pairs(done)}) AS {query}"
                if (found := _make(spark, view, made)) is None:
                    return True
            if _QUERY not in found or found.get(_TABLE) != done[_TABLE]:
                raise InputError(f"{view} already exists and is no view of {name}; rename it")
            if found[_QUERY] == done[_QUERY]:
                return False
            spark.sql(f"ALTER VIEW {view} AS {query}")
            spark.sql(f"ALTER VIEW {view} SET TBLPROPERTIES ({_pairs(done)})")
            return True
    except (InputError, StoreError) as error:
        _LOG.warning(
            "%s is shown, but not its view with nulls: %s; the next registration tries again",
            name,
            error,
        )
        return False


def _registered(snapshot: Snapshot, properties: Mapping[str, str], since: int | None) -> set[str]:
    """Returns the locations that the metastore shows since its last update.

    Empty if that version is no longer known; all partitions are then registered again.
    """
    version = since if since is not None else properties.get(_VERSION)
    try:
        before = None if version is None else open_delta(snapshot.url, int(version))
    except TableNotFoundError:  # the log entry of that version was cleaned up
        return set()
    if before is None or (since is None and before.digest != properties.get(_DIGEST)):
        return set()
    return {location.url for location in locations(before)}


def _show(
    spark: "SparkSession", name: str, wanted: Iterable[Location], changed: Iterable[Location]
) -> tuple[int, int, int]:
    """Adds, switches and drops partitions, in this order; returns the number of each."""
    shown = {
        _path(p): p
        for p in (_shown(row[0]) for row in spark.sql(f"SHOW PARTITIONS {name}").collect())
    }
    present = {_path(location.partition): location for location in wanted}
    added = [location for path, location in present.items() if path not in shown]
    for first in range(0, len(added), _NUM_AT_ONCE):
        clauses = (
            f"{_partition(location.partition)} LOCATION {_text(location.url)}"
            for location in added[first : first + _NUM_AT_ONCE]
        )
        spark.sql(f"ALTER TABLE {name} ADD IF NOT EXISTS {' '.join(clauses)}")
    switched = [
        (shown[path], location.url)
        for location in changed
        if (path := _path(location.partition)) in shown
    ]
    for first in range(0, len(switched), _NUM_AT_ONCE):
        _switch(spark, name, switched[first : first + _NUM_AT_ONCE])
    dropped = [partition for path, partition in shown.items() if path not in present]
    for partition in dropped:
        spark.sql(f"ALTER TABLE {name} DROP IF EXISTS {_partition(partition)}")
    return len(added), len(switched), len(dropped)


def _switch(
    spark: "SparkSession", name: str, switched: Iterable[tuple[Mapping[str, str], str]]
) -> None:
    """Sets the locations of partitions, and removes what engines noted of the files that these
    held: Hive answers `count(*)` from it. Spark has no statement for this, and SET LOCATION keeps
    such notes. The metastore then counts the files in the new location.

    Args:
        switched: Keys as the metastore has them, and the new location.
    """
    jvm, session = spark._jvm, spark._jsparkSession.sessionState()
    to_map, nothing = jvm.PythonUtils.toScalaMap, jvm.scala.Option.empty()
    table, catalog = session.sqlParser().parseTableIdentifier(name), session.catalog()
    changed = []
    for partition, url in switched:
        found = catalog.getPartition(table, to_map(dict(partition)))
        noted = _as_dict(spark, found.parameters()).items()
        kept = {key: text for key, text in noted if not key.startswith(_STATISTICS)}
        storage, location = found.storage(), jvm.org.apache.hadoop.fs.Path(url).toUri()
        others = map(storage.productElement, range(1, storage.productArity()))
        storage = storage.copy(jvm.scala.Option.apply(location), *others)
        times = (found.createTime(), found.lastAccessTime())
        changed.append(found.copy(found.spec(), storage, to_map(kept), *times, nothing))
    catalog.alterPartitions(table, jvm.PythonUtils.toSeq(changed))
    if catalog.getTableMetadata(table).stats().isDefined():
        catalog.alterTableStats(table, nothing)


def _shown(path: str) -> dict[str, str]:
    """Parses a partition from the metastore. Our partitions have no null keys."""
    return {key: value or "" for key, value in parse_partition(f"{path}/").items()}


def _path(partition: Mapping[str, str]) -> str:
    """Returns a comparable name of a partition, in any order of its keys; a metastore keeps them in
    lower case.
    """
    return partition_path(dict(sorted((key.lower(), value) for key, value in partition.items())))


def _show_all(
    spark: "SparkSession", name: str, changed: Sequence[Location]
) -> tuple[int, int, int]:
    """Sets the single location of a table without partition keys."""
    for location in changed:
        # Spark cannot remove them, and keeps all that it is not told: -1 is unknown.
        noted = {
            "COLUMN_STATS_ACCURATE": "{}",
            "numRows": "-1",
            "rawDataSize": "-1",
            "numFiles": str(len(location.files)),
            "totalSize": str(sum(file.size_bytes for file in location.files)),
        }
        spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({_pairs(noted)})")
        spark.sql(f"ALTER TABLE {name} SET LOCATION {_text(location.url)}")
    return 0, len(changed), 0


def _added(one: Registration, other: Registration) -> Registration:
    summed = ("num_added", "num_switched", "num_dropped", "new_columns", "num_files", "num_removed")
    return replace(
        other,
        **{name: getattr(one, name) + getattr(other, name) for name in summed},
        view=other.view or one.view,
        created=one.created,
    )


def _declared(wanted: Iterable[Column]) -> str:
    return ", ".join(
        f"{quote(column.name)} {column.type}"
        + (f" COMMENT {_text(column.comment)}" if column.comment else "")
        for column in wanted
    )


def _partition(partition: Mapping[str, str]) -> str:
    return (
        f"PARTITION "
        f"({', '.join(f'{quote(key)}={_text(value)}' for key, value in partition.items())})"
    )


def _pairs(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{_text(key)}={_text(value)}" for key, value in properties.items())


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
