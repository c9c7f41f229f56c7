"""Measures over counts: of a slot against a label, and of one set of rows against another.

Pure functions. Counts are arrays with an entry per *cell*: a value, a bin of numbers, or "missing".
Two arrays of one call have the same cells in the same order. Logarithms of shares are finite
because every cell gets half a row more (the prior of Jeffreys), which also damps cells of few rows;
a cell without rows on both sides says nothing and is left out.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Z_95 = 1.959963984540054  # the standard normal quantile of 0.975, for intervals of 95 %
_HALF_ROW = 0.5
_NUM_PARTS = 16
_T_95 = 2.1314495455597742  # Student's quantile of 0.975 for 15 degrees of freedom

Floats = NDArray[np.float64]


def wilson(num_positive: ArrayLike, num_rows: ArrayLike) -> tuple[Floats, Floats]:
    """The Wilson score interval of 95 % of a rate (E. B. Wilson, "Probable inference, the law of
    succession, and statistical inference", JASA 22, 1927).

    Args:
        num_positive: The rows that are positive, by cell.
        num_rows: All rows, by cell.

    Returns:
        The lower and the upper bounds, in [0, 1]. Without rows the interval is [0, 1].
    """
    positive, rows = _counts(num_positive), _counts(num_rows)
    if np.any(positive > rows):
        raise ValueError("expected at most as many positive rows as rows")
    known = np.where(rows > 0, rows, 1.0)
    rate, square = positive / known, Z_95 * Z_95
    middle = (rate + square / (2 * known)) / (1 + square / known)
    half = (
        Z_95 * np.sqrt(rate * (1 - rate) / known + square / (4 * known**2)) / (1 + square / known)
    )
    # Rounding may leave the bounds of rates 0 and 1 a little beside them.
    low = np.where(positive == 0, 0.0, np.maximum(middle - half, 0.0))
    high = np.where(positive == rows, 1.0, np.minimum(middle + half, 1.0))
    return low, high


def mean_error(values: Floats) -> float:
    """By how much the mean of drawn rows may be off, with a probability of 95 %, where rows that
    were drawn near each other may be alike: from how much 16 consecutive parts of the rows differ
    (the method of batch means, A. M. Law and W. D. Kelton, "Simulation Modeling and Analysis",
    2000).

    At least that of independent rows, since few parts may be alike by chance; and `3 / n` of `n`
    rows, by the rule of three: rows that are all alike do not say that all others are.

    Args:
        values: Numbers from the rows in their order; NaN where unknown.
    """
    parts = np.array_split(values, _NUM_PARTS)
    sums = np.array([np.nansum(part) for part in parts])
    counts = np.array([np.count_nonzero(~np.isnan(part)) for part in parts], np.float64)
    total = counts.sum()
    if not total:
        return 0.0
    off = sums - counts * (sums.sum() / total)
    variance = _NUM_PARTS / (_NUM_PARTS - 1) * float(np.sum(off**2)) / total**2
    independent = Z_95 * float(np.nanstd(values) / np.sqrt(total))
    return max(_T_95 * float(np.sqrt(variance)), independent, 3 / float(total))


def psi(expected: ArrayLike, actual: ArrayLike) -> float | None:
    """The population stability index (N. Siddiqi, "Credit Risk Scorecards", 2006): the sum over
    cells of `(a - e) ln(a / e)`, where `a` and `e` are a cell's shares. It is the divergence of
    Jeffreys, symmetric and at least 0.

    By common usage, below 0.1 is stable and above 0.25 has shifted. Many cells of few rows reach
    that by chance: see `drift`.

    Args:
        expected: Rows by cell, before.
        actual: Rows by cell, after.

    Returns:
        The index. None if either side has no rows.
    """
    before, after = _pair(expected, actual)
    if not before.any() or not after.any():
        return None
    e, a = _shares(before), _shares(after)
    return float(np.sum((a - e) * np.log(a / e)))


def jensen_shannon(one: ArrayLike, other: ArrayLike) -> float | None:
    """The Jensen-Shannon divergence in bits (J. Lin, "Divergence measures based on the Shannon
    entropy", IEEE Trans. Inf. Theory 37, 1991): 0 for equal shares, 1 for rows that have no cell in
    common. Symmetric. It needs no half rows.

    Returns:
        The divergence, in [0, 1]. None if either side has no rows.
    """
    first, second = _pair(one, other)
    if not first.any() or not second.any():
        return None
    p, q = first / first.sum(), second / second.sum()
    mixed = _entropy((p + q) / 2) - (_entropy(p) + _entropy(q)) / 2
    return float(np.clip(mixed, 0.0, 1.0))


def share_of_new(before: ArrayLike, after: ArrayLike) -> float | None:
    """The share of the rows after that are in cells without rows before. With the arguments
    swapped, the share of the rows before whose cells vanished.

    Returns:
        The share. None if there are no rows after.
    """
    old, new = _pair(before, after)
    return float(new[old == 0].sum() / new.sum()) if new.any() else None


def auc(positives: ArrayLike, negatives: ArrayLike) -> float | None:
    """The area under the ROC curve of cells in ascending order of their score: the chance that a
    positive row has a higher score than a negative one, ties counted half (J. A. Hanley and B. J.
    McNeil, "The meaning and use of the area under a ROC curve", Radiology 143, 1982).

    Args:
        positives: Positive rows by cell, the cell of the lowest score first.
        negatives: Negative rows by cell.

    Returns:
        The area, in [0, 1]. None without positive or without negative rows.
    """
    up, down = _counts(positives), _counts(negatives)
    if not up.any() or not down.any():
        return None
    below = np.cumsum(down) - down
    return float(np.sum(up * (below + down / 2)) / (up.sum() * down.sum()))


def auc_placements(positives: ArrayLike, negatives: ArrayLike) -> tuple[Floats, Floats]:
    """For each cell, the share of negative rows with a lower score, and that of positive rows with
    a higher one, ties counted half. There are rows of both.
    """
    up, down = _counts(positives), _counts(negatives)
    lower = (np.cumsum(down) - down / 2) / down.sum()
    return lower, 1 - (np.cumsum(up) - up / 2) / up.sum()


def auc_standard_error(positives: ArrayLike, negatives: ArrayLike) -> float | None:
    """The standard error of `auc` (E. R. DeLong, D. M. DeLong and D. L. Clarke-Pearson, "Comparing
    the areas under two or more correlated receiver operating characteristic curves", Biometrics 44,
    1988): the root of `var(v) / m + var(w) / n`, where `v` and `w` are the `auc_placements` of the
    `m` positive and the `n` negative rows.

    Rows are taken to be independent: those of one user are not, and the error is then larger.

    Returns:
        The error. None with fewer than two positive or two negative rows.
    """
    up, down = _counts(positives), _counts(negatives)
    m, n = up.sum(), down.sum()
    if m < 2 or n < 2:
        return None
    lower, higher = auc_placements(up, down)
    area = float(np.sum(up * lower) / m)
    of_up, of_down = np.sum(up * (lower - area) ** 2), np.sum(down * (higher - area) ** 2)
    return float(np.sqrt(of_up / (m - 1) / m + of_down / (n - 1) / n))


def mean_of_halves_variance(of_half: float, agreement: float, area: float) -> float:
    """The variance of the mean of two areas, where each half of the rows is scored by the rates of
    the other half.

    Where both halves order the values alike (agreement 1), the areas are independent, and the
    variance is half of that of one. Where they order them by chance (0), both areas are high or low
    by the same chance, and it is that of one. Between, an area is `a . b / |b|` for the deviations
    `a` and `b` of the halves from one rate, and all of its terms of first order count
    (docs/design/explore.md). The agreement of few values may be chance, too: it counts less where
    the area is few standard errors from a half.

    Args:
        of_half: The variance of one area for given scores.
        agreement: The correlation of the scores of both halves.
        area: The mean of the areas.
    """
    if not of_half:
        return 0.0
    squared = (area - 0.5) ** 2 / of_half
    q = max(0.0, agreement) * squared / (squared + 1)
    return of_half * (1 - q + q * (2 - q) ** 2 / 2)


def mutual_information(positives: ArrayLike, negatives: ArrayLike) -> float | None:
    """The mutual information of cell and label in bits, from the shares found (T. M. Cover and J.
    A. Thomas, "Elements of Information Theory", 2006, section 2.3): at least 0, and at most the
    entropy of the label.

    Without any relation it is `(c - 1) / (2 n ln 2)` on average, for `c` cells and `n` rows (G. A.
    Miller, "Note on the bias of information estimates", 1955), so cells should be few.

    Returns:
        The information. None if there are no rows.
    """
    up, down = _pair(positives, negatives)
    num_rows = up.sum() + down.sum()
    if not num_rows:
        return None
    joint = np.concatenate([up, down]) / num_rows
    label = np.array([up.sum(), down.sum()]) / num_rows
    found = _entropy((up + down) / num_rows) + _entropy(label) - _entropy(joint)
    return float(max(found, 0.0))


def information_value(positives: ArrayLike, negatives: ArrayLike) -> float | None:
    """The information value (N. Siddiqi, "Credit Risk Scorecards", 2006): the sum over cells of
    `(p - n) ln(p / n)`, where `p` is the cell's share of all positive rows and `n` of all negative
    ones. The formula is that of `psi`.

    By common usage, below 0.02 is no predictor, above 0.3 a strong one, and above 0.5 a leak of the
    label must be ruled out.

    Returns:
        The value. None without positive or without negative rows.
    """
    return psi(negatives, positives)


def _counts(counts: ArrayLike) -> Floats:
    found = np.asarray(counts, np.float64)
    if not np.all(np.isfinite(found) & (found >= 0)):
        raise ValueError("expected counts of at least 0, found negative ones or NaN")
    return found


def _pair(one: ArrayLike, other: ArrayLike) -> tuple[Floats, Floats]:
    """Both counts, without the cells that have no rows on either side."""
    first, second = _counts(one), _counts(other)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(
            f"expected the counts of the same cells, found shapes {first.shape} and {second.shape}"
        )
    seen = (first > 0) | (second > 0)
    return first[seen], second[seen]


def _shares(counts: Floats) -> Floats:
    filled = counts + _HALF_ROW
    shares: Floats = filled / filled.sum()
    return shares


def _entropy(shares: Floats) -> float:
    """The entropy in bits; 0 log 0 is 0."""
    known = shares[shares > 0]
    return float(-np.sum(known * np.log2(known)))
