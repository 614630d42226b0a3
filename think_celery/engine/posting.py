"""One HTTP request to a receiver that somebody else named.

The name is resolved once, every address is checked, and the connection goes to a checked address: a name that
answers differently the second time gains nothing. Redirects are not followed, proxies are not used, and of
the response nothing but the status counts.
"""

import asyncio
import socket
import ssl
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from think_celery.core.webhook import is_public

if TYPE_CHECKING:
    import httpx2

_MOST_ADDRESSES = 4
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request did not succeed; `final` when no repetition can help."""

    error: str
    final: bool = False


@dataclass(frozen=True, slots=True)
class Post:
    """What is sent where."""

    url: str
    body: bytes
    headers: Mapping[str, str]


@cache
def load() -> ssl.SSLContext:
    """Import the HTTP library and read the trusted certificates; takes half a second the first time."""
    import httpx2

    return httpx2.create_ssl_context()


async def send(post: Post, *, seconds: float, allow_private: bool, pool: Executor) -> Failure | None:
    """Send a POST request; None when the answer was 2xx.

    Args:
        post: What is sent where.
        seconds: For everything from the resolution of the name to the answer's status.
        allow_private: Whether loopback, private, link-local and other special addresses may be reached.
        pool: Threads that resolve names.
    """
    tls = await asyncio.get_running_loop().run_in_executor(pool, load)
    try:
        async with asyncio.timeout(seconds):
            return await _send(post, tls, seconds=seconds, allow_private=allow_private, pool=pool)
    except TimeoutError:
        return Failure(f"no answer within {seconds:g} s")


async def _send(
    post: Post, tls: ssl.SSLContext, *, seconds: float, allow_private: bool, pool: Executor
) -> Failure | None:
    import httpx2

    try:
        url = httpx2.URL(post.url)
        addresses = await _resolve(url, pool)
    except httpx2.InvalidURL as error:
        return Failure(f"cannot be used as an address: {error}", final=True)
    except (OSError, UnicodeError) as error:
        return Failure(f"its name cannot be resolved: {error}")
    for address in addresses:
        if not allow_private and not is_public(address):
            return Failure(f"the address {address} is not public and therefore refused", final=True)
    addresses = addresses[:_MOST_ADDRESSES]
    limits = httpx2.Timeout(seconds, connect=seconds / max(1, len(addresses)))
    # Not a client: that writes whole addresses, which may hold secrets, to the log.
    async with httpx2.AsyncHTTPTransport(verify=tls, trust_env=False) as transport:
        requests = [(address, _request(url, address, post, limits)) for address in addresses]
        return await _try(transport, requests)


async def _resolve(url: "httpx2.URL", pool: Executor) -> list[str]:
    look = partial(
        socket.getaddrinfo,
        url.raw_host.decode("ascii"),
        url.port or _PORTS[url.scheme],
        type=socket.SOCK_STREAM,
    )
    found = await asyncio.get_running_loop().run_in_executor(pool, look)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _request(url: "httpx2.URL", address: str, post: Post, limits: "httpx2.Timeout") -> "httpx2.Request":
    """Return a request that goes to the address, but speaks to the name: in the Host header and in TLS."""
    import httpx2

    return httpx2.Request(
        "POST",
        url.copy_with(host=address, fragment=None),
        headers={**post.headers, "host": url.netloc.decode("ascii")},
        content=post.body,
        extensions={"sni_hostname": url.raw_host.decode("ascii"), "timeout": limits.as_dict()},
    )


async def _try(
    transport: "httpx2.AsyncHTTPTransport", requests: "Sequence[tuple[str, httpx2.Request]]"
) -> Failure | None:
    import httpx2

    failure = Failure("its name has no address")
    for address, request in requests:
        try:
            response = await transport.handle_async_request(request)
            await response.aclose()  # its body is never read
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            failure = Failure(f"cannot be reached at {address}: {_text(error)}")
        except httpx2.HTTPError as error:
            return Failure(f"the request failed: {_text(error)}")
        else:
            return _judge(response.status_code)
    return failure


def _judge(status: int) -> Failure | None:
    if 200 <= status < 300:
        return None
    return Failure(f"answered {status}" + ("; redirects are not followed" if 300 <= status < 400 else ""))


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
