"""A step follows the trace of the first of its kind, or is ended."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sealift.errors import JobError
from sealift.numeric.kernels import portable_kernels
from sealift.outsource.own.model import outsource
from tests.sim.reached import Reached

KERNELS = portable_kernels()


class Branches(nn.Module):
    """Whose user decides in which order they are differentiated."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(x).sum(), self.two(x).sum()


def test_gradients_in_another_order_are_named() -> None:
    with outsource(Branches(), Reached(), KERNELS, seed=0) as model:
        for _ in range(2):
            one, two = model(torch.ones(4, 3))
            one.backward()
            two.backward()
        one, two = model(torch.ones(4, 3))
        with pytest.raises(
            JobError, match=r"^the gradient of two comes where"
        ) as caught:
            two.backward()
        assert caught.value.code == "other-operations"
        with pytest.raises(JobError, match="had nothing"):
            one.backward()  # the step was ended
        assert model.outsourced().served == 2
        assert model.one.weight.grad is None
        one, two = model(torch.ones(4, 3))
        one.backward()
        two.backward()
        assert model.outsourced().served == 3
