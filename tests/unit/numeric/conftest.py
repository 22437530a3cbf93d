"""Both sets of kernels; the compiled one is made once for these tests."""

from __future__ import annotations

import pytest

from sealift.numeric.kernels import Kernels, compiled_kernels, portable_kernels


@pytest.fixture(scope="session")
def compiled() -> Kernels:
    pytest.importorskip("numba")
    return compiled_kernels()


@pytest.fixture(scope="session")
def portable() -> Kernels:
    return portable_kernels()
