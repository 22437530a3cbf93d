"""Make spec/vectors/shares.json: python spec/vectors/generate_shares.py [--check].

Seeds are counted and numbers come from a formula, so that the file can be made again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from sealift.crypto.hash import sha256
from sealift.crypto.keys import SecretKey
from sealift.numeric.kernels import portable_kernels
from sealift.numeric.keystream import MaskSeed, rounding_noise
from sealift.numeric.residues import BASES, ResidueBasis

TARGET = Path(__file__).with_name("shares.json")
SEED = bytes(range(32))
LENGTH = (1 << 15) + 20  # a block, and a short one
KERNELS = portable_kernels()


def mask(basis: ResidueBasis) -> dict[str, Any]:
    """A mask's first numbers and those beside the border of blocks; both signs."""
    q = (np.arange(LENGTH) * 37 % 4095 - 2047).astype(np.int16)
    plus, minus, u = (np.empty(LENGTH, np.uint32) for _ in range(3))
    KERNELS.mask(q, MaskSeed(SEED, basis), plus, minus)
    KERNELS.uniform(SEED, basis, u)
    shown = [0, 1, 2, LENGTH - 21, LENGTH - 20, LENGTH - 1]
    return {
        "seed": SEED.hex(),
        "modulus": basis.modulus,
        "length": LENGTH,
        "places": shown,
        "mask": u[shown].tolist(),
        "plus": plus[shown].tolist(),
        "minus": minus[shown].tolist(),
        "sha256": sha256(u.tobytes()).hex(),
    }


def residues(basis: ResidueBasis) -> dict[str, Any]:
    """Numbers and their centred residues; sums and what they recombine to."""
    values = np.array([0, 1, 126, 127, 128, 65535, 65536, 2**31, 2**32 - 1], np.uint32)
    split = np.empty((len(basis.moduli), values.size), np.int8)
    KERNELS.split(values, basis, split)
    line = [0, 1, -1, 255, -(2**31), 2**31 - 1, 123456789, -987654321]
    sums = np.array([np.roll(line, each) for each in range(len(split))], np.int32)
    whole = np.empty(sums.shape[1], np.uint32)
    KERNELS.recombine(sums, basis, whole)
    return {
        "moduli": basis.moduli,
        "values": values.tolist(),
        "split": split.tolist(),
        "sums": sums.tolist(),
        "recombined": whole.tolist(),
    }


def unmask(basis: ResidueBasis) -> dict[str, Any]:
    """Answers, and the product in them."""
    most = basis.modulus - 1
    p, m, z = (
        [0, 1, most, most, 7, 2],
        [0, 0, most, 1, 8, 5],
        [0, 1, most, 0, 9, most],
    )
    arrays = [np.array(each, np.uint32) for each in (p, m, z)]
    ints, floats = np.empty(6, np.int32), np.empty(6, np.float32)
    KERNELS.unmask((arrays[0], arrays[1], arrays[2]), basis, 2.0**-9, ints, floats)
    return {
        "modulus": basis.modulus,
        "p": p,
        "m": m,
        "z": z,
        "product": ints.tolist(),
        "times_2_to_minus_9": floats.tolist(),
    }


def rounding() -> dict[str, Any]:
    """Floats (exact as decimals), and their integers at 8 bits."""
    x = np.array([0.0, -0.0, 0.3, -0.3, 1.5, -2.75, 3.96875, -4.5, 1e-30, 3e38], "f4")
    noise = rounding_noise(SecretKey(SEED), 5, 3, "dy")
    q = np.empty(x.size, np.int16)
    KERNELS.quantize(x, 32.0, 127, noise, q)
    return {
        "seed": SEED.hex(),
        "step": 5,
        "call": 3,
        "tensor": "dy",
        "add_xor": noise,
        "x": x.tolist(),
        "scale": 32,
        "limit": 127,
        "q": q.tolist(),
    }


def generate() -> str:
    """The whole file."""
    vectors = {
        "spec": "spec/shares.md, version 1",
        "masks": [mask(basis) for basis in BASES],
        "residues": [residues(basis) for basis in BASES],
        "products": [unmask(basis) for basis in BASES],
        "rounding": rounding(),
    }
    return json.dumps(vectors, indent=1) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        raise SystemExit(
            0 if TARGET.read_text() == generate() else "shares.json differs"
        )
    TARGET.write_text(generate())
