"""Who may come: everybody who brings rows, to train on or only to measure on."""

from __future__ import annotations

from dataclasses import replace

from sealift.lab.worlds.consortium import Consortium, make_consortium
from sealift.travel.peers import expect_data_owner


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
