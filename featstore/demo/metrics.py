"""How good scores are: the area under the ROC curve, and the baseline that the demo's model must
beat.
"""

import numpy as np
import numpy.typing as npt


def auc(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """The probability that a positive row scores above a negative one, ties counting half.

    `labels` (num_rows,) are 0 or 1, `scores` (num_rows,) any numbers without NaN. NaN where one of
    the classes is empty. From ranks: (sum of the positives' ranks - p (p + 1) / 2) / (p n), where
    equal scores share their mean rank.
    """
    positive = np.asarray(labels) > 0
    num_positive = int(positive.sum())
    num_negative = positive.size - num_positive
    if not num_positive or not num_negative:
        return float("nan")
    _, inverse, counts = np.unique(np.asarray(scores), return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2.0
    rank_sum = mean_ranks[inverse][positive].sum()
    return float(
        (rank_sum - num_positive * (num_positive + 1) / 2.0) / (num_positive * num_negative)
    )


def group_means(
    groups: npt.NDArray[np.generic], labels: npt.NDArray[np.generic], of: npt.NDArray[np.generic]
) -> npt.NDArray[np.float64]:
    """For each of `of` (num_scored,) the mean label of its group in `groups` (num_rows,), or of all
    rows where it is new.
    """
    names, inverse = np.unique(groups, return_inverse=True)
    means = np.bincount(inverse, weights=labels.astype(np.float64)) / np.bincount(inverse)
    at = np.minimum(np.searchsorted(names, of), len(names) - 1)
    return np.where(names[at] == of, means[at], labels.astype(np.float64).mean())
