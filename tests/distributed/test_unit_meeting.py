"""A meeting by its units, which nobody is asked in: answers in files, a reboot, logs in JSON."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.distributed.test_units import Manager
from tests.sim.jobrun import WAIT_S
from tests.sim.ownaddress import own_address

pytestmark = pytest.mark.distributed
OWNERS = ("north", "east")
RECIPE = """
from torch import nn, optim
from torch.nn import functional as F


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 2)

    def forward(self, size):
        return self.layer(size)

    def training_step(self, batch, step):
        return F.cross_entropy(self(batch["size"][:, None]), batch["large"])

    def configure_optimizers(self):
        return optim.AdamW(self.parameters(), lr=1e-2)


def build():
    return Line()
"""
SCHEMA = """
[[fields]]
name = "size"
dtype = "float32"

[[fields]]
name = "large"
dtype = "int64"
classes = 2
"""
JOB = "[training]\nepochs = 8\nbatch_rows = 32\n"


class Meeting(Manager):
    """Folders and files as docs/howto/run-as-services.md says."""

    def __init__(
        self, state: Path, listen: str = "", owners: tuple[str, ...] = OWNERS
    ) -> None:
        super().__init__(state)
        self.owners = owners
        self.units = {"host": "host", **dict.fromkeys(owners, "join")}
        (state / "settings").mkdir()
        for name in self.units:
            (state / "sealift" / name).mkdir(parents=True)
            credentials = state / "credentials" / name
            credentials.mkdir(parents=True)
            (credentials / "passphrase").write_text(f"the secret of {name}\n")
            (credentials / "passphrase").chmod(0o400)
            self.answers(name).write_text('passphrase_file = "passphrase"\n')
        recipe = state / "sealift/host/line"
        recipe.mkdir()
        (recipe / "recipe.py").write_text(RECIPE)
        (recipe / "schema.toml").write_text(SCHEMA)
        (recipe / "job.toml").write_text(JOB)
        options = f"--invite {' '.join(owners)} --listen {listen or own_address()}"
        self.settings("host", RECIPE="line", OPTIONS=options)
        for number, name in enumerate(owners):
            rows = [f"{row / 100 + number},{row % 2}" for row in range(200)]
            table = state / "sealift" / name / "table.csv"
            table.write_text("\n".join(["size,large", *rows, ""]))
            self.settings(name, DATA="table.csv")

    def settings(self, name: str, **values: str) -> None:
        lines = [f"{key}={value}\n" for key, value in values.items()]
        (self.state / "settings" / name).write_text("".join(lines))

    def answers(self, name: str) -> Path:
        return self.state / "credentials" / name / "answers.toml"

    def invite(self) -> None:
        """What people do with the files that the host wrote."""
        for name in self.owners:
            invitation = self.state / "sealift/host/invitations" / name
            assert invitation.stat().st_mode & 0o077 == 0
            shutil.copy(invitation, self.state / "credentials" / name / "invitation")

    def agree(self) -> None:
        """The owners' units, which end at each question, until all have signed."""
        for key in ("compare", "sign"):
            for name in self.owners:
                self.begin(name)
            for name in self.owners:
                assert self.end(name) == 2, self.log(name)
                asked = re.findall(
                    rf'add the line {key} = ."(sha256:[0-9a-f]+)', self.whole_log(name)
                )
                with self.answers(name).open("a") as file:
                    file.write(f'{key} = "{asked[-1]}"\n')
        for name in self.owners:
            self.begin(name)
        for name in self.owners:
            self.wait_for(name, "STATUS=all parties have signed; the job begins")

    def whole_log(self, name: str) -> str:
        return (self.state / f"{name}.log").read_text()

    def begin(self, name: str) -> None:
        self.start(self.units[name], name)

    def end(self, name: str) -> int:
        return self.running[name].wait(WAIT_S)


@pytest.fixture
def meeting(tmp_path: Path) -> Iterator[Meeting]:
    made = Meeting(tmp_path)
    yield made
    made.stop()


def test_a_meeting_runs_by_its_units(meeting: Meeting) -> None:
    """Each question that a file lacks ends the unit with the line to add; a reboot goes on."""
    meeting.begin("host")
    meeting.wait_for("host", "READY=1")
    meeting.invite()
    meeting.agree()
    meeting.restart("join", "east")
    meeting.restart("host", "host")
    for name in meeting.units:
        meeting.wait_for(name, "WATCHDOG=1")
    for name in meeting.units:
        assert meeting.end(name) == 0, meeting.log(name)
    made = meeting.state / "sealift/host/model.safetensors"
    assert load_file(made)
    for name in meeting.units:
        said = meeting.whole_log(name)
        assert "sealift-invitation-" not in said
        assert "the secret of" not in said
        for line in said.splitlines():
            assert isinstance(json.loads(line), dict)
        meeting.begin(name)  # a boot after the end starts nothing again
        assert meeting.end(name) == 0
