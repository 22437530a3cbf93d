"""What ended a group, for every party's screen: who, why, and what each party can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sealift.errors import PeerError, SealiftError, meaning
from sealift.release.agreement.statements import LEFT
from sealift.train.loop.stepsums import FAILED

LOST: Final = "rank-lost"
MISSING: Final = "peer-missing"
ON_AGAIN: Final = (
    "Start every party's command again: the job continues from its checkpoint if it "
    "has one"
)
_ON_RETURN: Final = (
    "If its command does not run any more, that party starts it again; all others "
    "leave theirs running"
)


def group_ended(
    kind: type[SealiftError],
    people: Sequence[str],
    code: str,
    *,
    why: str = "",
    ranks: tuple[int, ...] = (),
) -> SealiftError:
    """The error that says which parties ended a group, by what, and what to do about it.

    Args:
        kind: Of the error, for its exit code.
        people: The rank that says it, and those that it blames, as people call them; none
            if nobody is named.
        code: What ended it, in the catalogue's name; another one is not repeated.
        why: In other words than the catalogue's; of a recipe whose text may be shown.
        ranks: The numbers of ``people``.
    """
    code = code if meaning(code) else FAILED
    who = " and ".join(people) or "another rank"
    if code == LOST:
        what, why, fix = "disconnected or stopped answering", "", _ON_RETURN
        what = f"{' and '.join(people[1:]) or who} {what}"
        if len(people) > 1:  # it may be the liar
            what = f"{people[0]} says that {what}"
        kind = PeerError
    elif code == LEFT:
        # Another's word: whose own folder has the signed statement ends with exit code 5.
        gone = f"{' and '.join(people[1:]) or who} has left the agreement"
        what = f"{people[0]} says that {gone}" if len(people) > 1 else gone
        why = meaning(code)
        fix = f"No run under it is possible: `sealift explain {code}` says what can be done"
        kind = PeerError
    elif code == MISSING:
        what, why, fix = f"{who} did not connect in time", "", ON_AGAIN
        kind = PeerError
    else:
        what, why = f"{who} failed", why or meaning(code)
        if len(people) > 1:  # the first one said it, of the others
            others = " and ".join(people[1:])
            who, what = others, f"{people[0]} ended the job because of {others}"
        fix = f"`sealift explain {code}` says what {who} can do. {ON_AGAIN}"
    return kind(what, why=why, fix=fix, code=code, ranks=ranks)
