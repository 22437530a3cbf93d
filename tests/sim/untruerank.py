"""`sealift` of a rank that lies about itself. LIE WORDS...

The first word says how; the others are the command line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sealift.cli.main import main
from sealift.crypto.sign import SignedDocument
from sealift.errors import JobError
from sealift.train.ranks.rounds import GroupRounds, PassReport, RankIntroduction


def lie_in_reports(change: Callable[[PassReport], PassReport]) -> None:
    """What it tells of a pass."""
    share = GroupRounds._share

    def told(self: Any, own: Any) -> Any:
        return share(self, change(own) if isinstance(own, PassReport) else own)

    GroupRounds._share = told  # type: ignore[method-assign]


def used_more(report: PassReport) -> PassReport:
    """A million times the rows that it has."""
    more = (replace(each, rows=each.rows * 10**6) for each in report.uses.tables)
    return replace(report, uses=replace(report.uses, tables=tuple(more)))


def show_larger_heads() -> None:
    """Unsigned heads of the logs that it was shown, larger than any."""
    meet = GroupRounds.meet

    def lies(self: Any, own: RankIntroduction, passes: Any) -> Any:
        larger = tuple(
            SignedDocument(replace(each.body, size=2**50), bytes(64))
            for each in own.heads
        )
        return meet(self, replace(own, heads=larger), passes)

    GroupRounds.meet = lies  # type: ignore[method-assign]


def go_on_from(change: Callable[[Any, RankIntroduction], RankIntroduction]) -> None:
    """Rank 0's states, of a job that nobody has begun."""
    meet = GroupRounds.meet

    def lies(self: Any, own: RankIntroduction, passes: Any) -> Any:
        return meet(self, change(self._trainer, replace(own, position=1)), passes)

    GroupRounds.meet = lies  # type: ignore[method-assign]


def made_all_steps(trainer: Any, own: RankIntroduction) -> RankIntroduction:
    """A state after more steps than there can be."""
    trainer.build()
    trainer.join(replace(trainer.joint, step=2**64 - 1))
    return own


def tell_long_states() -> None:
    """More bytes than anybody has room for."""
    share = GroupRounds._share

    def told(self: Any, own: Any) -> Any:
        long = {"joint": 2**50, "rows": 8, "statistics": 0}
        return share(self, replace(own, position=1, states=long))

    GroupRounds._share = told  # type: ignore[method-assign]


def fail_in_its_own_words() -> None:
    """With a code that nobody knows, escapes, and a path of its machine."""

    def run(self: Any, purpose: Any, epoch: int) -> Any:
        self._share(PassReport(code="no-such-code\x1b[2J", of_the_job=True))
        raise JobError("/home/south/rows of you\x1b[2J", code="no-such-code\x1b[2J")

    GroupRounds.run = run  # type: ignore[method-assign]


if __name__ == "__main__":
    match sys.argv.pop(1):
        case "steps":
            lie_in_reports(lambda report: replace(report, steps=10**6))
        case "uses":
            lie_in_reports(used_more)
        case "heads":
            show_larger_heads()
        case "states":
            tell_long_states()
        case "step64":
            go_on_from(made_all_steps)
        case "code":
            fail_in_its_own_words()
        case other:
            raise SystemExit(f"no such lie: {other}")
    sys.exit(main())
