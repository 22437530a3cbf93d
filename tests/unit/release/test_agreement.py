"""An agreement that exists is consistent; every contradiction names its field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sealift.attest.level import Level
from sealift.attest.reference import (
    SetName,
)
from sealift.codec import decode, encode
from sealift.crypto.sign import SigningKey
from sealift.errors import MalformedError, PolicyError
from sealift.ids import Digest
from sealift.release.agreement import (
    Agreement,
    Board,
    CodeBundle,
    Party,
    References,
    ReleaseRule,
    Resource,
    RollbackRule,
    ServersRule,
    TravelRule,
    bundle_digest,
)
from sealift.release.agreement.explain import explain
from sealift.release.agreement.successors import own_part
from tests.worlds.consortium import OUTPUT, code_bundle, make_consortium

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


def _served(**changes: str) -> Agreement:
    """The same, with three parties more whose servers compute with shares."""
    clouds = tuple(
        Party(name, ("share_server",), SigningKey.generate().public_key, ADA.hpke)
        for name in ("cloud-a", "cloud-b", "cloud-c")
    )
    shares = {"P": "cloud-a", "M": "cloud-b", "Z": "cloud-c", **changes}
    parties = (*AGREEMENT.parties, *clouds)
    return replace(AGREEMENT, parties=parties, servers=ServersRule(**shares))


def test_three_servers_of_three_parties() -> None:
    agreement = _served()
    assert decode(Agreement, encode(agreement)) == agreement
    assert own_part(agreement, "bern") != own_part(AGREEMENT, "bern"), "its rows' too"
    said = "\n".join(each.text for each in explain(agreement))
    assert "P (cloud-a), M (cloud-b), Z (cloud-c)" in said
    assert "any two together" in said


def test_servers_and_their_level_stand_together() -> None:
    served = replace(_served(), accept=(Level.UNTRUSTED_GPU,), references=References())
    assert decode(Agreement, encode(served)) == served
    for accept in ((Level.TEE,), (Level.TEE, Level.UNTRUSTED_GPU)):
        with pytest.raises(MalformedError) as caught:
            replace(served, accept=accept)
        assert caught.value.field == "accept"
    with pytest.raises(MalformedError) as alone:
        replace(AGREEMENT, accept=(Level.UNTRUSTED_GPU,), references=References())
    assert alone.value.field == "accept"


@pytest.mark.parametrize("share", ["P", "M", "Z"])
def test_servers_of_one_party_are_refused(share: str) -> None:
    other = {"P": "cloud-b", "M": "cloud-c", "Z": "cloud-a"}[share]
    with pytest.raises(PolicyError) as refused:
        _served(**{share: other})
    assert refused.value.code == "servers-not-apart"


@pytest.mark.parametrize("share", ["P", "M", "Z"])
@pytest.mark.parametrize("part", ["owner of rows", "model_owner", "operator"])
def test_whoever_has_another_part_has_no_server(part: str, share: str) -> None:
    """With the role as well; the model's owner and the operator have no other part."""
    made = _served()
    parties = list(made.parties)
    if part == "owner of rows":
        parties[0] = replace(ADA, roles=(*ADA.roles, "share_server"))
        changes = {"servers": replace(made.servers, **{share: "ada"})}
    else:
        place = {"P": 3, "M": 4, "Z": 5}[share]
        parties[place] = replace(parties[place], roles=("share_server", part))
        changes = {part: parties[place].name}
    with pytest.raises(PolicyError) as refused:
        replace(made, parties=tuple(parties), **changes)
    assert refused.value.code == "servers-not-apart"
    assert refused.value.why != "one party has two of the shares P, M and Z"


def test_servers_need_their_role_and_a_share() -> None:
    with pytest.raises(MalformedError) as roleless:
        _served(Z="ada")
    assert roleless.value.field == "servers.Z"
    idle = Party(
        "cloud-d", ("share_server",), SigningKey.generate().public_key, ADA.hpke
    )
    made = _served()
    with pytest.raises(MalformedError) as shareless:
        replace(made, parties=(*made.parties, idle))
    assert shareless.value.field == f"parties[{len(made.parties)}].roles"


