"""Bad input on the real socket: each gets its documented answer and leaves no trace.
Rows are numbered as in the project's table of nasty inputs."""

import datetime
import gzip
import json
import socket
import subprocess
import unittest

from machine import BIN, Machine

GOOD = json.dumps({"op": "release", "key": "k"})
NOW = datetime.datetime.now(datetime.timezone.utc)


class BadInput(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.machine = Machine()
        cls.machine.start()

    @classmethod
    def tearDownClass(cls):
        # Whatever was sent above, nothing was accepted and nothing exists.
        _, _, listing = cls.machine.get("/v1/operations")
        mdevs = cls.machine.mdevs()
        cls.machine.close()
        assert listing["items"] == [], listing
        assert mdevs == [], mdevs

    def check(self, status, code, method="POST", path="/v1/hooks/ci", body=GOOD, **changes):
        """Sends a correctly signed request with `changes` to its headers (None drops one)."""
        raw = body if isinstance(body, bytes) else body.encode()
        headers = self.machine.signed_headers(raw.decode("latin-1") if isinstance(body, bytes) else body)
        if isinstance(body, bytes):
            headers["webhook-signature"] = self.sign_bytes(headers, raw)
        for name, value in changes.items():
            name = name.replace("_", "-")
            headers.pop(name, None)
            if value is not None:
                headers[name] = value
        got, answer_headers, answer = self.machine.request(method, path, body=raw, headers=headers)
        self.assertEqual(got, status, (path, changes, answer))
        if code is not None:
            self.assertEqual(answer.get("code"), code, answer)
            self.assertEqual(answer_headers["content-type"], "application/problem+json")
        return answer_headers, answer

    def sign_bytes(self, headers, raw):
        import base64
        import hashlib
        import hmac

        key = base64.b64decode(self.machine.webhook_secret.removeprefix("whsec_"))
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + raw
        return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()

    def test_unsigned_and_wrongly_signed(self):
        for signature in (None, "", "v1", "v1,", ",abc", "v2,AAAA", "v1,AAAA", "V1,AAAA", "v1 ," + "A" * 44, ("v1,AAAA " * 10_000)[:60_000]):
            with self.subTest(signature=str(signature)[:20]):
                got = self.machine.signed_headers(GOOD)
                got.pop("webhook-signature")
                if signature is not None:
                    got["webhook-signature"] = signature
                status, headers, answer = self.machine.request("POST", "/v1/hooks/ci", body=GOOD, headers=got)
                # Headers beyond the server's own bound never reach the check.
                self.assertIn(status, (401, 431), answer)
                if status == 401:
                    self.assertIn("www-authenticate", headers)

    def test_all_401_answers_are_alike(self):
        texts = set()
        for changes in ({"webhook_signature": None}, {"webhook_signature": "v1,AAAA"}, {"webhook_timestamp": "1"}):
            _, answer = self.check(401, None, **changes)
            texts.add((answer["title"], answer["detail"]))
        self.assertEqual(len(texts), 1, texts)

    def test_stale_and_malformed_timestamps(self):
        for seconds in (301, -301, 3600):
            at = NOW + datetime.timedelta(seconds=-seconds + (0 if seconds > 0 else 60))
            headers = self.machine.signed_headers(GOOD, at=at)
            status, _, answer = self.machine.request("POST", "/v1/hooks/ci", body=GOOD, headers=headers)
            self.assertEqual(status, 401, (seconds, answer))
        for text in ("abc", "", "1e10", "-1", "+1700000000", "01700000000", "1700000000.5", "1614265330000", "9" * 20):
            self.check(401, None, webhook_timestamp=text)

    def test_unknown_paths_and_methods(self):
        self.check(404, None, path="/v1/hooks/nobody")
        for path in ("/hooks/../admin", "/v1/hooks/ci/", "/v1//hooks/ci", "/v1/hooks/CI", "/V1/hooks/ci", "/v1/hooks/%2e%2e"):
            self.check(404, None, path=path)
        for method in ("GET", "PUT", "DELETE", "PATCH"):
            headers, _ = self.check(405, None, method=method)
            self.assertIn("POST", headers["allow"])

    def test_bodies_that_are_not_one_json_object(self):
        for body in ("[]", "null", '"x"', "1", '[{"op":"release","key":"k"}]', '{"op":"release","key":"a","key":"b"}',
                     '{"op":"release","key":"a",}', "{}{}", "{'op':1}", '\ufeff{"op":"release","key":"k"}', "{" * 200):
            with self.subTest(body=body[:30]):
                self.check(400, None, body=body)
        self.check(400, None, body=b'{"op":"release","key":"\xff"}')
        self.check(400, None, body=GOOD.encode("utf-16"))
        self.check(400, None, body="")

    def test_objects_that_are_no_operation(self):
        for body, pointer in (
            ('{"op":"format"}', None), ('{"op":"release"}', "/key"), ('{"op":"release","key":""}', None),
            ('{"op":"release","key":null}', None), ('{"op":"release","key":{}}', None), ('{"key":"k"}', None),
            ('{"op":"allocate","key":"k","profile":"T4-4Q","count":0}', "/count"),
            ('{"op":"allocate","key":"k","profile":"T4-4Q","count":1.0}', None),
            ('{"op":"allocate","key":"k","profile":"T4-4Q","extra":1}', None),
            ('{"op":"allocate","key":"k","profile":"T4-4Q","limits":[1]}', None),
            ('{"op":"allocate","key":"k","profile":"T4-4Q","limits":{"swap_mib":1}}', "/limits/swap_mib"),
            ('{"op":"allocate","key":"k\\u0000","profile":"T4-4Q"}', None),
            ('{"op":"allocate","key":"k","profile":"T4-3Q"}', None),
            ('{"op":"allocate","key":"k","profile":"T4-4Q","target":{"host":"gpu-1","gpu":"0000:c1:00.0/../x"}}', None),
        ):
            with self.subTest(body=body):
                _, answer = self.check(422, None, body=body)
                if pointer:
                    self.assertIn(pointer, [error["pointer"] for error in answer["errors"]])

    def test_carriers_that_are_not_taken(self):
        self.check(415, None, content_type=None)
        self.check(415, None, content_type="text/plain")
        self.check(415, None, content_type="application/json; charset=utf-16")
        self.check(415, None, content_type="multipart/form-data; boundary=x")
        self.check(415, None, body=gzip.compress(GOOD.encode()), content_encoding="gzip")

    def test_oversized_bodies(self):
        big = json.dumps({"op": "release", "key": "k", "x": "y" * 300_000})
        self.check(413, None, body=big)
        # Chunked, no length: counted while streaming.
        with socket.create_connection(("127.0.0.1", self.machine.port)) as connection:
            connection.sendall(b"POST /v1/hooks/ci HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
            chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
            try:
                for _ in range(8):
                    connection.sendall(chunk)
            except OSError:
                pass
            connection.settimeout(30)
            self.assertIn(b" 413 ", connection.recv(65536).split(b"\r\n")[0])

    def test_ids_that_are_refused(self):
        for message_id in ("a.5", "x" * 257, "with space"):
            headers = self.machine.signed_headers(GOOD, message_id=message_id)
            status, _, answer = self.machine.request("POST", "/v1/hooks/ci", body=GOOD, headers=headers)
            self.assertEqual(status, 400, (message_id, answer))

    def test_headers_sent_twice(self):
        headers = self.machine.signed_headers(GOOD)
        for name, expect in (("webhook-signature", 401), ("webhook-id", 400)):
            lines = [f"{key}: {value}" for key, value in headers.items()] + [f"{name}: {headers[name]}"]
            request = "POST /v1/hooks/ci HTTP/1.1\r\nHost: x\r\n" + "\r\n".join(lines)
            request += f"\r\nContent-Length: {len(GOOD)}\r\nConnection: close\r\n\r\n{GOOD}"
            with socket.create_connection(("127.0.0.1", self.machine.port)) as connection:
                connection.sendall(request.encode())
                status = connection.recv(65536).split(b"\r\n")[0]
            self.assertIn(f" {expect} ".encode(), status, name)

    def test_a_source_whose_role_may_nothing_is_forbidden(self):
        self.check(403, None, path="/v1/hooks/readonly")

    def test_no_secret_or_body_reaches_the_log(self):
        canary = "canary-7f3a9b"
        self.check(422, None, body=json.dumps({"op": "release", "key": "k", canary: canary}))
        self.check(401, None, body=json.dumps({"op": canary}), webhook_signature="v1," + canary)
        log = (self.machine.folder / "gpuhook.log").read_text(errors="replace")
        for secret in (canary, self.machine.webhook_secret, self.machine.webhook_secret[6:], self.machine.callback_secret[6:], self.machine.api_key, self.machine.token):
            self.assertNotIn(secret, log)


class BadConfiguration(unittest.TestCase):
    def up(self, machine):
        done = subprocess.run([BIN / "gpuhook", "up", "--data", machine.folder], capture_output=True, text=True, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        return done.stdout + done.stderr

    def test_all_faults_are_reported_at_once_with_file_and_line(self):
        with Machine() as machine:
            config = machine.folder / "gpuhook.toml"
            text = config.read_text().replace('preset = "api-key"', 'preset = "magic"').replace("[store]", "[stores]")
            config.write_text(text)
            line = 1 + text[: text.index("magic")].count("\n")
            said = self.up(machine)
            self.assertIn(f"gpuhook.toml:{line}", said)
            self.assertIn("magic", said)
            self.assertIn("stores", said)

    def test_foreign_newer_and_broken_files_stop_the_start(self):
        for name in ("backplane.db", "agent/ledger.db"):
            for kind in ("foreign", "newer", "garbage"):
                with self.subTest(file=name, kind=kind), Machine() as machine:
                    machine.start()
                    machine.stop()
                    path = machine.folder / name
                    self.spoil(path, kind)
                    before = path.read_bytes()
                    said = self.up(machine)
                    self.assertIn(path.name, said)
                    self.assertEqual(path.read_bytes(), before, "the file is left as it is")

    def test_a_missing_ledger_or_backplane_stops_the_start(self):
        for name in ("backplane.db", "agent/ledger.db"):
            with self.subTest(file=name), Machine() as machine:
                machine.start()
                machine.stop()
                for suffix in ("", "-wal", "-shm"):
                    (machine.folder / (name + suffix)).unlink(missing_ok=True)
                said = self.up(machine)
                self.assertIn(name.split("/")[-1], said)

    def spoil(self, path, kind):
        import sqlite3

        for extra in path.parent.glob(path.name + "-*"):
            extra.unlink()
        if kind == "garbage":
            path.write_bytes(b"not a database, and long enough to have a header " * 100)
            return
        with sqlite3.connect(path) as database:
            database.execute("PRAGMA journal_mode=DELETE")
            database.execute("PRAGMA application_id=7" if kind == "foreign" else "PRAGMA user_version=9999")
        database.close()


if __name__ == "__main__":
    unittest.main()
