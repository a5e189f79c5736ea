"""Measurement of a machine's best performance: matrix products, memory, transfers, launches, and collectives.

Products, memory and transfers use random data, never zeros, and every timed interval begins with an idle device. "best"
is the fastest interval, "typical" the median. Products and memory are compared with the catalogue's peak, and a GPU
with the other GPUs of the machine.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from tensorprimat.core.errors import RunError
from tensorprimat.core.quantities import listed, percent, watts
from tensorprimat.core.result import POWER_CAP
from tensorprimat.core.units import TERA
from tensorprimat.engines import failures
from tensorprimat.facts import catalogue
from tensorprimat.facts.catalogue import Gpu, SourcedValue
from tensorprimat.machine import telemetry
from tensorprimat.machine.device import DeviceReading
from tensorprimat.machine.platform import Machine
from tensorprimat.measure import collectives, matmul
from tensorprimat.storage.preflight import Bandwidth, DeviceCheck, MatrixRate, Preflight

_SIZES = {"cpu": (256, 512, 1024, 2048), "cuda": (1024, 2048, 4096, 8192, 16384)}
QUICK_SIZES = {"cpu": (256, 512), "cuda": (4096, 8192)}
_PRECISIONS = {"cpu": ("fp32", "bf16"), "cuda": ("fp32", "tf32", "bf16", "fp16", "fp8")}
STREAM_BYTES = {"cpu": 2**28, "cuda": 2**31}  # size of one array: far beyond any cache, a small part of the memory
QUICK_STREAM_BYTES = {"cpu": 2**26, "cuda": 2**29}
TRANSFER_BYTES = 2**28
SIBLING_SIZE, CPU_SIBLING_SIZE = 8192, 1024
LAUNCHES = 1000

BELOW_SIBLINGS = 0.93  # share of the fastest GPU; GPUs of one kind agree within a few percent
BELOW_CATALOGUE = 0.5  # share of the dense peak, of which large matrix products reach 70 to 85 % on a healthy GPU

NO_REASON = {"cuda": "the driver gives no reason; check the card", "cpu": "check what else runs on its node"}

OnPart = Callable[[str], None]
"""Function that is called with the name of each part before it is measured."""


def measure_machine(
    machine: Machine, device_name: str, *, quick: bool = False, on_part: OnPart = lambda _: None
) -> Preflight:
    """Return every measurement of one machine. quick: measure few and small sizes, which takes seconds.

    Raises RunError where it fails, for example because other processes leave too little memory on a GPU.
    """
    try:
        return _measured(machine, device_name, quick=quick, on_part=on_part)
    except (RuntimeError, MemoryError, OSError) as error:
        busy = "; ./fix_gpu_memory.sh shows the processes that use it" if failures.is_out_of_memory(error) else ""
        raise RunError(f"{node_name(machine)}: preflight failed: {failures.end_reason(error)}{busy}") from error


def _measured(machine: Machine, device_name: str, *, quick: bool, on_part: OnPart) -> Preflight:
    began = time.perf_counter()
    device = torch.device(device_name)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # otherwise every process of torchrun also uses memory of the first GPU
    here = machine.gpu_info
    gpu = None if machine.platform == "cpu" else catalogue.find_gpu_of(here)
    on_part("matrix products")
    rates = matrix_rates(device, (QUICK_SIZES if quick else _SIZES)[device.type], gpu)
    on_part("memory")
    moved = memory_rates(device, (QUICK_STREAM_BYTES if quick else STREAM_BYTES)[device.type], gpu)
    if device.type == "cuda":
        on_part("transfers between host and device")
        moved += transfer_rates(device)
    on_part("launches")
    launch = launch_seconds(device)
    with collectives.group(device) as (backend, processes):
        is_checked = device.type == "cuda" or processes > 1  # a CPU alone has no others to compare with
        if is_checked:
            on_part(f"differences between {'GPUs' if device.type == 'cuda' else 'processes'}")
        exchanged = collectives.measure_collectives(device, processes)
        checks = device_checks(machine, device, processes) if is_checked else []
    found = Preflight(
        **machine.facts_of_a_measurement(),
        device=device.type,
        device_count=here.device_count,
        matmul=tuple(rates),
        bandwidth=tuple(moved),
        collectives=tuple(exchanged),
        collective_backend=backend,
        world_size=processes,
        launch_seconds=launch,
        devices=tuple(checks),
        seconds=time.perf_counter() - began,
    )
    return found.changed(warnings=(*machine.warnings, *preflight_warnings(found)))


def matrix_rates(device: torch.device, sizes: Sequence[int], gpu: Gpu | None) -> list[MatrixRate]:
    """Return the rates of square products at each precision that the device has."""
    rates = []
    for precision in _PRECISIONS[device.type]:
        if gpu and precision in gpu.lacks:
            continue
        if gpu is None and precision == "fp8":  # torch raises on an older GPU, and this GPU's units are unknown
            continue
        fact = gpu.peak(precision) if gpu else None
        reached = gpu.achievable_tflops.get(precision) if gpu else None
        for size in sizes:
            best, typical = matmul.matmul_rate(size, precision, device)
            rates.append(
                MatrixRate(
                    precision=precision,
                    size=size,
                    best_flops_per_second=best,
                    typical_flops_per_second=typical,
                    peak_flops_per_second=_times_tera(fact),
                    achieved_flops_per_second=_times_tera(reached),
                    achieved_source=reached.origin if reached and reached.value else None,
                )
            )
    return rates


def memory_rates(device: torch.device, size_bytes: int, gpu: Gpu | None) -> list[Bandwidth]:
    """Return the rates in bytes/s of copy, read and triad (a = b + s·c, from STREAM); all bytes read and written count.

    size_bytes: size of one array.
    """
    count = size_bytes // 4
    source, other = (torch.randn(count, device=device) for _ in range(2))
    target = torch.empty_like(source)
    works: tuple[tuple[str, int, Callable[[], object]], ...] = (
        ("copy", 2, lambda: target.copy_(source)),
        ("read", 1, lambda: source.sum()),
        ("triad", 3, lambda: torch.add(source, other, alpha=3.0, out=target)),
    )
    peak = _times_tera(gpu.memory_tb_per_second if gpu else None)
    return [_bandwidth(kind, size_bytes, arrays * size_bytes, work, device, peak) for kind, arrays, work in works]


def _times_tera(fact: SourcedValue | None) -> float | None:
    return fact.value * TERA if fact and fact.value else None


def transfer_rates(device: torch.device) -> list[Bandwidth]:
    """Return the rates in bytes/s of transfers between page-locked host memory and the device, in each direction."""
    on_host = torch.randn(TRANSFER_BYTES // 4).pin_memory()
    on_device = on_host.to(device)
    works: tuple[tuple[str, Callable[[], object]], ...] = (
        ("host_to_device", lambda: on_device.copy_(on_host, non_blocking=True)),
        ("device_to_host", lambda: on_host.copy_(on_device, non_blocking=True)),
    )
    return [_bandwidth(kind, TRANSFER_BYTES, TRANSFER_BYTES, work, device, None) for kind, work in works]


def _bandwidth(
    kind: str, size: int, moved: int, work: Callable[[], object], device: torch.device, peak: float | None
) -> Bandwidth:
    seconds = matmul.intervals(work, device)
    return Bandwidth(
        kind=kind,  # type: ignore[arg-type]  # the callers pass only its literals
        size_bytes=size,
        best_bytes_per_second=moved / min(seconds),
        typical_bytes_per_second=moved / statistics.median(seconds),
        peak_bytes_per_second=peak,
    )


def launch_seconds(device: torch.device) -> float:
    """Return the seconds in which the host launches one tiny kernel, as the median over batches of LAUNCHES kernels.

    The device is idle at the start of each batch.
    """
    tiny = torch.ones(1, device=device)
    times = []
    for _ in range(matmul.MATMUL_REPEATS):
        matmul.synchronise(device)
        start = time.perf_counter()
        for _ in range(LAUNCHES):
            tiny.add_(1.0)
        times.append((time.perf_counter() - start) / LAUNCHES)
    matmul.synchronise(device)
    return statistics.median(times)


def device_checks(machine: Machine, device: torch.device, processes: int) -> list[DeviceCheck]:
    """Return the rate of the same product on every GPU, with the driver's report of limits and other processes.

    A single process measures all GPUs one after the other. Of several processes, each measures its own GPU and receives
    the rates of all.
    """
    if processes == 1:
        return [_device_check(machine, index) for index in range(torch.cuda.device_count())]
    own = _cpu_check(machine, device) if device.type == "cpu" else _device_check(machine, device.index)
    return collectives.gathered(own, processes)


def _cpu_check(machine: Machine, device: torch.device) -> DeviceCheck:
    """Measure one process on a CPU for the comparison with those of other nodes."""
    best, _ = matmul.matmul_rate(CPU_SIBLING_SIZE, "fp32", device)
    return DeviceCheck(index=int(os.environ.get("LOCAL_RANK", "0")), host=node_name(machine), flops_per_second=best)


def node_name(machine: Machine) -> str:
    """Return Slurm's name of this node, else the host name."""
    return os.environ.get("SLURMD_NODENAME") or machine.host


