"""`sealift attest`: collect attestation evidence, and verify it against reference values.

`sealift attest reference`: make a signed reference set from a trusted machine's evidence.

`sealift attest collect`: write this machine's evidence, or a reference set made of it.

`sealift attest collateral`: make, show and fetch bundles of vendors' certificates.
"""

from __future__ import annotations

import argparse
import json
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from sealift import __version__, codec
from sealift.attest.azure.attester import AzureAttester
from sealift.attest.collateral import (
    DAY_S,
    MAX_BUNDLE_BYTES,
    Collateral,
    pack_bundle,
)
from sealift.attest.composite import CompositeAttester
from sealift.attest.configfs import SnpAttester
from sealift.attest.development import DevelopmentAttester
from sealift.attest.evidence import BOUND_BYTES, Attester, Evidence
from sealift.attest.level import Level, TrustVector, parse_accept
from sealift.attest.nvidia.attester import gpu_attesters
from sealift.attest.policy import Appraiser
from sealift.attest.reference import (
    MAX_SET_BYTES,
    ReferenceSet,
    SetName,
    SignedReferenceSet,
    parse_set,
    sign_set,
    verify_set,
)
from sealift.attest.tools.asreference import Trusted, to_references
from sealift.attest.tools.collateral import (
    Services,
    bundle,
    fetch,
    item_times,
    to_items,
    wanted,
)
from sealift.attest.tpm.attester import TpmAttester
from sealift.attest.verifier import UNBOUND, AppraisalCheck, Claims
from sealift.cli.arguments import Parser
from sealift.cli.console import say, unlock
from sealift.cli.judging import (
    add_collateral_argument,
    add_evidence_arguments,
    add_time_argument,
    load_evidence,
    parse_bound,
    parse_time,
)
from sealift.cli.roles.attester import add_tpm_arguments, evidence_places
from sealift.codec import to_plain
from sealift.crypto.certificate import say_time
from sealift.crypto.sign import PublicKey
from sealift.errors import (
    MalformedError,
    RefusedError,
    UnavailableError,
    UsageError,
    visible,
)
from sealift.ids import Role
from sealift.release.agreement.signed import load_verified
from sealift.release.equip import equip, load_collateral
from sealift.release.files import read_whole, require_absent, write_whole
from sealift.train.job.hostattester import (
    HostPlatform,
    bind_devices,
    open_azure,
    open_tdx,
    open_tee,
    open_tpm,
)

REAL_LEVELS: Final = (Level.TEE, Level.GPU_TEE, Level.ATTESTED_HOST)
WIDTH: Final = 48


STATE: Final = Path("tpm")


SERVICES: Final = ("intel", "intel-root", "amd", "nvidia")


def _add_collateral_parser(verbs: Any) -> None:
    """Add the verb `collateral` with verbs of its own."""
    parser = verbs.add_parser(
        "collateral",
        help="make, show or fetch bundles of vendors' certificates and lists",
    )
    steps = parser.add_subparsers(dest="step", required=True, metavar="VERB")
    make = steps.add_parser(
        "make",
        run=_run_collateral,
        help="make a bundle of files that you have",
        description="Recognizes files by their content: Intel's lists, revocation lists, "
        "certificate chains, certificates of AMD and of TPM makers, NVIDIA's manifests and "
        "OCSP answers. Nothing is verified here: each verifier verifies the whole bundle.",
    )
    make.add_file("files", nargs="*")
    make.add_argument(
        "--item",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="add a file as NAME",
    )
    make.add_path("--add", metavar="BUNDLE", help="start with its items")
    _add_output(make)
    show = steps.add_parser(
        "show", run=_run_collateral, help="show a bundle's items, and how old they are"
    )
    show.add_path("bundle")
    show.add_argument(
        "--at", metavar="TIME", help="show ages as of this time; default: now"
    )
    fetched = steps.add_parser(
        "fetch",
        run=_run_collateral,
        help="fetch what some evidence needs from the vendors' services",
        description="This command needs the network. All others work offline.",
    )
    add_evidence_arguments(fetched)
    fetched.add_argument(
        "--service",
        action="append",
        default=[],
        metavar="NAME=URL",
        help=f"use this mirror or cache; NAME: {', '.join(SERVICES)}",
    )
    fetched.add_path("--add", metavar="BUNDLE", help="start with its items")
    _add_output(fetched)


