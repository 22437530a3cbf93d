"""An attested host, as a verifier's side sees one: evidence, enrolment, bad acts."""

from __future__ import annotations

from sealift import codec
from sealift.attest.agent import (
    AgentRequest,
    Answer,
    Collect,
    Enrol,
    Keep,
    Measure,
)
from sealift.attest.evidence import Evidence
from sealift.attest.runtimelog import RuntimeEvent
from sealift.attest.tpm.enrolment import EnrolmentRequest, SignedEnrolment
from sealift.attest.tpm.evidence import KIND, MEDIA_TYPE
from sealift.crypto.certificate import Certificate
from sealift.crypto.tpmcredential import Credential
from sealift.lab.guest.image import GuestImage
from sealift.lab.guest.machine import Machine
from sealift.lab.guest.protocol import Act, Misbehave, Start
from sealift.lab.worlds.softwaretpm import Maker


class Guest:
    """A running guest; an attester to the outside. Use as a context manager.

    Args:
        image: What it boots.
        maker: Who certifies its TPM; a maker of its own if None.

    Raises:
        UnavailableError: ``guest-start``, ``guest-tpm``, or what the guest lacks.
    """

    media_type = MEDIA_TYPE

    def __init__(self, image: GuestImage, maker: Maker | None = None) -> None:
        self.image = image
        self._machine = Machine(image, maker)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Guest:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def root(self) -> Certificate:
        """Of whoever certified its TPM."""
        return self._machine.maker.root

    def collect(self, bound: bytes) -> Evidence:
        """See ``TpmAttester.collect``."""
        return self._collect(bound, None)

    def continue_from(self, earlier: Evidence, bound: bytes) -> Evidence:
        """See ``TpmAttester.continue_from``."""
        return self._collect(bound, earlier)

    def enrolment_request(self) -> EnrolmentRequest:
        """What a broker needs to enrol it."""
        return codec.decode(EnrolmentRequest, self._machine.ask(Enrol()))

    def answer(self, credential: Credential) -> bytes:
        """The secret of a credential for it."""
        return self._machine.ask(Answer(credential.blob, credential.seed))

    def keep_enrolment(self, signed: SignedEnrolment) -> None:
        """Have it show an enrolment from now on."""
        self._machine.ask(Keep(codec.encode(signed)))

    def measure(self, event: RuntimeEvent) -> None:
        """Have it extend its runtime log."""
        self._machine.ask(Measure(event.kind, event.content))

    def ask(self, request: AgentRequest) -> bytes:
        """Pass a request of its agent's on; raises like ``Machine.ask``."""
        return self._machine.ask(request)

    def misbehave(self, act: Act) -> str:
        """Have it do what a host must not; returns the path that its list shows."""
        return self._machine.ask(Misbehave(act)).decode()

    def power_cycle(self, *, orderly: bool = True) -> None:
        """Switch it off and on: same TPM, new boot.

        Args:
            orderly: Whether its kernel may tell the TPM first; without that the TPM
                may not vouch for its clock afterwards.
        """
        if orderly:
            self._machine.shut_down()
        self._machine.boot()
        self._begin()

    def close(self) -> None:
        """Switch it off for good."""
        self._machine.close()

    def _collect(self, bound: bytes, earlier: Evidence | None) -> Evidence:
        known = earlier.digest if earlier else None
        return Evidence(KIND, MEDIA_TYPE, self._machine.ask(Collect(bound, known)))

    def _begin(self) -> None:
        issuers = tuple(each.der for each in self._machine.maker.issuers)
        self._machine.ask(Start(issuers))
