"""Compiled kernels: compiled once in a run of tests, by the first of its workers that asks."""

from __future__ import annotations

import functools
from pathlib import Path

from sealift.numeric.kernels import Kernels, compiled_kernels, portable_kernels
from sealift.outsource.compute import ShareProducts
from tests.sim.runfolder import made_once


def kept_kernels() -> Path:
    """Where they lie."""
    return made_once("kernels", compiled_kernels)


@functools.cache
def quick_kernels() -> Kernels:
    """Those, loaded; making them takes twelve seconds of a processor."""
    return compiled_kernels(kept_kernels())


@functools.cache
def portable_products() -> ShareProducts:
    """A server's on this processor, which tries its multiplications when it is made."""
    return ShareProducts("cpu", portable_kernels())
