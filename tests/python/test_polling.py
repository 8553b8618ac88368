"""The agent and a queue in the cloud that fails: every way of not answering is noticed, counted and
survived; credentials are found within seconds or their absence is explained; nothing is retried in a
busy loop (field F14, F70)."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time
import unittest
import urllib.request

from machine import BIN, Machine, free_port, wait_until
from queue_stub import QueueStub

AGENT = BIN / "gpuhook-agent"
SESSION = {"AWS_ACCESS_KEY_ID": "ASIATEST", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "token-1"}


class Polling(unittest.TestCase):
    def setUp(self):
        self.machine = Machine()
        self.addCleanup(self.machine.close)
        self.queue = QueueStub()
        self.addCleanup(self.queue.close)

    def configure(self, endpoint=None, more=""):
        endpoint = endpoint or self.queue.endpoint
        config = self.machine.folder / "agent.toml"
        queue = f'''
commands_url = "{endpoint}/000000000000/gpuhook-cmd-gpu-1.fifo"
results_url = "{endpoint}/000000000000/gpuhook-results"
region = "eu-west-1"
endpoint = "{endpoint}"
{more}
'''
        config.write_text(config.read_text().replace('backplane = "backplane.db"\n', queue))
        return config

    def environment(self, credentials, **more):
        """Nothing of this machine's own AWS configuration; a metadata service that is a black hole."""
        hole = socket.socket()
        hole.bind(("127.0.0.1", 0))
        hole.listen(1)
        self.addCleanup(hole.close)
        mine = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return mine | {
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{hole.getsockname()[1]}",
            "AWS_CONFIG_FILE": str(self.machine.folder / "aws-config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(self.machine.folder / "aws-credentials"),
            **credentials,
            **more,
        }

    def start(self, config, environment):
        agent = subprocess.Popen(
            [AGENT, "run", "--config", config], stdout=self.machine.log, stderr=self.machine.log, env=environment
        )
        self.addCleanup(self.end, agent)
        return agent

    def end(self, agent):
        if agent.poll() is None:
            agent.send_signal(signal.SIGKILL)
            agent.wait()

    def status(self, agent):
        def read():
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(f"http://127.0.0.1:{self.machine.agent_port}/status", timeout=5) as answer:
                    return json.load(answer)
            return None

        return wait_until(read, "the agent's status", alive=lambda: agent.poll() is None)

    def polls(self):
        return [request for request in self.queue.seen if request["target"].endswith("ReceiveMessage")]

    def test_every_way_of_not_answering_is_counted_and_survived(self):
        ways = ["cut", "broken", "throttled", "denied", "half", "silent"]
        turns = list(ways)
        self.queue.behave = lambda request: (turns.pop(0) if turns else "empty") if "Receive" in request["target"] else "empty"
        agent = self.start(self.configure(), self.environment(SESSION))
        # A silent queue is given up 5 s after the longest wait that was asked of it.
        wait_until(lambda: not turns and len(self.polls()) > len(ways), "a poll after all that failed", deadline_s=120, alive=lambda: agent.poll() is None)
        status = wait_until(lambda: self.recovered(agent), "the agent to be healthy again")
        self.assertEqual(status["failed_polls"], len(ways), status)
        first = self.polls()[0]["body"]
        self.assertEqual((first["MaxNumberOfMessages"], first["WaitTimeSeconds"]), (1, 20))
        # What a lost answer held is asked for again; what was answered, if only by a refusal, is over.
        attempts = [poll["body"]["ReceiveRequestAttemptId"] for poll in self.polls()]
        again = [attempts[place] == attempts[place + 1] for place in range(len(ways) + 1)]
        self.assertEqual(again, [way in ("cut", "half", "silent") for way in [*ways, "empty"]])

    def recovered(self, agent):
        status = self.status(agent)
        return status if status["healthy"] and status["failed_polls"] else None

    def test_a_queue_that_refuses_is_not_asked_in_a_busy_loop(self):
        for way in ("throttled", "denied", "expired"):
            self.queue.behave = lambda request, way=way: way
            self.queue.seen.clear()
            agent = self.start(self.configure(), self.environment(SESSION))
            begun = time.monotonic()
            wait_until(lambda: len(self.polls()) >= 4, "four polls", alive=lambda: agent.poll() is None)
            took_s = time.monotonic() - begun
            # 200, 400, 800 ms between them, each shortened by up to its half.
            self.assertGreater(took_s, 0.6, f"{way}: {len(self.polls())} polls in {took_s:.2f} s")
            self.end(agent)

    def test_a_clock_that_is_off_is_told(self):
        self.queue.skew_s = 1200
        agent = self.start(self.configure(), self.environment(SESSION))

        def skewed():
            status = self.status(agent)
            return status if status["queue_clock_ahead_s"] is not None else None

        status = wait_until(skewed, "the queue's clock")
        self.assertAlmostEqual(status["queue_clock_ahead_s"], 1200, delta=5)
        self.assertFalse(status["healthy"])
        self.assertTrue(any("clock_skew" in fault and "behind" in fault for fault in status["faults"]), status["faults"])

    def test_a_host_without_credentials_says_within_seconds_what_was_tried(self):
        config = self.configure()
        begun = time.monotonic()
        ran = subprocess.run([AGENT, "run", "--config", config], capture_output=True, text=True, timeout=60, env=self.environment({}))
        self.assertLess(time.monotonic() - begun, 10)
        self.assertNotEqual(ran.returncode, 0)
        for provider in ("environment", "profile", "web identity token", "container", "instance metadata"):
            self.assertIn(f"{provider}: ", ran.stderr)
        doctor = subprocess.run([AGENT, "doctor", "--config", config], capture_output=True, text=True, timeout=60, env=self.environment({}))
        self.assertIn("FAIL queue", doctor.stdout)
        self.assertIn("no AWS credentials", doctor.stdout)

    def test_a_host_that_was_started_before_starts_while_its_credentials_are_away(self):
        config = self.configure()
        agent = self.start(config, self.environment(SESSION))
        wait_until(self.polls, "a poll", alive=lambda: agent.poll() is None)
        self.end(agent)
        # A reboot while the cloud is away: what the host holds has to be looked after all the same.
        agent = self.start(config, self.environment({}))
        status = wait_until(lambda: self.refused(agent), "polls without credentials", alive=lambda: agent.poll() is None)
        self.assertTrue(status["inventory"]["gpus"], "the host is looked after")

    def refused(self, agent):
        status = self.status(agent)
        return status if status["failed_polls"] >= 2 else None

    def test_long_lived_keys_are_refused_unless_allowed(self):
        keys = {"AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": "a-secret-that-is-never-shown"}
        config = self.configure()
        ran = subprocess.run([AGENT, "run", "--config", config], capture_output=True, text=True, timeout=60, env=self.environment(keys))
        self.assertNotEqual(ran.returncode, 0)
        self.assertIn("environment: has long-lived access keys, which are refused", ran.stderr)
        self.assertNotIn("a-secret-that-is-never-shown", ran.stderr)
        config.write_text(config.read_text().replace('region = "eu-west-1"', 'region = "eu-west-1"\nallow_static_keys = true'))
        agent = self.start(config, self.environment(keys))
        wait_until(self.polls, "a poll", alive=lambda: agent.poll() is None)

    def test_credentials_that_expire_are_replaced_without_a_restart(self):
        current = self.machine.folder / "session"
        count = self.machine.folder / "asked"
        current.write_text("token-1")
        helper = self.machine.folder / "helper"
        # No Expiration: only AWS tells that they have expired, as after a revocation or with a wrong clock.
        helper.write_text(
            f"#!/bin/sh\necho asked >> {count}\n"
            f"""printf '{{"Version":1,"AccessKeyId":"ASIATEST","SecretAccessKey":"s","SessionToken":"%s"}}' "$(cat {current})"\n"""
        )
        helper.chmod(0o755)
        (self.machine.folder / "aws-config").write_text(f"[profile host]\ncredential_process = {helper}\n")
        valid = ["token-1"]
        self.queue.behave = lambda request: "empty" if request["token"] in valid else "expired"
        agent = self.start(self.configure(more='profile = "host"'), self.environment({}))
        alive = lambda: agent.poll() is None
        wait_until(lambda: any(poll["token"] == "token-1" for poll in self.polls()), "a poll", alive=alive)
        valid[:] = ["token-2"]
        wait_until(lambda: len([poll for poll in self.polls() if poll["token"] == "token-1"]) >= 3, "polls that are refused", alive=alive)
        current.write_text("token-2")
        wait_until(lambda: any(poll["token"] == "token-2" for poll in self.polls()), "a poll with the new session", alive=alive)
        wait_until(lambda: self.recovered(agent), "the agent to be healthy again")
        asked, refused = len(count.read_text().splitlines()), self.status(agent)["failed_polls"]
        self.assertLessEqual(asked, refused + 3, "the helper runs once per refusal, not once per call")

    def helper(self, script, more=""):
        """A profile whose session comes from a program, valid for `$1` seconds from its being asked."""
        helper = self.machine.folder / "helper"
        helper.write_text(
            f"""#!/bin/sh
echo asked >> {self.machine.folder}/asked
{script}
until=$(date -u -d "@$(( $(date +%s) + $1 ))" +%Y-%m-%dT%H:%M:%SZ)
printf '{{"Version":1,"AccessKeyId":"ASIATEST","SecretAccessKey":"s","SessionToken":"token-1","Expiration":"%s"}}' "$until"
"""
        )
        helper.chmod(0o755)
        (self.machine.folder / "aws-config").write_text(f"[profile host]\ncredential_process = {helper} 303\n")
        return self.configure(more='profile = "host"')

    def asked(self):
        asked = self.machine.folder / "asked"
        return len(asked.read_text().splitlines()) if asked.exists() else 0

    def test_a_session_is_used_to_its_end_while_no_other_is_to_be_had(self):
        # The second time, and from then on, nobody gives a session; the first is valid for 5 minutes more.
        config = self.helper(f'[ "$(wc -l < {self.machine.folder}/asked)" -gt 1 ] && exit 1')
        agent = self.start(config, self.environment({}))
        alive = lambda: agent.poll() is None
        wait_until(lambda: self.asked() >= 2, "the helper to fail", alive=alive)
        seen = len(self.polls())
        wait_until(lambda: len(self.polls()) > seen + 20, "polls after that", alive=alive)
        status = self.status(agent)
        self.assertEqual(status["failed_polls"], 0, status)
        self.assertLess(self.asked(), 6, "the helper is not asked once per call")

    def test_a_clock_that_is_so_far_off_that_nothing_is_answered_is_told(self):
        self.queue.skew_s = 1200
        self.queue.behave = lambda request: "misdated"
        agent = self.start(self.configure(), self.environment(SESSION))

        def skewed():
            status = self.status(agent)
            return status if status["failed_polls"] > 2 else None

        status = wait_until(skewed, "polls that are refused")
        self.assertTrue(any("clock_skew" in fault and "behind" in fault for fault in status["faults"]), status)

    def test_an_idle_host_says_what_it_has_once(self):
        """field F72: hundreds of idle hosts cost what their polls cost, and nothing more."""
        agent = self.start(self.configure(), self.environment(SESSION))
        sends = lambda: [request for request in self.queue.seen if request["target"].endswith("SendMessage")]
        wait_until(sends, "the first inventory", alive=lambda: agent.poll() is None)
        begun, polls = time.monotonic(), len(self.polls())
        # It looks at its hardware each second: nothing must come of three looks.
        wait_until(lambda: time.monotonic() - begun > 3.5 and len(self.polls()) > polls, "three looks", alive=lambda: agent.poll() is None)
        self.assertEqual(len(sends()), 1)

    def test_a_proxy_is_used_where_the_environment_names_one(self):
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        lines = []

        def proxy():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        lines.append(connection.makefile("rb").readline())

        threading.Thread(target=proxy, daemon=True).start()
        proxied = {"HTTPS_PROXY": f"http://127.0.0.1:{listener.getsockname()[1]}", "NO_PROXY": "127.0.0.1"}
        config = self.configure(endpoint="https://sqs.gpuhook.invalid")
        agent = self.start(config, self.environment(SESSION, **proxied))
        wait_until(lambda: lines, "the proxy to be asked", alive=lambda: agent.poll() is None)
        self.assertEqual(lines[0], b"CONNECT sqs.gpuhook.invalid:443 HTTP/1.1\r\n")


if __name__ == "__main__":
    unittest.main()
