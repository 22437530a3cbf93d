"""Bad input for the commands that run jobs: one line, its exit code, nothing written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import sealift
from sealift.demo.folder import World
from sealift.release.agreement.signed import SignedAgreement, load_signed, save_signed
from sealift.train.sandbox.kernel import call, mount
from tests.sim.jobworld import Wishes, fresh_world, write_job

pytestmark = pytest.mark.distributed

SOURCE = str(Path(sealift.__file__).parent.parent)
USAGE, UNAVAILABLE, REFUSED, MALFORMED, JOB = 2, 3, 5, 6, 7
Words = tuple[str | Path, ...]
NEW_MOUNTS, PRIVATE, RECURSIVE = 1 << 17, 1 << 18, 1 << 14


@dataclass
class Said:
    """How a command ended."""

    code: int
    out: str
    err: list[str]

    @property
    def line(self) -> str:
        """The one line of the error."""
        assert not any("Traceback" in line for line in self.err), self.err
        errors = [line for line in self.err if line.endswith("]")]
        assert len(errors) == 1, self.err
        return errors[0]


def sealift_says(
    cwd: Path, *words: str | Path, before: Callable[[], None] | None = None
) -> Said:
    ended = subprocess.run(
        [sys.executable, "-m", "sealift", *map(str, words)],
        check=False,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": SOURCE, "XDG_STATE_HOME": str(cwd / "state")},
        preexec_fn=before,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return Said(ended.returncode, ended.stdout, ended.stderr.splitlines())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return fresh_world(tmp_path, Wishes(owners=("north", "east")))


def join_words(world: World, owner: str = "north", key_of: str = "") -> Words:
    home = world.home(owner)
    stores = ("--vault", home.vault, "--log", home.log)
    keys = world.home(key_of or owner).unlocking
    return ("join", world.job, *keys, *stores, *home.cargo)


def accelerator_words(world: World) -> Words:
    return ("accelerator", world.job, *world.home("gpu-host").unlocking)


def orchestrator_words(world: World) -> Words:
    return ("orchestrator", world.job, *world.home("cloud").unlocking)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def sealed(world: World, name: str) -> Path:
    return world.home("north").sealed / f"{name}.sealed"


def truncate(world: World) -> None:
    path = sealed(world, "north-train")
    os.truncate(path, path.stat().st_size - 100)


def lose_card(world: World) -> None:
    (world.home("north").sealed / "north-train.resource.json").unlink()


def unsign(world: World) -> None:
    signed = load_signed(world.agreement)
    left = {k: v for k, v in signed.signatures.items() if k != "lab"}
    save_signed(SignedAgreement(signed.agreement, left), world.agreement)


def alter(world: World) -> None:
    edit(world.agreement, '"max_visits":1000', '"max_visits":9999')


def edit_by_hand(world: World) -> None:
    edit(world.agreement, '"max_visits":1000', '"max_visits": 1000')


def forget_passphrase(world: World) -> None:
    world.home("north").passphrase.write_text("something else\n")


def misspell(world: World) -> None:
    edit(world.job, "epochs =", "epoch =")


def use_text(world: World) -> None:
    edit(world.job, "epochs = 2", 'epochs = "two"')


def break_toml(world: World) -> None:
    world.job.write_bytes(b"name = \xff\n")


def shrink_buffer(world: World) -> None:
    write_job(world, Wishes(buffer_bytes=100))
    world.home("north").passphrase.unlink()  # and no key was asked for


def lengthen_lease(world: World) -> None:
    write_job(world, Wishes(lease_s=5000.0))


def misaddress(world: World) -> None:
    edit(world.job, '"127.0.0.1:0"', '"somewhere"')


def plan_locally(world: World) -> None:
    write_job(world, Wishes(plan="local"))


BAD_AT_HOME: dict[str, tuple[Callable[[World], None], int, str, str]] = {
    "truncated": (truncate, MALFORMED, "[bad-sealed-file]", "north-train"),
    "no card": (lose_card, UNAVAILABLE, "[cannot-read]", "north-train"),
    "unsigned": (unsign, REFUSED, "[agreement-unsigned]", "lab"),
    "altered": (alter, REFUSED, "[agreement-altered]", "north"),
    "by hand": (edit_by_hand, MALFORMED, "[bad-agreement-file]", "agreement.json"),
    "passphrase": (forget_passphrase, REFUSED, "[wrong-passphrase]", ""),
    "unknown field": (misspell, MALFORMED, "[unknown-field]", "Did you mean epochs?"),
    "wrong type": (use_text, MALFORMED, "[bad-field]", "training.epochs"),
    "not TOML": (break_toml, MALFORMED, "[bad-toml]", "job.toml"),
    "small buffer": (shrink_buffer, USAGE, "[buffer-too-small]", "north-train"),
    "long lease": (lengthen_lease, REFUSED, "[lease-exceeds-agreement]", "5000 s"),
    "address": (misaddress, MALFORMED, "[bad-address]", "somewhere"),
    "other plan": (plan_locally, USAGE, "[other-plan]", "local"),
}


@pytest.mark.parametrize("case", BAD_AT_HOME)
def test_join_refuses_at_home(world: World, case: str) -> None:
    spoil, code, name, part = BAD_AT_HOME[case]
    spoil(world)
    said = sealift_says(world.path, *join_words(world))
    assert said.line.endswith(name)
    assert part in said.line
    assert said.code == code
    assert said.out == ""
    home = world.home("north")
    assert not any(path.exists() for path in (home.receipts, home.log, home.heads))


def test_join_refuses_a_swapped_file(world: World) -> None:
    """Whole and well-formed, but not what the key under this name is for."""
    shutil.copy(sealed(world, "north-heldout"), sealed(world, "north-train"))
    said = sealift_says(world.path, *join_words(world))
    assert said.code == MALFORMED
    assert said.line.endswith("[other-resource]")
    assert "north-train" in said.line


@pytest.mark.parametrize(
    ("party", "name"), [("cloud", "not-a-data-owner"), ("gpu-host", "not-a-party")]
)
def test_join_with_somebody_elses_key(world: World, party: str, name: str) -> None:
    said = sealift_says(world.path, *join_words(world, key_of=party))
    assert (said.code, said.line.endswith(f"[{name}]")) == (REFUSED, True)


def test_join_with_somebody_elses_vault(world: World) -> None:
    words = [*join_words(world, "east")]
    words[words.index("--vault") + 1] = world.home("north").vault
    said = sealift_says(world.path, *words)
    assert said.code == UNAVAILABLE
    assert said.line.endswith("[no-key]")


def test_the_orchestrator_needs_the_operators_key(world: World) -> None:
    words = ("orchestrator", world.job, *world.home("lab").unlocking)
    said = sealift_says(world.path, *words)
    assert (said.code, said.line.endswith("[other-key]")) == (REFUSED, True)
    assert not world.run.exists()


def test_the_accelerator_needs_an_accepted_attester(world: World) -> None:
    words = ("accelerator", world.job, *world.home("lab").unlocking)
    said = sealift_says(world.path, *words)
    assert (said.code, said.line.endswith("[attester-unknown]")) == (REFUSED, True)


def test_code_that_changed_after_signing(world: World) -> None:
    with (world.path / "recipe" / "recipe.py").open("a") as file:
        file.write("# harmless\n")
    said = sealift_says(world.path, *accelerator_words(world))
    assert (said.code, said.line.endswith("[code-bundle-differs]")) == (REFUSED, True)
    assert "recipe.py differs" in said.line


def test_a_run_is_never_replaced(world: World) -> None:
    world.run.mkdir()
    (world.run / "manifest.json").write_text("the only one")
    said = sealift_says(world.path, *orchestrator_words(world))
    assert (said.code, said.line.endswith("[output-exists]")) == (USAGE, True)
    assert (world.run / "manifest.json").read_text() == "the only one"


def test_train_names_what_is_missing(world: World) -> None:
    said = sealift_says(world.path, "train", world.job)
    assert (said.code, said.line.endswith("[keys-missing]")) == (USAGE, True)
    plan_locally(world)
    said = sealift_says(world.path, "train", world.job)
    assert (said.code, said.line.endswith("[keys-missing]")) == (USAGE, True)
    words = [*world.home("north").unlocking, "--vault", world.home("north").vault]
    words += ["--sealed", world.home("north").sealed]
    said = sealift_says(world.path, "train", world.job, *words)
    assert (said.code, said.line.endswith("[missing-resource]")) == (REFUSED, True)
    assert "east-train" in said.line
    assert not world.run.exists()


def local_words(world: World) -> Words:
    words: list[str | Path] = ["train", world.job]
    for owner in ("north", "east"):
        home = world.home(owner)
        words += [*home.unlocking, "--vault", home.vault, "--sealed", home.sealed]
    return tuple(words)


def test_a_full_disk_leaves_nothing(world: World) -> None:
    plan_locally(world)
    disk = world.path / "disk"
    disk.mkdir()

    def mount_small_disk() -> None:
        call("unshare", NEW_MOUNTS)
        mount("", "/", "", PRIVATE | RECURSIVE)
        mount("disk", str(disk), "tmpfs", 0, "size=4k,nr_inodes=16")

    words = (*local_words(world), "--output", disk / "run")
    try:
        said = sealift_says(world.path, *words, before=mount_small_disk)
    except subprocess.SubprocessError:
        pytest.skip("this machine lacks the right to mount")
    assert (said.code, said.line.endswith("[disk-full]")) == (UNAVAILABLE, True)


def test_a_recipe_that_fails_says_where(tmp_path: Path) -> None:
    recipe = "def build():\n    raise ValueError('a value of north')\n"
    world = fresh_world(tmp_path, Wishes(recipe=recipe, plan="local"))
    said = sealift_says(world.path, *local_words(world))
    assert (said.code, said.line.endswith("[recipe-error]")) == (JOB, True)
    assert "recipe.py:2 with ValueError" in said.line
    assert "a value" not in said.line
    assert not world.run.exists()


def try_words(world: World) -> Words:
    schema = world.path / "tables" / "north" / "schema.toml"
    few = ("--rows", "32", "--steps", "3", "--json")
    return (
        "try",
        "--bundle",
        "recipe",
        "--entry",
        "recipe.py",
        "--schema",
        schema,
        *few,
    )


def test_try_needs_no_agreement(world: World) -> None:
    world.agreement.unlink()
    said = sealift_says(world.path, *try_words(world))
    assert said.code == 0, said.err
    facts = json.loads(said.out)
    assert facts["steps"] == 3
    assert facts["parameters"] == 64 * 16 + 16 + 16 * 10 + 10
    assert facts["step_ms"] > 0
    assert set(facts["metrics"]) == {"loss"}


BATCH_NORM = """
import torch
from torch import nn


