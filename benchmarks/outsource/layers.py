"""What one core spends: on each number in the accelerator, and on each layer in a server.

The busiest server of ours (P, M and Z multiply as much; Z draws its masks besides) beside
the busiest of Goten's, in this process, on one thread, in turn. A layer's time is that of
its forward product and both gradients, with the splitting of what comes and the
recombining of what goes.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Final

import numpy as np
import torch

from benchmarks.outsource.goten import GotenServer
from benchmarks.outsource.models import vgg11_layers
from benchmarks.report import Arm, BenchReport, interleaved
from sealift.crypto.keys import SecretKey
from sealift.numeric.kernels import best_kernels
from sealift.numeric.keystream import MaskSource, rounding_noise
from sealift.numeric.residues import BASES, U32, ResidueBasis
from sealift.outsource.compute import ShareProducts
from sealift.outsource.terms import OPERANDS, Direction, Layer, Tensor

BATCH: Final = 128
LARGE: Final = (
    128,
    1152,
    128,
)  # rows, depth, columns of a product from which on a bar is
_NUMBERS: Final = 1 << 20
_WIDE: Final = BASES[-1]


def measure_kernels(report: BenchReport, repeats: int) -> None:
    """Nanoseconds a number: quantize and mask, unmask and scale, recombine."""
    began_s = perf_counter()
    kernels = replace(best_kernels(), cores=1)  # the first here: compiled now
    compile_s = perf_counter() - began_s
    source, noise = MaskSource(), SecretKey.generate()
    floats = np.random.default_rng(0).standard_normal(_NUMBERS).astype(np.float32)
    q, ints = np.empty(_NUMBERS, np.int16), np.empty(_NUMBERS, np.int32)
    plus, minus, z = (np.empty(_NUMBERS, np.uint32) for _ in range(3))
    moduli = len(_WIDE.moduli)
    sums = np.full((moduli, _NUMBERS), 1 << 20, np.int32)

    def mask() -> None:
        kernels.quantize(floats, 16.0, 127, rounding_noise(noise, 0, 0, "x"), q)
        kernels.mask(q, source.seed(_WIDE), plus, minus)

    mask()
    kernels.uniform(secrets.token_bytes(32), _WIDE, z)
    arms: dict[str, Arm] = {
        "mask": mask,
        "unmask": partial(
            kernels.unmask, (plus, minus, z), _WIDE, 1.0, ints, np.empty_like(floats)
        ),
        "recombine": partial(kernels.recombine, sums, _WIDE, np.empty_like(z)),
        "draw": partial(kernels.uniform, secrets.token_bytes(32), _WIDE, z),
    }
    row: dict[str, str | int | float | bool] = {"kernels": kernels.loops.name}
    row["compile_s"] = report.ratios["compile_s"] = round(compile_s, 1)
    for name, spent in interleaved(arms, repeats).items():
        row[f"{name}_ns"] = round(spent.median / _NUMBERS * 1e9, 2)
        if name != "draw":
            report.ratios[f"{name}_ns"] = round(spent.median / _NUMBERS * 1e9, 3)
    report.rows.append(row)


def measure_layers(report: BenchReport, repeats: int, *, batch: int = BATCH) -> None:
    """Each layer of VGG-11: ours and Goten's busiest server."""
    torch.set_num_threads(1)
    ours_all = goten_all = 0.0
    for number, layer in enumerate(vgg11_layers(batch)):
        wants: tuple[Direction, ...] = ("input", "weight") if number else ("weight",)
        arms: dict[str, Arm] = {
            "ours": OurServer(layer, wants).work,
            "goten": partial(
                _work, [GotenServer(layer, d) for d in ("forward", *wants)]
            ),
        }
        spent = {n: s.median for n, s in interleaved(arms, repeats).items()}
        ours_all += spent["ours"]
        goten_all += spent["goten"]
        ratio, large = spent["ours"] / spent["goten"], _is_large(layer)
        report.rows.append(
            {
                "layer": layer.name,
                "rows": layer.depth("weight"),
                "depth": layer.depth("forward"),
                "columns": layer.outputs,
                "large": large,
                "server_ms": round(spent["ours"] * 1e3, 1),
                "goten_ms": round(spent["goten"] * 1e3, 1),
                "ratio": round(ratio, 3),
            }
        )
        if large:
            report.keep_highest("busiest_server_vs_goten_large", ratio)
    report.ratios["busiest_server_vs_goten_all"] = round(ours_all / goten_all, 3)


def _is_large(layer: Layer) -> bool:
    """Whether its forward product has at least the sides that the bar is for."""
    sides = (layer.depth("weight"), layer.depth("forward"), layer.outputs)
    return all(side >= least for side, least in zip(sides, LARGE, strict=True))


class OurServer:
    """What P does for a call of a layer, from the words that came to those that go."""

    def __init__(self, layer: Layer, wants: tuple[Direction, ...]) -> None:
        self._layer, self._wants = layer, wants
        self._products = ShareProducts("cpu", best_kernels())
        directions: tuple[Direction, ...] = ("forward", *wants)
        self._bases: dict[Tensor, ResidueBasis] = {
            t: layer.basis_of(t, directions) for t in ("x", "w", "dy")
        }
        self._shares = {t: _words(layer.shape(t), b) for t, b in self._bases.items()}

    def work(self) -> None:
        """Forward, then both gradients."""
        kept = {
            t: self._products.keep(s, self._bases[t]) for t, s in self._shares.items()
        }
        for direction in ("forward", *self._wants):
            a, b = OPERANDS[direction]
            self._products.product(self._layer, direction, kept[a], kept[b])


def _words(shape: tuple[int, ...], basis: ResidueBasis) -> U32:
    rng = np.random.default_rng(0)
    return rng.integers(0, basis.modulus, shape, np.uint32)


def _work(servers: Sequence[GotenServer]) -> None:
    for each in servers:
        each.answer()
