"""Who is asking: accounts with a role, sessions, invitations, and how often one may try.

Passwords are kept as argon2id hashes, session tokens as SHA-256: whoever reads the database can sign in as nobody.
Roles, each with all that the one before may do: a visitor looks at what is public and at links that were shared; a user
sends jobs and sees their own; an operator sees all jobs, workers and accounts.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from base64 import urlsafe_b64encode
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address, ip_network
from pathlib import Path
from threading import Lock
from typing import Any

import sqlalchemy as sql
from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from assay.errors import AssayError

ROLES = ("visitor", "user", "operator")
REMOVED = "removed"  # what stands in place of a role, so that nobody gets the name, its jobs or its invitation again
SHORTEST = 10  # of a password
LONGEST = 200  # so that nobody has us hash a novel
LASTS = 7 * 24 * 3600.0  # a session, and an invitation
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,39}")
MAIL = re.compile(r"[^@\s<>,;:\"'\\()\[\]]{1,64}@[A-Za-z0-9.-]{1,190}\.[A-Za-z]{2,24}")


class Refused(AssayError):
    """A name and a password that do not belong together, or an invitation that does not hold."""


@dataclass(frozen=True)
class User:
    name: str
    role: str
    mail: str
    made: float

    def may(self, role: str) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


tables = sql.MetaData()
users = sql.Table(
    "users",
    tables,
    sql.Column("name", sql.String(40), primary_key=True),
    sql.Column("role", sql.String(10), nullable=False),
    sql.Column("mail", sql.String(255), nullable=False, default=""),
    sql.Column("password", sql.String(255), nullable=False),
    sql.Column("made", sql.Float, nullable=False),
)
sessions = sql.Table(
    "sessions",
    tables,
    sql.Column("token", sql.String(64), primary_key=True),  # its SHA-256
    sql.Column("name", sql.String(40), nullable=False, index=True),
    sql.Column("ends", sql.Float, nullable=False),
)


class Accounts:
    """The accounts in a database, which several processes may share."""

    def __init__(self, engine: sql.Engine) -> None:
        """In a database whose tables (`tables`) are there."""
        self.engine = engine
        self.hasher = PasswordHasher()

    @cached_property
    def _nobody(self) -> str:
        """The hash of a password that nobody has."""
        return self.hasher.hash(secrets.token_hex(16))

    def add(self, name: str, password: str, role: str = "visitor", mail: str = "") -> User:
        name, mail = checked_name(name), checked_mail(mail)
        if role not in ROLES:
            raise AssayError(f"There is no role {role!r}; there are {', '.join(ROLES)}.")
        made = {"name": name, "role": role, "mail": mail, "made": time.time()}
        try:
            with self.engine.begin() as at:
                at.execute(users.insert().values(**made, password=self.hasher.hash(checked_password(password))))
        except sql.exc.IntegrityError:
            raise AssayError(f"There is already an account {name!r}; choose another name.") from None
        return User(**made)  # type: ignore[arg-type]

    def sign_in(self, name: str, password: str) -> str:
        """The token of a new session. An unknown name takes as long as a wrong password, and is told in its words."""
        wanted = name.strip().lower()
        with self.engine.begin() as at:
            kept = at.execute(sql.select(users.c.password).where(users.c.name == wanted)).scalar()
        try:
            self.hasher.verify(kept or self._nobody, password[:LONGEST])
        except (Argon2Error, InvalidHashError):
            kept = None
        if kept is None:
            raise Refused("This name and this password do not belong together; mind small and capital letters.")
        token = secrets.token_urlsafe(32)
        with self.engine.begin() as at:
            at.execute(sessions.delete().where(sessions.c.ends < time.time()))
            at.execute(sessions.insert().values(token=_digest(token), name=wanted, ends=time.time() + LASTS))
            if self.hasher.check_needs_rehash(kept):
                new = self.hasher.hash(password[:LONGEST])
                at.execute(users.update().where(users.c.name == wanted).values(password=new))
        return token

    def who(self, token: str) -> User | None:
        """Whose session this is, while it lasts."""
        if not token:
            return None
        joined = sql.select(users.c.name, users.c.role, users.c.mail, users.c.made).join(
            sessions, sessions.c.name == users.c.name
        )
        with self.engine.connect() as at:
            found = at.execute(
                joined.where(sessions.c.token == _digest(token), sessions.c.ends > time.time(), users.c.role != REMOVED)
            ).one_or_none()
        return None if found is None else User(*found)

    def sign_out(self, token: str) -> None:
        with self.engine.begin() as at:
            at.execute(sessions.delete().where(sessions.c.token == _digest(token)))

    def users(self) -> list[User]:
        with self.engine.connect() as at:
            found = at.execute(
                sql.select(users.c.name, users.c.role, users.c.mail, users.c.made)
                .where(users.c.role != REMOVED)
                .order_by(users.c.name)
            )
            return [User(*row) for row in found]

    def user(self, name: str) -> User | None:
        return next((user for user in self.users() if user.name == name), None)

    def change(
        self, name: str, *, role: str | None = None, password: str | None = None, mail: str | None = None
    ) -> None:
        """Change what is given. Whoever's role or password changes signs in anew; there is always an operator left."""
        new: dict[str, Any] = {}
        if role is not None:
            if role not in ROLES:
                raise AssayError(f"There is no role {role!r}; there are {', '.join(ROLES)}.")
            self._keep_an_operator(name, role)
            new["role"] = role
        if password is not None:
            new["password"] = self.hasher.hash(checked_password(password))
        if mail is not None:
            new["mail"] = checked_mail(mail)
        with self.engine.begin() as at:
            there = users.update().where(users.c.name == name, users.c.role != REMOVED)
            if new and not at.execute(there.values(**new)).rowcount:
                raise AssayError(f"There is no account {name!r}.")
            if role is not None or password is not None:
                at.execute(sessions.delete().where(sessions.c.name == name))

    def remove(self, name: str) -> None:
        """The account and its sessions; its jobs stay to the operator, and its name is nobody's any more."""
        self._keep_an_operator(name, "")
        with self.engine.begin() as at:
            at.execute(sessions.delete().where(sessions.c.name == name))
            there = users.update().where(users.c.name == name, users.c.role != REMOVED)
            if not at.execute(there.values(role=REMOVED, password="", mail="")).rowcount:
                raise AssayError(f"There is no account {name!r}.")

    def _keep_an_operator(self, name: str, role: str) -> None:
        operators = [user.name for user in self.users() if user.role == "operator"]
        if role != "operator" and operators == [name]:
            raise AssayError(f"{name!r} is the only operator; make somebody else one before.")


