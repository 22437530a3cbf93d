"""The demo as its users start it: eight processes, three attacks, one line of JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

pytestmark = pytest.mark.distributed
SEALIFT = [sys.executable, "-m", "sealift"]


def sealift(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [*SEALIFT, *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False
    )


def last_json(run: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert run.returncode == 0, run.stderr
    (line,) = run.stdout.splitlines()  # all else is talk, on stderr
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("demo") / "world"
    return folder, last_json(sealift("demo", "--json", "--keep", "--output", folder))


def test_it_is_learnt_attacked_and_verified(
    shown: tuple[Path, dict[str, Any]],
) -> None:
    _, told = shown
    assert told["accuracy_joint"] >= 0.95
    assert len(told["accuracy_alone"]) == 3
    assert max(told["accuracy_alone"]) < 0.75
    assert (told["attacks_tried"], told["attacks_refused"]) == (3, 3)
    assert told["log_verified"] is told["scrub_verified"] is True
    assert told["receipts"] == 30
    assert told["level"] == "development"


@pytest.mark.long
def test_rows_stay_at_home(tmp_path: Path) -> None:
    told = last_json(
        sealift("demo", "--plan", "ddp", "--json", "--output", tmp_path / "world")
    )
    assert told["accuracy_joint"] >= 0.9
    assert told["log_verified"] is told["scrub_verified"] is True
    assert told["receipts"] == 60
    assert "Round by round" in Path(told["report"]).read_text()


@pytest.mark.long
def test_a_server_that_cheats_is_named_and_the_run_ends_right(tmp_path: Path) -> None:
    folder = tmp_path / "world"
    told = last_json(
        sealift("demo", "--plan", "outsource", "--json", "--output", folder)
    )
    assert told["accuracy_joint"] >= 0.8
    assert (told["attacks_tried"], told["attacks_refused"]) == (3, 3)
    assert told["log_verified"] is told["scrub_verified"] is True
    report = (folder / "report.html").read_text()
    assert report.count("cloud-b ") >= 3
    assert "s server cheated 3 times and was refused" in report
    assert not list(folder.glob("cloud-?/identity.key"))


@pytest.mark.long
def test_attacks_leave_no_trace_in_the_weights(
    shown: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Refused visits never trained: bit for bit what one process learns alone."""
    told = last_json(
        sealift("demo", "--plan", "local", "--json", "--output", tmp_path / "local")
    )
    assert told["weights"] == shown[1]["weights"]
    assert told["accuracy_joint"] == shown[1]["accuracy_joint"]
    assert (told["log_verified"], told["attacks_tried"]) == (None, 0)


@pytest.mark.soak
@pytest.mark.parametrize(
    "words",
    [("--task", "text"), ("--buffers", "2"), ("--buffers", "2", "--mixed")],
    ids=" ".join,
)
def test_every_way_equals_one_process(tmp_path: Path, words: tuple[str, ...]) -> None:
    here = last_json(
        sealift("demo", *words, "--json", "--plan", "local", "--output", tmp_path / "a")
    )
    told = last_json(sealift("demo", *words, "--json", "--output", tmp_path / "b"))
    assert told["weights"] == here["weights"]
    assert told["accuracy_joint"] > max(told["accuracy_alone"]) + 0.02
    assert (told["attacks_refused"], told["scrub_verified"]) == (3, True)
    assert len(Path(told["report"]).read_text("utf-8")) < 200_000


def test_the_page_is_small_and_stands_alone(
    shown: tuple[Path, dict[str, Any]],
) -> None:
    page = Path(shown[1]["report"]).read_text("utf-8")
    assert len(page) < 200_000
    assert "✗" not in page
    assert "<script" not in page


def test_what_the_parties_keep_verifies_by_hand(
    shown: tuple[Path, dict[str, Any]],
) -> None:
    folder, _ = shown
    log, heads = folder / "north" / "audit.db", folder / "east" / "heads.json"
    assert sealift("audit", "verify", log, "--head", heads).returncode == 0
    receipt = next((folder / "south" / "receipts").iterdir())
    agreement = ["--agreement", folder / "agreement.json"]
    assert sealift("receipt", "verify", receipt, *agreement).returncode == 0


