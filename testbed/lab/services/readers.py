"""Creates a read-only InfluxDB token for Grafana, restricted to one bucket, through the database's HTTP API."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

from testbed.errors import RunError

DESCRIPTION = "dfrs-testbed: Grafana reads"
_TIMEOUT_S = 10.0


def read_token(url: str, token: str, org: str, bucket: str) -> str:
    """Return the token of our authorization that may only read `bucket`; a missing authorization is created.

    `token` must have the right to create authorizations. Raises `RunError`.
    """
    orgs = _ask(url, token, f"/api/v2/orgs?org={quote(org)}").get("orgs") or []
    buckets = _ask(url, token, f"/api/v2/buckets?org={quote(org)}&name={quote(bucket)}").get("buckets") or []
    if not orgs or not buckets:
        raise RunError(f"InfluxDB at {url}: there is no bucket {bucket!r} of organization {org!r}")
    wanted = _permissions(str(orgs[0]["id"]), str(buckets[0]["id"]))
    there = _ask(url, token, f"/api/v2/authorizations?org={quote(org)}").get("authorizations") or []
    for each in there:
        if each.get("description") == DESCRIPTION and each.get("status") == "active" and _same(each, wanted):
            return str(each["token"])
    made = _ask(
        url, token, "/api/v2/authorizations",
        {"orgID": orgs[0]["id"], "description": DESCRIPTION, "permissions": wanted},
    )  # fmt: skip
    return str(made["token"])


def _permissions(org_id: str, bucket_id: str) -> list[dict[str, object]]:
    return [{"action": "read", "resource": {"type": "buckets", "id": bucket_id, "orgID": org_id}}]


def _same(authorization: dict[str, Any], wanted: list[dict[str, Any]]) -> bool:
    """Whether an authorization has exactly the wanted permissions, apart from names that the server adds."""
    found = authorization.get("permissions") or []
    keys = ("type", "id", "orgID")
    shapes = [
        [(each["action"], *(each["resource"].get(key) for key in keys)) for each in listed]
        for listed in (found, wanted)
    ]
    return shapes[0] == shapes[1]


def _ask(url: str, token: str, path: str, body: object = None) -> dict[str, Any]:
    request = urllib.request.Request(  # noqa: S310  # an address of ours, on this machine
        url + path, None if body is None else json.dumps(body).encode(),
        {"Authorization": f"Token {token}", "Content-Type": "application/json"},
    )  # fmt: skip
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310  # as above
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        raise RunError(f"InfluxDB at {url}{path}: HTTP {error.code}: {error.reason}") from None
    except (OSError, ValueError) as error:
        raise RunError(f"InfluxDB at {url}{path}: {getattr(error, 'reason', error)}") from None
    return found
