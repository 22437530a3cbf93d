"""Masked products equal plain ones, bit for bit, and a wrong answer has a name."""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from sealift.errors import (
    IntegrityError,
    JobError,
    MalformedError,
    PeerError,
    SealiftError,
    UsageError,
)
from sealift.numeric.kernels import BLOCK, Kernels
from sealift.numeric.residues import BASES, F32, U32, Answers
from sealift.outsource.check import Claim, exact_row
from sealift.outsource.exchange import Arrived, MaskedShares
from sealift.outsource.masked import SHARES, MaskedProducts, Share
from sealift.outsource.multiplier import Multiplier
from sealift.outsource.plain import PlainProducts, product
from sealift.outsource.quantize import _norms, window_of
from sealift.outsource.terms import (
    OPERANDS,
    Backward,
    Direction,
    Exchange,
    Forward,
    Layer,
    Tensor,
)
from sealift.outsource.trace import Recorder, StepKind
from tests.sim.quickkernels import quick_kernels
from tests.sim.shareservers import Bend, InPlaceServers, residue_product

BOTH: tuple[Direction, ...] = ("input", "weight")
TENSORS: tuple[Tensor, ...] = ("x", "w", "dy")
LAYERS = {
    "linear": Layer(name="fc", batch=7, inputs=33, outputs=10),
    "one row": Layer(name="fc", batch=1, inputs=5, outputs=3, edge=True),
    "conv": Layer(
        name="c", batch=3, inputs=4, outputs=5, height=6, width=7, kernel=(3, 3),
        padding=(1, 1),
    ),
    "stride": Layer(
        name="c", batch=2, inputs=3, outputs=4, height=9, width=8, kernel=(3, 2),
        stride=(2, 3), padding=(1, 0),
    ),
    "pixel": Layer(name="c", batch=2, inputs=6, outputs=4, height=3, width=3, edge=True),
}  # fmt: skip


def values(layer: Layer, seed: int = 0) -> tuple[F32, F32, F32]:
    rng = np.random.default_rng(seed)
    x, w, dy = (rng.standard_normal(layer.shape(t)).astype(np.float32) for t in TENSORS)
    return x, w, dy * np.float32(1e-3)


def step(
    multiplier: Multiplier, layer: Layer, tensors: tuple[F32, F32, F32], number: int = 0
) -> list[F32]:
    x, w, dy = tensors
    multiplier.begin(StepKind("train", layer.batch), number, Recorder())
    y = multiplier.forward(Forward(layer, BOTH), x, w)
    found = [y, *multiplier.backward(Backward(0, BOTH), dy)]
    multiplier.settle()
    return found


@pytest.fixture(params=LAYERS)
def layer(request: pytest.FixtureRequest) -> Layer:
    return LAYERS[request.param]


def masked(servers: InPlaceServers) -> Multiplier:
    return Multiplier(MaskedProducts(servers, quick_kernels()), quick_kernels(), 5)


def plain() -> Multiplier:
    return Multiplier(PlainProducts(), quick_kernels(), 5)


def test_masked_products_are_the_plain_ones(layer: Layer) -> None:
    tensors = values(layer)
    ours = step(masked(InPlaceServers()), layer, tensors)
    theirs = step(plain(), layer, tensors)
    for mine, reference in zip(ours, theirs, strict=True):
        assert np.array_equal(mine, reference)


def test_products_are_those_of_real_numbers_within_their_widths(layer: Layer) -> None:
    torch = pytest.importorskip("torch")
    x, w, dy = values(layer)
    image = torch.from_numpy(x).permute(0, 3, 1, 2).double().requires_grad_()
    kernel = torch.from_numpy(w).permute(0, 3, 1, 2).double().requires_grad_()
    y = torch.nn.functional.conv2d(
        image, kernel, stride=layer.stride, padding=layer.padding
    )
    y.backward(torch.from_numpy(dy).permute(0, 3, 1, 2).double())
    found = step(plain(), layer, (x, w, dy))
    for mine, other in zip(found, (y.detach(), image.grad, kernel.grad), strict=True):
        reference = other.permute(0, 2, 3, 1).numpy()
        error = np.abs(mine - reference).max() / np.abs(reference).max()
        assert error < (0.003 if layer.edge else 0.04)


