"""Tables of a scenario about the recorded data of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from testbed.bus.limits import MOST_PART_MIB
from testbed.measure.influx_address import DEFAULT_BUCKET, DEFAULT_ORG, DEFAULT_URL, expected_url
from testbed.scenario.keys import Positive, Table, key


class BoundTable(Table):
    """The offline lower bound of the maximum stretch, for the degradation from the bound."""

    kind: Literal["theorem1", "fluid"] = key(
        "theorem1", "`theorem1`: the exact bound of [RR Theorem 1]; `fluid`: a faster bound by total work."
    )
    tau_s: Positive = key(10.0, "Threshold of the bounded stretch [RR 2.2].", unit="trace s")


class RunTable(Table):
    """The files of a run directory."""

    part_mib: Annotated[int, Field(ge=1, le=MOST_PART_MIB)] = key(
        64, "Size after which journal and points continue in a new file; full files are compressed.", unit="MiB"
    )


class InfluxTable(Table):
    """The InfluxDB 2 bucket for the points of a run. This table enables the recorder `influx`.

    The token is in the environment variable INFLUXDB_V2_TOKEN.
    """

    url: str = key(DEFAULT_URL, "URL of the database.")
    org: Annotated[str, Field(min_length=1)] = key(DEFAULT_ORG, "Organisation.")
    bucket: Annotated[str, Field(min_length=1)] = key(DEFAULT_BUCKET, "Bucket.")
    gzip: bool = key(False, "Whether to compress requests: useful on a slow network.")

    @field_validator("url")
    @classmethod
    def _without_secrets(cls, text: str) -> str:
        if expected := expected_url(text):
            raise ValueError(expected)
        return text
