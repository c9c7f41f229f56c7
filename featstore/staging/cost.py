"""What bringing a file costs by each mode, on a remote whose latency and bandwidth are measured as
it is used. Pure.
"""

import math
from dataclasses import dataclass, replace

WHOLE, RANGES, DIRECT = "whole", "ranges", "direct"
# Enough to hide the round trips of short requests, few enough for a store that many workers read
# from.
MOST_REQUESTS = 4
_WEIGHT = 0.3
# A new connection or a busy moment makes one request slow, nothing makes one quick: down soon,
# after the first request, which made the connection, at once; up by and by.
_DOWN_WEIGHT, _UP_WEIGHT = 0.5, 0.1
_MEMORY_BYTES = 256 << 20
# What comes quicker than a round trip was waiting somewhere on the way, and says nothing of
# bandwidth, unless it is much.
_LEAST_BYTES, _LEAST_LATENCIES, _MUCH_BYTES = 128 << 10, 0.5, 4 << 20
# An answer that is there so soon, or after such a part of a round trip, was there before, or the
# line was busy.
_AT_ONCE_S, _AT_ONCE_LATENCIES = 0.001, 0.5
_SHORTEST_HOLE_BYTES, _LONGEST_HOLE_BYTES = 16 << 10, 64 << 20
# The shortest, or on a near store a few slow answers would have the next ones asked for late, which
# hides its bandwidth.
_WINDOW_LATENCIES, _SHORTEST_WINDOW_BYTES, _LONGEST_WINDOW_BYTES = 1.5, 1 << 20, 64 << 20
# As long as the bandwidth is a guess no request is longer than the second.
_REQUEST_BYTES, _FIRST_REQUEST_BYTES = 256 << 20, 8 << 20
# A reader in place asks for the size, then twice for the footer, before it asks for column chunks.
_DIRECT_OPENING = 3
# Deciding without a look at the footer is safe where that look could not have saved more than a
# tenth.
_BLIND_LATENCIES = 1.0


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A store as seen from here: seconds to the first byte of a request, bytes/s after it, and
    seconds that publishing a staged file takes (sync, check, rename). The defaults are priors that
    the first observations replace.

    `weight_bytes`: how many bytes the bandwidth was seen with, 0 for a prior. `num_seen`: how many
    requests were seen. `num_at_once`: how many requests of one download may be under way.
    `stall_s`: how long the line is idle before each that was asked for ahead, as it is where a
    store works on one request at a time. `has_last`: the last bytes count to bandwidth.

    No request is ahead where all holes are bridged: then the stall fades, or one bad moment would
    bridge them for ever.
    """

    latency_s: float = 0.02
    bytes_per_s: float = 100e6
    settle_s: float = 0.01
    weight_bytes: float = 0.0
    num_seen: int = 0
    num_at_once: int = MOST_REQUESTS
    stall_s: float = 0.0
    has_last: bool = False

    def seconds(self, num_requests: int, num_bytes: int) -> float:
        """How long requests for so many bytes take a download: no less than the line needs for the
        bytes, and of each of the `num_at_once` under way no more comes than one a round trip
        (Little's law)."""
        stream_s, num_further = num_bytes / self.bytes_per_s, max(0, num_requests - 1)
        in_turns_s = (num_further * self.latency_s + stream_s) / self.num_at_once
        return min(1, num_requests) * self.latency_s + max(
            stream_s + num_further * self.likely_stall_s, in_turns_s
        )

    def seconds_in_turn(self, num_requests: int, num_bytes: int) -> float:
        """How long they take a reader that waits for each before it asks for the next."""
        return num_requests * self.latency_s + num_bytes / self.bytes_per_s

    @property
    def likely_stall_s(self) -> float:
        """The stall, which is no longer than a round trip where it is not a bad moment."""
        return min(self.stall_s, self.latency_s)

    @property
    def hole_bytes(self) -> int:
        """The largest hole that is as cheap to fetch as a further request."""
        bytes_a_request = self.bytes_per_s * max(
            self.latency_s / self.num_at_once, self.likely_stall_s
        )
        return int(min(max(bytes_a_request, _SHORTEST_HOLE_BYTES), _LONGEST_HOLE_BYTES))

    @property
    def window_bytes(self) -> int:
        """What comes in a round trip, and half as much for those that take longer: the line stays
        busy as long as so much was asked for and is not here yet."""
        longest_bytes = _LONGEST_WINDOW_BYTES if self.has_bandwidth else _FIRST_REQUEST_BYTES
        round_trip_bytes = _WINDOW_LATENCIES * self.latency_s * self.bytes_per_s
        return int(min(max(round_trip_bytes, _SHORTEST_WINDOW_BYTES), longest_bytes))

    @property
    def is_measured(self) -> bool:
        """Whether a request was seen at all."""
        return self.num_seen > 0

    @property
    def has_bandwidth(self) -> bool:
        """Whether the bandwidth was seen, and is not a prior."""
        return self.weight_bytes > 0

    @property
    def request_bytes(self) -> int:
        """The longest request."""
        return _REQUEST_BYTES if self.has_bandwidth else _FIRST_REQUEST_BYTES

    def observed(
        self,
        *,
        waited_s: float,
        num_bytes: int,
        later_bytes: int,
        stream_s: float,
        was_ahead: bool = False,
    ) -> "Remote":
        """After one request of `num_bytes`: what its first block was waited for, and the
        `later_bytes` after it in `stream_s`.

        Latency is an exponential mean that falls faster than it rises, and so is the stall, of
        requests asked for ahead. Bandwidth is total bytes over total seconds, in which old ones
        fade. Short streams say nothing of it: their bytes came along with the first one. Those that
        waited behind bytes that counted, which took the longer for it, count whole.
        """
        seen = self._waited(max(waited_s, 1e-6), was_ahead)
        at_once_s = max(_AT_ONCE_S, _AT_ONCE_LATENCIES * self.latency_s)
        if was_ahead and self.has_last and waited_s <= at_once_s:
            return seen._counted(num_bytes, stream_s)
        is_long = later_bytes >= _MUCH_BYTES or stream_s >= _LEAST_LATENCIES * seen.latency_s
        if later_bytes < _LEAST_BYTES or stream_s <= 0 or not is_long:
            return replace(seen, has_last=False)
        return seen._counted(later_bytes, stream_s)

    def _waited(self, seconds: float, was_ahead: bool) -> "Remote":
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

    def _counted(self, num_bytes: int, seconds: float) -> "Remote":
        """After so many bytes that say something of bandwidth."""
        kept = self.weight_bytes * math.exp(-num_bytes / _MEMORY_BYTES)
        weight_bytes = kept + num_bytes
        bytes_per_s = weight_bytes / (kept / self.bytes_per_s + seconds)
        return replace(self, bytes_per_s=bytes_per_s, weight_bytes=weight_bytes, has_last=True)

    def settled(self, seconds: float) -> "Remote":
        """After a publication that took so long."""
        return replace(self, settle_s=self.settle_s + _WEIGHT * (seconds - self.settle_s))


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What is still to be fetched of one file: `num_requests` for `range_bytes` by ranges;
    `num_direct_requests` for `direct_bytes` are what a reader in place asks for; `whole_bytes` are
    all bytes that are not here yet, in so many pieces."""

    whole_bytes: int
    range_bytes: int
    num_requests: int
    direct_bytes: int
    num_direct_requests: int
    num_pieces: int = 1

    def scaled(self, size_bytes: int) -> "Demand":
        """What the same selection would be of a file of that size that was not looked at."""
        ratio = size_bytes / max(self.whole_bytes, 1)
        return Demand(
            whole_bytes=size_bytes,
            range_bytes=int(self.range_bytes * ratio),
            num_requests=max(1, round(self.num_requests * ratio)),
            direct_bytes=int(self.direct_bytes * ratio),
            num_direct_requests=max(1, round(self.num_direct_requests * ratio)),
        )


def costs(demand: Demand, remote: Remote) -> dict[str, float]:
    """Seconds by mode, for a file whose footer is here."""
    return {
        WHOLE: remote.seconds(demand.num_pieces, demand.whole_bytes) + remote.settle_s,
        RANGES: remote.seconds(demand.num_requests, demand.range_bytes) + remote.settle_s,
        DIRECT: remote.seconds_in_turn(
            _DIRECT_OPENING + demand.num_direct_requests, demand.direct_bytes
        ),
    }


def choose(demand: Demand, remote: Remote, *, has_room: bool = True) -> str:
    """The cheapest mode; of equal ones ranges, then whole: what is staged serves the next reader
    too. Not whole where the cache has no room for that."""
    seconds = costs(demand, remote)
    return min((RANGES, *([WHOLE] if has_room else []), DIRECT), key=lambda mode: seconds[mode])


def needs_no_footer(
    size_bytes: int, last: Demand | None, remote: Remote, plan_s: float = 0.0
) -> bool:
    """Whether to take a file whole without a look at its footer, which costs a request of its own.

    So for a file that takes no longer than such a request; and, once the footer of another file
    told what the selection is, where whole is the cheapest for that share. `plan_s`: what it takes
    to make a plan of a footer.
    """
    if size_bytes <= _BLIND_LATENCIES * remote.latency_s * remote.bytes_per_s:
        return True
    if last is None or not remote.has_bandwidth:
        return False
    seconds = costs(last.scaled(size_bytes), remote)
    return seconds[WHOLE] <= min(remote.latency_s + plan_s + seconds[RANGES], seconds[DIRECT])
