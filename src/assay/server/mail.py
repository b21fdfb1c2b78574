"""Mail when a job has ended, where the operator has set it up in the environment of the workers; off otherwise.

ASSAY_MAIL_HOST        the server that takes mail; without it none is sent
ASSAY_MAIL_PORT        587 if not given; 465 speaks TLS from the start, any other starts it
ASSAY_MAIL_USER        and ASSAY_MAIL_PASSWORD, where it wants them
ASSAY_MAIL_FROM        who it is from; assay@HOST if not given
ASSAY_MAIL_TO          to whom, where there are no accounts; with accounts it goes to the owner's address
ASSAY_ADDRESS          where the workbench is, such as https://bench.example.org, for the link
ASSAY_MAIL_PLAIN       1: without TLS, for a server on this machine
"""

from __future__ import annotations

import os
import smtplib
import ssl
from collections.abc import Mapping
from email.message import EmailMessage
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.server.book import Book, Job

SECONDS = 20.0
SAYS = {"SUCCESS": "is done", "FAILURE": "failed", "CANCELLED": "was cancelled"}


def ended(book: Book, id: str, settings: Mapping[str, str] = os.environ) -> bool:
    """Tell the owner of a job that it has ended; whether that was sent. Raises OSError or SMTPException if it fails."""
    host, job = settings.get("ASSAY_MAIL_HOST", ""), book.job(id)
    if not host or job is None or job.state not in SAYS:
        return False
    to = _address(book, job, settings)
    if not to:
        return False
    send(letter(job, to, settings), settings)
    return True


def _address(book: Book, job: Job, settings: Mapping[str, str]) -> str:
    if not job.owner:
        return settings.get("ASSAY_MAIL_TO", "")
    from assay.server.accounts import Accounts, tables

    book.create(tables)
    owner = Accounts(book.engine).user(job.owner)
    return owner.mail if owner is not None else ""


def letter(job: Job, to: str, settings: Mapping[str, str]) -> EmailMessage:
    """Headers take no line that a title could add."""
    mail, where = EmailMessage(), settings.get("ASSAY_ADDRESS", "").rstrip("/")
    mail["From"] = settings.get("ASSAY_MAIL_FROM") or f"assay@{settings['ASSAY_MAIL_HOST']}"
    mail["To"] = to
    mail["Subject"] = f"Assay: {' '.join(job.title.split())[:120]} {SAYS[job.state]}"
    lines = [f"{job.title} ({job.kind}) {SAYS[job.state]}."]
    lines += [job.reason] if job.reason and job.state == "FAILURE" else []
    lines += [f"{where}/jobs/{job.id}"] if where else []
    mail.set_content("\n\n".join(lines) + "\n")
    return mail


def send(mail: EmailMessage, settings: Mapping[str, str]) -> None:
    host, port = settings["ASSAY_MAIL_HOST"], int(settings.get("ASSAY_MAIL_PORT") or 587)
    plain = settings.get("ASSAY_MAIL_PLAIN") == "1"
    made = smtplib.SMTP_SSL if port == 465 and not plain else smtplib.SMTP
    with made(host, port, timeout=SECONDS) as server:
        if made is smtplib.SMTP and not plain:
            server.starttls(context=ssl.create_default_context())
        if settings.get("ASSAY_MAIL_USER"):
            server.login(settings["ASSAY_MAIL_USER"], settings.get("ASSAY_MAIL_PASSWORD", ""))
        server.send_message(mail)
