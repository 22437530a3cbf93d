"""Assets, adapters, mixed precision and checkpoints of activations inside a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from sealift import recipes
from sealift.errors import IntegrityError, JobError, MalformedError, UnavailableError
from sealift.ids import Digest
from sealift.release.agreement.code import (
    find_assets,
    load_assets,
    measure_assets,
    measure_bundle,
    read_bundle,
)
from sealift.train.loop.faults import REASONS
from sealift.train.loop.tasks import SliceId
from sealift.train.sandboxed.torchstate import as_tensors
from sealift.train.sandboxed.training import Training
from sealift.train.worker import process
from sealift.train.worker.process import BundleMemory
from tests.unit.train.ranked import World
from tests.unit.train.recipes import PLAIN, SETTINGS, load, table

BUILT = (
    "return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 2))"
)
ADAPTED = PLAIN.replace(
    BUILT,
    "from sealift import recipes\n"
    "    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))\n"
    "    model.load_state_dict(recipes.weights('base.safetensors'))\n"
    "    model[0].requires_grad_(False)\n"
    "    return model",
)


@pytest.fixture
def given() -> Iterator[dict[str, torch.Tensor]]:
    """The assets of a recipe that runs in this process."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
    )
    state = dict(model.state_dict())
    recipes.provide_assets({"assets/base.safetensors": memoryview(save(state))})
    yield state
    recipes.provide_assets({})


def train(training: Training, epochs: int = 2, rows: int = 24) -> None:
    for epoch in range(epochs):
        training.train_slice(table(rows, epoch), [SliceId(epoch, "north", 0)])


def names(training: Training) -> set[str]:
    return set(training.state().model())


def test_what_is_frozen_and_came_with_the_recipe_is_in_no_state(
    given: dict[str, torch.Tensor],
) -> None:
    training = Training(load(ADAPTED), SETTINGS)
    train(training)
    assert names(training) == {"2.weight", "2.bias"}
    again = Training(load(ADAPTED), SETTINGS, training.state())
    assert torch.equal(again.model[0].weight, given["0.weight"])  # type: ignore[index]
    assert again.state() == training.state()


def test_without_assets_frozen_weights_go_on() -> None:
    text = PLAIN.replace(
        BUILT, f"m = {BUILT[7:]}\n    m[0].requires_grad_(False)\n    return m"
    )
    assert names(Training(load(text), SETTINGS)) == {
        "0.weight", "0.bias", "3.weight", "3.bias",
    }  # fmt: skip


@pytest.mark.parametrize("rows", [[[20], [9]], [[8], [8]]])
def test_slices_add_up_what_is_trained_alone(
    given: dict[str, torch.Tensor], rows: list[list[int]]
) -> None:
    slices, _told = World(ADAPTED, rows).here()
    states = [as_tensors(each.trainer.joint.tensors) for each in slices]
    assert {n for n in states[0] if n.startswith("model/")} == {
        "model/2.weight", "model/2.bias",
    }  # fmt: skip
    assert all(torch.equal(states[0][n], states[1][n]) for n in states[0])


def test_freeing_a_parameter_on_the_way_is_refused(
    given: dict[str, torch.Tensor],
) -> None:
    text = ADAPTED.replace(
        'return F.cross_entropy(model(batch["x"])',
        'model[0].requires_grad_(True); return F.cross_entropy(model(batch["x"])',
    )
    training = Training(load(text), SETTINGS)
    train(training)
    with pytest.raises(JobError) as caught:
        training.state()
    assert REASONS["frozen"][0] in str(caught.value)


def test_an_asset_that_is_not_there_is_said_so(given: dict[str, torch.Tensor]) -> None:
    with pytest.raises(FileNotFoundError, match=r"no assets/other\.json"):
        recipes.asset("other.json")


def folder_with(tmp_path: Path, **assets: bytes) -> Path:
    (tmp_path / "assets" / "deep").mkdir(parents=True)
    (tmp_path / "recipe.py").write_text("def build(): pass\n")
    for name, content in assets.items():
        path = tmp_path / "assets" / name.replace("__", "/").replace("_", ".")
        path.write_bytes(content)
    return tmp_path


