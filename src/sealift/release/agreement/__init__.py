"""The agreement: parties, code, levels, resources with their owners' rules, outputs."""

from sealift.release.agreement.parties import (
    Board,
    Party,
    PartyRole,
    RollbackRule,
)
from sealift.release.agreement.references import (
    BUNDLE_LABEL,
    CodeBundle,
    References,
    bundle_digest,
)
from sealift.release.agreement.resources import (
    ROWS_LEASE,
    KeyLease,
    Part,
    Purpose,
    ReleaseRule,
    Resource,
    part_for,
)
from sealift.release.agreement.rules import (
    MAX_DIGITS,
    Audience,
    OutputRule,
    TravelRule,
)
from sealift.release.agreement.whole import MAX_PARTIES, VERSION, About, Agreement

__all__ = [
    "BUNDLE_LABEL", "MAX_DIGITS", "MAX_PARTIES", "ROWS_LEASE", "VERSION", "About", "Agreement", "Audience", "Board",
    "CodeBundle", "KeyLease", "OutputRule", "Part", "Party", "PartyRole", "Purpose",
    "References", "ReleaseRule", "Resource", "RollbackRule",
    "TravelRule", "bundle_digest", "part_for",
]  # fmt: skip
