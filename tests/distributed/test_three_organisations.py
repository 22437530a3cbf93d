"""Units of three organisations, each behind the firewall that such have, to the model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.distributed.test_unit_meeting import OWNERS, Meeting
from tests.sim.organisations import (
    HOST,
    PORT,
    Organisations,
    lacking,
    organisations_of,
)

WHY = lacking()
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(bool(WHY), reason=WHY or "namespaces are permitted"),
]


class Apart(Meeting):
    """Each unit in its organisation; drop-ins name the proxy of those who are behind one."""

    def __init__(
        self,
        state: Path,
        organisations: Organisations,
        owners: tuple[str, ...] = OWNERS,
    ) -> None:
        self._organisations = organisations
        super().__init__(state, f"{HOST}:{PORT}", owners)

    def enter(self, name: str) -> list[str]:
        return self._organisations.enter(name)

    def environment(self, name: str) -> dict[str, str]:
        return {} if name == "host" else self._organisations.proxy_of(name)


@pytest.fixture
def organisations() -> Iterator[Organisations]:
    with organisations_of(OWNERS) as made:
        yield made


def test_three_organisations_train_through_their_firewalls(
    organisations: Organisations, tmp_path: Path
) -> None:
    """One port is open; a proxy is renewed, one is rebooted, a log is rotated."""
    meeting = Apart(tmp_path, organisations)
    try:
        assert not organisations.reaches("east", HOST, PORT)  # nothing listens yet
        meeting.begin("host")
        meeting.wait_for("host", "READY=1")
        assert organisations.reaches("east", HOST, PORT)
        assert not organisations.reaches("north", HOST, PORT)  # but for the proxy
        assert not organisations.reaches("host", "10.79.1.2", PORT)  # nobody dials in
        meeting.invite()
        meeting.agree()
        organisations.renew_proxy()
        journal = meeting.state / "sealift/east/line.journal.jsonl"
        if journal.exists():
            journal.rename(journal.with_suffix(".1"))
        meeting.restart("join", "east")
        for name in meeting.units:
            assert meeting.end(name) == 0, meeting.log(name)
    finally:
        meeting.stop()
    assert load_file(meeting.state / "sealift/host/model.safetensors")
    for name in OWNERS:
        assert (meeting.state / "sealift" / name / "receipt.json").exists()
