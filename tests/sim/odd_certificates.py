"""Certificates by grammar: right around, anything at all in their extensions."""

from __future__ import annotations

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtensionOID
from hypothesis import strategies as st

from tests.sim.made_chain import der

KEY = ec.derive_private_key(7, ec.SECP384R1())
_SPKI = KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
_ECDSA_SHA384 = der(0x30, bytes.fromhex("06082a8648ce3d040303"))
_TIMES = der(0x30, der(0x17, b"200101000000Z") + der(0x17, b"400101000000Z"))

# Every extension that the library knows, and those that evidence has.
STANDARD = sorted(
    each.dotted_string
    for name, each in vars(ExtensionOID).items()
    if not name.startswith("_")
)
VENDORS = [
    *(
        f"1.3.6.1.4.1.3704.1.{each}"
        for each in ("1", "2", "3.1", "3.3", "3.8", "4", "5")
    ),
    "1.2.840.113741.1.13.1",
    "2.23.133.5.4.1",
    "2.23.133.5.4.1.1",
    "1.3.36.8.3.3",
    "1.2.3.4",
]

# What the library answered with exceptions of other rooms' types (rule N9).
FOREIGN = {
    "name constraint of four bytes": ("2.5.29.30", "300aa00830068704 01020304"),
    "alternative name of a party": ("2.5.29.17", "3007a505a1030c0178"),
    "alternative name of X.400": ("2.5.29.17", "3004a3023000"),
    "access at a party": (
        "1.3.6.1.5.5.7.1.1",
        "3013301106082b06010505073001a505a1030c0178",
    ),
    "unknown feature of TLS": ("1.3.6.1.5.5.7.1.24", "300302017f"),
}


def oid(dotted: str) -> bytes:
    """An object identifier in DER."""
    first, second, *others = map(int, dotted.split("."))
    content = b""
    for part in (40 * first + second, *others):
        groups = [part & 0x7F]
        while part := part >> 7:
            groups.insert(0, 0x80 | part & 0x7F)
        content += bytes(groups)
    return der(0x06, content)


def extension(name: str, value: bytes, critical: bytes = b"") -> bytes:
    return der(0x30, oid(name) + critical + der(0x04, value))


def certificate(name: str, *extensions: bytes, genuine: bool = True) -> bytes:
    """One in DER, its own issuer."""
    named = der(0x30, der(0x31, der(0x30, oid("2.5.4.3") + der(0x0C, name.encode()))))
    signed = der(
        0x30,
        der(0xA0, der(0x02, b"\2"))
        + der(0x02, b"\5")
        + _ECDSA_SHA384
        + named
        + _TIMES
        + named
        + _SPKI
        + (der(0xA3, der(0x30, b"".join(extensions))) if extensions else b""),
    )
    signature = KEY.sign(signed, ec.ECDSA(hashes.SHA384())) if genuine else bytes(70)
    return der(0x30, signed + _ECDSA_SHA384 + der(0x03, b"\0" + signature))


_TEXT = st.sampled_from(
    [b"", b"x", b"\xff", b"\xff\xfe", b"a.b", b"http://a/\xff", b"*"]
)
_NUMBER = st.sampled_from([b"", b"\0", b"\xff", b"\x7f", b"\x7f" + b"\xff" * 20])
_PRIMITIVE = st.one_of(
    st.tuples(st.sampled_from([0x02, 0x0A, 0x01]), _NUMBER),
    st.tuples(st.sampled_from([0x0C, 0x13, 0x16, 0x1E, 0x17, 0x18]), _TEXT),
    st.tuples(st.sampled_from([0x03, 0x04, 0x05]), st.binary(max_size=6)),
    st.tuples(st.just(0x06), st.sampled_from([b"", b"\x2a\3", b"\x80", b"\x2b\6\1\5"])),
    # Names of [0] to [8]: other, mail, host, X.400, directory, party, URL, address, id.
    st.tuples(st.integers(0x80, 0x88), _TEXT | st.binary(max_size=33)),
).map(lambda each: der(*each))
VALUE = st.recursive(
    _PRIMITIVE,
    lambda inner: st.tuples(
        st.sampled_from([0x30, 0x30, 0x31, 0xA0, 0xA1, 0xA2, 0xA3, 0xA4, 0xA5, 0xA8]),
        st.lists(inner, max_size=3).map(b"".join),
    ).map(lambda each: der(*each)),
    max_leaves=6,
)
_CUT = st.tuples(VALUE, st.integers(0, 40)).map(lambda each: each[0][: each[1]])
_HUGE = st.integers(1, 9).map(lambda n: der(0x30, der(0x82, b"a" * 999) * n))
_TELLING = st.sampled_from([bytes.fromhex(raw) for _, raw in FOREIGN.values()])
CRITICAL = st.sampled_from([b"", b"", b"\1\1\xff", b"\1\1\0", b"\1\1\2", b"\1\0"])


