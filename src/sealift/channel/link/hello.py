"""What each end of a link says first: the link's version, and its stream's header.

It crosses in the clear, so that ends of two versions can say so; the version is in the
context of both streams as well, so nobody between them can make one of it another.
"""

from __future__ import annotations

from typing import Final

from sealift.channel.link.mode import LinkMode
from sealift.errors import PolicyError
from sealift.ids import Buffer

VERSION: Final = 2
_MAGIC: Final = b"SEALLNK" + bytes([VERSION])


def encode_hello(header_bytes: bytes) -> bytes:
    """The first frame of an end."""
    return _MAGIC + header_bytes


def parse_hello(frame: Buffer) -> bytes:
    """The header in it.

    Raises:
        PolicyError: code ``link-version``.
    """
    raw = bytes(frame)
    if not raw.startswith(_MAGIC):
        raise PolicyError(
            "the other end speaks another version of the link",
            why=f"this is version {VERSION}",
            code="link-version",
        )
    return raw[len(_MAGIC) :]


def link_context(mode: LinkMode, context: bytes) -> bytes:
    """What both ends' associated data names: version and mode are part of it."""
    return b"link %d %s\0" % (VERSION, mode.value.encode()) + context
