"""A stand-in for SQS that misbehaves on demand: answers, stays silent, cuts off, throttles, refuses
credentials, tells another time. It speaks just enough of the JSON protocol for an agent to poll it."""

import datetime
import email.utils
import http.server
import json
import re
import threading

from machine import free_port


class QueueStub:
    """`behave` decides about each request; what came is in `seen`."""

    def __init__(self):
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.behave = lambda request: "empty"
        self.seen = []
        self.skew_s = 0
        self.silence = threading.Event()
        stub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                request = {
                    "target": self.headers.get("x-amz-target", ""),
                    "token": self.headers.get("x-amz-security-token"),
                    "key": re.search(r"Credential=([^/]+)/", self.headers.get("authorization", "Credential=-/")).group(1),
                    "body": json.loads(body or b"{}"),
                }
                stub.seen.append(request)
                getattr(self, stub.behave(request))()

            def answer(self, status, text, length=None):
                self.send_response_only(status)
                now = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=stub.skew_s)
                self.send_header("date", email.utils.format_datetime(now, usegmt=True))
                self.send_header("content-type", "application/x-amz-json-1.0")
                self.send_header("content-length", str(len(text) if length is None else length))
                self.end_headers()
                self.wfile.write(text.encode())

            def error(self, status, code):
                self.answer(status, json.dumps({"__type": f"com.amazonaws.sqs#{code}", "message": "as the test wants it"}))

            def empty(self):
                self.answer(200, "{}")

            def expired(self):
                self.error(403, "ExpiredToken")

            def misdated(self):
                self.error(403, "InvalidSignatureException")

            def throttled(self):
                self.error(400, "ThrottlingException")

            def broken(self):
                self.error(500, "InternalError")

            def denied(self):
                self.error(403, "AccessDeniedException")

            def silent(self):
                stub.silence.wait(60)
                self.close_connection = True

            def half(self):
                self.answer(200, '{"Mess', length=1000)
                stub.silence.wait(60)
                self.close_connection = True

            def cut(self):
                self.close_connection = True

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.silence.set()
        self.server.shutdown()
        self.server.server_close()
