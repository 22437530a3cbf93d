"""A user's DDP script under torchrun: two changed lines, and the same numbers as before."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.hosts import hosts
from tests.sim.torchranks import SCRIPT, variables

pytestmark = pytest.mark.distributed
OURS = {
    "import sealift.integrations.process_group  # noqa: F401 - new\n": "",
    'init_process_group("sealift")  # was "gloo"': 'init_process_group("gloo")',
}
MODEL = "model = DistributedDataParallel(layers)\n"
HOOK = """\
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    model.register_comm_hook(None, allreduce_hook)
"""


def before() -> str:
    """The script as it was."""
    text = SCRIPT.read_text()
    for ours, former in OURS.items():
        assert text.count(ours) == 1
        text = text.replace(ours, former)
    return text


def launch(
    script: Path, folder: Path, said: dict[str, str], ranks: int = 2
) -> subprocess.CompletedProcess[str]:
    words = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    return subprocess.run(
        [sys.executable, *words, "--nproc-per-node", str(ranks), str(script)],
        env=os.environ | said | {"TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def losses(tmp_path: Path, text: str, said: dict[str, str]) -> list[str]:
    script = tmp_path / "script.py"
    script.write_text(text)
    ran = launch(script, tmp_path, said)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_two_lines_change_and_no_number(tmp_path: Path) -> None:
    former, ours = before(), SCRIPT.read_text()
    changed = difflib.ndiff(former.splitlines(), ours.splitlines())
    assert sum(line.startswith("+") for line in changed) == len(OURS)
    found = losses(tmp_path, former, {})
    assert len(found) == 3
    assert losses(tmp_path, ours, variables()) == found
    assert losses(tmp_path, ours.replace(MODEL, MODEL + HOOK), variables()) == found


def test_without_an_environment_it_says_what_is_missing(tmp_path: Path) -> None:
    ran = launch(SCRIPT, tmp_path, {"SEALIFT_JOB": ""})
    assert ran.returncode
    assert "UsageError: SEALIFT_KEY " in ran.stderr


@pytest.mark.hosts
def test_two_hosts_find_the_numbers_of_one(tmp_path: Path) -> None:
    alone = launch(SCRIPT, tmp_path, variables(), ranks=4)
    assert alone.returncode == 0, alone.stderr
    with hosts(2) as made:
        words = [
            "-m",
            "torch.distributed.run",
            "--nnodes",
            "2",
            "--nproc-per-node",
            "2",
        ]
        words += ["--master-addr", made.addresses[0], "--master-port", "29400"]
        kept = os.environ | variables() | {"TMPDIR": str(tmp_path)}
        kept["PYTHONPATH"] = str(SCRIPT.parents[1] / "src")
        ranks = [
            made.popen(
                host,
                [sys.executable, *words, "--node-rank", str(host), str(SCRIPT)],
                env=kept,
                stdout=subprocess.PIPE,
                text=True,
            )
            for host in range(2)
        ]
        told = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert told == [alone.stdout, ""]
