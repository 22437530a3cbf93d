"""The number of the agreement in force, kept in a TPM: a backup cannot bring it back.

One NV counter for each line of agreements. A counter begins above every one that this
TPM ever had, so the value at which the line began is remembered in the vault's ledger,
where it never changes: an older copy of the vault knows it as well, and one from before
finds a counter that it does not know, which is refused. For real TPMs: a virtual or
software TPM rolls back with its state (rule H6).
"""

from __future__ import annotations

from typing import Final

from sealift.attest.attesters.tpm.client import TpmClient
from sealift.attest.attesters.tpm.nonvolatile import (
    define_counter,
    increment,
    read_counter,
    read_index,
)
from sealift.crypto.hash import sha256
from sealift.errors import StaleError, UnavailableError
from sealift.release.ledger import Ledger

FIRST_INDEX: Final = 0x01500000  # of the range that owners may use
MAX_STEPS: Final = 4096


class TpmVersionCounter:
    """See ``release.rollback.VersionCounter``.

    Args:
        client: Of this machine's TPM.
        ledger: Of the owner's vault.
        line: Name of the line of agreements.
    """

    def __init__(self, client: TpmClient, ledger: Ledger, line: str) -> None:
        self._client = client
        self._ledger = ledger
        self._name = f"tpm-counter/{line}"
        self.index = FIRST_INDEX | int.from_bytes(sha256(line.encode())[:2])

    def read(self) -> int:
        """The number, 0 at first.

        Raises:
            StaleError: ``agreement-rolled-back``: counter and vault do not fit.
        """
        base = self._ledger.remembered(self._name)
        exists = read_index(self._client, self.index) is not None
        if exists != bool(base):
            raise _unfit("the vault" if exists else "the TPM")
        if not exists:
            return 0
        number = read_counter(self._client, self.index) - base
        if number < 0:
            raise _unfit("the TPM")
        return number

    def advance(self, to: int) -> None:
        """Raise the number to ``to``.

        Raises:
            UnavailableError: ``counter-far``, if that is more than 4096 steps.
        """
        at = self.read()
        if to - at > MAX_STEPS:
            raise UnavailableError(
                f"the TPM's counter is {to - at} steps behind",
                fix="Begin a line of another name on this machine",
                code="counter-far",
            )
        if not self._ledger.remembered(self._name):
            self._begin()
        for _ in range(at, to):
            increment(self._client, self.index)

    def _begin(self) -> None:
        # The counter first: a crash in between leaves one that nobody knows, which is
        # refused, and never a memory of one that is not there yet.
        define_counter(self._client, self.index)
        self._ledger.remember(self._name, read_counter(self._client, self.index))


def _unfit(lost: str) -> StaleError:
    return StaleError(
        f"{lost} lost its memory of which agreement was in force",
        why="the TPM's counter and the vault do not belong together",
        fix="Restore the vault of this machine; else ask the other owners, and begin "
        "a line of another name",
        code="agreement-rolled-back",
    )
