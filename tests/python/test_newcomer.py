"""The newcomer's first minutes: `gpuhook up --simulate`, `send`, `verify`, `key`, `token`."""

import base64
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

from standardwebhooks import Webhook

from machine import BIN, DEADLINE_S

GPUHOOK = BIN / "gpuhook"


def run(*arguments, **options):
    return subprocess.run([GPUHOOK, *arguments], capture_output=True, text=True, timeout=120, **options)


class Up(unittest.TestCase):
    def test_the_first_command_shows_the_main_job_and_stays_up(self):
        with tempfile.TemporaryDirectory() as folder:
            data = pathlib.Path(folder) / "data"
            process = subprocess.Popen(
                [GPUHOOK, "up", "--simulate", "--data", data], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            try:
                said = self.read_until(process, "curl")
                for part in ("202", "/sys/bus/mdev/devices/", "limits", "callback", "v1+v1a", str(data)):
                    self.assertIn(part, said)
                sent = run("send", "--data", data, '{"op":"allocate","key":"job-7","profile":"T4-8Q"}')
                self.assertEqual(sent.returncode, 0, sent.stderr)
                self.assertIn("succeeded", sent.stdout)
                self.assertIn("next:", sent.stdout)
                refused = run("send", "--data", data, '{"op":"allocate","key":"job-8","profile":"T4-99Q"}')
                self.assertNotEqual(refused.returncode, 0)
                self.assertIn("T4-8Q", refused.stderr, "the valid profiles are listed")
                again = run("send", "--data", data, "--json", '{"op":"allocate","key":"job-7","profile":"T4-8Q"}')
                self.assertIn("libvirt_xml", again.stdout, again.stderr)
                gone = run("send", "--data", data, '{"op":"release","key":"job-7"}')
                self.assertEqual(gone.returncode, 0, gone.stderr)
                self.assertIsNone(process.poll(), "it stays up")
            finally:
                process.send_signal(signal.SIGINT)
                rest, _ = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0)
            self.assertIn('released demo:', rest)
            self.assertIn('"succeeded"', rest)
            self.assertTrue(all(not f.stat().st_mode & 0o077 for f in data.glob("secrets/*")), "secrets are private")

    def read_until(self, process, word):
        text, end = "", time.monotonic() + DEADLINE_S
        while word not in text:
            line = process.stdout.readline()
            self.assertTrue(line, f"ended before printing {word}:\n{text}")
            self.assertLess(time.monotonic(), end, text)
            text += line
        return text


class Tools(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def test_keys_are_private_and_never_overwritten(self):
        out = self.path / "host.whsk"
        made = run("key", "new", "--out", out)
        self.assertTrue(made.stdout.startswith("whpk_"), made)
        self.assertEqual(os.stat(out).st_mode & 0o777, 0o600)
        self.assertNotIn(out.read_text().strip(), made.stdout + made.stderr)
        before = out.read_text()
        self.assertNotEqual(run("key", "new", "--out", out).returncode, 0)
        self.assertEqual(out.read_text(), before)

    def test_a_token_comes_with_its_block(self):
        made = run("token", "new", "--tenant", "acme")
        self.assertTrue(made.stdout.startswith("gpht_"))
        self.assertIn("[[token]]", made.stderr)
        self.assertNotIn(made.stdout.strip(), made.stderr)

    def capture(self, body, secret, **changes):
        import datetime

        now = datetime.datetime.now(datetime.timezone.utc)
        headers = {
            "webhook-id": "msg_1",
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": Webhook(secret).sign("msg_1", now, body),
        } | changes
        (self.path / "headers").write_text("".join(f"{k}: {v}\n" for k, v in headers.items()))
        (self.path / "secret").write_text(secret + "\n")
        os.chmod(self.path / "secret", 0o600)
        return headers

    def verify(self):
        return run("verify", "--headers", self.path / "headers", "--body", self.path / "body", "--secret-file", self.path / "secret")

    def test_verify_accepts_and_explains_without_printing_the_right_signature(self):
        secret = "whsec_" + base64.b64encode(os.urandom(32)).decode()
        body = '{"op": "release", "key": "k"}'
        headers = self.capture(body, secret)
        right = headers["webhook-signature"].split(",")[1]
        (self.path / "body").write_text(body)
        good = self.verify()
        self.assertEqual(good.returncode, 0, good.stdout + good.stderr)
        for spoil, hint in (
            (lambda: (self.path / "body").write_text(body + "\n"), "newline"),
            (lambda: (self.path / "body").write_text(body.replace(": ", ":").replace(", ", ",")), "re-serialised"),
            (lambda: ((self.path / "body").write_text(body), (self.path / "headers").write_text(
                (self.path / "headers").read_text().replace("msg_1", "msg_2"))), "no"),
        ):
            spoil()
            bad = self.verify()
            said = bad.stdout + bad.stderr
            self.assertNotEqual(bad.returncode, 0, said)
            self.assertIn(hint, said)
            if "msg_2" in (self.path / "headers").read_text():
                continue
            self.assertNotIn(secret[6:], said)
        # A wrong signature: the right one is nowhere in what is said (adnanh/webhook#85).
        self.capture(body, secret, **{"webhook-signature": "v1," + base64.b64encode(b"x" * 32).decode()})
        (self.path / "body").write_text(body)
        bad = self.verify()
        self.assertNotEqual(bad.returncode, 0)
        self.assertNotIn(right, bad.stdout + bad.stderr)
        self.capture(body, secret, **{"webhook-timestamp": "1614265330"})
        self.assertIn("old", self.verify().stdout + self.verify().stderr)


if __name__ == "__main__":
    unittest.main()
