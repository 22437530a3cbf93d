"""A device whose outward calls pass the gate first (rules M3, K12).

Opening, uploading and computing go on before the verdict; what leaves the device, by copy
to the host or sealed for somebody else, does not.
"""

from __future__ import annotations

from collections.abc import Sequence

from sealift.channel.device import (
    DeviceEngine,
    DeviceKey,
    DeviceMemory,
    Event,
    Part,
    RecordPlace,
    Verdicts,
)
from sealift.channel.verdict import Gate
from sealift.crypto.aead import Suite
from sealift.crypto.keys import SecretKey
from sealift.ids import Buffer


class GatedDevice:
    """A device engine behind a gate.

    Args:
        engine: The device; closed with this.
        gate: What ``download`` and ``seal`` ask first.
    """

    def __init__(self, engine: DeviceEngine, gate: Gate) -> None:
        self.name = engine.name
        self._engine = engine
        self._gate = gate

    def suites(self) -> tuple[Suite, ...]:
        """The engine's suites."""
        return self._engine.suites()

    def allocate(self, nbytes: int) -> DeviceMemory:
        """Memory of the engine."""
        return self._engine.allocate(nbytes)

    def key(self, suite: Suite, key: SecretKey) -> DeviceKey:
        """A key on the engine."""
        return self._engine.key(suite, key)

    def upload(self, host: Buffer, to: DeviceMemory, offset: int = 0) -> Event:
        """Inward: asks nobody."""
        return self._engine.upload(host, to, offset)

    def upload_packed(self, parts: Sequence[Part]) -> Event:
        """Inward: asks nobody."""
        return self._engine.upload_packed(parts)

    def open(
        self,
        key: DeviceKey,
        sealed: DeviceMemory,
        plain: DeviceMemory,
        places: Sequence[RecordPlace],
        *,
        after: Sequence[Event] = (),
    ) -> Verdicts:
        """Inward: asks nobody. The caller admits the verdicts."""
        return self._engine.open(key, sealed, plain, places, after=after)

    def download(
        self,
        source: DeviceMemory,
        offset: int,
        out: bytearray | memoryview,
        *,
        after: Sequence[Event] = (),
    ) -> Event:
        """Copy to the host, if everything admitted verified.

        Raises:
            AuthenticationError: if something did not; ``out`` is untouched.
        """
        self._gate.check()
        return self._engine.download(source, offset, out, after=after)

    def seal(
        self,
        key: DeviceKey,
        plain: DeviceMemory,
        sealed: DeviceMemory,
        places: Sequence[RecordPlace],
        *,
        after: Sequence[Event] = (),
    ) -> Event:
        """Seal for somebody else, if everything admitted verified.

        Raises:
            AuthenticationError: if something did not; nothing is sealed.
        """
        self._gate.check()
        return self._engine.seal(key, plain, sealed, places, after=after)

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()
