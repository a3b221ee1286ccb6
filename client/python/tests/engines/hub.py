"""A model hub with one repository, ``org/tiny``, on this machine: the requests that huggingface_hub makes to find and load a model's files."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

REPOSITORY = "org/tiny"
#: Listed in every commit, and fetched by no engine, like the second copy of the weights in some repositories.
UNUSED = "original/consolidated.00.pth"


class Hub:
    """The repository's commits, and the environment of an engine that loads from it. Each hub has a cache of its own."""

    def __init__(self, folder: Path, port: int) -> None:
        self.commits = folder / "commits"
        self.main = ""
        #: Method, path and status of each request.
        self.asked: list[str] = []
        self.env = {
            "HF_HOME": str(folder / "home"),
            "HF_ENDPOINT": f"http://127.0.0.1:{port}",
            "HF_HUB_OFFLINE": "0",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    def push(self, model: Path, commit: str) -> None:
        """The folder's files become the last commit of ``main``."""
        place = self.commits / commit
        shutil.copytree(model, place)
        (place / UNUSED).parent.mkdir()
        (place / UNUSED).write_bytes(commit.encode())
        self.main = commit

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content."""
        kind, revision, name = "info", "main", ""
        match [unquote(each) for each in urlsplit(path).path.strip("/").split("/")]:
            case ["api", "models", owner, own]:
                pass
            case ["api", "models", owner, own, "revision", revision]:
                pass
            case ["api", "models", owner, own, "tree", revision, *inner]:
                kind, name = "tree", "/".join(inner)
            case [owner, own, "resolve", revision, *inner]:
                kind, name = "file", "/".join(inner)
            case _:
                return self._refusal("RepoNotFound")
        if f"{owner}/{own}" != REPOSITORY:
            return self._refusal("RepoNotFound")
        commit = self.main if revision == "main" else revision
        place, headers = self.commits / commit, {"X-Repo-Commit": commit}
        if not place.is_dir():
            return self._refusal("RevisionNotFound")
        if kind == "info":
            return 200, headers, self._json({"id": REPOSITORY, "sha": commit, "siblings": self._files(place)})
        if kind == "tree" and not name:
            return 200, headers, self._json(self._files(place))
        if kind == "file" and (place / name).is_file():
            content = (place / name).read_bytes()
            return 200, headers | {"ETag": f'"{hashlib.sha256(content).hexdigest()}"'}, content
        return self._refusal("EntryNotFound", headers)

    @staticmethod
    def _files(place: Path) -> list[dict[str, Any]]:
        files = {str(each.relative_to(place)): each.read_bytes() for each in sorted(place.rglob("*")) if each.is_file()}
        return [
            {
                "type": "file",
                "path": name,
                "rfilename": name,
                "size": len(content),
                "oid": hashlib.sha1(content).hexdigest(),
            }
            for name, content in files.items()
        ]

    @staticmethod
    def _json(value: Any) -> bytes:
        return json.dumps(value).encode()

    @staticmethod
    def _refusal(code: str, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], bytes]:
        return 404, (headers or {}) | {"X-Error-Code": code, "X-Error-Message": code}, b""


@contextmanager
def running(folder: Path) -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, headers, content = hub.answer(self.path)
            hub.asked.append(f"{self.command} {self.path} {status}")
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(content))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub = Hub(folder, server.server_port)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