@pytest.mark.parametrize("name", ["party", "resource"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(PolicyError):
        getattr(AGREEMENT, name)("zoe")


def with_resource(**changes: object) -> Agreement:
    changed = replace(FIRST, **changes)  # type: ignore[arg-type]
    return replace(AGREEMENT, resources=(changed, *AGREEMENT.resources[1:]))


def with_party(party: Party) -> Agreement:
    return replace(AGREEMENT, parties=(party, BERN, CLEO))


def with_board(
    *members: str, threshold: int = 1, rollback: tuple[int, int] | None = None,
    veto: tuple[str, ...] = (),
) -> Agreement:  # fmt: skip
    rule = RollbackRule(*rollback) if rollback else None
    board = Board(members=members, threshold=threshold, veto=veto, rollback=rule)
    return replace(AGREEMENT, board=board)


SOME = Digest.of(b"some file")
SET = SetName(name="hosts", signer=ADA.sign, number=1)
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
    "a cell of no rows": (lambda: replace(FIRST, cell_rows=0), "cell_rows"),
    "a grid finer than what a number is measured on": (
        lambda: replace(AGREEMENT, output=replace(OUTPUT, metric_rows=2)),
        "resources[0].cell_rows",
    ),
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
    "an end before the beginning": (
        lambda: replace(AGREEMENT, not_before=9, not_after=9),
        "not_after",
    ),
    "an end beyond every calendar": (
        lambda: replace(AGREEMENT, not_after=1 << 52),
        "not_after",
    ),
    "a rehearsal at a real level": (
        lambda: replace(AGREEMENT, accept=(Level.TEE,), rehearse=Level.TEE),
        "rehearse",
    ),
    "a rehearsal of nothing": (
        lambda: replace(AGREEMENT, rehearse=Level.DEVELOPMENT),
        "rehearse",
    ),
    "a rule for another level": (
        lambda: with_resource(rule=ReleaseRule(accept=(Level.TEE,))),
        "resources[0].rule.accept",
    ),
    "a rule for other rows": (
        lambda: with_resource(rule=ReleaseRule(purposes=("heldout",))),
        "rule.purposes",
    ),
    "a level twice": (
        lambda: ReleaseRule(accept=(Level.TEE, Level.TEE)),
        "accept",
    ),
    "fewer uses than none": (lambda: ReleaseRule(max_uses=-1), "max_uses"),
    "a rule that ends first": (
        lambda: ReleaseRule(not_before=2, not_after=1),
        "not_after",
    ),
    "a lease without heartbeat": (lambda: ReleaseRule(lease_s=1.0), "lease_s"),
    "a heartbeat without lease": (lambda: ReleaseRule(heartbeat_s=1.0), "lease_s"),
    "a heartbeat beyond the lease": (
        lambda: ReleaseRule(lease_s=1.0, heartbeat_s=2.0),
        "heartbeat_s",
    ),
    "a board of strangers": (lambda: with_board("zoe"), "board.members"),
    "a member twice": (lambda: with_board("ada", "ada"), "members"),
    "a threshold of nobody": (lambda: with_board("ada", threshold=0), "threshold"),
    "a threshold of too many": (lambda: with_board("ada", threshold=2), "threshold"),
    "a threshold of half": (
        lambda: with_board("ada", "bern", threshold=1),
        "threshold",
    ),
    "a majority that liars undo": (
        lambda: with_board("ada", "bern", "cleo", threshold=2, rollback=(3, 1)),
        "threshold",
    ),
    "a veto of a stranger": (lambda: with_board("ada", veto=("bern",)), "veto"),
    "a quorum of half": (
        lambda: with_board("ada", rollback=(1, 0)),
        "board.rollback.quorum",
    ),
    "a quorum of too many": (
        lambda: with_board("ada", rollback=(4, 0)),
        "board.rollback.quorum",
    ),
    "the model for a stranger": (
        lambda: replace(AGREEMENT, output=replace(OUTPUT, model_to=("zoe",))),
        "output.model_to",
    ),
    "the approval of a stranger": (
        lambda: replace(AGREEMENT, output=replace(OUTPUT, approved_by=("zoe",))),
        "output.approved_by",
    ),
    "old collateral for ever": (
        lambda: References(collateral_max_age_s=0),
        "collateral_max_age_s",
    ),
    "a set twice": (lambda: References(sets=(SET, SET)), "sets"),
    "a set without number": (
        lambda: References(sets=(replace(SET, number=0),)),
        "sets.number",
    ),
    "a file that looks like another": (
        lambda: CodeBundle(AGREEMENT.digest, "recipe.py", {"rec\u0456pe.py": SOME}),
        "files",
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


def test_a_board_of_everybody_where_none_is_named() -> None:
    board = AGREEMENT.effective_board
    assert board.members == board.veto == ("ada", "bern", "cleo")
    assert board.threshold == 3
    named = with_board("ada", "bern", "cleo", threshold=2, rollback=(2, 0))
    assert named.effective_board is named.board


def test_who_gets_the_model() -> None:
    assert AGREEMENT.model_to == ("cleo",)
    shared = replace(AGREEMENT, output=replace(OUTPUT, model_to=("ada", "bern")))
    assert shared.model_to == ("ada", "bern")


def test_what_a_rule_leaves_open_is_what_the_agreement_says() -> None:
    train, heldout = AGREEMENT.resources[:2]
    assert train.purposes == ("prepare", "train")
    assert heldout.purposes == ("heldout",)
    assert train.accepted((Level.GPU_TEE, Level.TEE)) == (Level.GPU_TEE, Level.TEE)
    strict = replace(train, rule=ReleaseRule(accept=(Level.TEE,), purposes=("train",)))
    assert strict.accepted((Level.GPU_TEE, Level.TEE)) == (Level.TEE,)
    assert strict.purposes == ("train",)
    assert strict.is_table_of(train)
    assert not heldout.is_table_of(train)


WINDOWS = {
    "agreement": lambda **window: replace(AGREEMENT, **window),
    "resource": lambda **window: replace(FIRST, rule=ReleaseRule(**window)),
}


@pytest.mark.parametrize("kind", WINDOWS)
def test_times_are_kept_at_both_ends(kind: str) -> None:
    within = WINDOWS[kind](not_before=100, not_after=200)
    for at_s in (100, 150.5, 200):
        within.require_time(at_s)
    for at_s, code in ((99.9, f"{kind}-not-yet"), (200.1, f"{kind}-expired")):
        with pytest.raises(PolicyError) as caught:
            within.require_time(at_s)
        assert caught.value.code == code
    WINDOWS[kind]().require_time(0)
    WINDOWS[kind]().require_time(1e12)


def test_a_rehearsal_reaches_the_appraiser() -> None:
    rehearsal = replace(AGREEMENT, rehearse=Level.ATTESTED_HOST)
    signed = replace(CONSORTIUM, agreement=rehearsal).verified()
    assert signed.appraiser().rehearse is Level.ATTESTED_HOST
    assert CONSORTIUM.verified().appraiser().rehearse is None
