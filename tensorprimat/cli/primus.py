"""`tprimat primus`, `./check_primus_config.sh`: compare a Primus configuration with the NVIDIA configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tensorprimat.cli import known_values as known
from tensorprimat.cli.shared_options import argument, takes

if TYPE_CHECKING:
    from tensorprimat.session.primus_config import PrimusConfiguration

_UNSET = "not set"


def command(
    config: Annotated[
        Path | None, argument("CONFIG", "A Primus experiment file.", show_default="those for this GPU")
    ] = None,
    model: Annotated[
        str | None,
        takes("MODEL", "llama or qwen.", show_default="by the file's name", offers=known.models),
    ] = None,
    precision: Annotated[
        str | None,
        takes(
            "FORMAT",
            "Precision of the configurations shown without CONFIG: bf16 or fp8.",
            show_default="bf16",
            offers=lambda: ("bf16", "fp8"),
        ),
    ] = None,
    methodology: Annotated[
        str,
        takes(
            "NAME",
            "Methodology of the NVIDIA configuration: agreed, max, identical or classic.",
            offers=known.of_setting("methodology"),
        ),
    ] = "agreed",
    gpu: Annotated[str, takes("GPU", "GPU of the NVIDIA configuration.", offers=known.gpu_names)] = "H100 SXM",
) -> int:
    """Show the effective settings of a Primus configuration and their differences from the NVIDIA configuration.

    The NVIDIA configuration is the one with which a methodology trains the same model on an NVIDIA GPU.

    Resolves `extends` and ${VAR:default} as Primus does. Without CONFIG it shows the configurations in $PRIMUS_PATH for
    this machine's GPU (or PRIMUS_GPU_MODEL). Nothing is written.

    \b
    Examples:
      ./check_primus_config.sh
      ./check_primus_config.sh examples/megatron/configs/MI300X/llama3.1_8B-FP8-pretrain.yaml --methodology identical

    \b
    Exit codes:
      0  shown, with or without differences
      2  a flag is wrong, or a file cannot be read
    """
    from tensorprimat.reports import harmless
    from tensorprimat.session.primus_config import configurations_of

    console = harmless.console(highlight=False, markup=False)
    for found in configurations_of(config, model=model, precision=precision, methodology=methodology, gpu=gpu):
        _show(found, console)
    return 0


def _show(found: PrimusConfiguration, console: Any) -> None:
    from rich.table import Table

    from tensorprimat.session.primus_config import ALSO_SHOWN

    sets, nvidia = found.effective, found.nvidia
    side = f"NVIDIA, {nvidia.methodology}" if nvidia else "NVIDIA"
    table = Table("Setting", "Primus", side, "", box=None, pad_edge=False)
    for one in found.settings:
        nvidia_shown = "" if one.name in ALSO_SHOWN else _shown(one.nvidia)
        table.add_row(one.name, _shown(one.primus), nvidia_shown, "differs" if one.differs else "")
    console.print(f"{sets.path}", soft_wrap=True)
    console.print(table)
    if sets.missing_presets:
        console.print(
            f"unknown: the settings of {', '.join(sets.missing_presets)} (not found); set PRIMUS_PATH to the checkout",
            soft_wrap=True,
        )
    if nvidia is None:
        console.print(f"no NVIDIA configuration to compare with: {found.no_nvidia_because}", soft_wrap=True)
    else:
        console.print(f"NVIDIA side: {nvidia.source}", soft_wrap=True)
    console.print()


def _shown(value: object) -> str:
    return _UNSET if value is None else str(value)
