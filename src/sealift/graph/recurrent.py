"""Recurrent layers in operations of the list: one step of the sequence after the other.

How many steps there are is part of the rows' shape, and so is known. Torch has each layer's
operations; a stack of layers is put together here, as torch's own leaves out the dropout
between them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch._decomp import get_decompositions

from sealift.errors import JobError

# Of all layers and directions: a step is 4 KB of the graph, and takes 0.3 s to follow.
MAX_STEPS: Final = 200
_ATEN: Final = torch.ops.aten
_LAYERS: Final = (
    _ATEN.lstm.input, _ATEN.gru.input, _ATEN.rnn_tanh.input, _ATEN.rnn_relu.input,
)  # fmt: skip


def _stacked(layer: Callable[..., Any]) -> Callable[..., Any]:
    """The operation of several layers, from that of one."""

    def stack(*given: Any) -> tuple[Tensor, ...]:
        rows, states, weights, biases, layers, *more = given  # as ATen names them
        dropout, train, both_ways, rows_first = more
        several = not isinstance(states, Tensor)
        begun = list(states) if several else [states]
        size, ways = len(weights) // layers, 2 if both_ways else 1
        if (steps := rows.shape[1 if rows_first else 0] * layers * ways) > MAX_STEPS:
            raise JobError(
                "the recipe cannot be a graph",
                why=f"a recurrent layer makes {steps:,} steps, and each would be in the graph; "
                f"the limit is {MAX_STEPS}",
                code="no-graph",
            )
        out, ended = rows.transpose(0, 1) if rows_first else rows, []
        for number in range(layers):
            if number and train and dropout:
                out = torch.dropout(out, dropout, True)
            own = [each[number * ways : (number + 1) * ways] for each in begun]
            out, *last = layer(
                out, own if several else own[0],
                weights[number * size : (number + 1) * size],
                biases, 1, 0.0, train, both_ways, False,
            )  # fmt: skip
            ended.append(last)
        out = out.transpose(0, 1) if rows_first else out
        return out, *(torch.cat(each) for each in zip(*ended, strict=True))

    return stack


RECURRENT: Final = {
    of: _stacked(one) for of, one in get_decompositions(_LAYERS).items()
}
