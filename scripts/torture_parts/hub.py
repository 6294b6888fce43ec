"""A Hub that stalls, lies about sizes and contents, breaks off, or answers nonsense, and what `host download` leaves in the cache."""

import contextlib
import hashlib
import json
import socket
import threading
import time

from . import originals
from .settings import ROOT

TRIED = "a Hub on this machine that stalls, breaks off, answers more or less than it said, other contents, other statuses, nonsense, hostile names"
# Seconds of silence that a download bears here; and the most that a case may take.
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
        # Larger than what a connection holds by itself.
        self.files["model.safetensors"] = bytes(range(256)) * (SIZE // 256)

    def run(self, case):
        draw = case.rng
        sins = {name: draw.choice(SINS[name]) for name in draw.sample(list(SINS), draw.choice((1, 1, 1, 2, 3)))}
        case.kind = f"a Hub: {', '.join(f'{name} {sin}' for name, sin in sorted(sins.items()))}"
        sins |= {"name": draw.choice([*self.files, "", ""]), "times": draw.choice((1, 1, 2, 100)), "at": draw.randrange(SIZE)}
        first = self.fetch(case, sins)
        # A Hub in order: it goes on from whatever the first one left.
        case.kind += ", then one in order"
        if first.code != 0 and self.fetch(case, {}).code != 0:
            case.find("a download cannot go on", case.log[-1])
        case.tally["fetched at once" if first.code == 0 else "refused first"] += 1

    def fetch(self, case, sins):
        with hub(self.files, sins) as address:
            # This process runs cases of this part alone.
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
    """A Hub's address. Every connection is answered by a thread of its own, which ends with the Hub."""
    listener = socket.create_server(("127.0.0.1", 0))
    left, over = [sins.get("times", 0)], threading.Event()

    def serve():
        while not over.is_set():
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=converse, args=(connection, files, sins, left, over), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def converse(connection, files, sins, left, over):
    """One request, one answer, the end of the connection."""
    connection.settimeout(5)
    with connection, contextlib.suppress(OSError, ValueError, IndexError):
        request = b""
        while b"\r\n\r\n" not in request:
            part = connection.recv(65536)
            if not part:
                return
            request += part
        words = request.decode().split("\r\n")
        method, path = words[0].split(" ")[:2]
        offset = next((int(line.split("=")[1].split("-")[0]) for line in words if line.lower().startswith("range:")), 0)
        if path.startswith("/api/"):
            listing(connection, files, sins.get("listing", "right"), over)
            return
        name = path.rpartition("/")[2]
        hit = left[0] > 0 and sins.get("name") in ("", name)
        left[0] -= hit and method == "GET"
        answer(connection, method, files.get(name), offset, sins if hit else {}, over)


def listing(connection, files, sin, over):
    """What the Hub says of the model."""
    siblings = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
    extra = {
        "names-above": "../../../../../escaped.json",
        "names-absolute": "/tmp/escaped-from-torture.json",
        "names-control": "a\nb\x1b[2J.json",
    }
    if sin in extra:
        siblings.append({"rfilename": extra[sin], "size": 2})
    if sin in ("sizes", "huge-sizes"):
        siblings = [one | {"size": -1 if sin == "sizes" else 2**62} for one in siblings]
    if sin == "many":
        siblings += [{"rfilename": f"{n}.json", "size": 2**40} for n in range(20_000)]
    text = json.dumps({"id": "org/model", "sha": "../.." if sin == "wrong-sha" else COMMIT, "siblings": siblings}).encode()
    text = {"words": b"no json", "deep": b"[" * 200_000, "list": b"[]"}.get(sin, text)
    if sin == "stalls":
        over.wait(20)
    head = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {10**12 if sin == 'endless' else len(text)}\r\n\r\n"
    connection.sendall(head.encode() + text)
    while sin == "endless" and not over.is_set():
        connection.sendall(b" " * 65536)


def answer(connection, method, data, offset, sins, over):
    """A file, or what the sins make of it."""
    found = data is not None
    status = sins.get("head" if method == "HEAD" else "status", 200) if found else 404
    data = data or b""
    etag = hashlib.sha256(data).hexdigest()
    body = data[offset:]
    if status == 200 and offset:
        status = 206
    kind = sins.get("body", "whole")
    if kind in ("more", "less", "other", "empty"):
        body = {"more": body + b"more" * 1000, "less": body[:-1], "other": bytes(reversed(body)), "empty": b""}[kind]
    length = {"right": len(body)}.get(sins.get("length", "right"), sins.get("length"))
    chunked = "chunk" in kind
    how = "Transfer-Encoding: chunked" if chunked else "" if kind == "no-length" else f"Content-Length: {length}"
    head = f"HTTP/1.1 {status} X\r\nConnection: close\r\nLocation: /\r\nETag: \"{etag}\"\r\nX-Linked-Size: {len(data)}\r\n{how}\r\n\r\n"
    connection.sendall(head.replace("\r\n\r\n\r\n", "\r\n\r\n").encode())
    if method == "HEAD":
        return
    at = sins.get("at", 0) % max(1, len(body))
    if kind == "stalls":
        connection.sendall(body[:at])
        over.wait(20)
    elif kind == "trickles":
        for byte in body[:20]:
            connection.sendall(bytes([byte]))
            time.sleep(SILENCE / 10)
        connection.sendall(body[20:])
    elif kind == "breaks":
        connection.sendall(body[:at])
    elif chunked:
        for start in range(0, len(body), 65536):
            piece = body[start : start + 65536]
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        while kind == "chunks-without-end" and not over.is_set():
            connection.sendall(b"10000\r\n%s\r\n" % (b"x" * 65536))
        connection.sendall(b"0\r\n\r\n")
    else:
        connection.sendall(body)
        while kind == "endless" and not over.is_set():
            connection.sendall(b"x" * 65536)
