"""The work of `primus`: effective settings of Primus configurations, paired with those of an NVIDIA configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tensorprimat.core.errors import UsageError
from tensorprimat.core.spec import MODELS
from tensorprimat.engines.primus import checkout
from tensorprimat.engines.primus.config import Effective, effective
from tensorprimat.engines.primus.spec import MEGATRON_NAMES
from tensorprimat.facts import catalogue, methodologies
from tensorprimat.facts.methodologies import Configuration

ALSO_SHOWN = ("train_iters", "expert_model_parallel_size", "recompute_granularity", "mock_data")
"""Settings of Primus that are shown too, although no methodology states them."""


@dataclass(frozen=True, kw_only=True)
class SettingPair:
    """The values of one setting in both configurations; None where one does not set it."""

    name: str
    """Name of the setting in Primus."""
    primus: object
    nvidia: object = None

    @property
    def differs(self) -> bool:
        """Return True if both set it to different values."""
        return None not in (self.primus, self.nvidia) and self.primus != self.nvidia


@dataclass(frozen=True, kw_only=True)
class PrimusConfiguration:
    """A Primus configuration and the NVIDIA configuration of the same model."""

    effective: Effective
    nvidia: Configuration | None
    no_nvidia_because: str | None
    settings: tuple[SettingPair, ...]


def configurations_of(
    config: Path | None, *, model: str | None, precision: str | None, methodology: str, gpu: str
) -> Iterator[PrimusConfiguration]:
    """Yield the configuration `config`, or without it those of this machine's Primus checkout for its GPU.

    gpu: GPU of the NVIDIA configuration. Raises UsageError where there is no checkout, and for an unknown methodology
    or GPU; InputError for a file that cannot be read.
    """
    for name, path in _chosen(config, model, precision):
        sets = effective(path)
        nvidia = _nvidia_side(methodology, name, gpu)
        pairs = [
            SettingPair(name=setting, primus=sets.settings.get(setting), nvidia=getattr(nvidia, field, None))
            for field, setting in MEGATRON_NAMES.items()
        ]
        pairs.append(SettingPair(name="precision", primus=sets.precision, nvidia=nvidia.precision if nvidia else None))
        pairs += [SettingPair(name=setting, primus=sets.settings.get(setting)) for setting in ALSO_SHOWN]
        because = None
        if nvidia is None:
            no_model = "the file's name does not state the model; give --model"
            because = f"the methodology has no configuration of {name}" if name else no_model
        yield PrimusConfiguration(effective=sets, nvidia=nvidia, no_nvidia_because=because, settings=tuple(pairs))


def _chosen(config: Path | None, model: str | None, precision: str | None) -> list[tuple[str | None, Path]]:
    """Return model and path of each configuration; the name of a file may contain its model."""
    if config is not None:
        return [(model or next((one for one in MODELS if one in config.name.lower()), None), config)]
    root = checkout.find_checkout()
    if root is None:
        raise UsageError("no Primus checkout here; set PRIMUS_PATH, or name a configuration file")
    gpu, _ = checkout.gpu_model()
    models = [model] if model else list(checkout.STEMS)
    return [(one, checkout.find_config(root, one, gpu=gpu, precision=precision)) for one in models]


def _nvidia_side(methodology: str, model: str | None, gpu: str) -> Configuration | None:
    known = catalogue.find_gpu(gpu)
    rows = methodologies.find_configurations(
        methodology, model=model, platform="nvd", gpu=known.name if known else None
    )
    if known is None:
        raise UsageError(f"--gpu {gpu}: not in the catalogue; it has H100 SXM, H200 SXM, B200 …")
    return rows[0] if rows else None
