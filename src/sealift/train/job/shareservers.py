"""The servers of a job's shares, as its accelerator reaches them once the traces are known."""

from __future__ import annotations

from contextlib import ExitStack

from sealift.attest.level import Level
from sealift.errors import SealiftError
from sealift.events import Sink, emit
from sealift.numeric.kernels import best_kernels
from sealift.outsource.connections import Connections, ServerPlace
from sealift.outsource.masked import MaskedProducts
from sealift.outsource.trace import Traces
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.session.endpoint import Endpoint
from sealift.train.job.settings import parse_address
from sealift.train.loop.products import Outsourcing
from sealift.train.plans import PlanName
from sealift.travel.peers import expect_share_server
from sealift.travel.settings import JobSettings


class ShareServers:
    """The connections of one accelerator; none before a job needs them.

    Args:
        endpoint: The accelerator's; its evidence is what servers judge.
        agreement: Names the parties of the three shares.
        sink: Gets ``shares.wrong`` for each wrong answer.
    """

    def __init__(
        self, endpoint: Endpoint, agreement: VerifiedAgreement, sink: Sink
    ) -> None:
        self._endpoint, self._agreement, self._sink = endpoint, agreement, sink
        self._open = ExitStack()

    def outsourced(self, settings: JobSettings, plan: PlanName) -> Outsourcing | None:
        """The products of a job; None if its plan makes them here."""
        if plan != "outsource":
            return None
        kernels = best_kernels()
        return Outsourcing(
            lambda traces: MaskedProducts(self._dial(settings, traces), kernels),
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
        assert agreement.servers is not None, "the plan demands them"
        places = [
            ServerPlace(
                share=share,
                party=party,
                address=parse_address(servers.addresses[share]),
                policy=expect_share_server(self._agreement, party),
            )
            for share, party in agreement.servers.parties.items()
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
        emit(self._sink, "shares.wrong", code=error.code, line=str(error))
