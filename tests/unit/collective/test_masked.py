"""Masked sums: what they come to, what each rank sees, and that no mask is used twice."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sealift.collective.announcement import Algorithm
from sealift.collective.group import SealedGroup
from sealift.collective.masked import MaskedSums, add_masks, encode_numbers
from sealift.crypto.aead import TAG_BYTES
from sealift.crypto.keys import TOKEN
from sealift.errors import (
    JobError,
    MalformedError,
    PeerError,
    SealiftError,
    UsageError,
)
from sealift.ids import Buffer
from sealift.release.agreement.sums import COUNTS, MEASURES, SCALARS, SumEncoding
from tests.sim.wires import SimulatedWire, simulated_wires

USUAL = SumEncoding(1.0, 26, 32)
RANKS = 3


def on_ranks(
    work: Callable[[int, MaskedSums], Any],
    *,
    world: int = RANKS,
    wires: Sequence[dict[int, Any]] | None = None,
    encodings: Sequence[SumEncoding] = (),
) -> list[Any]:
    """What each rank came to; an error as it is."""
    ends = wires or simulated_wires(world)

    def one(rank: int) -> Any:
        with SealedGroup(rank, ends[rank]) as group:
            try:
                sums = MaskedSums(group, encodings[rank] if encodings else USUAL)
                sums.renew()
                return work(rank, sums)
            except SealiftError as error:
                return error

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(one, range(world)))


def numbers_of(rank: int, size: int = 100_000, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(rank).uniform(-0.9, 0.9, size).astype(dtype)


@pytest.mark.parametrize(
    ("encoding", "dtype"),
    [
        (USUAL, np.float32),
        (USUAL, np.float64),
        (USUAL.wide, np.float32),
        (USUAL.wide, np.float64),
        (MEASURES, np.float64),
    ],
)
@pytest.mark.parametrize("world", [2, 3, 5])
def test_the_sum_is_everybodys(world: int, encoding: SumEncoding, dtype: Any) -> None:
    def work(rank: int, sums: MaskedSums) -> Any:
        mine = numbers_of(rank, dtype=dtype)
        sums.add_up(mine, encoding)
        return mine, sums.count_cut()

    found = on_ranks(work, world=world)
    exact = sum(
        numbers_of(rank, dtype=dtype).astype(np.float64) for rank in range(world)
    )
    for total, cut in found:
        assert cut == 0
        assert (total == found[0][0]).all()
        least = world * 2.0 ** -(encoding.places + 1) + 4 * np.finfo(dtype).eps
        assert np.abs(total - exact).max() <= least


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_the_bits_of_a_sum_depend_on_no_order(algorithm: Algorithm) -> None:
    """Control: sums of floating-point numbers do."""
    order = [2, 0, 1]

    def work(rank: int, sums: MaskedSums, place: Callable[[int], int]) -> Any:
        mine = numbers_of(place(rank))
        sums.add_up(mine, USUAL, algorithm)
        return mine

    one = on_ranks(lambda rank, sums: work(rank, sums, lambda n: n))
    other = on_ranks(lambda rank, sums: work(rank, sums, lambda n: order[n]))
    assert (one[0] == other[0]).all()
    a, b, c = (numbers_of(rank) for rank in range(RANKS))
    assert ((a + b) + c != (c + a) + b).any()


@pytest.mark.parametrize("size", [1, 3, 4, 5, 33])
def test_numbers_of_any_count_are_followed_by_wider_ones(size: int) -> None:
    """An odd count of narrow numbers came before: the room for codes is used again."""

    def work(rank: int, sums: MaskedSums) -> Any:
        for many, one in ((USUAL, MEASURES), (USUAL, USUAL.wide), (MEASURES, USUAL)):
            mine = np.full(size, 0.25)
            sums.add_up(mine, many)
            assert mine.tolist() == [0.75] * size
            few = np.full(1, 0.5)
            sums.add_up(few, one)
            assert few.tolist() == [1.5]
        return sums.count_cut()

    assert on_ranks(work) == [0] * RANKS


def test_what_is_beyond_the_bound_is_cut_and_counted() -> None:
    def work(rank: int, sums: MaskedSums) -> Any:
        mine = np.array([0.5, 7.0, -(10.0**30), 0.25], np.float32)
        sums.add_up(mine, sums.encoding)
        return mine.tolist(), sums.count_cut(), sums.count_cut()

    for total, cut, after in on_ranks(work):
        assert total == [1.5, 3.0, -3.0, 0.75]
        assert (cut, after) == (2 * RANKS, 0)


def test_the_largest_sum_that_is_agreed_on_fits() -> None:
    def work(rank: int, sums: MaskedSums) -> Any:
        most = np.full(3, np.inf if rank < 0 else 1e30, np.float64)
        least = -most
        sums.add_up(most, sums.encoding)
        sums.add_up(least, sums.encoding)
        return most.tolist(), least.tolist()

    tight = SumEncoding(1.0, 28, 32)  # 5 ranks: 5 * 2**28 < 2**31
    for most, least in on_ranks(work, world=5, encodings=[tight] * 5):
        assert most == [5.0] * 3
        assert least == [-5.0] * 3


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_never_sent(odd: float) -> None:
    def work(rank: int, sums: MaskedSums) -> Any:
        mine = np.zeros(5, np.float32)
        mine[3] = odd
        with pytest.raises(JobError) as caught:
            sums.add_up(mine, sums.encoding)
        return caught.value.code

    assert on_ranks(work) == ["not-finite"] * RANKS


@pytest.mark.parametrize(
    ("encoding", "ranks", "fits"),
    [
        (SumEncoding(1.0, 26, 32), 16, True),
        (SumEncoding(1.0, 27, 32), 16, False),  # 16 * 2**27 is 2**31
        (SumEncoding(1.0, 29, 32), 3, True),
        (SumEncoding(1.0, 30, 32), 3, False),
        (SumEncoding(2.0**30, 60, 64), 2, False),
        (SumEncoding(2.0**30, 28, 64), 16, True),
        *((each, 16, True) for each in (COUNTS, MEASURES, SCALARS)),
    ],
)
def test_an_encoding_that_can_overflow_is_refused(
    encoding: SumEncoding, ranks: int, fits: bool
) -> None:
    if fits:
        encoding.require_fit(ranks)
        encoding.wide.require_fit(ranks)
        return
    with pytest.raises(MalformedError, match="do not fit") as caught:
        encoding.require_fit(ranks)
    assert caught.value.code == "sums-overflow"
    most = int(str(caught.value).split("sum_places = ")[2].split()[0])
    replace(encoding, places=most).require_fit(ranks)
    with pytest.raises(MalformedError):
        replace(encoding, places=most + 1).require_fit(ranks)


def test_a_group_refuses_an_encoding_that_can_overflow() -> None:
    found = on_ranks(lambda rank, sums: None, encodings=[SumEncoding(1.0, 31, 32)] * 3)
    assert {each.code for each in found} <= {
        "sums-overflow",
        "group-closed",
        "session-closed",
    }
    assert "sums-overflow" in {each.code for each in found}


@pytest.mark.parametrize("other", [SumEncoding(2.0, 26, 32), SumEncoding(1.0, 25, 32)])
def test_ranks_with_other_bounds_sum_nothing(other: SumEncoding) -> None:
    found = on_ranks(lambda rank, sums: None, encodings=[USUAL, other, USUAL])
    assert {each.code for each in found} <= {
        "two-views",
        "group-closed",
        "session-closed",
    }
    assert found[0].code == "two-views"


def test_a_sum_before_its_round_is_refused() -> None:
    def work(rank: int, sums: MaskedSums) -> None:
        fresh = MaskedSums(sums._group, USUAL)
        with pytest.raises(UsageError):
            fresh.add_up(np.zeros(2, np.float32), USUAL)

    assert on_ranks(work) == [None] * RANKS


def test_a_sum_beyond_all_bounds_is_refused() -> None:
    """Who lies in its part, or masks it otherwise, is found by the size of the sum."""

    def work(rank: int, sums: MaskedSums) -> None:
        mine = np.zeros(3, np.float32)
        if rank == 1:
            largest = replace(USUAL, bound=3.5)  # 3 ranks of bound 1 come to 3
            mine[1] = -3.5
            sums.add_up(mine, largest)
        else:
            sums.add_up(mine, USUAL)

    found = on_ranks(work)
    assert found[0].code == found[2].code == "untrue-report"
    assert found[1] is None  # by its own bound it is well


def test_secrets_are_overwritten_at_the_end() -> None:
    def work(rank: int, sums: MaskedSums) -> None:
        sums.add_up(np.ones(3, np.float32), USUAL)
        assert not sums._room.any()
        pairs = list(sums._pairs.values())
        sums.close()
        for secret in pairs:
            with pytest.raises(UsageError, match="wiped"):
                secret.reveal(TOKEN)
        with pytest.raises(UsageError):
            sums.add_up(np.ones(3, np.float32), USUAL)

    assert on_ranks(work) == [None] * RANKS


# --- what a rank sees -------------------------------------------------------------------


class HeardWire(SimulatedWire):
    """Keeps what it received."""

    heard: list[bytes]

    def receive_into(self, target: bytearray | memoryview) -> None:
        super().receive_into(target)
        self.heard.append(bytes(target))


def heard_wires(world: int = RANKS) -> list[dict[int, Any]]:
    ends: list[dict[int, Any]] = []
    for wires in simulated_wires(world):
        ends.append({})
        for peer, wire in wires.items():
            heard = HeardWire(wire._out, wire._back, wire._delay)
            heard.heard = []
            ends[-1][peer] = heard
    return ends


def masked_of(wires: list[dict[int, Any]], rank: int, size: int) -> list[bytes]:
    """Messages of that size that a rank received, all of them."""
    return [m for wire in wires[rank].values() for m in wire.heard if len(m) == size]


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_no_two_sums_have_one_mask(algorithm: Algorithm) -> None:
    """Of zeros a masked message is its mask: no two of any sum, round or group are alike."""
    elements = 300
    size = 4 * elements // (RANKS if algorithm is Algorithm.TWO_PHASE else 1)
    seen = Counter[bytes]()

    def work(rank: int, sums: MaskedSums) -> None:
        for _round in range(2):
            for _sum in range(3):
                zeros = np.zeros(elements, np.float32)
                sums.add_up(zeros, USUAL, algorithm)
                assert not zeros.any()
            sums.renew()

    for _start in range(2):
        wires = heard_wires()
        assert on_ranks(work, wires=wires) == [None] * RANKS
        for rank in range(RANKS):
            for message in masked_of(wires, rank, size):
                if any(message):  # a sum of zeros, told by who added it up
                    seen[message] += 1
    copies = RANKS - 1 if algorithm is Algorithm.ONE_PHASE else 1
    assert set(seen.values()) == {copies}
    assert len(seen) * copies == 2 * 2 * 3 * RANKS * (RANKS - 1)


def test_a_mask_needs_the_randomness_of_both_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever knows what one of them drew knows no mask of the pair."""
    drawn: dict[int, bytes] = {}

    def draw(_count: int) -> bytes:
        return drawn[int(threading.current_thread().name)]

    monkeypatch.setattr(secrets, "token_bytes", draw)
    seen = []
    for first, second in ((1, 2), (1, 3), (4, 2), (1, 2)):
        drawn.update({0: bytes([first]) * 64, 1: bytes([second]) * 64})
        wires, found = heard_wires(2), list[str]()

        def work(rank: int, wires: Any = wires, found: Any = found) -> None:
            with SealedGroup(rank, wires[rank]) as group:
                sums = MaskedSums(group, USUAL)
                sums.renew()
                sums.add_up(np.zeros(300, np.float32), USUAL, Algorithm.ONE_PHASE)
                found.append("done")

        threads = [
            threading.Thread(target=work, args=(rank,), name=str(rank))
            for rank in range(2)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert found == ["done"] * 2
        (mask,) = masked_of(wires, 0, 1200)
        seen.append(mask)
    assert len(set(seen[:3])) == 3
    assert seen[3] == seen[0]  # control: nothing else decides it


class MortalWire(SimulatedWire):
    """Keeps what was sent over it, unless its rank is killed before."""

    sent: list[bytes]
    before_sending: Callable[[bytes], Any]

    def send(self, source: Buffer) -> None:
        self.before_sending(bytes(source))
        self.sent.append(bytes(source))
        super().send(source)


def mortal_wires(
    sent: list[bytes], lost: int, is_last: Callable[[bytes], bool]
) -> list[dict[int, Any]]:
    """Of a group in which a rank is killed before it sends that message."""
    ends: list[dict[int, Any]] = [{} for _ in range(RANKS)]

    def kill(message: bytes) -> None:
        if is_last(message):
            for each in ends[lost].values():
                each.abort()
            raise PeerError("the rank was killed")

    for rank, wires in enumerate(simulated_wires(RANKS)):
        for peer, wire in wires.items():
            mortal = MortalWire(wire._out, wire._back, wire._delay)
            mortal.sent = sent
            mortal.before_sending = kill if rank == lost else len
            ends[rank][peer] = mortal
    return ends


@pytest.mark.parametrize("survived", range(2 * (RANKS - 1)))
def test_a_rank_that_is_lost_ends_the_round_and_no_mask_of_it_comes_again(
    survived: int,
) -> None:
    """Of zeros a masked message is its mask. A rank is killed at every message of a round.

    Nobody has all sums of that round, its group is over, and the next start's masks are new.
    """
    elements, lost = 300, 1
    size = 4 * elements // RANKS
    sent: list[bytes] = []
    masked = itertools.count()

    def is_mask(message: bytes) -> bool:
        return len(message) == size and any(message)

    def work(rank: int, sums: MaskedSums) -> str:
        try:
            for _sum in range(2):
                zeros = np.zeros(elements, np.float32)
                sums.add_up(zeros, USUAL, Algorithm.TWO_PHASE)
                assert not zeros.any()
        except SealiftError:
            with pytest.raises(UsageError):
                sums.renew()  # the group is over: no round of it begins again
            raise
        return "a round"

    killed = mortal_wires(sent, lost, lambda m: is_mask(m) and next(masked) >= survived)
    ended = on_ranks(work, wires=killed)
    assert isinstance(ended[lost], PeerError)
    assert all(isinstance(each, SealiftError) for each in ended)
    control = mortal_wires(sent, lost, lambda message: False)
    assert on_ranks(work, wires=control) == ["a round"] * RANKS
    seen = Counter(filter(is_mask, sent))
    assert set(seen.values()) == {1}
    assert len(seen) >= 2 * RANKS * (RANKS - 1) + survived


def test_who_adds_up_sees_no_part() -> None:
    """Positive control: without masks the very same messages are the others' numbers."""
    wires = heard_wires()

    def work(rank: int, sums: MaskedSums) -> None:
        sums.add_up(np.full(300, 0.25, np.float32), USUAL, Algorithm.TWO_PHASE)

    def bare(rank: int, sums: MaskedSums) -> None:
        sums._pairs.clear()
        sums._next_masks = lambda bits: ()  # type: ignore[method-assign]
        work(rank, sums)

    plain = np.full(100, 1 << 24, np.uint32).tobytes()
    assert on_ranks(work, wires=wires) == [None] * RANKS
    assert plain not in masked_of(wires, 0, 400)
    wires = heard_wires()
    assert on_ranks(bare, wires=wires) == [None] * RANKS
    assert masked_of(wires, 0, 400).count(plain) == RANKS - 1


class Stream:
    """A mask of one byte."""

    def __init__(self, byte: int) -> None:
        self._byte = byte

    def fill(self, block: int, out: Buffer) -> None:
        memoryview(out).cast("B")[0] = self._byte


def masked(inputs: Sequence[int], masks: dict[tuple[int, int], int]) -> tuple[int, ...]:
    """What each rank sends of one number modulo 256, by the product's own function."""
    sent = []
    for rank, value in enumerate(inputs):
        codes = np.array([value], np.uint8)
        streams = [
            (peer, Stream(masks[min(rank, peer), max(rank, peer)]))
            for peer in range(len(inputs))
            if peer != rank
        ]
        add_masks(codes, rank, streams, np.empty(1 + TAG_BYTES, np.uint8))
        sent.append(int(codes[0]))
    return tuple(sent)


STEP = 64  # masks and inputs are multiples of it: a group of 4 elements within 256


def views(inputs: Sequence[int], insiders: Sequence[int]) -> dict[Any, Counter[Any]]:
    """How often each view of the insiders together is met, by the masks that they know.

    They know their own masks, all that is sent, and so the sum: every message to every
    rank is in the view, also those that only others receive.
    """
    pairs = list(itertools.combinations(range(len(inputs)), 2))
    known = [pair for pair in pairs if set(pair) & set(insiders)]
    found: dict[Any, Counter[Any]] = {}
    for drawn in itertools.product(range(0, 256, STEP), repeat=len(pairs)):
        masks = dict(zip(pairs, drawn, strict=True))
        own = tuple(masks[pair] for pair in known)
        found.setdefault(own, Counter())[masked(inputs, masks)] += 1
    return found


@pytest.mark.parametrize("insider", range(3))
def test_a_ranks_whole_view_depends_on_the_sum_alone(insider: int) -> None:
    """Every mask is enumerated. Control: with another sum the view is another one."""
    others = [rank for rank in range(3) if rank != insider]

    def inputs(one: int, two: int) -> list[int]:
        found = [192, 192, 192]
        found[others[0]], found[others[1]] = one, two
        return found

    base = views(inputs(64, 128), [insider])
    for one in range(0, 256, STEP):
        assert views(inputs(one, (192 - one) % 256), [insider]) == base
    assert views(inputs(64, 192), [insider]) != base


def test_all_ranks_but_two_learn_the_sum_of_these_two_alone() -> None:
    """Control: all but one learn that one's number, which no sum can hide."""
    base = views([0, 64, 128, 192], [2, 3])
    assert views([64, 0, 128, 192], [2, 3]) == base
    assert views([128, 192, 128, 192], [2, 3]) == base
    assert views([64, 64, 128, 192], [2, 3]) != base
    one, other = views([0, 64, 128], [1, 2]), views([64, 64, 128], [1, 2])
    assert all(not set(one[own]) & set(other[own]) for own in one)


def test_blocks_have_masks_of_their_own() -> None:
    size = (1 << 16) + 7
    wires = heard_wires()

    def work(rank: int, sums: MaskedSums) -> None:
        sums.add_up(np.zeros(size, np.float32), USUAL, Algorithm.ONE_PHASE)

    assert on_ranks(work, wires=wires) == [None] * RANKS
    for message in masked_of(wires, 0, 4 * size):
        assert (
            message[:28] != message[-28:]
        )  # the first of a block, and of the next one


def test_numbers_are_rounded_to_the_nearest() -> None:
    numbers = np.array([0.25, 0.75, -0.75, 2.0], np.float64)
    out = np.empty(4, np.int32)
    assert encode_numbers(numbers, SumEncoding(1.5, 1, 32), out) == 1
    assert out.tolist() == [0, 2, -2, 3]


def test_each_rank_adds_its_part_of_the_noise_to_what_it_sends() -> None:
    """The last one adds none, and the others' parts are what the agreement counts on."""
    count, part = 100_000, 1 << 40

    def work(rank: int, sums: MaskedSums) -> Any:
        found = list[Any]()
        for _ in range(2):
            mine = np.full(count, rank, np.int64)
            sums.add_up(mine, COUNTS, variance=0 if rank == RANKS - 1 else part)
            found.append(mine)
        return found

    told = on_ranks(work)
    first, second = told[0]
    assert all((each[0] == first).all() for each in told)
    for found in (first, second):
        noise = (found - sum(range(RANKS))) / np.sqrt((RANKS - 1) * part)
        assert abs(noise.mean()) < 8 / np.sqrt(count)
        assert abs((noise**2).mean() - 1) < 8 * np.sqrt(2 / count)
    assert (
        abs(((first - second) ** 2).mean() / (4 * part) - 1) < 0.1
    )  # noise of its own


def test_how_many_were_cut_is_not_told_of_sums_with_noise() -> None:
    """The count has none."""

    def work(rank: int, sums: MaskedSums) -> Any:
        mine = np.full(8, 1 << 60, np.int64)
        sums.add_up(mine, COUNTS, variance=16)
        return sums.count_cut()

    assert on_ranks(work) == [0] * RANKS
