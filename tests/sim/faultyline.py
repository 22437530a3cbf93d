"""A line between two ends that misbehaves as a hostile network does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from sealift.errors import PeerError
from tests.worlds.memorytransport import Line


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong with one frame, numbered from 0.

    ``amount``: flip: the byte; truncate: bytes kept; hold: how many later frames pass
    first; delay: seconds.
    """

    kind: Literal["drop", "flip", "duplicate", "hold", "delay", "truncate"]
    frame: int
    amount: float = 1


class FaultyLine(Line):
    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__()
        self._faults = {fault.frame: fault for fault in faults}
        self._held: list[tuple[int, bytes]] = []
        self._count = 0

    def put(self, frame: bytes) -> None:
        number, self._count = self._count, self._count + 1
        for left in self._spoil(self._faults.get(number), frame):
            super().put(left)
        for held in [each for each in self._held if each[0] <= number]:
            self._held.remove(held)
            super().put(held[1])

    def close(self) -> None:
        with suppress(PeerError):  # the other end closed it before
            for _, frame in self._held:
                super().put(frame)
        super().close()

    def _spoil(self, fault: Fault | None, frame: bytes) -> list[bytes]:
        kind, amount = (fault.kind, int(fault.amount)) if fault else ("", 0)
        if kind == "hold":
            self._held.append((self._count - 1 + amount, frame))
            return []
        if fault and kind == "delay":
            time.sleep(fault.amount)
        if kind == "flip":
            at = amount % len(frame)
            return [frame[:at] + bytes([frame[at] ^ 0xFF]) + frame[at + 1 :]]
        if kind == "truncate":
            return [frame[:amount]]
        return [frame] * {"drop": 0, "duplicate": 1 + amount}.get(kind, 1)
