"""One server's products: of shares modulo Q, as products of residues in eight bits.

Residues are centred, so they fit signed bytes, and a sum of up to 131,072 products of two
fits 32 bits. What multiplies bytes is trusted after a test at the extremes only: older
processors saturate in between. A convolution is the product of what its kernel sees, in
pieces of rows, so that no more lies in memory than ``SCRATCH_BYTES``, or one row's.
Source: spec/shares.md sections 1 and 7.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from itertools import product as each_of
from typing import Final, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sealift.errors import MalformedError, UnavailableError
from sealift.numeric.kernels import SMALL_DEPTH, Kernels
from sealift.numeric.residues import U32, ResidueBasis
from sealift.outsource.terms import Direction, Layer

MAX_DEPTH: Final = 1 << 17  # times 127**2, and one residue more, is below 2**31
SCRATCH_BYTES: Final = {"cpu": 4 << 20, "cuda": 1 << 28}  # what caches, or cores, like
AT_ONCE: Final = 1 << 20  # numbers of some images, of what comes or of what goes
MOST_AT_ONCE: Final = 16  # so many such pieces, as each costs calls
_RECOMBINED: Final = 1 << 23  # numbers at a time, of 64 bits on a device
_EXTREME: Final = 127
_ALIGNMENT: Final = 8  # of the sides of a product on CUDA
_BEGINNING: Final = 256  # bytes that divide where a matrix begins on CUDA
_FEWEST_ROWS: Final = 17
# Of a linear layer that costs calls, not work: so many multiplications at most.
SMALL_PRODUCT: Final = 1 << 20
Multiply = Callable[[Tensor, Tensor, Tensor], None]
Windows: TypeAlias = (
    Tensor  # (moduli, N, height, width, kernel height, kernel width * channels)
)


def _all_there(_images: int) -> None:
    """For operands that are not on their way."""


class ResidueKernels(Protocol):
    """From shares to residues and back."""

    def split(self, values: U32, basis: ResidueBasis) -> Tensor:
        """Centred residues: (moduli, numbers), int8, on the device."""
        ...

    def recombine(self, sums: Tensor, basis: ResidueBasis, out: U32) -> None:
        """The numbers below Q that ``sums`` (moduli, numbers) are the residues of."""
        ...


class ShareProducts:
    """Products on one device.

    Args:
        device: ``cpu`` or ``cuda``.
        kernels: For the CPU.

    Raises:
        UnavailableError: code ``no-device``.

    Attributes:
        device: Where products are made.
        method: ``int8``, or ``float64`` where that failed its test.
        scratch_bytes: Of a piece.
    """

    def __init__(self, device: str, kernels: Kernels) -> None:
        where = torch.device(device)
        if where.type == "cuda" and not torch.cuda.is_available():
            raise UnavailableError(
                "this machine has no usable CUDA device", code="no-device"
            )
        self.device, on_cpu = where, where.type == "cpu"
        self.scratch_bytes = SCRATCH_BYTES[where.type]
        self._residues = HostResidues(kernels) if on_cpu else DeviceResidues(where)
        quick = _multiply_bytes if on_cpu else multiply_aligned_bytes
        self._multiply, self.method = choose_multiply(quick, where)

    def room(self, numbers: int) -> U32:
        """Memory for shares that come, or answers that go; what is in it is anything."""
        if self.device.type == "cpu":
            return np.empty(numbers, np.uint32)
        pinned = torch.empty(numbers, dtype=torch.int32, pin_memory=True)
        found: U32 = pinned.numpy().view(np.uint32)
        return found

    def keep(self, share: U32, basis: ResidueBasis) -> Tensor:
        """The residues of a tensor's share; those of narrower moduli are its first.

        Raises:
            MalformedError: code ``bad-share``.
        """
        found = self.residues_of(share.shape, basis)
        self.keep_some(share, basis, found)
        return found

    def residues_of(self, shape: tuple[int, ...], basis: ResidueBasis) -> Tensor:
        """Room for them."""
        sizes = (len(basis.moduli), *shape)
        return torch.empty(sizes, dtype=torch.int8, device=self.device)

    def keep_some(self, share: U32, basis: ResidueBasis, out: Tensor) -> None:
        """The residues of some of a tensor's share, into their place.

        Raises:
            MalformedError: code ``bad-share``.
        """
        require_share(share, basis)
        out.copy_(self._residues.split(share.reshape(-1), basis).view(out.shape))

    def product(self, layer: Layer, direction: Direction, a: Tensor, b: Tensor) -> U32:
        """A product modulo its direction's Q, of that direction's shape.

        Args:
            a: Residues of the first operand (``terms.OPERANDS``).
            b: Of the second one.
        """
        out = np.empty(layer.result(direction), np.uint32)
        for _ in self.make(layer, direction, a, b, out):
            pass
        return out

    def make(
        self,
        layer: Layer,
        direction: Direction,
        a: Tensor,
        b: Tensor,
        out: U32,
        *,
        until: Callable[[int], None] = _all_there,
    ) -> Iterator[int]:
        """See ``product``; some images after others, which may still be on their way.

        Args:
            out: Of the direction's shape.
            until: Waits until so many images of ``a`` are there.

        Yields:
            How many numbers of ``out`` are there.
        """
        basis = layer.basis(direction)
        a, b = a[: len(basis.moduli)], b[: len(basis.moduli)]
        if direction == "weight":
            until(layer.batch)
            sums = self._weight_sums(layer, basis, a, b)
            self._residues.recombine(sums, basis, out.reshape(-1))
            yield out.size
            return
        see: Callable[[Layer, Tensor], Windows] = _windows
        others = b.flatten(2).transpose(1, 2)
        if direction == "input":
            see, others = _windows_back, _turned(b)
        for images in _few(layer):
            until(images.stop)
            some = out[images]
            self._rows(see(layer, a[:, images]), others, basis, some)
            yield images.stop * (out.size // layer.batch)

    @property
    def memory_bytes(self) -> int:
        """What a job may take: half of the machine's memory, and of the device's."""
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if self.device.type == "cuda":
            theirs = torch.cuda.get_device_properties(self.device).total_memory
            found = min(found, theirs)
        return found // 2

    def working_bytes(self, layer: Layer, direction: Direction) -> int:
        """Memory of a product, its operands and its result aside."""
        (kh, kw), (down, across) = layer.kernel, layer.padding
        sides = layer.height + 2 * down, layer.width + 2 * across, layer.inputs
        if direction == "input":
            sides = layer.height + kh - 1, layer.width + kw - 1, layer.outputs
        moduli, word = len(layer.basis(direction).moduli), np.dtype(np.int32).itemsize
        found = layer.batch * math.prod(sides) * moduli + 2 * self.scratch_bytes
        if direction == "weight":
            found += (moduli + 1) * math.prod(layer.shape("w")) * word
        return found

    def _rows(
        self, seen: Windows, others: Tensor, basis: ResidueBasis, out: U32
    ) -> None:
        """Piece by piece; pieces follow one another in ``out``."""
        flat, at = out.reshape(-1), 0
        moduli, depth, width = others.shape
        row_bytes = depth + moduli * width * np.dtype(np.int32).itemsize
        for piece in _pieces(seen, max(1, self.scratch_bytes // row_bytes)):
            windows = seen[piece]
            rows = windows.shape[1:4].numel()
            sums = self._empty(moduli, rows, width)
            for total, ours, other, m in zip(
                sums, windows, others, basis.moduli, strict=True
            ):
                self._deep(ours.reshape(rows, depth), other, m, total)
            end = at + rows * width
            self._residues.recombine(sums.flatten(1), basis, flat[at:end])
            at = end

    def _deep(self, a: Tensor, b: Tensor, modulus: int, total: Tensor) -> None:
        """``a @ b`` up to multiples of the modulus."""
        for start in range(0, a.shape[1], MAX_DEPTH):
            piece = slice(start, start + MAX_DEPTH)
            self._add(a[:, piece], b[piece], modulus, total, first=not start)

    def _weight_sums(
        self, layer: Layer, basis: ResidueBasis, dy: Tensor, x: Tensor
    ) -> Tensor:
        """The gradient of ``w``: over all places, however many there are."""
        moduli, depth = len(basis.moduli), layer.depth("forward")
        rows = min(MAX_DEPTH, max(1, self.scratch_bytes // depth))
        sums, windows = self._empty(moduli, layer.outputs, depth), _windows(layer, x)
        columns = dy.reshape(moduli, -1, layer.outputs).transpose(1, 2)
        for total, ours, theirs, m in zip(
            sums, columns, windows, basis.moduli, strict=True
        ):
            at = 0
            for _, *piece in _pieces(windows, rows):
                seen = theirs[tuple(piece)].reshape(-1, depth)
                here = ours[:, at : at + len(seen)]
                self._add(here, seen, m, total, first=not at)
                at += len(seen)
        return sums.flatten(1)

    def _add(
        self, a: Tensor, b: Tensor, modulus: int, total: Tensor, *, first: bool
    ) -> None:
        """Add ``a @ b``; what was there before is brought below the modulus."""
        if first:
            self._multiply(a, b, total)
            return
        more = torch.empty_like(total)
        self._multiply(a, b, more)
        total.remainder_(modulus).add_(more)

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=self.device)


class HostResidues:
    """By compiled kernels, on the CPU."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def split(self, values: U32, basis: ResidueBasis) -> Tensor:
        """See ``ResidueKernels``."""
        out = np.empty((len(basis.moduli), values.size), np.int8)
        self._kernels.split(values, basis, out)
        return torch.from_numpy(out)

    def recombine(self, sums: Tensor, basis: ResidueBasis, out: U32) -> None:
        """See ``ResidueKernels``."""
        self._kernels.recombine(sums.numpy(), basis, out)


