"""As much of the S3 protocol as object storage needs, over real HTTP: objects, multipart uploads, listings, bulk delete."""

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class Bucket:
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.unsigned = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 20

    def __init__(self, bucket: Bucket, *connection: Any) -> None:
        self.bucket = bucket
        super().__init__(*connection)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass

    def setup(self) -> None:
        super().setup()
        self.key, self.query, self.body = "", dict[str, list[str]](), b""

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        url = urlsplit(self.path)
        self.key = unquote(url.path).removeprefix("/bucket").lstrip("/")
        self.query = parse_qs(url.query, keep_blank_values=True)
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.bucket.unsigned += "AWS4-HMAC-SHA256" not in self.headers.get("Authorization", "")
        return True

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_PUT(self) -> None:
        if "partNumber" in self.query:
            self.bucket.parts[self.query["uploadId"][0]][int(self.query["partNumber"][0])] = self.body
        else:
            self.bucket.objects[self.key] = self.body
        self.answer(200, ETag=_tag(self.body))

    def do_GET(self) -> None:
        if "list-type" in self.query:
            self.answer(200, _listing(self.bucket, self.query.get("prefix", [""])[0]))
        elif (data := self.bucket.objects.get(self.key)) is None:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self.answer(200, data, ETag=_tag(data), Last_Modified=formatdate(usegmt=True))

    def do_HEAD(self) -> None:
        data = self.bucket.objects.get(self.key)
        if data is None:
            self.answer(404)
            return
        self.send_response(200)
        for name, value in (("ETag", _tag(data)), ("Last-Modified", formatdate(usegmt=True))):
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()

    def do_DELETE(self) -> None:
        self.bucket.objects.pop(self.key, None)
        self.answer(204)

    def do_POST(self) -> None:
        if "uploads" in self.query:
            self.bucket.parts["u1"] = {}
            self.answer(
                200,
                b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>",
            )
        elif "uploadId" in self.query:
            parts = self.bucket.parts.pop(self.query["uploadId"][0])
            self.bucket.objects[self.key] = b"".join(parts[number] for number in sorted(parts))
            tag = _tag(self.bucket.objects[self.key])
            self.answer(
                200,
                f"<CompleteMultipartUploadResult><ETag>{tag}</ETag></CompleteMultipartUploadResult>".encode(),
            )
        else:
            gone = [unquote(key) for key in re.findall(r"<Key>(.*?)</Key>", self.body.decode())]
            for key in gone:
                self.bucket.objects.pop(key, None)
            rows = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in gone)
            self.answer(200, f"<DeleteResult>{rows}</DeleteResult>".encode())


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _listing(bucket: Bucket, prefix: str) -> bytes:
    rows = "".join(
        f"<Contents><Key>{key}</Key><Size>{len(data)}</Size>"
        f"<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
        for key, data in sorted(bucket.objects.items())
        if key.startswith(prefix)
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode()


@contextmanager
def serving() -> Iterator[tuple[str, Bucket]]:
    """Address of the server, and what it holds."""
    bucket = Bucket()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, bucket))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", bucket
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
