"""Three processes of `sealift share-server`; one is killed, one stopped, one told to end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from sealift.codec import encode
from sealift.crypto.identity import Identity, create_identity, save_identity
from sealift.errors import PeerError
from sealift.numeric.kernels import portable_kernels
from sealift.outsource.connections import Connections, ServerConnection
from sealift.outsource.masked import SHARES, MaskedProducts, Share
from sealift.outsource.module.servers import Servers
from sealift.outsource.multiplier import Multiplier
from sealift.outsource.plain import PlainProducts
from sealift.outsource.terms import Backward, Exchange, Forward, Layer
from sealift.outsource.trace import Recorder, StepKind, tabulate
from sealift.release.files import PASSPHRASE_VARIABLE

pytestmark = pytest.mark.distributed
PARTIES: dict[Share, str] = {"P": "cloud-a", "M": "cloud-b", "Z": "cloud-c"}
PASSPHRASE = "three organisations"
KERNELS = portable_kernels()
LAYER = Layer(name="fc", batch=40, inputs=300, outputs=20, edge=True)
KIND = StepKind("train", 40)
TRACE: tuple[Exchange, ...] = (
    Forward(LAYER, ("input", "weight")), Backward(0, ("input", "weight")),
)  # fmt: skip


class Town:
    """Who takes part, what they agreed on, and the servers' processes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "servers.toml"
        self.client = self._identity("lab")
        for name in PARTIES.values():
            self._identity(name)
        self._write({})
        self.processes: dict[Share, subprocess.Popen[str]] = {}

    def _identity(self, name: str) -> Identity:
        made = create_identity(name)
        save_identity(made, self.folder / f"{name}.key", PASSPHRASE)
        (self.folder / f"{name}.card.json").write_bytes(encode(made.card))
        return made

    def _write(self, addresses: dict[Share, str]) -> None:
        lines = ['client = "lab.card.json"', "development = true"]
        for share, party in PARTIES.items():
            address = addresses.get(share, "127.0.0.1:0")
            lines += [f"[{share}]", f'card = "{party}.card.json"']
            lines += [f'address = "{address}"']
        self.file.write_text("\n".join(lines))

    def command(self, share: Share, party: str) -> list[str]:
        words = ["share-server", "--share", share, str(self.file)]
        words += ["--key", str(self.folder / f"{party}.key")]
        return [sys.executable, "-m", "sealift", *words, "--kernels", str(self.folder)]

    def start(self) -> None:
        for share, party in PARTIES.items():
            self.processes[share] = subprocess.Popen(
                self.command(share, party),
                stderr=subprocess.PIPE, text=True, env=environment(),
            )  # fmt: skip
        self._write({share: self._listens(share) for share in SHARES})

    def _listens(self, share: Share) -> str:
        lines = self.processes[share].stderr
        assert lines is not None
        said = []
        for line in lines:
            said.append(line)
            if found := re.search(r"int8 on cpu, at ([0-9.]+:[0-9]+)", line):
                return found[1]
        raise AssertionError("".join(said))

    @contextmanager
    def servers(self, answer_s: float = 60.0) -> Iterator[Connections]:
        servers = Servers.read(self.file)
        places = [servers.place(share) for share in SHARES]
        endpoint = servers.endpoint(self.client)
        with Connections.dial(
            endpoint, places, answer_s=answer_s, one_host=True
        ) as found:
            found.announce(tabulate({KIND: TRACE}))
            yield found

    def stop(self) -> None:
        for each in self.processes.values():
            with suppress(ProcessLookupError):
                each.send_signal(signal.SIGCONT)
            each.kill()
            each.communicate(timeout=60)


def environment() -> dict[str, str]:
    return {**os.environ, PASSPHRASE_VARIABLE: PASSPHRASE}


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def step(products: MaskedProducts | PlainProducts, number: int) -> list[np.ndarray]:
    rng = np.random.default_rng(number)
    x, w, dy = (
        rng.standard_normal(LAYER.shape(t)).astype(np.float32) for t in ("x", "w", "dy")
    )
    asker = Multiplier(products, KERNELS, 3)
    asker.begin(KIND, number, Recorder())
    forward, backward = TRACE
    assert isinstance(forward, Forward)
    assert isinstance(backward, Backward)
    found = [asker.forward(forward, x, w), *asker.backward(backward, dy)]
    asker.settle()
    return found


def test_steps_then_servers_that_are_silent_told_to_end_and_killed(town: Town) -> None:
    with town.servers() as servers:
        products = MaskedProducts(servers, KERNELS)
        for number in range(3):
            ours, theirs = step(products, number), step(PlainProducts(), number)
            for mine, right in zip(ours, theirs, strict=True):
                assert np.array_equal(mine, right)
    with town.servers(answer_s=1.0) as servers:  # each serves the next who comes
        products = MaskedProducts(servers, KERNELS)
        step(products, 3)
        town.processes["M"].send_signal(signal.SIGSTOP)
        with pytest.raises(PeerError, match=r"^M \(cloud-b\) ") as gone:
            step(products, 4)
        assert (gone.value.code, gone.value.exit_code) == ("server-gone", 4)
    town.processes["M"].send_signal(signal.SIGCONT)
    with town.servers() as servers:
        products = MaskedProducts(servers, KERNELS)
        step(products, 5)
        told = [town.processes["P"], town.processes["M"]]
        for each in told:
            each.terminate()
        assert [each.wait(30) for each in told] == [143, 143]
        with pytest.raises(PeerError, match=r"^[PM] \(cloud-[ab]\) ") as gone:
            step(products, 6)
        assert gone.value.code == "server-gone"
    town.processes["Z"].kill()
    agreed = Servers.read(town.file)
    with pytest.raises(PeerError, match=r"^Z \(cloud-c\) ") as gone:
        ServerConnection(agreed.place("Z"), agreed.endpoint(town.client), 10.0)
    assert gone.value.code == "server-gone"


def test_a_key_of_another_party_starts_no_server(tmp_path: Path) -> None:
    town = Town(tmp_path)
    ended = subprocess.run(
        town.command("P", "cloud-b"), check=False, stderr=subprocess.PIPE, text=True,
        env=environment(), timeout=120,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "[other-key]" in ended.stderr
