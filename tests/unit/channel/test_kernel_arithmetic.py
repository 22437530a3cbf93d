"""The kernels' arithmetic, compiled by gcc, against the definitions of the standards."""

from __future__ import annotations

import ctypes
import os
import struct
from collections import Counter
from functools import reduce

import pytest

from tests.sim.gcc_kernels import loaded

pytestmark = pytest.mark.gcc
PRIME = 2**130 - 5
ONES = 2**32 - 1
WORDS = [0, 1, ONES, 1 << 31, 0x84210842, 0x42108421, 0x55555555, 0x7FFFFFFF]


def words(values: list[int]) -> ctypes.Array[ctypes.c_uint32]:
    return (ctypes.c_uint32 * len(values))(*values)


def from_hex(text: str) -> list[int]:
    raw = bytes.fromhex(text)
    return list(struct.unpack(f"<{len(raw) // 4}I", raw))


def gf256(a: int, b: int) -> int:
    total = 0
    for bit in range(8):
        total ^= (a << bit) * (b >> bit & 1)
    for bit in range(14, 7, -1):
        total ^= (0x11B << (bit - 8)) * (total >> bit & 1)
    return total


def test_the_s_box_is_that_of_its_definition() -> None:
    found = (ctypes.c_uint8 * 256)()
    loaded().probe_sbox(found)
    for value in range(256):
        inverse = reduce(gf256, [value] * 254)
        rotations = [inverse << n | inverse >> 8 - n for n in range(5)]
        assert found[value] == reduce(lambda a, b: a ^ b, rotations) & 255 ^ 0x63


def test_key_expansion_of_fips_197() -> None:
    key = "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4"  # A.3
    found = words([*from_hex(key), *[0] * 52])
    loaded().probe_expand_words(found)
    assert list(found)[8:10] == from_hex("9ba35411" + "8e6925af")
    assert found[59] == from_hex("706c631e")[0]


def test_eight_blocks_of_fips_197() -> None:
    key = words([*from_hex(bytes(range(32)).hex()), *[0] * 52])  # C.3
    loaded().probe_expand_words(key)
    blocks = words(from_hex("00112233445566778899aabbccddeeff") * 8)
    loaded().probe_encrypt(key, blocks)
    assert list(blocks) == from_hex("8ea2b7ca516745bfeafc49904b496089") * 8


# Offsets 126 and 127 are the threads whose counters carry into the eighth bit.
@pytest.mark.parametrize("tile", [0, 1, 3, 7, 255, 256, 16382])
def test_counters(tile: int) -> None:
    for thread in (0, 1, 63, 125, 126, 127):
        first = 1024 * tile + thread + 2
        blocks = words([0] * 32)
        loaded().probe_counters(first, blocks)
        found = [int.from_bytes(struct.pack("<I", n), "big") for n in blocks]
        assert found[3::4] == [first + 128 * i for i in range(8)]
        assert not any(found[0::4] + found[1::4] + found[2::4])


def carryless(a: int, b: int) -> int:
    total = 0
    while b:
        total, a, b = total ^ a * (b & 1), a << 1, b >> 1
    return total


# Where all bits are ones the sums of products are largest.
@pytest.mark.parametrize("a", WORDS)
@pytest.mark.parametrize("b", WORDS)
def test_carryless_products(a: int, b: int) -> None:
    others = struct.unpack("<2I", os.urandom(8))
    for c, d in ((0, 0), (ONES, ONES), others):
        found = ctypes.c_uint64()
        loaded().probe_carryless(a, b, c, d, ctypes.byref(found))
        assert found.value == carryless(a, b) ^ carryless(c, d)


# Class 1 comes in two sums, for at bit 31 all 32 pairs meet.
@pytest.mark.parametrize(
    ("k", "part"), [(1, (0, 1)), (1, (2, 3, 4)), *((k, range(5)) for k in (0, 2, 3, 4))]
)
def test_no_sum_of_products_reaches_the_next_fifth_bit(k: int, part) -> None:
    meeting = Counter(
        x + y for i in part for x in range(i, 32, 5) for y in range((k - i) % 5, 32, 5)
    )
    assert max(meeting.values()) <= 31
    assert sum(count << bit for bit, count in meeting.items()) < 1 << 64


