"""Checkpoints of torch.distributed.checkpoint, sealed: any world loads them, and no other bytes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard

from sealift.crypto.identity import create_identity, save_identity
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.data import owner_keys
from sealift.data.ownersvault import OwnersVault
from sealift.errors import SealiftError, UnavailableError
from sealift.integrations import checkpoint
from sealift.integrations.checkpoint import (
    SealedStorageReader,
    SealedStorageWriter,
    checkpoint_key,
)
from tests.sim.torchranks import on_ranks

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is disabled",
    "ignore:TypedStorage",
    "ignore::FutureWarning",
)
KEY = bytes(range(32))


def made(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and an optimizer that has made two steps."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(6, 5)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer, "epoch": 3, "name": "north"}


def flat(state: Any) -> list[Any]:
    if isinstance(state, dict):
        return [(k, each) for k in sorted(state, key=str) for each in flat(state[k])]
    if isinstance(state, list | tuple):
        return [each for part in state for each in flat(part)]
    return [state.tolist() if isinstance(state, Tensor) else state]


class Place:
    """Where one checkpoint lies."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.head = folder / "saved", folder / "saved.head"

    def save(self, state: Any, key: bytes = KEY) -> None:
        writer = SealedStorageWriter(self.folder, SecretKey(key), head=self.head)
        dcp.save(state, storage_writer=writer)

    def load(self, state: Any, key: bytes = KEY) -> None:
        reader = SealedStorageReader(self.folder, SecretKey(key), head=self.head)
        dcp.load(state, storage_reader=reader)

    def shard(self) -> Path:
        (found,) = set(self.folder.iterdir()) - {self.manifest()}
        return found

    def manifest(self) -> Path:
        (found,) = self.folder.glob("*-manifest.sealed")
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def refused(place: Place, key: bytes = KEY) -> SealiftError:
    """Why a load ended, as torch passes it on."""
    with pytest.raises(CheckpointException) as caught:
        place.load(state_of(*made(2)), key)
    (error, _where), *others = caught.value.failures.values()
    assert not others
    assert isinstance(error, SealiftError)
    return error


def test_a_state_comes_back_with_every_value(place: Place) -> None:
    saved, loaded = state_of(*made(1)), state_of(*made(2)) | {"epoch": 0, "name": ""}
    assert flat(saved) != flat(loaded)
    place.save(saved)
    place.load(loaded)
    assert flat(saved) == flat(loaded)


def test_nothing_readable_and_no_pickle_is_stored(place: Place) -> None:
    place.save({"name": "a secret name", "x": torch.zeros(4096)})
    for each in place.folder.iterdir():
        raw = each.read_bytes()
        assert b"a secret name" not in raw
        assert bytes(64) not in raw
        assert b"torch" not in raw


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.ones(2, 3, dtype=torch.bfloat16),
        torch.empty(0, 3),
        torch.tensor(7),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
    ],
    ids=str,
)
def test_any_tensor(place: Place, tensor: Tensor) -> None:
    place.save({"t": tensor})
    found = {"t": torch.zeros_like(tensor)}
    place.load(found)
    assert torch.equal(found["t"], tensor)


def test_each_save_replaces_the_one_before(place: Place) -> None:
    for seed in (1, 2, 3):
        place.save(state_of(*made(seed)))
    assert len(list(place.folder.iterdir())) == 2
    found = state_of(*made(9))
    place.load(found)
    assert flat(found) == flat(state_of(*made(3)))


def test_an_older_checkpoint_is_refused(place: Place, tmp_path: Path) -> None:
    place.save(state_of(*made(1)))
    shutil.copytree(place.folder, tmp_path / "older")
    place.save(state_of(*made(2)))
    shutil.rmtree(place.folder)
    shutil.copytree(tmp_path / "older", place.folder)
    assert refused(place).code == "saved-rolled-back"


def test_files_of_two_checkpoints_are_not_mixed(place: Place, tmp_path: Path) -> None:
    other = Place(tmp_path / "other")
    (tmp_path / "other").mkdir()
    for each, seed in ((place, 1), (other, 2)):
        each.save(state_of(*made(seed)))
    shutil.copy(other.shard(), place.shard())
    assert refused(place).code in ("saved-mixed", "authentication")


def test_a_file_of_another_save_under_this_ones_name_is_refused(place: Place) -> None:
    """The description is the same: only its header tells the two apart."""
    from sealift.channel.record.sealedfile import SealedFileReader, write_sealed_file

    place.save({"x": torch.zeros(8)})
    shard, key = place.shard(), SecretKey(KEY)
    with SealedFileReader(shard, key) as reader:
        content = bytes(reader.total_bytes)
    description = f"sealift checkpoint file 1 {shard.name}".encode()
    write_sealed_file(
        shard,
        [content],
        key=key,
        total_bytes=len(content),
        description=description,
        replace=True,
    )
    with pytest.raises(CheckpointException) as caught:
        place.load({"x": torch.ones(8)})
    assert caught.value.failures[0][0].code == "saved-mixed"


@pytest.mark.parametrize("which", ["shard", "manifest"])
def test_a_changed_byte_is_refused(place: Place, which: str) -> None:
    place.save(state_of(*made(1)))
    path = place.shard() if which == "shard" else place.manifest()
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    assert refused(place).code == "authentication"