def _device_check(machine: Machine, place: int) -> DeviceCheck:
    """Measure one GPU for the comparison with the others. place: its index among those that this process sees."""
    identity = machine.gpu_ids[place] if place < len(machine.gpu_ids) else None
    sampler = telemetry.Sampler(telemetry.open_devices([identity]) if identity else [])
    sampler.start()
    precision = "bf16" if torch.cuda.is_bf16_supported() else "fp16"
    best, _ = matmul.matmul_rate(SIBLING_SIZE, precision, torch.device("cuda", place))
    sampler.stop()
    reading = sampler.last[0] if sampler.last else DeviceReading()
    return DeviceCheck(
        index=place,
        host=node_name(machine),
        id=identity,
        flops_per_second=best,
        power_limit_watts=reading.power_limit_watts,
        throttled_by=sampler.throttled_by,
        other_processes=len(telemetry.foreign_processes(reading, ours=(os.getpid(),))),
    )


def preflight_warnings(found: Preflight) -> list[str]:
    """Return warnings about GPUs well below the fastest, with the driver's reasons, and precisions below the peak."""
    warnings = []
    best = max((check.flops_per_second for check in found.devices), default=0.0)
    nodes = {check.host for check in found.devices}
    for check in found.devices:
        if check.flops_per_second >= BELOW_SIBLINGS * best:
            continue
        slowed_by = listed(why for why in check.throttled_by if why != POWER_CAP)
        reasons = [f"clock reduced by {slowed_by}"] if slowed_by else []
        if check.power_limit_watts and any(check.power_limit_watts != one.power_limit_watts for one in found.devices):
            reasons.append(f"power limit {watts(check.power_limit_watts)}")
        if check.other_processes:
            reasons.append(f"{check.other_processes} other process{'es' * (check.other_processes > 1)} on it")
        why = "; ".join(reasons) or NO_REASON[found.device]
        share = percent(check.flops_per_second / best, 0)
        where = f"{check.host}: " if len(nodes) > 1 else ""
        warnings.append(
            f"{where}{found.unit.lower()} {check.index}: reaches {share} of the fastest {found.unit} ({why})"
        )
    for precision in dict.fromkeys(row.precision for row in found.matmul):
        row = max(
            (one for one in found.matmul if one.precision == precision), key=lambda one: one.best_flops_per_second
        )
        if row.peak_flops_per_second and row.best_flops_per_second < BELOW_CATALOGUE * row.peak_flops_per_second:
            share = percent(row.best_flops_per_second / row.peak_flops_per_second, 0)
            warnings.append(
                f"{precision}: the best matrix product reaches {share} of the catalogue's peak; possible causes: a "
                "defective GPU, a power limit, other work on the GPU"
            )
    return warnings
