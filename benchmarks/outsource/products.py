"""`python -m benchmarks outsource`: products on three servers that nobody trusts.

Three server processes and the trusted one share this machine's cores, one thread of
arithmetic each; fp32 has one thread, too. The form is that of Goten's Table 3: linear,
non-linear and total of a step of VGG-11 at CIFAR-10's shape, images an hour. Goten's own
server products are made in the same program; CrypTen's step is recorded. Its images are
CIFAR-10's own where ``SEALIFT_CIFAR10`` names the folder of the binary version.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Final

import numpy as np
import torch

from benchmarks.outsource.accuracy import BATCH, HeadRoom, measure_accuracy
from benchmarks.outsource.ends import ShareEnds
from benchmarks.outsource.layers import measure_kernels, measure_layers
from benchmarks.outsource.models import (
    RealImages,
    digits_mlp,
    read_images,
    vgg11,
)
from benchmarks.outsource.steps import Timed
from benchmarks.report import Arm, BenchReport, Row, interleaved, start_report
from sealift.numeric.kernels import best_kernels
from sealift.outsource.check import Claim
from sealift.outsource.masked import MaskedProducts
from sealift.outsource.messages import WORD_BYTES, plan_step
from sealift.outsource.multiplier import Multiplier
from sealift.outsource.terms import OPERANDS, Direction, Forward, Layer
from sealift.outsource.trace import StepKind, StepTrace, Trace, calls_of, tabulate

CRYPTEN_MS: Final = 341.0
CRYPTEN: Final = (
    "CrypTen 0.4.1, two parties: 341 ms a step of the 64-64-10 MLP, batch 32, another "
    "machine of two cores (field's trial)"
)
PUBLISHED: Final = (
    "images an hour of VGG on CIFAR-10, published: Goten 196,733 (3 V100, SGX timed on a "
    "desktop, VGG-11), Piranha 15,415 and CryptGPU 9,489 (GPUs, VGG-16), Falcon 1,482 "
    "(CPUs, VGG-16); Goten's total 6.84 times as fast as all in SGX, batch 512"
)
LINES_GBIT: Final = (0.1, 0.4, 1.0, 4.0, 10.0)
SIDE: Final = 1024


def run(*, quick: bool = False) -> BenchReport:
    """Measure; about four minutes, with ``quick`` about one."""
    report = start_report("outsource")
    images = read_images(16 if quick else 128)
    report.real = [
        "three server processes, sealed sessions, checks, signatures",
        "Goten's server products: float64, q = 2^21 - 9, three a server, torch's own",
        f"VGG-11's images: {images.what}",
        "accuracy: scikit-learn's digits, held-out rows by the same arithmetic",
    ]
    report.modelled = [
        "break-even: this process's seconds and the busiest server's, one after the other, "
        "and the bytes at a line's rate without latency"
    ]
    report.recorded = [CRYPTEN, PUBLISHED]
    torch.set_num_threads(1)
    measure_kernels(report, 9 if quick else 31)
    with ExitStack() as stack:
        ends = ShareEnds(stack)
        for side in (SIDE,) if quick else (SIDE, 2 * SIDE):
            _measure_product(report, ends, side, repeats=7 if quick else 15)
        _measure_small_step(report, ends, repeats=30 if quick else 200)
        _measure_vgg(report, ends, images, repeats=2 if quick else 5)
    measure_layers(report, 1 if quick else 5, batch=32 if quick else 128)
    measure_accuracy(report, 2 if quick else 5)
    return report


def _measure_product(
    report: BenchReport, ends: ShareEnds, side: int, repeats: int
) -> None:
    """A masked product with its check, beside fp32 on one thread."""
    layer = Layer(name="product", batch=side, inputs=side, outputs=side)
    trace: Trace = (Forward(layer),)
    kind, kernels = StepKind("evaluate", side), best_kernels()
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(layer.shape(t)).astype(np.float32) for t in ("x", "w"))
    a, b = (
        torch.from_numpy(x.reshape(side, side)),
        torch.from_numpy(w.reshape(side, side)),
    )
    with ends.asked(tabulate({kind: trace})) as servers:
        multiplier = Multiplier(MaskedProducts(servers, kernels), kernels, 0)

        def ours() -> None:
            multiplier.begin(kind, 0, StepTrace(trace))
            multiplier.forward(Forward(layer), x, w)
            multiplier.settle()

        spent = interleaved({"ours": ours, "fp32": lambda: a @ b.T}, repeats)
    ratio = spent["ours"].median / spent["fp32"].median
    report.rows.append(
        {
            "product": f"{side}-cubed",
            "masked_ms": round(spent["ours"].median * 1e3, 1),
            "fp32_ms": round(spent["fp32"].median * 1e3, 1),
            "here_cpu_ms": round(median(spent["ours"].cpu_s) * 1e3, 1),
            "vs_fp32": round(ratio, 2),
        }
    )
    report.keep_highest("masked_product_vs_fp32", ratio)


def _measure_small_step(report: BenchReport, ends: ShareEnds, repeats: int) -> None:
    """A step of the small model that CrypTen's was recorded of."""
    torch.manual_seed(0)
    x, y = torch.rand(BATCH, 64), torch.randint(10, (BATCH,))
    ours, reference = Timed(digits_mlp(), x, y), Timed(digits_mlp(), x, y)
    kernels = best_kernels()
    with ends.asked(tabulate({ours.kind: ours.trace})) as servers:
        multiplier = Multiplier(MaskedProducts(servers, kernels), kernels, 0)
        arms: dict[str, Arm] = {
            "ours": partial(ours.step, multiplier),
            "fp32": reference.fp32,
        }
        spent = interleaved(arms, repeats, warm_up=3)
    step_ms = spent["ours"].median * 1e3
    report.rows.append(
        {
            "model": "64-64-10 MLP, batch 32",
            "step_ms": round(step_ms, 2),
            "fp32_ms": round(spent["fp32"].median * 1e3, 2),
            "rounds": len(ours.trace),
            "crypten_recorded_ms": CRYPTEN_MS,
        }
    )
    report.ratios["crypten_vs_step"] = round(CRYPTEN_MS / step_ms, 1)


