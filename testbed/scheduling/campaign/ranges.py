"""Parser of lists of whole numbers in files: 7, [1, 2, 5], "1..100"."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

_RANGE = re.compile(r"\s*(\d{1,10})\s*\.\.\s*(\d{1,10})\s*")
_LONGEST = 1_000_000


def numbers_of(value: object) -> object:
    """Return the numbers of a range with both ends, or of one number; any other value unchanged, to be validated."""
    if isinstance(value, str) and (match := _RANGE.fullmatch(value)):
        first, last = int(match[1]), int(match[2])
        if not first <= last < first + _LONGEST:
            raise ValueError("a range FIRST..LAST with FIRST <= LAST, of a million numbers at most")
        return tuple(range(first, last + 1))
    if isinstance(value, str):
        raise ValueError('a range such as "1..100", or a list of whole numbers')  # noqa: TRY004  # pydantic's own rule
    return (value,) if isinstance(value, int) and not isinstance(value, bool) else value


Numbers = Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(numbers_of), Field(min_length=1)]
