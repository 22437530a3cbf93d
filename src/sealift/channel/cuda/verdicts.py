"""The verdicts of one batch: asked for once, answered the same for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sealift.channel.cuda.streams import Ticket
from sealift.errors import AuthenticationError, SealiftError

GENUINE = 1


class CudaVerdicts:
    """See ``channel.device.device.Verdicts``.

    Args:
        ticket: Behind the way back of the verdicts.
        read: Reads them, one byte a record; called once.
        refuse: Makes sure that nothing is left of the plaintext of the batch, when a
            record was not genuine. Takes the engine's lock, so it is called under none;
            several threads may call it at once.
    """

    def __init__(
        self,
        ticket: Ticket,
        read: Callable[[], bytes],
        refuse: Callable[[], None],
    ) -> None:
        self._ticket = ticket
        self._read = read
        self._refuse = refuse
        self._lock = threading.Lock()
        self._answer: bytes | None = None
        self._refused = False
        self._failed: SealiftError | None = None

    def collect(self) -> bytes:
        """One byte a record, whatever they say; waits for them.

        Raises:
            UnavailableError: code ``device-lost``.
        """
        with self._lock:
            self._ask()
        if self._answer is None:
            assert self._failed is not None
            raise self._failed
        return self._answer

    def _ask(self) -> None:
        if self._answer is None and self._failed is None:
            try:
                self._ticket.wait()
                self._answer = self._read()
            except SealiftError as error:
                self._failed = error

    def wait(self) -> None:
        """Return when every tag verified (see ``channel.device.device.Verdicts``).

        Raises:
            AuthenticationError: if one did not; the plaintext of all is zeroes.
            IntegrityError: if the plaintext of a refused batch could not be removed.
            UnavailableError: code ``device-lost``.
        """
        answer = self.collect()
        if answer == bytes([GENUINE]) * len(answer):
            return
        # Not under the lock: whoever takes this table back holds the engine's, which a
        # refusal wants, and waits for this one.
        if not self._refused:
            self._refuse()
            self._refused = True
        raise AuthenticationError
