"""The units of deploy/systemd: their commands, as written, and what they tell the manager.

No manager runs here: its specifiers are filled in, and a socket stands in for it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from sealift.demo.folder import World
from tests.sim.jobrun import PLACES, WAIT_S
from tests.sim.jobworld import Wishes, fresh_world

ROOT = Path(__file__).resolve().parents[2]
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
ROLES = {
    "orchestrator": "cloud",
    "accelerator": "gpu-host",
    "north": "north",
    "east": "east",
}
# A whole system's unit may be exposed as much as `systemd-analyze security` calls OK.
MOST_TENTHS = 30
NEEDS = shutil.which("systemd-analyze")


@pytest.mark.skipif(
    not NEEDS, reason="this machine lacks systemd-analyze (apt-get install systemd)"
)
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_each_unit_is_confined(unit: Path) -> None:
    judged = subprocess.run(
        [
            *("systemd-analyze", "security", "--offline=true", "--no-pager"),
            *(f"--threshold={MOST_TENTHS}", unit),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert judged.returncode == 0, judged.stdout[-500:]
    assert "Unknown" not in judged.stderr + judged.stdout


class Manager:
    """Starts units as a service manager would, and hears what they say."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.heard: dict[str, list[str]] = {}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._sockets: list[socket.socket] = []
        self._changed = threading.Condition()

    def lay_out(self, name: str, world: World, party: str) -> None:
        """A role's folder and its credentials, as docs/howto/run-as-services.md says."""
        place, home = self.state / "sealift" / name, world.home(party)
        shutil.copytree(home.path, place)
        for own in ("identity.key", "passphrase"):
            (place / own).unlink()
        for shared in ("job.toml", "agreement.json", "recipe"):
            source = world.path / shared
            (shutil.copytree if source.is_dir() else shutil.copy)(
                source, place / shared
            )
        credentials = self.state / "credentials" / name
        credentials.mkdir(parents=True)
        shutil.copy(home.key, credentials / "key")
        shutil.copy(home.passphrase, credentials / "passphrase")

    def enter(self, name: str) -> list[str]:
        """What the unit's command runs in: a network namespace, say."""
        return []

    def environment(self, name: str) -> dict[str, str]:
        """What a drop-in of the unit adds."""
        return {}

    def start(self, unit: str, name: str) -> None:
        text = (ROOT / f"deploy/systemd/sealift-{unit}@.service").read_text()
        (line,) = re.findall(r"^ExecStart=((?:.*\\\n)*.*)$", text, re.MULTILINE)
        for specifier, value in {
            "%S": self.state,
            "%t": self.state / "run",
            "%d": self.state / "credentials" / name,
            "%i": name,
        }.items():
            line = line.replace(specifier, str(value))
        line = line.replace("\\\n", " ")
        if "EnvironmentFile=" in text:
            line = self._filled(line, name)
        program, *words = shlex.split(line)
        assert program == "/opt/sealift/bin/sealift"
        place = f"{self.state}/{name}.{len(self._sockets)}.notify"
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listening.bind(place)
        self.heard[name] = []
        self._sockets.append(listening)
        threading.Thread(target=self._hear, args=(name, listening), daemon=True).start()
        with (self.state / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [*self.enter(name), sys.executable, "-m", "sealift", *words],
                cwd=self.state / "sealift" / name,
                env={
                    **os.environ,
                    "PYTHONPATH": PLACES,
                    "NOTIFY_SOCKET": place,
                    "WATCHDOG_USEC": "2000000",
                    **self.environment(name),
                },
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _filled(self, line: str, name: str) -> str:
        """As systemd does it: ${A} is one word, $A is as many as it has."""
        settings = (self.state / "settings" / name).read_text().splitlines()
        for key, value in (each.split("=", 1) for each in settings):
            line = line.replace(f"${{{key}}}", shlex.quote(value))
            line = line.replace(f"${key}", value)
        return line.replace("$OPTIONS", "")

    def restart(self, unit: str, name: str) -> None:
        """A reboot: every process of the unit is killed at once, and it is started again."""
        group = self.running[name].pid
        os.killpg(group, signal.SIGKILL)
        self.running[name].wait(WAIT_S)
        self.start(unit, name)

    def wait_for(self, name: str, line: str) -> None:
        with self._changed:
            assert self._changed.wait_for(
                lambda: line in self.heard[name] or self._has_ended(name), WAIT_S
            )
            assert line in self.heard[name], self.log(name)

    def log(self, name: str) -> str:
        return (self.state / f"{name}.log").read_text()[-3000:]

    def stop(self) -> None:
        for each in self.running.values():
            with suppress(ProcessLookupError):  # its children, too
                os.killpg(each.pid, signal.SIGKILL)
            each.wait(WAIT_S)
        for listening in self._sockets:
            listening.shutdown(socket.SHUT_RDWR)  # wakes who listens

    def _has_ended(self, name: str) -> bool:
        return self.running[name].poll() is not None

    def _hear(self, name: str, listening: socket.socket) -> None:
        with listening:
            while said := listening.recv(1 << 16):
                with self._changed:
                    self.heard[name] += said.decode().split("\n")
                    self._changed.notify_all()


@pytest.mark.distributed
def test_a_job_runs_by_its_units(tmp_path: Path) -> None:
    """All are ready, give signs of life, tell what they do, and end with the job."""
    wishes = Wishes(owners=("north", "east"))
    world = fresh_world(tmp_path / "world", wishes)
    with socket.create_server(("127.0.0.1", 0)) as chosen:
        port = chosen.getsockname()[1]
    text = world.job.read_text()
    assert 'orchestrator = "127.0.0.1:0"' in text
    world.job.write_text(text.replace("127.0.0.1:0", f"127.0.0.1:{port}"))
    manager = Manager(tmp_path)
    with ExitStack() as stack:
        stack.callback(manager.stop)
        for name, party in ROLES.items():
            manager.lay_out(name, world, party)
        manager.start("orchestrator", "orchestrator")
        manager.wait_for("orchestrator", "READY=1")
        manager.start("accelerator", "accelerator")
        for owner in wishes.owners:
            manager.start("owner", owner)
        for name in ROLES:
            manager.wait_for(name, "READY=1")
            manager.wait_for(name, "WATCHDOG=1")
        codes = {name: each.wait(WAIT_S) for name, each in manager.running.items()}
    assert set(codes.values()) == {0}, {name: manager.log(name) for name in codes}
    for said in manager.heard.values():
        assert said.count("READY=1") == 1
        assert any(line.startswith("STATUS=") for line in said)
    made = tmp_path / "sealift/orchestrator/run"
    assert (made / "manifest.json").exists(), list(made.iterdir())
    for owner in wishes.owners:
        assert list((tmp_path / "sealift" / owner / "receipts").iterdir())
