"""The way to a model's provider: models by name, how many calls at once, when to try again, what to say."""

import asyncio
import zlib
from collections.abc import Container
from dataclasses import dataclass
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

from pydantic_ai import ConcurrencyLimiter
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelServerError,
    ModelUnavailableError,
)
from pydantic_ai.models import Model, infer_model
from pydantic_ai.models.concurrency import ConcurrencyLimitedModel

from think_celery.core.backoff import delay_seconds
from think_celery.engine.blocking import in_thread
from think_celery.engine.model import ModelPolicy

_PASSING = (ModelRateLimitError, ModelUnavailableError, ModelServerError, ModelConnectionError)
_PASSING_STATUSES = frozenset({408, 409, 425, 429})
_FIRST_PAUSE_SECONDS = 0.5
_SPREAD = 0.25
_REMEDIES: tuple[tuple[type[ModelAPIError], Container[int], str], ...] = (
    (ModelAuthenticationError, {401, 403}, "check the API key and what it may use"),
    (ModelQuotaExceededError, {402}, "the account's quota or credit is used up"),
    (ModelContextWindowExceededError, {413}, "the conversation is too long for this model"),
    (ModelNotFoundError, {404}, "check the model's name and the provider's base URL"),
    (
        ModelRateLimitError,
        {429},
        "too many requests: allow fewer at once (THINK_MODEL_CALLS), or try again later",
    ),
    (ModelConnectionError, {408}, "the provider could not be reached: check the network and the base URL"),
    (ModelUnavailableError, {503, 529}, "the provider is overloaded or down: try again later"),
    (ModelServerError, range(500, 600), "the provider has a fault: try again later"),
    (ModelRequestRejectedError, range(400, 500), "the provider refuses this request; repeating it is no use"),
)
"""What to do about an error of a kind; models that an application wrote may tell the status only."""


@dataclass
class _Kept:
    """What belongs to one event loop: a client's connections do, and so does waiting for a place."""

    models: dict[str, Model]
    limiters: dict[tuple[str, int], ConcurrencyLimiter]


_kept: WeakKeyDictionary[asyncio.AbstractEventLoop, _Kept] = WeakKeyDictionary()


def _mine() -> _Kept:
    return _kept.setdefault(asyncio.get_running_loop(), _Kept({}, {}))


async def resolve(model: Model | str) -> Model:
    """Return the model of a name, made once per event loop, so that its connections serve many turns.

    Raises:
        TypeError: It is neither a name nor a model.
        Exception: The name is unknown, its package is not installed, or its key is not set; says which.
    """
    if isinstance(model, Model):
        return model
    if not isinstance(model, str):
        raise TypeError(
            f'a {type(model).__name__} is no model; return a name such as "openai:gpt-5", or a Model'
        )
    models = _mine().models
    if model not in models:
        # In a thread, because it imports the provider's package.
        models.setdefault(model, await in_thread(infer_model, model))
    return models[model]


async def close() -> None:
    """Close the connections of this event loop's models."""
    kept = _kept.pop(asyncio.get_running_loop(), None)
    for model in kept.models.values() if kept is not None else ():
        async with model:  # leaving is what closes the client
            pass


def limited(model: Model, policy: ModelPolicy) -> Model | None:
    """Return a model that waits for its turn when too many of its calls are under way; None without limit."""
    if not policy.calls:
        return None
    place = (model.model_id, policy.calls)
    limiter = _mine().limiters.setdefault(place, ConcurrencyLimiter(policy.calls, name=model.model_id))
    return ConcurrencyLimitedModel(model, limiter)


def pause_seconds(error: Exception, *, attempt: int, key: str, policy: ModelPolicy) -> float | None:
    """Return how long to wait before a refused request is sent again; None when that is no use.

    Args:
        error: Why it was refused.
        attempt: How often it was sent, from 1.
        key: Spreads the waits of requests that were refused together.
        policy: How often and how long.
    """
    if attempt > policy.retries or not _is_passing(error):
        return None
    asked = error.retry_after if isinstance(error, ModelAPIError) else None
    if asked is not None:
        # Coming back earlier would be refused again, and count against the limit.
        return asked if asked <= policy.longest_pause_seconds else None
    spread = 1 - _SPREAD * (zlib.crc32(f"{key}.{attempt}".encode()) / 2**32)
    return spread * delay_seconds(attempt, base=_FIRST_PAUSE_SECONDS, limit=policy.longest_pause_seconds)


def _is_passing(error: Exception) -> bool:
    if isinstance(error, ModelQuotaExceededError):
        return False
    if isinstance(error, ModelHTTPError):
        if error.provider_retry_hint is not None:
            return error.provider_retry_hint
        if error.status_code in _PASSING_STATUSES or error.status_code >= 500:
            return True
    return isinstance(error, _PASSING)


def explain(error: ModelAPIError) -> None:
    """Put into words for people what a provider's error means and what to do; its class stays."""
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    by_kind = (text for kind, _, text in _REMEDIES if isinstance(error, kind))
    by_status = (text for _, statuses, text in _REMEDIES if status in statuses)
    remedy = next(chain(by_kind, by_status), "the provider failed")
    said = _said(error.body) or ("" if status else str(error.args[0]))
    facts = ", ".join(fact for fact in (f"HTTP {status}" if status else "", said) if fact)
    wait = "" if error.retry_after is None else f"; it asks to wait {error.retry_after:g} s"
    error.message = f"{error.model_name}: {remedy} ({facts}{wait})"
    # The text now says what its cause said; as its context that stays in the log.
    error.__context__, error.__cause__ = error.__cause__ or error.__context__, None
    error.__suppress_context__ = False


def _said(body: Any) -> str:
    """Return the provider's own words out of an error's body."""
    if isinstance(body, dict):
        return _said(body.get("error") or body.get("message") or body.get("detail"))
    return body.strip() if isinstance(body, str) else ""
