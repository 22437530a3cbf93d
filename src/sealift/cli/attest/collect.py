"""`sealift attest collect`: evidence of this machine, as a file or as a reference set."""

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
from sealift.attest.evidence import BOUND_BYTES, Attester, Evidence
from sealift.attest.nvidia.attester import gpu_attesters
from sealift.attest.tpm.attester import TpmAttester
from sealift.cli.attest.reference import ReferenceSource, add_set_arguments, write_set
from sealift.cli.console import require_absent, say, unlock
from sealift.cli.judging import add_collateral_argument, parse_bound
from sealift.cli.roles.attester import add_tpm_arguments, evidence_places
from sealift.errors import UnavailableError, UsageError
from sealift.ids import Role
from sealift.release.files import write_whole
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
        help="write evidence of this machine, or what others may expect of it",
        description="Asks this machine's TPM, TDX, SEV-SNP or Azure's paravisor, or "
        "GPUs. With "
        "--as-reference the evidence becomes a signed reference set: what the parties "
        "then expect of every machine that is to be like this one.",
    )
    parser.add_argument(
        "--kind",
        choices=("auto", *_OPENERS),
        default="auto",
        help="default: a TEE if this is one, else the TPM; never development",
    )
    parser.add_argument(
        "--bound",
        metavar="HEX",
        help="2 to 64 bytes to carry (NVIDIA: to 32); 32 random ones if not given",
    )
    parser.add_file("-o", "--out", required=True)
    parser.add_argument(
        "--as-reference", metavar="NAME", help="write a signed reference set instead"
    )
    parser.add_file("--key", help="identity, for --kind development")
    add_set_arguments(parser)
    add_collateral_argument(parser)
    add_tpm_arguments(parser)


def run_collect(args: argparse.Namespace, platform: HostPlatform | None = None) -> int:
    """Collect and write; the exit code."""
    require_absent(args.out)
    bound = parse_bound(args.bound) if args.bound else secrets.token_bytes(BOUND_BYTES)
    evidence = _collect(args, platform or HostPlatform(), bound)
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
        say("software keys: nobody is kept out")
    return 0


def _collect(
    args: argparse.Namespace, platform: HostPlatform, bound: bytes
) -> Evidence:
    opener = _auto if args.kind == "auto" else _OPENERS[args.kind]
    attester = opener(args, platform)
    with ExitStack() as own:
        if isinstance(attester, TpmAttester | AzureAttester):
            own.enter_context(attester)
        return attester.collect(bound)


def _auto(args: argparse.Namespace, platform: HostPlatform) -> Attester:
    lacking: list[str] = []
    for opener in (_tee, _tpm):
        try:
            return opener(args, platform)
        except UnavailableError as error:
            lacking.append(error.what)
    raise UnavailableError(
        "this machine has no evidence to show",
        why="; ".join(lacking),
        fix="Run on a TDX or SEV-SNP guest or a host with a TPM, or ask for a kind",
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
            f"this machine has {len(gpus)} GPUs that can be asked",
            why="evidence of kind nvidia is of one",
            fix="Use --kind composite for several with their machine",
            code="gpu-unavailable",
        )
    return gpus[0]


def _composite(args: argparse.Namespace, platform: HostPlatform) -> CompositeAttester:
    """This binds the GPUs, which then accept work: once per boot."""
    return bind_devices(_auto(args, platform), platform)()


def _development(args: argparse.Namespace, platform: HostPlatform) -> Attester:
    if args.key is None:
        raise UsageError(
            "development evidence is signed by an identity",
            fix="Give --key FILE, with the key that the agreement names",
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
