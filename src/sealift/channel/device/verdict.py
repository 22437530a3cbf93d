"""The gate: nothing outwardly visible happens before the verdict of what it came from.

Strict is the default: records are used after their verdict, and the gate has nothing to
hold. Deferred is asked for, batch by batch, and for float inputs of fixed shape only
(rule M3): work on them is queued at once, and everything outward (optimizer step, copy to
the host, checkpoint, send) calls ``check`` first. A number from a spoiled record can pick
a row, a length or a branch; a float can only become another float.

On a failed verdict whatever was made of the batch is undone (gradients dropped, memory
scrubbed), the gate is dead, and any error that came before it is reported as the failed
verdict: what a spoiled batch breaks must say nothing about it.
Pure: what is outward, and what to undo, are callables of the layers above.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from sealift.channel.device.device import Verdicts
from sealift.errors import AuthenticationError, SealiftError, UsageError

DEFERRABLE: Final = ("bfloat16", "float16", "float32", "float64")
Undo = Callable[[], None]
Admitted = tuple[Verdicts, Undo | None]
_BYTES: Final = dict(zip(DEFERRABLE, (2, 2, 4, 8), strict=True))


class Gate:
    """Holds verdicts that are still out, and everything outward until they came.

    Args:
        undo: What a failed verdict undoes, in this order; each is tried. Called under no
            lock, and again by every thread that waited for such a verdict.
    """

    def __init__(self, undo: Sequence[Undo] = ()) -> None:
        self._undo = list(undo)
        self._pending: list[Admitted] = []
        self._failed = False
        self._lock = threading.Lock()

    def on_failure(self, undo: Undo) -> None:
        """Undo this too."""
        with self._lock:
            self._undo.append(undo)

    def admit(
        self,
        verdicts: Verdicts,
        *,
        dtype: str,
        shape: Sequence[int],
        nbytes: int,
        undo: Undo | None = None,
    ) -> None:
        """Let work begin on a batch whose verdicts are out.

        Args:
            verdicts: Of the batch's records.
            dtype: Its element type, as torch or numpy name it.
            shape: Its shape, known before the batch came.
            nbytes: Plaintext bytes of the batch.
            undo: Scrubs what was copied from it, if a verdict fails before the next
                ``check`` passed.

        Raises:
            UsageError: code ``deferral-not-allowed``, unless it is floats of that shape.
            AuthenticationError: if the gate is dead; the batch is undone.
        """
        check_deferrable(dtype, shape, nbytes)
        with self._lock:
            if not self._failed:
                self._pending.append((verdicts, undo))
                return
        _settle_and_undo([(verdicts, undo)], ())
        raise AuthenticationError

    def check(self) -> None:
        """Pass when everything admitted verified; called before anything outward.

        Raises:
            AuthenticationError: if something did not, now or before.
        """
        with self._lock:
            self._check_alive()
            pending = list(
                self._pending
            )  # they stay: another thread waits for them too
        try:
            for verdicts, _ in pending:
                verdicts.wait()
        except BaseException as error:
            refused = _settle_and_undo(*self._die(pending))
            # A failed tag outranks everything that came of it (rule M3).
            if refused or isinstance(error, AuthenticationError):
                raise AuthenticationError from None
            raise
        with self._lock:
            self._check_alive()
            known = {id(verdicts) for verdicts, _ in pending}
            self._pending = [each for each in self._pending if id(each[0]) not in known]

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Work on admitted batches; an error in it waits for the verdict (rule M3).

        Raises:
            AuthenticationError: instead of the error, if a verdict failed.
            UnavailableError: instead of it, if the device that knows the verdict failed.
        """
        try:
            yield
        except BaseException:  # also what ends the process: its exit code is outward
            try:
                self.check()
            except SealiftError as failed:
                raise failed from None
            raise

    def _die(self, waited: list[Admitted]) -> tuple[list[Admitted], list[Undo]]:
        """Nothing outward from now on; what is to be undone, outside of the lock."""
        with self._lock:
            self._failed = True
            later = [each for each in self._pending if each not in waited]
            return [*waited, *later], list(self._undo)

    def _check_alive(self) -> None:
        if self._failed:
            raise AuthenticationError


def _settle_and_undo(batches: Sequence[Admitted], undo_all: Iterable[Undo]) -> bool:
    """Undo everything; whether a tag failed."""
    refused = False
    for verdicts, _ in batches:  # none may write any more when memory is scrubbed
        try:
            verdicts.wait()
        except AuthenticationError:
            refused = True
        except Exception:  # noqa: S110 - told already, by whoever waited first
            pass
    for undo in (*(undo for _, undo in batches), *undo_all):
        if undo is not None:
            with contextlib.suppress(Exception):
                undo()
    return refused


def check_deferrable(dtype: str, shape: Sequence[int], nbytes: int) -> None:
    """Whether work may begin on such a batch before its verdict.

    Raises:
        UsageError: code ``deferral-not-allowed``.
    """
    name = dtype.removeprefix("torch.")
    if name not in DEFERRABLE:
        raise not_deferred(f"{name} could control the computation, unlike a float")
    if any(size <= 0 for size in shape) or math.prod(shape) * _BYTES[name] != nbytes:
        raise not_deferred(f"shape {tuple(shape)} of {name} is not {nbytes} bytes")


def not_deferred(why: str) -> UsageError:
    """Such a batch waits for its verdict."""
    return UsageError(
        "this batch cannot be used before it is verified",
        why=why,
        code="deferral-not-allowed",
    )