WRONG: dict[str, Callable[[U32], U32]] = {
    "one number": lambda a: _changed(a, 1),
    "a third of Q": lambda a: _changed(a, 255 * 253 * 251 // 3),
    "zeroed": np.zeros_like,
    "scaled": lambda a: (a.astype(np.uint64) * 2 % (255 * 253 * 251)).astype(np.uint32),
}


def _changed(answer: U32, by: int) -> U32:
    found = answer.copy()
    flat = found.reshape(-1)
    flat[-1] = (int(flat[-1]) + by) % (255 * 253 * 251)
    return found


@pytest.mark.parametrize("direction", ["forward", "input", "weight"])
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("how", WRONG)
def test_a_wrong_answer_is_found_and_its_server_named(
    layer: Layer, direction: Direction, share: Share, how: str
) -> None:
    def bend(who: Share, _: Layer, what: Direction, answer: U32) -> U32:
        return WRONG[how](answer) if (who, what) == (share, direction) else answer

    servers = InPlaceServers(bend)
    with pytest.raises(
        IntegrityError, match=f"{share} .cloud-{share.lower()}."
    ) as found:
        step(masked(servers), layer, values(layer))
    assert found.value.code == "wrong-product"
    assert not any(
        f"{other} (" in str(found.value) for other in SHARES if other != share
    )


@pytest.mark.parametrize("share", SHARES)
def test_a_number_that_is_no_share_is_found(layer: Layer, share: Share) -> None:
    def bend(who: Share, _: Layer, what: Direction, answer: U32) -> U32:
        return answer + np.uint32((1 << 32) - 1) - answer if who == share else answer

    with pytest.raises(MalformedError, match=f"{share} .cloud") as found:
        step(masked(InPlaceServers(bend)), layer, values(layer))
    assert found.value.code == "bad-share"


def test_a_step_done_again_has_the_same_numbers_and_other_masks() -> None:
    layer, servers = LAYERS["conv"], InPlaceServers()
    multiplier, tensors = masked(servers), values(LAYERS["conv"])
    first, second = (step(multiplier, layer, tensors, 4) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    seeds = [
        each for seen in servers.views["Z"] for each in seen if type(each) is bytes
    ]
    assert len(seeds) == len(set(seeds)) == 6


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_not_finite_is_told_after_the_verdict(odd: float, place: int) -> None:
    layer, servers = LAYERS["conv"], InPlaceServers()
    tensors = values(layer)
    tensors[place].reshape(-1)[3] = odd
    with pytest.raises(JobError, match=r"of c in step 0") as found:
        step(masked(servers), layer, tensors)
    assert found.value.code == "operand-not-finite"
    assert servers.views["P"][-1] == "finish"


@pytest.mark.parametrize("fill", [0.0, 1e-42, 3.4e38, -1.0])
def test_extreme_tensors_never_wrap(layer: Layer, fill: float) -> None:
    tensors = tuple(np.full(e.shape, fill, np.float32) for e in values(layer))
    x, w, dy = tensors
    ours = step(masked(InPlaceServers()), layer, (x, w, dy))
    theirs = step(plain(), layer, (x, w, dy))
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("batch", "inputs", "moduli"), [(2000, 40, 4), (40, 3000, 3)])
def test_a_deep_product_of_extremes_loses_bits_and_never_wraps(
    batch: int, inputs: int, moduli: int
) -> None:
    layer = Layer(name="fc", batch=batch, inputs=inputs, outputs=3)
    assert len(layer.basis("weight").moduli) == moduli
    ones = np.ones(layer.shape("x"), np.float32)
    w, dy = (np.full(layer.shape(t), 0.7, np.float32) for t in TENSORS[1:])
    found = step(masked(InPlaceServers()), layer, (ones, w, dy))
    assert np.allclose(found[0], 0.7 * inputs, rtol=0.02)
    assert np.allclose(found[2], 0.7 * batch, rtol=0.02)


CANCELLING: dict[Direction, tuple[slice | int, ...]] = {
    "forward": (slice(0, 2), 0, 0, 0),
    "input": (slice(0, 2), 0, 0, 0),
    "weight": (slice(0, 2), 0, 0, 0),
}


@pytest.mark.parametrize("direction", CANCELLING)
def test_errors_that_cancel_are_found(direction: Direction) -> None:
    """Whoever knew the coefficients could choose such (Slalom's were constants)."""

    def bend(who: Share, _: Layer, what: Direction, answer: U32) -> U32:
        if (who, what) != ("M", direction):
            return answer
        found = answer.astype(np.int64)
        found[CANCELLING[direction]] += (2, -2)
        return (found % layer.basis(direction).modulus).astype(np.uint32)

    layer = LAYERS["conv"]
    with pytest.raises(IntegrityError, match=r"M .cloud-m."):
        step(masked(InPlaceServers(bend)), layer, values(layer))


def test_coefficients_are_drawn_once_the_answers_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    draw, ask = os.urandom, InPlaceServers.ask

    def drawn(length: int) -> bytes:
        order.append("draw")
        return draw(length)

    def asked(self: InPlaceServers, *what: Any) -> list[Answers]:
        found = ask(self, *what)
        order.append("answers")
        return found

    monkeypatch.setattr("sealift.outsource.check.os.urandom", drawn)
    monkeypatch.setattr(InPlaceServers, "ask", asked)
    layer = LAYERS["linear"]
    step(masked(InPlaceServers()), layer, values(layer))
    assert order == ["answers", *["draw"] * 2, "answers", *["draw"] * 4]


def test_a_verdict_waits_for_checks_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of large products are made while the step goes on."""
    monkeypatch.setattr("sealift.outsource.masked.PART", 8)
    checked, demand = threading.Event(), Claim.demand

    def slow(self: Claim, kernels: Kernels) -> None:
        checked.wait(0.2)
        demand(self, kernels)

    def bend(who: Share, _: Layer, what: Direction, answer: U32) -> U32:
        return _changed(answer, 1) if (who, what) == ("Z", "forward") else answer

    monkeypatch.setattr(Claim, "demand", slow)
    layer = LAYERS["linear"]
    with pytest.raises(IntegrityError, match=r"^Z .cloud-z. sent"):
        step(masked(InPlaceServers(bend)), layer, values(layer))


def test_an_overflow_of_our_own_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sealift.outsource.quantize._excess", lambda *_: 0)
    layer = Layer(name="deep", batch=1, inputs=3000, outputs=1)
    x, w, dy = (np.ones(layer.shape(t), np.float32) for t in TENSORS)
    with pytest.raises(IntegrityError, match="of deep exceeded") as found:
        step(masked(InPlaceServers()), layer, (x, w, dy))
    assert found.value.code == "product-wrapped"


@pytest.mark.parametrize("most", [1, 40])
@pytest.mark.parametrize("direction", list(OPERANDS))
def test_rows_computed_again_are_those_of_a_server(
    layer: Layer, direction: Direction, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces of any size, from shares that come in runs."""
    monkeypatch.setattr("sealift.outsource.check.PIECE", most)
    basis, rng = layer.basis(direction), np.random.default_rng(1)
    a, b = (
        rng.integers(0, basis.modulus, layer.shape(t), np.uint32)
        for t in OPERANDS[direction]
    )
    right = residue_product(layer, direction, a, b, basis)
    width = layer.depth("forward") if direction == "weight" else right.shape[-1]
    rows = right.reshape(-1, width)
    shares = (lambda i, j: a.ravel()[i:j]), (lambda i, j: b.ravel()[i:j])
    for row in {0, len(rows) // 2, len(rows) - 1}:
        found = exact_row(layer, direction, shares, row, basis.modulus)
        assert np.array_equal(found, rows[row])


@pytest.mark.long
@pytest.mark.parametrize("direction", list(OPERANDS))
def test_naming_a_server_takes_little_memory(
    direction: Direction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less than the operands take, where they are large: they were 64 times that."""
    monkeypatch.setattr("sealift.outsource.check.PIECE", 1 << 14)
    layer = Layer(
        name="c", batch=24, inputs=16, outputs=24, height=32, width=32, kernel=(3, 3),
        padding=(1, 1),
    )  # fmt: skip

    def bend(who: Share, _: Layer, what: Direction, answer: U32) -> U32:
        return _changed(answer, 1) if (who, what) == ("Z", direction) else answer

    products = MaskedProducts(InPlaceServers(bend), quick_kernels())
    multiplier, (x, w, dy) = Multiplier(products, quick_kernels(), 5), values(layer)
    multiplier.begin(StepKind("train", layer.batch), 0, Recorder())
    multiplier.forward(Forward(layer, BOTH), x, w)
    multiplier.backward(Backward(0, BOTH), dy)
    for verdict in products._checks:
        verdict()
    tracemalloc.start()
    try:
        with pytest.raises(IntegrityError, match=r"^Z .cloud-z. sent"):
            multiplier.settle()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * (x.size + w.size + dy.size)


class RoomyServers(InPlaceServers):
    """Answer in memory of the accelerator's own, as connections do, and may leave then."""

    def __init__(self, bend: Bend, *, leave: bool) -> None:
        super().__init__(bend)
        self.leave = leave

    def ask(
        self,
        exchange: Exchange,
        sent: Sequence[MaskedShares],
        take: Callable[[int], U32],
        arrived: Arrived,
    ) -> list[Answers]:
        found = super().ask(exchange, sent, take, lambda *_: None)
        for views in self.views.values():
            views.clear()
        rooms: list[Answers] = []
        for number, (p, m, z) in enumerate(found):
            rooms.append((take(p.size), take(m.size), take(z.size)))
            for room, answer in zip(rooms[-1], (p, m, z), strict=True):
                room[:] = answer
            if not self.leave:
                arrived(number, slice(0, p.size), rooms[-1])
        if self.leave:
            raise PeerError("P (cloud-p) is gone", code="server-gone")
        return rooms


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (lambda a: a, "server-gone"),
        (lambda a: _changed(a, 1), "wrong-product"),
        (lambda a: np.full_like(a, (1 << 32) - 1), "bad-share"),
    ],
)
def test_exchanges_that_failed_leave_no_memory(
    answer: Callable[[U32], U32], code: str
) -> None:
    """A step is tried again up to 1024 times; each large layer has hundreds of MB."""
    layer = Layer(name="fc", batch=1_100, inputs=8, outputs=256)

    def bend(who: Share, _: Layer, what: Direction, right: U32) -> U32:
        return answer(right) if who == "P" else right

    servers = RoomyServers(bend, leave=code == "server-gone")
    multiplier, (x, w, _) = masked(servers), values(layer)

    def try_step(number: int) -> None:
        multiplier.begin(StepKind("train", layer.batch), number, Recorder())
        multiplier.forward(Forward(layer, ()), x, w)
        multiplier.settle()

    def fail(number: int) -> None:
        with pytest.raises(SealiftError) as caught:
            try_step(number)
        assert caught.value.code == code

    tracemalloc.start()
    try:
        sizes = []
        for number in range(5):
            fail(number)
            gc.collect()  # errors hold the frames in which they were raised
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    answer_bytes = 4 * layer.batch * layer.outputs
    assert sizes[-1] - sizes[1] < answer_bytes


def test_parts_of_a_mask_are_the_mask() -> None:
    basis, size = BASES[0], 2 * BLOCK + 70
    whole = np.empty(size, np.uint32)
    quick_kernels().uniform(bytes(32), basis, whole)
    for first, end in ((0, BLOCK), (1, size), (1, 2 * BLOCK), (2, size)):
        part = np.empty(end - first * BLOCK, np.uint32)
        quick_kernels().uniform(bytes(32), basis, part, first=first, size=size)
        assert np.array_equal(part, whole[first * BLOCK : end])
    with pytest.raises(UsageError):
        quick_kernels().uniform(bytes(32), basis, whole[:70], size=size)


@pytest.mark.parametrize("padding", [(0, 0), (2, 1)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 3), (4, 1)])
def test_norms_are_those_of_what_each_tap_sees(
    stride: tuple[int, int], padding: tuple[int, int]
) -> None:
    layer = Layer(
        name="one", batch=2, inputs=3, outputs=4, height=7, width=5,
        kernel=(3, 2), stride=stride, padding=padding,
    )  # fmt: skip
    draw = np.random.default_rng(5)
    x, dy, w = (
        draw.integers(-99, 99, layer.shape(each)).astype(np.int16)
        for each in ("x", "dy", "w")
    )
    seen, reached = np.zeros((2, *layer.out)), np.zeros((2, 7, 5))
    for _, _, places, pixels in window_of(layer).taps(7, 5):
        seen[:, *places] += (x[:, *pixels].astype(float) ** 2).sum(-1)
        reached[:, *pixels] += (dy[:, *places].astype(float) ** 2).sum(-1)
    assert _norms(quick_kernels(), layer, "forward", x, w)[0] == seen.max()
    assert _norms(quick_kernels(), layer, "input", dy, w)[0] == reached.max()


class EndedError(Exception):
    """What ends a piece of work."""


@pytest.mark.parametrize("direction", ["forward", "input", "weight"])
def test_what_is_called_between_pieces_ends_each_product(direction: Direction) -> None:
    layer = LAYERS["conv"]

    def end() -> None:
        raise EndedError

    a, b = (np.ones(layer.shape(each), np.int16) for each in OPERANDS[direction])
    assert product(layer, direction, a, b).any()
    with pytest.raises(EndedError):
        product(layer, direction, a, b, end)
