"""`sealift data seal` is killed: no half of it is a dataset, and the same command goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sealift
from sealift.crypto.identity import create_identity, save_identity

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "PYTHONPATH": f"{ROOT}:{Path(sealift.__file__).parents[1]}",
    "PATH": os.environ["PATH"],
}
ROWS = 40
WHOLE = sum(range(ROWS))


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("keys") / "north.key"
    save_identity(create_identity("north"), path, "correct horse")
    return path.read_bytes()


@pytest.fixture
def home(tmp_path: Path, identity: bytes) -> Path:
    (tmp_path / "north.key").write_bytes(identity)
    (tmp_path / "passphrase").write_text("correct horse\n")
    for name in ("north.key", "passphrase"):
        (tmp_path / name).chmod(0o600)
    (tmp_path / "s.toml").write_text('[[fields]]\nname = "n"\ndtype = "int64"\n')
    np.savez(tmp_path / "t.npz", n=np.arange(ROWS))
    return tmp_path


def killed(home: Path, mode: str, shards: int, *steps: str) -> list[dict[str, Any]]:
    """What was found after each kill; the last one was not killed any more."""
    words = [str(home), mode, str(shards), *steps]
    run = subprocess.run(
        [sys.executable, "-m", "tests.sim.killed_sealing", *words],
        capture_output=True, text=True, check=False, env=ENVIRONMENT,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    seen = [json.loads(line) for line in run.stdout.splitlines()]
    assert [each["killed"] for each in seen] == [True] * (len(seen) - 1) + [False]
    return seen


def is_sound(seen: dict[str, Any]) -> bool:
    """All rows or a refusal, with and without a schema of one's own; then all rows."""
    refusals = {"cannot-read", "no-key", "shard-unreadable", "sealing-unfinished"}
    before = all(found == WHOLE or found in refusals for found in seen["found"])
    goes_on = seen["again"] == 0 or seen["found"][0] == WHOLE
    return before and goes_on and seen["whole"] == WHOLE


def is_tidy(seen: dict[str, Any]) -> bool:
    """No file is left besides; an empty vault that was never one may be."""
    return not [
        name for name in seen["left"] if "/." in name or name.startswith(".n")
    ]  # fmt: skip


@pytest.mark.distributed
def test_whenever_it_is_killed_the_same_command_goes_on(home: Path) -> None:
    every = killed(home, "product", 2, "os.rename", "transaction")
    assert len(every) == 4 + 2 + 4 + 1
    for seen in every:
        assert is_sound(seen), seen
        assert is_tidy(seen), seen
    # Without keys it is done again; with them, what was sealed is put in place.
    after = [seen["step"] for seen in every if "was not read" in seen["all_said"]]
    assert len(after) == 1 + 4
    assert "after its commit" in after[0]


@pytest.mark.distributed
@pytest.mark.parametrize("mutant", ["places-first", "one-by-one"])
def test_the_kills_catch_other_orders(home: Path, mutant: str) -> None:
    """Controls."""
    every = killed(home, mutant, 2, "transaction")
    assert not all(is_sound(seen) for seen in every)
    assert every[-1]["whole"] == WHOLE  # nobody killed that one


@pytest.mark.soak
@pytest.mark.parametrize("shards", [0, 3])
def test_every_single_step(home: Path, shards: int) -> None:
    every = killed(home, "product", shards)
    assert len(every) > 30
    assert all(is_sound(seen) and is_tidy(seen) for seen in every)


COMMAND = [
    sys.executable, "-m", "sealift", "data", "seal", "slow:rows", "--schema", "s.toml",
    "--name", "n", "--part", "train", "--vault", "v.db", "--key", "north.key",
    "--passphrase-file", "passphrase", "-o", "out",
]  # fmt: skip


def seal(home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        COMMAND, cwd=home, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )


SLOW = """
import time
class Rows:
    def __len__(self): return 3
    def __getitem__(self, i):
        if i == 2: print("at row 2", flush=True); time.sleep(60)
        return {"n": i}
rows = Rows()
"""


def stopped(home: Path, number: int) -> tuple[int, str]:
    """Exit code and error line of a run that got a signal while it read row 2."""
    (home / "slow.py").write_text(SLOW)
    with subprocess.Popen(
        COMMAND, cwd=home, env=ENVIRONMENT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        assert run.stdout.readline() == "at row 2\n"
        if number == signal.SIGINT:
            refused_meanwhile(home)
        run.send_signal(number)
        errors = run.communicate(timeout=300)[1]
    (home / "slow.py").write_text(SLOW.replace("60", "0"))
    return run.returncode, errors


def refused_meanwhile(home: Path) -> None:
    second = seal(home)
    assert second.returncode == 3
    assert second.stderr.count("\n") == 1
    assert "another process is sealing n in out" in second.stderr


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("number", "code", "said", "left"),
    [
        (signal.SIGINT, 130, "sealift: stopped by SIGINT\n", []),
        (signal.SIGKILL, -9, "", [".n.sealing"]),
    ],
)
def test_a_signal_in_the_midst(
    home: Path, number: int, code: int, said: str, left: list[str]
) -> None:
    assert stopped(home, number) == (code, said)
    assert [path.name for path in (home / "out").iterdir()] == left
    assert not (home / "v.db").exists()
    again = seal(home)
    assert again.returncode == 0, again.stderr
    assert {path.name for path in (home / "out").iterdir()} == {
        "n.sealed", "n.resource.json",
    }  # fmt: skip
