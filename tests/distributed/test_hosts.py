"""Ranks on several hosts: what crosses between them, and a host that is cut off."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np
import pytest

from sealift.crypto.hash import sha256
from tests.sim.capture import places_of, words_of
from tests.sim.hostrank import AGREEMENT, JOB, PORT, gradients
from tests.sim.hosts import Hosts, Told, hosts

pytestmark = [pytest.mark.distributed, pytest.mark.hosts]
ATTESTER = bytes(range(100, 132))
BIG, SMALL = 60_000, 900  # elements: two phases, and one
STEPS = 2
PEER = 4  # exit status


def start(town: Hosts, **changes: Any) -> list[Told]:
    """A rank on each host; the relay is on the first."""
    kept = {
        "attester": ATTESTER.hex(),
        "direct": True,
        "elements": [BIG, SMALL],
        "sealed": True,
        "steps": STEPS,
        "timeout_s": 30.0,
    }
    addresses = town.addresses
    return [
        town.start(
            *(rank, "hostrank"), rank=rank, addresses=addresses, **{**kept, **changes}
        )
        for rank in range(len(addresses))
    ]


@pytest.fixture
def town(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    with hosts(getattr(request, "param", 3)) as made:
        made.start(0, "hostrank", relay=made.addresses[0]).wait("listens")
        yield made


def partial_sums(world: int, step: int, elements: int) -> list[Any]:
    """All that a rank holds of a step: contributions, and sums of the first of them."""
    parts = [gradients(rank, step, elements) for rank in range(world)]
    sums = [reduce(np.add, parts[: count + 1]) for count in range(1, world)]
    return parts + sums


def total(world: int, step: int, elements: int) -> str:
    return sha256(partial_sums(world, step, elements)[-1].data).hex()


def tensors(world: int) -> bytes:
    return b"".join(
        each.tobytes()
        for step in range(STEPS)
        for elements in (BIG, SMALL)
        for each in partial_sums(world, step, elements)
    )


def forms(secret: bytes) -> list[bytes]:
    """A secret as it may stand in a message."""
    texts = [base64.b64encode(bytes(pad) + secret)[4:40] for pad in range(3)]
    return [secret, secret.hex().encode(), *texts]


def met_and_summed(ranks: list[Told], path: str) -> None:
    assert [rank.end() for rank in ranks] == [0] * len(ranks)
    for rank in ranks:
        assert set(rank["met"]["paths"].values()) == {path}
        sums_are_right(rank, len(ranks))
        assert rank.count("step") == STEPS


def sums_are_right(rank: Told, world: int) -> None:
    steps = [told["sums"] for told in rank.lines if told["event"] == "step"]
    for number, sums in enumerate(steps):
        assert sums == [total(world, number, each) for each in (BIG, SMALL)]


def nothing_is_told(ranks: list[Told], crossed: list[bytes]) -> None:
    """No tensor, no key, none of the words that ranks say to each other."""
    assert words_of(tensors(len(ranks)), crossed) == 0
    keys = {bytes.fromhex(each) for rank in ranks for each in rank["keys"]["secrets"]}
    assert len(keys) > 10 * len(ranks)
    for secret in [ATTESTER, *keys]:
        assert [places_of(each, crossed) for each in forms(secret)] == [0] * 5
    words = (JOB, "SEALCOL", "Began", "Sees", "Offers", "Takes", f":{PORT}")
    assert [word for word in words if places_of(word.encode(), crossed)] == []


@pytest.mark.parametrize("path", ["tcp", pytest.param("relay", marks=pytest.mark.long)])
def test_what_crosses_between_hosts_is_sealed(town: Hosts, path: str) -> None:
    ranks = start(town, direct=path == "tcp")
    met_and_summed(ranks, path)
    crossed = town.capture.crossed()
    assert sum(map(len, town.capture.frames)) > 3 * STEPS * BIG * 4
    nothing_is_told(ranks, crossed)
    # Said in spec/collective.md section 4: who meets whom, under which agreement.
    for seen in ("accelerator-2", AGREEMENT.to_text(), "development-evidence"):
        assert places_of(seen.encode(), crossed)


@pytest.mark.long
@pytest.mark.parametrize("path", ["tcp", "relay"])
def test_control_what_is_not_sealed_is_found(town: Hosts, path: str) -> None:
    ranks = start(town, direct=path == "tcp", sealed=False)
    met_and_summed(ranks, path)
    crossed = town.capture.crossed()
    assert words_of(gradients(2, 1, BIG).tobytes(), crossed) > BIG // 4
    assert places_of(b"SEALCOL", crossed)


def test_control_a_pattern_that_crosses_is_found_wherever_it_lies(town: Hosts) -> None:
    secret = gradients(1, 0, BIG).tobytes()
    told = secret[1000:1015], b"x" + secret[77777:77792] + b"yz", b"keys " + ATTESTER
    for each in told:
        town.send_plain(1, 0, each)
    crossed = town.capture.crossed()
    assert words_of(secret, crossed) == 4  # each in a frame and in a stream
    assert places_of(ATTESTER, crossed) == 2


@pytest.mark.long
@pytest.mark.parametrize("path", ["tcp", "relay"])
def test_a_host_that_is_cut_off_ends_the_group_everywhere(
    town: Hosts, path: str
) -> None:
    ranks = start(town, direct=path == "tcp", steps=0, timeout_s=4.0)
    for rank in ranks:
        rank.wait("step", 2)
    town.cut(2)
    assert [rank.end() for rank in ranks] == [PEER] * 3
    done = [rank.count("step") for rank in ranks]
    assert max(done) - min(done) <= 1
    for rank in ranks:
        sums_are_right(rank, 3)
        assert rank["failed"]["kind"] == "PeerError"
        assert rank["failed"]["said"].startswith("rank ")
    town.restore(2)
    met_and_summed(start(town, direct=path == "tcp"), path)


@pytest.mark.long
def test_a_host_that_is_cut_off_while_ranks_meet_is_named(town: Hosts) -> None:
    town.cut(2)
    ranks = start(town, timeout_s=4.0)
    assert [rank.end() for rank in ranks] == [PEER] * 3
    for rank in ranks:
        assert rank.count("met") == 0
