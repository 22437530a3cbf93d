"""Parties, data keys, resources and an agreement, all in memory.

``make_consortium`` makes whole worlds in one process: every party's identity is at hand,
so that any of them can sign. Where parties are processes of their own, each makes its
resources with ``make_resource`` and hands out its card, and ``draft`` makes the agreement
that they sign. Whatever a world wants otherwise is a field by name::

    consortium = make_consortium(("ada", "bern"), accept=(Level.TEE,))
    agreement = draft({card: OWNER_ROLES, other: MAIN_ROLES}, [resource], references=...)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from sealift.attest.development import DevelopmentAttester
from sealift.attest.level import Level
from sealift.channel.record.commitment import key_commitment
from sealift.crypto.identity import Card, Identity, create_identity
from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import SigningKey
from sealift.ids import Digest, Role
from sealift.release.agreement import (
    Agreement,
    Between,
    CodeBundle,
    OutputRule,
    Party,
    PartyRole,
    References,
    Resource,
    RunTerms,
    TrainingRule,
    TravelRule,
)
from sealift.release.agreement.code import measure_bundle
from sealift.release.agreement.signed import (
    SignedAgreement,
    VerifiedAgreement,
    add_signature,
    verify,
)
from sealift.release.agreement.successors import SignedLink
from sealift.session.endpoint import Endpoint

Roles = tuple[PartyRole, ...]
OWNER_ROLES: Final[Roles] = ("data_owner",)
MAIN_ROLES: Final[Roles] = ("model_owner", "code_owner", "operator")
CODE: Final = {
    "recipe.py": b"def build():\n    return None\n",
    "net/layers.py": b"WIDTH = 8\n",
}
OUTPUT: Final = OutputRule(
    metrics=("loss", "accuracy"),
    digits=3,
    values_per_visit=8,
    metric_rows=1,
    audience="everyone",
    min_visits=1,
    max_visits=50,
    min_holders=2,
    min_rows=10,
    baseline_alone=True,
    recipe_text=False,
)
TRAINING: Final = TrainingRule(
    plans=("local", "travel"),
    runs=0,
    epochs=Between(0, 1000),
    batch_rows=Between(1, 4096),
    drop_last=(False, True),
    prepare=(False, True),
    evaluate_every=Between(0, 1000),
    digest_every=Between(0, 1000),
    seed=Between(0, 1 << 20),
    threads=Between(1, 64),
    device=("auto", "cpu", "cuda"),
    slices=Between(1, 16),
    rows=("owner", "share"),
    order=("round-robin", "by-size"),
    buffer_bytes=Between(0, 1 << 30),
    on_missing=("skip", "wait"),
    attempts=Between(1, 1000),
    redo=Between(0, 1024),
    checkpoint_every=Between(0, 1000),
)
RUN: Final = RunTerms(job="job", plan="travel")
ONE_HOLDER: Final = replace(
    OUTPUT, metrics=("loss",), min_holders=1, min_rows=1, baseline_alone=False
)


def code_bundle(files: Mapping[str, bytes] = CODE) -> CodeBundle:
    """Code that its parties agree on, by digest."""
    return measure_bundle(dict(files), "recipe.py")


def make_resource(
    owner: str,
    part: Literal["train", "heldout", "model"] = "train",
    key: SecretKey | None = None,
    **changes: Any,
) -> Resource:
    """An owner's resource; forty rows of sixteen bytes that nobody sealed.

    Args:
        key: Its data key, which the resource names by commitment.
        changes: Fields that are wanted otherwise; ``total_bytes`` follows from the rows.
    """
    name = f"{owner}-{part}"
    rows, row_bytes = changes.get("rows", 40), changes.get("row_bytes", 16)
    fields: dict[str, Any] = {
        "rows": rows,
        "row_bytes": row_bytes,
        "cell_rows": 1,
        "total_bytes": row_bytes * rows,
        "record_bytes": 256,
        "schema": {"fields": [{"name": "x", "dtype": "float64", "shape": [2]}]},
        "content": Digest.of(f"content of {name}".encode()),
        "key": key_commitment(key or SecretKey.generate(), name),
    }
    return Resource(name=name, owner=owner, part=part, **(fields | changes))


def draft(
    parties: Mapping[Card, Roles], resources: Sequence[Resource], **changes: Any
) -> Agreement:
    """The agreement of these parties; who has the main roles runs everything.

    Args:
        parties: Cards, and what each party is.
        resources: What they bring.
        changes: ``references``, and fields that are wanted otherwise.
    """
    main = next(card for card, roles in parties.items() if "operator" in roles)
    fields: dict[str, Any] = {
        "about": "train",
        "name": "joint-digits",
        "number": 1,
        "predecessor": None,
        "code": code_bundle(),
        "accept": (Level.DEVELOPMENT,),
        "model_owner": main.name,
        "operator": main.name,
        "output": OUTPUT,
        "travel": TravelRule(1, 60.0),
        "training": TRAINING,
    }
    return Agreement(
        parties=tuple(
            Party(card.name, roles, card.sign, card.hpke)
            for card, roles in parties.items()
        ),
        resources=tuple(resources),
        **(fields | changes),
    )


@dataclass
class Consortium:
    """Parties whose keys are all at hand, and their agreement.

    Attributes:
        identities: Every party's, by name.
        keys: Data keys, by resource.
        attester: Signs development evidence for whom the agreement accepts.
        before: The agreements before this one.
    """

    identities: dict[str, Identity]
    keys: dict[str, SecretKey]
    attester: SigningKey
    agreement: Agreement
    before: tuple[SignedLink, ...] = field(default=())

    def signed(self, *names: str) -> SignedAgreement:
        """The agreement, signed by these parties, or by all."""
        signed = SignedAgreement(self.agreement, before=self.before)
        for name in names or self.identities:
            signed = add_signature(signed, self.identities[name])
        return signed

    def verified(self) -> VerifiedAgreement:
        """The agreement that all signed."""
        return verify(self.signed())

    def successor(self, **changes: Any) -> Consortium:
        """The same parties under the next agreement of the line."""
        after = replace(
            self.agreement,
            number=self.agreement.number + 1,
            predecessor=self.agreement.digest,
            **changes,
        )
        return replace(self, agreement=after, before=self.signed().line)

    def changed(self, **changes: Any) -> Consortium:
        """The same parties with another agreement in its place."""
        return replace(self, agreement=replace(self.agreement, **changes))

    def development(self, role: Role = Role.ACCELERATOR) -> DevelopmentAttester:
        """Shows the evidence that the agreement accepts."""
        return DevelopmentAttester(
            self.attester, role=role, code_bundle=self.agreement.code.digest
        )

    def accelerator(self, **changes: Any) -> Endpoint:
        """A fresh accelerator's process: a new instance key, development evidence."""
        endpoint = Endpoint(
            role=Role.ACCELERATOR,
            name="accelerator-0",
            agreement=self.agreement.digest,
            attester=self.development(),
        )
        return replace(endpoint, **changes)

    def endpoint(self, role: Role, name: str) -> Endpoint:
        """A party's process in a role."""
        return Endpoint(
            role=role,
            name=name,
            agreement=self.agreement.digest,
            identity=self.identities[name],
        )


def make_consortium(
    owners: Sequence[str] = ("ada", "bern", "cleo"),
    parts: Sequence[Literal["train", "heldout"]] = ("train", "heldout"),
    *,
    make: Callable[..., Resource] = make_resource,
    cell_rows: int = 1,
    **changes: Any,
) -> Consortium:
    """Owners who know each other; the last one also brings and runs all the rest.

    Args:
        owners: Their names.
        parts: The resources that each has.
        make: Makes a resource of owner, part and data key.
        cell_rows: Of every resource.
        changes: Fields of the agreement that are wanted otherwise.
    """
    identities = {name: create_identity(name) for name in owners}
    keys = {f"{name}-{part}": SecretKey.generate() for name in owners for part in parts}
    attester = SigningKey.generate()
    cards = {each.card: OWNER_ROLES for each in identities.values()}
    cards[identities[owners[-1]].card] = (*OWNER_ROLES, *MAIN_ROLES)
    resources = [
        make(owner, part, keys[f"{owner}-{part}"], cell_rows=cell_rows)
        for owner in owners
        for part in parts
    ]
    references = References((attester.public_key,))
    terms = {"references": references, **changes}
    return Consortium(identities, keys, attester, draft(cards, resources, **terms))
