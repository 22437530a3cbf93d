"""No optimizer step before the verdict of the batches its gradients came from.

The pure gate is ``channel/verdict.py``; here it is hung into torch. On a failed verdict
the gradients are overwritten and dropped, and the step raises instead of stepping.
Not here: what a forward pass keeps (running averages, activations). It is of a batch that
never verified, so such a model goes back to a checkpoint; nothing of it passes the gate.
Nor what leaves without asking: ``loss.item()``, sends during the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sealift.channel.device import Verdicts
from sealift.channel.verdict import Gate


class StepGate:
    """Every step of ``optimizer`` passes ``gate`` first.

    Args:
        optimizer: Its parameters' gradients are dropped when a verdict fails.
        gate: Ask it before anything else that is outward, too: checkpoints, sends,
            copies to the host.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, gate: Gate) -> None:
        self.gate = gate
        self.closed = False
        self._optimizer = optimizer
        gate.on_failure(self._drop_gradients)
        self._hook = optimizer.register_step_pre_hook(self._before_step)

    def admit(self, batch: Tensor, verdicts: Verdicts) -> Tensor:
        """Let work begin on ``batch``, of any shape, before its verdicts came.

        It is overwritten if they fail.

        Raises:
            UsageError: code ``deferral-not-allowed``, if it is not of floats.
        """
        nbytes = batch.numel() * batch.element_size()
        self.gate.admit(
            verdicts,
            dtype=str(batch.dtype),
            shape=batch.shape,
            nbytes=nbytes,
            undo=lambda: overwrite(batch),
        )
        return batch

    def close(self) -> None:
        """Take the gate out of the optimizer again."""
        self.closed = True
        self._hook.remove()

    def _before_step(
        self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Check; and once more after a closure, which may have taken a batch itself."""
        self.gate.check()
        guarded = [self._guarded(each) if callable(each) else each for each in args]
        if callable(closure := kwargs.get("closure")):
            kwargs = {**kwargs, "closure": self._guarded(closure)}
        return tuple(guarded), kwargs

    def _guarded(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def evaluate() -> Any:
            loss = closure()
            self.gate.check()
            return loss

        return evaluate

    def _drop_gradients(self) -> None:
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    overwrite(parameter.grad)
                    parameter.grad = None


def overwrite(tensor: Tensor) -> None:
    """Put zeroes over what a tensor holds."""
    with torch.no_grad():
        tensor.detach().zero_()
