"""The servers of a job's shares, as its accelerator reaches them once the traces are known.

What a server answered wrongly is noted in a file beside the job's checkpoints: where it was,
and the server's signature of that step. The signature shows that the server took part in the
step. It does not show that an answer was wrong: that is this process's word. What would show
it are the server's shares, and with those any other server could read the operands (ADR 0039).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from sealift.attest.level import Level
from sealift.codec import decode, encode
from sealift.crypto.sign import SignedDocument
from sealift.data.schedule.visits import BufferChoice
from sealift.errors import SealiftError, UsageError, require_value
from sealift.events import Sink, emit
from sealift.ids import Digest
from sealift.numeric.kernels import best_kernels
from sealift.outsource.connections import Connections, ServerPlace
from sealift.outsource.masked import MaskedProducts, Share, WrongAnswer
from sealift.outsource.messages import StepAnswers
from sealift.outsource.trace import Traces
from sealift.release.agreement import Resource
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.files import read_whole, write_whole
from sealift.session.endpoint import Endpoint
from sealift.train.job.settings import parse_address
from sealift.train.loop.products import Outsourcing
from sealift.train.plans import PlanName
from sealift.travel.peers import expect_share_server
from sealift.travel.settings import JobSettings

MAX_RECORD_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class WrongRecord:
    """A note of a wrong answer, by the process that found it.

    Attributes:
        wrong: Where.
        signed: By each server that is named in it, of the step: that it took part.
    """

    wrong: WrongAnswer
    signed: tuple[SignedDocument[StepAnswers], ...]

    @classmethod
    def of(
        cls, wrong: WrongAnswer, signed: Mapping[Share, SignedDocument[StepAnswers]]
    ) -> Self:
        """Of what all of them signed at the end of that step."""
        return cls(wrong, tuple(signed[each] for each in wrong.shares))

    def keep(self, folder: Path) -> Path:
        """As a file that no other record has the name of."""
        content = encode(self)
        name = f"wrong-{self.wrong.step}-{Digest.of(content).raw.hex()[:8]}.json"
        write_whole(folder / name, content)
        return folder / name

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what ``keep`` wrote.

        Raises:
            MalformedError, UnavailableError: if that is no such record.
        """
        return decode(cls, read_whole(path, MAX_RECORD_BYTES))


def demand_lasting(
    choice: BufferChoice, settings: JobSettings, resources: Sequence[Resource]
) -> None:
    """Demand that a job which is started again makes the steps that it announced before.

    Raises:
        UsageError: code ``buffer-unsaid``, if its visits would be as long as memory is free.
    """
    longest = max(each.total_bytes for each in resources)
    if not settings.travel.asked_bytes and choice.buffer_bytes < longest:
        raise UsageError(
            "the plan outsource needs a fixed size of the buffers, and the job names "
            "none",
            why=(
                "after a restart the batches must have the same sizes, and the free "
                "memory may differ"
            ),
            code="buffer-unsaid",
        )


class ShareServers:
    """The connections of one accelerator; none before a job needs them.

    Args:
        endpoint: The accelerator's; its evidence is what servers judge.
        agreement: Names the parties of the three shares.
        sink: Gets ``shares.wrong`` for each wrong answer.
        folder: Where records of wrong answers are kept; None keeps none.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        agreement: VerifiedAgreement,
        sink: Sink,
        folder: Path | None,
    ) -> None:
        self._endpoint, self._agreement, self._sink = endpoint, agreement, sink
        self._folder = folder
        self._open = ExitStack()

    def outsourced(self, settings: JobSettings, plan: PlanName) -> Outsourcing | None:
        """The products of a job; None if its plan makes them here."""
        if plan != "outsource":
            return None
        kernels = best_kernels()

        def reach(traces: Traces) -> MaskedProducts:
            self._servers = self._dial(settings, traces)
            self._products = MaskedProducts(self._servers, kernels)
            return self._products

        return Outsourcing(
            reach,
            kernels,
            settings.training.seed,
            redo=settings.servers.redo,
            told=self._tell,
        )

    def close(self) -> None:
        """End them. Idempotent."""
        self._open.close()

    def _dial(self, settings: JobSettings, traces: Traces) -> Connections:
        agreement, servers = self._agreement.agreement, settings.servers
        places = [
            ServerPlace(
                share=share,
                party=party,
                address=parse_address(servers.addresses[share]),
                policy=expect_share_server(self._agreement, party),
            )
            for share, party in require_value(agreement.servers).parties.items()
        ]
        found = Connections.dial(
            self._endpoint,
            places,
            answer_s=servers.answer_s,
            one_host=agreement.accept == (Level.DEVELOPMENT,),
        )
        self._open.enter_context(found)
        found.announce(traces)
        return found

    def _tell(self, error: SealiftError) -> None:
        wrong = self._products.wrong
        servers = " ".join(map(self._servers.name, wrong[-1].shares))
        kept = ""
        if self._folder is not None:
            record = WrongRecord.of(wrong[-1], self._servers.signed)
            kept = str(record.keep(self._folder))
        emit(
            self._sink,
            "shares.wrong",
            code=error.code,
            step=wrong[-1].step,
            servers=servers,
            line=str(error),
            kept=kept,
        )
