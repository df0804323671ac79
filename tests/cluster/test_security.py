"""Encryption that is asked for, wherever it can be asked for: there is TLS, or an error."""

from __future__ import annotations

import logging
import socket
import ssl
import warnings
from pathlib import Path

import dask
import distributed
import pytest

import casts_support
import treadle
from casts_support import Caster
from client_support import AGAINST, SOON, inc
from treadle import _core
from treadle.common import _addresses

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="how Treadle secures its connections")

ROLES = ("client", "scheduler", "worker")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """What `treadle certs` makes."""
    directory = tmp_path_factory.mktemp("certs")
    _core.create_certs(str(directory), ["node"], 10, False)
    names = {"ca": "ca.pem", "certificate": "node.pem", "key": "node-key.pem"}
    return {what: str(directory / name) for what, name in names.items()}


def fields(files, *roles):
    found = {"tls_ca_file": files["ca"]}
    for role in roles or ROLES:
        found |= {f"tls_{role}_cert": files["certificate"], f"tls_{role}_key": files["key"]}
    return found


def text_of(files):
    return {what: Path(file).read_text() for what, file in files.items()}


def in_one_file(files, tmp_path):
    both = tmp_path / "both.pem"
    both.write_text(Path(files["certificate"]).read_text() + Path(files["key"]).read_text())
    both.chmod(0o600)
    return {"tls_ca_file": files["ca"], "tls_client_cert": str(both)}


def configured(files, role="client"):
    return {
        "distributed.comm.tls.ca-file": files["ca"],
        f"distributed.comm.tls.{role}.cert": files["certificate"],
        f"distributed.comm.tls.{role}.key": files["key"],
    }


REQUIRED = {"distributed.comm.require-encryption": True}


def port_of(address):
    host, _, port = address.partition("://")[2].rpartition(":")
    return host, int(port)


def has_tls(address):
    """A stranger's TLS handshake is answered, and plain text is not."""
    assert address.startswith("treadle+tls://"), address
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection(port_of(address), timeout=SOON) as plain,
        context.wrap_socket(plain) as encrypted,
    ):
        assert encrypted.version() == "TLSv1.3"
    with pytest.raises(OSError, match=r"(?i)tls"):
        _core.Connection(address.replace("treadle+tls", "treadle"), "stranger", object(),
                         secret=_addresses.known(address).secret, timeout=10.0)  # fmt: skip


def is_encrypted(client):
    has_tls(client.scheduler.address)
    workers = list(client.scheduler_info(n_workers=-1)["workers"])
    assert workers
    for address in workers:
        has_tls(address)
    assert client.submit(inc, 1).result(timeout=SOON) == 2


# Clusters that are started here: arguments, and Dask's configuration.
STARTED = {
    "security": lambda files, _: ({"security": distributed.Security(**fields(files))}, {}),
    "texts": lambda files, _: ({"security": distributed.Security(**fields(text_of(files)))}, {}),
    "dictionary": lambda files, _: ({"security": fields(files)}, {}),
    "one file": lambda files, tmp_path: ({"security": in_one_file(files, tmp_path)}, {}),
    "temporary": lambda *_: ({"security": True}, {}),
    "required": lambda *_: ({"security": distributed.Security(require_encryption=True)}, {}),
    "protocol": lambda *_: ({"protocol": "tls://"}, {}),
    "protocol and security": lambda files, _: (
        {"protocol": "tls", "security": distributed.Security(**fields(files))},
        {},
    ),
    "host": lambda *_: ({"host": "tls://127.0.0.1"}, {}),
    "certificates": lambda files, _: ({"certificates": files}, {}),
    "prefix": lambda files, _: ({"certificates": files["ca"].replace("ca.pem", "node")}, {}),
    "path of a prefix": lambda files, _: (
        {"certificates": Path(files["ca"]).with_name("node")},
        {},
    ),
    "a secret, too": lambda files, _: (
        {"certificates": files, "secret": "a secret of this cluster alone"},
        {},
    ),
    "configured requirement": lambda *_: ({}, REQUIRED),
    "configured scheme": lambda *_: ({}, {"distributed.comm.default-scheme": "tls"}),
    "configured certificates": lambda files, _: ({}, configured(files)),
    "configured, and False": lambda *_: ({"security": False}, REQUIRED),
}


