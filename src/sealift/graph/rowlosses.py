"""Losses of each row apart, in operations whose shapes torch's exporter knows.

Of a cross entropy without a mean it writes a number's shape, whatever was followed.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

_NONE: Final = 0  # ATen's number for a loss that is neither summed nor averaged


def _of_classes(
    scores: Tensor, target: Tensor, weight: Tensor | None, ignored: int
) -> Tensor:
    """Minus the target's log-probability: (rows, classes, ...) and (rows, ...) -> (rows, ...)."""
    axis = min(1, scores.dim() - 1)
    counts = target != ignored
    known = torch.where(counts, target, 0)
    found = -scores.gather(axis, known.unsqueeze(axis)).squeeze(axis)
    if weight is not None:
        found = found * weight[known]
    return torch.where(counts, found, 0.0)


def _nll_loss(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
) -> Any:
    if reduction != _NONE:
        return NotImplemented
    return _of_classes(self, target, weight, ignore_index)


def _cross_entropy_loss(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    if reduction != _NONE or label_smoothing or target.is_floating_point():
        return NotImplemented
    scores = torch.log_softmax(self, min(1, self.dim() - 1))
    return _of_classes(scores, target, weight, ignore_index)


_LOSSES: Final = {
    torch.ops.aten.cross_entropy_loss.default: _cross_entropy_loss,
    torch.ops.aten.nll_loss_nd.default: _nll_loss,
}


def row_losses(program: torch.export.ExportedProgram) -> dict[Any, Any]:
    """What is written in other operations of a program: the losses that it takes of each row."""
    found = (n for n in program.graph.nodes if n.target in _LOSSES)
    return {n.target: _LOSSES[n.target] for n in found if _reduction(n) == _NONE}


def _reduction(node: Any) -> Any:
    return node.args[3] if len(node.args) > 3 else node.kwargs.get("reduction", 1)