class DeviceResidues:
    """By operations of torch, wherever they run: few, as each costs a call."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._columns: dict[tuple[int, ...], Tensor] = {}

    def split(self, values: U32, basis: ResidueBasis) -> Tensor:
        """See ``ResidueKernels``."""
        words = torch.from_numpy(values.view(np.int32)).to(self._device)
        moduli = self._column(basis.moduli)
        halves = moduli // 2
        wide = (words.long() & 0xFFFFFFFF) + halves
        return wide.remainder_(moduli).sub_(halves).to(torch.int8)

    def recombine(self, sums: Tensor, basis: ResidueBasis, out: U32) -> None:
        """See ``ResidueKernels``."""
        moduli = self._column(basis.moduli)
        numbers = torch.from_numpy(out.view(np.int32))
        for at in range(0, len(numbers), _RECOMBINED):
            some = slice(at, at + _RECOMBINED)
            parts = sums[:, some].long().remainder_(moduli)
            parts.mul_(self._column(basis.inverses)).remainder_(moduli)
            parts.mul_(self._column(basis.cofactors))
            total = parts.sum(0).remainder_(basis.modulus)
            numbers[some].copy_(total.to(torch.int32))  # keeps the low 32 bits

    def _column(self, numbers: tuple[int, ...]) -> Tensor:
        if numbers not in self._columns:
            self._columns[numbers] = torch.tensor(numbers, device=self._device)[:, None]
        return self._columns[numbers]


def require_share(numbers: U32, basis: ResidueBasis) -> None:
    """Demand numbers below Q.

    Raises:
        MalformedError: code ``bad-share``.
    """
    if numbers.max(initial=0) >= basis.modulus:
        why = "it contains a number that is not below the modulus"
        raise MalformedError("the bytes are not a share", why=why, code="bad-share")


def is_small(layer: Layer) -> bool:
    """Whether it is linear, and its products are made in one piece, from the shares."""
    sides = (layer.batch, layer.inputs, layer.outputs)
    return (
        layer.is_linear
        and max(sides) <= SMALL_DEPTH
        and math.prod(sides) <= SMALL_PRODUCT
    )


def small_product(
    kernels: Kernels, layer: Layer, direction: Direction, a: U32, b: U32
) -> U32:
    """A product of shares of a small layer, modulo its direction's Q.

    Args:
        a: The first operand's share (``terms.OPERANDS``), below Q or a multiple of it.
        b: The second one's.
    """
    basis, q = layer.basis(direction), np.uint32(layer.basis(direction).modulus)
    ours = a.reshape(layer.batch, -1)
    theirs = b.reshape(len(b), -1)
    if direction == "forward":
        theirs = theirs.T
    elif direction == "weight":
        ours = ours.T
    first, second = (np.ascontiguousarray(each % q) for each in (ours, theirs))
    return kernels.small_product(first, second, basis)


def _few(layer: Layer) -> Iterator[slice]:
    """Images that are worked on while others are on their way."""
    sides = (layer.height, layer.width, layer.inputs), (*layer.out, layer.outputs)
    each = max(map(math.prod, sides))
    step = max(1, AT_ONCE // each, -(-layer.batch // MOST_AT_ONCE))
    for first in range(0, layer.batch, step):
        yield slice(first, min(layer.batch, first + step))


def _multiply_bytes(a: Tensor, b: Tensor, out: Tensor) -> None:
    """``a @ b`` of bytes, as int32."""
    torch._int_mm(a, b, out=out)  # noqa: SLF001 - it has no other name


def multiply_aligned_bytes(a: Tensor, b: Tensor, out: Tensor) -> None:
    """The same where sides must be multiples of 8, rows many, and columns lie together.

    What is that already is not copied, if it also begins where a block of memory may: what
    multiplies is free to take for granted that it does.
    """
    (rows, depth), columns = a.shape, b.shape[1]
    more = max(_FEWEST_ROWS, rows) - rows
    tail, wider = -depth % _ALIGNMENT, -columns % _ALIGNMENT
    ours, theirs, found = a, b.t(), out
    if tail or wider or more:
        ours = functional.pad(a, (0, tail, 0, more))
        theirs = functional.pad(b.t(), (0, tail, 0, wider))
        found = ours.new_empty((len(ours), len(theirs)), dtype=torch.int32)
    elif out.data_ptr() % _BEGINNING:
        found = torch.empty_like(out)
    _multiply_bytes(_begun_well(ours), _begun_well(theirs).t(), found)
    if found is not out:
        out.copy_(found[:rows, :columns])


def _begun_well(matrix: Tensor) -> Tensor:
    """Contiguous, in memory that begins at a multiple of ``_BEGINNING``."""
    found = matrix.contiguous()
    return found.clone() if found.data_ptr() % _BEGINNING else found


def multiply_exactly(a: Tensor, b: Tensor, out: Tensor) -> None:
    """``a @ b`` by float64, which holds every sum: slow, and right everywhere."""
    out.copy_(a.double() @ b.double())


def choose_multiply(quick: Multiply, device: torch.device) -> tuple[Multiply, str]:
    """What multiplies bytes rightly there, and its name."""
    try:
        right = all(_agree(quick, a, b) for a, b in _extremes(device))
    except RuntimeError:  # no such product on this device
        right = False
    return (quick, "int8") if right else (multiply_exactly, "float64")


def _agree(quick: Multiply, a: Tensor, b: Tensor) -> bool:
    found, right = (
        torch.zeros(len(a), b.shape[1], dtype=torch.int32, device=a.device)
        for _ in range(2)
    )
    quick(a, b, found)
    multiply_exactly(a, b, right)
    return torch.equal(found, right)


def _extremes(device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Operands at the ends of their range, of every layout that is used."""
    for rows, depth in ((3, 27), (32, 27), (3, 1152), (32, 1152), (3, MAX_DEPTH)):
        for sign, turned in each_of((1, -1), (False, True)):
            shape = (depth, rows) if turned else (rows, depth)
            a = torch.full(shape, _EXTREME, dtype=torch.int8, device=device)
            b = torch.full(
                (16, depth), sign * _EXTREME, dtype=torch.int8, device=device
            )
            b[1::2, ::2] *= -1
            yield a.t() if turned else a, b.t()
            yield a.t() if turned else a, b.t().contiguous()


