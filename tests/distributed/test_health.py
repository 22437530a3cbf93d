"""`sealift health` beside `sealift broker --status`, as real processes."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import httpx
import pytest

from sealift.train.sandbox import landlock
from tests.sim.jobrun import job_run
from tests.sim.jobworld import Wishes, fresh_world

pytestmark = pytest.mark.distributed


def test_a_brokers_health_is_shown_by_another_process(tmp_path: Path) -> None:
    world = fresh_world(tmp_path / "world", Wishes())
    folder = tmp_path / "status"
    with job_run(world) as run:
        run.orchestrator()
        broker = run.broker("north", "--status", str(folder))
        while not (folder / "status.json").exists():
            assert broker.process.poll() is None
            time.sleep(0.05)
        shown = run.start("health", "health", str(folder), "--port", "0")
        url = f"http://{shown.wait_line('health on ').split()[-1]}"
        assert httpx.get(f"{url}/readyz").text == "ready\n"
        metrics = httpx.get(f"{url}/metrics").text
        entries = re.search(r"^sealift_log_entries (\d+)", metrics, re.MULTILINE)
        assert entries
        assert int(entries[1]) > 0
        assert "north" not in metrics
        if landlock.version():
            process = Path("/proc", str(shown.process.pid), "status")
            assert "NoNewPrivs:\t1\n" in process.read_text()  # it gave up its access
        broker.signal(signal.SIGTERM)
        assert broker.end() == 128 + signal.SIGTERM
        assert httpx.get(f"{url}/healthz").status_code == 503
        shown.signal(signal.SIGTERM)
        assert shown.end() == 128 + signal.SIGTERM
