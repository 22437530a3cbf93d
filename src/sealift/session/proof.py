"""Making our proof over th1, and verifying the peer's against a policy.

Verification goes from cheap to dear and stops at the first refusal. Everything the
policy looks at is inside th1, so it is covered by what is verified here.
"""

from __future__ import annotations

from sealift.attest.evidence import Attester, ContinuingAttester, Evidence
from sealift.attest.policy import AttestationResult
from sealift.crypto.keys import Label
from sealift.crypto.sign import PublicKey
from sealift.errors import EvidenceError, PolicyError
from sealift.ids import Digest
from sealift.session.endpoint import Endpoint, PeerPolicy, VerifiedPeer
from sealift.session.transcript import Params, Proof, Side, bound_value, signed_value


def make_proof(
    endpoint: Endpoint, side: Side, th1: bytes, shown: Evidence | None = None
) -> Proof:
    """Sign th1 and collect evidence bound to it.

    Args:
        endpoint: Ours.
        side: Ours.
        th1: Of this handshake.
        shown: What we showed in the session that this one renews.

    Raises:
        UnavailableError: if evidence cannot be collected.
    """
    message = signed_value(side, endpoint.role, th1)
    identity = endpoint.identity
    bound = bound_value(side, endpoint.role, th1)
    return Proof(
        evidence=_collect(endpoint.attester, bound, shown),
        identity=identity.sign(Label.IDENTITY_PROOF, message) if identity else None,
        instance=endpoint.instance.sign(Label.INSTANCE_PROOF, message),
    )


def _collect(
    attester: Attester | None, bound: bytes, shown: Evidence | None
) -> Evidence | None:
    if attester is None:
        return None
    if shown is not None and isinstance(attester, ContinuingAttester):
        return attester.continue_from(shown, bound)
    return attester.collect(bound)


def verify_peer(
    policy: PeerPolicy,
    params: Params,
    proof: Proof,
    *,
    side: Side,
    th1: bytes,
    earlier: AttestationResult | None = None,
) -> VerifiedPeer:
    """Verify the peer's proof; ``side`` is the peer's.

    Args:
        policy: What it must show.
        params: What it brought.
        proof: What it shows.
        side: The peer's.
        th1: Of this handshake.
        earlier: What its evidence amounted to in the session that this one renews.

    Raises:
        AuthenticationError: a signature does not verify.
        EvidenceError: evidence is missing, not genuine, or bound to something else.
        PolicyError: genuine, but not what the policy allows.
    """
    message = signed_value(side, params.role, th1)
    params.instance.verify(Label.INSTANCE_PROOF, message, proof.instance)
    _verify_identity(policy, params, proof, message)
    bound = bound_value(side, params.role, th1)
    return VerifiedPeer(
        role=params.role,
        name=params.name,
        identity=params.identity,
        instance=params.instance,
        hpke=params.hpke,
        agreement=params.agreement,
        result=_verify_evidence(policy, params, proof, bound, earlier),
    )


def screen_params(policy: PeerPolicy, params: Params, agreement: Digest) -> None:
    """Refuse what no proof could make acceptable, before work is spent on it.

    Raises:
        PolicyError: role, name, instance or agreement is not the expected one.
    """
    if params.agreement != agreement:
        raise PolicyError(
            "the peer works under another agreement",
            why=f"it names {params.agreement.short}, we have {agreement.short}",
            code="agreement-differs",
        )
    if params.role not in policy.roles:
        raise PolicyError(
            f"the peer is a {params.role}",
            why=f"only {', '.join(sorted(policy.roles))} may connect here",
            code="role-refused",
        )
    if policy.names is not None and params.name not in policy.names:
        raise PolicyError(
            f"the peer calls itself {params.name}",
            why=f"expected {', '.join(sorted(policy.names))}",
            code="name-refused",
        )
    if policy.instance is not None and params.instance != policy.instance:
        raise PolicyError(
            f"{params.name} is not the instance that was expected",
            why="a process makes a fresh instance key at every start",
            code="instance-differs",
        )


def _verify_identity(
    policy: PeerPolicy, params: Params, proof: Proof, message: bytes
) -> None:
    if (params.identity is None) != (proof.identity is None):
        raise PolicyError(
            "an identity key and its signature must come together",
            code="identity-incomplete",
        )
    if params.identity is None or proof.identity is None:
        if policy.require_identity:
            raise PolicyError(
                f"{params.name} shows no identity key", code="identity-missing"
            )
        return
    params.identity.verify(Label.IDENTITY_PROOF, message, proof.identity)
    if policy.identities is None:
        return
    expected: PublicKey | None = policy.identities.get(params.name)
    if params.identity != expected:
        raise PolicyError(
            f"{params.name} does not have the identity key that the agreement names",
            code="identity-differs",
        )


def _verify_evidence(
    policy: PeerPolicy,
    params: Params,
    proof: Proof,
    bound: bytes,
    earlier: AttestationResult | None,
) -> AttestationResult | None:
    if proof.evidence is None:
        if policy.require_evidence:
            accepted = ", ".join(policy.appraiser.accept) if policy.appraiser else "it"
            raise EvidenceError(
                f"{params.name} shows no evidence",
                why=f"the agreement wants {accepted}",
                code="evidence-missing",
            )
        return None
    if policy.appraiser is None:
        raise PolicyError(
            f"{params.name} shows evidence that nobody asked for",
            why="no accepted level is set here, and no kind is accepted by default",
            code="evidence-refused",
        )
    result = policy.appraiser.appraise(proof.evidence, bound, earlier)
    _require_role(result, params)
    return result


def _require_role(result: AttestationResult, params: Params) -> None:
    if result.claims.role not in (None, params.role.value):
        raise EvidenceError(
            f"evidence of a {result.claims.role} shown by a {params.role}",
            code="evidence-role",
        )
