"""The token with which Grafana reads: it may read one bucket and do nothing else, and is made once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from testbed.errors import RunError
from testbed.lab.services.catalogue import IMAGES, PORTS, services
from testbed.lab.services.keys import Keys
from testbed.lab.services.readers import DESCRIPTION, read_token


class Database:
    """The part of InfluxDB's interface that makes authorizations."""

    def __init__(self) -> None:
        self.authorizations: list[dict[str, Any]] = []
        self.buckets = {("lab", "testbed"): "b1"}

    def answer(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        parts = urlsplit(path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if parts.path == "/api/v2/orgs":
            return {"orgs": [{"id": "o1"}] if query["org"] == "lab" else []}
        if parts.path == "/api/v2/buckets":
            found = self.buckets.get((query["org"], query["name"]))
            return {"buckets": [{"id": found}] if found else []}
        if body is None:
            return {"authorizations": self.authorizations}
        for permission in body["permissions"]:
            permission["resource"]["name"] = "added by the server"
        made = {**body, "status": "active", "token": f"t{len(self.authorizations)}"}
        self.authorizations.append(made)
        return made


@contextmanager
def serve(database: Database) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            allowed = self.headers["Authorization"] == "Token admin"
            answer = json.dumps(database.answer(self.path, body) if allowed else {}).encode()
            self.send_response(200 if allowed else 401)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_GET  # noqa: N815  # as the library calls it

        def log_message(self, *_args: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_it_may_read_one_bucket_and_is_the_same_again() -> None:
    database = Database()
    with serve(database) as url:
        token = read_token(url, "admin", "lab", "testbed")
        assert read_token(url, "admin", "lab", "testbed") == token
    (made,) = database.authorizations
    (permission,) = made["permissions"]
    assert permission["action"] == "read"
    assert {key: permission["resource"][key] for key in ("type", "id", "orgID")} == {
        "type": "buckets", "id": "b1", "orgID": "o1",
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"permissions": [{"action": "write", "resource": {"type": "buckets", "id": "b1", "orgID": "o1"}}]},
        {"permissions": [{"action": "read", "resource": {"type": "buckets", "orgID": "o1"}}]},
        {"permissions": [{"action": "read", "resource": {"type": "buckets", "id": "b1", "orgID": "o1"}}] * 2},
        {"status": "inactive"},
        {"description": "of somebody else"},
    ],
)
def test_one_that_may_do_more_or_nothing_is_not_taken(change: dict[str, Any]) -> None:
    database = Database()
    right = [{"action": "read", "resource": {"type": "buckets", "id": "b1", "orgID": "o1"}}]
    database.authorizations.append(
        {"description": DESCRIPTION, "status": "active", "token": "wrong", "permissions": right} | change
    )
    with serve(database) as url:
        assert read_token(url, "admin", "lab", "testbed") == "t1"


def test_what_the_database_lacks_or_refuses_is_one_line() -> None:
    with serve(Database()) as url:
        with pytest.raises(RunError, match=r"^InfluxDB at http://127.* there is no bucket 'x' of organization 'lab'$"):
            read_token(url, "admin", "lab", "x")
        with pytest.raises(RunError, match=r"there is no bucket 'testbed' of organization 'other'"):
            read_token(url, "admin", "other", "testbed")
        with pytest.raises(RunError, match=r"HTTP 401: Unauthorized"):
            read_token(url, "stranger", "lab", "testbed")
    with pytest.raises(RunError, match=r"refused"):
        read_token("http://127.0.0.1:9", "admin", "lab", "testbed")


def test_grafana_never_gets_a_token_that_may_write() -> None:
    keys = Keys.new()
    made = services(keys, IMAGES, PORTS, influx_reader="reads-only")["grafana"]
    assert made.environment["INFLUXDB_V2_TOKEN"] == "reads-only"  # noqa: S105  # made up
    assert keys.influx_token not in json.dumps(dict(made.environment)) + json.dumps(dict(made.files))