def _several(
    each: st.SearchStrategy[bytes], tag: int = 0x30
) -> st.SearchStrategy[bytes]:
    return st.lists(each, max_size=3).map(lambda found: der(tag, b"".join(found)))


# In the right form, with odd parts: what a parser reads to the end.
_NAMED = st.sampled_from(
    [
        der(0x81, b"a@b"),
        der(0x82, b"a.b"),
        der(0x86, b"http://a/"),
        der(0x87, bytes(4)),
        der(0x87, bytes(8)),
        der(0x88, b"\x2a\3"),
        der(0xA4, der(0x30, b"")),
        der(0xA0, b"\6\3\x2a\3\4" + der(0xA0, der(5, b""))),
        der(0xA3, der(0x30, b"")),
        der(0xA5, der(0xA1, der(0x0C, b"x"))),
    ]
)
_ACCESS = st.builds(
    lambda last, name: der(0x30, oid(f"1.3.6.1.5.5.7.48.{last}") + name),
    st.integers(1, 3),
    _NAMED,
)
_PLACE = _several(_NAMED, 0xA0).map(lambda names: der(0x30, der(0xA0, names)))
_SUBTREE = _NAMED.map(lambda name: der(0x30, name))
_SMALL = st.integers(0, 255).map(lambda n: der(0x02, bytes([n & 0x7F])))
FORMED: dict[str, st.SearchStrategy[bytes]] = {
    "2.5.29.17": _several(_NAMED),
    "2.5.29.18": _several(_NAMED),
    "2.5.29.19": st.sampled_from(["3000", "30030101ff", "30060101ff020100"]).map(
        bytes.fromhex
    ),
    "2.5.29.15": st.sampled_from([b"\x03\2\1\6", b"\x03\2\7\x80", b"\x03\1\0"]),
    "2.5.29.37": _several(st.just(oid("2.23.133.8.1"))),
    "2.5.29.31": _several(_PLACE),
    "2.5.29.46": _several(_PLACE),
    "2.5.29.30": _several(_SUBTREE, 0xA0).map(lambda found: der(0x30, found)),
    "1.3.6.1.5.5.7.1.1": _several(_ACCESS),
    "1.3.6.1.5.5.7.1.11": _several(_ACCESS),
    "1.3.6.1.5.5.7.1.24": _several(_SMALL),
    "1.3.6.1.4.1.3704.1.3.1": _SMALL,
    "1.3.6.1.4.1.3704.1.2": st.sampled_from([der(0x16, b"Milan-B0"), der(0x16, b"")]),
}
_ODD = st.tuples(
    st.sampled_from(STANDARD * 2 + VENDORS),
    VALUE | _CUT | _TELLING | _HUGE | st.binary(max_size=20),
)
_RIGHT = st.sampled_from(sorted(FORMED)).flatmap(
    lambda name: st.tuples(st.just(name), FORMED[name])
)
EXTENSION = st.builds(
    lambda found, critical: extension(*found, critical),
    _ODD | _RIGHT | _RIGHT,
    CRITICAL,
)


@st.composite
def odd_certificates(draw: st.DrawFn) -> bytes:
    """Of up to three extensions, some of them twice."""
    found = draw(st.lists(EXTENSION, min_size=1, max_size=3))
    twice = draw(st.sampled_from([[], [], found[:1]]))
    name = draw(st.sampled_from(["SEV-VCEK", "Intel SGX TCB Signing", "GH100"]))
    return certificate(name, *found, *twice)
