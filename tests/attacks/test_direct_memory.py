"""The memory and the socket of a direct path: what the two ends alone may touch (H3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sealift.channel.record.opener import RecordOpener
from sealift.channel.record.record import StreamOptions
from sealift.channel.transport.unixsocket import LocalListener, dial_local
from sealift.crypto.aead import Aead
from sealift.errors import IntegrityError, MalformedError, PeerError, RefusedError
from sealift.travel.accelerator.visit import CargoRows
from sealift.travel.visit.lease import RecordTarget
from tests.sim.sealed_rows import DATA_KEY, PLAIN, RECORD_BYTES, Source
from tests.sim.visit_parts import GuardedPool


class TwiceReading:
    """An engine that reads the ciphertext twice, with the holder's write in between."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = write

    def cipher(self, suite: Any, key: Any) -> Any:
        outer, inner = self, Aead(suite, key)

        class Cipher:
            def open_into(
                self, nonce: Any, sealed: Any, associated: Any, out: Any
            ) -> int:
                first = bytes(sealed)
                count = inner.open_into(nonce, first, associated, out)
                outer._write()
                change = (a ^ b for a, b in zip(first, bytes(sealed), strict=True))
                out[:count] = bytes(p ^ c for p, c in zip(out, change, strict=False))
                return count

        return Cipher()


@pytest.mark.parametrize("mutant", [False, True])
def test_a_holder_that_writes_while_its_record_is_opened(mutant: bool) -> None:
    """H3: the tag passes; the hash is of what was opened, so the rows do not."""
    source, pool = Source(), GuardedPool(len(PLAIN), RECORD_BYTES)
    shared = bytearray(source.records[0])  # a slot that its sender still maps

    def write() -> None:
        shared[5] ^= 0xFF

    opener = RecordOpener(
        DATA_KEY, source.header, options=StreamOptions(TwiceReading(write).cipher)
    )
    rows = CargoRows(opener, source.leaves, pool)
    if mutant:  # the hash is of bytes that were opened apart
        genuine = source.leaves.verify
        source.leaves.verify = lambda i, _: genuine(i, PLAIN[:RECORD_BYTES])  # type: ignore[method-assign]
    rows.place(RecordTarget(0, 0, 0, RECORD_BYTES, 0), memoryview(shared))
    if mutant:
        rows.finish()
    else:
        with pytest.raises(IntegrityError):
            rows.finish()
    assert bytes(pool.buffer[:RECORD_BYTES]) != PLAIN[:RECORD_BYTES]
    rows.close()


def test_another_user_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = LocalListener()
    monkeypatch.setattr("os.geteuid", lambda: 54321)
    with pytest.raises(RefusedError) as caught:
        dial_local(listener.name, 1.0)
    assert caught.value.code == "wrong-peer-user"
    monkeypatch.undo()
    dial_local(listener.name, 1.0).close()  # control
    listener.close()
    with pytest.raises(PeerError):
        dial_local(listener.name, 1.0)


@pytest.mark.parametrize("name", ["", "/run/docker.sock", "@sealift-", "@x" * 20])
def test_nobody_is_sent_to_another_socket(name: str) -> None:
    with pytest.raises(MalformedError):
        dial_local(name, 1.0)
