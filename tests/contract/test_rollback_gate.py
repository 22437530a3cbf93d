"""Brokers that ask each other which agreement is the last, over a real relay."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.attest.attesters.development import DevelopmentAttester
from sealift.errors import PolicyError, SealiftError
from sealift.ids import Role
from sealift.release.agreement import Board, RollbackRule
from sealift.release.collect import collect_release
from sealift.session import Endpoint, Relay, connect
from sealift.travel.brokerage import Brokerage
from sealift.travel.peers import expect_broker
from tests.sim.owners import BrokerBox, Consortium, make_broker, make_consortium

NAMES = ("ada", "bern", "cleo")
BOARD = Board(members=NAMES, threshold=2, rollback=RollbackRule(2, 0))


@pytest.fixture(scope="module")
def consortium() -> Consortium:
    plain = make_consortium()
    return replace(plain, agreement=replace(plain.agreement, board=BOARD))


class Town:
    """A relay, and the brokers that a test starts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._relay = self._stack.enter_context(Relay.listen())

    def start(self, consortium: Consortium, owner: str) -> BrokerBox:
        folder = self._folder / f"{owner}-{consortium.agreement.number}"
        folder.mkdir()
        box = make_broker(consortium, owner, folder)
        self._stack.callback(box.close)
        ended = threading.Event()
        self._stack.callback(ended.wait, 5.0)
        link = self._stack.enter_context(self._relay.local_link(f"broker-{owner}"))
        endpoint = self._endpoint(
            consortium, Role.BROKER, owner, identity=consortium.identities[owner]
        )
        brokerage = Brokerage(link, endpoint, consortium.verified(), broker=box.broker)

        def serve() -> None:
            with suppress(SealiftError):
                brokerage.serve()
            ended.set()

        threading.Thread(target=serve, daemon=True).start()
        return box

    def collect(self, consortium: Consortium, owner: str) -> str:
        """``released``, or why not."""
        attester = DevelopmentAttester(
            consortium.attester,
            role=Role.ACCELERATOR,
            code_bundle=consortium.agreement.code.digest,
        )
        ours = self._endpoint(
            consortium, Role.ACCELERATOR, "accelerator", attester=attester
        )
        verified = consortium.verified()
        with (
            self._relay.local_link("accelerator") as link,
            connect(
                link.open(f"broker-{owner}", 5.0), ours, expect_broker(verified, owner)
            ) as session,
        ):
            try:
                key, _ = collect_release(
                    session, verified, f"{owner}-train", clock=time.monotonic
                )
            except PolicyError as error:
                return error.why
        key.wipe()
        return "released"

    def _endpoint(self, consortium: Consortium, role: Role, name: str, **proof: object):  # type: ignore[no-untyped-def]
        digest = consortium.agreement.digest
        return Endpoint(role=role, name=name, agreement=digest, **proof)  # type: ignore[arg-type]

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    town = Town(tmp_path)
    yield town
    town.close()


def await_release(town: Town, consortium: Consortium, owner: str) -> str:
    deadline = time.monotonic() + 15
    while (said := town.collect(consortium, owner)) != "released":
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return said


def test_nothing_is_released_before_a_quorum_was_heard(
    town: Town, consortium: Consortium
) -> None:
    town.start(consortium, "ada")
    assert "quorum-missing" in town.collect(consortium, "ada")
    town.start(consortium, "bern")
    assert await_release(town, consortium, "ada") == "released"
    assert await_release(town, consortium, "bern") == "released"


def test_owners_that_went_on_are_no_quorum_for_what_was_before(
    town: Town, consortium: Consortium
) -> None:
    """A broker put back to an old agreement: the others serve the successor."""
    successor = consortium.successor()
    for owner in ("bern", "cleo"):
        town.start(successor, owner)
    town.start(consortium, "ada")
    time.sleep(1.5)
    assert "quorum-missing" in town.collect(consortium, "ada")
    assert await_release(town, successor, "bern") == "released"


def test_without_the_rule_nobody_is_asked(town: Town) -> None:
    """Control."""
    plain = make_consortium()
    town.start(plain, "ada")
    assert town.collect(plain, "ada") == "released"
