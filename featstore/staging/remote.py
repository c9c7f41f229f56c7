"""What is known of a remote store: its latency and bandwidth, measured while it is used, and how
long requests should be on it. Pure; docs/design/staging.md has the reasons.
"""

import math
from dataclasses import dataclass, replace

# In-flight requests of one download. With four, a training that read 40 of 400 slots waited for
# each file of a remote of 50 ms and 50 MB/s, whose line had carried them in time; with eight only
# for the first (benchmarks/training.md). More would multiply the connections of a cluster at the
# store (docs/design/staging.md).
MAX_REQUESTS = 8
# Shares of a new latency in the mean. Connecting or a busy moment makes single requests slow, and
# nothing makes one quick: so the mean falls fast and rises slowly. The second request replaces the
# first, which also connected: taking that for latency made `auto` 1.16 of the best mode
# (benchmarks/staging_modes.md).
_DOWN_WEIGHT, _UP_WEIGHT = 0.5, 0.1
# After this many more bytes a measured bandwidth weighs 1/e: some seconds of a fast line. Smaller
# follows a change of the line sooner, and the noise of single streams more. Chosen, not measured.
_FADE_BYTES = 256 << 20
# A stream that is shorter, or that takes less than half a round trip, was waiting in a buffer on
# the way, and would promise any bandwidth (docs/design/staging.md). From 4 MiB on it counts all the
# same: no connection buffers more than that here (docs/design/staging.md).
_MIN_STREAM_BYTES, _MIN_STREAM_LATENCIES, _SURE_STREAM_BYTES = 128 << 10, 0.5, 4 << 20
# If the first block of a request that was sent ahead comes this soon, it was there already, or the
# line was busy with the bytes before it: then its bytes count with those. Half a round trip, as
# above, or 1 ms on near stores, which keeps the noise of threads from counting as a wait. Chosen,
# not measured.
_AT_ONCE_S, _AT_ONCE_LATENCIES = 0.001, 0.5
# Bounds for estimates that are off. Less than 16 KiB would make a request of every column chunk on
# loopback; more than 64 MiB would fetch that much for nothing after a bad moment of the line.
_MIN_HOLE_BYTES, _MAX_HOLE_BYTES = 16 << 10, 64 << 20
# What fills the line is latency times bandwidth; half as much again covers requests that take
# longer (docs/design/staging.md). At least 1 MiB: on a near store a few slow answers would have the
# next request sent late, which hides its bandwidth. At most 64 MiB, for estimates that are
# off.
_WINDOW_LATENCIES, _MIN_WINDOW_BYTES, _MAX_WINDOW_BYTES = 1.5, 1 << 20, 64 << 20
# Requests are chosen again when an estimate has changed by more than this share. Near the best
# choice of holes the seconds hardly change with it.
_NEAR_SHARE = 0.1
# A plan may be remade after each request (docs/design/staging.md), so it is never older than 256
# MiB. While the bandwidth is a guess requests are short: the first file of a remote that was slower
# than the prior used to be fetched whole, as its holes seemed cheap.
_MAX_REQUEST_BYTES, _FIRST_REQUEST_BYTES = 256 << 20, 8 << 20


