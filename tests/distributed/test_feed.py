"""The how-to for feeding a device, typed; and its two processes when something is wrong."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sealift.cli.main import main
from sealift.crypto.identity import create_identity, save_identity
from sealift.errors import catalogue
from tests.sim.terminals import FENCE

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).parents[2]
HOWTO = ROOT / "docs/howto/feed-a-device-process.md"
EXAMPLE = ROOT / "examples/feed_a_device"
LAST_WORDS = re.compile(r"(owner|device): .* \[([a-z-]+)\]\n")


def boxes(language: str) -> list[str]:
    return [
        text for found, text in FENCE.findall(HOWTO.read_text()) if found == language
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the how-to was followed, up to the two processes."""
    folder = tmp_path_factory.mktemp("feed")
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
    x = np.random.default_rng(0).normal(size=(600, 8)).astype(np.float32)
    np.savez(folder / "train.npz", x=x, label=np.argmax(x[:, :3], axis=1))
    for name in ("north", "cloud"):
        (folder / f"{name}.pass").write_text(f"the passphrase of {name}\n")
    lines = boxes("")[0].replace("\\\n", "").splitlines()
    with contextlib.chdir(folder):
        for line in lines:
            program, *words = shlex.split(line)
            assert program == "sealift"
            more = ["--yes"] if words[1] == "sign" else []
            assert main([*words, *more]) == 0, line
    return folder


# The same two ends without torch, for what goes wrong: a process each in half a second.
OWNER = """
import sys
import numpy as np
from sealift import feed as link
from sealift.errors import SealiftError
FORM = {"x": ("float32", (32, 8)), "label": ("int64", (32,))}
def batches():
    for number in range(1_000_000):
        x = np.full((32, 8), number, np.float32)
        yield {"x": x, "label": np.arange(32)}
        if number == 50:
            print("fifty", flush=True)
try:
    with link.offer(
        "feed.sock", FORM, agreement="agreement.json", identity="north.key",
        passphrase_file="north.pass", development=True,
    ) as device:
        device.send_ahead(batches())
except SealiftError as error:
    sys.exit(f"owner: {error} [{error.code}]")
assert "torch" not in sys.modules
"""
DEVICE = """
import sys
import numpy as np
from sealift import feed as link
from sealift.errors import SealiftError
FORM = {"x": ("float32", (32, 8)), "label": ("int64", (32,))}
out = {name: np.zeros(shape, dtype) for name, (dtype, shape) in FORM.items()}
try:
    with link.accept(
        "feed.sock", FORM, agreement="agreement.json", code="device",
        identity="cloud.key", passphrase_file="cloud.pass",
    ) as receiver:
        while receiver.receive_into(out):
            assert (out["x"] == receiver.num_received - 1).all()
    print(f"all of {receiver.num_received}")
except SealiftError as error:
    sys.exit(f"device: {error} [{error.code}]")
assert "torch" not in sys.modules
"""


class Ends:
    """The two processes, in the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def run(self, script: str, old: str = "", new: str = "") -> subprocess.Popen[str]:
        """Start a script, with some words of it changed."""
        assert old in script
        name = f"script_{len(self.started)}.py"
        (self.folder / name).write_text(script.replace(old, new) if old else script)
        return self.start(name)

    def start(self, script: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, script],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def stop(self) -> None:
        for each in self.started:
            each.kill()
            each.communicate()


@pytest.fixture
def ends(folder: Path) -> Iterator[Ends]:
    found = Ends(folder)
    yield found
    found.stop()


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it said, and the name of its one error line."""
    said, error = process.communicate(timeout=300)
    line = LAST_WORDS.fullmatch(error)
    assert line is not None, error
    assert process.returncode == 1
    assert line[2] in catalogue()
    return said, line[2]


def test_the_how_to_as_it_stands(ends: Ends) -> None:
    scripts = [shlex.split(line)[1] for line in boxes("")[1].splitlines()]
    device, owner = (ends.start(script) for script in scripts)
    said, error = owner.communicate(timeout=300)
    assert (owner.returncode, error) == (0, "")
    assert said.startswith("the device proves: development")
    assert said.count("18 batches verified there") == 5
    said, error = device.communicate(timeout=300)
    assert (device.returncode, error) == (0, "")
    assert said.startswith("north feeds; host: ")
    steps, loss = re.findall(r"(\d+) steps: loss (\S+)", said)[0]
    assert int(steps) == 90
    assert float(loss) < 0.4 < 1.0
    assert not (ends.folder / "feed.sock").exists()


def test_the_page_shows_the_examples() -> None:
    owner, device = boxes("python")
    assert owner in (EXAMPLE / "owner.py").read_text()
    assert device in (EXAMPLE / "device/train.py").read_text()
    for script in ("owner.py", "device/train.py"):
        assert len((EXAMPLE / script).read_text().splitlines()) <= 45


