"""An agreement that exists is consistent; every contradiction names its field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sealift.attest.level import Level
from sealift.codec import decode, encode
from sealift.errors import MalformedError, PolicyError
from sealift.ids import Digest
from sealift.release.agreement import (
    Agreement,
    CodeBundle,
    Party,
    References,
    Resource,
    TravelRule,
    bundle_digest,
)
from tests.sim.owners import OUTPUT, code_bundle, make_consortium

CONSORTIUM = make_consortium()
AGREEMENT = CONSORTIUM.agreement
ADA, BERN, CLEO = AGREEMENT.parties
FIRST = AGREEMENT.resources[0]


def test_round_trip_keeps_the_digest() -> None:
    again = decode(Agreement, encode(AGREEMENT))
    assert again == AGREEMENT
    assert again.digest == AGREEMENT.digest == Digest.of(encode(AGREEMENT))


def test_references_carry_the_code() -> None:
    values = AGREEMENT.reference_values()
    assert values.code_bundle == AGREEMENT.code.digest
    assert values.development_attesters == (CONSORTIUM.attester.public_key,)


def test_owners_in_the_order_of_parties() -> None:
    assert AGREEMENT.data_owners == ("ada", "bern", "cleo")
    assert [entry.name for entry in AGREEMENT.resources_of("bern")] == [
        "bern-train",
        "bern-heldout",
    ]


@pytest.mark.parametrize("name", ["party", "resource"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(PolicyError):
        getattr(AGREEMENT, name)("zoe")


def with_resource(**changes: object) -> Agreement:
    changed = replace(FIRST, **changes)  # type: ignore[arg-type]
    return replace(AGREEMENT, resources=(changed, *AGREEMENT.resources[1:]))


def with_party(party: Party) -> Agreement:
    return replace(AGREEMENT, parties=(party, BERN, CLEO))


BROKEN: dict[str, tuple[Callable[[], object], str]] = {
    "number zero": (lambda: replace(AGREEMENT, number=0), "number"),
    "second without first": (lambda: replace(AGREEMENT, number=2), "predecessor"),
    "first with predecessor": (
        lambda: replace(AGREEMENT, predecessor=AGREEMENT.digest),
        "predecessor",
    ),
    "no parties": (lambda: replace(AGREEMENT, parties=()), "parties"),
    "one name twice": (
        lambda: replace(AGREEMENT, parties=(*AGREEMENT.parties, ADA)),
        "parties.name",
    ),
    "one key twice": (
        lambda: with_party(replace(ADA, sign=BERN.sign)),
        "parties.sign",
    ),
    "a role twice": (
        lambda: replace(ADA, roles=("data_owner", "data_owner")),
        "roles",
    ),
    "unknown model owner": (
        lambda: replace(AGREEMENT, model_owner="zoe"),
        "model_owner",
    ),
    "model owner without role": (
        lambda: replace(AGREEMENT, model_owner="ada"),
        "model_owner",
    ),
    "operator without role": (lambda: replace(AGREEMENT, operator="ada"), "operator"),
    "unknown owner": (lambda: with_resource(owner="zoe"), "resources[0].owner"),
    "owner without role": (
        lambda: with_party(replace(ADA, roles=("operator",))),
        "resources[0].owner",
    ),
    "owner without resource": (
        lambda: replace(AGREEMENT, resources=AGREEMENT.resources[2:]),
        "parties[0].roles",
    ),
    "resource twice": (
        lambda: replace(AGREEMENT, resources=(*AGREEMENT.resources, FIRST)),
        "resources.name",
    ),
    "nothing to train on": (
        lambda: replace(AGREEMENT, resources=AGREEMENT.resources[1::2]),
        "resources",
    ),
    "sizes that do not fit": (lambda: replace(FIRST, total_bytes=1), "total_bytes"),
    "no rows": (lambda: replace(FIRST, rows=0), "rows"),
    "more holders than owners": (
        lambda: replace(AGREEMENT, output=replace(OUTPUT, min_holders=4)),
        "output.min_holders",
    ),
    "rows out of reach": (
        lambda: replace(AGREEMENT, output=replace(OUTPUT, min_rows=10**9)),
        "output.min_rows",
    ),
    "a metric twice": (lambda: replace(OUTPUT, metrics=("loss", "loss")), "metrics"),
    "too many digits": (lambda: replace(OUTPUT, digits=7), "digits"),
    "fewer visits than the fewest": (
        lambda: replace(OUTPUT, min_visits=3, max_visits=2),
        "max_visits",
    ),
    "a lease for ever": (lambda: TravelRule(1, 1e9), "lease_s"),
    "no attester": (
        lambda: replace(AGREEMENT, references=References(())),
        "references.development_attesters",
    ),
    "an entry that is not there": (
        lambda: replace(code_bundle(), entry="main.py"),
        "entry",
    ),
    "another digest": (
        lambda: replace(code_bundle(), digest=AGREEMENT.digest),
        "digest",
    ),
}


@pytest.mark.parametrize(("build", "field"), BROKEN.values(), ids=BROKEN.keys())
def test_contradictions(build: Callable[[], object], field: str) -> None:
    with pytest.raises(MalformedError) as caught:
        build()
    assert caught.value.field == field
    assert caught.value.code == "bad-agreement"


@pytest.mark.parametrize("accept", [(), (Level.TEE, Level.TEE)])
def test_accept_names_each_level_once(accept: tuple[Level, ...]) -> None:
    with pytest.raises(MalformedError):
        replace(AGREEMENT, accept=accept)


def test_bundle_digest_depends_on_names_and_contents() -> None:
    files = {"a.py": Digest.of(b"1"), "b.py": Digest.of(b"2")}
    swapped = {"a.py": files["b.py"], "b.py": files["a.py"]}
    backwards = dict(reversed(files.items()))
    assert bundle_digest(files) != bundle_digest(swapped)
    assert bundle_digest(files) == bundle_digest(backwards)
    assert CodeBundle(bundle_digest(files), "a.py", files).entry == "a.py"


def test_number_of_records() -> None:
    assert FIRST.num_records == 3
    assert isinstance(FIRST, Resource)
