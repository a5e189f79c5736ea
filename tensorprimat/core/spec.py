"""Records of settings in three states: chosen on the command line, resolved for a run, seen in a result.

Two records have some of them: what a user states about a log, and what a methodology sets for a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, make_dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from pydantic import AfterValidator, Field, create_model

from tensorprimat.core import settings, step_columns
from tensorprimat.core.errors import DoesNotFitError, UsageError
from tensorprimat.core.folders import DEFAULT_FOLDER
from tensorprimat.core.notices import Sentences
from tensorprimat.core.quantities import alternatives, counted, listed, to_digits
from tensorprimat.core.records import Count, Finite, Record, RoundedRecord
from tensorprimat.core.settings import Absent, Setting, TrainingSettings

if TYPE_CHECKING:
    from typing_extensions import Never

MODELS = ("llama", "qwen", "mistral")

_READ = {one.name: one.read for one in settings.SETTINGS if one.read}
_Settings = TypeVar("_Settings", bound="SettingsRecord")


class SettingsRecord(Record):
    """A record of settings; a copy with other values reads their words as the fields do."""

    def model_copy(self: _Settings, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> _Settings:
        """Return a copy with other values, which are not checked; words get their types."""
        read = {name: of(value) for name, value in (update or {}).items() if value and (of := _READ.get(name))}
        return super().model_copy(update={**(update or {}), **read}, deep=deep)


class ConfigurationRecord(SettingsRecord, RoundedRecord):
    """A record of settings in a result: rounding noise of floats is cut off, chosen values are kept."""

    shorten = staticmethod(partial(to_digits, digits=step_columns.SERIES_DIGITS))


_KEYS = ("max_steps", "warmup_steps", "global_batch_size")
"""Settings that come first in result files; the others follow in their order in tables."""
_TYPES = get_type_hints(TrainingSettings)
_LOOSE = {"count": Count, "number": Finite}


def _field(setting: Setting, *, seen: bool = False, resolved: bool = False) -> tuple[Any, Any]:
    """Return the type and the default of a setting in one of the three states, as pydantic's create_model takes them.

    A default of ... makes the field required.
    """
    parts, option = get_args(_TYPES[setting.name]), setting.option
    read = (resolved and setting.read_for_run) or setting.read
    stated = parts[0] if read is None else Annotated[str, AfterValidator(read)]
    if seen:
        return _LOOSE.get(setting.kind, stated | None), None
    default = option.default if option else None
    if not resolved:
        return stated | None, default
    if option and option.choices and setting.read is None and setting.name != "preset":  # models have their own
        stated = Literal[option.choices]
    if Absent not in parts:
        return stated | None, default
    usual = setting.usual if default is None else default
    return stated, ... if usual is None else usual


if TYPE_CHECKING:

    class ChosenSettings(SettingsRecord, TrainingSettings[None]):
        """The settings that a user can choose by flag; None where no flag chooses one."""

    class ResolvedSettings(SettingsRecord, TrainingSettings[Never]):
        """The settings of a run, each with its value; None leaves the engine's choice, which the result names."""

    class SeenSettings(ConfigurationRecord, TrainingSettings[None]):
        """The settings that a result contains; None where neither the run nor the log states one."""

    class StatedSettings(TrainingSettings[None]):
        """The settings that a user states about a log or a result; None where no flag states one."""

    class MethodologySettings(TrainingSettings[Never]):
        """The settings that a configuration of a methodology sets, each with its value."""

else:
    _written = sorted(
        (one for one in settings.SETTINGS if one.in_results), key=lambda one: (*_KEYS, one.name).index(one.name)
    )
    _chosen = {one.name: _field(one) for one in settings.WITH_OPTION}
    _resolved = {one.name: _field(one, resolved=True) for one in settings.WITH_OPTION}
    _seen = {one.name: _field(one, seen=True) for one in _written}
    ChosenSettings = create_model("ChosenSettings", __base__=SettingsRecord, **_chosen)
    ResolvedSettings = create_model("ResolvedSettings", __base__=SettingsRecord, **_resolved)
    SeenSettings = create_model("SeenSettings", __base__=ConfigurationRecord, **_seen)
    _stated = [(name, _seen[name][0], field(default=None)) for name in settings.FACT_FLAGS]
    _explicit = [
        (name, Annotated[_resolved[name][0], Field(ge=settings.option(name).least)])
        for name in settings.OF_A_METHODOLOGY
    ]
    StatedSettings = make_dataclass("StatedSettings", _stated, frozen=True, kw_only=True)
    MethodologySettings = make_dataclass("MethodologySettings", _explicit, frozen=True, kw_only=True)


