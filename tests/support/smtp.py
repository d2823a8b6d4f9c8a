"""A mail server that keeps what it is sent, for tests: it speaks as much SMTP as a sender needs (RFC 5321), encrypts
where it has a context, and asks for a password (RFC 4954, PLAIN) where it has one."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class MailBox:
    context: ssl.SSLContext | None = None
    at_once: bool = False
    """Encrypted from the first byte; else by STARTTLS, where there is a context."""
    login: tuple[str, str] | None = None
    refuse: bool = False
    """Whether every mail is refused."""
    port: int = 0
    mails: list[bytes] = field(default_factory=list)
    in_clear: list[bytes] = field(default_factory=list)
    """Lines that came before the connection was encrypted."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        encrypted, known = self.at_once, self.login is None
        writer.write(b"220 mail.test\r\n")
        while line := await reader.readline():
            if not encrypted:
                self.in_clear.append(line)
            word = line.split()[0].upper() if line.split() else b""
            if word == b"EHLO":
                features = [b"STARTTLS"] if self.context and not encrypted else []
                features += [b"AUTH PLAIN"] if self.login else []
                names = [b"mail.test", *features]
                writer.write(b"".join(b"250-%b\r\n" % name for name in names[:-1]) + b"250 %b\r\n" % names[-1])
            elif word == b"STARTTLS" and self.context:
                writer.write(b"220 go ahead\r\n")
                await writer.start_tls(self.context)
                encrypted = True
            elif word == b"AUTH" and self.login:
                said = tuple(part.decode() for part in base64.b64decode(line.split()[2]).split(b"\0")[1:])
                known = said == self.login
                writer.write(b"235 welcome\r\n" if known else b"535 who are you\r\n")
            elif word == b"DATA":
                writer.write(b"354 go on\r\n")
                self.mails.append((await reader.readuntil(b"\r\n.\r\n"))[:-5])
                writer.write(b"250 taken\r\n")
            elif word == b"QUIT":
                writer.write(b"221 bye\r\n")
                break
            else:
                writer.write(b"250 ok\r\n" if known and not self.refuse else b"550 no\r\n")
        writer.close()


@asynccontextmanager
async def mail_server(box: MailBox) -> AsyncIterator[MailBox]:
    server = await asyncio.start_server(box.serve, "127.0.0.1", 0, ssl=box.context if box.at_once else None)
    box.port = server.sockets[0].getsockname()[1]
    try:
        yield box
    finally:
        server.close()
