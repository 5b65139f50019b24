"""Images from node to node: the one serves it to the holder of a ticket, which is good for that alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from testbed.bus.lease import new_token, token_digest
from testbed.bus.messages import AnyAction, FetchImage, ImageRef, OfferImage
from testbed.lab.node_facts import check_fetch
from testbed.lab.replies import Nodes


async def send_image(
    nodes: Nodes, fetch: Callable[[AnyAction], Awaitable[object]], image: ImageRef, source: int, target: int,
    memory_mib: int, deadline_s: float, command_s: float,
) -> None:  # fmt: skip
    """Have node `target` fetch an image of node `source`; `fetch` commands it, within `deadline_s`.

    The image is of a guest with `memory_mib`. The source is told within `command_s`. Raises what both commands raise.
    """
    check_fetch(nodes.name(source), nodes.facts(source).address, nodes.name(target), nodes.facts(target).address)
    ticket = new_token()
    offer = OfferImage(image=image, ticket_digest=token_digest(ticket), to=nodes.name(target), for_s=deadline_s)
    await nodes.call(source, offer, command_s)
    facts = nodes.facts(source)
    await fetch(
        FetchImage(image=image, host=facts.address, port=facts.image_port, ticket=ticket, memory_mib=memory_mib)
    )
