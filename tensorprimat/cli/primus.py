"""`tprimat primus`, `./check_primus_config.sh`: compare a Primus configuration with the NVIDIA configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tensorprimat.cli.shared_options import argument, takes

if TYPE_CHECKING:
    from tensorprimat.core.configurations import Configuration
    from tensorprimat.engines.primus.config import Effective

UNSET = "not set"


def command(
    config: Annotated[
        Path | None, argument("CONFIG", "A Primus experiment file.", show_default="those for this GPU")
    ] = None,
    model: Annotated[str | None, takes("MODEL", "llama or qwen.", show_default="by the file's name")] = None,
    precision: Annotated[
        str | None,
        takes("FORMAT", "Precision of the configurations shown without CONFIG: bf16 or fp8.", show_default="bf16"),
    ] = None,
    methodology: Annotated[
        str, takes("NAME", "Methodology of the NVIDIA configuration: agreed, max, identical or classic.")
    ] = "agreed",
    gpu: Annotated[str, takes("GPU", "GPU of the NVIDIA configuration.")] = "H100 SXM",
) -> int:
    """Show the effective settings of a Primus configuration and their differences from the NVIDIA configuration.

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

    from tensorprimat.core.errors import UsageError
    from tensorprimat.engines.primus import checkout as primus_checkout
    from tensorprimat.engines.primus.config import effective

    if config is None:
        root = primus_checkout.find()
        if root is None:
            raise UsageError("no Primus checkout here; set PRIMUS_PATH, or name a configuration file")
        name, _ = primus_checkout.gpu_model()
        models = [model] if model else list(primus_checkout.STEMS)
        chosen: list[tuple[str | None, Path]] = [
            (one, primus_checkout.find_config(root, one, gpu=name, precision=precision)) for one in models
        ]
    else:
        chosen = [(model or _model_of(config), config)]
    from tensorprimat.reports import harmless

    console = harmless.console(highlight=False, markup=False)
    for one, path in chosen:
        _show(effective(path), _nvidia_side(methodology, one, gpu), one, console)
    return 0


def _model_of(config: Path) -> str | None:
    """Return the model that a file's name contains."""
    from tensorprimat.core.spec import MODELS

    return next((model for model in MODELS if model in config.name.lower()), None)


def _nvidia_side(methodology: str, model: str | None, gpu: str) -> Configuration | None:
    from tensorprimat.core import catalogue, configurations
    from tensorprimat.core.errors import UsageError

    known = catalogue.find_gpu(gpu)
    rows = configurations.find_configurations(
        methodology, model=model, platform="nvd", gpu=known.name if known else None
    )
    if known is None:
        raise UsageError(f"--gpu {gpu}: not in the catalogue; it has H100 SXM, H200 SXM, B200 …")
    return rows[0] if rows else None


def _show(sets: Effective, nvidia: Configuration | None, model: str | None, console: Any) -> None:
    from rich.table import Table

    from tensorprimat.engines.primus.spec import SETTINGS

    rows: list[tuple[str, object, object]] = [
        (name, sets.settings.get(name), getattr(nvidia, field, None)) for field, name in SETTINGS.items()
    ]
    rows.append(("precision", sets.precision, getattr(nvidia, "precision", None)))
    side = f"NVIDIA, {nvidia.methodology}" if nvidia else "NVIDIA"
    table = Table("Setting", "Primus", side, "", box=None, pad_edge=False)
    for name, here, there in rows:
        differs = None not in (here, there) and here != there
        table.add_row(name, _shown(here), _shown(there), "differs" if differs else "")
    for name in ("train_iters", "expert_model_parallel_size", "recompute_granularity", "mock_data"):
        table.add_row(name, _shown(sets.settings.get(name)), "", "")
    console.print(f"{sets.path}", soft_wrap=True)
    console.print(table)
    if sets.missing_presets:
        console.print(
            f"unknown: the settings of {', '.join(sets.missing_presets)} (not found); set PRIMUS_PATH to the checkout",
            soft_wrap=True,
        )
    if nvidia is None:
        reason = (
            f"the methodology has none of {model}"
            if model
            else "the file's name does not state the model; give --model"
        )
        console.print(f"no NVIDIA configuration to compare with: {reason}", soft_wrap=True)
    else:
        console.print(f"NVIDIA side: {nvidia.source}", soft_wrap=True)
    console.print()


def _shown(value: object) -> str:
    return UNSET if value is None else str(value)