def _windows(layer: Layer, x: Tensor) -> Windows:
    """What the kernel sees at each place of ``x``, for each modulus."""
    down, across = layer.padding
    sides = (0, 0, across, across, down, down)
    padded = functional.pad(x, sides) if any(layer.padding) else x
    return _view(padded, layer.kernel, layer.stride, layer.out)


def _windows_back(layer: Layer, dy: Tensor) -> Windows:
    """What a turned kernel sees of ``dy`` at each pixel of ``x``."""
    (kh, kw), (sh, sw), (ph, pw) = layer.kernel, layer.stride, layer.padding
    height, width = layer.out
    sides = (layer.height + kh - 1, layer.width + kw - 1)
    first, second = kh - 1 - ph, kw - 1 - pw
    spread = dy
    if sides != layer.out:
        spread = dy.new_zeros((*dy.shape[:2], *sides, layer.outputs))
        rows = slice(first, first + (height - 1) * sh + 1, sh)
        columns = slice(second, second + (width - 1) * sw + 1, sw)
        spread[:, :, rows, columns] = dy
    return _view(spread, layer.kernel, (1, 1), (layer.height, layer.width))


def _turned(w: Tensor) -> Tensor:
    """Kernels for the gradient of ``x``: (moduli, kernel height * width * outputs, inputs)."""
    return w.flip(2, 3).permute(0, 2, 3, 1, 4).flatten(1, 3)


def _view(
    images: Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    out: tuple[int, int],
) -> Windows:
    """Windows over images (moduli, N, H, W, C) without copying: a row of one lies together."""
    images = images.contiguous()
    moduli, batch, _, _, channels = images.shape
    whole, per_image, per_row, per_pixel, _ = images.stride()
    steps = (whole, per_image, stride[0] * per_row, stride[1] * per_pixel, per_row, 1)
    shape = (moduli, batch, *out, kernel[0], kernel[1] * channels)
    return images.as_strided(shape, steps)


def _pieces(windows: Windows, rows: int) -> Iterator[tuple[slice, ...]]:
    """Cut places into pieces of at most so many rows, in their order."""
    batch, height, width = windows.shape[1:4]
    images = max(1, rows // (height * width))
    down = max(1, min(height, rows // width))
    across = min(width, rows)
    corners = each_of(
        range(0, batch, images), range(0, height, down), range(0, width, across)
    )
    for image, top, left in corners:
        yield (
            slice(None),
            slice(image, image + images),
            slice(top, top + down),
            slice(left, left + across),
        )
