"""The ledger's tables as SQLAlchemy sees them, for the statements that read.

The migrations make the tables; a test compares both. Writes go through the functions beside the tables, one
per step, because a step must lock the lane in a statement of its own and decide in later ones.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    Uuid,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

metadata = MetaData()
_Instant = DateTime(timezone=True)

agents = Table(
    "agents",
    metadata,
    Column("agent_type", Text, primary_key=True),
    Column("agent_name", Text, primary_key=True),
    Column("parent", Text),
    Column("last_position", BigInteger, nullable=False),
    Column("head_position", BigInteger, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("rewrites", BigInteger, nullable=False),
    Column("active_uid", Uuid),
    Column("active_worker", Uuid),
    Column("claim_id", Uuid),
    Column("hook_holder", Uuid),
    Column("hook_until", _Instant),
    Column("paused", Boolean, nullable=False),
    Column("due_at", _Instant),
    Column("wanted", Boolean, nullable=False),
    Column("rings", Integer, nullable=False),
    Column("nudged_at", _Instant, nullable=False),
    Column("used_at", _Instant, nullable=False),
    Column("created_at", _Instant, nullable=False),
    Column("body", JSONB),
    Column("responder", Uuid),
)

submissions = Table(
    "submissions",
    metadata,
    Column("agent_type", Text, primary_key=True),
    Column("agent_name", Text, primary_key=True),
    Column("submission_id", Text, primary_key=True),
    Column("uid", Uuid, nullable=False),
    Column("idempotency_key", Text),
    Column("request_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("position", BigInteger),
    Column("generation", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("nudges", Integer, nullable=False),
    Column("messages", JSONB, nullable=False),
    Column("body_hash", LargeBinary, nullable=False),
    Column("metadata", JSONB),
    Column("parent_id", Uuid),
    Column("root_id", Uuid),
    Column("runner", Uuid),
    Column("traceparent", Text),
    Column("error", Text),
    Column("message_id", Text),
    Column("usage", JSONB),
    Column("not_before", _Instant),
    Column("not_after", _Instant),
    Column("run_timeout", Double),
    Column("rerun_of", Text),
    Column("cancel_call", Uuid),
    Column("cancel_was", Text),
    Column("webhook_url", Text),
    Column("hook_due", Boolean, nullable=False),
    Column("created_at", _Instant, nullable=False),
    Column("started_at", _Instant),
    Column("messages_applied_at", _Instant),
    Column("first_chunk_at", _Instant),
    Column("completed_at", _Instant),
    Column("body", JSONB),
    Column("deferred", Boolean, nullable=False),
    Column("response_due", Boolean, nullable=False),
)

messages = Table(
    "messages",
    metadata,
    Column("agent_type", Text, primary_key=True),
    Column("agent_name", Text, primary_key=True),
    Column("message_id", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("submission_uid", Uuid),
    Column("content", JSONB, nullable=False),
    Column("created_at", _Instant, nullable=False),
)

classes = Table(
    "classes",
    metadata,
    Column("agent_type", Text, primary_key=True),
    Column("hooked", Boolean, nullable=False),
    Column("paused", Boolean, nullable=False),
)

webhooks = Table(
    "webhooks",
    metadata,
    Column("webhook_id", Uuid, primary_key=True),
    Column("submission_uid", Uuid, nullable=False),
    Column("url", Text, nullable=False),
    Column("payload", JSONB, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("error", Text),
    Column("created_at", _Instant, nullable=False),
    Column("due_at", _Instant, nullable=False),
)

waits = Table(
    "waits",
    metadata,
    Column("wait_id", Uuid, primary_key=True),
    Column("uid", Uuid, nullable=False),
    Column("agent_type", Text, nullable=False),
    Column("agent_name", Text, nullable=False),
    Column("for_type", Text, nullable=False),
    Column("for_name", Text, nullable=False),
    Column("since", _Instant, nullable=False),
)

workers = Table(
    "workers",
    metadata,
    Column("worker_id", Uuid, primary_key=True),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("pool", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("agent_types", ARRAY(Text), nullable=False),
    Column("draining", Boolean, nullable=False),
    Column("started_at", _Instant, nullable=False),
    Column("heartbeat_at", _Instant, nullable=False),
    Column("consumed_at", _Instant),
)
