"""What a client demands of a serving accelerator, and what it saw of it.

The agreement is trusted because the client knows its owner's key, or its digest; all
else is compared with the agreement.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sealift.attest.collateral import MAX_BUNDLE_BYTES, Collateral, parse_bundle
from sealift.attest.level import Level
from sealift.attest.policy import AttestationResult
from sealift.attest.reference import (
    MAX_SET_BYTES,
    parse_set,
)
from sealift.crypto.identity import Identity, load_card
from sealift.crypto.sign import PublicKey
from sealift.errors import PolicyError, require_value
from sealift.ids import Digest
from sealift.release.agreement import Resource
from sealift.release.agreement.signed import VerifiedAgreement, load_verified
from sealift.release.equip import equip
from sealift.release.files import read_whole
from sealift.release.log.entries import verify_head
from sealift.serve.protocol import ServerWelcome
from sealift.train.output.modelform import choose_model


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPolicy:
    """What a client demands of a server.

    Attributes:
        agreement: Verified, and known to be the wanted one; equipped.
        model: Name of the model; empty for the only one.
        development: Whether evidence that protects nobody will do.
        levels: Levels that will do, of those of the agreement; empty for all.
        identity: The client's own, for a model that only some may ask.
    """

    agreement: VerifiedAgreement
    model: str = ""
    development: bool = False
    levels: tuple[Level, ...] = ()
    identity: Identity | None = None

    @property
    def resource(self) -> Resource:
        """The model's resource."""
        return choose_model(self.agreement, self.model)

    def require_possible(self) -> None:
        """Refuse an agreement under which no server could be one for this client.

        Raises:
            PolicyError: as ``require_level``.
        """
        accepted = self.agreement.accept
        wanted = [level for level in accepted if level in self.levels]
        self.require_level((wanted or accepted)[0])

    def require_level(self, level: Level | None) -> None:
        """Refuse a level that this client does not take.

        Raises:
            PolicyError: ``development-refused`` or ``level-refused``.
        """
        if level is Level.DEVELOPMENT and not self.development:
            raise PolicyError(
                "development evidence was refused",
                why=(
                    "it does not protect data: whoever runs the server can read "
                    "requests and answers"
                ),
                code="development-refused",
            )
        if level is None or (self.levels and level not in self.levels):
            wanted = ", ".join(self.levels)
            raise PolicyError(
                "the server proved another assurance level than required",
                why=f"it proved {level or 'none'}; required is {wanted or 'any'}",
                code="level-refused",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What a client saw of a server before it asked anything.

    Attributes:
        level: What its evidence proved, with what it rehearses.
        code: The code bundle that it runs.
        agreement: The agreement that it works under.
        model: Name of the model.
        content: Commitment to the model.
        sandbox: What keeps the recipe in, as the server says.
        log_size: Entries in the log of the model's owner; 0 if no head was shown.
    """

    level: str
    code: Digest
    agreement: Digest
    model: str
    content: Digest
    sandbox: str
    log_size: int


def load_policy(
    agreement: str | Path,
    *,
    owner: str | Path | PublicKey | None = None,
    digest: str = "",
    model: str = "",
    development: bool = False,
    levels: tuple[Level, ...] = (),
    identity: Identity | None = None,
    collateral: str | Path | None = None,
    references: Iterable[str | Path] = (),
) -> ClientPolicy:
    """A policy from the agreement's file, and from what tells that it is the right one.

    Args:
        agreement: The signed file.
        owner: The model owner's key, or its card: it must have signed.
        digest: The agreement's digest instead, ``sha256:...``.
        model, development, levels, identity: See ``ClientPolicy``.
        collateral: What vendors say of their hardware, a bundle; to judge a TEE with.
        references: Signed sets of reference values that the agreement names.

    Raises:
        PolicyError: ``agreement-unknown`` if neither owner nor digest is given;
            ``other-key`` or ``other-agreement``.
        SealiftError: if the agreement does not verify.
    """
    verified = equip(
        load_verified(Path(agreement)),
        clock=time.time,  # noqa: TID251
        collateral=_read_bundle(collateral),
        sets=[parse_set(read_whole(Path(each), MAX_SET_BYTES)) for each in references],
    )
    require_known(verified, choose_model(verified, model), owner, digest)
    return ClientPolicy(
        agreement=verified,
        model=model,
        development=development,
        levels=levels,
        identity=identity,
    )


def _read_bundle(path: str | Path | None) -> Collateral | None:
    if path is None:
        return None
    return parse_bundle(read_whole(Path(path), 2 * MAX_BUNDLE_BYTES))


def require_known(
    verified: VerifiedAgreement,
    resource: Resource,
    owner: str | Path | PublicKey | None,
    digest: str,
) -> None:
    """Demand that the agreement is the one that the client means.

    Raises:
        PolicyError: ``agreement-unknown``, ``other-key`` or ``other-agreement``.
    """
    if owner is None and not digest:
        raise PolicyError(
            "this client cannot know whether the agreement is the right one",
            why="anybody can write and sign an agreement",
            code="agreement-unknown",
        )
    if digest and Digest.from_text(digest) != verified.digest:
        raise PolicyError(
            "this is another agreement than the expected one", why=f"its digest is {verified.digest}",
            code="other-agreement",
        )  # fmt: skip
    if owner is not None:
        key = owner if isinstance(owner, PublicKey) else load_card(Path(owner)).sign
        if verified.require_owner_signed(resource.owner).sign != key:
            raise PolicyError(
                f"{resource.owner} has another key in this agreement than on its card",
                fix="Get the agreement from the model's owner",
                code="other-key",
            )


def require_model(welcome: ServerWelcome, policy: ClientPolicy) -> None:
    """Demand the agreed model, and the log of its owner.

    Raises:
        PolicyError: ``other-model`` or ``other-log``.
        RefusedError: if the log's head is not signed.
    """
    resource = policy.resource
    if (welcome.model, welcome.content) != (resource.name, resource.content):
        raise PolicyError(
            "the server serves another model",
            why=(
                f"it serves {welcome.model}, {welcome.content.short}; the agreement "
                f"names {resource.name}, {resource.content.short}"
            ),
            code="other-model",
        )
    if welcome.head is not None:
        verify_head(welcome.head)
        if welcome.head.body.log != policy.agreement.party(resource.owner).sign:
            raise PolicyError(
                "the server sent a log of another party",
                why=f"the log is not signed by {resource.owner}",
                code="other-log",
            )


def require_code(result: AttestationResult, policy: ClientPolicy) -> None:
    """Demand the agreed code.

    Raises:
        PolicyError: ``code-bundle-differs``.
    """
    if result.claims.code_bundle != policy.agreement.agreement.code.digest:
        raise PolicyError(
            "the server runs other code than the agreement names",
            code="code-bundle-differs",
        )


def what_was_seen(
    result: AttestationResult, policy: ClientPolicy, welcome: ServerWelcome
) -> ServerFacts:
    """What stands in evidence and greeting, both compared with the agreement."""
    return ServerFacts(
        level=result.standing,
        code=require_value(result.claims.code_bundle, "it was compared"),
        agreement=policy.agreement.digest,
        model=welcome.model,
        content=welcome.content,
        sandbox=welcome.sandbox,
        log_size=welcome.head.body.size if welcome.head else 0,
    )