def test_one_receipt_of_the_run_is_everybodys(
    shown: tuple[Path, dict[str, Any]],
) -> None:
    folder, told = shown
    every = {
        name: folder / name / "receipt.json" for name in ("north", "east", "south")
    }
    assert {path.read_bytes() for path in every.values()} == {
        (folder / "run" / "receipt.json").read_bytes()
    }
    words = [
        "--model",
        folder / "model.safetensors",
        "--head",
        folder / "east/heads.json",
    ]
    done = sealift("receipt", "verify", every["north"], *words, "--json")
    found = json.loads(done.stdout)
    assert told["weights"] in found["model"]
    assert "rows were used 30 times" in found["use of rows"]
    assert "head of east's log" in found["verified"]
    home = folder / "south"
    words = ["--receipts", home / "receipts", "--agreement", folder / "agreement.json"]
    kept = sealift("audit", "kept", home / "audit.db", *words)
    assert "10 of 10 receipts are part of 1 verified receipt" in kept.stdout


def tensors_of(file: Path) -> dict[str, bytes]:
    """By name; the file's facts are left out."""
    return {name: each.tobytes() for name, each in load_file(file).items()}


def test_only_its_owner_opens_the_model(
    shown: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, told = shown

    def open_as(party: str, file: Path) -> subprocess.CompletedProcess[str]:
        home = folder / party
        identity = ["--key", home / "identity.key"]
        identity += ["--passphrase-file", home / "passphrase"]
        agreement = ["--agreement", folder / "agreement.json"]
        words = [folder / "run", *identity, *agreement, "-o", file, "--json"]
        return sealift("output", "open", *words)

    opened = last_json(open_as("lab", tmp_path / "model"))
    assert opened["weights"] == told["weights"]
    assert tensors_of(tmp_path / "model") == tensors_of(folder / "model.safetensors")
    refused = open_as("north", tmp_path / "stolen")
    assert (refused.returncode, refused.stdout) == (5, "")
    assert refused.stderr.rstrip().endswith("[other-key]")
    assert not (tmp_path / "stolen").exists()


def test_somebody_elses_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    run = sealift("demo", "--output", tmp_path)
    assert run.returncode == 2
    assert run.stderr.rstrip().endswith("[exists]")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.long
def test_a_running_demo_keeps_its_folder_and_ends_on_a_signal(tmp_path: Path) -> None:
    with running_demo(tmp_path) as (demo, children):
        second = sealift("demo", "--output", tmp_path / "world")
        assert (second.returncode, demo.poll()) == (2, None)
        assert "another demo is running in" in second.stderr
        assert "passphrase" in secrets_in(tmp_path)  # control: what a signal must end
        check_signal(demo, children, signal.SIGINT)
    assert secrets_in(tmp_path) == set()


@pytest.mark.soak
def test_the_other_signal_ends_every_process(tmp_path: Path) -> None:
    with running_demo(tmp_path) as (demo, children):
        check_signal(demo, children, signal.SIGTERM)
    assert secrets_in(tmp_path) == set()


def check_signal(
    demo: subprocess.Popen[str], children: list[int], number: signal.Signals
) -> None:
    demo.send_signal(number)
    assert demo.wait(300) == 128 + number
    assert all(gone(child) for child in children)


@pytest.mark.long
def test_a_process_that_dies_is_named(tmp_path: Path) -> None:
    with running_demo(tmp_path) as (demo, children):
        holder = next(child for child in children if b"join" in command_of(child))
        os.kill(holder, signal.SIGKILL)
        assert demo.stderr is not None
        last = demo.stderr.read().splitlines()[-1]
        assert demo.wait(300) == 7
        assert "the process holder-" in last
        assert " was killed: " in last
        assert last.endswith("[role-ended]")
        assert all(gone(child) for child in children)


def secrets_in(folder: Path) -> set[str]:
    """Names of what a demo that was not told to keep them may not leave."""
    secret = {"identity.key", "passphrase", "vault.db", "sealed", "tables"}
    return {path.name for path in folder.glob("world/**/*")} & secret


@contextmanager
def running_demo(folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A demo in the middle of its visits, and its children."""
    command = [*SEALIFT, "demo", "--output", str(folder / "world")]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stderr is not None
        try:
            next(line for line in demo.stderr if "REFUSED" in line)
            children = children_of(demo.pid)
            assert len(children) == 8
            yield demo, children
        finally:
            demo.kill()


def children_of(parent: int) -> list[int]:
    found = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
    return [pid for pid in found if parent_of(pid) == parent]


def gone(pid: int) -> bool:
    """Whether a process ends, or has ended."""
    deadline = time.monotonic() + 300
    while command_of(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def command_of(pid: int) -> bytes:
    """Empty when it is gone, or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def parent_of(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])
