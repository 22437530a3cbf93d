"""Checkpoints of ``torch.distributed.checkpoint``, sealed where they are stored.

``SealedStorageWriter`` and ``SealedStorageReader`` take the place of torch's
``FileSystemWriter`` and ``FileSystemReader``::

    with owner_keys("vault.db", "north.key", passphrase_file="north.pass") as keys:
        key = checkpoint_key(keys, "my-training")
    dcp.save(state, storage_writer=SealedStorageWriter("saved", key, head="saved.head"))
    dcp.load(state, storage_reader=SealedStorageReader("saved", key, head="saved.head"))

Each rank seals its tensors into one file; the coordinator seals a manifest that names the
files by the digests of their headers, which no other file has. The head file names the
manifest in the same way. It is small and not secret. Who keeps it where nobody else writes
notices an older checkpoint, which everything else in the folder would agree to.
Values that are no tensors are kept in the encoding of ``objects``; nothing is unpickled.
Not protected: names of files and their lengths; a head file that is lost or replaced.
Source: torch 2.13, ``torch.distributed.checkpoint.storage``.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from sealift.channel.record.outputfile import open_output
from sealift.channel.record.record import verify_description
from sealift.channel.record.sealedfile import SealedFileReader, write_sealed_file
from sealift.crypto.keys import SecretKey
from sealift.errors import (
    IntegrityError,
    MalformedError,
    SealiftError,
    StaleError,
    UnavailableError,
    UsageError,
    require_kind,
    require_value,
)
from sealift.ids import Buffer, Digest
from sealift.integrations.objects import pack_object, unpack_object
from sealift.release.files import make_folder

if TYPE_CHECKING:
    from sealift.release.vault.vault import Vault

_SHARD, _MANIFEST = r"[0-9a-f]{16}-\d{1,6}\.sealed", r"[0-9a-f]{16}-manifest\.sealed"
_FORMAT: Final = "sealift checkpoint 1"
_MANIFEST_IS: Final = b"sealift checkpoint manifest 1"
_MOST_HEAD_BYTES: Final = 1 << 12
FolderPath = str | os.PathLike[str]


def checkpoint_key(keys: Vault, name: str) -> SecretKey:
    """The key of this name in an owner's vault, made there if there is none.

    Args:
        keys: The open vault, of ``owner_keys``.
        name: Of the training. The vault has it as ``checkpoint-NAME``, beside the keys of
            tables, which are other keys.
    """
    held = f"checkpoint-{name}"
    if held not in keys.resources():
        keys.store_all({held: SecretKey.generate()})
    return keys.fetch(held)


class _InFolder:
    """What a writer and a reader of a folder have in common."""

    def __init__(self, path: FolderPath, key: SecretKey, *, head: FolderPath) -> None:
        self._path, self._key, self._head = Path(path), key, Path(head)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: FolderPath) -> bool:
        """Whether this could be a folder; see ``StorageWriter``."""
        return "://" not in os.fspath(checkpoint_id)


class SealedStorageWriter(_InFolder, dcp.StorageWriter):  # type: ignore[misc]
    """Seals a checkpoint's files into a folder; each save replaces the one before.

    Every rank makes one, with the same key. A save that is interrupted leaves the former
    checkpoint as it was.

    Args:
        path: The folder; it is made if there is none.
        key: Seals all files; each has a key of its own, derived from it.
        head: The head file, replaced at the end of a save. The coordinator's counts.
    """

    _number, _save = 0, ""

    def reset(self, checkpoint_id: FolderPath | None = None) -> None:
        """Another save begins; ``checkpoint_id`` is another folder."""
        if checkpoint_id is not None:
            self._path = Path(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """The coordinator counts on from the head file; one that is none is refused now."""
        if is_coordinator:
            former = _read_head(self._head).number if self._head.exists() else 0
            self._number = former + 1

    def prepare_local_plan(self, plan: dcp.SavePlan) -> dcp.SavePlan:
        """Nothing: the coordinator names the files."""
        return plan

    def prepare_global_plan(self, plans: list[dcp.SavePlan]) -> list[dcp.SavePlan]:
        """Name a file for each rank; no save uses a name again."""
        self._save = secrets.token_hex(8)
        return [
            replace(plan, storage_data=f"{self._save}-{rank}.sealed")
            for rank, plan in enumerate(plans)
        ]

    def write_data(
        self, plan: dcp.SavePlan, planner: dcp.SavePlanner
    ) -> Future[list[WriteResult]]:
        """Seal this rank's items into its file, one after the other.

        Raises:
            UsageError: code ``object-refused``, for a value that the encoding has not.
            UnavailableError: if the disk is full, or the folder cannot be written.
        """
        name = _require_shard(plan.storage_data)
        make_folder(self._path)
        packed = {
            at: pack_object(_value_of(planner, item))
            for at, item in enumerate(plan.items)
            if item.type is WriteItemType.BYTE_IO
        }
        lengths = [
            len(packed[at]) if at in packed else _tensor_bytes(item)
            for at, item in enumerate(plan.items)
        ]

        def content() -> Iterator[Buffer]:
            for at, item in enumerate(plan.items):
                yield packed[at] if at in packed else _bytes_of(planner, item)

        card = write_sealed_file(
            self._path / name,
            content(),
            key=self._key,
            total_bytes=sum(lengths),
            description=_shard_is(name),
        )
        header = str(Digest.of(card.header.encode()))
        done: Future[list[WriteResult]] = Future()
        results, offset = [], 0
        for item, length in zip(plan.items, lengths, strict=True):
            place = {"file": name, "header": header, "offset": offset, "length": length}
            if item.tensor_data is not None:
                place["dtype"] = item.tensor_data.properties.dtype
                place["shape"] = item.tensor_data.chunk.sizes
            results.append(WriteResult(item.index, length, place))
            offset += length
        done.set_result(results)
        return done

    def finish(self, metadata: dcp.Metadata, results: list[list[WriteResult]]) -> None:
        """Seal the manifest, then name it in the head file, then remove the former files.

        Until the head file is replaced, it names the former checkpoint, which is whole.
        """
        places = {each.index: each.storage_data for part in results for each in part}
        metadata.storage_data = places
        metadata.storage_meta = StorageMeta()
        name = f"{self._save}-manifest.sealed"
        former = {each.name for each in self._path.iterdir()}
        manifest = pack_object({"format": _FORMAT, "metadata": metadata})
        card = write_sealed_file(
            self._path / name,
            [manifest],
            key=self._key,
            total_bytes=len(manifest),
            description=_MANIFEST_IS,
        )
        header = str(Digest.of(card.header.encode()))
        head = {"number": self._number, "manifest": name, "header": header}
        with open_output(self._head, replace=True) as output:
            output.write(f"{json.dumps(head)}\n".encode())
        for each in former - {each["file"] for each in places.values()}:
            if re.fullmatch(f"{_SHARD}|{_MANIFEST}", each):
                (self._path / each).unlink(missing_ok=True)


class SealedStorageReader(_InFolder, dcp.StorageReader):  # type: ignore[misc]
    """Opens a checkpoint that ``SealedStorageWriter`` sealed, in a world of any size.

    Args:
        path: The folder.
        key: The writers' key.
        head: The head file of the last save, as this rank has kept it.
    """

    _places: Mapping[Any, Mapping[str, Any]] = MappingProxyType({})
    _failed: SealiftError | None = None

    def reset(self, checkpoint_id: FolderPath | None = None) -> None:
        """Another load begins; ``checkpoint_id`` is another folder."""
        self._failed = None
        if checkpoint_id is not None:
            self._path = Path(checkpoint_id)

    def read_metadata(self, *_args: Any, **_more: Any) -> dcp.Metadata:
        """The manifest's, once it was held against the head file.

        Torch takes whatever is raised here for a checkpoint of another form and goes on
        to look for that: so ``set_up_storage_reader``, which comes next, raises it.
        """
        try:
            return self._read_manifest()
        except SealiftError as error:
            self._failed = error
            return dcp.Metadata({})

    def _read_manifest(self) -> dcp.Metadata:
        """Open the manifest, and hold it against the head file.

        Raises:
            StaleError: code ``saved-rolled-back``.
            AuthenticationError: if it was changed, or sealed with another key.
            UnavailableError, MalformedError: if a file is missing, or is something else.
        """
        head = _read_head(self._head)
        place = self._path / head.manifest
        if self._path.is_dir() and not place.exists():
            raise StaleError(
                f"{self._path} holds another checkpoint than the one that was saved last",
                why=f"{self._head} names checkpoint {head.number}, whose manifest "
                f"{head.manifest} is not in the folder",
                code="saved-rolled-back",
            )
        with SealedFileReader(place, self._key) as reader:
            verify_description(self._key, reader.header, _MANIFEST_IS)
            if Digest.of(reader.header.encode()) != head.header:
                raise IntegrityError(
                    f"{place} is the manifest of another checkpoint", code="saved-mixed"
                )
            reader.verify()
            found = unpack_object(reader.read(0, reader.total_bytes))
        metadata = found.get("metadata") if isinstance(found, dict) else None
        if not isinstance(metadata, dcp.Metadata) or found.get("format") != _FORMAT:
            raise MalformedError(
                f"{place} is not the manifest of a checkpoint",
                code="bad-saved",
            )
        return metadata

    def set_up_storage_reader(self, metadata: dcp.Metadata, *_: Any, **__: Any) -> None:
        """Take over where everything lies.

        Raises:
            SealiftError: why the manifest could not be used; see ``_read_manifest``.
        """
        if self._failed is not None:
            raise self._failed
        self._places = metadata.storage_data

    def prepare_local_plan(self, plan: dcp.LoadPlan) -> dcp.LoadPlan:
        """Nothing to prepare."""
        return plan

    def prepare_global_plan(self, plans: list[dcp.LoadPlan]) -> list[dcp.LoadPlan]:
        """Nothing to prepare."""
        return plans

    def read_data(self, plan: dcp.LoadPlan, planner: dcp.LoadPlanner) -> Future[None]:
        """Open what this rank needs, and copy it to where the planner says.

        Raises:
            IntegrityError: code ``saved-mixed``, for a file of another checkpoint.
            AuthenticationError: if a file was changed.
        """
        by_file: dict[str, list[dcp.ReadItem]] = {}
        for item in plan.items:
            name = _require_shard(self._places[item.storage_index]["file"])
            by_file.setdefault(name, []).append(item)
        for name, items in by_file.items():
            with SealedFileReader(self._path / name, self._key) as reader:
                verify_description(self._key, reader.header, _shard_is(name))
                header = str(Digest.of(reader.header.encode()))
                # The file is the one that the manifest names, not one like it.
                named = {self._places[each.storage_index]["header"] for each in items}
                if named != {header}:
                    raise IntegrityError(
                        f"{self._path / name} is a file of another checkpoint",
                        code="saved-mixed",
                    )
                items.sort(key=lambda each: self._places[each.storage_index]["offset"])
                for item in items:
                    self._load(item, reader, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _load(
        self, item: dcp.ReadItem, reader: SealedFileReader, planner: dcp.LoadPlanner
    ) -> None:
        place = self._places[item.storage_index]
        raw = reader.read(place["offset"], place["length"])
        if item.type is LoadItemType.BYTE_IO:
            # A planner reads what torch.save wrote: of a plain value, here and now.
            again = io.BytesIO()
            torch.save(unpack_object(raw), again)
            again.seek(0)
            planner.load_bytes(item, again)
            return
        target = planner.resolve_tensor(item).detach()
        flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else _EMPTY
        stored = flat.view(place["dtype"]).reshape(place["shape"])
        for axis, (start, length) in enumerate(
            zip(item.storage_offsets, item.lengths, strict=True)
        ):
            stored = stored.narrow(axis, start, length)
        target.copy_(stored)
        planner.commit_tensor(item, target)


_EMPTY: Final = torch.empty(0, dtype=torch.uint8)


def _value_of(planner: dcp.SavePlanner, item: dcp.WriteItem) -> Any:
    """A value that is no tensor, before the planner writes it as torch.save does."""
    lookup: Callable[[Any], Any] | None = getattr(planner, "lookup_object", None)
    if lookup is None:
        raise UsageError(
            f"{type(planner).__name__} gives values as pickles, which Sealift does not store",
            fix="Use torch's DefaultSavePlanner, or one that is derived from it",
            code="object-refused",
        )
    return lookup(item.index)


def _tensor_bytes(item: dcp.WriteItem) -> int:
    data = require_value(item.tensor_data)
    return int(math.prod(data.chunk.sizes) * data.properties.dtype.itemsize)


def _bytes_of(planner: dcp.SavePlanner, item: dcp.WriteItem) -> Buffer:
    found = require_kind(planner.resolve_data(item), Tensor)
    dense = found.detach().cpu().contiguous().reshape(-1)
    return memoryview(dense.view(torch.uint8).numpy())


def _require_shard(name: object) -> str:
    """Another rank said it: it must not choose another file of this machine."""
    if not isinstance(name, str) or not re.fullmatch(_SHARD, name):
        raise MalformedError(f"{name!r} is no checkpoint file", code="bad-saved")
    return name


def _shard_is(name: str) -> bytes:
    return f"sealift checkpoint file 1 {name}".encode()


@dataclass(frozen=True, slots=True)
class _Head:
    """What a head file says: the checkpoint's number, its manifest, the digest of that's header."""

    number: int
    manifest: str
    header: Digest

    def __post_init__(self) -> None:
        if type(self.number) is not int or self.number < 1:
            raise ValueError("its number is not valid")
        if not re.fullmatch(_MANIFEST, self.manifest):
            raise ValueError("the name of its manifest is not valid")


def _read_head(path: Path) -> _Head:
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_HEAD_BYTES)
    except OSError as error:
        raise UnavailableError(
            f"the head file {path} cannot be read",
            why=f"{error.strerror or error}; without it nobody can tell the last checkpoint "
            "from an older one, so copy it from where the coordinator wrote it",
            code="cannot-read",
        ) from None
    try:
        found = json.loads(raw)
        return _Head(
            found["number"], found["manifest"], Digest.from_text(found["header"])
        )
    except (ValueError, KeyError, TypeError, SealiftError) as error:
        raise MalformedError(
            f"{path} is not the head file of a checkpoint", why=error, code="bad-saved"
        ) from None
