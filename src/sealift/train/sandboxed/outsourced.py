"""A recipe's products, asked for step by step, in the process that trains.

Linear layers and convolutions are converted; what their products come to is believed when
the step has been settled, and neither weights nor numbers count before. A step that is made
again begins from what the model held when it began: its buffers are put back, and its
random stream is entered again. What a recipe keeps elsewhere is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from sealift.outsource.convert import Route, convert
from sealift.outsource.modelstate import ModelState
from sealift.train.loop.tasks import StepProducts
from sealift.train.sandboxed.imports import Guard

T = TypeVar("T")


class OutsourcedSteps:
    """The steps of one model.

    Args:
        products: Are asked for.
        guard: Runs the recipe's code.
        model: Converted in place. The first and the last of the converted modules, in
            the model's own order, are its edges.
    """

    def __init__(self, products: StepProducts, guard: Guard, model: nn.Module) -> None:
        self._products, self._model, self._guard = products, model, guard
        self._route = Route()
        names = guard(convert, model, self._route)
        self._route.edges = frozenset((*names[:1], *names[-1:]))

    def make(self, work: Callable[[], T], *, trains: bool) -> T:
        """Do a step's work, again if its products turn out to be wrong.

        Raises:
            SealiftError: if the job ends by that, or the work fails.
        """
        state: ModelState = self._guard(ModelState, self._model)
        while True:
            self._products.begin()
            self._route.begin()
            with self._route.to(self._products, keeps=trains):
                found = work()
            if self._products.settle():
                return found
            self._guard(state.restore)
