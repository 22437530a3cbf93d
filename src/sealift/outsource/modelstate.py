"""The tensors of a model as a step began with them, put back if its verdict fails.

Until the verdict a server's wrong answer runs through the model, and what a forward call
writes (the running statistics of a batch norm, a weight that a recipe moves along) follows
from it. So parameters and buffers are copied when a step begins. What no tensor of the model
holds is not put back: attributes in Python, random generators, and whatever else code wrote.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

Entries = dict[str, Tensor | None]


class ModelState:
    """Parameters and buffers of a model, copied; also those that no checkpoint has.

    Args:
        model: Whose they are.
    """

    def __init__(self, model: nn.Module) -> None:
        held: list[Entries] = []
        for module in model.modules():
            held += module._parameters, module._buffers  # noqa: SLF001
        self._held = [(entries, dict(entries)) for entries in held]
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}
        with torch.no_grad():
            for entries in held:
                for each in entries.values():
                    if each is not None and not is_lazy(each):
                        self._copies.setdefault(id(each), (each, each.clone()))

    def restore(self) -> None:
        """Put them back: the same tensors under the same names, with what they held."""
        for entries, before in self._held:
            entries.clear()
            entries.update(before)
        with torch.no_grad():
            for tensor, copy in self._copies.values():
                if tensor.shape == copy.shape:
                    tensor.copy_(copy)
                else:  # a forward call gave it another size
                    tensor.data = copy.clone()
