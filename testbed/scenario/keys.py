"""Building blocks of scenario tables: value types, and keys with a description, a unit and an example."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from testbed.bus.limits import MOST_TRACE_S

Positive = Annotated[float, Field(gt=0, le=MOST_TRACE_S, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, le=MOST_TRACE_S, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
REQUIRED: Any = ...


class Table(BaseModel):
    """A table of a scenario file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def key(default: Any, description: str, *, unit: str = "", example: Any = None) -> Any:
    """Return a key with its default, or `REQUIRED`; `example` is a value in TOML terms, for the reference page."""
    return Field(
        default,
        description=description,
        examples=None if example is None else [example],
        json_schema_extra={"unit": unit} if unit else None,
    )
