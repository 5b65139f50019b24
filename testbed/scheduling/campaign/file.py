"""Reader of campaign files: errors name the file, the key, the value, and what was expected."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from testbed.scheduling.campaign.model import Campaign
from testbed.toml_files import first_mistake, read_toml


def load_campaign(path: Path) -> Campaign:
    """Read and check a campaign file. Raises UserError."""
    data = read_toml(path, "a campaign")
    try:
        return Campaign.model_validate(data)
    except ValidationError as error:
        raise first_mistake(path, Campaign, error) from None