@dataclass(frozen=True, kw_only=True)
class Remote:
    """The latency and bandwidth of a store, as seen from this host.

    The defaults are priors, which the first observations replace.

    Attributes:
        latency_s: Seconds to the first byte of a request.
        bytes_per_s: Bytes per second after it.
        weight_bytes: The bytes from which the bandwidth was measured; 0 for a prior.
        num_seen: Requests that were measured.
        num_at_once: How many requests of one download may be in flight.
        stall_s: How long the line is idle before each request that was sent ahead, as it is at a
            store that works on one request at a time. It fades while no request is ahead, which is
            the case once all holes are bridged: otherwise one bad moment would bridge them for
            ever.
        last_counted: Whether the bytes of the last request counted towards the bandwidth.
    """

    # Priors (docs/design/staging.md): they decide about the first file of a remote only.
    latency_s: float = 0.02
    bytes_per_s: float = 100e6
    weight_bytes: float = 0.0
    num_seen: int = 0
    num_at_once: int = MAX_REQUESTS
    stall_s: float = 0.0
    last_counted: bool = False

    @property
    def hole_bytes(self) -> int:
        """The largest hole that is as cheap to fetch as to skip by a further request."""
        # Without bad moments a stall is at most a round trip.
        likely_stall_s = min(self.stall_s, self.latency_s)
        bytes_per_request = self.bytes_per_s * max(
            self.latency_s / self.num_at_once, likely_stall_s
        )
        return int(min(max(bytes_per_request, _MIN_HOLE_BYTES), _MAX_HOLE_BYTES))

    @property
    def window_bytes(self) -> int:
        """The bytes that must be outstanding to keep the line busy: one and a half round trips."""
        longest_bytes = _MAX_WINDOW_BYTES if self.has_bandwidth else _FIRST_REQUEST_BYTES
        round_trip_bytes = _WINDOW_LATENCIES * self.latency_s * self.bytes_per_s
        return int(min(max(round_trip_bytes, _MIN_WINDOW_BYTES), longest_bytes))

    def is_near(self, other: "Remote") -> bool:
        """Whether the same requests would be chosen, or ones that take hardly less time."""
        pairs = (
            (self.latency_s, other.latency_s),
            (self.bytes_per_s, other.bytes_per_s),
            (self.hole_bytes, other.hole_bytes),
        )
        return self.has_bandwidth == other.has_bandwidth and all(
            abs(one - another) <= _NEAR_SHARE * another for one, another in pairs
        )

    @property
    def has_bandwidth(self) -> bool:
        """Whether the bandwidth was measured, and is not the prior."""
        return self.weight_bytes > 0

    @property
    def round_trip_bytes(self) -> int:
        """The bytes that come in the time of one round trip."""
        return int(self.latency_s * self.bytes_per_s)

    @property
    def request_bytes(self) -> int:
        """The longest request."""
        return _MAX_REQUEST_BYTES if self.has_bandwidth else _FIRST_REQUEST_BYTES

    def observed(
        self,
        *,
        waited_s: float,
        num_bytes: int,
        later_bytes: int,
        stream_s: float,
        was_ahead: bool = False,
    ) -> "Remote":
        """The estimates after one more request.

        Latency is an exponential mean that falls faster than it rises. So is the stall, which is
        the wait for requests that were sent ahead. Bandwidth is total bytes over total seconds, in
        which old measurements fade. Short streams say nothing about it, because their bytes came
        along with the first block. Requests that waited behind counted bytes count as a whole:
        those bytes took longer because the two shared the line.

        Args:
            waited_s: Seconds for which the first block was waited for.
            num_bytes: Bytes of the request.
            later_bytes: Bytes after the first block.
            stream_s: Seconds that those took.
            was_ahead: Whether the request was sent before the one in front of it had ended.
        """
        # A latency of 0 would make every window and hole empty.
        seen = self._with_wait(max(waited_s, 1e-6), was_ahead)
        at_once_s = max(_AT_ONCE_S, _AT_ONCE_LATENCIES * self.latency_s)
        if was_ahead and self.last_counted and waited_s <= at_once_s:
            return seen._with_stream(num_bytes, stream_s)
        is_long = (
            later_bytes >= _SURE_STREAM_BYTES or stream_s >= _MIN_STREAM_LATENCIES * seen.latency_s
        )
        if later_bytes < _MIN_STREAM_BYTES or stream_s <= 0 or not is_long:
            return replace(seen, last_counted=False)
        return seen._with_stream(later_bytes, stream_s)

    def _with_wait(self, seconds: float, was_ahead: bool) -> "Remote":
        """After a wait for a first block: it tells the stall if ahead, and else the latency."""
        num_seen = self.num_seen + 1
        if was_ahead:
            share = _DOWN_WEIGHT if seconds < self.stall_s else _UP_WEIGHT
            return replace(
                self, stall_s=self.stall_s + share * (seconds - self.stall_s), num_seen=num_seen
            )
        down_weight = _DOWN_WEIGHT if self.num_seen > 1 else 1.0
        share = down_weight if seconds < self.latency_s or not self.num_seen else _UP_WEIGHT
        latency_s = self.latency_s + share * (seconds - self.latency_s)
        return replace(
            self, latency_s=latency_s, stall_s=self.stall_s * (1 - _UP_WEIGHT), num_seen=num_seen
        )

    def _with_stream(self, num_bytes: int, seconds: float) -> "Remote":
        """After a stream from which bandwidth can be told."""
        kept = self.weight_bytes * math.exp(-num_bytes / _FADE_BYTES)
        weight_bytes = kept + num_bytes
        bytes_per_s = weight_bytes / (kept / self.bytes_per_s + seconds)
        return replace(self, bytes_per_s=bytes_per_s, weight_bytes=weight_bytes, last_counted=True)
