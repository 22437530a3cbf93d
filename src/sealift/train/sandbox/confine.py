"""Which confinement this machine gives, applied, and named in one word.

The rule: namespaces and seccomp, Landlock too where the kernel has it; without
namespaces Landlock and seccomp. A word such as ``namespaces+landlock+seccomp`` names
what is in force, in manifest and receipts; ``none`` runs under development alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final, Literal

from sealift.attest.level import Level
from sealift.errors import UnavailableError
from sealift.train.sandbox import kernel as limits
from sealift.train.sandbox import landlock, namespaces, seccomp
from sealift.train.sandbox.inventory import (
    DESCRIPTORS,
    DEVICES,
    GPU_FACTS,
    GPU_FILES,
    MACHINE_FACTS,
    OF_ITSELF,
    SCRATCH,
    THREADS_OF_ITS_OWN,
)

Part = Literal["namespaces", "landlock", "seccomp"]
PARTS: Final[tuple[Part, ...]] = ("namespaces", "landlock", "seccomp")
NONE: Final = "none"


class Confinement:
    """Parts that are in force, or are to be.

    Args:
        parts: Any of them, in whatever order.
    """

    def __init__(self, parts: Sequence[str]) -> None:
        self.parts = tuple(part for part in PARTS if part in parts)

    @classmethod
    def parse(cls, word: str) -> Confinement:
        """Of the word that names it."""
        return cls(word.split("+"))

    @property
    def word(self) -> str:
        """``namespaces+landlock+seccomp``, or ``none``."""
        return "+".join(self.parts) or NONE

    @property
    def holds(self) -> bool:
        """Whether it keeps a recipe from files, network and other processes."""
        return "seccomp" in self.parts and len(self.parts) > 1

    def require(self, accept: Sequence[Level]) -> None:
        """Demand that a recipe may run in it under an agreement.

        Raises:
            UnavailableError: code ``no-sandbox``.
        """
        if not self.holds and tuple(accept) != (Level.DEVELOPMENT,):
            raise UnavailableError(
                "this machine cannot run the recipe in a sandbox",
                why=f"the available protection is: {self.word}",
                code="no-sandbox",
            )

    def say(self, runs: Literal["runs", "ran"] = "runs") -> str:
        """What it means for a recipe, for people."""
        if self.holds:
            return f"the recipe {runs} in a sandbox ({self.word})"
        return (
            f"the recipe {runs} without a sandbox (available protection: {self.word}) "
            "and has all rights of its process"
        )


def confine_worker(
    confinement: Confinement,
    places: Sequence[str],
    memory_bytes: int,
    *,
    gpu: bool = False,
    most_bytes: int = 0,
    beside: Callable[[], None] | None = None,
) -> None:
    """Lock this process in, just before it runs a recipe; nothing undoes it.

    Args:
        confinement: What to apply; each part must hold.
        places: What it may read.
        memory_bytes: Private memory that it may have.
        gpu: Whether it computes on one.
        most_bytes: See ``limit_use``.
        beside: Starts what has a narrower filter of its own; all else holds for it, too.

    Raises:
        OSError: if a part does not hold.
    """
    parts, rights = confinement.parts, _rights(places, gpu=gpu)
    if "namespaces" in parts:
        namespaces.take_own(gpu=gpu)
        rights[SCRATCH] = landlock.ALL
    elif gpu and "landlock" in parts:
        # A rule is about a folder's place in memory, which the kernel keeps while it is in use.
        os.chdir(THREADS_OF_ITS_OWN)
    limits.limit_use(memory_bytes, most_bytes)
    limits.hide_memory()
    if parts:
        limits.forbid_new_privileges()
        limits.drop_capabilities()
    if "landlock" in parts:
        landlock.restrict(rights)
    if beside is not None:
        beside()
    if "seccomp" in parts:
        seccomp.install(os.getpid(), gpu=gpu)


def keep_descriptors(talk: int, text: int, *more: int) -> None:
    """Close all but ``DESCRIPTORS``, and more for our own code, from the next number on.

    What was mapped stays so, without a descriptor.

    Else bytes could pass from one slice to the next in what belongs to an open file
    rather than to a descriptor, its offset and flags (rule N6).
    """
    null = os.open(os.devnull, os.O_RDONLY)
    for place, descriptor in enumerate((null, text, text, talk, *more)):
        os.dup2(descriptor, place)
    os.closerange(len(DESCRIPTORS) + len(more), os.sysconf("SC_OPEN_MAX"))


def _rights(places: Sequence[str], *, gpu: bool) -> dict[str, int]:
    rights = dict.fromkeys((*places, *MACHINE_FACTS, *DEVICES), landlock.READ)
    rights["/dev/null"] |= landlock.WRITE_FILE
    if gpu:
        rights |= dict.fromkeys((*GPU_FACTS, *OF_ITSELF), landlock.READ)
        rights |= dict.fromkeys(GPU_FILES, landlock.DEVICE)
        # CUDA opens a name to write and cuts it short; nothing of that folder is read.
        rights[THREADS_OF_ITS_OWN] = landlock.WRITE_FILE | landlock.TRUNCATE
    return rights