def _measure_vgg(
    report: BenchReport, ends: ShareEnds, images: RealImages, repeats: int
) -> None:
    """Goten's Table 3: linear, non-linear, total; and the head-room of a step."""
    torch.manual_seed(0)
    x, y, batch = images.x, images.y, len(images.x)
    ours, reference = Timed(vgg11(), x, y), Timed(vgg11(), x, y)
    kernels = best_kernels()
    with ends.asked(tabulate({ours.kind: ours.trace})) as servers:
        multiplier = Multiplier(MaskedProducts(servers, kernels), kernels, 0)
        before = ends.cpu_s()
        arms: dict[str, Arm] = {
            "ours": partial(ours.step, multiplier),
            "fp32": reference.fp32,
        }
        spent = interleaved(arms, repeats)
        steps = repeats + 1
        servers_s = [(s - before[n]) / steps for n, s in ends.cpu_s().items()]
    total, fp32 = spent["ours"].median, spent["fp32"].median
    linear, here = median(ours.products_s[-repeats:]), median(spent["ours"].cpu_s)
    check = sum(_check_s(each) for each in _claims(ours.trace))
    up, down = traffic(ours.trace)
    report.rows += [
        {
            "model": f"VGG-11, batch {batch}",
            "images": images.what,
            "arm": "masked",
            "linear_ms": round(linear * 1e3),
            "nonlinear_ms": round((total - linear) * 1e3),
            "total_ms": round(total * 1e3),
            "images_per_h": round(batch / total * 3600),
            "here_cpu_ms": round(here * 1e3),
            "busiest_server_cpu_ms": round(max(servers_s) * 1e3),
            "check_ms": round(check * 1e3),
            "products_a_server": 1,
            "rounds": len(ours.trace),
            "up_mb": round(up / 1e6, 1),
            "down_mb": round(down / 1e6, 1),
        },
        {
            "model": f"VGG-11, batch {batch}",
            "arm": "all in the TEE, fp32, one thread",
            "total_ms": round(fp32 * 1e3),
            "images_per_h": round(batch / fp32 * 3600),
        },
        *_over_lines(here + max(servers_s), up + down, fp32),
    ]
    head_room = HeadRoom()
    ours.step(Multiplier(head_room, kernels, 0))
    report.rows += head_room.rows(f"VGG-11, batch {batch}")
    report.ratios["integrity_share"] = round(check / total, 4)
    report.ratios["step_vs_fp32"] = round(total / fp32, 2)


def _over_lines(busy_s: float, nbytes: int, fp32_s: float) -> Iterator[Row]:
    """With servers that are machines of their own, over slower and faster lines."""
    for gbit in LINES_GBIT:
        total = busy_s + nbytes * 8 / gbit / 1e9
        yield {
            "modelled_line_gbit": gbit,
            "total_ms": round(total * 1e3),
            "vs_fp32": round(total / fp32_s, 2),
        }
    left_s = fp32_s - busy_s
    even = round(nbytes * 8 / left_s / 1e9, 2) if left_s > 0 else "never"
    yield {"modelled_break_even_gbit": even}


def traffic(trace: Trace) -> tuple[int, int]:
    """Bytes of a step to all servers, and from all."""
    plan = plan_step(trace)
    sent = (each.size for planned in plan for each in planned.sent)
    answered = (size for planned in plan for size in planned.answered)
    return 2 * WORD_BYTES * sum(sent), 3 * WORD_BYTES * sum(answered)


def _claims(trace: Trace) -> Iterator[Claim]:
    """One for each product of a step, of zeros: what is checked takes as long."""
    for call in calls_of(trace):
        directions: tuple[Direction, ...] = ("forward", *call.later)
        for direction in directions:
            a, b = OPERANDS[direction]
            layer = call.layer
            yield Claim(
                layer=layer,
                direction=direction,
                a=np.zeros(layer.shape(a), np.int16),
                b=np.zeros(layer.shape(b), np.int16),
                c=np.zeros(layer.result(direction), np.int32),
            )


def _check_s(claim: Claim) -> float:
    kernels = best_kernels()
    check = partial(claim.demand, kernels)
    return interleaved({"check": check}, repeats=3)["check"].median