@pytest.mark.parametrize("way", ["client", "cluster"])
@pytest.mark.parametrize("asked", STARTED)
def test_a_local_cluster_is_encrypted_as_asked(asked, way, files, tmp_path):
    arguments, config = STARTED[asked](files, tmp_path)
    with dask.config.set(config):
        if way == "client":
            with treadle.Client(threads_per_worker=1, **arguments) as client:
                is_encrypted(client)
            return
        with (
            treadle.LocalCluster(threads_per_worker=1, **arguments) as cluster,
            treadle.Client(cluster) as client,
        ):
            is_encrypted(client)


@pytest.mark.parametrize(
    "arguments", [{"security": True}, {"protocol": "tls://", "secret": "x" * 20}]
)
def test_processes_are_encrypted_as_asked(arguments):
    def nested():
        with distributed.worker_client() as inner:
            return inner.scheduler.address, inner.submit(inc, 1).result(timeout=SOON)

    with treadle.Client(n_workers=2, threads_per_worker=1, **arguments) as client:
        is_encrypted(client)
        one, other = client.scheduler_info()["workers"]
        x = client.submit(bytes, 1_000_000, workers=[one])
        assert client.submit(len, x, workers=[other]).result(timeout=SOON) == 1_000_000
        assert client.submit(nested).result(timeout=2 * SOON) == (client.scheduler.address, 2)
        values = Caster(client, 2).call(casts_support.add_up, b"\1" * 100_000)
        assert list(values.values()) == [[b"100000"]] * 2


async def test_an_asynchronous_client_is_encrypted_as_asked():
    async with treadle.Client(asynchronous=True, security=True) as client:
        assert client.scheduler.address.startswith("treadle+tls://")
        assert await client.submit(inc, 1) == 2
    with pytest.raises(ValueError, match="demands encryption"):
        await treadle.Client(
            "tcp://127.0.0.1:1", asynchronous=True, security={"require_encryption": True}
        )


def test_a_secret_of_the_cluster_is_proved_with_tls(files):
    with treadle.LocalCluster(processes=False, certificates=files, secret="s" * 20) as cluster:
        _addresses.forget(cluster.scheduler_address)
        with pytest.raises(OSError, match="secret"):
            treadle.Client(
                cluster.scheduler_address, certificates=files, secret="t" * 20, timeout=10
            )


def test_a_secret_of_the_cluster_may_be_in_a_file(tmp_path):
    file = tmp_path / "secret"
    file.touch(mode=0o600)
    file.write_text("a secret of this test alone\n")
    with treadle.LocalCluster(workers=1, threads_per_worker=1, secret=file) as cluster:
        assert cluster.secret_file == str(file)
        _addresses.forget(cluster.scheduler_address)
        with treadle.Client(cluster, secret="a secret of this test alone") as client:
            assert client.submit(inc, 1).result(timeout=SOON) == 2
        file.chmod(0o640)
        with pytest.raises(OSError, match="chmod 600"):
            treadle.LocalCluster(secret=file)


# Clients of a scheduler that has TLS and a secret: arguments, and Dask's configuration.
def loader(info):
    loader.called.append(info["address"])
    return distributed.Security(**fields(loader.files))


CONNECTED = {
    "security": lambda address, files: ((address,), {"security": fields(files)}, {}),
    "tls": lambda address, files: (
        (address.replace("treadle+tls", "tls"),),
        {"security": distributed.Security(**fields(files, "client"))},
        {},
    ),
    "tcp": lambda address, files: (
        (address.replace("treadle+tls", "tcp"),),
        {"security": fields(files)},
        {},
    ),
    "bare": lambda address, files: (
        (address.partition("://")[2],),
        {"security": fields(text_of(files))},
        {},
    ),
    "configured certificates": lambda address, files: ((address,), {}, configured(files)),
    "bare, configured": lambda address, files: (
        (address.partition("://")[2],),
        {},
        configured(files, "worker"),
    ),
    "configured address": lambda address, files: (
        (),
        {"security": fields(files)},
        {"scheduler-address": address, **REQUIRED},
    ),
    "all configured": lambda address, files: (
        (),
        {},
        {"scheduler-address": address, **configured(files), **REQUIRED},
    ),
    "a loader": lambda address, files: (
        (address,),
        {},
        {"distributed.client.security-loader": "test_security.loader"},
    ),
    "a loader, and a configured address": lambda address, files: (
        (),
        {},
        {
            "scheduler-address": address,
            "distributed.client.security-loader": "test_security.loader",
        },
    ),
}


@pytest.fixture
def tls_cluster(files):
    secret = "a secret of this test alone"
    with treadle.LocalCluster(processes=False, certificates=files, secret=secret) as cluster:
        # What another process would have to be told.
        _addresses.forget(cluster.scheduler_address)
        yield cluster, {"secret": secret}


