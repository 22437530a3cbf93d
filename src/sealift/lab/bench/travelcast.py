"""The travel measurement's processes, and what is asked of them."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from secrets import token_bytes
from typing import Any, Final, Self

from sealift.codec import encode
from sealift.crypto.identity import create_identity
from sealift.crypto.keys import KEY_BYTES
from sealift.crypto.sign import PublicKey
from sealift.ids import Handle, VisitId
from sealift.lab.bench.harness import Answer, Peer, pack
from sealift.lab.bench.parties import agree, agreed
from sealift.lab.bench.travelends import JOB
from sealift.lab.bench.travellink import Link
from sealift.release.agreement import References, TravelRule
from sealift.session.relay.server import Relay
from sealift.travel.lease import Lease, sign_lease

LEASE_S: Final = 3600.0
RECORD_BYTES: Final = 2 << 20
ROW_BYTES: Final = 4096


class Cast:
    """Holder and accelerator as processes, and this one as orchestrator.

    Its relay is the one port, it signs the leases. Each arm is one transfer of the first
    bytes of the same cargo.

    Args:
        folder: Is made; gets the data set, in plaintext and sealed.
        total_bytes: Of the data set.
        link: The holder lives at its far end.
    """

    def __init__(self, folder: Path, total_bytes: int, link: Link) -> None:
        folder.mkdir()
        with ExitStack() as stack:
            self._join(stack, folder, total_bytes, link)
            self._stack = stack.pop_all()

    def _join(
        self, stack: ExitStack, folder: Path, total_bytes: int, link: Link
    ) -> None:
        self._operator = create_identity("operator")
        holder = Peer.start("travelends:HolderEnd", inside=link.inside())
        self.holder = stack.enter_context(holder)
        self.accelerator = stack.enter_context(Peer.start("travelends:AcceleratorEnd"))
        made = self.holder.ask(
            "make",
            folder=str(folder),
            total_bytes=total_bytes,
            row_bytes=ROW_BYTES,
            record_bytes=RECORD_BYTES,
        )
        attester = PublicKey.from_text(self.accelerator.ask("attester")["key"])
        terms = {
            "references": References((attester,)),
            "travel": TravelRule(1, LEASE_S),
        }
        signed = agree(self.holder, self._operator, made, **terms)
        self._agreement = agreed(signed).agreement
        relay = stack.enter_context(Relay.listen(link.here)).address
        self.holder.ask("join", address=link.through(relay), signed=signed)
        listening = self.accelerator.ask("listen", host=link.here)
        self._certificate = listening["certificate"]
        self._places = {
            name: link.through((str(host), int(port)))
            for name, (host, port) in listening["places"].items()
        }
        self._direct = "{}:{}".format(*self._places["direct"])
        joined = self.accelerator.ask(
            "join", address=relay, direct=self._direct, signed=signed, key=made["key"]
        )
        self._instance = PublicKey.from_text(joined["instance"])

    def travel(self, cargo_bytes: int, kind: str) -> Answer:
        """Ours: the accelerator visits the holder. Seconds by phase, and ``seconds``."""
        rows = cargo_bytes // ROW_BYTES
        offered = self.accelerator.ask("offer", rows=rows)
        started = time.perf_counter()
        signed = pack(encode(sign_lease(self._lease(offered, rows), self._operator)))
        lease_s = time.perf_counter() - started
        self.accelerator.tell("visit", lease=signed)
        places = [self._direct]
        self.holder.tell("visit", lease=signed, kinds=[kind], places=places)
        there, here = self.holder.hear(), self.accelerator.hear()
        there |= {"lease_s": lease_s, "return_s": here.pop("receipt_s")}
        spent_s = sum(here[f"{name}_s"] for name in ("handshake", "load"))
        return {**here, **there, "seconds": lease_s + spent_s + there["return_s"]}

    def plain(self, cargo_bytes: int) -> float:
        """A copy of the same records over the same transport; seconds."""
        opened = self.accelerator.ask("open_plain", total_bytes=cargo_bytes)
        return self._both("plain", {}, "plain", {**opened, "total_bytes": cargo_bytes})

    def ship(self, cargo_bytes: int) -> float:
        """The data set over TLS; seconds."""
        size = {"total_bytes": cargo_bytes}
        place = {"address": self._places["shipping"], "certificate": self._certificate}
        return self._both("take_shipped", size, "ship", size | place)

    def ship_model(self, model_bytes: int) -> float:
        """The model to the holder and back, sealed; seconds."""
        terms = {"key": pack(token_bytes(KEY_BYTES)), "total_bytes": model_bytes}
        place = {"address": self._places["models"]}
        return self._both("lend_model", terms, "train_here", terms | place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _both(
        self, here: str, terms: dict[str, Any], there: str, others: dict[str, Any]
    ) -> float:
        """An order for each, at the same time; the holder's seconds."""
        self.accelerator.tell(here, **terms)
        told = self.holder.ask(there, **others)
        self.accelerator.hear()
        return float(told["seconds"])

    def _lease(self, offered: Answer, rows: int) -> Lease:
        (resource,) = self._agreement.resources
        return Lease(
            job=JOB,
            visit=VisitId.from_text(offered["visit"]),
            agreement=self._agreement.digest,
            accelerator=self._instance,
            holder=resource.owner,
            resource=resource.name,
            purpose="train",
            handle=Handle.from_text(offered["handle"]),
            offset=0,
            max_bytes=rows * ROW_BYTES,
            dtype="uint8",
            shape=(rows, ROW_BYTES),
            first_row=0,
            mode="write-only",
            lease_s=LEASE_S,
            content=resource.content,
        )
