"""Three servers in this process: they compute with shares alone, exactly, in their moduli."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sealift.errors import PeerError
from sealift.numeric.kernels import portable_kernels
from sealift.numeric.keystream import StepSeeds
from sealift.numeric.residues import U32, Answers, ResidueBasis
from sealift.outsource.exchange import Arrived, MaskedShares
from sealift.outsource.masked import SHARES, Share
from sealift.outsource.plain import product
from sealift.outsource.terms import (
    OPERANDS,
    Direction,
    Exchange,
    Forward,
    Layer,
    Tensor,
)
from sealift.outsource.trace import StepKind

Bend = Callable[[Share, Layer, Direction, U32], U32]
_KERNELS = portable_kernels()


def honest(share: Share, layer: Layer, direction: Direction, answer: U32) -> U32:
    """The answer as it is."""
    return answer


class InPlaceServers:
    """What the accelerator asks.

    Args:
        bend: What becomes of each answer.

    Attributes:
        views: All that each server saw, in its order.
    """

    def __init__(self, bend: Bend = honest) -> None:
        self.bend = bend
        self.views: dict[Share, list[object]] = {share: [] for share in SHARES}
        self.gone: Share | None = None

    def begin(self, kind: StepKind, step: int, seeds: StepSeeds) -> None:
        self._note(*((kind, step),) * 3)
        self._calls: list[tuple[Layer, dict[Share, dict[Tensor, U32]]]] = []

    def ask(
        self,
        exchange: Exchange,
        sent: Sequence[MaskedShares],
        take: Callable[[int], U32],
        arrived: Arrived,
    ) -> list[Answers]:
        for each in sent:
            each.wait()
        plus, minus = [e.plus.copy() for e in sent], [e.minus.copy() for e in sent]
        seeds = [each.seed for each in sent]
        self._note((exchange, *plus), (exchange, *minus), (exchange, *seeds))
        if self.gone:
            raise PeerError(f"{self.name(self.gone)} is gone", code="server-gone")
        tensors: tuple[Tensor, ...] = ("dy",)
        directions: tuple[Direction, ...] = ()
        if isinstance(exchange, Forward):
            tensors, directions = ("w", "x"), ("forward", *exchange.later)
            self._calls.append((exchange.layer, {share: {} for share in SHARES}))
            layer, kept = self._calls[-1]
        else:
            layer, kept = self._calls[exchange.call]
            directions = exchange.wants
        for place, tensor in enumerate(tensors):
            shape = layer.shape(tensor)
            kept["P"][tensor] = plus[place].reshape(shape)
            kept["M"][tensor] = minus[place].reshape(shape)
            mask = np.empty(layer.shape(tensor), np.uint32)
            basis = layer.basis_of(tensor, directions)
            _KERNELS.uniform(seeds[place], basis, mask.reshape(-1))
            kept["Z"][tensor] = mask
        asked: tuple[Direction, ...] = (
            ("forward",) if isinstance(exchange, Forward) else exchange.wants
        )
        found = [self._answers(layer, kept, each) for each in asked]
        for number, answers in enumerate(found):
            arrived(number, slice(0, answers[0].size), answers)
        return found

    def finish(self) -> None:
        self._note(*("finish",) * 3)

    def name(self, share: Share) -> str:
        return f"{share} (cloud-{share.lower()})"

    def _answers(
        self, layer: Layer, kept: dict[Share, dict[Tensor, U32]], direction: Direction
    ) -> Answers:
        found = []
        for share in SHARES:
            a, b = (kept[share][tensor] for tensor in OPERANDS[direction])
            answer = residue_product(layer, direction, a, b, layer.basis(direction))
            found.append(self.bend(share, layer, direction, answer).reshape(-1))
        return found[0], found[1], found[2]

    def _note(self, *seen: object) -> None:
        for share, each in zip(SHARES, seen, strict=True):
            self.views[share].append(each)


def residue_product(
    layer: Layer, direction: Direction, a: U32, b: U32, basis: ResidueBasis
) -> U32:
    """A product modulo Q."""
    sums = []
    for m in basis.moduli:
        first, second = ((each % m).astype(np.int16) for each in (a, b))
        exact = product(layer, direction, first, second)
        sums.append((exact.reshape(-1) % m).astype(np.int32))
    out = np.empty(len(sums[0]), np.uint32)
    _KERNELS.recombine(np.array(sums, np.int32), basis, out)
    return out.reshape(layer.result(direction))