def gcm_product(x: int, y: int) -> int:
    """SP 800-38D, algorithm 1: the leftmost bit is the coefficient of x^0."""
    z, v = 0, y
    for bit in range(127, -1, -1):
        z ^= v * (x >> bit & 1)
        v = v >> 1 ^ (0xE1 << 120) * (v & 1)
    return z


def test_products_of_ghash() -> None:
    numbers = [0, 1, 1 << 127, 2**128 - 1, (2**128 - 1) // 3, 1 << 64, 0xE1 << 120]
    numbers += [int.from_bytes(os.urandom(16), "big") for _ in range(9)]
    for x in numbers:
        for y in numbers:
            a, b = (
                words(list(struct.unpack("<4I", n.to_bytes(16, "little"))))
                for n in (x, y)
            )
            out = words([0] * 4)
            loaded().probe_gf_multiply(a, b, out)
            assert int.from_bytes(bytes(out), "little") == gcm_product(x, y)


def test_quarter_round_of_rfc_8439() -> None:
    x = words([0x11111111, 0x01020304, 0x9B8D6F43, 0x01234567])  # 2.1.1
    loaded().probe_quarter_round(x)
    assert list(x) == [0xEA2A92F4, 0xCB1CF8CE, 0x4581472E, 0x5881C4BB]


def test_block_of_rfc_8439() -> None:
    key, nonce = (
        words(from_hex(bytes(range(32)).hex())),
        words([0x09000000, 0x4A000000, 0]),
    )
    out = words([0] * 16)  # 2.3.2
    loaded().probe_chacha20(key, 1, nonce, out)
    assert list(out)[:4] == [0xE4E7F110, 0x15593BD1, 0x1FDD0F50, 0xC47120A3]
    assert list(out)[12:] == [0xD19C12B5, 0xB94E16DE, 0xE883D0CB, 0x4E3C50A2]


def limbs_of(number: int) -> list[int]:
    return [number >> 26 * i & 0x3FFFFFF for i in range(5)]


def number_of(limbs: list[int]) -> int:
    return sum(limb << 26 * i for i, limb in enumerate(limbs))


def test_products_of_poly1305() -> None:
    largest = 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF  # r clamped
    factors = [0, 1, PRIME - 1, PRIME, 2**130 - 1, largest]
    factors += [int.from_bytes(os.urandom(16), "big") for _ in range(9)]
    sums = [limbs_of(n) for n in factors] + [[0xFFFFFFF] * 5, [0x4000001] * 5]
    for a in sums:
        for b in map(limbs_of, factors):
            out = words([0] * 5)
            loaded().probe_poly_multiply(words(a), words(b), out)
            assert number_of(list(out)) % PRIME == number_of(a) * number_of(b) % PRIME
            assert all(limb < 2**26 for i, limb in enumerate(out) if i != 2)
            assert out[2] <= 2**26


# RFC 8439, A.3, 7 to 11: sums at and around 2^130 - 5, and a carry out of the last bit.
def test_the_last_reduction() -> None:
    values = [0, 4, 5, PRIME - 1, PRIME, PRIME + 1, 2**130 - 1, 2**128 - 1, 2**128]
    for value in values:
        for pad in (0, 1, 2**128 - 1):
            out, s = words([0] * 4), words(limbs32(pad))
            loaded().probe_finish_poly(words(limbs_of(value)), s, out)
            expected = (value % PRIME + pad) % 2**128
            assert int.from_bytes(bytes(out), "little") == expected
    out = words([0] * 4)
    loaded().probe_finish_poly(words([0xFFFFFFF] * 5), words([0] * 4), out)
    expected = number_of([0xFFFFFFF] * 5) % PRIME % 2**128
    assert int.from_bytes(bytes(out), "little") == expected


def limbs32(number: int) -> list[int]:
    return [number >> 32 * i & ONES for i in range(4)]
