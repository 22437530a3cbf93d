"""Three share servers of a user's own process, in threads, as a servers.toml says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealift.channel.transport.tcp import TcpListener
from sealift.codec import encode
from sealift.crypto.identity import Identity, create_identity
from sealift.numeric.kernels import portable_kernels
from sealift.outsource.masked import SHARES, Share
from sealift.outsource.module.servers import Servers
from sealift.outsource.server import ShareServer
from tests.sim.quickkernels import portable_products

KERNELS = portable_kernels()
NAMES: Final[dict[Share, str]] = {"P": "cloud-a", "M": "cloud-b", "Z": "cloud-c"}
FILE: Final = """\
client = "lab.card.json"
development = true
P = { card = "cloud-a.card.json", address = "127.0.0.1:7441" }
M = { card = "cloud-b.card.json", address = "127.0.0.1:7442" }
Z = { card = "cloud-c.card.json", address = "127.0.0.1:7443" }
"""


@dataclass
class OwnWorld:
    """Servers under way, and the file that names them."""

    path: Path
    client: Identity
    identities: dict[Share, Identity]
    running: dict[Share, ShareServer]

    @property
    def servers(self) -> Servers:
        return Servers.read(self.path)

    @classmethod
    @contextmanager
    def serving(cls, folder: Path, file: str = FILE) -> Iterator[OwnWorld]:
        """Serve at free ports, in place of the 7441 to 7443 that the file says."""
        client = create_identity("lab")
        identities = {share: create_identity(name) for share, name in NAMES.items()}
        for each in (client, *identities.values()):
            (folder / f"{each.name}.card.json").write_bytes(encode(each.card))
        with ExitStack() as stack:
            listeners = {s: stack.enter_context(closing(TcpListener())) for s in SHARES}
            for number, listener in enumerate(listeners.values(), 7441):
                file = file.replace(f":{number}", f":{listener.address[1]}")
            path = folder / "servers.toml"
            path.write_text(file)
            world = cls(path, client, identities, {})
            for share, listener in listeners.items():
                world.running[share] = world.server(share)
                serve = world.running[share].serve
                thread = threading.Thread(target=serve, args=(listener,))
                thread.start()
                stack.callback(thread.join, 10)
                stack.callback(listener.close)
                stack.callback(world.running[share].close)
            yield world

    def server(self, share: Share) -> ShareServer:
        return ShareServer(
            share,
            self.servers.endpoint(self.identities[share], share),
            self.servers.expect_client(),
            products=portable_products(),
            kernels=KERNELS,
            most_bytes=1 << 30,
        )
