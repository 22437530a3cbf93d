from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from sealift.data.schema.schema import Field, Schema
from sealift.data.sources.table import open_table
from sealift.errors import MalformedError, UnavailableError

ONE = Schema((Field("x", "float32", (4,)),))
GOOD = np.arange(40, dtype=np.float32).reshape(10, 4)


def refused(path: Path, schema: Schema = ONE) -> str:
    with pytest.raises(MalformedError) as caught:
        list(open_table(path, schema).blocks())
    return str(caught.value)


def save(path: Path, array: Any) -> Path:
    if path.suffix == ".npy":
        np.save(path, array)
    elif path.suffix == ".npz":
        np.savez_compressed(path, x=array)
    else:
        save_file({"x": np.ascontiguousarray(array)}, path)
    return path


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
@pytest.mark.parametrize(
    ("array", "words"),
    [
        (GOOD.astype(np.float64), "x is float64, and the schema requires float32"),
        (GOOD.astype(np.int32), "x is int32"),
        (GOOD[:, :3], "shape (10, 3), and the schema requires (rows, 4)"),
        (GOOD.reshape(10, 2, 2), "shape (10, 2, 2)"),
        (GOOD[:, 0], "shape (10,)"),
    ],
)
def test_wrong_dtype_or_shape(
    tmp_path: Path, suffix: str, array: Any, words: str
) -> None:
    assert words in refused(save(tmp_path / f"t{suffix}", array))


def test_single_number_is_not_a_table(tmp_path: Path) -> None:
    assert "shape ()" in refused(save(tmp_path / "t.npy", np.float32(3)))


def test_one_plain_array_is_a_schema_of_one_field(tmp_path: Path) -> None:
    path = save(tmp_path / "t.npy", GOOD)
    assert b"".join(open_table(path, ONE).blocks(block_bytes=40)) == GOOD.tobytes()


def test_plain_array_cannot_fill_two_fields(tmp_path: Path) -> None:
    two = Schema((*ONE.fields, Field("label", "int8")))
    assert "no array 'label'" in refused(save(tmp_path / "t.npy", GOOD), two)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_objects_are_never_unpickled(tmp_path: Path, suffix: str) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (exit, (99,))

    path = save(tmp_path / f"t{suffix}", np.array([Bomb()] * 10, dtype=object))
    assert "Python objects" in refused(path)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_fortran_order_is_refused(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"t{suffix}", np.asfortranarray(GOOD))
    assert "ascontiguousarray" in refused(path)


def test_big_endian_is_refused(tmp_path: Path) -> None:
    assert ">f4" in refused(save(tmp_path / "t.npy", GOOD.astype(">f4")))


def test_bytes_after_the_last_row_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "t.npy", GOOD)
    path.write_bytes(path.read_bytes() + b"\0")
    assert "after its last row" in refused(path)


def test_huge_header_claims_cost_nothing(tmp_path: Path) -> None:
    """A header that promises more rows than the file has ends in an error."""
    stream = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 4)}
    np.lib.format.write_array_header_1_0(stream, header)
    path = tmp_path / "t.npy"
    path.write_bytes(stream.getvalue() + b"\0" * 64)
    assert "ends before its last row" in refused(path)


def test_damaged_archive_member_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, x=GOOD)  # stored, so that a flipped byte is a flipped number
    raw = bytearray(path.read_bytes())
    place = raw.index(GOOD[5].tobytes())
    raw[place + 2] ^= 1
    path.write_bytes(raw)
    assert "damaged" in refused(path)


def test_encrypted_archive_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "t.npz", GOOD)
    raw = bytearray(path.read_bytes())
    for magic, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.index(magic) + flags] |= 1
    path.write_bytes(raw)
    assert "damaged" in refused(path)


def test_archive_member_that_is_no_array_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "t.npz", GOOD)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("README.txt", "hello")
    assert "not a .npy array" in refused(path)


def test_arrays_of_different_lengths_are_refused(tmp_path: Path) -> None:
    two = Schema((*ONE.fields, Field("label", "int8")))
    for path in (tmp_path / "t.npz", tmp_path / "t.safetensors"):
        arrays = {"x": GOOD, "label": np.zeros(9, np.int8)}
        np.savez(path, **arrays) if path.suffix == ".npz" else save_file(arrays, path)
        assert "x has 10 rows, and label has 9" in refused(path, two)


def test_truth_bytes_are_0_or_1(tmp_path: Path) -> None:
    path = tmp_path / "t.npy"
    np.save(path, np.array([0, 1, 2], np.uint8).view(np.bool_))
    assert "true or false" in refused(path, Schema((Field("b", "bool"),)))


def test_unknown_safetensors_dtype_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "t.safetensors", GOOD.astype(np.uint16))
    assert "U16" in refused(path)


def test_an_archive_that_numpy_did_not_write(tmp_path: Path) -> None:
    raw = io.BytesIO()
    np.save(raw, GOOD)
    kinds = {
        zipfile.ZIP_BZIP2: "x.npy has a compression",
        zipfile.ZIP_LZMA: "x.npy has a compression",
    }
    for kind, words in kinds.items():  # which expand without a bound, in one step
        with zipfile.ZipFile(tmp_path / "t.npz", "w", kind) as archive:
            archive.writestr("x.npy", raw.getvalue())
        assert words in refused(tmp_path / "t.npz")
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
        archive.writestr("x", raw.getvalue())
    assert "x is not a .npy array" in refused(tmp_path / "t.npz")


def test_a_name_that_no_file_can_have() -> None:
    with pytest.raises(UnavailableError, match="File name too long"):
        open_table("x" * 300 + ".npz", ONE)
    with pytest.raises(UnavailableError, match="File name too long"):
        open_table("x" * 300, ONE)
