"""What a group does with contributions that lie on a device: the same sums, in its memory.

Contributions of others are opened into memory of the group's own there, and are added once
they verified (rule N10), in the order of ranks: the bits are those of a sum in the host's
memory, those of a NaN aside. The host sees none of them.
"""

from __future__ import annotations

from contextlib import ExitStack

from sealift.channel.device.device import DeviceMemory, DeviceTensor, SummingEngine
from sealift.collective.announcement import Reduction
from sealift.collective.tensors import bad_tensor


class DeviceStore:
    """Where a group's tensors lie; see ``tensors.HostStore``.

    Args:
        engine: Adds; whoever made it closes it after the group.
    """

    def __init__(self, engine: SummingEngine) -> None:
        self.engine = engine
        self._rooms: dict[int, DeviceMemory] = {}

    def message(self, piece: DeviceTensor) -> DeviceTensor:
        """What a peer is sent, or sends."""
        return piece

    def room(self, second: bool, like: DeviceTensor) -> DeviceTensor:
        """Private memory for a segment."""
        return self._room(int(second), like)

    def beside(self, flat: DeviceTensor) -> DeviceTensor:
        """Memory for a sum that is not to lie where its tensor does."""
        return self._room(2, flat)

    def combine(
        self, reduction: Reduction, a: DeviceTensor, b: DeviceTensor, out: DeviceTensor
    ) -> DeviceTensor:
        """Queue ``out = a + b``; ``out`` may be either."""
        if reduction is not Reduction.SUM:
            raise bad_tensor(f"{reduction.name.lower()} is not supported on a device")
        if out == b:  # an addition of two numbers has the same bits either way
            a, b = b, a
        if out != a:
            self.engine.copy(out, a)
        self.engine.add(out, b)
        return out

    def assign(self, out: DeviceTensor, value: DeviceTensor) -> None:
        """Queue ``out = value``."""
        self.engine.copy(out, value)

    def close(self) -> None:
        """Scrub the group's own memory there, and give it back. Idempotent."""
        rooms, self._rooms = self._rooms, {}
        with ExitStack() as closing:
            for each in rooms.values():
                closing.callback(each.close)

    def _room(self, number: int, like: DeviceTensor) -> DeviceTensor:
        found = self._rooms.get(number)
        if found is None or found.nbytes < like.nbytes:
            if found is not None:
                found.close()
            found = self._rooms[number] = self.engine.allocate(like.nbytes)
        return DeviceTensor(found, 0, like.size, like.dtype)
