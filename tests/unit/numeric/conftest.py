"""Both sets of kernels."""

from __future__ import annotations

import pytest

from sealift.numeric.kernels import Kernels, portable_kernels
from tests.sim.quickkernels import quick_kernels


@pytest.fixture(scope="session")
def compiled() -> Kernels:
    pytest.importorskip("numba")
    return quick_kernels()


@pytest.fixture(scope="session")
def portable() -> Kernels:
    return portable_kernels()
