"""The tables of jobs, in one place: what a job leaves in any of them goes with it, in one transaction."""

from __future__ import annotations

import re

import sqlalchemy as sa

ID = re.compile(r"[A-Za-z0-9_-]{22}")
"""Of a job, of a worker, and the word of a form."""

METADATA = sa.MetaData()
JOBS = sa.Table(
    "jobs",
    METADATA,
    sa.Column("id", sa.String(22), primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("title", sa.Text, nullable=False),
    sa.Column("settings", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False, default=""),
    sa.Column("progress", sa.Double, nullable=False, default=0.0),
    sa.Column("made", sa.Double, nullable=False),
    sa.Column("began", sa.Double),
    sa.Column("ended", sa.Double),
    sa.Column("worker", sa.Text, nullable=False, default=""),
    sa.Column("attempt", sa.Integer, nullable=False, default=0),
    sa.Column("bytes", sa.BigInteger, nullable=False, default=0),
    sa.Index("jobs_by_time", "made", "id"),
    sa.Index("jobs_by_owner", "owner", "made", "id"),
    sa.Index("jobs_by_state", "state", "made", "id"),
    sa.Index("jobs_by_owner_and_state", "owner", "state", "made", "id"),
)
EVENTS = sa.Table(
    "events",
    METADATA,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("job", sa.String(22), nullable=False, index=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("was", sa.Text, nullable=False),
    sa.Column("became", sa.Text, nullable=False),
    sa.Column("worker", sa.Text, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
)
SHARES = sa.Table(
    "shares",
    METADATA,
    sa.Column("token", sa.String(43), primary_key=True),
    sa.Column("job", sa.String(22), nullable=False, index=True),
    sa.Column("made", sa.Double, nullable=False),
)
SENT = sa.Table(
    "sent",
    METADATA,
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("once", sa.String(22), primary_key=True),  # the word of a form
    sa.Column("job", sa.String(22), nullable=False, index=True),
)
JOINED = sa.Table(
    "joined",
    METADATA,
    sa.Column("study", sa.String(22), primary_key=True),  # the job that made it
    sa.Column("once", sa.String(22), primary_key=True),
    sa.Column("participant", sa.String(22), nullable=False),
)
WORKERS = sa.Table(
    "workers",
    METADATA,
    sa.Column("id", sa.String(22), primary_key=True),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("since", sa.Double, nullable=False),
    sa.Column("seen", sa.Double, nullable=False),
    sa.Column("stopping", sa.Boolean, nullable=False, default=False),
)
