"""Products on three servers: mask, ask, unmask, check; and who answered wrongly.

Nothing that a server can see, neither what is sent nor in which order nor that the step goes
on, depends on an answer before the step's end (rule C2): whatever is wrong is kept and told
by ``settle``. A mask belongs to one tensor of one attempt at a step (rule C3).
Source: spec/shares.md sections 4 to 6.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal, Protocol

import numpy as np

from sealift.errors import IntegrityError, MalformedError, quote_foreign
from sealift.numeric.kernels import BLOCK, PART, Kernels
from sealift.numeric.keystream import MaskSource, StepSeeds
from sealift.numeric.residues import F32, I16, U32, Answers, ResidueBasis
from sealift.outsource.check import Claim, exact_row, find_wrong_row
from sealift.outsource.exchange import Arrived, MaskedShares, ProductOpening, Rooms
from sealift.outsource.terms import (
    OPERANDS,
    Backward,
    Direction,
    Exchange,
    Forward,
    Layer,
    Tensor,
)
from sealift.outsource.trace import StepKind

Share = Literal["P", "M", "Z"]
SHARES: Final[tuple[Share, ...]] = ("P", "M", "Z")


class AnsweringServers(Protocol):
    """The three, as ``connections`` has them, and stand-ins in tests."""

    def begin(self, kind: StepKind, step: int, seeds: StepSeeds) -> None:
        """Say which step comes; Z may get the seeds of all its masks."""
        ...

    def ask(
        self,
        exchange: Exchange,
        sent: Sequence[MaskedShares],
        take: Callable[[int], U32],
        arrived: Arrived,
    ) -> list[Answers]:
        """Send each its shares, and take the answers: one of each, for every product.

        Args:
            exchange: The next one of the step.
            sent: Its operands, which may still be masked while others leave.
            take: Makes room for so many numbers.
            arrived: Called before this returns, at last.

        Raises:
            PeerError: code ``server-gone``, which names it.
        """
        ...

    def finish(self) -> None:
        """Take each server's signature of its answers of this step."""
        ...

    def name(self, share: Share) -> str:
        """As errors say it: ``P (cloud-a)``."""
        ...


@dataclass(frozen=True, slots=True)
class _Masked:
    """An operand, and what it was masked with."""

    ints: I16
    seed: bytes = field(repr=False)
    basis: ResidueBasis


@dataclass(slots=True)
class _Call:
    """A layer's call: its operands stay until the step's verdict."""

    layer: Layer
    tensors: dict[Tensor, _Masked] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Wrong:
    """An answer that failed, for the verdict.

    Attributes:
        no_shares: Whose numbers were no shares at all.
    """

    call: _Call
    claim: Claim
    answers: Answers
    no_shares: tuple[Share, ...] = ()


@dataclass(frozen=True, slots=True)
class WrongAnswer:
    """Who answered wrongly, to what.

    Attributes:
        shares: Empty if every answer was right, and the product wrapped: our own fault.
        row: Of the product, computed again; None where numbers were no shares at all.
    """

    shares: tuple[Share, ...]
    layer: str
    direction: Direction
    step: int
    row: int | None


