"""`sealift broker --http` as a real process: up beside its sessions, gone with it."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import httpx
import pytest

from tests.sim.jobrun import job_run
from tests.sim.jobworld import Wishes, fresh_world
from tests.sim.kbs_world import AUTH, RESOURCE, problem

pytestmark = pytest.mark.distributed


def test_broker_serves_http_beside_its_sessions(tmp_path: Path) -> None:
    world = fresh_world(tmp_path / "world", Wishes())
    with job_run(world) as run:
        run.orchestrator()
        broker = run.broker("north", "--http", "127.0.0.1:0")
        line = broker.wait_line("KBS protocol, health and metrics on ")
        url = f"http://{line.split()[-1]}"
        assert httpx.get(f"{url}/readyz").status_code == 200
        assert httpx.post(f"{url}/kbs/v0/auth", json=AUTH).status_code == 200
        assert problem(httpx.get(f"{url}{RESOURCE}"))[1] == "TokenNotFound"
        entries = re.search(
            r"^sealift_log_entries (\d+)", httpx.get(f"{url}/metrics").text, re.M
        )
        assert entries
        assert int(entries[1]) > 0
        broker.signal(signal.SIGTERM)
        assert broker.end() == 128 + signal.SIGTERM
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/healthz")