@pytest.mark.parametrize("asked", CONNECTED)
def test_a_client_is_encrypted_as_asked(asked, tls_cluster, files, monkeypatch):
    cluster, secret = tls_cluster
    loader.files, loader.called = files, []
    arguments, options, config = CONNECTED[asked](cluster.scheduler_address, files)
    with dask.config.set(config), treadle.Client(*arguments, **options, **secret) as client:
        assert client.scheduler.address == cluster.scheduler_address
        assert client.submit(inc, 1).result(timeout=SOON) == 2
    assert loader.called == ([cluster.scheduler_address] if "loader" in asked else [])


def test_a_loader_is_for_addresses(monkeypatch):
    """Not for a cluster that is started here, nor for what its tasks connect to."""

    def nested():
        with distributed.worker_client() as inner:
            return inner.submit(inc, 1).result(timeout=SOON)

    # There is none of this name: to call it would fail.
    missing = "test_security.missing"
    monkeypatch.setenv("DASK_DISTRIBUTED__CLIENT__SECURITY_LOADER", missing)
    with (
        dask.config.set({"distributed.client.security-loader": missing}),
        treadle.Client(n_workers=1, threads_per_worker=1) as client,
    ):
        assert client.submit(nested).result(timeout=SOON) == 2


def test_a_scheduler_file_of_an_encrypted_cluster_lets_in(tls_cluster, files, tmp_path):
    cluster, secret = tls_cluster
    file = str(tmp_path / "scheduler.json")
    with treadle.Client(cluster, certificates=files, **secret) as client:
        client.write_scheduler_file(file)
        with treadle.Client(scheduler_file=file, security={"require_encryption": True}) as other:
            assert other.submit(inc, 1).result(timeout=SOON) == 2


def partly(files, *names):
    return {name: value for name, value in fields(files).items() if name in names}


HALF = {
    "no certificate": (("tls_ca_file",), {}, "tls_ca_file without a certificate"),
    "no CA": (("tls_client_cert", "tls_client_key"), {}, "tls_client_cert without tls_ca_file"),
    "a key": (("tls_ca_file", "tls_client_key"), {}, "tls_client_key without tls_client_cert"),
    "ciphers": (fields.__call__, {"tls_ciphers": "AES256"}, "tls_ciphers='AES256'"),
    "version": (
        fields.__call__,
        {"tls_max_version": ssl.TLSVersion.TLSv1_2},
        "tls_max_version=TLSv1_2",
    ),
    "more": (fields.__call__, {"extra_conn_args": {"headers": {}}}, r"extra_conn_args \(headers\)"),
}


@pytest.mark.parametrize("way", ["cluster", "client", "address", "file"])
@pytest.mark.parametrize("half", HALF)
def test_what_is_half_or_not_served_is_refused_by_name(half, way, files, tmp_path):
    names, more, message = HALF[half]
    given = fields(files) if callable(names) else partly(files, *names)
    security = distributed.Security(**given, **more)
    make, arguments, options = {
        "cluster": (treadle.LocalCluster, (), {"processes": False}),
        "client": (treadle.Client, (), {}),
        "address": (treadle.Client, ("treadle+tls://127.0.0.1:1",), {}),
        "file": (treadle.Client, (), {"scheduler_file": str(tmp_path / "scheduler.json")}),
    }[way]
    with pytest.raises(ValueError, match=message):
        make(*arguments, **options, security=security)