def build():
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch["pixels"]), batch["label"])


def configure_optimizers(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def evaluate(model, batch):
    return {"loss": float(loss(model, batch)) * len(batch["label"])}


def predict(model, batch):
    return {"digit": model(batch["pixels"]).argmax(dim=WHERE)}
"""
FORM = """
[[inputs]]
name = "pixels"
dtype = "float32"
shape = [8, 8]
[[outputs]]
name = "digit"
dtype = "int64"
"""


@pytest.mark.parametrize("axis", [1, 0])
def test_try_has_a_last_batch_of_one_row_and_answers(world: World, axis: int) -> None:
    text = BATCH_NORM.replace("WHERE", str(axis))
    (world.path / "recipe" / "recipe.py").write_text(text)
    (world.path / "form.toml").write_text(FORM)
    words = (*try_words(world), "--form", "form.toml")
    said = sealift_says(world.path, *words)
    assert said.code == JOB
    assert "ValueError at a last batch of one row" in said.err[-1]
    assert "drop_last = true" in said.err[-1]
    assert said.err[-1].endswith("[recipe-error]")
    said = sealift_says(world.path, *words, "--drop-last")
    assert said.code == (0 if axis else JOB), said.err
    assert axis or "[bad-recipe]" in said.line


def test_try_says_so_when_a_recipe_exits(world: World) -> None:
    """Not as a bug of ours, and not without a word."""
    text = "def build():\n    raise SystemExit('of my own')\n"
    (world.path / "recipe" / "recipe.py").write_text(text)
    said = sealift_says(world.path, "try", world.agreement, "--bundle", "recipe")
    assert said.code == JOB
    assert "SystemExit" in said.err[-1]
    assert said.err[-1].endswith("[recipe-error]")


def test_try_shows_the_whole_traceback(world: World) -> None:
    """The message too: these are nobody's rows."""
    text = "def build():\n    print('here')\n    raise ValueError('of my own')\n"
    (world.path / "recipe" / "recipe.py").write_text(text)
    said = sealift_says(world.path, "try", world.agreement, "--bundle", "recipe")
    assert said.code == JOB
    assert said.out == ""  # the result, and there is none
    assert said.err[:2] == ["sealift: recipe.py differs from the agreed file", "here"]
    assert "Traceback (most recent call last):" in said.err
    assert "    raise ValueError('of my own')" in said.err
    assert said.err[-2] == "ValueError: of my own"
    assert "ValueError" in said.err[-1]
    assert said.err[-1].endswith("[recipe-error]")


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        (("--bundle", "recipe"), USAGE, "[usage]"),
        (("--bundle", "nowhere", "agreement.json"), UNAVAILABLE, "[cannot-read]"),
        (("--bundle", "recipe", "agreement.json", "--steps", "0"), USAGE, "[usage]"),
        (("--bundle", "recipe", "job.toml"), MALFORMED, "[bad-agreement]"),
    ],
)
def test_try_refuses(world: World, words: Words, code: int, name: str) -> None:
    said = sealift_says(world.path, "try", *words)
    assert (said.code, said.line.endswith(name)) == (code, True), said.err
