"""A guest's side of a meeting: what it demands of all that the host shows it.

Each step takes what the host said and raises, or returns what may be read, signed or kept.
The host is believed nothing: its key is the invitation's, the recipe's files are the
declared ones, this party's own card stands in the terms as it was sent, and the agreement
is what this machine computes from the terms itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

from sealift.codec import encode
from sealift.crypto.identity import Identity
from sealift.data.schema.document import schema_from_plain
from sealift.errors import PolicyError
from sealift.graph.document import read_graph
from sealift.ids import Digest, Role
from sealift.meet.invitation import (
    HOST,
    Invitation,
    Prover,
    meeting_digest,
    prove_invited,
    verify_invited,
)
from sealift.meet.messages import Arrive, Check, Signed, Welcome
from sealift.meet.terms import (
    Declaration,
    SignedCard,
    SignedConsent,
    Terms,
    agreement_of,
    unfit_terms,
)
from sealift.release.agreement import Agreement
from sealift.release.agreement.code import ASSETS, require_asset
from sealift.release.agreement.signed import VerifiedAgreement, sign, verify
from sealift.release.agreement.terms import GRAPH_ENTRY, GRAPH_WEIGHTS
from sealift.session.endpoint import Endpoint, PeerPolicy

MAX_DEPTH: Final = 16  # of a recipe's folders
MAX_PART: Final = 200  # characters of a name in it


def guest_endpoint(invitation: Invitation, identity: Identity) -> Endpoint:
    """This party in the meeting's session."""
    return Endpoint(
        role=Role.MEETING,
        name=invitation.name,
        agreement=meeting_digest(invitation.meeting),
        identity=identity,
    )


def expect_host(invitation: Invitation) -> PeerPolicy:
    """Whoever has the key that stands in the invitation."""
    return PeerPolicy(
        roles=frozenset({Role.MEETING}),
        identities={HOST: invitation.host},
        require_identity=True,
        names=frozenset({HOST}),
    )


class Guest:
    """One party's part.

    Args:
        invitation: Its own.
        identity: Its own, of the invitation's name.

    Raises:
        PolicyError: code ``other-party``, if the invitation is for another name.
    """

    def __init__(self, invitation: Invitation, identity: Identity) -> None:
        if identity.name != invitation.name:
            raise PolicyError(
                f"the invitation is for {invitation.name}",
                why=f"the identity key is {identity.name}'s",
                code="other-party",
            )
        self._invitation = invitation
        self._identity = identity

    def arrive(self, th2: bytes) -> Arrive:
        """The first message of a session."""
        card, secret = self._identity.card, self._invitation.secret
        return Arrive(card, prove_invited(secret, Prover.GUEST, th2, card))

    def welcome(self, told: Welcome, th2: bytes) -> None:
        """Whoever invited is who answers.

        Raises:
            AuthenticationError: it has not the invitation's secret.
            PolicyError: code ``meeting-terms``: its card is another key's.
        """
        verify_invited(told.proof, self._invitation.secret, Prover.HOST, th2, told.host)
        if told.host.sign != self._invitation.host:
            raise unfit_terms("the host's key is not the key in the invitation")

    def require_ours(self, declared: Declaration, files: Mapping[str, bytes]) -> None:
        """Before a card is made: demand this meeting, this host, and the files that are declared.

        Raises:
            PolicyError: code ``meeting-terms``.
            MalformedError: ``bad-asset``; as ``_require_graph``.
        """
        invitation = self._invitation
        if (declared.meeting, declared.host.sign) != (
            invitation.meeting,
            invitation.host,
        ):
            raise unfit_terms("the host's declaration belongs to another meeting")
        if invitation.name not in declared.guests:
            raise unfit_terms("the host's declaration does not list this party")
        found = {path: Digest.of(content) for path, content in files.items()}
        code = declared.code.files
        if found != {n: each for n, each in code.items() if not n.startswith(ASSETS)}:
            raise unfit_terms("the recipe's files do not match the declared digests")
        for name in code.keys() - files.keys():
            require_asset(name)
        if declared.code.kind == "graph":
            _require_graph(declared, files[GRAPH_ENTRY])
        folders = {str(each) for path in code for each in PurePosixPath(path).parents}
        if not all(map(_stays_below, code)) or folders & code.keys():
            raise unfit_terms(
                "a path in the recipe leads out of its folder, or is too long"
            )

    def read(self, terms: Terms, declared: Declaration, own: SignedCard) -> Terms:
        """Terms that may be put before a person.

        Args:
            terms: As the host shows them.
            declared: What this party's card is about.
            own: The card, as it was sent.

        Raises:
            AuthenticationError: somebody's card is not signed by its key.
            PolicyError: code ``meeting-terms``.
        """
        terms.verify()
        if terms.declaration != declared:
            raise unfit_terms(
                "they contain another declaration than the host sent before"
            )
        if own not in terms.cards:
            raise unfit_terms("they do not contain this party's card as it was sent")
        return terms

    def check(self, told: Check, terms: Terms, own: SignedConsent) -> Agreement:
        """The agreement, computed here, and so without a choice of the host's.

        Args:
            told: What everybody brought.
            terms: What this party said yes to.
            own: Its yes, as it was sent.

        Raises:
            AuthenticationError: somebody's yes is not signed by its key.
            PolicyError: code ``meeting-terms``.
            MalformedError: what was brought makes no agreement.
        """
        if told.terms != terms:
            raise unfit_terms("the host sent other terms than this party agreed to")
        if told.consents.get(self._identity.name) != own:
            raise unfit_terms(
                "the host did not return this party's consent as it was sent"
            )
        if set(told.consents) != set(terms.declaration.guests):
            raise unfit_terms("the consent of another party is missing")
        return agreement_of(terms, told.consents)

    def sign(self, agreement: Agreement) -> bytes:
        """This party's signature under it."""
        return sign(agreement, self._identity)

    def keep(self, told: Signed, agreement: Agreement) -> VerifiedAgreement:
        """The agreement that all have signed; the job may begin.

        Raises:
            PolicyError: it is another one, or a signature is missing.
            IntegrityError: a signature does not fit.
        """
        if encode(told.agreement.agreement) != encode(agreement):
            raise unfit_terms("the other parties signed another agreement")
        return verify(told.agreement)


def _require_graph(declared: Declaration, graph: bytes) -> None:
    """Refuse a graph that could not be computed with these rows and weights.

    Args:
        declared: By the host.
        graph: Its ``graph.json``, of the declared digest.

    Raises:
        MalformedError: ``bad-graph``.
        PolicyError: ``meeting-terms``.
    """
    document = read_graph(graph)
    if document.weights != declared.code.files[GRAPH_WEIGHTS]:
        raise unfit_terms("the graph names other weights than the host declares")
    schema = schema_from_plain(declared.schema, source="the host's schema")
    known = {each.name: (each.dtype, tuple(each.shape)) for each in schema.fields}
    for each in document.inputs:
        if known.get(each.name) != (each.dtype, each.shape):
            raise unfit_terms(
                f"the graph takes {each.name} as {each.dtype} {list(each.shape)}, which no "
                "column of the schema is"
            )


def _stays_below(path: str) -> bool:
    """Whether a host's path leads into the folder that it is written to."""
    parts = path.split("/")
    if len(parts) > MAX_DEPTH or max(map(len, parts)) > MAX_PART:
        return False
    return "\\" not in path and not {"", ".", ".."} & set(parts)
