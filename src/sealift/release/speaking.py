"""Who speaks for an owner: its own key, or one that it appointed. Pure.

Releases, shares and tree heads count when the owner's key signed them. A shared broker
signs with a key of its own for each owner; it counts in that owner's place where the
agreement lets the owner entrust its keys, the owner's appointment names it, and, as long
as something is to be done now, the appointment is still good.
Source: spec/release.md section Shared broker.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sealift.errors import PolicyError, StaleError
from sealift.release.agreement import Party, Resource
from sealift.release.appointment import (
    Allotment,
    Appointment,
    SignedAppointment,
    verify_appointment_signature,
)
from sealift.release.audit import SignedTreeHead
from sealift.release.signed import VerifiedAgreement

CLOCKS_DIFFER_S: Final = 300  # between the owner's machine and this one


def verify_appointment(
    signed: SignedAppointment, verified: VerifiedAgreement
) -> Appointment:
    """The appointment, if its owner could make it under this agreement, and did.

    Whether it is still good is for ``require_in_force``: what was released while it was
    stays so.

    Raises:
        PolicyError: ``not-a-party``; ``not-entrusting``: the owner keeps its own broker; ``appointment-foreign``:
            it is for another agreement, other resources, or more uses than agreed.
        RefusedError: ``appointment-unsigned``.
    """
    said = signed.appointment
    party = verified.party(said.owner)
    verify_appointment_signature(signed, party.sign)
    _require_entrusting(said, verified)
    if said.agreement != verified.digest:
        raise foreign(f"for agreement {said.agreement.short}")
    own = verified.agreement.resources_of(said.owner)
    named = [(each.resource, each.key) for each in said.resources]
    if named != [(each.name, each.key) for each in own]:
        raise foreign("for other resources than the agreement's, or other keys")
    for allotted, resource in zip(said.resources, own, strict=True):
        _require_within_rule(allotted, resource)
    return said


def require_in_force(
    appointment: Appointment, verified: VerifiedAgreement, at_s: float
) -> None:
    """Refuse what an appointment is not good for any more.

    Args:
        appointment: Verified.
        verified: With every statement that is known here.
        at_s: Seconds since 1970, by this side's clock.

    Raises:
        StaleError: ``appointment-expired`` or ``appointment-withdrawn``.
        PolicyError: ``owner-unsigned`` or ``owner-left``.
    """
    verified.require_owner_signed(appointment.owner)
    begins_s = appointment.at_s - CLOCKS_DIFFER_S
    if not begins_s <= at_s <= appointment.not_after:
        raise StaleError(
            f"the broker may not act for {appointment.owner} at this time",
            why=f"it was appointed until {appointment.not_after}, and it is {at_s:.0f}",
            fix=f"Have {appointment.owner} run `sealift broker entrust` again",
            code="appointment-expired",
        )
    withdrawn_s = verified.backing.withdrawn.get(appointment.owner, -1)
    if appointment.at_s <= withdrawn_s:
        raise StaleError(
            f"{appointment.owner} withdrew its keys from this broker",
            fix=f"Have {appointment.owner} entrust them again, or run its own broker",
            code="appointment-withdrawn",
        )


def log_owner(signed: SignedTreeHead, verified: VerifiedAgreement) -> Party:
    """Whose log it is: the party, with the key that signs for it there.

    Args:
        signed: Its signature is checked elsewhere (``verify_head``).
        verified: The agreement.

    Raises:
        PolicyError: ``other-log``: nobody's.
        StaleError: ``appointment-expired``: of a time after the appointment.
        RefusedError: the appointment that it carries does not hold.
    """
    for party in verified.agreement.parties:
        if party.sign == signed.log:
            return party
    if signed.appointment is None:
        raise _no_party()
    said = verify_appointment(signed.appointment, verified)
    if said.key != signed.log:
        raise _no_party()
    if signed.head.at_s > said.not_after:
        raise StaleError(
            f"a log of {said.owner} went on after its broker's time",
            fix="What stands in it after that was not allowed",
            code="appointment-expired",
        )
    return replace(verified.party(said.owner), sign=said.key)


def _require_within_rule(allotted: Allotment, resource: Resource) -> None:
    most = resource.rule.max_uses
    if most and not 0 < allotted.uses <= most:
        raise foreign(f"for more uses of {resource.name} than its rule allows: {most}")


def _require_entrusting(said: Appointment, verified: VerifiedAgreement) -> None:
    if said.owner not in verified.agreement.entrusting:
        raise PolicyError(
            f"{said.owner} entrusts its keys to nobody under this agreement",
            fix="Put it into shared_broker.owners of a successor, or run its own broker",
            code="not-entrusting",
        )


def foreign(why: str) -> PolicyError:
    """The refusal of an appointment that is for something else."""
    return PolicyError(
        "the broker was appointed for something else",
        why=f"it is {why}",
        fix="Have the owner run `sealift broker entrust` under this agreement",
        code="appointment-foreign",
    )


def _no_party() -> PolicyError:
    return PolicyError("a tree head of a log of no party", code="other-log")
