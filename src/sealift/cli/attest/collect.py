"""`sealift attest collect`: write this machine's evidence, or a reference set made of it."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from sealift import __version__, codec
from sealift.attest.azure.attester import AzureAttester
from sealift.attest.composite import CompositeAttester
from sealift.attest.configfs import SnpAttester
from sealift.attest.development import DevelopmentAttester
from sealift.attest.evidence import BOUND_BYTES, Attester
from sealift.attest.nvidia.attester import gpu_attesters
from sealift.attest.tpm.attester import TpmAttester
from sealift.cli.attest.reference import ReferenceSource, add_set_arguments, write_set
from sealift.cli.console import say, unlock
from sealift.cli.judging import add_collateral_argument, parse_bound
from sealift.cli.roles.attester import add_tpm_arguments, evidence_places
from sealift.errors import UnavailableError, UsageError
from sealift.ids import Role
from sealift.release.files import require_absent, write_whole
from sealift.train.job.hostattester import (
    HostPlatform,
    bind_devices,
    open_azure,
    open_tdx,
    open_tee,
    open_tpm,
)

STATE: Final = Path("tpm")


def add_collect_parser(verbs: Any) -> None:
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
    add_set_arguments(parser)
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