def _run_collateral(args: argparse.Namespace) -> int:
    """Run the verb; the exit code."""
    if args.step == "show":
        _show(load_collateral(args.bundle), int(parse_time(args.at)))
        return 0
    require_absent(args.out)
    items = dict(load_collateral(args.add).items)
    items |= _made(args) if args.step == "make" else _fetched(args)
    as_of_s = int(parse_time(args.as_of, "--as-of")) if args.as_of else None
    now_s = int(parse_time(None))
    if args.step == "fetch" and as_of_s is None:
        as_of_s = now_s if args.add is None else None
    made = bundle(items, now_s=now_s, as_of_s=as_of_s)
    write_whole(args.out, pack_bundle(made))
    _show(made, now_s)
    return 0


def _add_output(parser: Parser) -> None:
    parser.add_file("-o", "--out", required=True)
    parser.add_argument(
        "--as-of",
        metavar="TIME",
        help="when it was fetched; default: the time of the newest item",
    )


def _made(args: argparse.Namespace) -> dict[str, bytes]:
    items: dict[str, bytes] = {}
    for path in args.files:
        try:
            items |= to_items(read_whole(path, MAX_BUNDLE_BYTES), path.stem)
        except MalformedError as error:
            raise MalformedError(
                f"{path}: {error.what}", why=error.why, fix=error.fix, code=error.code
            ) from None
    for name, value in (_split(each, "--item") for each in args.item):
        items[name] = read_whole(Path(value), MAX_BUNDLE_BYTES)
    return items


def _fetched(args: argparse.Namespace) -> dict[str, bytes]:
    chosen = dict(_split(each, "--service") for each in args.service)
    if strange := sorted(chosen.keys() - set(SERVICES)):
        raise UsageError(
            f"--service {strange[0]} is unknown",
            fix=f"Use {', '.join(SERVICES)}",
            code="usage",
        )
    addresses = {name.replace("-", "_"): url for name, url in chosen.items()}
    needed = wanted(load_evidence(args).evidence, Services(**addresses))
    for each in needed:
        say(f"fetching {visible(each.url)}")
    return fetch(needed)


