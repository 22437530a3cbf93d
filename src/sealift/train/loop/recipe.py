"""A recipe: ordinary PyTorch, loaded from the bytes that the agreement measured.

The agreement names the entry file of a code bundle. It defines ``build()``, which
returns either an object shaped like a ``LightningModule`` (``training_step``,
``configure_optimizers``) or a plain ``nn.Module``, for which the file also defines
``loss(model, batch)`` and ``configure_optimizers(model)``. It may define
``evaluate(model, batch)``, which returns sums over a batch (see ``Recipe.evaluate``), and
``prepare(batch)``, which returns sums that ``build(statistics)`` gets. To be served, it may
define ``predict(model, batch)`` and ``generate(model, batch)`` (see ``Recipe.predict``).

Every slice loads the recipe anew in a process of its own; between slices nothing of it
lives on but the state of model and optimizer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from sealift.train.loop.faults import Containment, unfit
from sealift.train.loop.imports import Guard, Notice, import_entry, unnoticed

Batch = dict[str, Tensor]


class Recipe:
    """The code owner's part of a job.

    Args:
        files: The bundle: relative path -> source bytes, already measured.
        entry: Path of the file that defines ``build``.
        guard: Runs the recipe's code; by default nothing it says leaves.
        notice: Told of each of the bundle's modules before it runs.

    Raises:
        MalformedError: if the entry is not in the bundle.
        JobError: if the bundle does not load.
    """

    def __init__(
        self,
        files: Mapping[str, bytes],
        entry: str,
        *,
        guard: Guard | None = None,
        notice: Notice = unnoticed,
    ) -> None:
        self.guard: Final[Guard] = guard or Containment(files)
        self._module = import_entry(files, entry, self.guard, notice)
        if not self.defines("prepare"):  # sums alone need no model
            self._function("build")

    def defines(self, name: str) -> bool:
        """Whether the entry file has a function of this name."""
        return callable(getattr(self._module, name, None))

    def build(self, statistics: Mapping[str, Tensor] | None = None) -> nn.Module:
        """A fresh model; draws from torch's generators.

        Args:
            statistics: Sums of ``prepare``, for a ``build`` that takes an argument.
        """
        build = self._function("build")
        parts = (dict(statistics or {}),) if self.takes_statistics else ()
        model = self.guard(build, *parts)
        if not isinstance(model, nn.Module):
            raise unfit("no-module")
        return model

    @property
    def takes_statistics(self) -> bool:
        """Whether ``build`` takes sums of ``prepare``."""
        return self.guard(_takes_one, self._function("build"))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer that the recipe configures for ``model``."""
        if hasattr(model, "configure_optimizers"):
            made = self.guard(model.configure_optimizers)
        else:
            made = self.guard(self._function("configure_optimizers"), model)
        if isinstance(made, list | tuple) and len(made) == 1:
            made = made[0]
        if not isinstance(made, torch.optim.Optimizer):
            raise unfit("no-optimizer")
        return made

    def loss(self, model: nn.Module, batch: Batch, step: int) -> Tensor:
        """The scalar training loss of one batch."""
        if self.guard(hasattr, model, "training_step"):
            loss = self.guard(lambda: _plain(model.training_step(batch, step)))
        else:
            function = self._function("loss")
            loss = self.guard(lambda: _plain(function(model, batch)))
        # A subclass would bring methods of its own to where nothing contains them.
        if type(loss) is not Tensor or loss.dim() != 0:
            raise unfit("loss")
        return loss

    def evaluate(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        """Sums over one batch, by metric; the caller divides by the number of rows.

        A recipe without ``evaluate`` is measured by its loss.
        """
        evaluate = getattr(self._module, "evaluate", None)
        if evaluate is not None:
            sums: dict[str, float] = self.guard(_evaluate, evaluate, model, batch)
            return sums
        rows = len(next(iter(batch.values())))
        return {"loss": float(self.loss(model, batch, 0)) * rows}

    def prepare(self, batch: Batch) -> Mapping[str, Any]:
        """Whatever ``prepare`` returns for one batch; the caller checks and adds."""
        found = self.guard(self._function("prepare"), batch)
        if not isinstance(found, Mapping):
            raise unfit("sums")
        return found

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        """Whatever answers one batch: tensors by name, or one; the caller checks.

        Without ``predict`` the model is called with the batch's fields by name.
        """
        predict = getattr(self._module, "predict", None)
        if predict is not None:
            return self.guard(predict, model, batch)
        return self.guard(lambda: model(**batch))

    def generate(self, model: nn.Module, batch: Batch) -> Iterator[Any]:
        """Whatever the recipe's generator makes of one batch, step by step."""
        found = self.guard(self._function("generate"), model, batch)
        if not isinstance(found, Iterator):
            raise unfit("no-stream")
        return found

    def _function(self, name: str) -> Callable[..., Any]:
        found: Callable[..., Any] | None = getattr(self._module, name, None)
        if not callable(found):
            raise unfit(f"no-{name}")
        return found


def _takes_one(build: Callable[..., Any]) -> bool:
    return len(inspect.signature(build).parameters) > 0


def _plain(loss: Any) -> Any:
    return loss.get("loss") if isinstance(loss, Mapping) else loss


def _evaluate(
    evaluate: Callable[..., Any], model: nn.Module, batch: Batch
) -> dict[str, float]:
    sums = evaluate(model, batch)
    return {str(name): float(value) for name, value in sums.items()}
