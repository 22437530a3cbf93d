"""Every device engine that the contract suite runs over: a name and how to make one.

A factory skips, with the reason, where this machine lacks what its engine needs.
"""

from __future__ import annotations

from collections.abc import Callable

from sealift.channel.cuda.opening import open_cuda
from sealift.channel.device.device import DeviceEngine
from sealift.channel.device.host import HostDevice
from tests.sim.cuda_engines import WAYS, engine_on, gcc_engine, model_gpu

ENGINES: dict[str, Callable[[], DeviceEngine]] = {
    "host": lambda: HostDevice(threads=1),
    "host-threads": lambda: HostDevice(threads=3),
    # The CUDA engine's host side over a stand-in driver, whose kernels are models ...
    **{f"cuda-{way}": lambda way=way: engine_on(model_gpu(), way) for way in WAYS},
    # ... or the real kernels, compiled by gcc.
    "cuda-gcc": gcc_engine,
}
ON_A_GPU: dict[str, Callable[[], DeviceEngine]] = {
    "cuda": lambda: open_cuda(test=lambda _: None),  # test_gpu.py runs the self-test
}
"""Engines of tests with the marker `gpu`."""
