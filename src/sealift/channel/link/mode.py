"""The ways in which bytes get from their owner to a device, from weakest to default.

Each differs from the one before in one step, so that a measurement of all of them says
what each step saves. The first three exist to be measured: someone besides owner and
device reads what crosses, so they need ``development`` and no planner chooses them
(rule M8).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sealift.errors import PolicyError, UsageError


class LinkMode(StrEnum):
    """How a transfer is laid out; the value is what people type."""

    PLAIN = "plain"
    REENCRYPT = "reencrypt"
    REENCRYPT_CHUNK = "reencrypt+chunk"
    DIRECT = "direct"
    DIRECT_PARALLEL = "direct+parallel-auth"
    DIRECT_OVERLAP = "direct+parallel-auth+overlap"
    SEAL_AHEAD = "seal-ahead"


DEFAULT_MODE: Final = LinkMode.DIRECT_OVERLAP


@dataclass(frozen=True, slots=True)
class ModeShape:
    """What a mode does, as independent answers.

    Attributes:
        sealed: Ciphertext crosses, not plaintext.
        reencrypts: A host between owner and device opens and seals again.
        records: Every record has its own tag; otherwise one tag covers all.
        parallel: Several records are verified at once.
        overlaps: A record is opened while the next one crosses.
        ahead: Sealed before the device asks.
    """

    sealed: bool = True
    reencrypts: bool = False
    records: bool = False
    parallel: bool = False
    overlaps: bool = False
    ahead: bool = False

    @property
    def protects(self) -> bool:
        """Whether nobody but owner and device can read what crosses."""
        return self.sealed and not self.reencrypts


_SHAPE: Final = {
    LinkMode.PLAIN: ModeShape(sealed=False, records=True, overlaps=True),
    LinkMode.REENCRYPT: ModeShape(reencrypts=True),
    LinkMode.REENCRYPT_CHUNK: ModeShape(reencrypts=True, records=True),
    LinkMode.DIRECT: ModeShape(),
    LinkMode.DIRECT_PARALLEL: ModeShape(records=True, parallel=True),
    LinkMode.DIRECT_OVERLAP: ModeShape(records=True, parallel=True, overlaps=True),
    LinkMode.SEAL_AHEAD: ModeShape(
        records=True, parallel=True, overlaps=True, ahead=True
    ),
}
PLANNABLE: Final = tuple(mode for mode in LinkMode if _SHAPE[mode].protects)


def shape_of(mode: LinkMode) -> ModeShape:
    """What ``mode`` does."""
    return _SHAPE[mode]


def parse_mode(name: str) -> LinkMode:
    """The mode of that name.

    Raises:
        UsageError: if there is none.
    """
    try:
        return LinkMode(name)
    except ValueError:
        known = ", ".join(LinkMode)
        raise UsageError(
            f"there is no link mode {name!r}",
            fix=f"There are: {known}",
            code="no-such-mode",
        ) from None


def check_mode(mode: LinkMode, *, development: bool = False) -> LinkMode:
    """``mode``, if it may be used here (rule M8).

    Raises:
        PolicyError: code ``weak-link-mode``, if it protects nobody and nobody said
            that this is development.
    """
    if not development and not shape_of(mode).protects:
        raise PolicyError(
            f"link mode {mode} protects from nobody who reads the host's memory",
            fix=f"Use {DEFAULT_MODE}, or development=True to measure it",
            code="weak-link-mode",
        )
    return mode
