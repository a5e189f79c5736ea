"""Records of result files, frozen, finite and rounded as they are written, and the three states of settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_serializer,
)

from tensorprimat.core import step_columns
from tensorprimat.core.quantities import stored, to_digits
from tensorprimat.core.settings import BY_NAME, SETTINGS, WITH_OPTION, Absent, Setting, TrainingSettings

if TYPE_CHECKING:
    from typing_extensions import Never


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


Finite = Annotated[float | None, BeforeValidator(_finite_or_none), AfterValidator(_finite_or_none)]
"""A measured figure: finite, or None."""
LARGEST_COUNT = 10**18  # beyond parameters, tokens or bytes of anything, and exact arithmetic still holds it
Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT)] | None
Dimension = Annotated[int, Field(gt=0, le=LARGEST_COUNT)]
"""A dimension of a model."""

_Record = TypeVar("_Record", bound="Record")


class Record(BaseModel):
    """A frozen, keyword-only record. Unknown keys, such as those of a newer version, are ignored and not kept."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    def model_copy(self: _Record, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> _Record:
        """Return a copy with other values, which are not checked; settings have the types of their words."""
        known = {name: BY_NAME[name].read for name, value in (update or {}).items() if value and name in BY_NAME}
        read = {name: of(update[name]) for name, of in known.items() if of and update}
        return super().model_copy(update={**(update or {}), **read}, deep=deep)

    def changed(self: _Record, **values: Any) -> _Record:
        """Return the record with these fields; as `model_copy`, without a check of the values."""
        return self.model_copy(update=values)


def first_fault(error: ValidationError) -> str:
    """Return the field and the reason of the first fault that pydantic found in a document."""
    first = error.errors()[0]
    field, reason = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    return f"{field}: {reason}" if field else reason


class RoundedRecord(Record):
    """A record whose figures are rounded when written: 3 decimals, or 4 significant digits where that says more."""

    @model_serializer(mode="wrap")
    def _round(self, serialise: Any) -> dict[str, Any]:
        return {key: stored(v) if isinstance(v, float) else v for key, v in serialise(self).items()}


class ConfigurationRecord(Record):
    """A record of settings: rounding noise of floats is cut off, chosen values are kept."""

    @model_serializer(mode="wrap")
    def _cut(self, serialise: Any) -> dict[str, Any]:
        return {
            key: to_digits(v, step_columns.SERIES_DIGITS) if isinstance(v, float) else v
            for key, v in serialise(self).items()
        }


_KEYS = ("max_steps", "warmup_steps", "global_batch_size")
"""Settings that come first in result files; the others follow in their order in tables."""
_TYPES = get_type_hints(TrainingSettings)
_LOOSE = {"count": Count, "number": Finite}


def _field(setting: Setting, *, seen: bool = False, resolved: bool = False) -> tuple[Any, Any]:
    """Return the type and the default of a setting in one of the three states, as pydantic's create_model takes them.

    A default of ... makes the field required.
    """
    parts, option = get_args(_TYPES[setting.name]), setting.option
    stated = parts[0] if setting.read is None else Annotated[str, AfterValidator(setting.read)]
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

    class ChosenSettings(Record, TrainingSettings[None]):
        """The settings that a user can choose by flag; None where no flag chooses one."""

    class ResolvedSettings(Record, TrainingSettings[Never]):
        """The settings of a run, each with its value; None leaves the engine's choice, which the result names."""

    class SeenSettings(ConfigurationRecord, TrainingSettings[None]):
        """The settings that a result contains; None where neither the run nor the log states one."""

else:
    _written = sorted((one for one in SETTINGS if one.in_results), key=lambda one: (*_KEYS, one.name).index(one.name))
    _chosen = {one.name: _field(one) for one in WITH_OPTION}
    _resolved = {one.name: _field(one, resolved=True) for one in WITH_OPTION}
    _seen = {one.name: _field(one, seen=True) for one in _written}
    ChosenSettings = create_model("ChosenSettings", __base__=Record, **_chosen)
    ResolvedSettings = create_model("ResolvedSettings", __base__=Record, **_resolved)
    SeenSettings = create_model("SeenSettings", __base__=ConfigurationRecord, **_seen)
