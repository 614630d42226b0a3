"""Which receivers a webhook may reach, and that it reaches exactly those: names, addresses, certificates."""

import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import agents  # noqa: F401  (registers the classes)
from tests.engine.receiver import Receiver, receiving
from think_celery import AgentHandle
from think_celery.core.address import Address
from think_celery.engine import posting
from think_celery.engine.posting import Failure, Post
from think_celery.engine.runtime import Runtime
from think_celery.errors import InvalidInput


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as server:
        yield server


def answering(answers: list[list[str]]) -> Callable[..., list[Any]]:
    """Return a resolver that gives these addresses, one list per call, and fails after the last."""

    def resolve(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        if not answers:
            raise socket.gaierror("asked once too often")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (found, port)) for found in answers.pop(0)]

    return resolve


def sent(runtime: Runtime, url: str, *, allow_private: bool = True) -> Failure | None:
    post = Post(url, b"{}", {})
    pool = runtime.deliveries.pool
    return runtime.loop.run(posting.send(post, seconds=5.0, allow_private=allow_private, pool=pool))


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "localhost", "LOCALHOST", "2130706433", "0x7f.1", "0.0.0.0", "[::1]",
        "[::ffff:127.0.0.1]", "10.0.0.1", "169.254.169.254", "224.0.0.1", "[fe80::1]", "[64:ff9b::7f00:1]",
    ],
)  # fmt: skip
def test_private_addresses_are_refused_for_good(runtime: Runtime, receiver: Receiver, host: str) -> None:
    failure = sent(runtime, receiver.url("/", host), allow_private=False)
    assert failure is not None
    assert failure.final
    assert "is not public and therefore refused" in failure.error
    assert receiver.requests == []


def test_one_private_address_among_others_is_enough(
    runtime: Runtime, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", answering([["93.184.215.14", "127.0.0.1"]]))
    failure = sent(runtime, receiver.url("/", "shop.test"), allow_private=False)
    assert failure == Failure("the address 127.0.0.1 is not public and therefore refused", final=True)


def test_a_name_is_asked_once_and_the_answer_is_where_it_connects(
    runtime: Runtime, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = receiver.url("/", "shop.test")
    monkeypatch.setattr(socket, "getaddrinfo", answering([["127.0.0.1"], ["93.184.215.14", "127.0.0.1"]]))
    assert sent(runtime, url) is None
    assert receiver.only.headers["host"] == f"shop.test:{receiver.port}"
    refused = sent(runtime, url, allow_private=False)
    assert refused == Failure("the address 127.0.0.1 is not public and therefore refused", final=True)
    failed = sent(runtime, url)
    assert failed == Failure("its name cannot be resolved: asked once too often")
    assert len(receiver.requests) == 1


def test_redirects_are_not_followed_and_bodies_not_read(runtime: Runtime, receiver: Receiver) -> None:
    moved = sent(runtime, receiver.url("/moved"))
    assert moved == Failure("answered 302; redirects are not followed")
    assert receiver.only.path == "/moved"
    assert sent(runtime, receiver.url("/endless")) is None


def test_the_next_address_is_tried(
    runtime: Runtime, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", answering([["127.0.0.2", "127.0.0.1"]]))
    assert sent(runtime, receiver.url("/", "shop.test")) is None


def test_the_certificate_must_be_the_name_s(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = f"{openssl} req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=shop.test"
    extension = ["-addext", "subjectAltName=DNS:shop.test", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *extension], check=True, capture_output=True, timeout=60)
    asked: list[str | None] = []
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    tls.sni_callback = lambda _, name, __: asked.append(name)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    posting.load.cache_clear()
    try:
        with receiving(tls) as server:
            monkeypatch.setattr(socket, "getaddrinfo", answering([["127.0.0.1"], ["127.0.0.1"]]))
            assert sent(runtime, server.url("/", "shop.test")) is None
            other = sent(runtime, server.url("/", "other.test"))
    finally:
        posting.load.cache_clear()
    assert asked == ["shop.test", "other.test"]
    assert other is not None
    assert "certificate" in other.error
    assert not other.final


@pytest.mark.parametrize(
    "url",
    [
        "shop.example/end", "ftp://shop.example/", "http://", "https:///end", "javascript:alert(1)", "",
        "http://shop.example:0/", "http://shop.example:99999/", "http://[::1/", "http://user:pw@shop.example/",
        "http://shop example/", "http://shop.example/a b", "http://shop..example/",
        "http://" + "a" * 64 + ".com/", "http://shop.example/\n", "http://shop.example/\x00", 7, ["http://shop.example/"],
    ],
)  # fmt: skip
def test_bad_addresses_are_refused_before_anything_is_written(
    runtime: Runtime, agent: Address, url: Any
) -> None:
    handle = AgentHandle(agent.type_name, agent.name, runtime=runtime)
    with pytest.raises(InvalidInput, match="webhook_url"):
        handle.submit_messages("hi", webhook_url=url)
    assert handle.list_submissions() == []
