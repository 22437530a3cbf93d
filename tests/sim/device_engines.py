"""Every device engine that the contract suite runs over: a name and how to make one.

A factory skips, with the reason, where this machine lacks what its engine needs.
"""

from __future__ import annotations

from collections.abc import Callable

from sealift.channel.device import DeviceEngine
from sealift.channel.hostdevice import HostDevice

ENGINES: dict[str, Callable[[], DeviceEngine]] = {
    "host": lambda: HostDevice(threads=1),
    "host-threads": lambda: HostDevice(threads=3),
}
