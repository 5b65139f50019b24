"""Number types with bounds for messages: an unbounded value could exhaust memory or make sums infinite."""

from __future__ import annotations

from typing import Annotated

import msgspec

from testbed.bus.limits import MOST_AMOUNT, MOST_COUNT, MOST_DISK_MIB, MOST_NODE_CORES, MOST_NODE_MEMORY_MIB

MOST_RANKS = 1 << 20
MOST_TEXT_CHARS = 1000  # of a node's text for people, such as that of an error

Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_COUNT)]
Amount = Annotated[float, msgspec.Meta(ge=-MOST_AMOUNT, le=MOST_AMOUNT)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]  # of one image or transfer: sums of a run fit into 64 bits
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]  # a duration
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]  # a divisor
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
Cores = Annotated[float, msgspec.Meta(ge=0, le=MOST_NODE_CORES)]
Memory = Annotated[int, msgspec.Meta(ge=0, le=MOST_NODE_MEMORY_MIB)]  # MiB
DiskSpace = Annotated[int, msgspec.Meta(ge=0, le=MOST_DISK_MIB)]  # MiB
Workers = Annotated[int, msgspec.Meta(ge=1, le=MOST_NODE_CORES)]
Rank = Annotated[int, msgspec.Meta(ge=0, le=MOST_RANKS)]
Ranks = Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
