"""Plots of a profile. Each function returns a new matplotlib Figure, without showing or saving it
and without matplotlib's global state (pyplot).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from featstore.errors import SelectionError, nearest
from featstore.explore.profile import Profile

_INCHES_PER_SLOT = 0.22
_TICK_CHARACTERS = 16
_LEVEL_CHARACTERS = 9  # longer names of ticks are slanted, so that ten fit beside each other


def plot_coverage(profile: Profile) -> Figure:
    """A bar chart of coverage: the share of rows in which each slot is not missing.

    Slots are in the profile's order, from top to bottom.
    """
    coverage = profile.table["coverage"].to_pylist()
    figure, axes = _figure(height=1.0 + _INCHES_PER_SLOT * len(coverage))
    axes.barh(profile.slots, coverage, color=["C0" if share == 1.0 else "C1" for share in coverage])
    axes.margins(y=0.01)
    axes.invert_yaxis()
    axes.set_xlim(0.0, 1.0)
    axes.set_xlabel("share of rows with a value (orange: not in all)")
    axes.set_title(f"Coverage over {profile.num_rows:,} rows")
    return figure


def plot_label_rate(profile: Profile, slot: str, label: str | None = None) -> Figure:
    """A bar chart of a label's mean for each top value of an id slot, beside its mean over all
    rows.

    Values are in the slot's own order, such as that of hours, or else in that of their frequency.
    Error bars are one standard error of a proportion.

    Args:
        profile: A profile computed from rows: stored statistics have no label rates by value.
        slot: An id slot.
        label: The label; by default the profile's first.

    Raises:
        SelectionError: The slot or the label is unknown, or the slot has no top values.
    """
    name = _label(profile, label)
    top = profile[slot]["top"]
    if not top:
        raise SelectionError(
            f"slot {slot!r} has no top values to plot: expected an id slot with values"
        )
    figure, axes = _figure(height=3.6)
    counted = {value["value"]: value for value in top}
    ordered = [counted[sign] for sign in profile.names.in_order(slot, counted)]
    _bars(axes, ordered, name, [profile.names.text(slot, value["value"]) for value in ordered])
    base = profile.label_rates[name]
    if base is not None:
        axes.axhline(base, color="C1", linestyle="--", label=f"all rows: {base:.3f}")
        axes.legend()
    axes.set_xlabel(f"top values of {slot} (share of values)")
    axes.set_ylabel(f"mean of {name}")
    axes.set_title(f"{name} by {slot}")
    return figure


def _bars(axes: Axes, top: Sequence[Mapping[str, Any]], label: str, texts: Sequence[str]) -> None:
    rates = np.array([value["label_rates"][label] for value in top], dtype=np.float64)
    counts = np.array([value["count"] for value in top], dtype=np.float64)
    # The standard error of a proportion p over n rows: sqrt(p (1 - p) / n). Labels that are not 0
    # or 1 can have means outside [0, 1], hence the clip.
    errors = np.sqrt(np.clip(rates * (1.0 - rates), 0.0, None) / counts)
    pairs = zip(map(_tick, texts), top, strict=True)
    names = [f"{text}\n({value['share']:.0%})" for text, value in pairs]
    is_level = max(map(len, texts)) <= _LEVEL_CHARACTERS
    axes.bar(range(len(top)), rates, yerr=errors, color="C0", capsize=2.0)
    # A text may hold dollar signs, which matplotlib would take for the begin of a formula.
    axes.set_xticks(
        range(len(top)), names, fontsize=8, rotation=0 if is_level else 30, parse_math=False
    )


def _tick(text: str) -> str:
    return text if len(text) <= _TICK_CHARACTERS else f"{text[: _TICK_CHARACTERS - 1]}…"


def _label(profile: Profile, label: str | None) -> str:
    known = list(profile.label_rates)
    if label is None and known:
        return known[0]
    if label is None or label not in known:
        raise SelectionError(
            f"no label {label!r} in the profile; it has {known}{nearest(label or '', known)}"
        )
    return label


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8.0, height), layout="constrained")
    return figure, figure.add_subplot()
