"""Records of result files, frozen, finite and rounded as they are written."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_serializer

from tensorprimat.core.quantities import stored


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

    def changed(self: _Record, **values: Any) -> _Record:
        """Return the record with these fields; their values are not checked."""
        return self.model_copy(update=values)


def first_fault(error: ValidationError) -> str:
    """Return the field and the reason of the first fault that pydantic found in a document."""
    first = error.errors()[0]
    field, reason = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    return f"{field}: {reason}" if field else reason


class RoundedRecord(Record):
    """A record whose figures are rounded when written: 3 decimals, or 4 significant digits where that says more."""

    shorten: ClassVar[Callable[[float], float]] = staticmethod(stored)

    @model_serializer(mode="wrap")
    def _round(self, serialise: Any) -> dict[str, Any]:
        return {key: type(self).shorten(v) if isinstance(v, float) else v for key, v in serialise(self).items()}
