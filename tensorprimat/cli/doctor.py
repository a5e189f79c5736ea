"""`tprimat doctor`: show what is installed here, which engines would train, and how to install what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

from tensorprimat.cli.shared_options import switch

if TYPE_CHECKING:
    from tensorprimat.session.doctor import Diagnosis, GpuState


def command(json: Annotated[bool, switch("--json", "Print JSON.")] = False) -> int:
    """Show what is installed here, which engines would train and why the others would not.

    Of each GPU it shows driver, free memory, power cap, clocks, the reasons for a reduced clock, and other processes. A
    thing that is missing comes with the command that installs it. No training is started.

    \b
    Examples:
      tprimat doctor
      tprimat doctor --json

    \b
    Exit codes:
      0  at least one engine would train here
      1  none would, for the reasons shown
      2  a flag is wrong
    """
    import json as json_module

    from tensorprimat.session.doctor import diagnose

    found = diagnose()
    if json:
        print(json_module.dumps(found.document(), indent=2, default=str))
    else:
        for title, lines in _sections(found):
            _print_section(title, lines)
    return 0 if any(engine.works for engine in found.engines) else 1


def _print_section(title: str, lines: Sequence[str]) -> None:
    from tensorprimat.reports import harmless
    from tensorprimat.reports.console import paragraph, safe

    console = harmless.console(highlight=False)
    console.print(safe(title, "bold"))
    for line in lines or ["none"]:
        console.print(paragraph(line, width=console.width, indent=2, bullet="- "))
    console.print()


def _sections(found: Diagnosis) -> Iterator[tuple[str, list[str]]]:
    """Yield the parts of the screen."""
    from tensorprimat.core.quantities import gigabytes

    info = found.machine.gpu_info
    several = f"{info.device_count} × " if (info.device_count or 1) > 1 else ""
    memory = gigabytes(info.total_memory_gb)
    yield f"{found.machine.label}: {several}{info.device_name}, {memory}", list(found.remarks)
    yield (
        "Engines",
        [f"{engine.name}: {'works' if engine.works else 'no'}, {engine.says}" for engine in found.engines],
    )
    yield "Installed", [f"{name} {version}" for name, version in found.versions.items()]
    yield "Missing", [f"{name}: {install}" for name, install in found.missing.items()]
    yield "GPUs", [_gpu_line(gpu) for gpu in found.gpus]
    yield "Processes on GPUs", [f"{one.pid} {one.user or ''} {one.command}" for one in found.holders]
    yield "Variables that change speed", [f"{name}={value}" for name, value in found.variables.items()]


def _gpu_line(gpu: GpuState) -> str:
    from tensorprimat.core.quantities import celsius, gigahertz, listed, size, watts

    now = gpu.reading
    free = "unknown" if now.free_memory_bytes is None else size(now.free_memory_bytes)
    return ", ".join(
        [
            f"{gpu.name} ({gpu.driver or 'driver unknown'}): {free} free",
            f"power {watts(now.power_watts)} of {watts(now.power_limit_watts)} "
            f"(default {watts(now.default_power_limit_watts)})",
            f"clock {gigahertz(now.clock_hertz)} of {gigahertz(now.max_clock_hertz)}",
            celsius(now.temperature_celsius),
            f"reduced by {listed(now.throttled_by)}" if now.throttled_by else "not reduced",
            f"processes {len(now.processes)}",
        ]
    )
