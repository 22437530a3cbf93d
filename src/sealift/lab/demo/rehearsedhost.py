"""The attested host of a rehearsal: a guest that boots while everything else starts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from sealift.attest.evidence import BOUND_BYTES
from sealift.attest.tpm.references import TpmReferences
from sealift.errors import SealiftError
from sealift.lab.guest.agentport import AgentPort
from sealift.lab.guest.guest import Guest
from sealift.lab.guest.image import build_image, find_image, guest_folder
from sealift.lab.guest.protocol import Act
from sealift.lab.guest.references import guest_references

Say = Callable[[str], None]


class RehearsedHost:
    """Boots in a thread of its own from the start; use as a context manager.

    Args:
        say: Tells people what takes its time.
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="guest")
        self._booting: Future[tuple[Guest, AgentPort]] = self._pool.submit(self._boot)

    def __enter__(self) -> RehearsedHost:
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(SealiftError):
            guest, port = self._booting.result()
            port.close()
            guest.close()
        self._pool.shutdown()

    @property
    def place(self) -> str:
        """What ``sealift accelerator --agent`` is told."""
        return self._booting.result()[1].place

    def references(self) -> TpmReferences:
        """Of this boot, which its owner watches: this very process.

        Raises:
            UnavailableError: if it did not boot.
        """
        guest, _ = self._booting.result()
        first = guest.collect(bytes(BOUND_BYTES))
        return guest_references(guest.image.manifest, first, guest.root)

    def misbehave(self, act: Act) -> str:
        """Do what a host must not; returns the path that its list shows."""
        return self._booting.result()[0].misbehave(act)

    def kill(self) -> None:
        """Switch it off at once: the last act of a second signal."""
        if self._booting.done() and not self._booting.exception():
            self._booting.result()[0].close()

    def _boot(self) -> tuple[Guest, AgentPort]:
        folder = guest_folder()
        if find_image(folder) is None:
            self._say("building the guest: Debian's packages, once")
        image = build_image(folder)
        self._say("booting the guest: measured boot, IMA, a software TPM")
        guest = Guest(image)
        return guest, AgentPort(guest)
