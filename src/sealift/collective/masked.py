"""Sums of which every rank learns the sum, and nothing else of the others (algorithm E).

Each rank writes its numbers as whole ones, adds the masks that it has together with every
later rank, and subtracts those with every earlier one, modulo 2**32 or 2**64. What it sends
is uniform to whoever lacks one of these masks; in the sum of all ranks the masks cancel.
The masked numbers are summed by the group's own two phases (C), so whoever adds up a part
sees masked parts. Sums of whole numbers do not depend on an order.

A pair's secret is made of fresh random bytes of both, told inside that pair's own sealed
pipe; every sum has a mask of its own, by a number that only grows (rules C3 and C4). A group
that lost a rank is over, and the next one has new pipes and new secrets.
Not hidden: the part of one rank from all others together; with two ranks, each other's.
Source: spec/collective.md section 7; Bonawitz et al. 2017, section 4, without dropouts.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sealift.codec import encode
from sealift.collective.announcement import Algorithm, Reduction
from sealift.collective.group import SealedGroup
from sealift.collective.tensors import Array
from sealift.crypto.aead import TAG_BYTES
from sealift.crypto.hash import content_hash
from sealift.crypto.keys import KEY_BYTES, Label, SecretKey, derive
from sealift.crypto.keystream import MAX_BYTES, Keystream
from sealift.errors import IntegrityError, JobError, UsageError
from sealift.numeric.gaussian import draw_discrete_gaussian
from sealift.release.agreement.sums import COUNTS, SumEncoding

_PAIR: Final = struct.Struct(">BBQ")  # the earlier rank, the later one, the round
_SUM: Final = struct.Struct(">QB")  # number of the sum, bits
_STEP: Final = MAX_BYTES // 8  # numbers that stay in a core's cache
_KINDS: Final = {32: (np.uint32, np.int32), 64: (np.uint64, np.int64)}


class MaskedSums:
    """One rank's end of a group whose ranks learn sums alone. One thread uses it at a time.

    Args:
        group: Carries what is masked; whoever made it closes it.
        encoding: Of weights, the same on every rank.

    Raises:
        MalformedError: ``sums-overflow``.
    """

    def __init__(self, group: SealedGroup, encoding: SumEncoding) -> None:
        encoding.require_fit(group.world)
        self.encoding: Final = encoding
        self.world: Final = group.world
        self.exchange: Final = group.exchange
        self._group = group
        self._pairs: dict[int, SecretKey] = {}
        self._round = self._number = self._cut = 0
        self._codes = np.empty(2, np.uint32)
        self._room = np.empty(MAX_BYTES + TAG_BYTES, np.uint8)

    def renew(self) -> None:
        """Begin a round: a fresh secret with each other rank, the former ones wiped.

        Raises:
            IntegrityError: ``two-views``, if a rank encodes otherwise, or is elsewhere.
            See ``SealedGroup.all_reduce`` for others.
        """
        self._round += 1
        terms = content_hash(encode(self.encoding), self._round.to_bytes(8, "big"))
        for rank, theirs in enumerate(self._group.exchange(terms)):
            if theirs != terms:
                raise IntegrityError(
                    f"rank {rank} would add up other numbers than this rank",
                    why="its bound, its binary places, its bits or its round differ",
                    code="two-views",
                    ranks=(rank,),
                )
        ranks = range(self._group.world)
        drawn = bytearray(secrets.token_bytes(KEY_BYTES * len(ranks)))
        own = np.frombuffer(drawn, np.uint8).reshape(len(ranks), KEY_BYTES)
        told = np.zeros_like(own)
        self._group.all_to_all(list(own), list(told))
        self.close()
        me = self._group.rank
        for peer in ranks:
            if peer != me:
                both = [own[peer], told[peer]]
                seed = np.concatenate(both if me < peer else both[::-1])
                secret = SecretKey(seed.data)
                seed[...] = 0
                pair = _PAIR.pack(min(me, peer), max(me, peer), self._round)
                self._pairs[peer] = derive(secret, Label.PAIR_MASKS, pair)
                secret.wipe()
        own[...] = told[...] = 0

    def close(self) -> None:
        """Overwrite the secrets with other ranks; a round has to begin again. Idempotent."""
        for secret in self._pairs.values():
            secret.wipe()
        self._pairs.clear()
        self._room[:] = 0

    def add_up(
        self,
        numbers: Array,
        encoding: SumEncoding,
        algorithm: Algorithm | None = None,
        *,
        variance: int = 0,
    ) -> None:
        """The sum of everybody's, in place; what was beyond the bound is cut and counted.

        Args:
            numbers: One row of float32, float64 or int64, as many on every rank.
            encoding: The same on every rank.
            algorithm: As in ``SealedGroup.all_reduce``.
            variance: Of the discrete Gaussian noise that this rank adds to each whole number
                before it is masked; 0 adds none. What was cut is then not counted: the
                count would have no noise.

        Raises:
            JobError: ``not-finite``, before anything is sent.
            IntegrityError: ``untrue-report``, if the sum is larger than all bounds together.
            UsageError: before the first ``renew``.
            See ``SealedGroup.all_reduce`` for others.
        """
        unsigned, signed = _KINDS[encoding.bits]
        words = numbers.size * encoding.bits // 32
        if self._codes.size < words:
            self._codes = np.empty(words, np.uint32)
        codes = self._codes[:words].view(unsigned)
        whole = codes.view(signed)
        cut = encode_numbers(numbers, encoding, whole)
        if variance:
            for start in range(0, whole.size, _STEP):  # drawing takes memory of its own
                some = whole[start : start + _STEP]
                some += draw_discrete_gaussian(some.size, variance)
        add_masks(codes, self._group.rank, self._next_masks(encoding.bits), self._room)
        self._room[:] = 0
        self._group.all_reduce(codes, Reduction.SUM, algorithm)
        self._cut += 0 if variance else cut
        largest = encoding.largest(self._group.world)
        if whole.size and (whole.max() > largest or whole.min() < -largest):
            raise IntegrityError(
                "a sum of all ranks is larger than their bounds together",
                why="a rank sent a number beyond its bound, or did not mask it as agreed",
                code="untrue-report",
            )
        scale = numbers.dtype.type(2.0**-encoding.places)
        for start in range(0, numbers.size, _STEP):
            here = slice(start, start + _STEP)
            numbers[here] = whole[here]
            if encoding.places:
                numbers[here] *= scale

    def count_cut(self) -> int:
        """Numbers of all ranks together that were cut since this was asked last."""
        cut, self._cut = np.array([self._cut], np.int64), 0
        self.add_up(cut, COUNTS)
        return int(cut[0])

    def _next_masks(self, bits: int) -> Sequence[tuple[int, Keystream]]:
        """With each other rank, of one sum alone: the number grows, whatever comes of it."""
        if len(self._pairs) != self._group.world - 1:
            raise UsageError("a sum was begun before its round", code="bad-world")
        number, self._number = self._number, self._number + 1
        context = _SUM.pack(number, bits)
        masks = list[tuple[int, Keystream]]()
        for peer, secret in self._pairs.items():
            key = derive(secret, Label.SUM_MASK, context)
            masks.append((peer, Keystream(key)))
            key.wipe()
        return masks


def encode_numbers(numbers: Array, encoding: SumEncoding, out: Array) -> int:
    """Write whole numbers to ``out``, the nearest ones; how many were cut to the bound.

    Raises:
        JobError: ``not-finite``.
    """
    bound = numbers.dtype.type(encoding.bound)
    scale = numbers.dtype.type(2**encoding.places)
    room, cut = np.empty(min(_STEP, numbers.size), numbers.dtype), 0
    for start in range(0, numbers.size, _STEP):
        some = numbers[start : start + _STEP]
        within: Any = np.clip(some, -bound, bound, out=room[: some.size])
        beyond = int(np.count_nonzero(within != some))
        if beyond and not np.isfinite(some).all():
            raise JobError(
                "a number that would be added up is NaN or infinite", code="not-finite"
            )
        cut += beyond
        if numbers.dtype.kind == "f":
            within *= scale
            np.rint(within, out=within)
        out[start : start + _STEP] = within
    return cut


def add_masks(
    codes: Array, rank: int, masks: Sequence[tuple[int, Any]], room: Array
) -> None:
    """Add the masks with later ranks and subtract those with earlier ones, in place.

    Args:
        codes: Whole numbers without sign, which wrap.
        rank: Whose they are.
        masks: The stream with each other rank (``Keystream``).
        room: For a block of a stream, and its tag.
    """
    step = MAX_BYTES // codes.itemsize
    for block, start in enumerate(range(0, codes.size, step)):
        some = codes[start : start + step]
        for peer, stream in masks:
            filled = room[: some.nbytes + TAG_BYTES]
            stream.fill(block, filled.data)
            mask = filled[: some.nbytes].view(codes.dtype)
            combine = np.add if rank < peer else np.subtract
            combine(some, mask, out=some)
