"""A small server on the loopback that speaks OpenAI's streaming protocols: Responses and Chat Completions.

It answers a request that offers tools with one tool call, the result of a tool with a sentence that repeats
it, and anything else with a greeting. Requests are kept for tests to look at.
"""

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "test-key"
ARGUMENTS = '{"city": "Berlin"}'
ENCRYPTED = "encrypted-reasoning"
Event = dict[str, Any]


class OpenAIServer(ThreadingHTTPServer):
    """The server.

    Attributes:
        requests: Path and body of every request.
        connections: How many connections were opened.
        fail_next: HTTP status to refuse the next request with.
        break_next: True to cut the connection in the middle of the next answer.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.connections = 0
        self.fail_next: int | None = None
        self.break_next = False
        self.numbers = itertools.count(1)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Count a new connection, and serve it."""
        self.connections += 1
        super().process_request(request, client_address)

    @property
    def base_url(self) -> str:
        """What OPENAI_BASE_URL should be."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


@contextmanager
def openai_server() -> Iterator[OpenAIServer]:
    """Serve until the block ends."""
    server = OpenAIServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: OpenAIServer
    protocol_version = "HTTP/1.1"  # with chunks, so that a client can tell a cut from an end

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, body))
        if self.headers.get("Authorization") != f"Bearer {KEY}":
            return self._refuse(401, "Incorrect API key provided.")
        if self.server.fail_next is not None:
            status, self.server.fail_next = self.server.fail_next, None
            return self._refuse(status, "The server had an error.")
        number = next(self.server.numbers)
        events = _responses(body, number) if self.path == "/v1/responses" else _chat(body, number)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._send(events)

    def _send(self, events: Iterator[Event]) -> None:
        for count, event in enumerate(events):
            if self.server.break_next and count == 6:
                self.server.break_next = False
                self.close_connection = True
                return
            name = f"event: {event['type']}\n" if "type" in event else ""
            self._chunk(f"{name}data: {json.dumps(event)}\n\n")
        if self.path != "/v1/responses":
            self._chunk("data: [DONE]\n\n")
        self._chunk("")

    def _chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _refuse(self, status: int, message: str) -> None:
        data = json.dumps(
            {"error": {"message": message, "type": "test", "code": None, "param": None}}
        ).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _words(text: str) -> list[str]:
    return [word + " " for word in text.split(" ")[:-1]] + text.split(" ")[-1:]


def _responses(body: dict[str, Any], number: int) -> Iterator[Event]:
    """Yield the events of one response, numbered as OpenAI numbers them."""
    sequence = itertools.count()
    for event in _response_events(body, number):
        yield {**event, "sequence_number": next(sequence)}


def _response_events(body: dict[str, Any], number: int) -> Iterator[Event]:
    results = [item["output"] for item in body["input"] if item.get("type") == "function_call_output"]
    response = {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1_750_000_000,
        "model": body["model"],
        "status": "in_progress",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    yield {"type": "response.created", "response": response}
    items: list[dict[str, Any]] = []
    if body.get("tools") and not results:
        yield from _reasoning(items, number)
        yield from _function_call(items, number)
    else:
        text = f"It is {results[-1]} there." if results else "Hello from the server."
        yield from _message(items, number, text)
    usage = {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 3},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 18,
    }
    yield {
        "type": "response.completed",
        "response": {**response, "status": "completed", "output": items, "usage": usage},
    }


def _reasoning(items: list[dict[str, Any]], number: int) -> Iterator[Event]:
    place = {"item_id": f"rs_{number}", "output_index": 0}
    item = {"id": f"rs_{number}", "type": "reasoning", "summary": []}
    part = {"type": "summary_text", "text": "Look it up."}
    yield {"type": "response.output_item.added", "output_index": 0, "item": item}
    yield {
        "type": "response.reasoning_summary_part.added",
        **place,
        "summary_index": 0,
        "part": {**part, "text": ""},
    }
    for word in _words(part["text"]):
        yield {"type": "response.reasoning_summary_text.delta", **place, "summary_index": 0, "delta": word}
    yield {
        "type": "response.reasoning_summary_text.done",
        **place,
        "summary_index": 0,
        "text": part["text"],
    }
    yield {"type": "response.reasoning_summary_part.done", **place, "summary_index": 0, "part": part}
    items.append({**item, "summary": [part], "encrypted_content": ENCRYPTED})
    yield {"type": "response.output_item.done", "output_index": 0, "item": items[-1]}


def _function_call(items: list[dict[str, Any]], number: int) -> Iterator[Event]:
    place = {"item_id": f"fc_{number}", "output_index": 1}
    item = {
        "id": f"fc_{number}",
        "type": "function_call",
        "call_id": f"call_{number}",
        "name": "weather",
        "arguments": "",
        "status": "in_progress",
    }
    yield {"type": "response.output_item.added", "output_index": 1, "item": item}
    for piece in (ARGUMENTS[:7], ARGUMENTS[7:]):
        yield {"type": "response.function_call_arguments.delta", **place, "delta": piece}
    yield {
        "type": "response.function_call_arguments.done",
        **place,
        "arguments": ARGUMENTS,
        "name": "weather",
    }
    items.append({**item, "arguments": ARGUMENTS, "status": "completed"})
    yield {"type": "response.output_item.done", "output_index": 1, "item": items[-1]}


def _message(items: list[dict[str, Any]], number: int, text: str) -> Iterator[Event]:
    place = {"item_id": f"msg_{number}", "output_index": 0, "content_index": 0}
    item = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "status": "in_progress",
        "content": [],
    }
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    yield {"type": "response.output_item.added", "output_index": 0, "item": item}
    yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
    for word in _words(text):
        yield {"type": "response.output_text.delta", **place, "delta": word, "logprobs": []}
    yield {"type": "response.output_text.done", **place, "text": text, "logprobs": []}
    yield {"type": "response.content_part.done", **place, "part": part}
    items.append({**item, "status": "completed", "content": [part]})
    yield {"type": "response.output_item.done", "output_index": 0, "item": items[-1]}


def _chat(body: dict[str, Any], number: int) -> Iterator[Event]:
    """Yield the chunks of one chat completion."""
    results = [message["content"] for message in body["messages"] if message["role"] == "tool"]

    def chunk(delta: dict[str, Any], finish: str | None = None) -> Event:
        return {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion.chunk",
            "created": 1_750_000_000,
            "model": body["model"],
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }

    yield chunk({"role": "assistant", "content": ""})
    if body.get("tools") and not results:
        call = {"index": 0, "id": f"call_{number}", "type": "function"}
        yield chunk({"tool_calls": [{**call, "function": {"name": "weather", "arguments": ""}}]})
        for piece in (ARGUMENTS[:7], ARGUMENTS[7:]):
            yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
        yield chunk({}, "tool_calls")
    else:
        text = f"It is {results[-1]} there." if results else "Hello from the server."
        for word in _words(text):
            yield chunk({"content": word})
        yield chunk({}, "stop")
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    yield {**chunk({}), "choices": [], "usage": usage}
