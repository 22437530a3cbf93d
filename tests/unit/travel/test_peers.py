"""Who may come: everybody who brings rows, to train on or only to measure on."""

from __future__ import annotations

from dataclasses import replace

from sealift.release.agreement.resources import GroupRule
from sealift.travel.peers import expect_accelerator, expect_data_owner
from tests.worlds.consortium import Consortium, make_consortium


def with_a_measuring_owner() -> Consortium:
    """Cleo's rows are held out, all of them."""
    consortium = make_consortium()
    agreement = consortium.agreement
    resources = tuple(
        replace(each, part="heldout") if each.owner == "cleo" else each
        for each in agreement.resources
    )
    output = replace(agreement.output, min_holders=2, min_rows=1)
    return replace(
        consortium, agreement=replace(agreement, resources=resources, output=output)
    )


def test_an_owner_of_held_out_rows_alone_is_a_holder() -> None:
    agreement = with_a_measuring_owner().agreement
    assert agreement.data_owners == ("ada", "bern")
    assert set(agreement.holders) == {"ada", "bern", "cleo"}


def test_it_is_let_in() -> None:
    verified = with_a_measuring_owner().verified()
    policy = expect_data_owner(verified)
    assert policy.names == {"ada", "bern", "cleo"}
    assert policy.identities is not None
    assert policy.identities["cleo"] == verified.party("cleo").sign


def test_who_brings_nothing_is_not() -> None:
    consortium = with_a_measuring_owner()
    agreement = consortium.agreement
    owners = tuple(each for each in agreement.resources if each.owner != "cleo")
    parties = tuple(
        replace(each, roles=tuple(role for role in each.roles if role != "data_owner"))
        if each.name == "cleo"
        else each
        for each in agreement.parties
    )
    without = replace(agreement, resources=owners, parties=parties)
    policy = expect_data_owner(replace(consortium, agreement=without).verified())
    assert policy.names == {"ada", "bern"}


def test_where_rows_stay_at_home_a_rank_is_its_owner_besides_its_evidence() -> None:
    consortium = make_consortium()
    owners = consortium.agreement.data_owners
    at_home = consortium.changed(group=GroupRule(len(owners), "owner")).verified()
    for number, owner in enumerate(owners):
        name = f"accelerator-{number}"
        policy = expect_accelerator(at_home, name)
        assert policy.names == {name}
        assert policy.require_evidence
        assert policy.require_identity
        assert policy.identities is not None
        assert policy.identities[name] == at_home.party(owner).sign
    elsewhere = expect_accelerator(consortium.verified(), "accelerator-0")
    assert elsewhere.require_evidence
    assert not elsewhere.require_identity
