"""The agreement: parties, code, levels, resources with their owners' rules, outputs."""

from sealift.release.agreement.privacy import PrivacyBudget
from sealift.release.agreement.resources import (
    MAX_DIGITS,
    ROWS_LEASE,
    Audience,
    GroupRule,
    KeyLease,
    OutputRule,
    Part,
    Purpose,
    ReleaseRule,
    Resource,
    TravelRule,
    part_for,
)
from sealift.release.agreement.terms import (
    Board,
    CodeBundle,
    Party,
    PartyRole,
    References,
    RollbackRule,
    ServersRule,
    bundle_digest,
)
from sealift.release.agreement.training import (
    Between,
    RunTerms,
    TrainingPlan,
    TrainingRule,
)
from sealift.release.agreement.whole import VERSION, About, Agreement

__all__ = [
    "MAX_DIGITS", "ROWS_LEASE", "VERSION", "About", "Agreement", "Audience", "Between", "Board",
    "CodeBundle", "GroupRule", "KeyLease", "OutputRule", "Part", "Party", "PartyRole", "PrivacyBudget", "Purpose",
    "References", "ReleaseRule", "Resource", "RollbackRule", "RunTerms", "ServersRule",
    "TrainingPlan", "TrainingRule", "TravelRule", "bundle_digest", "part_for",
]  # fmt: skip