def checked_name(name: str) -> str:
    name = name.strip().lower()
    if not NAME.fullmatch(name):
        raise AssayError(f"The name {name[:60]!r} is not 2 to 40 of a-z, 0-9, dot, dash and underscore.")
    return name


def checked_password(password: str) -> str:
    if not SHORTEST <= len(password) <= LONGEST:
        raise AssayError(f"A password has {SHORTEST} to {LONGEST} characters, this one {len(password)}.")
    return password


def checked_mail(mail: str) -> str:
    mail = mail.strip()
    if mail and not MAIL.fullmatch(mail):
        raise AssayError(f"{mail[:80]!r} is no mail address; write it like name@example.org, or leave it out.")
    return mail


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


# What only this server can have said.


class Seal:
    """Signs with a secret that is kept in the server's folder: tokens of forms, and invitations."""

    def __init__(self, home: Path) -> None:
        import os

        path = home / "secret"
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(32))
        except FileExistsError:
            pass
        self._key = path.read_bytes()
        if len(self._key) < 32:
            raise AssayError(f"The secret {str(path)!r} is cut short; remove it, and everybody signs in anew.")

    def of(self, *words: str) -> str:
        told = "\0".join(words).encode()
        return urlsafe_b64encode(hmac.digest(self._key, told, "sha256")).decode().rstrip("=")

    def holds(self, seal: str, *words: str) -> bool:
        return hmac.compare_digest(self.of(*words).encode(), seal.encode())

    def invitation(self, name: str, role: str) -> str:
        """A word with which somebody may open the account `name` and choose its password; it holds for a week."""
        if role not in ROLES:
            raise AssayError(f"There is no role {role!r}; there are {', '.join(ROLES)}.")
        ends = str(int(time.time() + LASTS))
        return "~".join((checked_name(name), role, ends, self.of("invitation", checked_name(name), role, ends)))

    def invited(self, word: str) -> tuple[str, str]:
        """The name and the role of an invitation; Refused where it is none of ours, or too old."""
        parts = word.split("~")
        if len(parts) != 4 or not self.holds(parts[3], "invitation", *parts[:3]) or float(parts[2]) < time.time():
            raise Refused("This invitation does not hold, or no longer; ask the operator for another.")
        return parts[0], parts[1]


class Rate:
    """At most `most` in `seconds` for each key, in this process: a slow-down, and no lock."""

    def __init__(self, most: int, seconds: float, keys: int = 10_000) -> None:
        self.most, self.seconds, self.keys = most, seconds, keys
        self._seen: dict[str, deque[float]] = {}
        self._lock = Lock()

    def wait(self, key: str, now: float | None = None) -> float:
        """0 where one more is allowed, and counted; else the seconds until then."""
        now = time.monotonic() if now is None else now
        with self._lock:
            seen = self._seen.pop(key, deque())
            while seen and seen[0] <= now - self.seconds:
                seen.popleft()
            self._seen[key] = seen  # last: the longest unseen is first to be forgotten
            if len(self._seen) > self.keys:
                del self._seen[next(iter(self._seen))]
            if len(seen) >= self.most:
                return seen[0] + self.seconds - now
            seen.append(now)
            return 0.0


class BackOff:
    """For each key: so many wrong tries are free, and each further one doubles the wait; a right one forgets them.

    In this process. A key holds where a try comes from, so that whoever guesses slows down nobody elsewhere.
    """

    def __init__(self, free: int = 10, first: float = 10.0, longest: float = 900.0, keys: int = 10_000) -> None:
        self.free, self.first, self.longest, self.keys = free, first, longest, keys
        self._tried: dict[str, tuple[int, float]] = {}  # how often, and from when on it may again
        self._lock = Lock()

    def wait(self, key: str, now: float | None = None) -> float:
        """0 where a try is allowed, which counts as wrong until it is forgotten; else the seconds until then.

        It counts before anybody knows whether it is right, so that a hundred at once are not all the first.
        """
        now = time.monotonic() if now is None else now
        with self._lock:
            count, until = self._tried.pop(key, (0, now))
            if now - until > 4 * self.longest:  # long quiet
                count, until = 0, now
            left = until - now
            if left <= 0:
                count += 1
                over = min(count + 1 - self.free, 40)
                until = now + (min(self.longest, self.first * 2.0 ** (over - 1)) if over > 0 else 0.0)
            self._tried[key] = count, until
            if len(self._tried) > self.keys:
                del self._tried[next(iter(self._tried))]
            return max(0.0, left)

    def forget(self, key: str) -> None:
        with self._lock:
            self._tried.pop(key, None)


def network(address: str) -> str:
    """Where an address is: itself; of IPv6 the half that names the network, as anyone has all of the other."""
    try:
        told = ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if told.version == 4:
        return str(told)
    return str(told.ipv4_mapped) if told.ipv4_mapped else str(ip_network((told, 64), strict=False))
