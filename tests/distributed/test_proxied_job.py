"""A job whose owners have no way out but a proxy, and who looked before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.sim.jobrun import SOURCE, JobRun
from tests.sim.jobworld import Wishes, fresh_world
from tests.sim.proxies import FAR, LittleProxy, little_proxy

pytestmark = pytest.mark.distributed
OWNERS = ("north", "east")


class ProxiedRun(JobRun):
    """Its owners dial a name that the proxy alone knows."""

    proxy: LittleProxy

    def enter(self, name: str) -> Sequence[str]:
        if not name.startswith("holder"):
            return ()
        given = self.proxy.environment("ada:word")
        return ("env", *(f"{name}={value}" for name, value in given.items()))

    def check(self, owner: str) -> subprocess.CompletedProcess[str]:
        home = self.world.home(owner)
        words = [*home.unlocking, *home.stores, *home.cargo, *self._dial(), "--check"]
        return subprocess.run(
            [sys.executable, "-m", "sealift", "join", self.world.job, *words],
            check=False,
            env={
                **os.environ,
                **self.proxy.environment("ada:word"),
                "PYTHONPATH": SOURCE,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )


def test_owners_behind_a_proxy(tmp_path: Path) -> None:
    run = ProxiedRun(fresh_world(tmp_path, Wishes(owners=OWNERS)))
    with little_proxy(password="ada:word") as run.proxy:
        try:
            train = run.train()
            host, port = run.address.rsplit(":", 1)
            run.proxy.target = (host, int(port))
            run.address = f"{FAR[0]}:{FAR[1]}"
            checked = run.check("north")
            assert checked.returncode == 0, checked.stdout + checked.stderr
            assert "ok  reach" in checked.stdout
            assert "ok  clock" in checked.stdout
            holders = [run.holder(each) for each in OWNERS]
            assert [each.end() for each in (train, *holders)] == [0, 0, 0]
        finally:
            run.stop()
    (result,) = train.results
    assert result["visits"], json.dumps(result)
    assert len(run.proxy.requests) >= 2 * len(OWNERS)  # each a broker and a holder
