"""Settings of one process: read once, frozen, prefix `THINK_`, unknown names refused.

Where the servers are comes from, in this order: arguments of `load_settings`, the environment, and the state
file of a running local stack (`think-celery up`).
"""

import json
import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from think_celery.errors import InvalidSettings, StackNotRunning

PREFIX = "THINK_"
STATE_FILE = Path(".think-celery") / "stack.json"
_SERVERS = ("database_url", "redis_url", "broker_url")


class Settings(BaseSettings):
    """Everything a think-celery process may be told from outside.

    Every field is an environment variable with the prefix `THINK_` (`database_url` is `THINK_DATABASE_URL`).
    Durations are seconds.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    database_url: SecretStr
    """PostgreSQL, `postgresql://user:password@host:port/database`."""
    redis_url: SecretStr
    """Redis or Valkey for streams and signals, `redis://:password@host:port/0`."""
    broker_url: SecretStr
    """Celery's broker; default: the same server and database as `redis_url`."""

    schema_name: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,47}$")] = "think"
    """PostgreSQL schema that holds every table and function."""
    redis_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,48}$")] = "think"
    """First part of every Redis key and channel."""

    agents: Annotated[tuple[str, ...], NoDecode] = ()
    """Modules to import for their agent classes, comma separated."""
    queue_scope: Literal["agent", "type"] = "agent"
    """One Celery queue per agent, or per agent class."""

    pool: Literal["threads", "prefork", "solo"] = "threads"
    """Celery pool of the ready-made worker."""
    concurrency: Annotated[int, Field(ge=1, le=1000)] = 8
    """Turns at once in one worker of the ready-made deployment."""

    drain_turns: Annotated[int, Field(ge=1)] = 20
    """Turns that one bell may work off before the lane goes to the back of the line."""
    drain_seconds: Annotated[float, Field(gt=0)] = 5.0
    """Seconds after which a bell takes no further turn."""
    announce_seconds: Annotated[float, Field(gt=0)] = 60.0
    """A lane idle for longer is announced again; its queue is dropped after three times that."""
    refresh_seconds: Annotated[float, Field(gt=0)] = 30.0
    """How often a worker compares its queues with the ledger."""
    publish_timeout: Annotated[float, Field(gt=0, le=10)] = 1.5
    """Deadline for ringing the bell; after a failure the ring is left to the sweeper for `publish_pause`."""
    publish_pause: Annotated[float, Field(ge=0)] = 5.0

    heartbeat_seconds: Annotated[float, Field(gt=0)] = 2.0
    """Interval of a worker process's sign of life."""
    lease_seconds: Annotated[float, Field(gt=0)] = 15.0
    """A worker process silent for longer is presumed dead."""
    sweep_seconds: Annotated[float, Field(gt=0)] = 5.0
    """Interval of the repair pass in every worker and in beat."""
    nudge_after_seconds: Annotated[float, Field(gt=0)] = 5.0
    """A runnable head whose bell is older is rung again; doubles with each repeat, up to five minutes."""

    schedule_seconds: Annotated[float, Field(gt=0)] = 5.0
    """How often beat asks for what is due; a worker looks by itself when nobody has for twice as long."""
    reconcile_seconds: Annotated[float, Field(gt=0)] = 600.0
    """How often the agents' schedules are compared with what their classes declare."""
    build_number: Annotated[int, Field(ge=0)] = 0
    """Number of the deployed build, growing; schedules that a later one declared stay as they are."""

    max_starts: Annotated[int, Field(ge=1)] = 10
    """Starts of a submission whose messages never reached the conversation, then it ends in `error`."""

    max_pending: Annotated[int, Field(ge=1)] = 10_000
    """Waiting submissions of one agent; a further one is refused."""
    strict_idempotency: bool = False
    """Refuse a known id or key with other messages instead of returning the first submission."""
    loop_stall_seconds: Annotated[float, Field(ge=0)] = 1.0
    """A worker whose event loop stands still for longer logs which code blocks it; 0 never looks."""
    hook_seconds: Annotated[float, Field(gt=0)] = 30.0
    """Longest run of a status hook; a longer one counts as failed. A worker that is told to end gives its
    response hooks as long."""
    retention_days: Annotated[float, Field(ge=0)] = 0.0
    """Ended submissions are deleted after so many days; 0 keeps them. Messages stay in any case."""

    model_calls: Annotated[int, Field(ge=0)] = 0
    """Calls of one model at once in one process, the others wait; 0 for no limit."""
    model_retries: Annotated[int, Field(ge=0, le=50)] = 4
    """How often a model call is repeated that the provider refuses for now (429, 5xx, no connection)."""
    model_retry_seconds: Annotated[float, Field(gt=0)] = 60.0
    """Longest pause before a repetition; a provider that asks for a longer one fails the turn."""

    webhook_url: str | None = None
    """Where to report every submission's end, unless the submission names its own address."""
    webhook_secret: SecretStr | None = None
    """Signs the reports (HMAC-SHA256)."""
    webhook_allow_private: bool = False
    """Deliver to loopback, private and link-local addresses, too."""
    webhook_timeout: Annotated[float, Field(gt=0, le=60)] = 10.0

    stream_flush_ms: Annotated[int, Field(ge=0, le=1000)] = 20
    """Longest wait of a chunk for its neighbours before it is sent."""
    stream_keep_seconds: Annotated[int, Field(ge=1)] = 600
    """How long a finished turn can be replayed from Redis."""
    stream_max_frames: Annotated[int, Field(ge=100)] = 20_000
    """Frames kept per turn for replay; older ones are dropped."""

    database_pool_size: Annotated[int, Field(ge=1, le=200)] = 10
    database_timeout: Annotated[float, Field(gt=0)] = 10.0
    """Seconds to reach PostgreSQL, repeated attempts included."""
    redis_timeout: Annotated[float, Field(gt=0)] = 2.0

    max_messages_bytes: Annotated[int, Field(ge=1000)] = 4_000_000
    """Largest JSON text of one submission's messages."""
    max_metadata_bytes: Annotated[int, Field(ge=100)] = 64_000
    """Largest JSON text of one submission's metadata."""
    max_message_bytes: Annotated[int, Field(ge=10_000)] = 1_800_000
    """Largest stored message; a longer answer is compacted."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("agents", mode="before")
    @classmethod
    def _split_agents(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("database_url", mode="after")
    @classmethod
    def _only_postgresql(cls, value: SecretStr) -> SecretStr:
        scheme = value.get_secret_value().partition("://")[0]
        if scheme not in {"postgresql", "postgres", "postgresql+psycopg"}:
            raise ValueError("must start with postgresql:// (the ledger runs on PostgreSQL only)")
        return value

    @field_validator("redis_url", mode="after")
    @classmethod
    def _only_redis(cls, value: SecretStr) -> SecretStr:
        scheme = value.get_secret_value().partition("://")[0]
        if scheme not in {"redis", "rediss", "unix"}:
            raise ValueError("must start with redis://, rediss:// or unix://")
        return value

    @property
    def lease(self) -> timedelta:
        """Silence after which a worker process is presumed dead."""
        return timedelta(seconds=self.lease_seconds)


def load_settings(
    environ: Mapping[str, str] | None = None, *, folder: Path | None = None, **overrides: Any
) -> Settings:
    """Read the settings of this process.

    Args:
        environ: Environment to read; default `os.environ`.
        folder: Where to look for a running local stack (this folder and its parents); default the current
        one. overrides: Values that win over both, by field name.

    Returns:
        The frozen settings.

    Raises:
        InvalidSettings: A name with the prefix is unknown, or a value does not fit; all faults in one text.
        StackNotRunning: No database is named and no local stack is running.
    """
    env = os.environ if environ is None else environ
    values = {name[len(PREFIX) :].lower(): text for name, text in env.items() if name.startswith(PREFIX)}
    values = {name: text for name, text in values.items() if text != ""}
    known = set(Settings.model_fields) | {"home", "flower_port", "flower_user", "flower_password"}
    unknown = sorted(PREFIX + name.upper() for name in values.keys() - known)
    if unknown:
        raise InvalidSettings(
            f"unknown setting {', '.join(unknown)}; see `think-celery doctor` for the known names"
        )
    home = values.get("home")
    values = {name: text for name, text in values.items() if name in Settings.model_fields}
    merged: dict[str, Any] = {**values, **overrides}
    if "database_url" not in merged or "redis_url" not in merged:
        stack = _running_stack(folder, home)
        if "redis_url" in merged:
            stack.pop("broker_url", None)  # it would be another server's
        merged = {**stack, **merged}
    if "database_url" not in merged or "redis_url" not in merged:
        raise StackNotRunning(
            "no servers: set THINK_DATABASE_URL and THINK_REDIS_URL, "
            "or start a local stack with `think-celery up`"
        )
    merged.setdefault("broker_url", merged["redis_url"])
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        faults = "; ".join(
            f"{PREFIX}{str(fault['loc'][0]).upper()}: {fault['msg'].removeprefix('Value error, ')}"
            for fault in error.errors(include_input=False, include_url=False)
        )
        raise InvalidSettings(faults) from None


def _running_stack(folder: Path | None, home: str | None) -> dict[str, Any]:
    start = (folder or Path.cwd()).resolve()
    nearby = [place / STATE_FILE for place in (start, *start.parents)]
    for file in [Path(home).expanduser() / STATE_FILE.name] if home else nearby:
        if file.is_file():
            try:
                state = json.loads(file.read_text())
            except (OSError, ValueError):
                return {}
            return {name: state[name] for name in (*_SERVERS, "agents") if state.get(name)}
    return {}
