"""A progress bar of rows for who watches a training run."""

from typing import TextIO

from tqdm import tqdm

from featstore.loader.stats import Stats


class RowBar:
    """Rows, rows per second, the share of time waited for data, and staged bytes; silent where
    `file` is no terminal.

    One consumer; `close()` from any thread. `num_rows` is the total, where it is known; `wait_s`
    where the clock stands.
    """

    def __init__(
        self,
        label: str,
        num_rows: int | None = None,
        *,
        wait_s: float = 0.0,
        file: TextIO | None = None,
    ) -> None:
        self._bar = tqdm(
            desc=label, total=num_rows, unit=" rows", unit_scale=True, disable=None, file=file
        )
        self._wait_s_before = wait_s

    def show(self, num_rows: int, stats: Stats, staged_bytes: int) -> None:
        """So many more rows have been handed out."""
        if self._bar.disable:
            return
        share = (stats.seconds["wait_s"] - self._wait_s_before) / max(
            self._bar.format_dict["elapsed"], 1e-9
        )
        staged = f", {staged_bytes / 1e6:,.0f} MB staged" if staged_bytes else ""
        self._bar.set_postfix_str(f"waited {min(share, 1):.0%}{staged}", refresh=False)
        self._bar.update(num_rows)

    def close(self) -> None:
        self._bar.close()
