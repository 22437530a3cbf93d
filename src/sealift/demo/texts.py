"""What screens and report say in words, in one place, so that they say the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sealift.demo.cheating import OLD_ANSWER, ONE_NUMBER, ZEROS
from sealift.demo.holders import BEYOND_LEASE, PREVIOUS_KEY, REPLAY
from sealift.train.sandbox.confine import Confinement

ACT_IN_WORDS: Final = "executed a program that is not in the agreement"
ATTACK_IN_WORDS: Final[Mapping[str, str]] = {
    REPLAY: "sends a record a second time",
    BEYOND_LEASE: "writes outside of its lease",
    PREVIOUS_KEY: "uses the key of its previous visit",
    ONE_NUMBER: "changes one number of a product",
    OLD_ANSWER: "sends an old product again",
    ZEROS: "sends zeros",
}
WHY_REFUSED: Final[Mapping[str, str]] = {
    REPLAY: "frames of a visit are numbered; only the next number is accepted",
    BEYOND_LEASE: "the signed lease says which bytes of which buffer may be written",
    PREVIOUS_KEY: "every visit has a fresh key from its own handshake",
    **dict.fromkeys(
        (ONE_NUMBER, OLD_ANSWER, ZEROS),
        "each product is verified before it is used, with random numbers that are drawn "
        "afterwards; one row, computed again, identifies the server",
    ),
}
REAL: Final = (
    "eight operating-system processes with keys of their own, over TCP",
    "hybrid key exchange (X25519 and ML-KEM-768) in every session",
    "AES-256-GCM records, encrypted by their owner, decrypted only in the accelerator",
    "one agreement that every party signed; one broker per owner releases its keys",
    "audit logs as Merkle trees, receipts signed by the accelerator's instance key",
    "memory overwritten and read back after every visit",
)
REAL_AT_HOME: Final = (
    "seven operating-system processes with keys of their own",
    "an attested session for every pair of accelerators (X25519 and ML-KEM-768)",
    "AES-256-GCM records for stored rows and for all messages between accelerators",
    "one agreement that every party signed; each broker releases to its owner's own "
    "accelerator alone",
    "audit logs as Merkle trees, receipts signed by each accelerator's instance key",
    "memory overwritten and read back after every use of rows",
)
REAL_SERVERS: Final = (
    "three share servers, processes with keys of their own: each multiplies random-looking "
    "numbers, and signs its results",
)
TOGETHER_THEY_SEE: Final = "the three servers run on one machine; if two of them collude, they can read everything"
SOFTWARE_KEY: Final = (
    "evidence comes from a software key: it proves nothing about the machine"
)
REAL_REHEARSED: Final = (
    "a guest with Debian's kernel: measured boot, IMA, quotes, each owner's enrolment",
    "leases, renewed by fresh evidence every second or so, revoked by each owner's own broker",
)
ONLY_REHEARSED: Final = (
    "the guest attests, but the accelerator's process runs outside of it on this machine: "
    "this tests the steps, and gives no protection",
    "the guest's TPM is software, and whoever runs this machine can change the guest",
)
DEVELOPMENT_ONLY: Final = (
    "whoever runs this machine can read everything on it",
    "all parties' keys and passphrases lie in one folder",
    "the accelerator is a CPU process that stands in for a GPU",
)


@dataclass(frozen=True, slots=True)
class LevelWords:
    """What a level means to a reader; the demo never has one that protects.

    Attributes:
        banner: Why nobody is kept out.
        evidence: What had to verify.
        not_out: Who can still read, or what is not covered.
    """

    banner: str
    evidence: str
    not_out: str


ONLY_DEVELOPMENT: Final = LevelWords(
    "software keys prove nothing about this machine, so nothing here is protected",
    "a statement signed with a software key that the agreement names",
    "Whoever runs this machine, and every program on it, can read rows, keys and "
    "model. All other steps are real.",
)
REHEARSED: Final = LevelWords(
    "a guest with a software TPM attests, but the accelerator's process runs outside of it "
    "on this machine, so nothing here is protected",
    "a quote of a software TPM, with the whole measurement log of a guest",
    "The guest attests, but the accelerator's process, with rows, keys and model, runs "
    "outside of it, and whoever runs this machine can read all of it.",
)


def level_words(level: str) -> LevelWords:
    """What a level means, as ``say_level`` writes it."""
    return REHEARSED if rehearses(level) else ONLY_DEVELOPMENT


def rehearses(level: str) -> bool:
    """Whether a level, as ``say_level`` writes it, is only rehearsed."""
    return "rehearsing" in level


def say_banner(level: str) -> str:
    """Who is kept out at a level that protects nobody: nobody, and why."""
    return level_words(level).banner


def say_sandbox(word: str) -> str:
    """What kept the recipe in, from the word that manifest and receipts carry."""
    return Confinement.parse(word).say("ran")
