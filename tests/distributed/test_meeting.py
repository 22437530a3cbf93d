"""Four commands and three answers of each owner: a host and three owners with CSV files."""

from __future__ import annotations

import csv
import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from sealift.codec import encode
from sealift.demo.tasks import digits_parts
from sealift.release.agreement.signed import load_verified
from sealift.train.output.runfolder import RunName
from tests.sim.ownaddress import own_address
from tests.sim.typed import Typed

pytestmark = pytest.mark.distributed
OWNERS = ("north", "east", "south")
COMPARE = ("Compare?", "y")
YES = (COMPARE, ("Sign?", "y"), ("compare the words with", "y"))
RECIPE = """
import torch
from torch import nn
from torch.nn import functional as F


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))

    def forward(self, pixel):
        return self.layers(pixel / 16.0)

    def training_step(self, batch, step):
        return F.cross_entropy(self(batch["pixel"]), batch["digit"])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def build():
    return Reader()


def evaluate(model, batch):
    right = (model(batch["pixel"]).argmax(dim=1) == batch["digit"]).sum()
    return {"accuracy": float(right)}
"""
SCHEMA = """
[[fields]]
name = "pixel"
dtype = "float32"
shape = [64]

[[fields]]
name = "digit"
dtype = "int64"
classes = 10
"""
# About meetings: what a graph changes of them is test_graph_meeting's subject.
JOB = """
recipe = "code"
[training]
epochs = {}
batch_rows = 32
evaluate_every = 4
seed = 7
"""


class Parties:
    """Four folders, as four people would have them."""

    def __init__(self, folder: Path, epochs: int = 8) -> None:
        self.folder = folder
        recipe = folder / "host" / "digits"
        recipe.mkdir(parents=True)
        (recipe / "recipe.py").write_text(RECIPE)
        (recipe / "schema.toml").write_text(SCHEMA)
        (recipe / "job.toml").write_text(JOB.format(epochs))
        for part in digits_parts():
            home = folder / part.owner
            home.mkdir(exist_ok=True)
            columns = [f"pixel_{place}" for place in range(64)]
            with (home / f"{part.part}.csv").open("w", newline="") as file:
                rows = csv.writer(file, delimiter=";")
                rows.writerow([*columns, "digit"])
                for pixels, label in zip(part.pixels, part.label, strict=True):
                    rows.writerow([*map(int, pixels), int(label)])
        self.address = own_address()
        self.typed: list[Typed] = []
        self.invitations: dict[str, str] = {}

    def host(self, *more: str, answers: tuple[tuple[str, str], ...] = ()) -> Typed:
        """The host's command; the same again goes on."""
        words = ["host", "digits", "--listen", self.address, *more]
        typed = self.type("host", *words, answers=answers)
        typed.wait_text("send each party its line")
        found = re.findall(r"(\w+)  (sealift-invitation-[\w-]+)", typed.text)
        self.invitations = dict(found)
        return typed

    def join(self, name: str, answers: tuple[tuple[str, str], ...] = YES) -> Typed:
        """An owner's command."""
        self.save(name)
        words = ["invitation.txt", "train.csv", "--heldout", "heldout.csv"]
        return self.type(name, "join", *words, answers=answers)

    def save(self, name: str) -> None:
        """What an owner does with its mail."""
        (self.folder / name / "invitation.txt").write_text(self.invitations[name])

    def type(
        self, name: str, *words: str, answers: tuple[tuple[str, str], ...] = ()
    ) -> Typed:
        """Anything else."""
        typed = Typed(self.folder / name, *words, answers=answers)
        self.typed.append(typed)
        return typed


@pytest.fixture
def made() -> Iterator[Callable[[Path, int], Parties]]:
    found: list[Parties] = []

    def make(folder: Path, epochs: int) -> Parties:
        found.append(Parties(folder, epochs))
        return found[-1]

    yield make
    for each in (typed for parties in found for typed in parties.typed):
        if each.process.poll() is None:
            each.kill()


@pytest.fixture
def parties(tmp_path: Path, made: Callable[[Path, int], Parties]) -> Parties:
    return made(tmp_path, 8)


def weights(parties: Parties) -> dict[str, bytes]:
    model = load_file(parties.folder / "host" / "model.safetensors")
    return {name: each.tobytes() for name, each in model.items()}


