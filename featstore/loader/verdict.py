"""What an epoch waited for, in one line, and what would help. Pure."""

from dataclasses import dataclass

# Less waiting than this, the first batch's with it, and no quicker data would make the epoch much shorter.
_IDLE_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class EpochTimes:
    """Seconds of one epoch in one process: `total_s` from its first claim to its end, `data_wait_s` what the consumer waited
    for batches of it; `decode_s` what decoding took, `staging_wait_s` what it waited for files, both in other threads."""

    total_s: float
    data_wait_s: float
    decode_s: float
    staging_wait_s: float

    def since(self, before: "EpochTimes") -> "EpochTimes":
        """What was added after `before`."""
        return EpochTimes(**{name: value - getattr(before, name) for name, value in vars(self).items()})


def verdict(times: EpochTimes) -> str:
    """Which of model, remote and decoding held the epoch up, with the shares of its time, and what would make it quicker."""
    total_s = max(times.total_s, 1e-9)
    waited = min(1.0, times.data_wait_s / total_s)
    shares = (
        f"{times.total_s:.1f} s, of which training waited {waited:.0%} for data, decoding worked "
        f"{times.decode_s / total_s:.0%} and waited {times.staging_wait_s / total_s:.0%} for files"
    )
    if waited < _IDLE_SHARE:
        return f"{shares}: the model is the bottleneck; a quicker step is all that would help"
    if times.staging_wait_s >= times.decode_s:
        return (
            f"{shares}: the remote store is the bottleneck; fewer slots, staging.mode ranges, a staging.directory that is kept "
            "(`featstore stage warm`) or more bandwidth would help"
        )
    return f"{shares}: decoding is the bottleneck; fewer slots, more cores or more worker processes would help"
