"""The requests that a server gets, all of them at once, and what it makes of each.

Only the standard library is used: the reference is computed in the release's own environment.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import random
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SEED = 24
VOCABULARY = 256
"""Of the tiny models."""
TOKENS = (8, 20)
"""Fewest and most that are asked for by who stays."""
ENDLESS = 64
"""Tokens that are asked for by who leaves at the first."""
PATIENCE = 120.0
"""Seconds that a client waits for the next bytes of an answer."""


@dataclasses.dataclass(frozen=True)
class Request:
    """One request for a greedy completion.

    joins: the request that it waits for: it is sent when that one has its first token.
    leaves: the client closes the connection, at the first token where the answer is streamed, else
    as soon as the request is sent.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    streamed: bool
    joins: int | None
    leaves: bool

    @property
    def awaited(self) -> int:
        """How many tokens the client stays for, if it stays at all."""
        return 1 if self.leaves else self.max_tokens


def mix() -> list[Request]:
    """Sixteen requests, the same ones each time; each but the first joins one that is streamed."""
    random_ = random.Random(SEED)
    requests = []
    for index in range(16):
        streamed = index % 2 == 0
        leaves = index in (4, 7, 10)
        requests.append(
            Request(
                tuple(random_.randrange(VOCABULARY) for _ in range(random_.randint(1, 60))),
                ENDLESS if leaves else random_.randint(*TOKENS),
                streamed,
                (index - 1) // 2 * 2 if index else None,
                leaves,
            )
        )
    return requests


@dataclasses.dataclass
class Answer:
    """status: of HTTP, 0 when the connection broke. error: what the server said instead."""

    status: int = 0
    token_ids: list[int] = dataclasses.field(default_factory=list)
    error: str = ""


class _Connection(http.client.HTTPConnection):
    """To a server that listens on a socket in the file system: no port has to be free for it."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def get(server: Path, url: str) -> tuple[int, str]:
    """Status and body of a GET."""
    connection = _Connection(server)
    connection.request("GET", url)
    response = connection.getresponse()
    return response.status, response.read().decode()


def send(server: Path, model: Path, requests: Sequence[Request]) -> list[Answer]:
    """Send all requests, each from a client of its own, and wait for all answers."""
    begun = [threading.Event() for _ in requests]

    def client(index: int) -> Answer:
        request, answer = requests[index], Answer()
        if request.joins is not None:
            begun[request.joins].wait()
        try:
            for token_ids in _complete(server, model, request, answer):
                answer.token_ids += token_ids
                begun[index].set()
        except (OSError, http.client.HTTPException) as error:
            answer.status, answer.error = 0, repr(error)
        finally:
            begun[index].set()
        return answer

    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(client, range(len(requests))))


def _complete(
    server: Path, model: Path, request: Request, answer: Answer
) -> Iterator[Sequence[int]]:
    """The tokens of one completion, as they come."""
    connection = _Connection(server)
    try:
        body = {
            "model": str(model),
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": request.streamed,
            "return_token_ids": True,
        }
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        if request.leaves and not request.streamed:
            return
        response = connection.getresponse()
        answer.status = response.status
        for part in _events(response) if request.streamed else [response.read()]:
            said = json.loads(part)
            if "error" in said:
                answer.error = said["error"]["message"]
                return
            yield said["choices"][0]["token_ids"]
            if request.leaves:
                return
    finally:
        connection.close()


def _events(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """The data of each server-sent event; one body that is an error is given as it is."""
    if response.status != http.client.OK:
        yield response.read()
        return
    for line in response:
        data = line.removeprefix(b"data: ").strip()
        if data and data != b"[DONE]":
            yield data