@pytest.mark.plan
def test_four_commands_and_three_answers(parties: Parties) -> None:
    host = parties.host("--invite", *OWNERS)
    owners = {name: parties.join(name) for name in OWNERS}
    codes = {name: each.end() for name, each in owners.items()}
    assert host.end() == 0, host.text[-3000:]
    assert codes == dict.fromkeys(OWNERS, 0), [o.text[-2000:] for o in owners.values()]
    words = re.compile(r"sealift: words +(.+)")
    said = {
        found[1].strip() for o in owners.values() if (found := words.search(o.text))
    }
    assert [len(each.split()) for each in said] == [8]
    assert weights(parties)
    accuracy = re.search(r"accuracy +([\d.]+)", host.text)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.7
    assert re.search(r"^(visits|skipped) ", host.text, re.MULTILINE) is None
    for each in owners.values():
        assert re.search(r"^receipts +\d+\r?$", each.text, re.MULTILINE)
        assert '{"' not in each.text
    for name in OWNERS:
        home = parties.folder / name
        assert (home / f"{name}.key").stat().st_mode & 0o777 == 0o600
        assert (home / f"{name}.pass").stat().st_mode & 0o777 == 0o600
        assert (home / "meeting.json").stat().st_mode & 0o777 == 0o600
        (kept,) = (home / "receipts").iterdir()  # one file, a line for each use
        assert len(kept.read_bytes().splitlines()) > 8
        signed = json.loads((home / "agreement.json").read_text())
        assert set(signed["signatures"]) == {"host", *OWNERS}
        receipt = (home / "receipt.json").read_bytes()
        assert receipt == (parties.folder / "host" / "receipt.json").read_bytes()
        page = (home / "report.html").read_text()
        assert "DEVELOPMENT" in page
        assert "Finished at" in page
    model = parties.folder / "host" / "model.safetensors"
    words = ["receipt", "verify", "receipt.json", "--model", str(model)]
    proved = Typed(parties.folder / "north", *words, "--with-log", "audit.db")
    assert proved.end() == 0, proved.text
    assert "compared by north, east, south" in proved.text
    assert "north's log has" in proved.text
    assert (parties.folder / "host" / "report.html").is_file()
    again = parties.join("north", answers=())
    assert again.end() == 0, again.text
    assert "the job has ended" in again.text
    secrets = set(parties.invitations.values())
    assert not any(each in owner.text for each in secrets for owner in owners.values())


def test_killed_and_typed_again_it_goes_on(parties: Parties) -> None:
    """Before cards, before terms, while a question stands, and after a yes."""
    host = parties.host("--invite", *OWNERS)
    north = parties.join("north", answers=(COMPARE,))
    north.wait_text("your table fits")
    north.kill()
    host.kill()
    host = parties.host()
    north, east = parties.join("north", answers=YES[1:]), parties.join("east")
    for each in (north, east):
        each.wait_text("waiting for south")
    host.kill()
    east.kill()
    host = parties.host()
    east = parties.join("east", answers=YES[1:])
    south = parties.join("south", answers=(COMPARE,))
    south.wait_text("Sign?")
    east.wait_text("sealing heldout.csv")
    host.wait_text("east said yes")
    host.wait_text("south's answer")
    south.kill()
    east.kill()
    host.kill()
    host = parties.host()
    east = parties.join("east", answers=())  # it said yes, and is not asked again
    south = parties.join("south", answers=YES[1:])
    for each in (north, east, south):
        assert each.end() == 0, each.text[-3000:]
    assert host.end() == 0, host.text[-3000:]
    assert weights(parties)


def test_ended_in_the_midst_of_the_job_it_makes_the_same_model(
    tmp_path: Path, made: Callable[[Path, int], Parties]
) -> None:
    """Every party, each at another round, by a kill or Ctrl-C; and beside it a calm run."""
    parties = made(tmp_path / "killed", 120)
    host = parties.host("--invite", *OWNERS)
    owners = {name: parties.join(name) for name in OWNERS}
    for number, victim in enumerate(("north", "host", "south", "host", "east")):
        host.wait_text(f"train epoch {20 * number + 5} of")
        ended = host if victim == "host" else owners[victim]
        ended.interrupt() if number in {2, 3} else ended.kill()
        if victim == "host":
            host = parties.host()
        else:
            owners[victim] = parties.join(victim, answers=())
    for each in (*owners.values(), host):
        assert each.end() == 0, each.text[-3000:]
    calm = made(tmp_path / "calm", 120)
    host = calm.host("--invite", *OWNERS)
    for each in [host, *(calm.join(name) for name in OWNERS)]:
        assert each.end() == 0, each.text[-3000:]
    assert weights(parties) == weights(calm)


def test_killed_when_its_run_is_there_all_hear_of_it(parties: Parties) -> None:
    """A host that had the model, and had not told everybody."""
    host = parties.host("--invite", *OWNERS)
    for each in [*(parties.join(name) for name in OWNERS), host]:
        assert each.end() == 0, each.text[-3000:]
    home = parties.folder / "host"
    name = RunName("digits", load_verified(home / "agreement.json").digest)
    (home / ".run.running").write_bytes(encode(name))
    (home / "model.safetensors").unlink()
    for owner in OWNERS:
        (parties.folder / owner / "receipt.json").unlink()
    north = parties.join("north", answers=())
    host = parties.host()
    late = [parties.join(owner, answers=()) for owner in ("east", "south")]
    for each in (north, *late, host):
        assert each.end() == 0, each.text[-3000:]
    receipts = {
        (parties.folder / each / "receipt.json").read_bytes() for each in OWNERS
    }
    assert receipts == {(home / "receipt.json").read_bytes()}
    assert weights(parties)


