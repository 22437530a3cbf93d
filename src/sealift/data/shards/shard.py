"""One shard of a dataset: a sealed file, its card, and what is wrong with it.

Every error names the shard and, where there is one, the record and its rows, so that an
owner knows which file to put back.
Guarantees: bytes leave a reader only after their tag verified and, with a card, after
they were found to be what the card commits to (rule C5); a shard that is read again
later is the one that was read first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from sealift.channel.device.device import DeviceEngine, DeviceKeys
from sealift.channel.record.commitment import VerifiedLeaves, verify_leaves
from sealift.channel.record.opener import Slot, scrub
from sealift.channel.record.rawfile import ByteSource
from sealift.channel.record.sealedfile import SealedFileReader
from sealift.crypto.keys import SecretKey
from sealift.data.schema.card import ResourceCard
from sealift.data.urls import StorageOptions, name_of, open_place
from sealift.errors import (
    AuthenticationError,
    IntegrityError,
    MalformedError,
    RefusedError,
    SealiftError,
    UnavailableError,
)


class ShardRefusedError(AuthenticationError):
    """``AuthenticationError`` that says of which shard, and which of its records.

    Both are known to whoever stores the shard; of the content it says nothing.
    """

    def __init__(self, what: str, *, why: str, fix: str = "", code: str) -> None:
        RefusedError.__init__(self, what, why=why, fix=fix, code=code)


@dataclass(frozen=True, slots=True)
class Shard:
    """Where a shard lies and what belongs to it.

    Attributes:
        place: A path or URL.
        key: Its data key.
        card: Its resource card; without one tags alone are verified.
        options: For fsspec, if ``place`` is a URL.
        header: The header of the file that was opened first; another is refused.
    """

    place: str
    key: SecretKey
    card: ResourceCard | None = None
    options: StorageOptions = field(default_factory=dict)
    header: bytes = b""

    @property
    def name(self) -> str:
        """The file's name."""
        return name_of(self.place)