def test_every_name_of_the_page_is_explained() -> None:
    table = HOWTO.read_text().partition("## When something is wrong")[2]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    names = set(re.findall(r"`([a-z-]+)`", "".join(rows)))
    assert len(names) > 10
    assert names <= catalogue().keys()


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    while word not in (line := process.stdout.readline()):
        assert line


def test_an_owner_that_is_killed(ends: Ends) -> None:
    device, owner = ends.run(DEVICE), ends.run(OWNER)
    wait_for(owner, "fifty")
    owner.send_signal(signal.SIGKILL)
    said, code = ended(device)
    assert (said, code) == ("", "feed-truncated")


def test_an_owner_that_dies_with_half_a_batch_in_the_memory(ends: Ends) -> None:
    """The device has one batch whole; of the half one nothing reaches its arrays."""
    dies = """
import os, signal
from sealift.channel.transport.memfd import MemfdTransport
commit, count = MemfdTransport.commit, 0
def counted(self):
    global count
    count += 1
    if count == 1 + 10 + 5:  # hello; announcement and 9 records; half of them
        os.kill(os.getpid(), signal.SIGKILL)
    commit(self)
MemfdTransport.commit = counted
FORM ="""
    large = DEVICE.replace("(32, 8)", "(1024, 1024)")
    shows = 'print(receiver.num_received, {*out["x"].ravel().tolist()})'
    device = ends.run(large, "    sys.exit(", f"    {shows}\n    sys.exit(")
    owner = ends.run(OWNER.replace("FORM =", dies), "(32, 8)", "(1024, 1024)")
    assert ended(device) == ("1 {0.0}\n", "feed-truncated")
    assert owner.wait(300) == -signal.SIGKILL


def test_a_device_that_is_killed(ends: Ends) -> None:
    device, owner = ends.run(DEVICE), ends.run(OWNER)
    wait_for(owner, "fifty")
    device.send_signal(signal.SIGKILL)
    assert ended(owner)[1] == "device-left"


def test_a_control_that_ends_well(ends: Ends) -> None:
    device, owner = ends.run(DEVICE), ends.run(OWNER, "1_000_000", "60")
    assert owner.communicate(timeout=300) == ("fifty\n", "")
    assert device.communicate(timeout=300) == ("all of 60\n", "")
    assert (owner.returncode, device.returncode) == (0, 0)


def test_forms_must_agree_and_a_socket_that_was_left_is_no_obstacle(
    ends: Ends,
) -> None:
    device = ends.run(DEVICE)
    while not (ends.folder / "feed.sock").exists():
        assert device.poll() is None
        time.sleep(0.01)
    device.kill()
    device.communicate()
    device, owner = ends.run(DEVICE), ends.run(OWNER, "(32, 8))", "(32, 9))")
    assert ended(owner)[1] == "link-refused"
    assert ended(device)[1] == "form-differs"


def test_a_batch_of_another_shape(ends: Ends) -> None:
    """Those before it cross; the device does not take them for all."""
    odd = "np.full((32 - number // 40, 8)"
    device, owner = ends.run(DEVICE), ends.run(OWNER, "np.full((32, 8)", odd)
    assert ended(owner)[1] == "batch-differs"
    _, code = ended(device)
    assert code == "feed-truncated"


def test_what_an_owner_is_told_at_home(ends: Ends) -> None:
    """Nobody listens: it is told before anybody is dialled."""
    forged = create_identity("north")
    save_identity(forged, ends.folder / "forged.key", "the passphrase of north")
    larger = ends.run(OWNER, "(32, 8))", "(32, 8 << 21))")
    stranger = ends.run(OWNER, "north.key", "forged.key")
    careful = ends.run(OWNER, "development=True", "development=False")
    assert ended(larger)[1] == "batch-too-large"
    assert ended(stranger)[1] == "owner-unsigned"
    assert ended(careful)[1] == "development-refused"


def test_a_stranger_at_the_device(ends: Ends) -> None:
    """One who skips the checks at home, with a key of its own under the owner's name."""
    script = OWNER.replace(
        "FORM =",
        "from sealift.crypto.identity import create_identity\n"
        "from sealift.feed import sending\n"
        "from sealift.ids import Role\n"
        "from sealift.session.endpoint import Endpoint\n"
        "sending.owner_endpoint = lambda agreement, identity: Endpoint(\n"
        "    role=Role.HOLDER, name='north', agreement=agreement.digest,\n"
        "    identity=create_identity('north'))\n"
        "FORM =",
    )
    device, owner = ends.run(DEVICE), ends.run(script)
    assert ended(owner)[1] == "peer-refused"
    assert ended(device)[1] == "identity-differs"
