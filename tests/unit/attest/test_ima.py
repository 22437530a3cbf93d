"""What a host executed, appraised: every entry counts, whatever order it came in."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sealift.attest.reference import ImaReferences
from sealift.attest.tpm.ima import MAX_REPORTED, ImaState, advance, parse_list
from sealift.attest.verifier import AppraisalCheck
from sealift.errors import MalformedError
from sealift.ids import Digest
from tests.sim.imalist import (
    Measured,
    binary,
    file_digest,
    measured,
    padded_register,
    register,
    signature,
)

PCRS = {number: bytes([number]) * 32 for number in range(10)}
AGGREGATE = hashlib.sha256(b"".join(PCRS.values())).digest()
BOOT = Measured("ima-sig", (b"sha256:\0" + AGGREGATE, b"boot_aggregate\0", b""))
SHELL, PYTHON = measured("/bin/sh", b"sh"), measured("/usr/bin/python3", b"python")
LIBRARY = measured("/usr/lib/libc.so.6", b"libc", template="ima-ng")
LIST = (BOOT, SHELL, PYTHON, LIBRARY)
REFERENCES = ImaReferences(
    allow={
        "/bin/sh": (Digest(file_digest(b"sh")),),
        "/usr/bin/python3": (Digest(bytes(32)), Digest(file_digest(b"python"))),
        "/usr/lib/libc.so.6": (Digest(file_digest(b"libc")),),
    },
    max_lag=2,
)
AT_BOOT = ImaState.at_boot("sha256")
FOREIGN = measured("/tmp/evil", b"evil")


def appraise(
    entries: tuple[Measured, ...],
    quoted: bytes | None = None,
    *,
    references: ImaReferences = REFERENCES,
    state: ImaState = AT_BOOT,
    pcrs: dict[int, bytes] | None = PCRS,
) -> tuple[ImaState, tuple[AppraisalCheck, ...]]:
    """What must be there is the first program, where the test does not say."""
    value = register(*entries, start=state.register) if quoted is None else quoted
    ran = [each.fields[1].rstrip(b"\0").decode() for each in entries]
    programs = tuple(path for path in ran if path != "boot_aggregate")
    must = references.must or programs[:1] or ("/bin/sh",)
    references = replace(references, must=must)
    return advance(state, parse_list(binary(*entries)), value, references, pcrs=pcrs)


def refusals(checks: tuple[AppraisalCheck, ...]) -> list[str]:
    return [each.code for each in checks if not each.passed]


def test_allowed_list_is_proved() -> None:
    state, checks = appraise(LIST)
    assert not refusals(checks)
    assert (state.count, state.register) == (4, register(*LIST))


@pytest.mark.parametrize("bank", ["sha256", "sha384"])
def test_any_bank_is_replayed(bank: str) -> None:
    size = hashlib.new(bank).digest_size
    pcrs = {number: bytes(size) for number in range(10)}
    raw = hashlib.new(bank, bytes(10 * size)).digest()
    boot = Measured("ima-ng", (bank.encode() + b":\0" + raw, b"boot_aggregate\0"))
    quoted = register(boot, SHELL, bank=bank)
    state = ImaState.at_boot("sha384" if bank == "sha384" else "sha256")
    _, checks = appraise((boot, SHELL), quoted, state=state, pcrs=pcrs)
    assert not refusals(checks)


def test_only_new_entries_travel() -> None:
    state, _ = appraise(LIST[:2])
    state, checks = appraise(LIST[2:], register(*LIST), state=state)
    assert not refusals(checks)
    assert (state.count, state.register) == (4, register(*LIST))
    again, checks = appraise((), state.register, state=state)
    assert (again.count, again.register) == (state.count, state.register)
    assert not refusals(checks)


def test_list_ahead_of_the_quote_waits_for_the_next_one() -> None:
    """What no quote covers is neither allowed nor refused yet."""
    state, checks = appraise((*LIST, FOREIGN), register(*LIST))
    assert not refusals(checks)
    assert state.count == 4
    _, checks = appraise((FOREIGN,), register(*LIST, FOREIGN), state=state)
    assert refusals(checks) == ["ima-entry-unlisted"]


def test_list_too_far_ahead_is_refused() -> None:
    _, checks = appraise((*LIST, SHELL, SHELL, SHELL), register(*LIST))
    assert refusals(checks) == ["ima-lag"]


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param((BOOT, PYTHON, SHELL, LIBRARY), id="reordered"),
        pytest.param((BOOT, PYTHON, LIBRARY), id="dropped"),
        pytest.param((BOOT, SHELL, SHELL, PYTHON, LIBRARY), id="inserted"),
        pytest.param(LIST[:3], id="cut"),
        pytest.param(
            (BOOT, SHELL, replace(PYTHON, violation=True), LIBRARY), id="mark"
        ),
        pytest.param((), id="empty"),
    ],
)
def test_another_list_than_was_quoted_is_refused(shown: tuple[Measured, ...]) -> None:
    state, checks = appraise(shown, register(*LIST))
    assert refusals(checks) == ["ima-replay-differs"]
    assert state == AT_BOOT


def test_every_byte_of_template_data_is_covered() -> None:
    quoted, raw = register(*LIST), binary(*LIST)
    for place, entry in enumerate(LIST):
        begin = raw.index(entry.content)
        for at in range(begin, begin + len(entry.content)):
            changed = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
            _, checks = advance(AT_BOOT, parse_list(changed), quoted, REFERENCES)
            assert "ima-replay-differs" in refusals(checks), (place, at)


def test_recorded_hashes_cover_nothing() -> None:
    """Their bytes change no verdict: only all zeros have a meaning, and that is replayed."""
    raw, quoted = binary(*LIST), register(*LIST)
    for entry in LIST:
        at = raw.index(entry.recorded)
        changed = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        references = replace(REFERENCES, must=("/bin/sh",))
        again = advance(AT_BOOT, parse_list(changed), quoted, references, pcrs=PCRS)
        assert again == appraise(LIST)


def test_violations_are_refused() -> None:
    shown = (BOOT, replace(SHELL, violation=True), PYTHON)
    _, checks = appraise(shown)
    assert refusals(checks) == ["ima-violation"]


def test_violating_boot_aggregate_is_refused() -> None:
    _, checks = appraise((replace(BOOT, violation=True), SHELL))
    assert refusals(checks) == ["ima-boot-aggregate"]


@pytest.mark.parametrize(
    "entry",
    [
        FOREIGN,
        measured("/bin/sh", b"other"),
        measured("/bin/bash", b"sh"),
        measured("/bin/sh", b"sh", algorithm="sha1"),
        measured("/bin/sh", b"sh", algorithm="sha512"),
        Measured("ima-ngv2", (b"verity:sha256:\0" + file_digest(b"sh"), b"/bin/sh\0")),
        Measured("ima", (hashlib.sha1(b"sh").digest(), b"/bin/sh")),
    ],
    ids=lambda entry: (
        f"{entry.template}-{entry.fields[1][:12]!r}-{entry.fields[0][:6]!r}"
    ),
)
def test_file_that_is_not_allowed_is_refused(entry: Measured) -> None:
    _, checks = appraise((BOOT, SHELL, entry, PYTHON))
    assert refusals(checks) == ["ima-entry-unlisted"]
    assert [each.subject for each in checks if not each.passed] == ["IMA entry 2"]


def test_listed_file_is_allowed_in_every_template_with_sha256() -> None:
    for template, rest in (("ima-ng", ()), ("ima-modsig", (b"", b"", b""))):
        entry = measured("/bin/sh", b"sh", template=template, rest=rest)
        assert not refusals(appraise((BOOT, entry))[1]), template
    fields = (b"ima:sha256:\0" + file_digest(b"sh"), b"/bin/sh\0")
    assert not refusals(appraise((BOOT, Measured("ima-ngv2", fields)))[1])


def test_many_refused_entries_are_named_up_to_a_limit() -> None:
    entries = [measured(f"/tmp/{number}") for number in range(MAX_REPORTED + 5)]
    _, checks = appraise((BOOT, *entries))
    assert refusals(checks) == ["ima-entry-unlisted"] * MAX_REPORTED


def test_path_with_control_codes_is_shown_escaped() -> None:
    _, checks = appraise((BOOT, measured("/tmp/\x1b[2J\n")))
    found = checks[-2].found
    assert "\\x1b[2J\\n" in found
    assert found.isprintable()


@pytest.mark.parametrize(
    ("pcrs", "listed", "code"),
    [
        (PCRS, False, None),
        (None, True, None),
        (None, False, "ima-boot-aggregate"),
        (PCRS | {4: bytes(32)}, True, "ima-boot-aggregate"),
        ({0: bytes(32)}, False, "ima-boot-aggregate"),
        ({0: bytes(32)}, True, None),
    ],
)
def test_boot_aggregate_is_that_of_the_pcrs_or_listed(
    pcrs: dict[int, bytes] | None, listed: bool, code: str | None
) -> None:
    allow = REFERENCES.allow | (
        {"boot_aggregate": (Digest(AGGREGATE),)} if listed else {}
    )
    _, checks = appraise(LIST, references=replace(REFERENCES, allow=allow), pcrs=pcrs)
    assert refusals(checks) == ([code] if code else [])


@pytest.mark.parametrize("listed", [False, True])
def test_a_second_kernel_is_refused(listed: bool) -> None:
    """After a kexec the quoted boot registers are not those of what runs."""
    more = {"boot_aggregate": (Digest(AGGREGATE),)} if listed else {}
    allow = {**REFERENCES.allow, **more}
    references = replace(REFERENCES, allow=allow)
    state, checks = appraise(LIST, references=references)
    assert not refusals(checks)
    _, checks = appraise((BOOT,), references=references, state=state)
    assert refusals(checks) == ["ima-second-boot"]
    _, checks = appraise((*LIST, BOOT, SHELL), references=references)
    assert refusals(checks) == ["ima-second-boot"]


def test_list_without_boot_aggregate_is_refused() -> None:
    assert refusals(appraise((SHELL,))[1]) == ["ima-boot-aggregate"]


def test_host_that_measures_nothing_is_refused() -> None:
    codes = ["ima-boot-aggregate", "ima-must-have"]
    assert refusals(appraise((), bytes(32))[1]) == codes


def test_a_list_of_the_boot_alone_is_refused() -> None:
    """A kernel that measured nothing but its own boot satisfies every allow-list."""
    _, checks = appraise((BOOT,), references=replace(REFERENCES, must=("/bin/sh",)))
    assert refusals(checks) == ["ima-must-have"]  # nothing else is wrong with it
    assert "/bin/sh" in next(each for each in checks if not each.passed).found
    _, checks = appraise(
        (BOOT, SHELL), references=replace(REFERENCES, must=("/bin/sh",))
    )
    assert not refusals(checks)


@pytest.mark.parametrize(
    ("must", "shown"),
    [
        ((), (BOOT, SHELL)),
        (("boot_aggregate",), (BOOT, SHELL)),
        (("/bin/sh", "/usr/bin/python3"), (BOOT, SHELL)),
        (("/bin/s",), (BOOT, SHELL)),
        (("sh",), (BOOT, SHELL)),
    ],
)
def test_what_must_be_there_is_named_and_there(
    must: tuple[str, ...], shown: tuple[Measured, ...]
) -> None:
    references = replace(REFERENCES, must=must)
    quoted = register(*shown)
    _, checks = advance(
        AT_BOOT, parse_list(binary(*shown)), quoted, references, pcrs=PCRS
    )
    assert refusals(checks) == ["ima-must-have"]


def test_a_name_inside_of_another_field_is_nothing_that_ran() -> None:
    """A file's signature is its owner's to write; the path of an entry is not."""
    signed = measured("/bin/sh", b"sh", rest=(b"\x12\0\0\0/usr/bin/python3\0",))
    references = replace(REFERENCES, must=("/usr/bin/python3",))
    _, checks = appraise((BOOT, signed), references=references)
    assert refusals(checks) == ["ima-must-have"]


def test_what_was_there_once_stays_there() -> None:
    references = replace(REFERENCES, must=("/bin/sh",))
    state, _ = appraise(LIST[:2], references=references)
    state, checks = appraise((PYTHON,), references=references, state=state)
    assert not refusals(checks)
    late = replace(REFERENCES, must=("/usr/bin/python3",))
    state, checks = appraise(LIST[:2], references=late)
    assert refusals(checks) == ["ima-must-have"]


def test_old_kernels_are_named() -> None:
    _, checks = appraise(LIST, padded_register(*LIST))
    assert refusals(checks) == ["ima-padded-sha1"]


def test_sha1_bank_and_changing_banks_are_refused() -> None:
    with pytest.raises(MalformedError) as caught:
        appraise(LIST, bytes(20))
    assert caught.value.code == "ima-bank"
    with pytest.raises(MalformedError):
        appraise(LIST, bytes(48))


@pytest.mark.parametrize("fits", [True, False])
def test_buffers_must_have_their_digest(fits: bool) -> None:
    """A key or a command line is measured as itself."""
    raw = b"ro quiet"
    shown = raw if fits else b"rw"
    entry = measured("kexec-cmdline", raw, template="ima-buf", rest=(shown,))
    allow = REFERENCES.allow | {"kexec-cmdline": (Digest(file_digest(raw)),)}
    references = replace(REFERENCES, allow=allow)
    _, checks = appraise((BOOT, entry), references=references)
    assert refusals(checks) == ([] if fits else ["ima-buffer-differs"])


class TestSignedFiles:
    """A file that is not listed is allowed if an agreed key signed its digest."""

    EC = ec.generate_private_key(ec.SECP256R1())
    RSA = rsa.generate_private_key(65537, 2048)
    CONTENT = b"a module"
    FOUND = file_digest(CONTENT)

    def references(
        self, *keys: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
    ) -> ImaReferences:
        spki = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        signers = tuple(key.public_key().public_bytes(*spki) for key in keys)
        return replace(REFERENCES, signers=signers)

    def entry(self, raw: bytes) -> Measured:
        return measured("/lib/a.ko", self.CONTENT, rest=(raw,))

    def by_ec(self) -> bytes:
        return signature(self.EC.sign(self.FOUND, ec.ECDSA(Prehashed(SHA256()))))

    def by_rsa(self) -> bytes:
        made = self.RSA.sign(self.FOUND, padding.PKCS1v15(), Prehashed(SHA256()))
        return signature(made)

    def test_signature_of_an_agreed_key_allows(self) -> None:
        references = self.references(self.RSA, self.EC)
        for raw in (self.by_ec(), self.by_rsa()):
            _, checks = appraise((BOOT, self.entry(raw)), references=references)
            assert not refusals(checks)

    def test_signature_of_another_key_is_refused(self) -> None:
        references = self.references(self.EC)
        _, checks = appraise((BOOT, self.entry(self.by_rsa())), references=references)
        assert refusals(checks) == ["ima-signature"]

    def test_any_changed_byte_is_refused_but_the_key_id(self) -> None:
        references, raw = self.references(self.EC), self.by_ec()
        for at in range(len(raw)):
            changed = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
            _, checks = appraise((BOOT, self.entry(changed)), references=references)
            assert refusals(checks) == ([] if 3 <= at < 7 else ["ima-signature"]), at

    def test_signature_over_another_file_is_refused(self) -> None:
        entry = measured("/lib/a.ko", b"another", rest=(self.by_ec(),))
        _, checks = appraise((BOOT, entry), references=self.references(self.EC))
        assert refusals(checks) == ["ima-signature"]

    def test_weak_hash_is_refused(self) -> None:
        raw = self.by_ec()
        sha1 = raw[:2] + b"\x02" + raw[3:]
        entry = measured("/lib/a.ko", self.CONTENT, algorithm="sha1", rest=(sha1,))
        _, checks = appraise((BOOT, entry), references=self.references(self.EC))
        assert refusals(checks) == ["ima-signature"]
