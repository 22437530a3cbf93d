"""One server learns nothing: counted out, mask by mask, at composite moduli (G1, G2, G8).

With moduli of 15 and 21 every mask there is can be tried; `make test` tries the smaller
one without gradients, and controls, which only have to be seen, need no more. A server's view is all that it gets in a step, in order, sizes and
what it is told at the end included; over all masks it has to occur equally often whatever
the operands are. Two servers together are the
positive control, as is each way to draw masks that is not uniform or not fresh.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest

from sealift.errors import IntegrityError, JobError
from sealift.numeric.kernels import Kernels, portable_kernels
from sealift.numeric.keystream import MaskSeed
from sealift.numeric.residues import F32, I16, U32, ResidueBasis
from sealift.outsource import terms
from sealift.outsource.masked import SHARES, MaskedProducts, Share
from sealift.outsource.multiplier import Multiplier
from sealift.outsource.terms import Backward, Direction, Forward, Layer
from sealift.outsource.trace import Recorder, StepKind
from tests.sim.shareservers import Bend, InPlaceServers, honest, residue_product

LOOPS = portable_kernels().loops
LAYER = Layer(name="fc", batch=1, inputs=1, outputs=1)
INPUTS = [(0.0, 0.0, 0.0), (-3.0, 3.0, 2.0), (float("nan"), 1.0, 1.0)]
Draw = Callable[[Sequence[int], int], int]  # from the words there are, for a tensor


def own_word(words: Sequence[int], tensor: int) -> int:
    return words[tensor]


class CountedKernels(Kernels):
    """Masks are the words that they are given, one for each tensor."""

    words: Sequence[int]
    draw: Draw

    def mask(self, q: I16, seed: MaskSeed, plus: U32, minus: U32) -> bytes:
        u = self.draw(self.words, self.tensor)
        object.__setattr__(self, "tensor", self.tensor + 1)
        modulus = seed.basis.modulus
        plus[:] = (q.astype(np.int64) + u) % modulus
        minus[:] = (q.astype(np.int64) - u) % modulus
        return u.to_bytes(4, "big")

    def uniform(
        self,
        seed: bytes,
        basis: ResidueBasis,
        out: U32,
        *,
        first: int = 0,
        size: int = 0,
    ) -> None:
        out[:] = int.from_bytes(seed, "big")

    def begin(self, words: Sequence[int], draw: Draw) -> None:
        for name, value in (("words", words), ("draw", draw), ("tensor", 0)):
            object.__setattr__(self, name, value)


KERNELS = CountedKernels(LOOPS)


@pytest.fixture(
    params=[
        pytest.param((3, 5), id="15"),
        pytest.param((3, 7), id="21", marks=pytest.mark.long),
    ]
)
def basis(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> ResidueBasis:
    found = ResidueBasis(request.param)
    monkeypatch.setattr(terms, "BASES", (found,))
    monkeypatch.setattr("tests.sim.shareservers._KERNELS", KERNELS)
    monkeypatch.setattr("tests.sim.shareservers.residue_product", remembered_products())
    return found


def remembered_products() -> Callable[..., U32]:
    """Of one number and another: each is asked for again with every other mask."""
    known: dict[tuple[Direction, bytes, bytes], U32] = {}

    def product_of(
        layer: Layer, direction: Direction, a: U32, b: U32, basis: ResidueBasis
    ) -> U32:
        operands = direction, a.tobytes(), b.tobytes()
        if operands not in known:
            known[operands] = residue_product(layer, direction, a, b, basis)
        return known[operands].copy()

    return product_of


def views(
    values: tuple[float, ...],
    basis: ResidueBasis,
    *,
    tensors: int = 2,
    draw: Draw = own_word,
    bend: Bend = honest,
) -> dict[Share, list[str]]:
    """Of each server, over all masks of so many tensors."""
    found: dict[Share, list[str]] = {"P": [], "M": [], "Z": []}
    for words in product(range(basis.modulus), repeat=tensors):
        KERNELS.begin(words, draw)
        servers = InPlaceServers(bend)
        products = MaskedProducts(servers, KERNELS)
        run(Multiplier(products, KERNELS, 1), values[:tensors])
        for share, seen in servers.views.items():
            found[share].append(str(list(map(text, flat(seen)))))
    return found


def run(multiplier: Multiplier, values: tuple[float, ...]) -> None:
    """A step to train where there is a gradient; how it ends is told to no server."""
    tensors: tuple[terms.Tensor, ...] = ("x", "w", "dy")
    x, w, *dy = (
        np.full(LAYER.shape(tensor), value, np.float32)
        for tensor, value in zip(tensors, values, strict=False)
    )
    later: tuple[Direction, ...] = ("input", "weight") if dy else ()
    multiplier.begin(StepKind("train", 1), 0, Recorder())
    multiplier.forward(Forward(LAYER, later), x, w)
    if dy:
        multiplier.backward(Backward(0, later), dy[0])
    with suppress(IntegrityError, JobError):
        multiplier.settle()


def flat(seen: Sequence[object]) -> Iterator[object]:
    for each in seen:
        yield from each if type(each) is tuple else (each,)


def text(each: object) -> str:
    return (
        f"{each.shape} {each.tolist()}" if isinstance(each, np.ndarray) else repr(each)
    )


def distributions(
    found: Sequence[dict[Share, list[str]]], *shares: Share
) -> list[Counter[str]]:
    """For each of several operands, how often a view of these servers together occurs."""
    return [
        Counter("|".join(each) for each in zip(*(seen[s] for s in shares), strict=True))
        for seen in found
    ]


def require_equal_views(found: Sequence[dict[Share, list[str]]]) -> None:
    """Of each server alone; two together are the positive control."""
    for share in SHARES:
        first, *others = distributions(found, share)
        assert all(other == first for other in others)
        assert set(first.values()) == {1}
    for pair in combinations(SHARES, 2):
        first, other, _ = distributions(found, *pair)
        assert not first & other


def test_a_view_is_as_likely_whatever_the_operands_are(basis: ResidueBasis) -> None:
    require_equal_views([views(values, basis) for values in INPUTS])


@pytest.mark.long
@pytest.mark.parametrize("basis", [(3, 5)], ids=["15"], indirect=True)
def test_so_it_is_with_gradients(basis: ResidueBasis) -> None:
    """At 21 there would be many more masks of three tensors."""
    require_equal_views([views(values, basis, tensors=3) for values in INPUTS])


MUTANTS: dict[str, Draw] = {
    "biased": lambda words, tensor: words[tensor] * 3 // 4,
    "one mask for two tensors": lambda words, tensor: words[tensor // 2],
    "none": lambda words, tensor: 0,
}


@pytest.mark.parametrize("basis", [(3, 5)], ids=["15"], indirect=True)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_masks_that_are_not_fresh_and_uniform_are_seen(
    basis: ResidueBasis, mutant: str
) -> None:
    seen = [views(values, basis, draw=MUTANTS[mutant]) for values in INPUTS]
    first, *others = distributions(seen, "P")
    assert any(other != first for other in others)


@pytest.mark.parametrize("share", SHARES)
def test_a_server_that_lies_sees_no_more(basis: ResidueBasis, share: Share) -> None:
    def bend(who: Share, _: Layer, _direction: Direction, answer: U32) -> U32:
        more = np.uint32(who == share)
        return (answer + more) % np.uint32(basis.modulus)

    first, *others = distributions(
        [views(values, basis, bend=bend) for values in INPUTS], share
    )
    assert all(other == first for other in others)


@pytest.mark.parametrize("basis", [(3, 5)], ids=["15"], indirect=True)
def test_a_modulus_that_follows_norms_would_be_seen(
    basis: ResidueBasis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant of rule C2: the exchange that a server gets says what it should not."""
    original = MaskedProducts.forward

    def forward(
        self: MaskedProducts, exchange: Forward, x: I16, w: I16, scale: float
    ) -> F32:
        name = "wide" if np.abs(w).max(initial=0) else "narrow"
        layer = replace(exchange.layer, name=name)
        return original(self, Forward(layer, exchange.later), x, w, scale)

    monkeypatch.setattr(MaskedProducts, "forward", forward)
    first, *others = distributions([views(values, basis) for values in INPUTS], "P")
    assert any(other != first for other in others)