def test_another_key_is_refused(place: Place) -> None:
    place.save(state_of(*made(1)))
    assert refused(place, bytes(32)).exit_code == 5


def test_a_save_that_is_cut_off_at_its_end_leaves_the_former_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.save({"x": torch.ones(2)})

    def full(*_args: Any, **_more: Any) -> None:
        raise UnavailableError("the disk is full", code="disk-full")

    monkeypatch.setattr(checkpoint, "open_output", full)
    with pytest.raises(CheckpointException):
        place.save({"x": torch.zeros(2)})
    found = {"x": torch.zeros(2)}
    place.load(found)
    assert found["x"].tolist() == [1, 1]
    monkeypatch.undo()
    place.save({"x": torch.full((2,), 7.0)})
    assert len(list(place.folder.iterdir())) == 2  # what was left is removed
    place.load(found)
    assert found["x"].tolist() == [7, 7]


@pytest.mark.parametrize("what", ["head", "shard"])
def test_what_is_missing_is_named(place: Place, what: str) -> None:
    place.save(state_of(*made(1)))
    path = {
        "head": place.head,
        "shard": place.shard(),
    }[what]
    path.unlink()
    error = refused(place)
    assert isinstance(error, UnavailableError)
    assert path.name in str(error)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'{"number": 0}',
        b'{"number": 1, "manifest": 4, "header": 4}',
        b'{"number": 1, "manifest": "../x", "header": "sha256:%s"}' % (b"0" * 64),
    ],
)
def test_a_head_file_that_is_none(place: Place, raw: bytes) -> None:
    place.save(state_of(*made(1)))
    place.head.write_bytes(raw)
    assert refused(place).code == "bad-saved"
    with pytest.raises(CheckpointException) as caught:
        place.save(state_of(*made(2)))
    assert caught.value.failures[0][0].code == "bad-saved"


def test_a_value_of_another_type_is_refused_and_the_former_checkpoint_stays(
    place: Place,
) -> None:
    place.save({"x": torch.ones(2)})
    with pytest.raises(CheckpointException) as caught:
        place.save({"x": torch.zeros(2), "what": object()})
    assert caught.value.failures[0][0].code == "object-refused"
    found = {"x": torch.zeros(2)}
    place.load(found)
    assert found["x"].tolist() == [1, 1]


def sharded(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 3))
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for each in model:
        fully_shard(each, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    return model, optimizer


def whole(model: nn.Module) -> Any:
    return flat({n: p.full_tensor() for n, p in model.named_parameters()})


class SaveSharded:
    """Work of a rank: saves a model of FSDP2, now or beside what comes next."""

    def __init__(self, folder: Path, *, beside: bool) -> None:
        self._folder, self._beside = folder, beside

    def __call__(self, rank: int) -> Any:
        place = Place(self._folder)
        model, optimizer = sharded(1)
        before = whole(model)
        if not self._beside:
            place.save(state_of(model, optimizer))
            return before
        own = dist.new_group(backend="gloo")
        writer = SealedStorageWriter(place.folder, SecretKey(KEY), head=place.head)
        saving = dcp.async_save(
            state_of(model, optimizer), storage_writer=writer, process_group=own
        )
        for _ in range(3):
            model(torch.ones(2, 5)).sum().backward()
            optimizer.step()
        saving.result()
        return before


class LoadSharded:
    """Work of a rank: loads it, and says what the whole model is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, rank: int) -> Any:
        model, optimizer = sharded(2)
        state = state_of(model, optimizer)
        Place(self._folder).load(state)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        return whole(model)


@pytest.mark.distributed
@pytest.mark.parametrize("beside", [False, True], ids=["save", "async_save"])
def test_fsdp2_is_saved_by_two_ranks_and_loaded_by_three(
    tmp_path: Path, beside: bool
) -> None:
    saved = on_ranks(
        2, SaveSharded(tmp_path, beside=beside), backend="gloo" if beside else "sealift"
    )
    assert saved[0] == saved[1]
    loaded = on_ranks(3, LoadSharded(tmp_path))
    assert loaded == [saved[0]] * 3


def test_the_key_is_kept_in_the_owners_vault(tmp_path: Path) -> None:
    """In a real one, and never a table's key of that name."""
    owner = create_identity("north")
    save_identity(owner, tmp_path / "north.key", "correct horse")
    table = SecretKey.generate()
    OwnersVault(tmp_path / "vault.db", owner).keep({"mine": table})
    found = []
    for _again in range(2):
        with owner_keys(
            tmp_path / "vault.db", tmp_path / "north.key", passphrase="correct horse"
        ) as keys:
            found.append([checkpoint_key(keys, each) for each in ("mine", "other")])
    (mine, other), (again, _) = (
        [each.reveal(TOKEN) for each in part] for part in found
    )
    assert mine == again
    assert len({mine, other, table.reveal(TOKEN)}) == 3


def test_another_manifest_under_its_name_is_refused(place: Place) -> None:
    """Of the same form, by somebody with the key: only its header tells the two apart."""
    place.save({"x": torch.ones(2)})
    name, head = place.manifest(), place.head.read_bytes()
    place.save({"x": torch.zeros(2)})
    place.manifest().rename(name)
    place.head.write_bytes(head)
    with pytest.raises(CheckpointException) as caught:
        place.load({"x": torch.zeros(2)})
    assert caught.value.failures[0][0].code == "saved-mixed"