def test_assets_are_committed_with_the_code_and_read_apart(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, a_json=b"{}", deep__b_safetensors=b"x" * 3_000_000)
    files, digests = read_bundle(folder), measure_assets(folder)
    assert list(files) == ["recipe.py"]
    assert set(digests) == {"assets/a.json", "assets/deep/b.safetensors"}
    with_assets = measure_bundle(files, "recipe.py", digests)
    assert with_assets.digest != measure_bundle(files, "recipe.py").digest
    memory = BundleMemory(files, load_assets(folder, with_assets.files))
    assert memory.length == len(memory.code)
    memory.close()


@pytest.mark.parametrize("name", ["model_pt", "model_bin", "model_pkl", "code_py", "x"])
def test_what_could_be_unpickled_is_no_asset(tmp_path: Path, name: str) -> None:
    folder = folder_with(tmp_path, **{name: b"x"})
    with pytest.raises(MalformedError, match=name.replace("_", r"\.")) as caught:
        find_assets(folder)
    assert caught.value.code == "bad-asset"


def test_an_asset_that_was_changed_is_refused_as_it_is_read(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, a_json=b"{}", b_json=b"[]")
    digests = measure_assets(folder)
    loaded = load_assets(folder, digests)
    for content in (b"[1", b"[]]", b"["):
        (folder / "assets" / "a.json").write_bytes(content)
        with pytest.raises(IntegrityError, match=r"assets/a\.json differs"):
            BundleMemory({"recipe.py": b""}, loaded)
    (folder / "assets" / "b.json").unlink()
    with pytest.raises(IntegrityError, match=r"assets/b\.json differs"):
        load_assets(folder, digests)
    with pytest.raises(IntegrityError, match=r"assets/a\.json differs"):
        load_assets(folder, {"assets/c.json": Digest(bytes(32))})


def test_assets_count_as_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_with(tmp_path, a_txt=b"x" * 100_000)
    monkeypatch.setattr(process, "free_memory_bytes", lambda: 90_000)
    with pytest.raises(UnavailableError, match="90,000 bytes of free") as caught:
        BundleMemory({}, load_assets(folder, measure_assets(folder)))
    assert caught.value.code == "no-memory"


LOSS = 'return F.cross_entropy(model(batch["x"]), batch["y"])'
MIXED = (
    "with torch.autocast('cpu', dtype=torch.bfloat16):\n"
    "        found = model(batch['x'])\n"
    "    return F.cross_entropy(found.float(), batch['y'])"
)
IN_PARTS = (
    "from torch.utils.checkpoint import checkpoint\n"
    "    def part(x, y):\n"
    "        return F.cross_entropy(model(x), y, reduction='sum')\n"
    "    parts = zip(batch['x'].split(2), batch['y'].split(2))\n"
    "    losses = [checkpoint(part, x, y, use_reentrant=False) for x, y in parts]\n"
    "    return torch.stack(losses).sum() / len(batch['y'])"
)
LINEAR = PLAIN.replace(BUILT, "return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))")


def weights(text: str) -> torch.Tensor:
    training = Training(load(text), SETTINGS)
    train(training)
    return torch.cat([each.detach().flatten() for each in training.model.parameters()])


@pytest.mark.parametrize(
    ("inside", "tolerance"), [(MIXED, 2e-2), (IN_PARTS, 1e-5)], ids=["mixed", "parts"]
)
def test_what_a_recipe_does_within_a_step(inside: str, tolerance: float) -> None:
    """bfloat16 where it is enough, and gradients of small parts of a batch, one by one."""
    assert LOSS in LINEAR
    text = LINEAR.replace(LOSS, inside)
    found, plain = weights(text), weights(LINEAR)
    assert torch.allclose(found, plain, atol=tolerance)
    assert torch.equal(found, weights(text))
    through = Training(load(text), SETTINGS)
    train(through)
    state = None
    for epoch in range(2):
        training = Training(load(text), SETTINGS, state)
        training.train_slice(table(24, epoch), [SliceId(epoch, "north", 0)])
        state = training.state()
    assert state == through.state()


@pytest.mark.parametrize("inside", [MIXED, IN_PARTS], ids=["mixed", "parts"])
def test_the_same_where_slices_step_together(inside: str) -> None:
    settings = replace(SETTINGS, clip_norm=1.0)
    slices, _told = World(LINEAR.replace(LOSS, inside), [[20], [9]], settings).here()
    first, second = (each.trainer.joint for each in slices)
    assert first == second