def _split(text: str, option: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not (name and found and value):
        raise UsageError(f"{option} takes NAME=VALUE", why=text[:60], code="usage")
    return name, value


def _show(collateral: Collateral, at_s: int) -> None:
    age = (at_s - collateral.as_of_s) / DAY_S
    print(f"as of  {say_time(collateral.as_of_s)}, {age:.1f} days ago\n")
    width = max((len(name) for name in collateral.items), default=4)
    print(f"{'item':<{width}}  {'bytes':>7}  {'issued':<20}  valid until")
    for name, raw in sorted(collateral.items.items()):
        times = item_times(raw)
        line = f"{name:<{width}}  {len(raw):>7}  {_say(times.issued_s):<20}  "
        over = times.due_s is not None and times.due_s < at_s
        print(visible(line + _say(times.due_s) + (" (expired)" if over else "")))


def _say(at_s: int | None) -> str:
    return "unknown" if at_s is None else say_time(at_s)


def _add_collect_parser(verbs: Any) -> None:
    """Add the verb `collect`."""
    parser = verbs.add_parser(
        "collect",
        run=run_collect,
        help="write this machine's evidence, or a reference set made of it",
        description="Collects evidence from this machine's TPM, TDX, SEV-SNP, Azure paravisor "
        "or GPUs. With --as-reference it becomes a signed reference set, with which the "
        "parties compare machines that must be equal to this one.",
    )
    parser.add_argument(
        "--kind",
        choices=("auto", *_OPENERS),
        default="auto",
        help="default: the TEE if there is one, else the TPM; never development",
    )
    parser.add_argument(
        "--bound",
        metavar="HEX",
        help="2 to 64 bytes that it contains (NVIDIA: to 32); default: 32 random bytes",
    )
    parser.add_file("-o", "--out", required=True)
    parser.add_argument(
        "--as-reference", metavar="NAME", help="write a signed reference set instead"
    )
    parser.add_file("--key", help="the identity key, for --kind development")
    _add_set_arguments(parser)
    add_collateral_argument(parser)
    add_tpm_arguments(parser)


def run_collect(args: argparse.Namespace, platform: HostPlatform | None = None) -> int:
    """Collect and write; the exit code."""
    require_absent(args.out)
    bound = parse_bound(args.bound) if args.bound else secrets.token_bytes(BOUND_BYTES)
    opener = _auto if args.kind == "auto" else _OPENERS[args.kind]
    attester = opener(args, platform or HostPlatform())
    with ExitStack() as opened:
        if isinstance(attester, TpmAttester | AzureAttester):
            opened.enter_context(attester)
        evidence = attester.collect(bound)
    if args.as_reference:
        write_set(
            ReferenceSource(name=args.as_reference, evidence=evidence, bound=bound),
            args,
        )
        return 0
    write_whole(args.out, codec.encode(evidence))
    print(f"kind      {evidence.kind}\nevidence  {evidence.digest}")
    print(f"bound     {bound.hex()}")
    if evidence.kind == "development":
        say("development evidence is made with software keys and protects nobody")
    return 0


def _auto(args: argparse.Namespace, platform: HostPlatform) -> Attester:
    missing: list[str] = []
    for opener in (_tee, _tpm):
        try:
            return opener(args, platform)
        except UnavailableError as error:
            missing.append(error.what)
    raise UnavailableError(
        "this machine cannot attest itself",
        why="; ".join(missing),
        fix="Use a TDX or SEV-SNP guest or a host with a TPM, or name a --kind",
        code="no-evidence",
    )


def _tee(args: argparse.Namespace, platform: HostPlatform) -> Attester:
    return open_tee(evidence_places(args), platform, STATE)


def _tpm(args: argparse.Namespace, platform: HostPlatform) -> Attester:
    return open_tpm(evidence_places(args), STATE)


def _tdx(args: argparse.Namespace, platform: HostPlatform) -> Attester:
    return open_tdx(platform)


def _snp(args: argparse.Namespace, platform: HostPlatform) -> Attester:
    return SnpAttester(platform.reader)


def _azure(args: argparse.Namespace, platform: HostPlatform) -> Attester:
    return open_azure(evidence_places(args), platform, STATE)


def _nvidia(args: argparse.Namespace, platform: HostPlatform) -> Attester:
    gpus = gpu_attesters(platform.nvml())
    if len(gpus) != 1:
        raise UnavailableError(
            f"this machine has {len(gpus)} GPUs that can attest themselves",
            why="evidence of kind nvidia is about one GPU",
            fix="Use --kind composite for several GPUs and their machine",
            code="gpu-unavailable",
        )
    return gpus[0]


def _composite(args: argparse.Namespace, platform: HostPlatform) -> CompositeAttester:
    """This binds the GPUs, which then accept work: once per boot."""
    return bind_devices(_auto(args, platform), platform)()


def _development(args: argparse.Namespace, platform: HostPlatform) -> Attester:
    if args.key is None:
        raise UsageError(
            "development evidence needs an identity key that signs it",
            fix="Add --key FILE, with the key that the agreement names",
            code="usage",
        )
    return DevelopmentAttester(
        unlock(args, args.key),
        role=Role.ACCELERATOR,
        software=f"sealift {__version__}",
    )


_OPENERS: Final[dict[str, Callable[[argparse.Namespace, HostPlatform], Attester]]] = {
    "tpm": _tpm,
    "tdx": _tdx,
    "snp": _snp,
    "azure": _azure,
    "nvidia": _nvidia,
    "composite": _composite,
    "development": _development,
}


def _add_reference_parser(verbs: Any) -> None:
    """Add the verb `reference`."""
    parser = verbs.add_parser(
        "reference",
        run=_run_reference,
        help="make a signed reference set from the evidence of a machine that you trust",
        description="The evidence must pass every check against the values that are made from "
        "it, so some kinds need --collateral. The parties then expect these values of "
        "every machine: read the file before you sign an agreement that names it.",
    )
    add_evidence_arguments(parser)
    parser.add_argument("--name", required=True, help="the set's name in agreements")
    _add_set_arguments(parser)
    add_collateral_argument(parser)
    add_time_argument(parser)
    parser.add_argument(
        "--bound", metavar="HEX", help="the 2 to 64 bytes that it must contain"
    )
    parser.add_file("-o", "--out", required=True)


def _add_set_arguments(parser: Parser) -> None:
    """Add who signs the set, and what its values cannot be derived from."""
    group = parser.add_argument_group("the reference set")
    group.add_file("--signer-key", help="the identity key that signs it")
    group.add_argument(
        "--number",
        type=int,
        default=1,
        metavar="N",
        help="the set's number; one more at each change",
    )
    group.add_argument(
        "--operator",
        choices=("hardware", "virtual", "software"),
        help="what the TPM is: a chip, virtual (in a cloud), or software (for rehearsals)",
    )
    group.add_argument(
        "--must",
        action="append",
        default=[],
        metavar="PATH",
        help="TPM: a file that every host's IMA list must contain, beside the interpreters, "
        "IMA policies and agents that this host's list names",
    )
    group.add_flag("--pin", "accept this machine only, not others that are equal to it")
    group.add_flag(
        "--without-revocation",
        "accept evidence without checking whether its keys were revoked (TPM: even if its "
        "certificate does not say where to check)",
    )
    parser.add_passphrase()


def _run_reference(args: argparse.Namespace) -> int:
    """Write the set; the exit code."""
    require_absent(args.out)
    sealed = args.bound is not None
    write_set(
        ReferenceSource(
            name=args.name,
            evidence=load_evidence(args).evidence,
            bound=parse_bound(args.bound) if sealed else None,
            at_s=parse_time(args.at),
        ),
        args,
    )
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceSource:
    """What a set is made from.

    Attributes:
        name: Of the set.
        evidence: Of the machine.
        bound: What it must carry, if somebody knows.
        at_s: Time to judge it at.
    """

    name: str
    evidence: Evidence
    bound: bytes | None
    at_s: float = field(default_factory=time.time)  # noqa: TID251 - the command line


def write_set(source: ReferenceSource, args: argparse.Namespace) -> None:
    """Derive, prove, sign and write; says what the set is called."""
    if args.signer_key is None:
        raise UsageError(
            "the reference set needs a signer",
            fix="Add --signer-key with the identity key of a party",
            code="usage",
        )
    trusted = Trusted(
        at_s=int(source.at_s),
        bound=source.bound,
        collateral=load_collateral(args.collateral),
        operator=args.operator,
        must=tuple(args.must),
        pin=args.pin,
        revocation=not args.without_revocation,
    )
    values = to_references(source.evidence, trusted)
    made = ReferenceSet(
        name=source.name, number=args.number, made_at_s=int(source.at_s), values=values
    )
    signer = unlock(args, args.signer_key)
    write_whole(args.out, codec.encode(sign_set(made, signer)))
    print(f"set     {made.name} {made.number}\nsigner  {signer.public_key}")
    if source.bound is None:
        say("freshness was not verified: the evidence may be an old copy")
    say(f"read {args.out}, then name set and signer in the agreement's references.sets")


def add_parser(subparsers: Any) -> None:
    """Add the noun `attest`."""
    verbs = subparsers.add_parser("attest").add_verbs()
    _add_collect_parser(verbs)
    _add_collateral_parser(verbs)
    _add_reference_parser(verbs)
    _add_verify_parser(verbs)


def _add_verify_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "verify",
        run=_verify,
        help="verify a file of evidence against reference values",
        description="Prints every comparison, with the expected value and the value that was "
        "found. Works offline; certificates and lists of vendors come from --collateral.",
    )
    add_evidence_arguments(parser)
    parser.add_file("--agreement", help="take reference values and levels from it")
    parser.add_file(
        "--references",
        help="a signed reference set, which the agreement names or which replaces it",
    )
    parser.add_argument(
        "--signer", metavar="KEY", help="the key that must have signed it"
    )
    add_collateral_argument(parser)
    parser.add_argument(
        "--accept",
        metavar="LEVELS",
        help="levels for --references; default: all but development",
    )
    fresh = parser.add_mutually_exclusive_group(required=True)
    fresh.add_argument(
        "--bound", metavar="HEX", help="the 2 to 64 bytes that it must contain"
    )
    fresh.add_argument(
        "--unbound",
        action="store_true",
        help="do not compare them, so a copy of old evidence is accepted",
    )
    add_time_argument(parser)
    parser.add_json()


