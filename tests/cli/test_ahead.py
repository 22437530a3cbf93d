"""A look ahead at `train` and `join`: all that would be refused, and nothing done."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sealift.cli.ahead import looks
from sealift.cli.ahead.dryrun import Checked
from sealift.cli.main import main
from sealift.demo.folder import World
from sealift.demo.job import make_world
from sealift.demo.tasks import DIGITS
from sealift.events import wall_clock
from sealift.release.agreement.explain import explain
from sealift.release.agreement.signed import load_signed
from sealift.session.relay.server import Relay
from tests.attacks.test_relay_strangers import wait_until
from tests.sim.jobworld import Wishes, fresh_world, write_job
from tests.sim.proxies import FAR, OPEN, LittleProxy, little_proxy, status
from tests.sim.runfolder import made_once

USAGE, UNAVAILABLE, PEER, REFUSED, MALFORMED = 2, 3, 4, 5, 6
HOUR_S = 3600.0
LONG_AFTER_S = 4e9


@dataclass
class Said:
    code: int
    out: str
    err: str

    @property
    def signs(self) -> dict[str, str]:
        """By the name of a check."""
        rows = (line.split() for line in self.out.splitlines())
        return {name: sign for sign, name, *_ in rows}

    def line(self, name: str) -> str:
        return next(e for e in self.out.splitlines() if e.split()[1] == name)

    @property
    def refused(self) -> list[str]:
        """Codes, in order."""
        lines = self.out.split("what is refused:\n")[1].split("\n\n")[0].splitlines()
        return [line.rpartition("[")[2][:-1] for line in lines if line.endswith("]")]


@dataclass
class Desk:
    """Where somebody types."""

    world: World
    capsys: pytest.CaptureFixture[str]

    def type(self, *words: object) -> Said:
        self.capsys.readouterr()
        code = main(list(map(str, words)))
        return Said(code, *self.capsys.readouterr())

    def join(self, *more: object, owner: str = "north", key_of: str = "") -> Said:
        home = self.world.home(owner)
        words = [*self.world.home(key_of or owner).unlocking, *home.stores, *home.cargo]
        return self.type("join", self.world.job, *words, *more)

    def train(self, *more: object) -> Said:
        host, cloud = self.world.home("gpu-host"), self.world.home("cloud")
        words = [*cloud.unlocking, "--attester-key", host.key]
        words += ["--attester-passphrase-file", host.passphrase]
        return self.type("train", self.world.job, *words, "--dry-run", *more)

    def files(self) -> dict[Path, tuple[int, bytes]]:
        found = (each for each in self.world.path.rglob("*") if each.is_file())
        return {e: (e.stat().st_mtime_ns, e.read_bytes()) for e in found}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    return fresh_world(tmp_path_factory.mktemp("ahead"), Wishes())


@pytest.fixture
def desk(made: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    shutil.copytree(made.path, tmp_path, dirs_exist_ok=True)
    return Desk(World(tmp_path), capsys)


@pytest.fixture
def relay() -> Iterator[Relay]:
    with Relay.listen(clock=wall_clock) as found:
        yield found


def at(address: tuple[str, int]) -> tuple[str, str]:
    return "--orchestrator", f"{address[0]}:{address[1]}"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_check_says_a_line_for_each(desk: Desk, relay: Relay) -> None:
    before = desk.files()
    said = desk.join("--check", *at(relay.address))
    assert (said.code, said.err) == (0, "")
    assert " ".join(said.signs) == "agreement job keys data code evidence reach clock"
    assert set(said.signs.values()) == {"ok", "--"}
    assert said.signs["evidence"] == "--"  # an owner with a holder shows none
    assert "north-train, north-heldout" in said.line("data")
    assert desk.files() == before
    wait_until(lambda: not relay.names)  # the relay hears in its turn who left


def test_check_tells_all_that_is_wrong(desk: Desk, relay: Relay) -> None:
    home = desk.world.home("north")
    (home.sealed / "north-train.resource.json").unlink()
    edit(desk.world.path / "recipe" / "recipe.py", "import time", "import time  # ")
    said = desk.join("--check", *at(relay.address))
    wrong = [name for name, sign in said.signs.items() if sign == "no"]
    assert wrong == ["data", "code"]
    assert said.code == UNAVAILABLE  # of the data, which is first
    assert said.line("data").endswith("[cannot-read]")
    assert said.line("code").endswith("[code-bundle-differs]")


def no_passphrase(world: World) -> None:
    world.home("north").passphrase.write_text("another\n")


def other_file(world: World) -> None:
    sealed = world.home("north").sealed
    shutil.copy(sealed / "north-heldout.sealed", sealed / "north-train.sealed")


def no_vault(world: World) -> None:
    world.home("north").vault.unlink()


def long_lease(world: World) -> None:
    write_job(world, Wishes(lease_s=5000.0))


def local_plan(world: World) -> None:
    write_job(world, Wishes(plan="local"))


WRONG: dict[str, tuple[Callable[[World], None], str, str, int]] = {
    "passphrase": (no_passphrase, "keys", "wrong-passphrase", REFUSED),
    "other file": (other_file, "data", "other-resource", MALFORMED),
    "no vault": (no_vault, "data", "cannot-read", UNAVAILABLE),
    "long lease": (long_lease, "job", "lease-exceeds-agreement", REFUSED),
    "other plan": (local_plan, "job", "other-plan", USAGE),
}


@pytest.mark.parametrize("case", WRONG)
def test_check_names_what_is_wrong(desk: Desk, relay: Relay, case: str) -> None:
    spoil, name, error, code = WRONG[case]
    spoil(desk.world)
    said = desk.join("--check", *at(relay.address))
    assert said.line(name).endswith(f"[{error}]")
    assert said.code == code
    assert [n for n, sign in said.signs.items() if sign == "no"] == [name]


def test_check_with_somebody_elses_key(desk: Desk, relay: Relay) -> None:
    said = desk.join("--check", *at(relay.address), key_of="cloud")
    assert (said.signs["keys"], said.code) == ("no", REFUSED)
    assert "[not-a-data-owner]" in said.line("keys")


def test_nobody_listens_yet_is_not_unreachable(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    said = desk.join("--check", *at(address))
    assert (said.signs["reach"], said.code) == ("--", 0)
    assert "nothing listens there yet" in said.line("reach")
    assert said.signs["clock"] == "--"


def test_an_address_that_nobody_has(desk: Desk) -> None:
    said = desk.join("--check", "--orchestrator", "no.such.host.invalid:7410")
    assert (said.signs["reach"], said.code) == ("no", PEER)
    assert said.line("reach").endswith("[peer-unreachable]")


def test_a_port_that_is_left_open(desk: Desk) -> None:
    said = desk.join("--check")
    assert (said.signs["reach"], said.code) == ("--", 0)
    assert "--orchestrator" in said.line("reach")


@pytest.mark.parametrize(
    ("apart_s", "way"), [(HOUR_S, "behind"), (-HOUR_S, "ahead of")]
)
def test_a_clock_an_hour_off(desk: Desk, apart_s: float, way: str) -> None:
    with Relay.listen(clock=lambda: wall_clock() + apart_s) as relay:
        said = desk.join("--check", *at(relay.address))
    assert (said.signs["clock"], said.code) == ("no", UNAVAILABLE)
    assert f"60 minutes {way}" in said.line("clock")
    assert "timedatectl" in said.line("clock")
    assert said.line("clock").endswith("[clock-off]")


def use(monkeypatch: pytest.MonkeyPatch, proxy: LittleProxy) -> None:
    for name, value in proxy.environment().items():
        monkeypatch.setenv(name, value)
        monkeypatch.delenv(name.lower(), raising=False)


def test_check_through_a_proxy(
    desk: Desk, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    with little_proxy(relay.address) as proxy:
        use(monkeypatch, proxy)
        said = desk.join("--check", *at(FAR))
    assert (said.signs["reach"], said.signs["clock"], said.code) == ("ok", "ok", 0)
    assert f"through the proxy {proxy.place}" in said.line("reach")


@pytest.mark.parametrize(
    ("answer", "instead", "error"),
    [
        (status("407 Proxy Authentication Required"), b"", "proxy-password"),
        (status("403 Forbidden"), b"", "proxy-refused"),
        (OPEN + b"\r\n", b"\x15\x03\x01\x00\x02\x02\x46", "proxy-breaks"),
    ],
)
def test_check_names_what_a_proxy_does(
    desk: Desk,
    monkeypatch: pytest.MonkeyPatch,
    answer: bytes,
    instead: bytes,
    error: str,
) -> None:
    with little_proxy(answer=answer, instead=instead) as proxy:
        use(monkeypatch, proxy)
        said = desk.join("--check", *at(FAR))
    assert (said.signs["reach"], said.code) == ("no", UNAVAILABLE)
    assert said.line("reach").endswith(f"[{error}]")


def test_a_proxy_that_reaches_nobody_yet(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with little_proxy(answer=status("503 Service Unavailable")) as proxy:
        use(monkeypatch, proxy)
        said = desk.join("--check", *at(FAR))
    assert (said.signs["reach"], said.code) == ("--", 0)
    assert "503" in said.line("reach")


def test_a_proxys_clock_counts_where_no_relay_tells(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = OPEN + b"Date: Mon, 01 Jan 2001 00:00:00 GMT\r\n\r\n"
    with Relay.listen() as silent, little_proxy(silent.address, answer=answer) as proxy:
        use(monkeypatch, proxy)
        said = desk.join("--check", *at(FAR))
    assert said.line("clock").endswith("[clock-off]")
    assert "the proxy" in said.line("clock")


def test_join_would(desk: Desk) -> None:
    before = desk.files()
    said = desk.join("--dry-run")
    assert (said.code, said.err, said.refused) == (0, "", [])
    agreement = load_signed(desk.world.agreement).agreement
    for each in explain(agreement):  # these words, and no others
        assert f"  - {each.text}\n" in said.out
    assert "north: holder" in said.out
    assert "the time is unknown" in said.out
    assert desk.files() == before
    assert not desk.world.home("north").receipts.exists()


def test_join_would_be_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything, in the order in which it is looked at; the first gives the exit code."""
    monkeypatch.setattr(looks, "wall_clock", lambda: LONG_AFTER_S)
    long_lease(desk.world)
    (desk.world.home("north").sealed / "north-heldout.sealed").unlink()
    said = desk.join("--dry-run")
    expected = ["agreement-expired", "lease-exceeds-agreement", "cannot-read"]
    assert said.refused == expected
    assert said.code == REFUSED


