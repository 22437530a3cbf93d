"""Intel's signed lists, and the level that a platform has by them.

TCB levels of platforms, identity of quoting enclaves. A list is JSON inside JSON:
``{"tcbInfo":{...},"signature":"..."}``. Intel signs the inner object's bytes as they
stand, so they are cut out, verified and only then parsed.
Source: Intel SGX and TDX provisioning certification service API, versions 3 and 4.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sealift.attest.tdx.evidence import EnclaveReport, TdReport
from sealift.errors import EvidenceError, MalformedError

T = TypeVar("T")
MAX_LIST_BYTES: Final = 256 << 10
COMPONENTS: Final = 16
STATUSES: Final = (
    "UpToDate",
    "SWHardeningNeeded",
    "ConfigurationNeeded",
    "ConfigurationAndSWHardeningNeeded",
    "OutOfDate",
    "OutOfDateConfigurationNeeded",
    "Revoked",
)
UNKNOWN: Final = "Unknown"  # not Intel's: no level of the list matches
_NEEDS_CONFIGURATION: Final = {
    "ConfigurationNeeded",
    "ConfigurationAndSWHardeningNeeded",
    "OutOfDateConfigurationNeeded",
}
_OUTER: Final = re.compile(
    rb'\{"([A-Za-z]{1,32})":(\{.*\}),"signature":"([0-9A-Fa-f]{128})"\}\n?', re.DOTALL
)
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@dataclass(frozen=True, slots=True)
class SignedList:
    """The parts of a list; nothing is verified yet.

    Attributes:
        name: ``tcbInfo`` or ``enclaveIdentity``.
        signed: The bytes that are signed.
        signature: r || s over them, P-256 and SHA-256.
    """

    name: str
    signed: bytes
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TcbLevel:
    """One level and what Intel says of platforms at it.

    Attributes:
        status: One of ``STATUSES``.
        advisories: Security advisories that concern it.
        sgx: Lowest security versions, 16, or empty in an identity.
        tdx: The same of TDX, 16, or empty.
        svn: Lowest PCESVN (of a platform) or ISVSVN (of an enclave or module).
    """

    status: str
    advisories: tuple[str, ...]
    sgx: tuple[int, ...] = ()
    tdx: tuple[int, ...] = ()
    svn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleIdentity:
    """Who may have made a TDX module.

    Attributes:
        name: ``TDX_01`` for major version 1; empty for major version 0.
        mrsigner: 48 bytes.
        attributes, mask: 8 bytes each; only masked bits are compared.
        levels: Best first; none for major version 0.
    """

    name: str
    mrsigner: bytes
    attributes: bytes
    mask: bytes
    levels: tuple[TcbLevel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TcbInfo:
    """The levels of one kind of platform.

    Attributes:
        kind: ``SGX`` or ``TDX``.
        issued_s, due_s: Its time, seconds since 1970.
        fmspc, pceid: The platforms that it is about.
        evaluation: tcbEvaluationDataNumber; grows whenever Intel judges anew.
        modules: TDX modules, major version 0 first if it is there.
        levels: Best first.
    """

    kind: str
    issued_s: int
    due_s: int
    fmspc: bytes
    pceid: bytes
    evaluation: int
    modules: tuple[ModuleIdentity, ...]
    levels: tuple[TcbLevel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QeIdentity:
    """What a quoting enclave of Intel's looks like.

    Attributes:
        kind: ``QE`` or ``TD_QE``.
        issued_s, due_s, evaluation: As in ``TcbInfo``.
        miscselect, miscselect_mask: 32 bits.
        attributes, attributes_mask: 16 bytes.
        mrsigner: 32 bytes.
        product: ISVPRODID.
        levels: By ISVSVN, best first.
    """

    kind: str
    issued_s: int
    due_s: int
    evaluation: int
    miscselect: int
    miscselect_mask: int
    attributes: bytes
    attributes_mask: bytes
    mrsigner: bytes
    product: int
    levels: tuple[TcbLevel, ...]


def split_list(raw: bytes) -> SignedList:
    """Cut out what is signed.

    Raises:
        MalformedError: if it is not a signed list.
    """
    found = _OUTER.fullmatch(raw) if len(raw) <= MAX_LIST_BYTES else None
    if found is None:
        raise MalformedError("the file is not a signed list of Intel's service")
    name, signed, signature = found.groups()
    return SignedList(name.decode(), signed, bytes.fromhex(signature.decode()))


def parse_tcb_info(signed: bytes) -> TcbInfo:
    """Parse a verified ``tcbInfo``.

    Raises:
        MalformedError: if a field is missing or of another kind or version.
    """
    outer = _parse_object(signed)
    version = _get(outer, "version", int)
    kind = _get(outer, "id", str) if version == 3 else "SGX"
    if version not in {2, 3} or kind not in {"SGX", "TDX"}:
        raise MalformedError(f"the TCB levels have version {version}", field="version")
    modules: list[tuple[str, dict[str, Any]]] = []
    if kind == "TDX":
        named = _objects(outer, "tdxModuleIdentities")
        modules.append(("", _get(outer, "tdxModule", dict)))
        modules += [(_get(each, "id", str), each) for each in named]
    return TcbInfo(
        kind=kind,
        issued_s=_time(outer, "issueDate"),
        due_s=_time(outer, "nextUpdate"),
        fmspc=_hex(outer, "fmspc", 6),
        pceid=_hex(outer, "pceId", 2),
        evaluation=_get(outer, "tcbEvaluationDataNumber", int),
        modules=tuple(_module(name, plain) for name, plain in modules),
        levels=tuple(
            _platform_level(each, version, kind)
            for each in _objects(outer, "tcbLevels")
        ),
    )


def parse_qe_identity(signed: bytes) -> QeIdentity:
    """Parse a verified ``enclaveIdentity``.

    Raises:
        MalformedError: if a field is missing or of another kind or version.
    """
    outer = _parse_object(signed)
    if _get(outer, "version", int) != 2:
        raise MalformedError(
            "the enclave identity has another version", field="version"
        )
    return QeIdentity(
        kind=_get(outer, "id", str),
        issued_s=_time(outer, "issueDate"),
        due_s=_time(outer, "nextUpdate"),
        evaluation=_get(outer, "tcbEvaluationDataNumber", int),
        miscselect=int.from_bytes(_hex(outer, "miscselect", 4)),
        miscselect_mask=int.from_bytes(_hex(outer, "miscselectMask", 4)),
        attributes=_hex(outer, "attributes", 16),
        attributes_mask=_hex(outer, "attributesMask", 16),
        mrsigner=_hex(outer, "mrsigner", 32),
        product=_get(outer, "isvprodid", int),
        levels=tuple(_svn_level(each) for each in _objects(outer, "tcbLevels")),
    )


def _module(name: str, plain: Mapping[str, Any]) -> ModuleIdentity:
    return ModuleIdentity(
        name=name,
        mrsigner=_hex(plain, "mrsigner", 48),
        attributes=_hex(plain, "attributes", 8),
        mask=_hex(plain, "attributesMask", 8),
        levels=tuple(_svn_level(each) for each in _objects(plain, "tcbLevels")),
    )


def _platform_level(plain: Mapping[str, Any], version: int, kind: str) -> TcbLevel:
    tcb = _get(plain, "tcb", dict)
    old = (
        [_get(tcb, f"sgxtcbcomp{i + 1:02}svn", int) for i in range(COMPONENTS)]
        if (version == 2)
        else _components(tcb, "sgxtcbcomponents")
    )
    return TcbLevel(
        **_verdict(plain),
        sgx=tuple(old),
        tdx=tuple(_components(tcb, "tdxtcbcomponents")) if kind == "TDX" else (),
        svn=_get(tcb, "pcesvn", int),
    )


def _svn_level(plain: Mapping[str, Any]) -> TcbLevel:
    svn = _get(_get(plain, "tcb", dict), "isvsvn", int)
    return TcbLevel(**_verdict(plain), svn=svn)


def _components(tcb: Mapping[str, Any], name: str) -> list[int]:
    found = [_get(each, "svn", int) for each in _objects(tcb, name)]
    if len(found) != COMPONENTS:
        raise MalformedError(
            f"the list does not have {COMPONENTS} security versions", field=name
        )
    return found


def _verdict(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Status and advisories of a level."""
    status, found = _get(plain, "tcbStatus", str), plain.get("advisoryIDs", [])
    if status not in STATUSES:
        raise MalformedError("the TCB status is unknown", field="tcbStatus")
    if not isinstance(found, list) or not all(isinstance(x, str) for x in found):
        raise MalformedError("the value is not a list of names", field="advisoryIDs")
    return {"status": status, "advisories": tuple(found)}


