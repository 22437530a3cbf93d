"""Every device engine that the contract suite runs over: a name and how to make one.

A factory skips, with the reason, where this machine lacks what its engine needs.
"""

from __future__ import annotations

from collections.abc import Callable

from sealift.channel.device import DeviceEngine
from sealift.channel.hostdevice import HostDevice
from tests.sim.cuda_engines import WAYS, engine_on, model_gpu

ENGINES: dict[str, Callable[[], DeviceEngine]] = {
    "host": lambda: HostDevice(threads=1),
    "host-threads": lambda: HostDevice(threads=3),
} | {f"cuda-{way}": lambda way=way: engine_on(model_gpu(), way) for way in WAYS}