class ShardReader:
    """An open shard; for one thread at a time.

    Raises:
        UnavailableError: if it cannot be read; says how to move it.
        MalformedError: if it is not a whole sealed file, or not the card's.
        AuthenticationError: if it was sealed with another key.
        IntegrityError: if the card's leaves are not those of its commitment.
    """

    def __init__(self, shard: Shard, leaves: VerifiedLeaves | None = None) -> None:
        self.shard = shard
        self._slot: Slot | None = None
        self._device_keys: DeviceKeys | None = None
        self._reader = _open_reader(shard)
        try:
            self.header = self._reader.header
            self._check_header()
            self.leaves = leaves or _leaves_of(shard)
        except BaseException:
            self.close()
            raise

    def open_range(self, start: int, end: int, out: memoryview) -> None:
        """Open plaintext ``[start, end)`` into ``out``, private memory as long.

        Whole records are opened in place; ``out`` is quarantine until this returns.

        Raises:
            AuthenticationError: if a record was changed.
            IntegrityError: if a record is not what was committed to.
            UnavailableError: if the shard cannot be read any more.
            MalformedError: code ``file-changed``, if it was written to.
            (``out`` is zero then.)
        """
        record_bytes = self.header.record_bytes
        try:
            for index in range(start // record_bytes, -(-end // record_bytes)):
                low = index * record_bytes
                high = low + self.header.plaintext_bytes(index)
                if start <= low and high <= end:
                    self._open_in(index, Slot(out[low - start : high - start]))
                    continue
                first, last = max(start, low), min(end, high)
                opened = self._open_in(index, self._own_slot())
                out[first - start : last - start] = opened[first - low : last - low]
        except BaseException:
            scrub(out)
            raise

    def read_sealed(self, index: int, out: memoryview) -> int:
        """Read record ``index`` as it is stored, for a device; return its bytes.

        Raises:
            UnavailableError: if the shard cannot be read any more.
            MalformedError: code ``file-changed``, if it was cut.
        """
        try:
            return self._reader.sealed_record_into(index, out)
        except MalformedError as error:
            raise _changed(self.shard, error.why) from error
        except UnavailableError as error:
            raise moved(self.shard.name, error) from error

    def device_keys(self, engine: DeviceEngine) -> DeviceKeys:
        """The shard's keys on the device that opens it, until ``close``."""
        if self._device_keys is None:
            keys, suite = self._reader.keys, self.header.suite
            self._device_keys = DeviceKeys(keys, suite, engine)
        return self._device_keys

    def demand_content(self, index: int, opened: memoryview) -> None:
        """Demand that a record opened elsewhere is what the card commits to.

        Raises:
            IntegrityError: if it is not.
        """
        if self.leaves is None:
            return
        try:
            self.leaves.verify(index, opened)
        except IntegrityError as error:
            raise self._refused(index, error) from error

    def close(self) -> None:
        """Close the file, scrub this reader's memory, forget its keys."""
        if self._slot is not None:
            self._slot.scrub()
        if self._device_keys is not None:
            self._device_keys.close()
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _own_slot(self) -> Slot:
        if self._slot is None:
            self._slot = Slot(min(self.header.record_bytes, self.header.total_bytes))
        return self._slot

    def _open_in(self, index: int, slot: Slot) -> memoryview:
        try:
            opened = self._reader.open_record_in(index, slot)
            if self.leaves is not None:
                self.leaves.verify(index, opened)
        except (AuthenticationError, IntegrityError, MalformedError) as error:
            slot.scrub()
            self._demand_unchanged()
            raise self._refused(index, error) from error
        except UnavailableError as error:
            raise moved(self.shard.name, error) from error
        return opened

    def _demand_unchanged(self) -> None:
        """Say first what is likelier: the file was written to meanwhile."""
        try:
            self._reader.check_unchanged()
        except UnavailableError as error:
            raise moved(self.shard.name, error) from error
        except MalformedError as error:
            raise _changed(self.shard, error.why) from error

    def _refused(self, index: int, error: SealiftError) -> SealiftError:
        place = f"record {index} of {self.shard.name}"
        fix = (
            "Copy the shard again from its owner; then continue from the loader's state"
        )
        if isinstance(error, IntegrityError):
            why = "its content does not match its card"
            return IntegrityError(
                f"{place} was replaced", why=why, fix=fix, code="content-mismatch"
            )
        offset = self.header.record_bytes * index
        why = f"the bytes from offset {offset:,} on do not verify"
        return ShardRefusedError(
            f"{place} was changed", why=why, fix=fix, code="record-changed"
        )

    def _check_header(self) -> None:
        if self.shard.header and self.shard.header != self.header.encode():
            raise _changed(
                self.shard, "it is another sealed file than when it was opened"
            )
        if self.shard.card is not None:
            check_card_fits(
                self.header.total_bytes, self.header.record_bytes, self.shard
            )


class OpenShards:
    """Readers of a dataset's shards, those used last; for one thread at a time.

    Args:
        shards: Of the dataset.
        leaves: Per shard, its verified leaves, or None.
        most: How many files are open at once.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        leaves: Sequence[VerifiedLeaves | None],
        most: int,
    ) -> None:
        self._shards = shards
        self._leaves = leaves
        self._most = most
        self._readers: OrderedDict[int, ShardReader] = OrderedDict()

    def __getitem__(self, shard: int) -> ShardReader:
        if shard not in self._readers:
            if len(self._readers) >= self._most:
                self._readers.popitem(last=False)[1].close()
            reader = ShardReader(self._shards[shard], self._leaves[shard])
            self._readers[shard] = reader
        self._readers.move_to_end(shard)
        return self._readers[shard]

    def close(self) -> None:
        """Close every reader. Idempotent."""
        while self._readers:
            self._readers.popitem()[1].close()


def leaves_of(card: ResourceCard | None, key: SecretKey) -> VerifiedLeaves | None:
    """The card's leaves, once they hash to its commitment under ``key``.

    Raises:
        IntegrityError: if they do not.
    """
    if card is None:
        return None
    return verify_leaves(card.leaves, card.commitment, data_key=key)


def _leaves_of(shard: Shard) -> VerifiedLeaves | None:
    try:
        return leaves_of(shard.card, shard.key)
    except IntegrityError as error:
        raise IntegrityError(
            f"the card of {shard.name} does not match its content",
            why="the card's list of hashes does not match its commitment",
            fix="Use the card that `sealift data seal` wrote beside the file",
            code="content-mismatch",
        ) from error


def check_card_fits(total_bytes: int, record_bytes: int, shard: Shard) -> None:
    """Demand that file and card have the same sizes.

    Raises:
        MalformedError: if they do not belong together.
    """
    card = shard.card
    if card is None:
        return
    sizes = (total_bytes, record_bytes)
    if sizes != (card.resource.total_bytes, card.resource.record_bytes):
        raise MalformedError(
            f"{shard.name} is not the file that the card of {card.name} describes",
            code="bad-card",
        )


def moved(shard: str, error: SealiftError) -> UnavailableError:
    """The error for a shard that is not where it was, or cannot be read."""
    if error.code == "extra-missing":
        return UnavailableError(
            error.what, why=error.why, fix=error.fix, code="extra-missing"
        )
    return UnavailableError(
        f"cannot read shard {shard}",
        why=error.why or error.what,
        fix=f"Restore it, or name its new place: SealedDataset(..., relocate={{{shard!r}: 'PATH OR URL'}})",
        code="shard-unreadable",
    )


def _changed(shard: Shard, why: str) -> MalformedError:
    return MalformedError(
        f"{shard.name} was changed while it was in use", why=why, code="file-changed"
    )


def _open_reader(shard: Shard) -> SealedFileReader:
    try:
        source: ByteSource = open_place(shard.place, shard.options)
        return SealedFileReader(source, shard.key)
    except UnavailableError as error:
        raise moved(shard.name, error) from error
    except MalformedError as error:
        if shard.header:  # it was whole when it was opened first
            raise _changed(shard, error.why) from error
        raise
    except AuthenticationError as error:
        raise wrong_key(shard.name) from error


def wrong_key(shard: str) -> ShardRefusedError:
    """The error for a file that its key does not open."""
    return ShardRefusedError(
        f"the key does not open {shard}",
        why="the file was sealed with another key, or its header was changed",
        code="wrong-data-key",
    )
