"""A Hub that stalls, lies about sizes and contents, breaks off or answers nonsense, and the files that `host download` leaves."""

import contextlib
import hashlib
import http.server
import json
import threading
import time

from . import originals
from .settings import ROOT

TRIED = "a Hub on this machine that stalls, breaks off, answers more or less than it said, other contents, other statuses, nonsense, hostile names"
# Seconds of silence after which a download gives up, and the most seconds of a case.
SILENCE, LIMIT = 1, 40
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SIZE = 1 << 20

SINS = {
    "body": ("stalls", "trickles", "breaks", "more", "endless", "less", "other", "empty", "chunked", "chunks-without-end", "no-length"),
    "status": (206, 204, 301, 400, 401, 403, 404, 416, 429, 500, 503),
    "head": (206, 204, 301, 400, 401, 403, 404, 416, 429, 500, 503),
    "listing": ("stalls", "words", "deep", "endless", "list", "names-above", "names-absolute", "names-control", "sizes", "huge-sizes", "wrong-sha", "many"),
    "length": ("-1", "0", "9" * 30, "x", "1, 2"),
}  # fmt: skip


class Part:
    def __init__(self, bench):
        self.bench = bench
        assets = ROOT / "host/assets/tiny-arithmetic"
        self.files = {name: (assets / name).read_bytes() for name in originals.MODEL_FILES}
        # Larger than the buffers of a connection.
        self.files["model.safetensors"] = bytes(range(256)) * (SIZE // 256)

    def run(self, case):
        draw = case.rng
        sins = {name: draw.choice(SINS[name]) for name in draw.sample(list(SINS), draw.choice((1, 1, 1, 2, 3)))}
        case.kind = f"a Hub: {', '.join(f'{name} {sin}' for name, sin in sorted(sins.items()))}"
        sins |= {"name": draw.choice([*self.files, "", ""]), "times": draw.choice((1, 1, 2, 100)), "at": draw.randrange(SIZE)}
        first = self.fetch(case, sins)
        # A correct Hub, from which the download goes on after the first one.
        case.kind += ", then one in order"
        if first.code != 0 and self.fetch(case, {}).code != 0:
            case.find("a download cannot go on", case.log[-1])
        case.tally["fetched at once" if first.code == 0 else "refused first"] += 1

    def fetch(self, case, sins):
        with hub(self.files, sins) as address:
            # This process only runs cases of this part.
            self.bench.environment |= {"HF_ENDPOINT": address, "HF_HOME": "hf", "NO_PROXY": "127.0.0.1"}
            self.bench.environment |= {"HF_HUB_DOWNLOAD_TIMEOUT": str(SILENCE)}
            outcome = self.bench.start(["download", "org/model"], case.folder).outcome(LIMIT)
        case.judge(outcome)
        cache = case.folder / "hf/hub/models--org--model"
        if outcome.code == 0:
            for name, data in self.files.items():
                file = cache / "snapshots" / COMMIT / name
                if name.endswith(".safetensors") and (not file.exists() or file.read_bytes() != data):
                    case.find("other contents than the Hub's are taken", outcome)
        size = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file() and not file.is_symlink())
        if size > sum(map(len, self.files.values())) + 2 * SIZE:
            case.find("more is written than the Hub has", outcome)
        if {path.name for path in case.folder.iterdir()} - {"hf"}:
            case.find("something is written outside of the cache", outcome)
        return outcome


@contextlib.contextmanager
def hub(files, sins):
    """Serves a Hub and yields its address. Each connection has its own thread, which ends with the Hub."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.files, server.sins, server.left, server.over = files, sins, sins.get("times", 0), threading.Event()
    server.block_on_close, server.handle_error = False, lambda *_: None
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers one request, then closes the connection."""

    timeout = 5

    def log_message(self, *_):
        """Says nothing."""

    def send(self, head, body=b""):
        self.connection.sendall("\r\n".join(("HTTP/1.1 " + head[0], "Connection: close", *head[1:], "", "")).encode() + body)

    def endlessly(self, data):
        while not self.server.over.is_set():
            self.connection.sendall(data)

    def do_GET(self):
        name = self.path.rpartition("/")[2]
        if self.path.startswith("/api/"):
            return self.listing(self.server.files, self.server.sins.get("listing", "right"))
        hit = self.server.left > 0 and self.server.sins.get("name") in ("", name)
        self.server.left -= hit and self.command == "GET"
        offset = int((self.headers.get("Range") or "bytes=0-").split("=")[1].split("-")[0])
        return self.file(self.server.files.get(name), offset, self.server.sins if hit else {})

    do_HEAD = do_GET

    def listing(self, files, sin):
        """The Hub's description of the model."""
        siblings = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
        extra = {"names-above": "../../../../../escaped.json", "names-absolute": "/tmp/escaped-from-torture.json"}
        extra |= {"names-control": "a\nb\x1b[2J.json"}
        if sin in extra:
            siblings.append({"rfilename": extra[sin], "size": 2})
        if sin in ("sizes", "huge-sizes"):
            siblings = [one | {"size": -1 if sin == "sizes" else 2**62} for one in siblings]
        if sin == "many":
            siblings += [{"rfilename": f"{n}.json", "size": 2**40} for n in range(20_000)]
        model = {"id": "org/model", "sha": "../.." if sin == "wrong-sha" else COMMIT, "siblings": siblings}
        text = {"words": b"no json", "deep": b"[" * 200_000, "list": b"[]"}.get(sin, json.dumps(model).encode())
        if sin == "stalls":
            self.server.over.wait(20)
        self.send(("200 OK", f"Content-Length: {10**12 if sin == 'endless' else len(text)}"), text)
        if sin == "endless":
            self.endlessly(b" " * 65536)

    def file(self, data, offset, sins):
        """Sends a file, or what the sins make of it."""
        status = sins.get("head" if self.command == "HEAD" else "status", 200) if data is not None else 404
        data, kind = data or b"", sins.get("body", "whole")
        body, status = data[offset:], 206 if status == 200 and offset else status
        others = {"more": body + b"more" * 1000, "less": body[:-1], "other": bytes(reversed(body)), "empty": b""}
        body = others.get(kind, body)
        how = [f"Content-Length: {sins.get('length', len(body))}"]
        if "chunk" in kind:
            how = ["Transfer-Encoding: chunked"]
        if kind == "no-length":
            how = []
        etag = hashlib.sha256(data).hexdigest()
        self.send((f"{status} X", "Location: /", f'ETag: "{etag}"', f"X-Linked-Size: {len(data)}", *how))
        if self.command == "HEAD":
            return
        at = sins.get("at", 0) % max(1, len(body))
        if kind in ("stalls", "breaks"):
            self.connection.sendall(body[:at])
            self.server.over.wait(20 if kind == "stalls" else 0)
        elif kind == "trickles":
            for byte in body[:20]:
                self.connection.sendall(bytes([byte]))
                time.sleep(SILENCE / 10)
            self.connection.sendall(body[20:])
        elif "chunk" in kind:
            for start in range(0, len(body), 65536):
                piece = body[start : start + 65536]
                self.connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
            if kind == "chunks-without-end":
                self.endlessly(b"10000\r\n%s\r\n" % (b"x" * 65536))
            self.connection.sendall(b"0\r\n\r\n")
        else:
            self.connection.sendall(body)
            if kind == "endless":
                self.endlessly(b"x" * 65536)
