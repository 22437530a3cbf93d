"""Batches that are used before their verdict, on request: what may be, and who waits.

Rule M3: floats only, in batches that all have one shape, and no optimizer step, no copy
to the host, nothing outward before the verdict. An optimizer that takes such batches is
guarded; without one no batch is handed out.

No optimizer step before the verdict of the batches its gradients came from.

The pure gate is ``channel/verdict.py``; here it is hung into torch. On a failed verdict
the gradients are overwritten and dropped, and the step raises instead of stepping.
Not here: what a forward pass keeps (running averages, activations). It is of a batch that
never verified, so such a model goes back to a checkpoint; nothing of it passes the gate.
Nor what leaves without asking: ``loss.item()``, sends during the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import torch
from torch import Tensor

from sealift.channel.device.device import Verdicts
from sealift.channel.device.verdict import Gate, check_deferrable, not_deferred
from sealift.data.loader.opening import AllOf
from sealift.data.schema.schema import Field
from sealift.errors import AuthenticationError, UsageError


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


Verdicting = Literal["strict", "deferred"]
KINDS: Final = ("strict", "deferred")


class Deferral:
    """The gate of a loader, and the optimizers behind it.

    Args:
        on_failure: Scrubs what the loader holds.
    """

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self.gate = Gate([on_failure])
        self._steps: list[StepGate] = []

    def guard(self, optimizer: torch.optim.Optimizer) -> StepGate:
        """Let every step of ``optimizer`` wait for the verdicts that are out."""
        self._steps.append(StepGate(optimizer, self.gate))
        return self._steps[-1]

    def demand_guarded(self) -> None:
        """Demand that somebody waits.

        Raises:
            UsageError: code ``deferral-not-allowed``.
        """
        if all(each.closed for each in self._steps):
            raise not_deferred(
                "no optimizer waits for the verdict: call loader.guard(optimizer)"
            )

    def admit(self, tensors: Sequence[Tensor], verdicts: Sequence[Verdicts]) -> None:
        """Let work begin on a batch; it is overwritten if one of the verdicts fails.

        Raises:
            AuthenticationError: if one failed before; the batch is overwritten.
        """
        whole = AllOf(verdicts)
        try:
            for tensor in tensors if verdicts else ():
                self._steps[0].admit(tensor, whole)
        except AuthenticationError:
            for tensor in tensors:
                overwrite(tensor)
            raise


def check_deferral(
    kind: str, fields: Sequence[Field], batch_size: int, *, one_shape: bool
) -> bool:
    """Whether verdicts are deferred.

    Args:
        kind: ``strict`` or ``deferred``.
        fields: Those of a batch.
        batch_size: Rows of a batch.
        one_shape: Whether every batch has so many.

    Raises:
        UsageError: code ``deferral-not-allowed``, unless all is float and of one shape.
    """
    if kind not in KINDS:
        raise UsageError(f"verdicts must be 'strict' or 'deferred', not {kind!r}")
    if kind == "strict":
        return False
    for field in fields:
        shape, nbytes = (batch_size, *field.shape), batch_size * field.size_bytes
        check_deferrable(field.dtype, shape, nbytes)
    if not one_shape:
        raise not_deferred("the last batch is shorter: use drop_last=True")
    return True