def test_join_dials_nobody_in_a_dry_run(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        assert desk.join("--dry-run", *at(listener.getsockname())).code == 0
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_train_would(desk: Desk) -> None:
    before = desk.files()
    said = desk.train()
    assert (said.code, said.err, said.refused) == (0, "", [])
    assert "cloud: 1 accelerator, with a sandboxed worker" in said.out
    assert "2 epochs" in said.out
    assert desk.files() == before
    assert not desk.world.run.exists()


def test_train_would_be_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "wall_clock", lambda: LONG_AFTER_S)
    monkeypatch.setattr(looks, "find_spec", lambda name: None)
    edit(desk.world.path / "recipe" / "recipe.py", "import time", "import time  # ")
    desk.world.run.mkdir()
    (desk.world.run / "manifest.json").write_text("earlier")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = desk.train(*at(taken.getsockname()))
        told = json.loads(desk.train("--json", *at(taken.getsockname())).out)
    assert said.refused == [
        "agreement-expired",
        "code-bundle-differs",
        "port-in-use",
        "output-exists",
        "extra-missing",
    ]
    assert said.code == REFUSED
    assert [f"  - {line}" in said.out for line in told["refused"]] == [True] * 5
    assert list(told) == ["dry_run", "runs", "terms", "work", "refused"]
    assert told["dry_run"] is True