def _objects(plain: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """A list of objects; empty if it is not there."""
    found = plain.get(name, [])
    if not isinstance(found, list) or not all(isinstance(x, dict) for x in found):
        raise MalformedError("the value is not a list of objects", field=name)
    return found


def _get(plain: Mapping[str, Any], name: str, kind: type[T]) -> T:
    found = plain.get(name)
    if type(found) is not kind:
        raise MalformedError("a field is missing or has another type", field=name)
    return found


def _hex(plain: Mapping[str, Any], name: str, size: int) -> bytes:
    text = _get(plain, name, str)
    if not re.fullmatch(f"[0-9A-Fa-f]{{{2 * size}}}", text):
        raise MalformedError(f"the value is not {size} bytes in hex", field=name)
    return bytes.fromhex(text)


def _time(plain: Mapping[str, Any], name: str) -> int:
    text = _get(plain, name, str)
    try:
        if not _TIME.fullmatch(text):
            raise ValueError
        return int(dt.datetime.fromisoformat(text).timestamp())
    except ValueError:
        raise MalformedError("the value is not a time", field=name) from None


def _parse_object(raw: bytes) -> dict[str, Any]:
    try:
        plain = json.loads(raw.decode("ascii"), object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise MalformedError("the bytes are not JSON") from None
    if not isinstance(plain, dict):
        raise MalformedError("the value is not a JSON object")
    return plain


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    if len(plain) != len(pairs):
        raise MalformedError("a field occurs twice")
    return plain


def platform_level(
    tcb: TcbInfo,
    components: Sequence[int],
    pcesvn: int,
    body: EnclaveReport | TdReport,
) -> TcbLevel | None:
    """The best level whose security versions the platform reaches, or None."""
    for level in tcb.levels:
        reached = _reaches(components, level.sgx) and pcesvn >= level.svn
        if reached and isinstance(body, TdReport):
            # From major version 1 on, the module's own are judged by its identity.
            first = 2 if body.tee_tcb_svn[1] else 0
            reached = _reaches(body.tee_tcb_svn[first:], level.tdx[first:])
        if reached:
            return level
    return None


def find_module(tcb: TcbInfo, body: TdReport) -> ModuleIdentity:
    """The identity of the TDX module that made the report.

    Raises:
        EvidenceError: ``tdx-module-unknown``.
    """
    major = body.tee_tcb_svn[1]
    name = f"TDX_{major:02X}" if major else ""
    found = next((each for each in tcb.modules if each.name == name), None)
    if (
        found is None
        or body.mrsignerseam != found.mrsigner
        or _masked(body.seam_attributes, found.mask)
        != _masked(found.attributes, found.mask)
    ):
        raise EvidenceError(
            "the TDX module was not made by Intel",
            why=(
                f"it has major version {major} and signer "
                f"{body.mrsignerseam.hex()[:16]}…"
            ),
            code="tdx-module-unknown",
        )
    return found


def require_quoting_enclave(identity: QeIdentity, qe: EnclaveReport) -> None:
    """Refuse an enclave that is not Intel's quoting enclave.

    Raises:
        EvidenceError: ``quoting-enclave-unknown``.
    """
    flags = _masked(qe.attributes, identity.attributes_mask)
    misc = qe.miscselect & identity.miscselect_mask
    if (
        qe.mrsigner != identity.mrsigner
        or qe.product != identity.product
        or flags != _masked(identity.attributes, identity.attributes_mask)
        or misc != identity.miscselect & identity.miscselect_mask
    ):
        raise EvidenceError(
            "the quoting enclave was not made by Intel",
            why=f"it has signer {qe.mrsigner.hex()[:16]}… and product {qe.product}",
            code="quoting-enclave-unknown",
        )


def svn_level(levels: Iterable[TcbLevel], svn: int) -> TcbLevel | None:
    """The best level that a security version reaches, or None."""
    return next((level for level in levels if svn >= level.svn), None)


def converge(platform: str, parts: Sequence[str]) -> str:
    """One status of the platform's and those of its quoting enclave and TDX module.

    A part that is out of date makes the platform so; revoked and unknown win over all.
    """
    everything = (platform, *parts)
    for worst in (UNKNOWN, "Revoked"):
        if worst in everything:
            return worst
    if "OutOfDate" not in parts:
        return platform
    needs = platform in _NEEDS_CONFIGURATION
    return "OutOfDateConfigurationNeeded" if needs else "OutOfDate"


def _reaches(found: Sequence[int], lowest: Sequence[int]) -> bool:
    return all(have >= need for have, need in zip(found, lowest, strict=True))


def _masked(value: bytes, mask: bytes) -> bytes:
    return bytes(x & y for x, y in zip(value, mask, strict=True))
