"""What goes wrong with a served model, as its users see it: one line each, an exit code.

Real processes; nothing may be left half-written. One server for all, in order.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest

from sealift.cli.main import main
from tests.sim.servinghowto import SLOW, ServingHowTo
from tests.sim.servingprocesses import Served

pytestmark = pytest.mark.distributed
PIXELS = np.ones((2, 64), np.float32)
BAD_ROWS: dict[str, np.ndarray] = {
    "short": PIXELS[:, :63],
    "scalar": np.float32(3),
    "none": PIXELS[:0],
    "whole": PIXELS.astype(int),
    "words": PIXELS.astype(str),
    "padding": np.full((1, 64), np.nan, np.float32),
    "above": 17 * PIXELS,
}  # type: ignore[dict-item]


class Failing(Served):
    """Begins with a model whose file was changed; then it is as it should be."""

    spoiled_end = ""

    def wait_until_ready(self) -> None:
        if self.spoiled_end:
            super().wait_until_ready()
            return
        self.spoiled_end = end_of(self.server, self.howto.path)
        self.sealed.write_bytes(self.whole)
        self.start_server()
        self.wait_until_ready()

    def start_server(self) -> None:
        if not self.spoiled_end:
            self.sealed = self.howto.path / "sealed/digits.sealed"
            self.whole = self.sealed.read_bytes()
            changed = bytearray(self.whole)
            changed[len(changed) // 2] ^= 1
            self.sealed.write_bytes(changed)
        super().start_server()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Failing]:
    found = Failing(ServingHowTo(tmp_path_factory.mktemp("failing")))
    np.savez(found.howto.path / "rows.npz", pixels=PIXELS)
    np.savez(found.howto.path / "slow.npz", pixels=SLOW * PIXELS)
    yield found
    found.stop()


class Asking:
    """`sealift predict` typed in the folder, in this process."""

    def __init__(self, served: Failing, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._served, self._capsys = served.howto.path, served, capsys

    def end(self, *more: str) -> str:
        """How it ended, checked as ``end_of`` does."""
        self._capsys.readouterr()
        with chdir(self.folder):
            code = main(self._served.predict_words(*more))
        return checked_end(code, self._capsys.readouterr().err, self.folder)


@pytest.fixture
def asking(served: Failing, capsys: pytest.CaptureFixture[str]) -> Asking:
    return Asking(served, capsys)


def end_of(process: subprocess.Popen[str], folder: Path) -> str:
    """How a command ended: its code and its last word; nothing of an answer is left."""
    _, said = process.communicate(timeout=300)
    return checked_end(process.returncode, said, folder)


def checked_end(code: int, said: str, folder: Path) -> str:
    lines = [line for line in said.splitlines() if line.endswith("]")]
    assert len(lines) == 1, said
    assert "Traceback" not in said
    assert not list(folder.glob("*answer*"))
    found = re.search(r"\[([a-z-]+)\]$", lines[0])
    assert found is not None, lines
    return f"{code} {found[1]}"


def test_a_model_whose_file_was_changed(served: Failing) -> None:
    """It is noticed once the key is there: nobody was let in, and it ended."""
    assert served.spoiled_end == "5 other-resource"
    before, _ = "".join(served.lines).split("is loaded and answers")
    assert before.count("listens at ") == 2


def test_rows_that_do_not_fit(asking: Asking) -> None:
    folder = asking.folder
    for name, pixels in BAD_ROWS.items():
        np.savez(folder / f"{name}.npz", pixels=pixels)
    np.savez(folder / "renamed.npz", pixel=PIXELS)
    for suffix in ("npz", "json", "csv"):
        (folder / f"empty.{suffix}").write_bytes(b"")
    (folder / "scalar.json").write_text('{"pixels": 3}')
    with (folder / "huge.npz").open("wb") as file:
        file.truncate(1 << 40)  # a hole: no disk has that much to spare
    wrong = [*(f"{name}.npz" for name in BAD_ROWS), "renamed.npz", "scalar.json"]
    wrong += [f"empty.{suffix}" for suffix in ("npz", "json", "csv")]
    expected = dict.fromkeys(wrong, "6 bad-request")
    expected |= {"huge.npz": "6 too-large", "absent.npz": "3 cannot-read"}
    expected |= {"rows.txt": "2 other-file-kind"}
    assert {name: asking.end(name, "-oanswer.csv") for name in expected} == expected
    words = ("rows.npz", "-oanswer.csv", "--steps", "3")
    assert asking.end(*words) == "2 usage"
    assert asking.end("rows.npz", "--timeout", "0") == "2 usage"


def test_places_that_cannot_be_written(served: Failing, asking: Asking) -> None:
    (asking.folder / "there.csv").write_text("mine")
    assert asking.end("rows.npz", "-o", "there.csv") == "2 exists"
    assert (asking.folder / "there.csv").read_text() == "mine"
    assert asking.end("rows.npz", "-o", "nowhere/answer.csv") == "3 cannot-write"
    with Path("/dev/full").open("w") as full:
        for words in ((), ("--stream", "--steps", "3")):
            process = served.predict("rows.npz", *words, stdout=full)
            assert end_of(process, asking.folder) == "3 cannot-write"


def test_another_agreement(served: Failing, asking: Asking) -> None:
    other = f"sha256:{'0' * 64}"
    served.howto.agree_again("other")
    for words, expected in (
        (("--digest", other), "5 other-agreement"),
        (("--owner", "cloud.card.json"), "5 other-key"),
        (("--model", "other"), "5 no-such-model"),
        (("--level", "tee"), "5 level-refused"),
        (("--agreement", "serving.toml"), "6 bad-agreement-file"),
        # Signed by the right owner, but not what this server works under.
        (("--agreement", "other.json"), "4 peer-refused"),
    ):
        assert asking.end("rows.npz", "-o", "answer.csv", *words) == expected, words


def begun(served: Served, *more: str) -> subprocess.Popen[str]:
    """A stream of slow steps, in the midst."""
    process = served.predict("slow.npz", "--stream", *more)
    assert process.stdout is not None
    for _ in range(3):
        assert "next" in process.stdout.readline()
    return process


def test_a_server_killed_in_the_midst_of_a_stream(
    served: Failing, asking: Asking
) -> None:
    to_file = served.predict("slow.npz", "--stream", "-o", "answer.csv")
    streams = [begun(served), to_file]
    served.kill()
    assert end_of(streams[0], asking.folder) == "4 server-gone"
    assert end_of(streams[1], asking.folder).startswith("4 ")
    assert asking.end("rows.npz", "-o", "answer.csv") == "4 peer-unreachable"


@pytest.mark.soak
def test_a_lease_that_runs_out(tmp_path: Path) -> None:
    howto = ServingHowTo(tmp_path, lease="lease_s = 8.0\nheartbeat_s = 1.0")
    served = Served(howto)
    try:
        np.savez(tmp_path / "slow.npz", pixels=SLOW * PIXELS)
        time.sleep(9)  # longer than a lease: it is renewed
        stream = begun(served)
        served.broker.kill()
        assert end_of(stream, tmp_path) == "4 server-stopping"
        served.server.wait(300)
        assert served.server.returncode == 5
        assert served.lines[-1].endswith("[lease-silent]\n"), served.lines[-3:]
    finally:
        served.stop()
