"""The Celery settings of the ready-made deployment, each with its reason.

They are the broker rules of the design: a message is a bell, so nothing may lean on redelivery, results,
retries, delays, priorities or expiry, and no wait on the network may be without an end.
"""

from typing import Any

from kombu.entity import Queue

from think_celery.settings import Settings
from think_celery.worker.beat import MAINTENANCE_QUEUE, beat_entries

POOLS = {
    "threads": "think_celery.worker.pool:TaskPool",
    "prefork": "prefork",
    "solo": "think_celery.worker.pool:SoloPool",
}


def celery_config(settings: Settings) -> dict[str, Any]:
    """Return the configuration of an app that serves think-celery alone."""
    return {
        **_messages(),
        **_broker(settings),
        **_worker(settings),
        **_monitoring(),
        **_beat(settings),
    }


def _messages() -> dict[str, Any]:
    return {
        # A pickle in a shared broker is code that anybody with the broker's password can run.
        "task_serializer": "json",
        "accept_content": ["json"],
        # Acknowledged when a slot takes it: the ledger brings a turn back in its place, while a redelivery
        # comes an hour later, behind its successors, or over and over beside the running turn.
        "task_acks_late": False,
        "task_reject_on_worker_lost": False,
        # Results live in the ledger; each AsyncResult would cost a subscription for ever (celery#6963).
        "task_ignore_result": True,
        "task_store_errors_even_if_ignored": False,
        "result_backend": None,
        # Each publish retry costs another socket timeout; the sweeper rings again instead.
        "task_publish_retry": False,
        # Where the ticks of beat go. Agents' queues are never declared here: a queue of the configuration
        # would be consumed by every worker again after a reconnect (celery#9462).
        "task_default_queue": MAINTENANCE_QUEUE,
        "task_queues": [Queue(MAINTENANCE_QUEUE)],  # type: ignore[no-untyped-call]
        # `-Q agent.TaskAgent.alice` names a queue that no configuration declares.
        "task_create_missing_queues": True,
        "enable_utc": True,
        "timezone": "UTC",
    }


def _broker(settings: Settings) -> dict[str, Any]:
    wait = max(settings.redis_timeout, 1.5)  # a closing worker reads the answer to a BRPOP of one second
    transport: dict[str, Any] = {}
    if settings.broker_url.get_secret_value().partition("://")[0] not in {"amqp", "amqps", "pyamqp"}:
        transport = {
            # Without them a frozen server or a lost NAT entry hangs the process for ever (celery#10205).
            "socket_timeout": wait,
            "socket_connect_timeout": settings.redis_timeout,
            "socket_keepalive": True,
            # Also how soon kombu gives up a BRPOP whose answer is overdue.
            "health_check_interval": 10,
            # One list per queue instead of four: priorities would let bells pass each other, and every
            # idle poll would name four keys per agent.
            "priority_steps": [0],
            # No list of unacknowledged messages: with early acknowledgement it holds a message for a moment,
            # at the price of two more round trips per bell (a third of a worker's throughput), and it is what
            # redelivery by timeout works on, with the shortest timeout of all apps that share the database.
            "ack_emulation": False,
        }
    return {
        "broker_url": settings.broker_url.get_secret_value(),
        "broker_transport_options": transport,
        "broker_connection_timeout": settings.redis_timeout,
        # A worker that starts before its broker, or outlives it, waits for it; the default ends after 100
        # tries.
        "broker_connection_retry": True,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        # READONLY after a failover, or OOM from a full server, is a reply and no lost connection: Celery
        # would end the worker over it.
        "broker_channel_error_retry": True,
    }


def _worker(settings: Settings) -> dict[str, Any]:
    return {
        "worker_pool": POOLS[settings.pool],
        "worker_concurrency": settings.concurrency,
        # A prefetched bell waits behind a foreign turn beside an idle worker (7 of 24 measured), and
        # prefetched messages come back reversed after a restart.
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": True,
        # Taken slots are counted directly, so there is nothing to reduce after a reconnect.
        "worker_enable_prefetch_count_reduction": False,
        # A turn is worth more than its message: it goes on while the broker is away. Celery 6 turns it
        # on.
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        # A child opens its connections when it starts; the default of 4 s is short on a busy machine.
        "worker_proc_alive_timeout": 30.0,
        # The root logger gets Celery's format, so that agents' and libraries' log lines are seen too.
        "worker_hijack_root_logger": True,
        # An agent's print() is no warning.
        "worker_redirect_stdouts": False,
    }


def _monitoring() -> dict[str, Any]:
    return {
        # Flower shows what workers tell it.
        "worker_send_task_events": True,
        # Off: one more publish per bell (0.3 ms and 0.6 ms, measured), on the caller's time, to tell Flower
        # of a message that a worker reports a moment later; the backlog is in the ledger anyway.
        "task_send_sent_event": False,
        # `revoke` and `inspect` answers nobody fetches must not pile up (celery#6089); a late command is
        # none.
        "control_queue_ttl": 10.0,
        "control_queue_expires": 10.0,
    }


def _beat(settings: Settings) -> dict[str, Any]:
    return {
        "beat_schedule": beat_entries(settings),
        # In memory: a tick needs no past, and a stale or broken file stops beat (celery#10896).
        "beat_scheduler": "celery.beat:Scheduler",
        "beat_max_loop_interval": 5.0,
    }
