"""What `doctor` wants to know of Redis or Valkey."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from think_celery.settings import Settings
from think_celery.stream.connection import REDIS_ERRORS, make_sync

_OLDEST = (6, 2)


@dataclass(frozen=True, slots=True)
class RedisReport:
    """State and policy of the server.

    Attributes:
        reachable: True when it answered.
        server: `valkey` or `redis`; None when unknown.
        version: Its version text.
        maxmemory: Memory limit in bytes, 0 for none.
        maxmemory_policy: What it does at the limit.
        used_memory: Bytes in use.
        evicted_keys: Keys that it has thrown away for space since its start.
        aof_enabled: True when it logs writes to disk.
        problems: What is wrong, each with its remedy; empty when all is well.
    """

    reachable: bool
    server: str | None = None
    version: str | None = None
    maxmemory: int | None = None
    maxmemory_policy: str | None = None
    used_memory: int | None = None
    evicted_keys: int | None = None
    aof_enabled: bool | None = None
    problems: tuple[str, ...] = ()


def redis_report(settings: Settings) -> RedisReport:
    """Ask the server for its state; bounded by `redis_timeout`, never raises for the server's sake.

    Uses INFO alone, because hosted servers refuse CONFIG.
    """
    client = make_sync(settings)
    try:
        info: Mapping[str, Any] = client.info()
    except REDIS_ERRORS as error:
        problem = f"cannot be reached ({error}); check THINK_REDIS_URL and that the server runs"
        return RedisReport(reachable=False, problems=(problem,))
    finally:
        client.close()
    return _report(info)


def _report(info: Mapping[str, Any]) -> RedisReport:
    valkey = info.get("valkey_version")
    version = str(valkey or info.get("redis_version", ""))
    policy, aof = info.get("maxmemory_policy"), info.get("aof_enabled")
    return RedisReport(
        reachable=True,
        server="valkey" if valkey else "redis",
        version=version or None,
        maxmemory=info.get("maxmemory"),
        maxmemory_policy=policy,
        used_memory=info.get("used_memory"),
        evicted_keys=info.get("evicted_keys"),
        aof_enabled=None if aof is None else bool(aof),
        problems=tuple(_problems(version, policy, aof)),
    )


def _problems(version: str, policy: str | None, aof: int | None) -> list[str]:
    problems = []
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers and numbers < _OLDEST:
        problems.append(f"version {version} is too old; use Redis 6.2 or newer, or Valkey")
    if policy is not None and policy != "noeviction":
        problems.append(
            f"maxmemory-policy is {policy}, which may throw queues away; set `maxmemory-policy noeviction`"
        )
    if aof == 0:
        problems.append(
            "keeps nothing over a restart, so that work waits for the sweeper; set `appendonly yes`"
        )
    return problems
