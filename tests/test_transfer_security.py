"""Who may connect to whom."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from relay_support import Relay, only_refused, port_of
from transfer_support import LIMIT, pair

from ports import free_port
from treadle import _core, transfer

SECRET = b"0123456789abcdef"


@pytest.fixture(autouse=True)
def own_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "secret"
    monkeypatch.setenv("TREADLE_SECRET_FILE", str(path))
    path.write_bytes(b"f" * 32)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certs")
    _core.create_certs(str(directory), ["node", "other"], 30, False)
    return directory


def works(listening: dict[str, Any], connecting: dict[str, Any]) -> None:
    with (
        transfer.listen(**listening) as listener,
        transfer.connect(listener.address, **connecting) as one,
        listener.accept(LIMIT) as other,
    ):
        array = np.arange(500_000.0)
        started = one.start_send(array)
        assert (other.recv(timeout=LIMIT) == array).all()
        started.result(LIMIT)


class TestSecrets:
    @pytest.mark.parametrize("secret", [SECRET, SECRET.decode()])
    def test_the_same(self, secret: bytes | str) -> None:
        works({"secret": secret}, {"secret": secret})

    def test_different_ones(self) -> None:
        with transfer.listen(secret=SECRET) as listener:
            with pytest.raises(transfer.HandshakeError, match="secret"):
                transfer.connect(listener.address, secret=b"another secret..")
            with pytest.raises(TimeoutError):
                listener.accept(0.05)
            # Others are not affected.
            with transfer.connect(listener.address, secret=SECRET):
                listener.accept(LIMIT).close()

    def test_with_a_line_end_or_in_a_file(self, own_secret: Path) -> None:
        own_secret.write_bytes(SECRET + b"\n")
        for secret in (SECRET + b"\n", SECRET.decode() + "\n", own_secret):
            works({"secret": secret}, {"secret": SECRET})

    def test_the_users_own(self, own_secret: Path) -> None:
        with transfer.listen() as listener:
            transfer.connect(listener.address).close()
            own_secret.write_bytes(b"g" * 32)
            with pytest.raises(transfer.HandshakeError, match="TREADLE_SECRET_FILE"):
                transfer.connect(listener.address)

    def test_one_that_others_can_read(self, own_secret: Path) -> None:
        own_secret.chmod(0o644)
        with pytest.raises(ValueError, match="chmod 600"):
            transfer.listen()

    def test_one_that_is_too_short(self) -> None:
        with pytest.raises(ValueError, match="16"):
            transfer.listen(secret="short")


class TestAddresses:
    def test_beyond_this_machine(self) -> None:
        for address in "0.0.0.0:0", "treadle://[::]:0":
            with pytest.raises(ValueError, match="treadle certs"):
                transfer.listen(address)
        with pytest.raises(ValueError, match="treadle certs"):
            transfer.connect("192.0.2.1:7000")

    def test_insecure_still_proves_the_secret(self) -> None:
        with transfer.listen("0.0.0.0:0", insecure=True, secret=SECRET) as listener:
            port = listener.address.rpartition(":")[2]
            with pytest.raises(transfer.HandshakeError):
                transfer.connect(f"127.0.0.1:{port}")
            transfer.connect(f"127.0.0.1:{port}", secret=SECRET).close()

    @pytest.mark.parametrize("address", ["", "host", "http://a:1", "127.0.0.1:99999"])
    def test_what_is_none(self, address: str) -> None:
        with pytest.raises(ValueError, match=r"."):
            transfer.connect(address)

    def test_nobody_is_there(self) -> None:
        with transfer.listen() as listener:
            address = listener.address
        with pytest.raises(transfer.TransferError) as raised:
            transfer.connect(address, connect_timeout=5)
        assert address in str(raised.value)

    def test_a_port_that_is_taken(self) -> None:
        with transfer.listen() as listener:
            with pytest.raises(transfer.TransferError, match=r"listening at .*in use") as raised:
                transfer.listen(listener.address)
            assert raised.value.errno is not None


class TestRelays:
    def test_a_stale_port(self) -> None:
        stale = f"treadle://127.0.0.1:{free_port()}"
        with transfer.listen() as listener:
            with Relay(listener.address, port_of(stale)) as relay:
                with pytest.raises(transfer.HandshakeError, match=f"{stale} was dialled"):
                    transfer.connect(stale)
                with pytest.raises(TimeoutError):
                    listener.accept(0.1)
                assert only_refused(relay.end())
            works({}, {})

    def test_a_port_that_is_meant_to_lead_there(self) -> None:
        port = free_port()
        # A port of that number is forwarded to the listener.
        for contact in f"127.0.0.1:{port}", [f"treadle://localhost:{port}", f"127.0.0.1:{port}"]:
            with (
                transfer.listen(contact=contact) as listener,
                Relay(listener.address, port),
                transfer.connect(f"127.0.0.1:{port}") as one,
                listener.accept(LIMIT) as other,
            ):
                started = one.start_send(np.arange(500_000))
                assert other.recv(timeout=LIMIT).sum() == sum(range(500_000))
                started.result(LIMIT)
        with pytest.raises(ValueError, match="no port"):
            transfer.listen(contact="gateway")

    def test_any_port_leads_there_with_tls(self, certs: Path) -> None:
        with (
            transfer.listen(tls=certs / "node") as listener,
            Relay(listener.address) as relay,
            transfer.connect(f"treadle+tls://127.0.0.1:{relay.port}", tls=certs / "node") as one,
            listener.accept(LIMIT) as other,
        ):
            one.send("through it")
            assert other.recv(timeout=LIMIT) == "through it"


class TestTls:
    def test_a_prefix(self, certs: Path) -> None:
        works({"tls": str(certs / "node")}, {"tls": certs / "other"})
        works(
            {"address": "treadle+tls://127.0.0.1:0", "tls": certs / "node"}, {"tls": certs / "node"}
        )

    def test_beyond_this_machine(self, certs: Path) -> None:
        with transfer.listen("0.0.0.0:0", tls=certs / "node") as listener:
            assert listener.address.startswith("treadle+tls://0.0.0.0:")

    def test_paths_and_texts(self, certs: Path) -> None:
        paths = (certs / "ca.pem", certs / "node.pem", certs / "node-key.pem")
        texts = tuple(path.read_text() for path in paths)
        works({"tls": paths}, {"tls": texts})

    def test_a_security_object(self, certs: Path) -> None:
        distributed = pytest.importorskip("distributed")
        security = distributed.Security(
            require_encryption=True,
            tls_ca_file=str(certs / "ca.pem"),
            tls_client_cert=str(certs / "node.pem"),
            tls_client_key=str(certs / "node-key.pem"),
        )
        works({"tls": security}, {"tls": security})

    def test_a_security_object_with_little(self, certs: Path) -> None:
        security = SimpleNamespace(tls_ca_file=str(certs / "ca.pem"))
        with pytest.raises(ValueError, match="tls_client_cert"):
            transfer.listen(tls=security)

    def test_with_a_secret_too(self, certs: Path) -> None:
        node = certs / "node"
        works({"tls": node, "secret": SECRET}, {"tls": node, "secret": SECRET})
        with (
            transfer.listen(tls=node, secret=SECRET) as listener,
            pytest.raises(transfer.HandshakeError, match="secret"),
        ):
            transfer.connect(listener.address, tls=node)

    def test_another_ca(self, certs: Path, tmp_path: Path) -> None:
        _core.create_certs(str(tmp_path / "certs"), ["node"], 30, False)
        with transfer.listen(tls=certs / "node") as listener:
            with pytest.raises(transfer.HandshakeError):
                transfer.connect(listener.address, tls=tmp_path / "certs" / "node")
            with transfer.connect(listener.address, tls=certs / "node"):
                listener.accept(LIMIT).close()

    def test_without_certificates(self, certs: Path) -> None:
        with pytest.raises(ValueError, match="certificates"):
            transfer.listen("treadle+tls://127.0.0.1:0")
        with pytest.raises(ValueError, match="treadle\\+tls"):
            transfer.listen("treadle://127.0.0.1:0", tls=certs / "node")
        with transfer.listen(tls=certs / "node") as listener:
            address = listener.address.replace("+tls", "")
            with pytest.raises((transfer.HandshakeError, TimeoutError)):
                transfer.connect(address, connect_timeout=5)

    def test_files_that_are_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"missing\.pem|ca\.pem"):
            transfer.listen(tls=tmp_path / "missing")

    @pytest.mark.parametrize("tls", [5, ("a", "b"), object()])
    def test_what_makes_no_sense(self, tls: Any) -> None:
        with pytest.raises((TypeError, ValueError), match="tls"):
            transfer.listen(tls=tls)


class TestOptions:
    @pytest.mark.parametrize(
        "options",
        [
            {"stripes": 0},
            {"max_stripes": 0},
            {"timeout": 0},
            {"timeout": float("inf")},
            {"timeout": -1},
        ],
    )
    def test_values_that_make_no_sense(self, options: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=r"."):
            transfer.listen(**options)

    def test_types(self) -> None:
        with pytest.raises(TypeError):
            transfer.listen(prefetch="much")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            transfer.listen(unknown=1)  # type: ignore[call-arg]

    def test_an_object_above_the_limit_ends_the_connection(self) -> None:
        with (
            transfer.listen(max_object=1 << 20) as listener,
            transfer.connect(listener.address) as one,
            listener.accept(LIMIT) as other,
        ):
            one.send(bytes(1 << 10))
            started = one.start_send(np.zeros(1 << 20))
            assert len(other.recv(timeout=LIMIT)) == 1 << 10
            with pytest.raises(transfer.ConnectionEnded, match="limit"):
                other.recv(timeout=LIMIT)
            with pytest.raises(transfer.ConnectionEnded):
                started.result(LIMIT)

    @pytest.mark.parametrize("stripes", [1, 3])
    def test_stripes(self, stripes: int) -> None:
        with pair(stripes=stripes) as (one, other):
            array = np.arange(8_000_000.0)
            started = one.start_send(array)
            assert (other.recv(timeout=LIMIT) == array).all()
            started.result(LIMIT)
            assert one.stats()["stripes"] == stripes


class TestCreateCerts:
    def test_files(self, tmp_path: Path) -> None:
        made = _core.create_certs(str(tmp_path / "new"), ["a", "b"], 1, False)
        assert sorted(Path(path).name for path in made) == [
            "a-key.pem",
            "a.pem",
            "b-key.pem",
            "b.pem",
            "ca-key.pem",
            "ca.pem",
        ]
        assert all(Path(path).exists() for path in made)

    def test_what_is_there_is_kept(self, tmp_path: Path) -> None:
        _core.create_certs(str(tmp_path), ["a"], 1, False)
        before = (tmp_path / "a.pem").read_bytes()
        with pytest.raises(FileExistsError, match=r"a\.pem"):
            _core.create_certs(str(tmp_path), ["a"], 1, False)
        assert (tmp_path / "a.pem").read_bytes() == before
        _core.create_certs(str(tmp_path), ["a"], 1, True)
        assert (tmp_path / "a.pem").read_bytes() != before

    def test_bad_input(self, tmp_path: Path) -> None:
        for nodes, days in (["ca"], 1), ([], 1), (["a"], 0), (["../a"], 1):
            with pytest.raises(ValueError, match=r"."):
                _core.create_certs(str(tmp_path), nodes, days, False)
        (tmp_path / "file").touch()
        with pytest.raises(OSError, match="file"):
            _core.create_certs(str(tmp_path / "file"), ["a"], 1, False)
