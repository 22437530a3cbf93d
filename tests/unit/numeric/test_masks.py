"""Masks are exactly uniform, used once, and different every time."""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sealift.crypto.keys import SecretKey
from sealift.crypto.keystream import Keystream
from sealift.errors import UsageError
from sealift.numeric import portable
from sealift.numeric.kernels import Kernels
from sealift.numeric.keystream import (
    MaskSeed,
    MaskSource,
    StepSeeds,
    mask_stream,
    rounding_noise,
)
from sealift.numeric.residues import BASES, ResidueBasis, Words

WORDS = 1 << 48
bases = st.sampled_from(BASES)


def halves(words: list[int]) -> Words:
    low = np.array([each & 0xFFFFFFFF for each in words], np.uint32)
    return low, np.array([each >> 32 for each in words], np.uint16)


@pytest.mark.parametrize("modulus", [15, 35])
def test_every_number_has_as_many_words(modulus: int) -> None:
    words = np.arange(256)
    parts = (words & 31).astype(np.uint32), (words >> 5).astype(np.uint16)
    numbers, rests = portable._reduced(parts, modulus, (5, 3))
    counts = Counter(numbers[rests >= 256 % modulus].tolist())
    assert set(counts.values()) == {256 // modulus}
    assert len(counts) == modulus
    # What is biased, and would be found here: no rejection, and words modulo Q.
    assert len(set(Counter(numbers.tolist()).values())) == 2
    assert len(set(Counter((words % modulus).tolist()).values())) == 2


@settings(deadline=None, max_examples=200)
@given(basis=bases, number=st.integers(0, 2**32 - 1))
def test_a_number_has_its_words_and_no_other(
    compiled: Kernels, portable: Kernels, basis: ResidueBasis, number: int
) -> None:
    """The first and the last word that count, and those beside them."""
    modulus = basis.modulus
    number %= modulus
    unfair = WORDS % modulus
    first = -(-(number * WORDS + unfair) // modulus)
    last = -(-((number + 1) * WORDS) // modulus) - 1
    assert last - first + 1 == WORDS // modulus  # of every number alike
    spare = -(-(7 * WORDS + unfair) // modulus)
    beside = [first, last, *([first - 1] if first else [])]
    for kernels in (compiled, portable):
        for word in beside:
            out = np.empty(1, np.uint32)
            assert kernels.loops.uniform(halves([word, spare]), modulus, out) == 0
            counts = word * modulus % WORDS >= unfair
            assert out[0] == (word * modulus // WORDS if counts else 7)


def test_spares_stand_in_in_order_and_may_lack(
    compiled: Kernels, portable: Kernels
) -> None:
    modulus = BASES[1].modulus
    words = [-(-((n + 1) * WORDS - 2**34) // modulus) for n in range(5000)]
    for place in (0, 1, 2047, 2048, 4999):
        words[place] = 0  # does not count
    spares = [words[each] for each in (11, 12)] + [0] + [words[13]]
    q = np.zeros(5000, np.int16)
    for kernels in (compiled, portable):
        out, minus = np.empty(5000, np.uint32), np.empty(5000, np.uint32)
        assert kernels.loops.uniform(halves(words + spares), modulus, out) == 2
        assert out[[0, 1, 2047]].tolist() == [11, 12, 13]
        assert kernels.loops.mask(halves(words + spares), modulus, q, out, minus) == 2
        enough = [*words, *spares, words[14], words[15]]
        assert kernels.loops.uniform(halves(enough), modulus, out) == 0
        assert out[[2048, 4999]].tolist() == [14, 15]


def test_a_block_that_lacks_is_drawn_again(
    portable: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt's words count nowhere; the second's are taken."""
    real, basis = Keystream.fill, BASES[1]
    seed, attempts = os.urandom(32), []

    def fill(self: Keystream, block: int, out: memoryview, attempt: int = 0) -> None:
        attempts.append(attempt)
        real(self, block, out, attempt)
        if attempt == 0:
            out[:] = bytes(len(out))

    monkeypatch.setattr(Keystream, "fill", fill)
    out, want = np.empty(100, np.uint32), np.empty(100, np.uint32)
    portable.uniform(seed, basis, out)
    assert attempts == [0, 1]
    raw = np.empty(6 * 116 + 16, np.uint8)
    real(mask_stream(seed, basis), 0, raw.data, 1)
    words = raw[: 4 * 116].view(np.uint32), raw[4 * 116 : -16].view(np.uint16)
    portable.loops.uniform(words, basis.modulus, want)
    assert (out == want).all()


def test_a_seed_masks_one_tensor(portable: Kernels) -> None:
    q = np.zeros(3, np.int16)
    plus, minus = np.empty(3, np.uint32), np.empty(3, np.uint32)
    seed = MaskSource().seed(BASES[0])
    portable.mask(q, seed, plus, minus)
    with pytest.raises(UsageError, match="second tensor"):
        portable.mask(q, seed, plus, minus)


def test_no_two_seeds_are_alike() -> None:
    one, other = MaskSource(), MaskSource()
    later = MaskSource(key_epoch=1)
    later._key = one._key
    made = [source.seed(basis) for source in (one, other, later) for basis in BASES * 2]
    assert len({seed.spend() for seed in made}) == len(made)


def test_seeds_that_z_has_before_belong_to_the_tensors_in_their_order() -> None:
    seeds = StepSeeds(MaskSource())
    bases = [BASES[0], BASES[1], BASES[0]]
    for_z = [seeds.draw(basis) for basis in bases]
    taken = [seeds.take(basis) for basis in bases]
    assert [seed.spend() for seed in taken] == for_z
    assert len({*for_z, seeds.take(BASES[0]).spend()}) == 4
    for seed in taken:
        with pytest.raises(UsageError, match="after it was used"):
            seed.for_z()


def test_a_tensor_that_is_not_the_next_one_gets_no_mask() -> None:
    seeds = StepSeeds(MaskSource())
    seeds.draw(BASES[0])
    with pytest.raises(UsageError, match="out of the order"):
        seeds.take(BASES[1])


def test_a_modulus_has_its_own_words() -> None:
    blocks = []
    for basis in BASES:
        blocks.append(bytearray(48))
        mask_stream(bytes(32), basis).fill(0, blocks[-1])
    assert blocks[0][:32] != blocks[1][:32]


def test_a_mask_is_no_rounding_noise_and_does_not_print() -> None:
    seed = MaskSource().seed(BASES[0])
    shown = repr(seed)
    assert seed.spend().hex() not in shown
    assert shown == "<MaskSeed>"
    key = SecretKey(bytes(32))
    places = [(1, 2, "x"), (1, 3, "x"), (2, 2, "x"), (1, 2, "w")]
    assert len({rounding_noise(key, *place) for place in places}) == len(places)
    assert isinstance(seed, MaskSeed)


def test_a_fork_has_no_masks() -> None:
    source = MaskSource()
    child = os.fork()
    if child == 0:
        try:
            source.seed(BASES[0])
        except UsageError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
