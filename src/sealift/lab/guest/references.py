"""Reference values of a guest: what its image may run, and what booted.

What may run, and the register of the initramfs, are known when the image is built. The
other registers are collected from one boot of that image that its owner watched: they
depend on QEMU's version too, which hands the kernel to the firmware.
"""

from __future__ import annotations

from typing import Final

from sealift.attest.evidence import Evidence
from sealift.attest.reference import (
    ImaReferences,
    Operator,
    TpmReferences,
    TpmRoot,
)
from sealift.attest.tpm.evidence import TpmBody
from sealift.crypto.certificate import Certificate
from sealift.crypto.hash import sha256
from sealift.lab.guest.image import ImageManifest
from sealift.lab.guest.protocol import BUNDLE, BUSYBOX, COMMAND_LINE, PYTHON

# Firmware, its settings, the kernel, boot attempts, secure boot's keys; nothing
# extends 8 here, and that is worth knowing too.
WATCHED_PCRS: Final = (0, 1, 2, 3, 4, 5, 6, 7, 8)
KERNEL_PCR: Final = 9  # what the kernel was given: command line and initramfs
ROOT_NAME: Final = "software TPM of this machine"


def _image_references(manifest: ImageManifest) -> ImaReferences:
    """What an image may execute, map, and read as its bundle; and what it must.

    The policy and the agent's code lie in the initramfs, which register 9 pins.
    """
    return ImaReferences(
        allow={k: (v,) for k, v in manifest.allowed.items()},
        must=(BUSYBOX, PYTHON, BUNDLE),
    )


def kernel_register(manifest: ImageManifest) -> bytes:
    """PCR 9 after a boot of that image, computed from the image alone.

    The EFI stub of the kernel measures its command line, to which OVMF adds the name of
    the initramfs, and then the initramfs.
    """
    command_line = f"{COMMAND_LINE} initrd=initrd\0".encode("utf-16-le")
    after_line = sha256(bytes(32), sha256(command_line))
    return sha256(after_line, manifest.initrd.raw)


def guest_references(
    manifest: ImageManifest,
    first: Evidence,
    root: Certificate,
    *,
    operator: Operator = "software",
) -> TpmReferences:
    """Reference values for the host that made ``first``, and for no other one.

    Args:
        manifest: Of the image that it booted.
        first: Evidence of a boot that its owner watched.
        root: Of whoever certified its TPM.
        operator: What ``root`` stands for; ``software`` is the truth of this guest.

    Raises:
        MalformedError: if ``first`` does not parse.
    """
    body = TpmBody.parse(first.body)
    values = body.registers()["sha256"]
    return TpmReferences(
        roots=(TpmRoot(name=ROOT_NAME, key=root.spki_digest, operator=operator),),
        endorsement_keys=(Certificate(body.certificates[0]).spki_digest,),
        pcrs={
            **{str(number): (values[number],) for number in WATCHED_PCRS},
            str(KERNEL_PCR): (kernel_register(manifest),),
        },
        ima=_image_references(manifest),
        revocation="none",  # a software TPM's maker revokes nothing
    )
