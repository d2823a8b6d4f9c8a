"""Mail, by SMTP: plain text and nothing else, so that no label is read as markup."""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid

import httpx
from pydantic import SecretStr

from megatronapp.core.errors import UnavailableError
from megatronapp.gateway.notify.levels import Level
from megatronapp.gateway.notify.mail_tls import MailTls
from megatronapp.gateway.notify.messages import Message
from megatronapp.gateway.notify.receivers.base import SEND_SECONDS


@dataclass(frozen=True, slots=True)
class MailServer:
    host: str
    port: int
    tls: MailTls
    ca_file: str
    """Authorities that its certificate is checked by; "": the system's."""
    user: str
    password: SecretStr | None


class Mail:
    name = "mail"
    reports = True

    def __init__(self, server: MailServer, sender: str, recipients: tuple[str, ...], level: Level) -> None:
        self.level = level
        self._server = server
        self._sender = sender
        self._recipients = recipients

    def letter(self, message: Message, now: float) -> EmailMessage:
        """Mails of one incident are one thread. Pure."""
        letter = EmailMessage()
        letter["Subject"] = " ".join(message.title.split())
        letter["From"], letter["To"] = self._sender, ", ".join(self._recipients)
        letter["Date"] = format_datetime(datetime.fromtimestamp(now, UTC))
        domain = self._sender.rpartition("@")[2]
        letter["Message-ID"] = make_msgid(domain=domain)
        letter["Auto-Submitted"] = "auto-generated"
        if message.incident is not None:
            letter["References"] = f"<{message.incident.id}@{domain}>"
        facts = "\n".join(f"{name}: {value}" for name, value in message.facts)
        links = "\n".join(filter(None, (message.link, message.runbook)))
        letter.set_content("\n\n".join(filter(None, (facts, message.text, links))) + "\n")
        return letter

    async def deliver(self, client: httpx.AsyncClient, message: Message, now: float) -> None:
        letter = self.letter(message, now)
        opened: list[smtplib.SMTP] = []
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await asyncio.to_thread(self._send, letter, opened)
        except (smtplib.SMTPException, OSError, ValueError) as error:
            for connection in opened:
                connection.close()  # ends the thread, where it still waits
            raise UnavailableError(f"the mail server does not take the message: {_reason(error)}") from error

    def _send(self, letter: EmailMessage, opened: list[smtplib.SMTP]) -> None:
        server = self._server
        trust = None if server.tls is MailTls.NONE else ssl.create_default_context(cafile=server.ca_file or None)
        with self._connection(trust) as connection:
            opened.append(connection)
            if server.tls is MailTls.STARTTLS:
                connection.starttls(context=trust)
            if server.password is not None:
                connection.login(server.user, server.password.get_secret_value())
            connection.send_message(letter)

    def _connection(self, trust: ssl.SSLContext | None) -> smtplib.SMTP:
        host, port = self._server.host, self._server.port
        if self._server.tls is MailTls.TLS:
            return smtplib.SMTP_SSL(host, port, timeout=SEND_SECONDS, context=trust)
        return smtplib.SMTP(host, port, timeout=SEND_SECONDS)


def _reason(error: Exception) -> str:
    """A server's words may repeat what it was told; its code does not."""
    code = getattr(error, "smtp_code", None)
    return f"{type(error).__name__}{f' {code}' if code else ''}"