def _verify(args: argparse.Namespace) -> int:
    evidence = load_evidence(args).evidence
    appraiser = _appraiser(args)
    bound = None if args.unbound else parse_bound(args.bound)
    claims = appraiser.examine(evidence, bound)
    if args.unbound:
        checks = (each for each in claims.checks if each.code != UNBOUND)
        claims = replace(claims, checks=tuple(checks))
    refusal = _refusal(appraiser, claims)
    if args.json:
        print(json.dumps(_facts(evidence, claims, refusal)))
    else:
        _print_table(evidence, claims, refusal)
    if args.unbound and not args.json:
        say("freshness was not verified: the evidence may be an old copy")
    if refusal is not None:
        raise refusal
    return 0


def _appraiser(args: argparse.Namespace) -> Appraiser:
    at_s = parse_time(args.at)
    collateral = load_collateral(args.collateral)
    if args.agreement is not None:
        return equip(
            load_verified(args.agreement),
            clock=lambda: at_s,
            collateral=collateral,
            sets=[_read_set(args.references)] if args.references else (),
        ).appraiser()
    accept = parse_accept(args.accept.split(",")) if args.accept else REAL_LEVELS
    appraiser = Appraiser(accept=accept, collateral=collateral, clock=lambda: at_s)
    if args.references is None:
        return appraiser
    signed = _read_set(args.references)
    signer = PublicKey.from_text(args.signer) if args.signer else signed.signer
    name = SetName(name=signed.set.name, signer=signer, number=1)
    found = verify_set(signed, name)
    if not args.signer:
        say(f"{signer} signed the reference set {found.name} {found.number}")
    return replace(appraiser, references=found.values)