# Arguments, Dask's configuration, and what the error says.
REFUSED = {
    "plain": (
        ("treadle://127.0.0.1:1",),
        {"security": {"require_encryption": True}},
        {},
        "demands",
    ),
    "tcp": (("tcp://127.0.0.1:1",), {"security": {"require_encryption": True}}, {}, "demands"),
    "bare": (("127.0.0.1:1",), {"security": {"require_encryption": True}}, {}, "demands"),
    "configured": (("tcp://127.0.0.1:1",), {}, REQUIRED, "require-encryption demands"),
    "configured address": (
        (),
        {},
        {"scheduler-address": "tcp://127.0.0.1:1", **REQUIRED},
        "require-encryption demands",
    ),
    "insecure": (("treadle://10.0.0.1:1",), {"insecure": True}, REQUIRED, "demands"),
    "temporary": (("treadle+tls://127.0.0.1:1",), {"security": True}, {}, "security=True"),
    "a file, temporary": ((), {"security": True, "scheduler_file": "x"}, {}, "security=True"),
    "no security": (("127.0.0.1:1",), {"security": "tls"}, {}, "takes a distributed.Security"),
    "unknown scheme": (("ucx://127.0.0.1:1",), {}, {}, "ucx"),
    "a configured scheme": (
        ("127.0.0.1:1",),
        {},
        {"distributed.comm.default-scheme": "ws"},
        "'ws'",
    ),
    "started, a configured scheme": ((), {}, {"distributed.comm.default-scheme": "ws"}, "'ws'"),
    "protocol": ((), {"protocol": "ucx://"}, {}, "protocol='ucx://'"),
    "plain protocol": (
        (),
        {"protocol": "tcp://", "security": {"require_encryption": True}},
        {},
        "protocol='tcp://' has no encryption",
    ),
    "plain protocol, configured": ((), {"protocol": "tcp"}, REQUIRED, "protocol='tcp'"),
    "two protocols": ((), {"protocol": "tcp", "host": "tls://127.0.0.1"}, {}, "host="),
    "a file and an address": (("127.0.0.1:1",), {"scheduler_file": "x"}, {}, "not both"),
    "a file and workers": ((), {"scheduler_file": "x", "n_workers": 1}, {}, "n_workers"),
    "serializers": ((), {"serializers": ["msgpack"]}, {}, "serializers="),
    "deserializers": ((), {"deserializers": ["msgpack"]}, {}, "deserializers="),
    "required ciphers": ((), {}, {**REQUIRED, "distributed.comm.tls.ciphers": "X"}, "tls_ciphers"),
    "a required version": (
        (),
        {"security": True},
        {"distributed.comm.tls.max-version": 1.2},
        "tls_max_version",
    ),
    "no files": ((), {"certificates": "nowhere/node"}, {}, "no file .*nowhere/ca.pem"),
    "no dictionary": (("127.0.0.1:1",), {"certificates": 1}, {}, "a dictionary"),
    "no key": (("127.0.0.1:1",), {"certificates": {"ca": "", "certificate": ""}}, {}, "'key'"),
    "no certificates": (("treadle+tls://127.0.0.1:1",), {}, {}, "certificates=PREFIX"),
    "no port": (("127.0.0.1",), {}, {}, 'no port: write "treadle://127.0.0.1:7786"'),
    "worker_class": ((), {"worker_class": object}, {}, "worker_class"),
}


@pytest.mark.parametrize("asked", REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(asked):
    arguments, options, config, message = REFUSED[asked]
    errors = (ValueError, TypeError, NotImplementedError, OSError)
    with dask.config.set(config), pytest.raises(errors, match=message):
        treadle.Client(*arguments, **options, timeout=10)


def test_a_plain_cluster_is_refused_where_encryption_is_demanded(tmp_path):
    file = str(tmp_path / "scheduler.json")
    security = {"require_encryption": True}
    with treadle.LocalCluster(processes=False) as cluster:
        with treadle.Client(cluster) as client:
            client.write_scheduler_file(file)
            with pytest.raises(ValueError, match="demands encryption"):
                treadle.Client(scheduler_file=file, security=security)
        with pytest.raises(ValueError, match="demands encryption"):
            treadle.Client(cluster, security=security)


def test_certificates_are_not_given_twice(files):
    for make in (treadle.Client, treadle.LocalCluster):
        with pytest.raises(ValueError, match="not both"):
            make(security=fields(files), certificates=files)


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"heartbeat_interval": "1s"}, "heartbeat_interval="),
        ({"direct_to_workers": False}, "direct_to_workers="),
        ({"connection_limit": 5}, "connection_limit="),
        ({"worker_dashboard_address": ":0"}, "worker_dashboard_address="),
        ({"direct_to_workers": True, "silence_logs": logging.WARNING, "name": "me"}, None),
        ({"silence_logs": False, "protocol": "tcp", "heartbeat_interval": None}, None),
    ],
)
def test_what_has_no_effect_is_warned_of(options, warned):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with treadle.Client(processes=False, **options) as client:
            assert client.submit(inc, 1).result(timeout=SOON) == 2
    texts = [str(each.message) for each in caught if "treadle." in str(each.message)]
    assert len(texts) == (warned is not None), texts
    assert all(warned in text for text in texts)


def test_settings_of_encryption_that_nobody_asks_for_are_no_hindrance():
    with (
        dask.config.set({"distributed.comm.tls.ciphers": "X"}),
        treadle.Client(processes=False) as client,
    ):
        assert client.submit(inc, 1).result(timeout=SOON) == 2


def test_a_cluster_has_the_name_that_it_was_given():
    with treadle.LocalCluster(workers=0, name="mine") as cluster:
        assert cluster.name == "mine"