class MaskedProducts:
    """Products of one job.

    Args:
        servers: Of the three.
        kernels: Compute.

    Attributes:
        wrong: What servers answered wrongly so far.
        asked_s: Seconds so far from an exchange's first share sent to its last answer.
        crossed_bytes: Of all operands and answers so far.
    """

    def __init__(self, servers: AnsweringServers, kernels: Kernels) -> None:
        self.asked_s, self.crossed_bytes = 0.0, 0
        self._servers, self._kernels = servers, kernels
        self._one_core = replace(kernels, cores=1)
        self._masks, self._rooms = MaskSource(), Rooms()
        self._checker = ThreadPoolExecutor(1, "check")
        self.wrong: list[WrongAnswer] = []

    def begin(self, kind: StepKind, step: int) -> None:
        """A step begins, or begins again."""
        self._calls: list[_Call] = []
        self._checks: list[Callable[[], _Wrong | None]] = []
        self._step = step
        self._seeds = StepSeeds(self._masks)
        self._servers.begin(kind, step, self._seeds)

    def forward(self, exchange: Forward, x: I16, w: I16, scale: float) -> F32:
        """``y`` of a call, times a scale."""
        call = _Call(exchange.layer)
        self._calls.append(call)
        sent = self._mask(call, {"w": w, "x": x}, ("forward", *exchange.later))
        (y,) = self._ask(call, exchange, sent, {"forward": scale})
        return y

    def backward(
        self, exchange: Backward, dy: I16, scales: tuple[float, ...]
    ) -> list[F32]:
        """The gradients of a call that are asked for, each times its scale."""
        call = self._calls[exchange.call]
        sent = self._mask(call, {"dy": dy}, exchange.wants)
        asked = dict(zip(exchange.wants, scales, strict=True))
        return self._ask(call, exchange, sent, asked)

    def settle(self) -> None:
        """The step's verdict.

        Raises:
            IntegrityError: code ``wrong-product``, which names the server; ``wrapped`` if
                it was nobody's fault but ours.
            MalformedError: code ``bad-share``, which names it, too.
        """
        self._servers.finish()
        checked = [verdict() for verdict in self._checks]
        self._calls, self._checks = [], []
        for found in filter(None, checked):
            told = self._blame(found)
            self.wrong.append(told)
            raise self._refuse(told)

    def _ask(
        self,
        call: _Call,
        exchange: Exchange,
        sent: Sequence[MaskedShares],
        asked: Mapping[Direction, float],
    ) -> list[F32]:
        """The products of an exchange, each times its scale; they are checked later."""
        layer, began_s = call.layer, time.perf_counter()
        opened = [
            ProductOpening(layer.result(each), layer.basis(each), scale, self._one_core)
            for each, scale in asked.items()
        ]

        def arrived(product: int, here: slice, answers: Answers) -> None:
            opened[product].take(here, answers)

        found = self._servers.ask(exchange, sent, self._rooms.take, arrived)
        for each, direction, answers in zip(opened, asked, found, strict=True):
            each.wait()
            self._check(call, direction, each, answers)
        self.asked_s += time.perf_counter() - began_s
        shares = [share for each in sent for share in (each.plus, each.minus)]
        crossed = (*shares, *(each for three in found for each in three))
        self.crossed_bytes += sum(each.nbytes for each in crossed)
        self._rooms.give(*shares)
        return [each.floats for each in opened]

    def _mask(
        self,
        call: _Call,
        operands: dict[Tensor, I16],
        directions: tuple[Direction, ...],
    ) -> list[MaskedShares]:
        found = []
        for tensor, ints in operands.items():
            basis, flat = call.layer.basis_of(tensor, directions), ints.reshape(-1)
            plus, minus = (self._rooms.take(ints.size) for _ in range(2))
            seed = self._seeds.take(basis)
            parts: Sequence[Future[None]] = ()
            if ints.size <= PART:
                material = self._kernels.mask(flat, seed, plus, minus)
            else:
                material, parts = self._kernels.mask_ahead(flat, seed, plus, minus)
            call.tensors[tensor] = _Masked(ints, material, basis)
            found.append(MaskedShares(plus, minus, material, parts))
        return found

    def _check(
        self,
        call: _Call,
        direction: Direction,
        opened: ProductOpening,
        answers: Answers,
    ) -> None:
        """Look at answers, those of a large product while the step goes on."""
        found: _Wrong | None
        a, b = (call.tensors[each].ints for each in OPERANDS[direction])
        claim = Claim(
            layer=call.layer, direction=direction, a=a, b=b, c=opened.ints
        )  # fmt: skip
        if not opened.are_shares:
            found = _no_shares(call, claim, answers)
        elif max(a.size, b.size, claim.c.size) > PART:
            judging = self._checker.submit(self._judged, call, claim, answers)
            self._checks.append(judging.result)
            return
        else:
            found = self._judged(call, claim, answers)
        self._checks.append(lambda: found)

    def _judged(self, call: _Call, claim: Claim, answers: Answers) -> _Wrong | None:
        """What of it is wrong; of what is right nothing is kept."""
        try:
            claim.demand(self._kernels)
        except IntegrityError:
            return _Wrong(call, claim, answers)
        self._rooms.give(*answers)
        return None

    def _blame(self, wrong: _Wrong) -> WrongAnswer:
        """Whose answer it was: of one failing row, computed again for each server."""
        claim, row = wrong.claim, None
        while row is None and not wrong.no_shares:  # a row passes with 2**-33
            row = find_wrong_row(claim)
        return WrongAnswer(
            wrong.no_shares if row is None else self._liars(wrong, row),
            claim.layer.name,
            claim.direction,
            self._step,
            row,
        )

    def _liars(self, wrong: _Wrong, row: int) -> tuple[Share, ...]:
        claim, found = wrong.claim, []
        modulus = claim.layer.basis(claim.direction).modulus
        for share, answer in zip(SHARES, wrong.answers, strict=True):
            a, b = (
                partial(self._share, share, wrong.call.tensors[each])
                for each in OPERANDS[claim.direction]
            )
            right = exact_row(claim.layer, claim.direction, (a, b), row, modulus)
            if not np.array_equal(right, answer.reshape(-1, _columns(claim))[row]):
                found.append(share)
        return tuple(found)

    def _refuse(self, told: WrongAnswer) -> IntegrityError | MalformedError:
        names = " and ".join(map(self._servers.name, told.shares))
        layer = quote_foreign(told.layer)
        if told.row is None:
            return MalformedError(
                f"{names} sent an invalid share of {layer}",
                why="it contains a number that is not below the modulus",
                code="bad-share",
            )
        if not told.shares:
            return IntegrityError(
                f"a product of {layer} exceeded the modulus",
                why="every server answered correctly",
                code="product-wrapped",
            )
        return IntegrityError(
            f"{names} sent a wrong answer in step {told.step}, layer {layer}",
            why=f"row {told.row} of its product differs when it is computed again",
            code="wrong-product",
        )

    def _share(self, share: Share, masked: _Masked, start: int, stop: int) -> U32:
        """Numbers of what a server had, made again from its mask's seed."""
        size, first = masked.ints.size, start // BLOCK
        before = start - first * BLOCK
        end = min(size, -(-stop // BLOCK) * BLOCK)
        mask = np.empty(end - first * BLOCK, np.uint32)
        self._kernels.uniform(masked.seed, masked.basis, mask, first=first, size=size)
        mask = mask[before : before + stop - start]
        if share == "Z":
            return mask
        sign = 1 if share == "P" else -1
        wide = masked.ints.reshape(-1)[start:stop] + sign * mask.astype(np.int64)
        return (wide % masked.basis.modulus).astype(np.uint32)


def _no_shares(call: _Call, claim: Claim, answers: Answers) -> _Wrong:
    modulus = call.layer.basis(claim.direction).modulus
    sent = zip(SHARES, answers, strict=True)
    odd = tuple(name for name, each in sent if each.max() >= modulus)
    return _Wrong(call, claim, answers, odd)


def _columns(claim: Claim) -> int:
    weight = claim.direction == "weight"
    return claim.layer.depth("forward") if weight else int(claim.c.shape[-1])
