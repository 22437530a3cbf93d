"""A data owner, a device's host, their agreement, and both ends of a link as threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from sealift import feed as link
from sealift.attest.level import Level
from sealift.crypto.identity import Identity, create_identity
from sealift.errors import SealiftError
from sealift.feed.receiving import Receiver
from sealift.feed.sending import Sender
from sealift.release.agreement import (
    Agreement,
    References,
    ReleaseRule,
    Resource,
)
from sealift.release.agreement.code import measure_bundle, read_bundle
from sealift.release.agreement.signed import (
    SignedAgreement,
    VerifiedAgreement,
    add_signature,
    verify,
)
from tests.worlds.consortium import MAIN_ROLES, OWNER_ROLES, draft, make_resource

FORM = {"x": ("float32", (4, 3)), "y": ("int64", (4,))}


@dataclass
class LinkedParties:
    """Everything that both ends start from, in one folder."""

    folder: Path
    accept: tuple[Level, ...] = (Level.DEVELOPMENT,)
    rule: ReleaseRule = field(default_factory=ReleaseRule)
    north: Identity = field(default_factory=lambda: create_identity("north"))
    east: Identity = field(default_factory=lambda: create_identity("east"))
    cloud: Identity = field(default_factory=lambda: create_identity("cloud"))

    def __post_init__(self) -> None:
        self.code = self.folder / "device"
        self.code.mkdir(exist_ok=True)
        (self.code / "train.py").write_text("print('training')\n")
        self.path = self.folder / "feed.sock"
        signed = SignedAgreement(self.document())
        for each in (self.north, self.east, self.cloud):
            signed = add_signature(signed, each)
        self.agreement = verify(signed)

    def document(self) -> Agreement:
        return draft(
            {
                self.north.card: OWNER_ROLES,
                self.east.card: OWNER_ROLES,
                self.cloud.card: MAIN_ROLES,
            },
            [self._table("north"), self._table("east")],
            name="fed",
            code=measure_bundle(read_bundle(self.code), "train.py"),
            accept=self.accept,
            references=References((self.cloud.public_key,)),
        )

    def another(self) -> VerifiedAgreement:
        """An agreement of the same parties, with another name."""
        signed = SignedAgreement(replace(self.document(), name="other"))
        for each in (self.north, self.east, self.cloud):
            signed = add_signature(signed, each)
        return verify(signed)

    def _table(self, owner: str) -> Resource:
        schema = {"fields": [{"name": "x", "dtype": "int64"}]}
        eight = dict.fromkeys(("rows", "row_bytes", "cell_rows"), 8)
        return make_resource(
            owner, record_bytes=64, schema=schema, rule=self.rule, **eight
        )

    def offer(self, form: Any = FORM, **changes: Any) -> Sender:
        terms = {"agreement": self.agreement, "identity": self.north} | changes
        path = terms.pop("path", self.path)
        development = terms.pop("development", True)
        terms = {"wait_s": 10.0, "timeout_s": 10.0} | terms
        return link.offer(path, form, development=development, **terms)

    def accept_link(self, form: Any = FORM, **changes: Any) -> Receiver:
        terms = {
            "agreement": self.agreement, "identity": self.cloud, "code": self.code,
            "device": "cpu", "wait_s": 10.0, "timeout_s": 10.0,
        } | changes  # fmt: skip
        return link.accept(terms.pop("path", self.path), form, **terms)


class Other:
    """What the other end does, on a thread."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self.result: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:
            self.error = error

    def join(self) -> Any:
        """Its result, or its error, which is raised here."""
        self._thread.join(300)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.result


@contextmanager
def linked(parties: LinkedParties, **changes: Any) -> Iterator[tuple[Sender, Receiver]]:
    """Both ends, connected."""
    sending = {k: v for k, v in changes.items() if k in ("mode", "development")}
    receiving = {k: v for k, v in changes.items() if k == "device"}
    form = changes.get("form", FORM)
    other = Other(lambda: parties.accept_link(form, **receiving))
    sender = parties.offer(form, **sending)
    receiver = other.join()
    try:
        yield sender, receiver
    finally:
        sender.close()
        receiver.close()


def both(
    parties: LinkedParties, owner: dict[str, Any], device: dict[str, Any]
) -> tuple[SealiftError, SealiftError]:
    """What each end says of a link that must not come about."""
    other = Other(lambda: parties.accept_link(**device))
    with pytest.raises(SealiftError) as here:
        parties.offer(**owner)
    with pytest.raises(SealiftError) as there:
        other.join()
    for line in (here.value, there.value):
        assert "\n" not in str(line)
    return here.value, there.value
