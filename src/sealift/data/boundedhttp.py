"""An HTTP answer that is read as far as its request asked for, and no further.

fsspec reads whole answers into memory, and a server may send without end. Loaded when
the first URL of that kind is opened: aiohttp comes with the extra ``urls``.
"""

from __future__ import annotations

import re
from typing import Final

from aiohttp import ClientPayloadError, ClientResponse

MAX_PAGE_BYTES: Final = 8 << 20  # of a page that lists files
_RANGE: Final = re.compile(r"bytes=(\d+)-(\d+)")
_PARTIAL_CONTENT: Final = 206


class BoundedResponse(ClientResponse):
    """Refuses what is longer than the range in its request, before it is in memory."""

    async def read(self) -> bytes:
        """The body.

        Raises:
            ClientPayloadError: if it is longer than was asked for.
        """
        if self._body is None:
            try:
                self._body = await self._read_up_to(self._wanted_bytes())
            except BaseException:
                self.close()
                raise
        return await super().read()

    def _wanted_bytes(self) -> int:
        asked = _RANGE.fullmatch(self.request_info.headers.get("Range", ""))
        if asked is None or self.status >= 400:
            return MAX_PAGE_BYTES
        if self.status != _PARTIAL_CONTENT:
            raise ClientPayloadError("the server does not support range requests")
        return int(asked[2]) - int(asked[1]) + 1

    async def _read_up_to(self, most_bytes: int) -> bytes:
        body = bytearray()
        while part := await self.content.read(most_bytes + 1 - len(body)):
            body += part
            if len(body) > most_bytes:
                raise ClientPayloadError(
                    "the server sent more bytes than were requested"
                )
        return bytes(body)
