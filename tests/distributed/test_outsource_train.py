"""Plan ``outsource``: every role a process of its own, and three servers of shares."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sealift.codec import encode
from sealift.crypto.identity import Identity, create_identity, save_identity
from sealift.lab.worlds.job import World
from sealift.lab.worlds.roles import run_travel
from sealift.numeric.kernels import best_kernels
from sealift.outsource.plain import PlainProducts
from sealift.train.loop.products import Outsourcing
from tests.sim import jobworld
from tests.sim.jobworld import OWNERS, Wishes, fresh_world, train_here

pytestmark = [pytest.mark.distributed, pytest.mark.long]
PARTIES = {"P": "cloud-a", "M": "cloud-b", "Z": "cloud-c"}
PASSPHRASE = "three organisations, one machine"
SEED = 7  # of the world's job


def test_a_run_with_servers_equals_its_reference_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everybody: dict[str, Identity] = dict(jobworld.identities())
    base = tmp_path / "base"  # cards of three more lie in this copy alone
    shutil.copytree(jobworld.plain_world().path, base)
    clouds = {name: create_identity(name) for name in PARTIES.values()}
    for name, identity in clouds.items():
        save_identity(identity, tmp_path / f"{name}.key", PASSPHRASE)
        (base / f"{name}.card.json").write_bytes(encode(identity.card))
    everybody |= clouds
    monkeypatch.setattr(jobworld, "identities", lambda: everybody)
    monkeypatch.setattr(jobworld, "plain_world", lambda: World(base))
    ports = {share: free_port() for share in PARTIES}
    world = fresh_world(
        tmp_path / "world",
        Wishes(
            plan="outsource",
            epochs=1,
            owners=OWNERS,
            group=agreed(),
            slices="\n[servers]\n"
            + "".join(f'{s} = "127.0.0.1:{port}"\n' for s, port in ports.items()),
        ),
    )
    with servers(world.job, tmp_path):
        run = run_travel(world, lambda _process, _event: None, behaviour={})
    products = Outsourcing(lambda _: PlainProducts(), best_kernels(), SEED)
    reference = train_here(world, products=products)
    assert reference.weights is not None
    assert run.result["weights"] == reference.weights.to_text()


def agreed() -> str:
    """What the agreement has besides: three parties, and whose share is whose."""
    cards = "".join(
        f'\n[[parties]]  # {name}\ncard = "{name}.card.json"\nroles = ["share_server"]\n'
        for name in PARTIES.values()
    )
    shares = "".join(f'{share} = "{name}"\n' for share, name in PARTIES.items())
    return f"{cards}\n[servers]\n{shares}"


@contextmanager
def servers(job: Path, folder: Path) -> Iterator[None]:
    """The three, as their organisations start them."""
    environment = {**os.environ, "SEALIFT_PASSPHRASE": PASSPHRASE}
    with ExitStack() as stack:
        for share, name in PARTIES.items():
            words = ["share-server", "--share", share, str(job)]
            words += ["--key", str(folder / f"{name}.key"), "--kernels", str(folder)]
            child = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "sealift", *words], env=environment
                )
            )
            stack.callback(child.terminate)
        yield


def free_port() -> int:
    """Of loopback; nobody else asks for one meanwhile."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
