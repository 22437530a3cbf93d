"""Run after run of one meeting, by the units, in organisations with firewalls, while things break.

The short form runs in `make test-all`; `make soak-month RUNS=40` is the long one, of eight owners.
What happens comes from a seed: each kind of event once, then by chance. A unit that ends is
started again as systemd would do it; whoever its exit code keeps down, as its operator would.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random  # noqa: TID251 - what happens, and no secret
from typing import Any

import pytest

from tests.distributed.test_three_organisations import WHY, Apart
from tests.distributed.test_unit_meeting import OWNERS
from tests.sim.drawing import drawn
from tests.sim.jobrun import PLACES, WAIT_S
from tests.sim.organisations import Organisations, organisations_of

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(bool(WHY), reason=WHY or "namespaces are permitted"),
]
EIGHT = (*OWNERS, "south", "west", "coast", "hill", "lake", "valley")
JOB = """
[training]
epochs = 2
batch_rows = 32
seed = {}

[agreed]
runs = 64
seed = {{ max = 64 }}
"""
CLOCK = "import time\nright = time.time\ntime.time = lambda: right() + {}\n"
NOT_AGAIN = (1, 2, 5, 6, 7)  # RestartPreventExitStatus of the units
DISK_KIB = 32 << 10  # of an owner's folder, a disk of its own
LEFT = 16 << 10
HOUR_S = 3600
QUARTER_S = 90 * 24 * HOUR_S  # an invitation's time
CODE = re.compile(r"\[([a-z][a-z0-9-]+)\]")


class Month(Apart):
    """Takes part in run after run; counts what was broken and what it needed."""

    def __init__(
        self,
        state: Path,
        organisations: Organisations,
        seed: int,
        owners: tuple[str, ...],
    ) -> None:
        self._chance = Random(seed)
        self._clock_s: dict[str, int] = {}
        self._mend: list[Any] = []
        self.figures: list[dict[str, Any]] = []
        super().__init__(state, organisations, owners)
        for name in owners:
            self.settings(name, DATA="table.csv", OPTIONS="--stay")
            place = self.place(name)
            table = (place / "table.csv").read_bytes()
            _ran("mount", "-t", "tmpfs", "-o", f"size={DISK_KIB}k", "tmpfs", str(place))
            (place / "table.csv").write_bytes(table)

    def place(self, name: str) -> Path:
        return self.state / "sealift" / name

    def environment(self, name: str) -> dict[str, str]:
        given = super().environment(name)
        if off_s := self._clock_s.get(name):
            clock = self.state / f"clock{off_s}"  # in each process of the unit
            clock.mkdir(exist_ok=True)
            (clock / "sitecustomize.py").write_text(CLOCK.format(off_s))
            given |= {"PYTHONPATH": f"{clock}:{PLACES}"}
        return given

    def choose(self, number: int) -> None:
        """The settings of the next run, within what was agreed."""
        (self.state / "sealift/host/line/job.toml").write_text(JOB.format(number))

    def come_too_late(self) -> None:
        """An owner whose invitation has expired, by its clock: refused, and nothing is lost."""
        name = self.owners[-1]
        self._clock_s[name] = QUARTER_S + HOUR_S
        self.begin(name)
        assert self.end(name) == 5, self.log(name)
        assert "[invitation-expired]" in self.log(name)
        del self._clock_s[name]

    def run(self, number: int, event: str) -> None:
        """One run, in which something happens, until its model is there."""
        model = "model.safetensors" if number == 1 else f"model-{number}.safetensors"
        began_s = time.monotonic()
        self.choose(number)
        if number > 1:
            self.begin("host")
        self.wait_for("host", "STATUS=all parties have signed; the job begins")
        starts = dict.fromkeys(self.units, 1)
        reasons: list[str] = []
        who = self.harm(event)
        while (code := self.running["host"].poll()) != 0:
            if code is not None:
                reasons += self._reason("host")
                self._put_right()
                self._start_again("host", starts)
            for name in self.owners:
                if self.running[name].poll() is not None:
                    reasons += self._reason(name)
                    if name == who:
                        self._put_right()
                    self._start_again(name, starts)
            time.sleep(0.2)
        self._put_right()
        assert (self.place("host") / model).exists(), self.log("host")
        for name in self.owners:
            if self.running[name].poll() is not None:
                reasons += self._reason(name)
                self._start_again(name, starts)
        self.figures.append(
            {
                "run": number,
                "event": event,
                "who": who,
                "starts": sum(starts.values()),
                "reasons": sorted(set(reasons)),
                "s": round(time.monotonic() - began_s, 1),
                **{name: self._used(name) for name in self.units},
            }
        )
        print(json.dumps(self.figures[-1]), flush=True)  # -s shows how far it is

    def harm(self, event: str) -> str:
        """Do it now; the owner that it happens to."""
        name = self._chance.choice(self.owners)
        EVENTS[event](self, name)
        return name

    def killed(self, name: str) -> None:
        self.restart("join", name)

    def alone_killed(self, name: str) -> None:
        os.kill(self.running[name].pid, signal.SIGKILL)

    def host_killed(self, _name: str) -> None:
        self.restart("host", "host")

    def renewed(self, _name: str) -> None:
        self._organisations.renew_proxy()

    def stalled(self, name: str) -> None:
        group = self.running[name].pid
        os.killpg(group, signal.SIGSTOP)
        time.sleep(self._chance.random() * 2)
        os.killpg(group, signal.SIGCONT)

    def full(self, name: str) -> None:
        _fill(self.place(name) / "other")
        self._mend.append((self.place(name) / "other").unlink)

    def wrong_clock(self, name: str) -> None:
        self._clock_s[name] = self._chance.choice((-HOUR_S, HOUR_S))
        self.restart("join", name)
        self._mend.append(lambda: self._set_right(name))

    def _set_right(self, name: str) -> None:
        del self._clock_s[name]
        self.restart("join", name)

    def cut_off(self, name: str) -> None:
        self._organisations.cut(name)
        time.sleep(self._chance.random() * 10)
        self._organisations.mend(name)

    def slowed(self, name: str) -> None:
        self._organisations.slow(name)
        time.sleep(self._chance.random() * 30)
        self._organisations.widen(name)

    def upgraded(self, name: str) -> None:
        self.running[name].terminate()
        self.end(name)
        shutil.rmtree(self.place(name) / "before", ignore_errors=True)
        stores = ("--vault", "vault.db", "-o", "before")
        sealift(self.place(name), "broker", "upgrade", *stores)
        self.begin(name)

    def rotated(self, name: str) -> None:
        for journal in self.place(name).glob("*.journal.jsonl"):
            journal.rename(journal.with_suffix(".1"))

    def leave(self, number: int) -> dict[str, Any]:
        """An owner leaves as a run begins: that is the reason all end with, and its keys stay."""
        name = self.owners[-1]
        self.choose(number)
        self.begin("host")
        self.wait_for("host", "STATUS=all parties have signed; the job begins")
        key = next(self.place(name).glob("*.key"))
        secret = self.state / "credentials" / name / "passphrase"
        sealift(
            self.place(name), "agreement", "leave", "agreement.json", "--key", str(key),
            "--passphrase-file", str(secret), "--yes",
        )  # fmt: skip
        assert self.end(name) == 5, self.log(name)
        assert self._reason(name) == ["owner-left"]
        before = self.releases(name)
        self.begin(name)
        assert self.end(name) == 5, self.log(name)
        assert self.releases(name) == before
        assert self.end("host") == 5, self.log("host")
        assert self._reason("host") == ["owner-left"]
        return {"run": number, "event": "an owner leaves", "reasons": ["owner-left"]}

    def releases(self, name: str) -> int:
        """How many keys its verified log says it released."""
        said = sealift(self.place(name), "audit", "verify", "audit.db", "--json")
        return int(json.loads(said.splitlines()[0])["releases"])

    def stop_owners(self) -> None:
        """As `systemctl stop` does."""
        for name in self.owners:
            if self.running[name].poll() is None:
                self.running[name].terminate()
            self.end(name)

    def stop(self) -> None:
        super().stop()
        for name in self.owners:
            _ran("umount", "-l", str(self.place(name)))

    def _put_right(self) -> None:
        """What an operator does about it."""
        while self._mend:
            self._mend.pop()()

    def _start_again(self, name: str, starts: dict[str, int]) -> None:
        starts[name] += 1
        assert starts[name] < 12, self.log(name)
        self.begin(name)

    def _reason(self, name: str) -> list[str]:
        """Why it ended, if it said so; who was killed could not."""
        code = self.running[name].returncode
        found = CODE.findall(self.log(name))
        if code is None or code < 0 or not found:
            return []
        return found[-1:]

    def _used(self, name: str) -> dict[str, int]:
        """Memory of its first process, and what its folder takes, in KiB."""
        files = [each for each in self.place(name).rglob("*") if each.is_file()]
        status = Path(f"/proc/{self.running[name].pid}/status")
        lines = status.read_text().splitlines() if status.exists() else []
        memory = [int(line.split()[1]) for line in lines if line.startswith("VmRSS")]
        disk = sum(each.stat().st_size for each in files) // 1024
        return {"memory": sum(memory), "disk": disk}


EVENTS: dict[str, Callable[[Month, str], None]] = {
    "nothing": lambda _month, _name: None,
    "an owner is killed": Month.killed,
    "an owner's first process is killed": Month.alone_killed,
    "the host is killed": Month.host_killed,
    "the proxy is renewed": Month.renewed,
    "an owner is stalled": Month.stalled,
    "a disk is full": Month.full,
    "a clock is an hour off": Month.wrong_clock,
    "a line is cut": Month.cut_off,
    "a line is slow": Month.slowed,
    "an owner is upgraded": Month.upgraded,
    "a log is rotated": Month.rotated,
}


def sealift(folder: Path, *words: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "sealift", *words], cwd=folder, capture_output=True,
        text=True, check=True, timeout=WAIT_S,
    ).stdout  # fmt: skip


def _ran(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def _fill(path: Path) -> None:
    """So that 16 KiB are left on its disk."""
    found = os.statvfs(path.parent)
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_bsize - LEFT)


def live(
    tmp_path: Path, owners: tuple[str, ...], events: list[str], seed: int
) -> list[dict[str, Any]]:
    """A run for each event; what each took, once all that must hold at the end was found to hold."""
    left: dict[str, Any] = {}
    with organisations_of(owners) as organisations:
        month = Month(tmp_path, organisations, seed, owners)
        try:
            month.choose(1)
            month.begin("host")
            month.wait_for("host", "READY=1")
            month.invite()
            month.come_too_late()
            month.agree()
            for number, event in enumerate(events, 1):
                month.run(number, event)
            left = month.leave(len(events) + 1)
            month.stop_owners()
            require_agreement(month, len(events))
        finally:
            month.stop()
    return [*month.figures, left]


def require_agreement(month: Month, runs: int) -> None:
    """Receipts are the same everywhere, and every log goes on from what they say of it."""
    copies = []
    for number in range(1, runs + 1):
        inner = "" if number == 1 else f"run-{number}/"
        kept = [month.place(name) / f"{inner}receipt.json" for name in month.owners]
        copies.append([each for each in kept if each.exists()])
        told = {each.read_bytes() for each in copies[-1]}
        assert len(told) == 1, f"the receipts of run {number} differ, or there is none"
    for name in month.owners:
        assert not list(month.place(name).glob("receipt-*")), "a receipt is kept twice"
        assert runs <= month.releases(name) <= 20 * runs
        for receipt in (copies[0][0], copies[-1][0]):
            sealift(
                month.place(name), "receipt", "verify", str(receipt),
                "--agreement", "agreement.json", "--with-log", "audit.db",
            )  # fmt: skip


@pytest.mark.timeout(1200)
def test_two_runs_of_a_month(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED", "3"))
    chosen = Random(seed).sample(list(EVENTS), 2)
    live(tmp_path, OWNERS, chosen, seed)


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
def test_a_month(tmp_path: Path) -> None:
    """`make soak-month`: writes its figures, and draws them, in build/."""
    runs, seed = int(os.environ.get("RUNS", "40")), int(os.environ.get("SEED", "1"))
    chance = Random(seed)
    events = [
        *chance.sample(list(EVENTS), len(EVENTS)),
        *chance.choices(list(EVENTS), k=runs),
    ]
    figures = live(tmp_path, EIGHT, events[:runs], seed)
    place = Path("build")
    place.mkdir(exist_ok=True)
    (place / "month.json").write_text(json.dumps(figures, indent=1))
    (place / "month.svg").write_text(drawn(figures[:-1], ("host", *EIGHT)))
