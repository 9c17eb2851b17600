"""A W&B server for tests, on this machine: takes what W&B's own process sends, and keeps it by run."""

import gzip
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "0123456789" * 4


class StandIn(ThreadingHTTPServer):
    """What was sent: history[run] as rows, upserts[run] as the variables of a run, uploads by name, artifacts."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.history, self.summaries, self.upserts, self.uploads, self.artifacts = {}, {}, {}, {}, []

    def answer(self, query, given):
        """Of a GraphQL query; what is not known here is answered as by a server that does not have it."""
        if "viewer" in query[:200]:
            return {"viewer": {"id": "1", "username": "me", "entity": "me", "flags": "{}", "teams": {"edges": []}}}
        if "RunResumeStatus" in query:
            return {"model": self._resume(given["name"])}
        if "UpsertBucket" in query:
            kept = self.upserts.setdefault(given.get("name"), {})
            kept.update({key: value for key, value in given.items() if value is not None})
            project = {"id": "p", "name": given.get("project"), "entity": {"id": "e", "name": "me"}}
            about = {"id": "run", "name": given.get("name"), "displayName": given.get("displayName"), "config": "{}"}
            return {"upsertBucket": {"bucket": {**about, "project": project, "historyLineCount": 0}, "inserted": True}}
        if "CreateRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.address}/up/{name}"} for name in given["files"]]
            return {"createRunFiles": {"runID": "run", "uploadHeaders": [], "files": files}}
        if "CreateArtifact" in query:
            self.artifacts.append(given["input"])
            made = {"id": f"a{len(self.artifacts)}", "state": "COMMITTED"}
            return {"createArtifact": {"artifact": {**made, "artifactSequence": {"id": "s", "latestArtifact": None}}}}
        return {"project": None}

    def _resume(self, name):
        rows = self.history.get(name)
        if rows is None:
            return None
        kept = {"historyLineCount": len(rows), "eventsLineCount": 0, "logLineCount": 0}
        tails = {"historyTail": json.dumps([json.dumps(rows[-1])]), "eventsTail": "[]", "wandbConfig": '{"t": 1}'}
        about = {"id": "run", "name": name, "summaryMetrics": "{}", "displayName": name, "config": "{}", "tags": []}
        return {
            "id": "p",
            "name": "dpfedmeta",
            "entity": {"id": "e", "name": "me"},
            "bucket": {**kept, **tails, **about},
        }


class _Handler(BaseHTTPRequestHandler):
    server: StandIn

    def log_message(self, *words):
        pass

    def _body(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _reply(self, content):
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self._reply({})

    def do_PUT(self):
        self.server.uploads[self.path.removeprefix("/up/")] = self._body()
        self._reply({})

    def do_POST(self):
        body = self._body()
        if self.path == "/graphql":
            asked = json.loads(body)
            self._reply({"data": self.server.answer(asked["query"], asked.get("variables") or {})})
            return
        if self.path.endswith("/file_stream"):
            name = self.path.split("/")[-2]
            files = json.loads(body).get("files") or {}
            if "wandb-history.jsonl" in files:
                part, rows = files["wandb-history.jsonl"], self.server.history.setdefault(name, [])
                rows[part["offset"] :] = [json.loads(line) for line in part["content"]]
            for line in files.get("wandb-summary.json", {}).get("content", []):
                self.server.summaries[name] = json.loads(line)
        self._reply({})


@contextmanager
def stand_in():
    """One that serves until the end."""
    server = StandIn()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
