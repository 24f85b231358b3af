"""Hub double: what fetching and publishing a dataset take of the Hugging Face Hub's API, over real HTTP."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubDouble(ThreadingHTTPServer):
    """Its datasets: for each name the files of the only branch."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.made: list[dict[str, Any]] = []
        self.commits: list[dict[str, Any]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubDouble

    def do_GET(self) -> None:
        self._answered()

    do_HEAD = do_POST = do_GET

    def _answered(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if parts[:3] == ["api", "repos", "create"]:
            about = json.loads(body)
            self.server.made.append(about)
            name = "/".join(filter(None, (about.get("organization"), about["name"])))
            self.server.repositories.setdefault(name, {})
            self._send(200, {"url": f"{self.server.address}/datasets/{name}", "id": name})
        elif parts == ["api", "validate-yaml"]:
            self._send(200, {"errors": [], "warnings": []})
        elif parts[0] == "datasets" and parts[3:4] == ["resolve"]:
            self._file(self.server.repositories.get("/".join(parts[1:3]), {}), "/".join(parts[5:]))
        elif parts[:2] == ["api", "datasets"]:
            name = "/".join(parts[2:4])
            files = self.server.repositories.get(name)
            if files is None:
                self._send(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            else:
                self._dataset(name, files, parts[4:], body)
        else:
            self._send(404, {"error": f"the double knows no {self.path}"})

    def _dataset(self, name: str, files: dict[str, bytes], parts: list[str], body: bytes) -> None:
        if parts[:1] == ["preupload"]:
            wanted = json.loads(body)["files"]
            answer = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in wanted]
            self._send(200, {"files": answer})
        elif parts[:1] == ["commit"]:
            for line in body.split(b"\n"):
                operation = json.loads(line) if line else {"key": None}
                if operation["key"] == "header":
                    self.server.commits.append(operation["value"])
                elif operation["key"] == "file":
                    files[operation["value"]["path"]] = base64.b64decode(operation["value"]["content"])
            address = f"{self.server.address}/datasets/{name}/commit/{COMMIT}"
            self._send(200, {"success": True, "commitOid": COMMIT, "commitUrl": address})
        elif parts[:1] == ["tree"]:
            listed = [
                {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for path, content in sorted(files.items())
            ]
            self._send(200, listed)
        elif parts[:2] == ["revision", "nowhere"]:
            self._send(404, {"error": "Invalid rev id: nowhere"}, {"X-Error-Code": "RevisionNotFound"})
        else:
            siblings = [{"rfilename": path} for path in sorted(files)]
            self._send(200, {"id": name, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False})

    def _file(self, files: dict[str, bytes], path: str) -> None:
        if path not in files:
            self._send(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
            return
        content = files[path]
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        self._send(200, content, headers)

    def _send(self, status: int, answer: Any, headers: dict[str, str] | None = None) -> None:
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        told = {"Content-Type": "application/json", "Content-Length": str(len(content)), **(headers or {})}
        for name, value in told.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def hub_double() -> Iterator[HubDouble]:
    with HubDouble() as hub:
        thread = Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
