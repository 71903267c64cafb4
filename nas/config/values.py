"""Types of the values in a configuration, and the base of its tables."""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    field_validator,
)

from foundation.errors import did_you_mean, shortened
from search_spaces.architecture import ArchitectureError
from search_spaces.base import LARGEST, MOST_EXPERTS
from search_spaces.layer import Experts
from search_spaces.numbers import fraction

T = TypeVar("T")


def _positive_fraction(value: Any) -> Fraction:
    result = fraction(value)
    if not 0 < result <= 1:
        raise ValueError(f"must be above 0 and at most 1, not {value}")
    return result


_SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


def count(value: Any) -> int:
    """Parse a positive whole number, which may be written as "15M", "15.4M", "900K" or "1G"."""
    text = str(value).strip().upper()
    suffix = text[-1:] if text[-1:] in _SUFFIXES else ""
    try:
        number = fraction(text.removesuffix(suffix)) * _SUFFIXES[suffix]
    except ValueError:
        raise ValueError(f"{shortened(value)} is not a number such as 15M or 15400000") from None
    if number <= 0 or number.denominator != 1:
        raise ValueError(f"{value!r} is not a positive whole number")
    return int(number)


def size(value: Any) -> int:
    """Parse a number of bytes, which may be 0 or written as "20G"."""
    return 0 if value == 0 and not isinstance(value, bool) else count(value)


def file_size(value: Any) -> int:
    """Parse a number of bytes above 0, with a unit unless it is a whole number: "10MB" is 10,000,000 bytes."""
    if isinstance(value, int):
        return count(value)
    text = str(value).strip().upper()
    try:
        return count(text.removesuffix("B") if text.endswith(("KB", "MB", "GB")) else "")
    except ValueError:
        right = "a number above 0 with KB, MB or GB (powers of ten) such as '10MB'"
        raise ValueError(f"a size is {right}, not {shortened(value)}") from None


def _goals(value: Any) -> Any:
    names = value.split(",") if isinstance(value, str) else value
    goals = tuple(names) if isinstance(names, list | tuple) else (names,)
    if goals not in (("score",), *(("score", name) for name in ("params", "macs", "latency"))):
        raise ValueError(f"{','.join(map(str, goals))!r} is not one of score; score,params; score,macs; score,latency")
    return goals


def _different(tasks: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(tasks)) < len(tasks):
        raise ValueError("a task is named twice")
    return tasks


def distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    """These values, unless one of them is given twice: then a ValueError."""
    twice = next((value for place, value in enumerate(values) if value in values[:place]), None)
    if twice is not None:
        raise ValueError(f"{shortened(twice) if isinstance(twice, str) else twice} is given twice")
    return values


# In microseconds, or for "x" in multiples of the teacher's latency. "ms" comes before "s" because it also ends in "s".
_UNITS = {"ms": 1_000, "s": 1_000_000, "x": 1}


@dataclass(frozen=True)
class LatencyLimit:
    """A limit in microseconds, or relative to the teacher's latency."""

    value: Fraction
    relative: bool

    def microseconds(self, teacher: int) -> int:
        """The limit, rounded down, given the latency of the teacher in microseconds."""
        return int(self.value * teacher if self.relative else self.value)


def parse_latency(text: str) -> LatencyLimit:
    """Parse a limit such as "12ms", "0.012s" or "0.25x" (a quarter of the teacher's latency).

    Raises:
        ValueError: the text is no such limit.
    """
    unit = next((unit for unit in _UNITS if text.endswith(unit)), "")
    try:
        value = fraction(text.removesuffix(unit)) if unit else Fraction(0)
    except ValueError:
        value = Fraction(0)
    if not value:
        right = "a time above 0 such as '12ms' or '0.012s', or a part of the teacher's such as '0.25x'"
        raise ValueError(f"a latency is {right}, not {shortened(text)}")
    return LatencyLimit(value * _UNITS[unit], unit == "x")


def _latency(value: Any) -> Any:
    parse_latency(str(value))
    return value


def _experts(value: Any) -> Experts:
    try:
        return Experts.from_json(value)
    except ArchitectureError as error:
        raise ValueError(re.sub("^experts[.:] ?", "", str(error))) from None


def _sampler(value: str) -> str:
    from nas.samplers import SAMPLERS  # imports scikit-learn, which takes a second

    if value not in SAMPLERS:
        meant = did_you_mean(value, SAMPLERS)
        raise ValueError(f"there is no sampler {value!r}{meant} (samplers: {', '.join(SAMPLERS)})")
    return value


PositiveFraction = Annotated[Fraction, BeforeValidator(_positive_fraction), PlainSerializer(str)]
ExpertsTable = Annotated[Experts, PlainValidator(_experts), PlainSerializer(Experts.to_json)]
# No value is chosen more often than the others because it is given twice.
Distinct = Annotated[tuple[T, ...], AfterValidator(distinct)]
Choices = Annotated[Distinct[T], Field(min_length=1)]
# Choices for a number of experts that a whole architecture has.
ExpertCounts = Choices[Annotated[int, Field(strict=True, ge=1, le=MOST_EXPERTS)]]
# Choices for the number of attention heads of a layer.
HeadCounts = Choices[Annotated[int, Field(strict=True, ge=0, le=LARGEST["heads"])]]
# Choices for the rank of the word embedding.
Ranks = Choices[Annotated[int, Field(strict=True, ge=1, le=LARGEST["width"])]]
Tasks = Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(_different)]
# What is optimized: the score, or the score and one cost.
Goals = Annotated[tuple[Literal["score", "params", "macs", "latency"], ...], BeforeValidator(_goals)]
Length = Annotated[int, Field(ge=8, le=512)]  # of a row, in tokens
Latency = Annotated[str, BeforeValidator(_latency)]
Count = Annotated[int, BeforeValidator(count)]
FileSize = Annotated[int, BeforeValidator(file_size)]
Steps = Annotated[int, Field(ge=0, le=10_000_000)]
UnitFloat = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# One source of text or several, which follow one another.
Corpora = Annotated[
    tuple[str, ...],
    Field(min_length=1),
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
]
SamplerName = Annotated[str, AfterValidator(_sampler)]


def _of_numbers(kind: Any) -> bool:
    """Whether values of this type are numbers, or contain any."""
    return kind in (int, float) or any(map(_of_numbers, get_args(kind)))


class Table(BaseModel):
    """A table of a configuration, in which unknown keys are refused, and true and false where numbers belong."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_not_one(cls, value: Any, info: ValidationInfo) -> Any:
        if _of_numbers(cls.model_fields[str(info.field_name)].annotation):
            for one in value if isinstance(value, list | tuple) else [value]:
                if isinstance(one, bool):
                    raise ValueError(f"must be a number, not {str(one).lower()}")
        return value