def test_train_with_keys_of_others(desk: Desk) -> None:
    lab = desk.world.home("lab")
    words = [*lab.unlocking, "--attester-key", lab.key]
    words += ["--attester-passphrase-file", lab.passphrase]
    said = desk.type("train", desk.world.job, *words, "--dry-run")
    assert said.refused == ["other-key", "attester-unknown"]
    said = desk.type("train", desk.world.job, "--dry-run")
    assert said.refused == ["keys-missing"]
    assert said.code == USAGE


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        ({"min_visits": "1000"}, "output-withheld"),
        ({"max_visits": "1"}, "too-many-visits"),
    ],
)
def test_an_output_rule_that_no_visits_meet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rule: dict[str, str], error: str
) -> None:
    """Two epochs are two visits at the least."""
    desk = Desk(fresh_world(tmp_path, Wishes(rule=rule)), capsys)
    assert desk.train().refused == [error]
    assert desk.join("--dry-run").refused == [error]


def test_train_local_would(desk: Desk) -> None:
    write_job(desk.world, Wishes(plan="local"))
    words: list[object] = []
    for owner in ("north", "east"):
        home = desk.world.home(owner)
        words += [*home.unlocking, "--vault", home.vault, "--sealed", home.sealed]
    said = desk.type("train", desk.world.job, *words, "--dry-run")
    assert (said.code, said.refused) == (0, [])
    assert "this machine: one process" in said.out
    os.truncate(desk.world.home("north").sealed / "north-train.sealed", 1000)
    said = desk.type("train", desk.world.job, *words, "--dry-run")
    assert said.refused == ["bad-sealed-file"]
    assert said.code == MALFORMED


