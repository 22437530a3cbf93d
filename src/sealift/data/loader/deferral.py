"""Batches that are used before their verdict, on request: what may be, and who waits.

Rule M3: floats only, in batches that all have one shape, and no optimizer step, no copy
to the host, nothing outward before the verdict. An optimizer that takes such batches is
guarded; without one no batch is handed out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

import torch
from torch import Tensor

from sealift.channel.device import Verdicts
from sealift.channel.verdict import Gate, check_deferrable, not_deferred
from sealift.data.loader.allof import AllOf
from sealift.data.loader.stepgate import StepGate, overwrite
from sealift.data.schema.schema import Field
from sealift.errors import AuthenticationError, UsageError

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
                "no optimizer waits for it: call loader.guard(optimizer)"
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
        raise UsageError(f"verdicts are 'strict' or 'deferred', not {kind!r}")
    if kind == "strict":
        return False
    for field in fields:
        shape, nbytes = (batch_size, *field.shape), batch_size * field.size_bytes
        check_deferrable(field.dtype, shape, nbytes)
    if not one_shape:
        raise not_deferred("the last batch is shorter: say drop_last=True")
    return True