def test_who_leaves_before_signing_is_named_on_all_screens(parties: Parties) -> None:
    """With what each can do; a host that leaves, too; and whoever is back goes on."""
    host = parties.host("--invite", *OWNERS)
    leaves, stays = parties.join("east", (COMPARE,)), parties.join("north", (COMPARE,))
    for owner in (leaves, stays):
        owner.wait_text("that your table fits")
    host.wait_text("north has compared its table")
    host.wait_text("east has compared its table")
    leaves.interrupt()
    gone = "east is not connected any more, and has not signed. "
    host.wait_text(f"{gone}To continue, its owner types its command again")
    stays.wait_text(f"{gone}You can wait")
    parties.join("east", ()).wait_text("waiting for south")
    host.interrupt()
    stays.wait_text("host is not connected any more, and not all have signed")
    assert stays.text.count(gone) == 1


def test_a_no_stops_all_by_name(parties: Parties) -> None:
    host = parties.host("--invite", *OWNERS)
    owners = {name: parties.join(name, answers=YES) for name in ("north", "east")}
    south = parties.join("south", answers=(COMPARE, ("Sign?", "n")))
    for each in (*owners.values(), south):
        assert each.end() == 5, each.text[-2000:]
        assert "[meeting-declined]" in each.text
        assert "south" in each.text
    assert host.end() == 5, host.text[-2000:]  # no longer waits for who has left
    assert "south" in host.text
    assert "[meeting-declined]" in host.text
    for home in (parties.folder / name for name in OWNERS):
        assert not (home / "agreement.json").exists()
    host = parties.host()
    south = parties.join("south", YES[1:])  # its no is taken back by coming again
    south.wait_text("Sign?")
    again = [south, *(parties.join(name, YES[1:]) for name in OWNERS[:2])]
    for each in again:
        assert each.end() == 0, each.text[-2000:]
    assert host.end() == 0


def test_a_table_that_is_too_small_ends_the_meeting_for_all(parties: Parties) -> None:
    """Its owner reads of its rows; the others who cannot take part, and no number."""
    host = parties.host("--invite", *OWNERS)
    table = parties.folder / "east" / "train.csv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:4]))
    owners = {name: parties.join(name, answers=YES) for name in OWNERS}
    assert owners["east"].end() == 6, owners["east"].text[-2000:]
    assert "train.csv has 3 rows" in owners["east"].text
    for each in (owners["north"], owners["south"], host):
        assert each.end() == 5, each.text[-2000:]
        assert "[meeting-declined]" in each.text
        assert "east" in each.text
        assert "3 rows" not in each.text
    assert not any(parties.folder.rglob("agreement.json"))


def test_a_table_that_does_not_fit_stays_at_home(parties: Parties) -> None:
    host = parties.host("--invite", *OWNERS)
    table = parties.folder / "north" / "train.csv"
    table.write_text(table.read_text().replace("digit", "label", 1))
    north = parties.join("north")
    assert north.end() == 6, north.text[-2000:]
    assert "column 'digit'" in north.text
    assert "label" not in host.text
    host.kill()
    moved = parties.type("host", "host", "digits", "--listen", own_address())
    assert moved.end() == 2, moved.text
    assert parties.address in moved.text


def test_without_its_port_a_host_invites_nobody(parties: Parties) -> None:
    words = ["host", "digits", "--listen", parties.address, "--invite", *OWNERS]
    where, _, port = parties.address.partition(":")
    with socket.create_server((where, int(port))):
        host = parties.type("host", *words)
        assert host.end() == 3, host.text
    assert "[port-in-use]" in host.text
    assert "sealift-invitation-" not in host.text
    assert not (parties.folder / "host" / "meeting.db").exists()


def test_a_passphrase_that_is_asked_for_is_in_no_file(parties: Parties) -> None:
    asked = (("passphrase of", "open-sesame"), ("again", "open-sesame"))
    host = parties.host("--invite", "north", "east", "--passphrase", answers=asked)
    parties.save("north")
    words = ["invitation.txt", "train.csv", "--heldout", "heldout.csv"]
    north = parties.type(
        "north", "join", *words, "--passphrase", answers=(*asked, *YES)
    )
    for each in (north, parties.join("east"), host):
        assert each.end() == 0, each.text[-3000:]
    for home in (parties.folder / name for name in ("host", "north")):
        assert not list(home.glob("*.pass"))
        for path in (each for each in home.rglob("*") if each.is_file()):
            assert b"open-sesame" not in path.read_bytes()
    assert weights(parties)


def test_a_look_ahead_uses_no_invitation_up(parties: Parties) -> None:
    host = parties.host("--invite", *OWNERS)
    words = ["join", parties.invitations["north"], "train.csv", "--check"]
    looked = parties.type("north", *words)
    assert looked.end() == 0, looked.text
    for said in (
        "for north, until",
        "65 columns",
        "a relay answers at",
        "the relay's machine",
    ):
        assert said in looked.text
    assert sorted(each.name for each in (parties.folder / "north").iterdir()) == [
        "heldout.csv", "table.toml", "train.csv",
    ]  # fmt: skip
    assert "north has connected" not in host.text
    host.kill()
    looked = parties.type("north", *words)
    assert looked.end() == 0, looked.text
    assert "nothing listens there yet" in looked.text
    missing = parties.type("north", *words[:2], "none.csv", "--check")
    assert missing.end() == 3, missing.text
