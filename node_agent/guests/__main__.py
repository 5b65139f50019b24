"""`python -m node_agent.guests FOLDER`: make the files that agents derive from the current image there, beside it.

This is for agents that cannot write to the folder.
"""

import sys
from pathlib import Path

from node_agent.guests.image import current
from node_agent.guests.uncompressed import uncompressed
from node_agent.guests.unpack import unpacked
from testbed.errors import TestbedError

try:
    image = current(Path(sys.argv[1]))
    unpacked(image)
    uncompressed(image)
except (TestbedError, OSError) as error:
    sys.exit(f"{error}")
