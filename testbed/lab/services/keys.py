"""Credentials of the services, generated once and stored in a private file."""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
from pathlib import Path
from typing import Self

import msgspec

from testbed.errors import UserError
from testbed.host.whole_files import write_whole

_ITERATIONS = 10_000


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Credentials: the broker's password of user `testbed`, InfluxDB's token, and passwords of the web interfaces."""

    broker_password: str
    influx_token: str
    influx_password: str
    grafana_password: str

    @classmethod
    def new(cls) -> Self:
        """Return new random credentials."""
        return cls(*(secrets.token_urlsafe(24) for _ in range(4)))


def keys_file() -> Path:
    """Return the file of this user's keys."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "dfrs-testbed/services.json"


def load_keys() -> Keys | None:
    """Return the keys, None before the first `services up`; raises `UserError`."""
    path = keys_file()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Keys)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise UserError(
            f"{path}: {error}: expected the file that `testbed services up` wrote; remove it with the volumes"
        ) from None


def make_keys() -> Keys:
    """Return the keys; generate and write them first if there are none."""
    if (found := load_keys()) is not None:
        return found
    keys, path = Keys.new(), keys_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, msgspec.json.format(msgspec.json.encode(keys), indent=1), mode=0o600)
    return keys


def mosquitto_hash(password: str) -> str:
    """Return a password's hash in Mosquitto 2's format: `$7$iterations$salt$PBKDF2-HMAC-SHA-512`.

    The salt is derived from the password, so that the same keys give the same file; the password is long and random.
    """
    salt = hashlib.sha256(b"mosquitto" + password.encode()).digest()[:12]
    hashed = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ITERATIONS)
    return f"$7${_ITERATIONS}${base64.b64encode(salt).decode()}${base64.b64encode(hashed).decode()}"
