"""A transfer that was announced: which units come, where they go, what opens them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from sealift.channel.device.device import DeviceKey, DeviceMemory, RecordPlace
from sealift.channel.link.announcement import Announcement


class UnitOpener(Protocol):
    """Says where the next unit stands, which the sender sealed (``LinkOpener``)."""

    def expect(
        self, frame: memoryview, sealed_offset: int, plain_offset: int, unit_bytes: int
    ) -> tuple[DeviceKey, RecordPlace]:
        """Key and place, or an error if it cannot be the next one."""


@dataclass(frozen=True, slots=True)
class Arriving:
    """A transfer that was announced, and where it goes."""

    announcement: Announcement
    into: DeviceMemory
    offset: int
    sink: Callable[[int, int], None] | None

    def units(self) -> Iterator[tuple[int, int]]:
        """Start (in device memory) and length of every unit."""
        total, unit = self.announcement.total_bytes, self.announcement.unit_bytes
        for start in range(0, total, unit):
            yield self.offset + start, min(unit, total - start)

    def verified(self, start: int, length: int) -> None:
        """Tell whoever waits."""
        if self.sink is not None:
            self.sink(start, length)


def by_key(
    found: Sequence[tuple[DeviceKey, RecordPlace]],
) -> list[list[tuple[DeviceKey, RecordPlace]]]:
    """Units opened by one call: all that follow one another under one key."""
    batches: list[list[tuple[DeviceKey, RecordPlace]]] = []
    for each in found:
        if batches and batches[-1][0][0] is each[0]:
            batches[-1].append(each)
        else:
            batches.append([each])
    return batches
