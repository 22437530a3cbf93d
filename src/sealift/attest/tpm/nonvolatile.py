"""Non-volatile memory of a TPM: certificates, and what a paravisor leaves there.

Source: TPM 2.0 Library part 2, section 13; part 3, section 31.
"""

from __future__ import annotations

import struct
from typing import Final

from sealift.attest.tpm.client import (
    PASSWORD,
    UNKNOWN_HANDLE,
    Command,
    TpmClient,
    TpmError,
)
from sealift.attest.tpm.wire import TpmReader, sized

_OWNER: Final = 0x40000001
_CHUNK_BYTES: Final = 512
# Written and read by the owner, and by who knows the index's (empty) password.
_OWNERS: Final = 0x00000002 | 0x00000004 | 0x00020000 | 0x00040000


def read_index(client: TpmClient, index: int, *, owner: bool = False) -> bytes | None:
    """The whole content of an NV index, or None if there is no such index.

    Args:
        client: The TPM.
        index: Which.
        owner: Whether the TPM's owner may read it; else who knows its empty password.
    """
    size = _index_bytes(client, index)
    if size is None:
        return None
    parts = (
        _read_part(client, index, min(_CHUNK_BYTES, size - offset), offset, owner)
        for offset in range(0, size, _CHUNK_BYTES)
    )
    return b"".join(parts)


def write_index(client: TpmClient, index: int, content: bytes) -> None:
    """Write an NV index of the owner's whole; make it if it is not there.

    Raises:
        TpmError: if the owner set a password, or the index has another length.
    """
    if _index_bytes(client, index) is None:
        _define(client, index, _OWNERS, len(content))
    for offset in range(0, len(content), _CHUNK_BYTES):
        part = content[offset : offset + _CHUNK_BYTES]
        parameters = sized(part) + struct.pack(">H", offset)
        client.run(Command.NV_WRITE, (_OWNER, index), parameters, sessions=(PASSWORD,))


def remove_index(client: TpmClient, index: int) -> None:
    """Delete an index of the owner's."""
    client.run(Command.NV_UNDEFINE_SPACE, (_OWNER, index), sessions=(PASSWORD,))


def _define(client: TpmClient, index: int, attributes: int, size: int) -> None:
    public = struct.pack(">IHIHH", index, 0x000B, attributes, 0, size)
    client.run(
        Command.NV_DEFINE_SPACE,
        (_OWNER,),
        sized(b"") + sized(public),
        sessions=(PASSWORD,),
    )


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


def _read_part(
    client: TpmClient, index: int, size: int, offset: int, owner: bool = False
) -> bytes:
    parameters = struct.pack(">HH", size, offset)
    reader = _OWNER if owner else index
    answer = client.run(
        Command.NV_READ, (reader, index), parameters, sessions=(PASSWORD,)
    )
    return answer.reader("NV content").sized()
