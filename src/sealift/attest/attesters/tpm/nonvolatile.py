"""Non-volatile memory of a TPM: certificates, and counters that only go up.

A counter can hold the version of the agreement that this host last worked under. In a
real TPM nobody turns it back; a software TPM's goes back with its state (rule H6).
Source: TPM 2.0 Library part 2, section 13; part 3, section 31.
"""

from __future__ import annotations

import struct
from typing import Final

from sealift.attest.attesters.tpm.client import (
    PASSWORD,
    UNKNOWN_HANDLE,
    Command,
    TpmClient,
    TpmError,
)
from sealift.attest.formats.tpmwire import TpmReader, sized

_OWNER: Final = 0x40000001
_CHUNK_BYTES: Final = 512
# A counter; written and read by who knows its (empty) password; no lockout.
_COUNTER: Final = 0x00000004 | 0x10 | 0x00040000 | 0x02000000


def read_index(client: TpmClient, index: int) -> bytes | None:
    """The whole content of an NV index, or None if there is no such index."""
    size = _index_bytes(client, index)
    if size is None:
        return None
    parts = (
        _read_part(client, index, min(_CHUNK_BYTES, size - offset), offset)
        for offset in range(0, size, _CHUNK_BYTES)
    )
    return b"".join(parts)


def define_counter(client: TpmClient, index: int) -> None:
    """Make a counter at ``index``, with its first value; nothing if it is there.

    Raises:
        TpmError: if the owner set a password, or the memory is full.
    """
    if _index_bytes(client, index) is not None:
        return
    public = struct.pack(">IHIHH", index, 0x000B, _COUNTER, 0, 8)
    client.run(
        Command.NV_DEFINE_SPACE,
        (_OWNER,),
        sized(b"") + sized(public),
        sessions=(PASSWORD,),
    )
    increment(client, index)


def increment(client: TpmClient, index: int) -> int:
    """Count one further; return the new value."""
    client.run(Command.NV_INCREMENT, (index, index), sessions=(PASSWORD,))
    return read_counter(client, index)


def read_counter(client: TpmClient, index: int) -> int:
    """The value of a counter; a new one begins above every one that was deleted."""
    return int.from_bytes(_read_part(client, index, 8, 0), "big")


def remove_index(client: TpmClient, index: int) -> None:
    """Delete an index of the owner's."""
    client.run(Command.NV_UNDEFINE_SPACE, (_OWNER, index), sessions=(PASSWORD,))


def _index_bytes(client: TpmClient, index: int) -> int | None:
    try:
        answer = client.run(Command.NV_READ_PUBLIC, (index,))
    except TpmError as error:
        if error.response == UNKNOWN_HANDLE:
            return None
        raise
    public = TpmReader(answer.reader("NV index").sized(), "NV public area")
    public.take(10)
    public.sized()
    return public.number(2)


def _read_part(client: TpmClient, index: int, size: int, offset: int) -> bytes:
    parameters = struct.pack(">HH", size, offset)
    answer = client.run(
        Command.NV_READ, (index, index), parameters, sessions=(PASSWORD,)
    )
    return answer.reader("NV content").sized()
