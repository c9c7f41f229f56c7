"""The area under the ROC curve, and the baseline that the demo's model must beat."""

import numpy as np
import numpy.typing as npt


def auc(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """The area under the ROC curve: the probability that a positive row scores above a negative
    one, ties counting half.

    It is computed from ranks, as (sum of the positives' ranks - p (p + 1) / 2) / (p n) for p
    positive and n negative rows, where equal scores share their mean rank.

    Args:
        labels: (num_rows,), 0 or 1.
        scores: (num_rows,), any numbers but NaN.

    Returns:
        The area, or NaN if one of the classes is empty.
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
    """Predicts the mean label of a group.

    Args:
        groups: (num_rows,), the group of each row.
        labels: (num_rows,), the label of each row.
        of: (num_scored,), the groups to predict.

    Returns:
        float64 (num_scored,): the mean label of the group, or of all rows if the group is unknown.
    """
    names, inverse = np.unique(groups, return_inverse=True)
    means = np.bincount(inverse, weights=labels.astype(np.float64)) / np.bincount(inverse)
    indices = np.minimum(np.searchsorted(names, of), len(names) - 1)
    return np.where(names[indices] == of, means[indices], labels.astype(np.float64).mean())
