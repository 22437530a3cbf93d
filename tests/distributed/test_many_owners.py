"""Many owners, few rows, many rounds: what a job allows is known before anybody signs.

Long: sixteen machines' processes on this one. What they hold the product to: nobody is refused
after the signatures, nobody waits for a place, and every owner ends with a receipt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.growth.meetings import names, write_recipe, write_table
from tests.sim.ownaddress import own_address
from tests.sim.typed import Typed

pytestmark = [pytest.mark.distributed, pytest.mark.long]
OWNERS = names(16)
YES = (("Compare?", "y"), ("Sign?", "y"), ("compare the words with", "y"))


@pytest.fixture
def typed() -> Iterator[list[Typed]]:
    found: list[Typed] = []
    yield found
    for each in found:
        if each.process.poll() is None:
            each.kill()


def train(folder: Path, typed: list[Typed], owners: Sequence[str], **job: int) -> Typed:
    """The host's command, once all of them have ended well."""
    write_recipe(folder / "host" / "wards", job["epochs"])
    words = ["host", "wards", "--listen", own_address(), "--invite", *owners]
    host = Typed(folder / "host", *words)
    typed.append(host)
    host.wait_text("send each party its line")
    invitations = re.findall(r"([\w-]+)  (sealift-invitation-[\w-]+)", host.text)
    assert [name for name, _ in invitations] == [*owners]
    joined = []
    for seed, (name, line) in enumerate(invitations):
        home = folder / name
        home.mkdir()
        write_table(home / "train.csv", seed, job["rows"])
        (home / "invitation.txt").write_text(line)
        joined.append(Typed(home, "join", "invitation.txt", "train.csv", answers=YES))
        typed.append(joined[-1])
    for owner in joined:
        assert owner.end() == 0, owner.text[-3000:]
    assert host.end() == 0, host.text[-3000:]
    assert (folder / "host" / "model.safetensors").exists()
    return host


def test_sixteen_owners_with_a_hundred_rows_each_train_from_one_address(
    tmp_path: Path, typed: list[Typed]
) -> None:
    train(tmp_path, typed, OWNERS, epochs=4, rows=100)
    receipt = (tmp_path / "host" / "receipt.json").read_bytes()
    for name in OWNERS:
        home = tmp_path / name
        assert (home / "receipt.json").read_bytes() == receipt
        (kept,) = (home / "receipts").iterdir()
        assert len(kept.read_bytes().splitlines()) == 4


def test_owners_of_forty_rows_each_make_a_model_of_1200_rounds(
    tmp_path: Path, typed: list[Typed]
) -> None:
    """Nothing is cut where each owner has its part; and no limit stops what was agreed."""
    host = train(tmp_path, typed, OWNERS[:2], epochs=1200, rows=40)
    assert "train epoch 1200 of 1200" in host.text
    assert "trained_less" not in host.text
    (kept,) = (tmp_path / OWNERS[0] / "receipts").iterdir()
    assert len(kept.read_bytes().splitlines()) == 1200
