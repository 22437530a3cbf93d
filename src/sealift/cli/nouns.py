"""Which nouns `sealift` knows. A noun is a module, mostly of this folder, loaded when used.

To add one: write ``cli/NOUN.py`` with ``add_parser(subparsers)`` and ``run(args)``,
and add its line here. Dashes in a noun are underscores in its module's name. A noun of two
words is for a verb of a noun that takes a file as well (`broker JOB`, `broker backup`); its
module's name has them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

NOUNS: Final[dict[str, str]] = {
    "accelerator": "train: the process that owns the device",
    "agreement": "new, check, show, sign and verify what the parties agree on",
    "attest": "collect evidence, verify it, and say what was compared",
    "attacks": "try the attacks, and show how each is refused",
    "audit": "verify and show a broker's log of releases and refusals",
    "bench": "measure this machine",
    "broker": "release this owner's keys by the agreement",
    "broker backup": "copy a broker's vault and log, also while it runs",
    "broker restore": "put a copy back, if it is not behind what others saw",
    "broker upgrade": "bring a vault's schema forward, after a copy",
    "data": "seal a table, inspect a sealed file",
    "demo": "all roles on this machine, real data: the first contact",
    "doctor": "what limits this machine, what that means, and what to do",
    "explain": "what an error's name in brackets means, and what to do",
    "health": "show a role's metrics and health over HTTP, without its keys",
    "join": "take part in a job with this owner's sealed data",
    "model": "seal a model that is to be served",
    "key": "make, back up and restore an identity",
    "orchestrator": "run a job: relay, leases, progress",
    "output": "approve of the model of a run, or open it as its owner",
    "predict": "ask a served model, after judging its server",
    "receipt": "verify the receipt of a visit",
    "resume": "go on with a job from its last checkpoint",
    "serve": "answer with a sealed model, on an attested accelerator",
    "train": "run a job: orchestrator and accelerator here, or all of it locally",
    "try": "run a recipe on synthetic rows of a schema",
}
_ELSEWHERE: Final = {
    "attacks": "sealift.lab.attacks.command",
    "bench": "sealift.lab.bench.command",
    "demo": "sealift.lab.demo.command",
    "doctor": "sealift.cli.doctor.command",
    "try": "sealift.cli.attempt",  # Python keeps the word for itself
}


def module_name(noun: str) -> str:
    """The module that a noun lives in."""
    name = noun.replace("-", "_").replace(" ", "")
    return _ELSEWHERE.get(noun, f"sealift.cli.{name}")


def joined(words: Sequence[str]) -> list[str]:
    """The words of a command line, with a noun of two words as one."""
    both = " ".join(words[:2])
    return [both, *words[2:]] if both in NOUNS and len(words) > 1 else list(words)
