"""Keys that were expanded in a GPU's memory, and taken off it again."""

from __future__ import annotations

from sealift.channel.cuda.core import Core
from sealift.channel.cuda.memory import CudaMemory
from sealift.channel.cuda.staging import host_block
from sealift.channel.device.device import DeviceKey
from sealift.crypto.aead import Suite
from sealift.crypto.keys import KEY_BYTES, TOKEN, SecretKey
from sealift.errors import UnavailableError, UsageError


class CudaKey:
    """Round keys, powers and whatever else the kernels make of a key.

    ``close`` overwrites it on the GPU and reads that back; so does the engine's own
    close, also when the process ends. On a GPU that was lost nothing can be shown.
    """

    def __init__(self, suite: Suite, memory: CudaMemory) -> None:
        self.suite = suite
        self.memory = memory
        self._closed = False

    def require_open(self) -> None:
        """Refuse after ``close``."""
        if self._closed:
            raise UsageError("this key was taken off the device", code="dead-key")

    def close(self) -> None:
        """Overwrite it after what is queued, and read that back. Idempotent.

        Raises:
            IntegrityError: if it is not zeroes then.
        """
        if not self._closed:
            self._closed = True
            self.memory.close()


def own_key(key: DeviceKey) -> CudaKey:
    """The key, if it is on a GPU."""
    if not isinstance(key, CudaKey):
        raise UsageError("this key is on another device")
    key.require_open()
    return key


def expand_key(core: Core, suite: Suite, key: SecretKey) -> CudaKey:
    """Put a key on the GPU.

    The 32 bytes cross the bus as they are: outside of confidential mode whoever reads
    the bus reads them. They are overwritten on the host and on the GPU at once.
    """
    if suite not in core.kernels.suites():
        raise UnavailableError(
            f"engine cuda does not compute {suite.name}", code="no-such-suite"
        )
    if len(key) != KEY_BYTES:
        raise UsageError(f"an AEAD key has {KEY_BYTES} bytes")
    expanded = core.allocate(core.kernels.key_bytes(suite))
    try:
        _expand(core, suite, key, expanded)
    except BaseException:
        expanded.close()
        raise
    return CudaKey(suite, expanded)


def _expand(core: Core, suite: Suite, key: SecretKey, expanded: CudaMemory) -> None:
    raw = core.allocate(KEY_BYTES)
    block = host_block(core.driver, KEY_BYTES, pinned=core.crossings.pinned)
    try:
        block.view[:] = key.reveal(TOKEN)
        plan = core.kernels.expand(suite)
        places = {"raw_key": raw.address, "key": expanded.address}

        def put(stream: object) -> None:
            core.driver.copy_to_device(raw.address, block.address, KEY_BYTES, stream)
            core.run(plan, places, stream)

        core.crypto.submit(put).wait()
    finally:
        block.close()
        raw.close()