def _read_set(path: Path) -> SignedReferenceSet:
    return parse_set(read_whole(path, MAX_SET_BYTES))


def _refusal(appraiser: Appraiser, claims: Claims) -> RefusedError | None:
    try:
        appraiser.judge(claims)
    except RefusedError as error:
        return error
    return None


def _facts(
    evidence: Evidence, claims: Claims, refusal: RefusedError | None
) -> dict[str, Any]:
    return {
        "kind": evidence.kind,
        "evidence": evidence.digest.to_text(),
        "attester": claims.attester,
        "level": claims.level.value if claims.level else None,
        "rehearsing": claims.rehearsing.value if claims.rehearsing else None,
        "tier": claims.trust.tier.value,
        "trust": to_plain(claims.trust),
        "code_bundle": claims.code_bundle.to_text() if claims.code_bundle else None,
        "measurements": {name: raw.hex() for name, raw in claims.measurements.items()},
        "checks": [to_plain(each) for each in claims.checks],
        "notes": list(claims.notes),
        "refused": refusal.code if refusal else None,
    }


def _print_table(
    evidence: Evidence, claims: Claims, refusal: RefusedError | None
) -> None:
    facts = _facts(evidence, claims, refusal)
    for name in ("kind", "evidence", "attester", "level", "rehearsing", "code_bundle"):
        if facts[name] is not None:
            _row(name.replace("_", " "), str(facts[name]))
    _row("trust", f"{claims.trust.tier}: {_say_trust(claims.trust)}")
    width = max((len(each.subject) for each in claims.checks), default=7)
    print(f"\n    {'checked':<{width}}  {'expected':<{WIDTH}}  found")
    for each in claims.checks:
        print(visible(_say_check(each, width)))
    print()
    for note in claims.notes:
        _row("note", note)
    _row("verdict", f"refused [{refusal.code}]" if refusal else "accepted")


def _row(name: str, value: str) -> None:
    print(visible(f"{name:<11}  {value}"))


def _say_check(each: AppraisalCheck, width: int) -> str:
    mark = "ok" if each.passed else "NO"
    expected = _short(each.expected)
    found = _short(each.found) if each.passed else each.found
    return f"{mark}  {each.subject:<{width}}  {expected:<{WIDTH}}  {found}"


def _say_trust(trust: TrustVector) -> str:
    values = to_plain(trust).items()
    return ", ".join(f"{name.replace('_', '-')} {v}" for name, v in values if v)


def _short(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 9]}…{text[-8:]}"
