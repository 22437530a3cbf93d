"""Feed a process that owns a device from a data owner's process on the same host.

::

    form = {"x": ("float32", (32, 8)), "y": ("int64", (32,))}

    with link.offer("feed.sock", form, agreement=..., identity=...) as sender:
        sender.send_ahead(batches)  # sealed while the device computes

    with link.accept("feed.sock", form, agreement=..., code=...) as receiver:
        for batch in receiver:  # tensors by name, each after its verdict
            ...

Both ends meet in an attested session over a Unix socket; its keys seal what crosses the
memory that the two processes then share (spec/link.md). How to:
docs/howto/feed-a-device-process.md. Nothing is loaded before a name is used; torch only
where tensors are asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sealift.feed.receiving import Receiver as Receiver
    from sealift.feed.receiving import accept as accept
    from sealift.feed.sending import Sender as Sender
    from sealift.feed.sending import offer as offer

_HOME_OF: Final = {
    "Receiver": "sealift.feed.receiving",
    "Sender": "sealift.feed.sending",
    "accept": "sealift.feed.receiving",
    "offer": "sealift.feed.sending",
}

__all__ = ["Receiver", "Sender", "accept", "offer"]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)
