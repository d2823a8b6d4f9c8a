"""Mail through a server that speaks SMTP: encrypted or not at all, and its refusals are told without secrets."""

from __future__ import annotations

import email
import email.policy
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from pydantic import SecretStr, ValidationError

from megatronapp.gateway.settings import GatewaySettings
from tests.integration.gateway.notify.conftest import Inbox, Start
from tests.integration.gateway.notify.test_notifications import notifications, receiver_settings, say, webhook
from tests.support.smtp import MailBox, mail_server


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def context(authority: trustme.CA) -> ssl.SSLContext:
    found = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(found)
    return found


def mail_settings(box: MailBox, authority: trustme.CA, folder: Path, **more: Any) -> dict[str, Any]:
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return {
        "mail_host": "127.0.0.1",
        "mail_port": box.port,
        "mail_ca_file": str(folder / "ca.pem"),
        "mail_from": "megatron@example.com",
        "mail_to": ("a@example.com", "b@example.com"),
        **more,
    }


@pytest.mark.parametrize("at_once", [False, True], ids=["starttls", "tls"])
async def test_a_mail_is_sent_encrypted_with_a_login(
    start: Start, inbox: Inbox, tmp_path: Path, authority: trustme.CA, context: ssl.SSLContext, at_once: bool
) -> None:
    async with mail_server(MailBox(context, at_once, ("bot", "pass word"))) as box:
        login = {
            "mail_user": "bot",
            "mail_password": SecretStr("pass word"),
            "mail_tls": "tls" if at_once else "starttls",
        }
        served = await start(**receiver_settings(inbox, **mail_settings(box, authority, tmp_path, **login)))

        await say(served, webhook())
        await inbox.until(lambda: len(box.mails) == 1)
        await say(served, webhook("resolved"))
        await inbox.until(lambda: len(box.mails) == 2)

    first, second = (email.message_from_bytes(mail, policy=email.policy.default) for mail in box.mails)
    assert (first["Subject"], first["To"]) == ("[P1] rank 5 is slow", "a@example.com, b@example.com")
    assert second["Subject"] == "[P1] resolved: rank 5 is slow"
    assert first["References"] == second["References"]
    assert first.get_content_type() == "text/plain"
    assert "node: n1" in first.get_content()
    assert not any(b"AUTH" in line or b"DATA" in line for line in box.in_clear)


async def test_a_server_that_cannot_encrypt_gets_nothing(
    start: Start, inbox: Inbox, tmp_path: Path, authority: trustme.CA
) -> None:
    async with mail_server(MailBox()) as box:
        served = await start(**receiver_settings(inbox, **mail_settings(box, authority, tmp_path)))

        await say(served, webhook())
        await inbox.until(lambda: notifications(served, "mail", "failed") == 1.0)

    assert box.mails == []
    assert not any(b"example.com" in line.split(b" ", 1)[-1] and b"MAIL" in line for line in box.in_clear)
    assert notifications(served, "slack", "sent") == 1.0


async def test_a_certificate_of_another_authority_is_refused(
    start: Start, inbox: Inbox, tmp_path: Path, context: ssl.SSLContext
) -> None:
    async with mail_server(MailBox(context)) as box:
        served = await start(**receiver_settings(inbox, **mail_settings(box, trustme.CA(), tmp_path)))

        await say(served, webhook())
        await inbox.until(lambda: notifications(served, "mail", "failed") == 1.0)

    assert box.mails == []


async def test_a_relay_on_this_machine_is_spoken_to_in_clear(
    start: Start, inbox: Inbox, tmp_path: Path, authority: trustme.CA
) -> None:
    async with mail_server(MailBox()) as box:
        served = await start(**receiver_settings(inbox, **mail_settings(box, authority, tmp_path, mail_tls="none")))

        await say(served, webhook())
        await inbox.until(lambda: len(box.mails) == 1)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"mail_host": "h"}, "mail_host needs mail_from and mail_to"),
        ({"mail_host": "h", "mail_from": "a@b", "mail_to": ("x@y\nBcc: z@z",)}, "addresses as name@example.com"),
        (
            {"mail_host": "h", "mail_from": "a@b", "mail_to": ("x@y",), "mail_password": "p", "mail_tls": "none"},
            "mail_password needs mail_user",
        ),
        ({"feishu_sheet_app_id": "cli"}, "the archive needs feishu_sheet_app_id, feishu_sheet_app_secret"),
    ],
)
def test_half_a_receiver_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        GatewaySettings(**settings)
