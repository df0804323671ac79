"""Mail: how a server is reached and logged in to, what goes into one message, and what happens when it fails."""

from __future__ import annotations

import smtplib
import ssl
from pathlib import Path

import pytest

from mailbox_support import Mailbox
from served_support import Served
from treadle import _core
from treadle.coordinator._app import app_of
from treadle.coordinator._mail import MailServer, read_login
from treadle.coordinator._notify import Notifier, Outgoing
from treadle.coordinator._pages import add_pages
from treadle.coordinator._watching import Alert
from waiting import until

TO = ["ops@example.com"]
LOGIN = ("ann", "a pass word")
ALERTS = [Alert("failed", f"job {n} failed") for n in range(5)]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    _core.create_certs(str(folder), ["mail"], 10, False)
    return folder


@pytest.fixture
def trusted(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As an operator has Python trust an authority of his own."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "ca.pem"))
    return certificates


def test_a_login_goes_after_starttls_alone(trusted: Path) -> None:
    with Mailbox(trusted, login=LOGIN) as box:
        server = MailServer.of(f"smtp://{box.address}", TO, LOGIN, "Treadle <t@example.com>")
        assert "pass word" not in repr(server)
        assert server.send("two\nlines", "text") == []
        told = box.next()
        assert (told.by_tls, told.user, told.sender) == (True, "ann", "t@example.com")
        assert told.receivers == TO
        assert told.message["Subject"] == "two lines"
        assert told.message["From"] == "Treadle <t@example.com>"
        assert told.lines == ["text"]
        wrong = MailServer.of(f"smtp://{box.address}", TO, ("ann", "another"))
        with pytest.raises(smtplib.SMTPAuthenticationError):
            wrong.send("s", "t")
    with Mailbox(login=LOGIN) as box:
        server = MailServer.of(f"smtp://{box.address}", TO, LOGIN)
        with pytest.raises(ValueError, match="no STARTTLS"):
            server.send("s", "t")
        assert "AUTH" not in box.commands


def test_smtps_has_tls_from_the_first_byte(trusted: Path) -> None:
    with Mailbox(trusted, is_tls=True, login=LOGIN) as box:
        MailServer.of(f"smtps://{box.address}", TO, LOGIN).send("s", "t")
        assert (box.next().by_tls, box.commands.count("STARTTLS")) == (True, 0)


@pytest.mark.parametrize(("scheme", "is_tls"), [("smtp", False), ("smtps", True)])
def test_a_certificate_that_nobody_trusts_gets_no_login(
    certificates: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, is_tls: bool
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with Mailbox(certificates, is_tls=is_tls, login=LOGIN) as box:
        with pytest.raises(ssl.SSLCertVerificationError):
            MailServer.of(f"{scheme}://{box.address}", TO, LOGIN).send("s", "t")
        assert "AUTH" not in box.commands


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://host", "smtps://HOST"), ("smtp://", "smtps://HOST"), ("smtp://host/path", "smtps://HOST"),
        ("smtp://ann:secret@host", "--smtp-login-file"), ("smtp://host:x", "[Pp]ort"),
    ],
)  # fmt: skip
def test_what_is_no_server_for_mail_is_refused(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        MailServer.of(url, TO)
    assert "secret" not in str(error.value)


def test_ports_are_those_of_the_way_it_goes() -> None:
    ports = {
        MailServer.of(url, TO, login).port
        for url, login in (("host", None), ("smtp://host", None), ("smtp://[::1]", None))
    }
    assert ports == {25}
    assert MailServer.of("smtp://host", TO, LOGIN).port == 587
    assert MailServer.of("smtps://host", TO).port == 465
    assert MailServer.of("host:26", TO).port == 26
    with pytest.raises(ValueError, match=r"\S"):
        MailServer.of("host", TO, sender="a@example.com\nBcc: all@example.com")


def test_a_login_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "login"
    file.touch(mode=0o600)
    file.write_text("ann a pass word\n")
    assert read_login(file, {}) == LOGIN
    file.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600") as error:
        read_login(file, {})
    file.chmod(0o600)
    file.write_text("secretword\n")
    with pytest.raises(ValueError, match="USER PASSWORD") as error:
        read_login(file, {})
    assert "secretword" not in str(error.value)
    user, password = "TREADLE_COORDINATOR_SMTP_USER", "TREADLE_COORDINATOR_SMTP_PASSWORD"
    assert read_login(None, {user: "ann", password: "a pass word"}) == LOGIN
    assert read_login(None, {}) is None
    with pytest.raises(ValueError, match="need each other"):
        read_login(None, {user: "ann"})


def test_one_message_a_minute_has_all_that_came_since() -> None:
    mail = Outgoing("mail", 60.0)
    assert mail.due_in(0.0) is None
    mail.add(ALERTS[:1])
    assert mail.due_in(0.0) == 0.0
    mail.sent(1, 0, 0.0)
    mail.add(ALERTS[1:3])
    assert mail.due_in(20.0) == 40.0
    assert mail.due_in(60.0) == 0.0
    # What comes while it is sent stays for the next one.
    mail.add(ALERTS[3:])
    mail.sent(2, 0, 61.0)
    assert (mail.waiting, mail.due_in(61.0)) == (ALERTS[3:], 60.0)


def test_what_fails_is_sent_again_and_said() -> None:
    mail = Outgoing("mail", 60.0, 30.0)
    mail.add(ALERTS[:2])
    mail.failed("nobody listens", 100.0)
    assert mail.notice() == "mail was not sent: nobody listens; 2 alerts wait and are sent again"
    assert (mail.waiting, mail.due_in(110.0)) == (ALERTS[:2], 20.0)
    mail.add(ALERTS * 1000)
    assert (len(mail.waiting), mail.left_out) == (1000, 4002)
    assert mail.waiting[:2] == ALERTS[:2]
    mail.sent(1000, 4002, 130.0)
    assert (mail.notice(), mail.waiting, mail.left_out) == ("", [], 0)


def test_alerts_of_a_minute_are_one_message() -> None:
    with Mailbox() as box:
        notifier = Notifier(None, MailServer.of(box.address, TO), pace=3600.0)
        notifier(ALERTS[:1])
        first = box.next()
        assert first.message["Subject"] == "Treadle: job 0 failed"
        assert first.lines == ["job 0 failed"]
        notifier(ALERTS[1:3])
        notifier(ALERTS[3:])
        # The end waits for no hour.
        notifier.close()
        second = box.next()
        assert second.message["Subject"] == "Treadle: 4 alerts"
        assert second.lines == [one.text for one in ALERTS[1:]]
        assert box.received.empty()


def test_mail_that_fails_is_on_the_page_until_it_is_sent(served: Served) -> None:
    with Mailbox(is_busy=True) as box:
        notifier = Notifier(None, MailServer.of(box.address, TO), pace=0.05)
        app = app_of(served.coordinator, served.access, notices=notifier.notices)
        add_pages(app)
        served.app = app
        viewer = served.client("viewer")
        assert "was not sent" not in viewer.get("/").text
        notifier(ALERTS[:1])
        until(notifier.notices)
        for path in ("/", "/alerts"):
            assert "Mail was not sent: (451" in viewer.get(path).text
        notifier(ALERTS[1:])
        box.is_busy = False
        told: list[str] = []
        while len(told) < len(ALERTS):
            told += box.next().lines
        assert told == [one.text for one in ALERTS]
        until(lambda: not notifier.notices())
        assert "was not sent" not in viewer.get("/").text
        notifier.close()
        assert box.received.empty()


def test_a_receiver_that_is_refused_does_not_keep_mail_from_others() -> None:
    with Mailbox(unknown=("gone@example.com",)) as box:
        server = MailServer.of(box.address, [*TO, "gone@example.com"])
        notifier = Notifier(None, server, pace=3600.0)
        notifier(ALERTS[:1])
        assert box.next().receivers == TO
        until(notifier.notices)
        assert notifier.notices() == ["mail was not sent: the server refuses gone@example.com"]
        notifier.close()
        assert box.received.empty()
