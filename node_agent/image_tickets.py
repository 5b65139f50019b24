"""Access to images: a ticket of the controller is valid for one fetch of one image by one node.

The controller gives the ticket's digest to the node that has the image, and the ticket to the node that fetches it. So
a node can open only images that it was ordered to fetch, whatever else it received or kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from node_agent.drivers.protocol import DriverError
from node_agent.image_wire import Request
from testbed.bus.lease import token_digest
from testbed.bus.messages import ImageRef, OfferImage

MOST_OFFERS = 4096
_REMEMBERED_S = 600.0  # after its expiry, so that the log can tell an expired ticket from an invalid one


class NoTicketError(DriverError):
    """A request that no honest node sends, unless its ticket expired while it waited."""


@dataclass(slots=True)
class _Offer:
    image: ImageRef
    to: str
    until_s: float
    used: bool = False


class Tickets:
    """The tickets of a node's images. Times are in seconds, of the clock given to it."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._offers: dict[str, _Offer] = {}  # by digest of the ticket

    def offer(self, action: OfferImage) -> None:
        """Take a ticket's digest from the controller; raises `DriverError` if there are too many."""
        now_s = self._now_s()
        past_s = now_s - _REMEMBERED_S
        self._offers = {digest: offer for digest, offer in self._offers.items() if offer.until_s > past_s}
        if len(self._offers) >= MOST_OFFERS:
            raise DriverError(f"image {action.image.image}: {MOST_OFFERS} tickets are out already")
        self._offers[action.ticket_digest] = _Offer(action.image, action.to, now_s + action.for_s)

    def take(self, request: Request, peer: str) -> ImageRef:
        """Use up the ticket of a request, and return the image that it is for.

        Raises `NoTicketError`, and `DriverError` for a ticket that has expired. `peer` is the requester's name in its
        certificate, "" without one.
        """
        offer = self._offers.get(token_digest(request.ticket))
        if offer is None:
            raise NoTicketError("no such ticket is out")
        if offer.used:
            raise NoTicketError(f"the ticket for {offer.image.image} was used")
        if self._now_s() >= offer.until_s:
            raise DriverError(f"the ticket for {offer.image.image} has expired")
        if peer and peer != offer.to:
            raise NoTicketError(f"the ticket for {offer.image.image} is node {offer.to}'s")
        offer.used = True
        image = offer.image
        if (request.image, request.bytes, request.digest) != (image.image, image.bytes, image.digest):
            raise NoTicketError(f"the ticket is for {offer.image.image} and no other image")
        return offer.image

    def clear(self) -> None:
        """Revoke all tickets."""
        self._offers.clear()
