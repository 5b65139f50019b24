"""The only permitted form of a URI of a live migration."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bus.messages import BadRecordError, Command, Migrate, decode, encode
from testbed.bus.migration import Destination, MigrationUriError, check_migration_uri, migration_uri

HOSTS = st.sampled_from(["192.0.2.7", "n1", "n1.lab.example", "fd00::7"])


@given(st.sampled_from(["qemu", "xen"]), st.sampled_from(["tls", "tcp"]), HOSTS, st.none() | st.integers(1, 65535))
def test_what_a_controller_writes_an_agent_takes(hypervisor, transport, host, port):
    check_migration_uri(migration_uri(hypervisor, transport, host, port), hypervisor, transport, host)


@pytest.mark.parametrize(
    "uri",
    [
        "qemu+ext://h/system?command=/tmp/pwn.sh",
        "qemu+ssh://h/system?command=/tmp/pwn.sh&no_verify=1",
        "qemu+libssh2://h/system?keyfile=/root/.ssh/id_rsa",
        "qemu+unix://h/system?socket=/run/other",
        "qemu+tls://h/system?pkipath=/tmp/own",
        "qemu+tls://h/system?no_verify=1",
        "qemu+tls://h/system?",
        "qemu+tls://h/system#node=x",
        "qemu+tls://root@h/system",
        "qemu+tls://root:secret@h/system",
        "qemu+tls://h/session",
        "qemu+tls://h/system/",
        "qemu+tls://h//system",
        "qemu+tls:///system",
        "qemu+tls://h:0/system",
        "qemu+tls://h:65536/system",
        "qemu+tls://h:1:2/system",
        "qemu+tls://h/system\n",
        " qemu+tls://h/system",
        "qemu+tls://h/../system",
        "qemu+tls://h%2fsystem/system",
        "QEMU+TLS://h/system",
        "qemu+tcp://h/system",
        "qemu://h/system",
        "xen+tls://h/system",
        "test+tls://h/system",
        "qemu:///system",
        "null://h/system",
        "",
    ],
)
def test_every_other_form_is_refused(uri):
    with pytest.raises(MigrationUriError, match=r"expected qemu\+tls://HOST\[:PORT\]/system") as refused:
        check_migration_uri(uri, "qemu", "tls", "h")
    assert "\n" not in str(refused.value)


@given(st.text(max_size=60))
def test_no_text_but_that_form_passes(text):
    try:
        check_migration_uri(text, "qemu", "tls", "h")
    except MigrationUriError:
        return
    assert text == "qemu+tls://h/system" or text.startswith("qemu+tls://h:")


@pytest.mark.parametrize("host", ["169.254.169.254", "h.example", "H", "", "h@x", "fd00::1"])
def test_the_host_is_the_one_of_the_command(host):
    with pytest.raises(MigrationUriError, match="as the command says"):
        check_migration_uri("qemu+tls://h/system", "qemu", "tls", host)


@pytest.mark.parametrize(
    "change",
    [
        {"host": "a b"}, {"host": "h/x"}, {"host": "h\n"}, {"host": "u@h"}, {"host": ""}, {"node": "N1"}, {"node": ""},
        {"partition": "/../x"}, {"partition": "x"}, {"partition": "/a\n"}, {"bridge": "br0\n"}, {"bridge": "a/b"},
        {"bridge": "b" * 16}, {"uri": "x" * 400},
    ],
)  # fmt: skip
def test_a_destination_that_makes_no_sense_is_a_bad_record(change):
    to = Destination(uri="qemu+tls://h/system", host="h", node="n1", partition="/a", bridge="br0")
    move = Migrate(guest="g", to=msgspec.structs.replace(to, **change), budget_s=1, no_progress_s=1)
    command = Command(id="a", lease="b", reply_to="c", deadline_s=1, action=move)
    with pytest.raises(BadRecordError):
        decode(Command, encode(command))
