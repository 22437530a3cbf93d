"""Counts and sums for a recipe's ``evaluate``, from which measures over all owners come.

AUC, recall or R-squared of several owners are no means of each owner's: counts and sums are
added over owners first. Each function here returns a dict that ``evaluate`` returns, alone
or merged with others::

    from sealift.recipes import measures

    def evaluate(model, batch):
        logits = model(batch["x"])
        scores = logits.softmax(1)[:, 1]
        return {
            **measures.count_classes(logits.argmax(1), batch["y"], classes=2),
            **measures.count_scores(scores, batch["y"]),
        }

What they are called in an agreement, which measures follow, and what few rows do to them:
spec/recipe.md section Measures. In a graph recipe nothing raises: a number that is no class is
not counted there.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.compiler import is_exporting


def count_classes(
    predicted: Tensor, actual: Tensor, *, classes: int, label: str = ""
) -> dict[str, Tensor]:
    """For accuracy, the majority baseline, recall, precision and F1.

    Of two classes, 1 is the one that recall, precision and F1 are about. Of more there is
    one of each for every class, and their means.

    Args:
        predicted: Whole numbers from 0 to ``classes`` - 1, (rows,).
        actual: The same, (rows,).
        classes: How many; 2 to 64.
        label: Starts the names of all measures, for a recipe with several targets.

    Returns:
        ``classes_N``: int64, (3, classes): rows, those found, those predicted.

    Raises:
        ValueError: for other shapes, or a number that is no class.
    """
    told, truth = _column(predicted, "predicted"), _column(actual, "actual")
    _require_alike(told, truth)
    for each in () if is_exporting() else (told, truth):
        if len(each) and not 0 <= int(each.min()) <= int(each.max()) < classes:
            raise ValueError(f"a class is not in 0..{classes - 1}")
    kinds = torch.arange(classes, device=truth.device)
    told, truth = told.unsqueeze(1) == kinds, truth.unsqueeze(1) == kinds
    counts = torch.stack(
        [each.sum(0) for each in (truth, torch.logical_and(truth, told), told)]
    )
    return {_named(label, f"classes_{classes}"): counts}


def count_scores(
    scores: Tensor, actual: Tensor, *, bins: int = 64, label: str = ""
) -> dict[str, Tensor]:
    """For the area under the ROC curve, and for calibration.

    A histogram with as many intervals of the same length: the scores in one count as spread
    evenly over it, and ``auc_error`` says how far the area may be off because of that.

    Args:
        scores: Of class 1, from 0 to 1, (rows,).
        actual: 0 or 1, (rows,).
        bins: Intervals; 2 to 256.
        label: Starts the names of all measures.

    Returns:
        ``scores_N``: float64, (3, bins): rows of class 0, of class 1, the sum of scores.

    Raises:
        ValueError: for other shapes, a score outside of 0 to 1, another class.
    """
    found, truth = (
        _column(scores, "scores").to(torch.float64),
        _column(actual, "actual"),
    )
    _require_alike(found, truth)
    if not is_exporting():
        if not bool(((found >= 0) & (found <= 1)).all()):  # nor NaN
            raise ValueError("a score is not from 0 to 1")
        if not bool(((truth == 0) | (truth == 1)).all()):
            raise ValueError("a class is neither 0 nor 1")
    places = (found * bins).to(torch.int64).clamp(0, bins - 1)
    kinds = [(truth == number).to(torch.float64) for number in (0, 1)]
    counts = torch.zeros(3, bins, dtype=torch.float64, device=found.device)
    counts = counts.scatter_add(1, places.expand(3, -1), torch.stack([*kinds, found]))
    return {_named(label, f"scores_{bins}"): counts}


def sum_errors(
    predicted: Tensor, actual: Tensor, *, scale: float = 1.0, label: str = ""
) -> dict[str, Tensor]:
    """For R-squared, and the root of the mean squared and the mean absolute error.

    Sums leave with the agreement's number of decimal places. Divide values that are much
    smaller than 1 by a ``scale`` that everybody knows: R-squared stays the same, and the
    errors are in its units. Where rounding could change R-squared by 0.005 it is left out.

    Args:
        predicted: (rows,).
        actual: (rows,).
        scale: What both are divided by.
        label: Starts the names of all measures.

    Returns:
        ``regression``: float64, (5,).

    Raises:
        ValueError: for other shapes.
    """
    told, truth = _column(predicted, "predicted"), _column(actual, "actual")
    _require_alike(told, truth)
    told, truth = told.to(torch.float64) / scale, truth.to(torch.float64) / scale
    gaps = told - truth
    sums = [truth.sum(), truth.square().sum(), gaps.square().sum(), gaps.abs().sum()]
    rows = torch.ones_like(truth).sum()
    return {_named(label, "regression"): torch.stack([rows, *sums])}


def _named(label: str, name: str) -> str:
    return f"{label}_{name}" if label else name


def _column(values: Tensor, name: str) -> Tensor:
    if values.dim() != 1:
        raise ValueError(f"{name} has shape {tuple(values.shape)}, not (rows,)")
    return values.detach()


def _require_alike(left: Tensor, right: Tensor) -> None:
    if len(left) != len(right):
        raise ValueError(f"{len(left)} predictions for {len(right)} rows")