class RunSpec(ResolvedSettings):
    """One run of one model on one engine. Every value is explicit: nothing is inherited from a recipe's defaults.

    `preset` is a shape of models/presets, and `num_gpus` counts the processes of one node.
    """

    model: str
    """llama, qwen or mistral, or the name of a model that `config` defines."""
    engine: str
    reshard: bool = True
    """Free the gathered weights of a layer after forward (FSDP); False keeps them for backward, which saves an exchange
    and costs the memory of all layers' weights."""
    falls_back: bool = False
    """The engine chose what to keep: a run that is out of memory before a measured step starts again with less."""
    platform: Literal["nvd", "amd", "cpu"] = "cpu"
    output_dir: str = str(DEFAULT_FOLDER)
    config: dict[str, Any] | None = None
    """Complete Hugging Face configuration of a model given by a file (torch engine); None for a built-in model."""
    options: dict[str, str] = Field(default_factory=dict)
    """Options that only one engine understands."""
    notes: Sentences = ()
    """Remarks on the choice of the methodology's configuration; printed, and warnings of the result."""
    origins: dict[str, str] = Field(default_factory=dict)
    """Settings that no flag set → where their value comes from ("" to leave it out), for messages."""

    @property  # type: ignore[misc]
    def data_parallel_size(self) -> int:  # type: ignore[override]  # results state it, runs derive it
        """Return the number of replicas of the model: devices over the product of the parallel sizes."""
        return (self.num_gpus * self.num_nodes) // self.model_parallel_size

    @property
    def model_parallel_size(self) -> int:
        """Return the number of devices that share one replica."""
        return settings.replica_devices(self)

    @property
    def split_by(self) -> tuple[str, ...]:
        """Return the names of the parallel sizes above 1 that split a replica."""
        return tuple(name for name in settings.MODEL_PARALLEL if getattr(self, name) > 1)

    @property  # type: ignore[misc]
    def gradient_accumulation_steps(self) -> int:  # type: ignore[override]  # results state it, runs derive it
        """Return the number of micro-batches of one optimizer step on one replica."""
        return self.global_batch_size // (self.micro_batch_size * self.data_parallel_size)

    @property  # type: ignore[misc]
    def max_steps(self) -> int:  # type: ignore[override]  # results state it, runs derive it
        """Return the number of optimizer steps, warm-up included."""
        return self.warmup_steps + self.steps

    @property
    def configuration(self) -> dict[str, Any]:
        """Return the settings as a result of the run states them; without the strategy, which can be "auto"."""
        names = [one.name for one in settings.SETTINGS if one.in_results and one.name != "strategy"]
        stated = {name: getattr(self, name) for name in names if getattr(self, name, None) is not None}
        return {**stated, "num_gpus": self.num_gpus * self.num_nodes}

    @property
    def with_methodology_flag(self) -> bool:
        """Return True if --methodology was used."""
        return self.methodology is not None and "methodology" not in self.origins

    def named(self, *names: str) -> str:
        """Return settings with their values for a message: flags first, then labels and where the values come from."""
        words = [f"{settings.flag(name)} {getattr(self, name)}" for name in names if name not in self.origins]
        words += [f"{settings.BY_NAME[name].label} {getattr(self, name)}" for name in names if name in self.origins]
        origins = dict.fromkeys(filter(None, map(self.origins.get, names)))
        return listed(words) + (f" ({', '.join(origins)})" if origins else "")

    def check(self) -> RunSpec:
        """Return the spec itself if it can work; raises UsageError naming the flag if not."""
        check_least(self)
        devices = self.num_gpus * self.num_nodes
        if devices % self.model_parallel_size:
            sizes = self.named(*self.split_by)
            other = "leave --methodology out" if self.with_methodology_flag else "a parallel size"
            raise DoesNotFitError(
                f"{sizes}: {counted(devices, 'device')} cannot hold replicas of {self.model_parallel_size} "
                f"(tensor × pipeline × context parallel size)",
                remedy=f"change --num-gpus or {other}",
                because=f"has {sizes}, which needs a multiple of {self.model_parallel_size} GPUs",
            )
        per_micro_step = self.micro_batch_size * self.data_parallel_size
        if self.global_batch_size % per_micro_step:
            batch = f"{self.named('global_batch_size')} is not a multiple of {self.named('micro_batch_size')}"
            replicas = counted(self.data_parallel_size, "data-parallel replica")
            nearest = max(1, round(self.global_batch_size / per_micro_step)) * per_micro_step
            raise DoesNotFitError(
                f"{batch} × {replicas}",
                remedy=f"try --global-batch-size {nearest}"
                + (" without --methodology" if self.with_methodology_flag else ""),
                because=f"has {self.named('global_batch_size')}, which is not a multiple of {per_micro_step} "
                f"(micro batch {self.micro_batch_size} × {replicas})",
            )
        return self


class RunSettings(ChosenSettings, extra="forbid"):
    """The settings that the user chose by flag; None means that the flag was not used."""

    config: dict[str, Any] | None = None
    """Complete Hugging Face configuration where --model is a file."""

    def check(self) -> None:
        """Raise UsageError naming the flag of a value that its option does not have."""
        check_least(self)
        for setting in settings.WITH_OPTION:
            option, value = setting.option, getattr(self, setting.name)
            is_share = option and option.takes_share and value and value.kept_share is not None
            if setting.name == "preset" or is_share:  # models have presets of their own
                continue
            if option and option.choices and value not in (None, *option.choices):
                choices = (*option.choices, "a share such as 35%") if option.takes_share else option.choices
                raise UsageError(f"{option.flag} {value}: must be {alternatives(choices)}")


def check_least(chosen: RunSpec | RunSettings) -> None:
    """Raise UsageError naming the flag of a setting that is below its least value."""
    for setting in settings.WITH_OPTION:
        option, value = setting.option, getattr(chosen, setting.name, None)
        if option and option.least is not None and value is not None and value < option.least:
            raise UsageError(f"{option.flag} {value}: must be at least {option.least}")
