"""The host's engine behind a face that shares no memory with the host."""

from __future__ import annotations

from sealift.channel.device.device import DeviceMemory
from sealift.channel.device.host import HostDevice


class Apart:
    """A device engine, and nothing that says it is the host's."""

    def __init__(self, inner=None):
        inner = inner or HostDevice(threads=2)
        self.name = "apart"
        self._inner = inner
        self.suites, self.key, self.close = inner.suites, inner.key, inner.close
        self.upload, self.download, self.open = (
            inner.upload,
            inner.download,
            inner.open,
        )
        self.seal, self.transfer = inner.seal, inner.transfer
        self.pinned, self.pin = inner.pinned, inner.pin
        self.allocated: list[DeviceMemory] = []

    def allocate(self, nbytes):
        self.allocated.append(self._inner.allocate(nbytes))
        return self.allocated[-1]