def on_a_gpu(desk: Desk) -> None:
    edit(desk.world.job, "[run]\n", '[run]\ndevice = "cuda"\n')


def test_a_gpu_that_is_not_there_is_refused_beforehand(desk: Desk) -> None:
    on_a_gpu(desk)
    said = desk.train()
    assert (said.code, said.refused) == (UNAVAILABLE, ["no-device"])
    assert "the job asks for cuda" in said.out


@pytest.fixture
def at_home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    """Owners whose rows stay at home: each has a rank, and shows evidence."""
    path = made_once("ddp-ahead", lambda path: make_world(path, DIGITS, plan="ddp"))
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    return Desk(World(tmp_path), capsys)


def test_a_rank_at_home(at_home: Desk, relay: Relay) -> None:
    said = at_home.join("--check", *at(relay.address))
    assert (said.code, said.signs["evidence"]) == (0, "ok")
    assert said.signs["torch"] == "ok"
    said = at_home.join("--dry-run")
    assert said.code == 0
    assert "north: rank, with a sandboxed worker" in said.out
    assert "3 parallel slices" in said.out


def test_a_rank_on_a_gpu_that_is_not_there(at_home: Desk) -> None:
    on_a_gpu(at_home)
    said = at_home.join("--dry-run")
    assert (said.code, said.refused) == (UNAVAILABLE, ["no-device"])


def test_a_rank_without_torch(at_home: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "find_spec", lambda name: None)
    said = at_home.join("--dry-run")
    assert (said.refused, said.code) == (["extra-missing"], UNAVAILABLE)


def test_the_name_of_a_check_stands_apart_from_what_it_says() -> None:
    for name in ("table.toml", "invitation"):
        assert str(Checked(name, "a draft")).split() == ["ok", name, "a", "draft"]
