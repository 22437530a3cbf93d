"""A user's own model on three share servers that really are reached, as servers.toml says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sealift.outsource
from sealift.crypto.identity import create_identity
from sealift.errors import (
    IntegrityError,
    MalformedError,
    PeerError,
    PolicyError,
    SealiftError,
    UsageError,
)
from sealift.numeric.kernels import portable_kernels
from sealift.outsource.compute import ShareProducts
from sealift.outsource.masked import SHARES
from sealift.outsource.module.model import OutsourcedModel, outsource
from sealift.outsource.module.servers import ReachedServers, Servers
from sealift.outsource.plain import PlainProducts
from tests.sim.ownservers import KERNELS, OwnWorld
from tests.sim.reached import Reached


def make_model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)
    )


def train(model: nn.Module, steps: int) -> list[torch.Tensor]:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for number in range(steps):
        torch.manual_seed(number)
        x, y = torch.randn(8, 1, 4, 4), torch.randint(3, (8,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [each.detach().clone() for each in model.parameters()]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[OwnWorld]:
    with OwnWorld.serving(tmp_path) as found:
        yield found


def reached(world: OwnWorld) -> OutsourcedModel:
    reach = ReachedServers(world.servers, world.client, KERNELS)
    return outsource(make_model(), reach, KERNELS, seed=7)


def test_servers_train_what_the_integer_reference_trains(world: OwnWorld) -> None:
    with reached(world) as model:
        found = train(model, 4)
        for _ in range(2):  # another form: sessions end, and others begin
            model.eval()(torch.ones(2, 1, 4, 4))
        found += train(model, 2)
        assert model.outsourced().served == 3 + 1 + 2
    with outsource(make_model(), Reached(PlainProducts), KERNELS, seed=7) as model:
        expected = train(model, 4)
        for _ in range(2):
            model.eval()(torch.ones(2, 1, 4, 4))
        expected += train(model, 2)
    assert all(map(torch.equal, found, expected))


def test_the_door_for_users(
    world: OwnWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = "sealift.outsource.module.model.best_kernels"
    monkeypatch.setattr(door, portable_kernels)
    with sealift.outsource.outsource_module(
        make_model(), servers=world.path, key=world.client
    ) as model:
        train(model, 2)
        assert model.outsourced().served == 1


def test_a_server_that_lies_is_named(
    world: OwnWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lying(ShareProducts):
        def make(self, *args: Any, **more: Any) -> Iterator[int]:
            yield from super().make(*args, **more)
            args[-1][0] ^= 1

    world.running["M"].products = Lying("cpu", KERNELS)
    with reached(world) as model:
        before = train(model, 1)
        with pytest.raises(IntegrityError, match=r"M \(cloud-b\) sent a wrong answer"):
            train(model, 2)
        assert all(map(torch.equal, before, model.parameters()))
        with pytest.raises(IntegrityError, match="cloud-b"):
            model(torch.ones(8, 1, 4, 4))


def test_a_server_that_goes_is_named(world: OwnWorld) -> None:
    with reached(world) as model:
        train(model, 2)
        world.running["Z"].close()
        with pytest.raises(PeerError, match=r"Z \(cloud-c\)") as caught:
            train(model, 1)
        assert caught.value.code == "server-gone"


def test_a_strangers_key_is_refused(world: OwnWorld) -> None:
    stranger = create_identity("lab")
    with pytest.raises(UsageError) as caught:
        ReachedServers(world.servers, stranger, KERNELS)
    assert caught.value.code == "other-key"
    with pytest.raises(UsageError, match="server P"):
        world.servers.endpoint(world.identities["M"], "P")
    forged = replace(world.servers, client=stranger.card)
    reach = ReachedServers(forged, stranger, KERNELS)
    with pytest.raises(SealiftError):
        train(outsource(make_model(), reach, KERNELS, seed=0), 2)


@pytest.mark.parametrize("whose", ["cloud-b.card.json", "lab.card.json"])
def test_two_roles_with_one_key_are_refused(world: OwnWorld, whose: str) -> None:
    text = world.path.read_text().replace("cloud-a.card.json", whose)
    world.path.write_text(text)
    with pytest.raises(PolicyError) as caught:
        Servers.read(world.path)
    assert caught.value.code == "servers-not-apart"


def test_servers_on_one_host_are_refused_but_for_development(world: OwnWorld) -> None:
    apart = replace(world.servers, development=False)
    for share, server in world.running.items():
        server.endpoint = apart.endpoint(world.identities[share], share)
    reach = ReachedServers(apart, world.client, KERNELS)
    with pytest.raises(PolicyError) as caught:
        train(outsource(make_model(), reach, KERNELS, seed=0), 2)
    assert caught.value.code == "servers-not-apart"


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [("Z = ", "Y = ", "Y"), ("development = true", "development = 1", "development")],
)
def test_what_the_file_has_wrong_is_named(
    world: OwnWorld, old: str, new: str, field: str
) -> None:
    world.path.write_text(world.path.read_text().replace(old, new))
    with pytest.raises(MalformedError, match=field):
        Servers.read(world.path)


def test_the_digest_does_not_depend_on_addresses(world: OwnWorld) -> None:
    servers = world.servers
    moved = replace(servers, addresses=dict.fromkeys(SHARES, "elsewhere:1"))
    assert moved.digest == servers.digest
    assert replace(servers, development=False).digest != servers.digest
