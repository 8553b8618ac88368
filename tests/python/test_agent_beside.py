"""The agent as a process of its own beside the front door, as on a GPU host, and what its operator
asks it. They share nothing but the backplane's file."""

import http.client
import json
import signal
import subprocess
import unittest

from machine import BIN, Machine, wait_until

AGENT = BIN / "gpuhook-agent"


class AgentBeside(unittest.TestCase):
    def test_an_agent_process_serves_the_queue_and_answers_its_operator(self):
        with Machine() as machine:
            # Away from the data folder, so that `gpuhook up` does not run one itself.
            elsewhere = machine.folder / "elsewhere"
            elsewhere.mkdir()
            config = elsewhere / "agent.toml"
            text = (machine.folder / "agent.toml").read_text()
            config.write_text(text.replace('"backplane.db"', '"../backplane.db"').replace('"keys/', '"../keys/'))
            (machine.folder / "agent.toml").unlink()

            doctor = self.ask(config, "doctor", "--json")
            checks = {check["name"]: check for check in json.loads(doctor.stdout)}
            self.assertTrue(checks["nvml"]["passed"], checks)
            self.assertTrue(checks["gpu0"]["passed"], checks)
            self.assertFalse(checks["queue"]["passed"], "there is no backplane yet, and the doctor says what to do")
            self.assertIn("gpuhook up", checks["queue"]["detail"])
            self.assertNotEqual(doctor.returncode, 0)
            self.assertNotEqual(self.ask(config, "status").returncode, 0, "nobody answers yet")

            machine.process = subprocess.Popen([BIN / "gpuhook", "up", "--data", machine.folder], stdout=machine.log, stderr=machine.log)
            wait_until(machine._healthy, "the door to open", alive=machine.alive)
            agent = subprocess.Popen([AGENT, "run", "--config", config], stdout=machine.log, stderr=machine.log)
            try:
                self.serve(machine, config, agent)
            finally:
                if agent.poll() is None:
                    agent.kill()
                agent.wait()

    def serve(self, machine, config, agent):
        wait_until(machine._observed, "the host's first inventory", alive=lambda: agent.poll() is None)
        _, _, body = machine.post({"op": "allocate", "key": "beside", "profile": "T4-4Q", "count": 2, "ttl_s": 3600})
        operation = machine.final(body["operations"][0]["status_url"])
        self.assertEqual(operation["state"], "succeeded", operation)
        self.assertEqual(self.ask(config, "doctor").returncode, 0, self.ask(config, "doctor").stdout)
        status = wait_until(lambda: self.with_partitions(config), "the status to show the partitions")
        text = self.ask(config, "status").stdout
        for part in ("gpu-1", "Tesla T4", "T4-4Q", "beside of acme", "until 20"):
            self.assertIn(part, text)
        self.assertEqual(status["healthy"], True)
        self.assertEqual(status["drift"], [])
        connection = http.client.HTTPConnection("127.0.0.1", machine.agent_port, timeout=20)
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        self.assertEqual((answer.status, json.loads(answer.read())), (200, {"healthy": True, "faults": []}))
        connection.close()
        # A second agent over the same ledger would own the hardware twice.
        second = subprocess.run([AGENT, "run", "--config", config], capture_output=True, text=True, timeout=60)
        self.assertNotEqual(second.returncode, 0)
        self.assertIn("in use by another agent", second.stderr)
        agent.send_signal(signal.SIGTERM)
        self.assertEqual(agent.wait(timeout=60), 0, "SIGTERM is a clean end")
        self.assertEqual(len(machine.mdevs()), 2, "tenants keep their partitions when the agent stops")

    def with_partitions(self, config):
        status = json.loads(self.ask(config, "status", "--json").stdout)
        inventory = status["inventory"] or {"gpus": []}
        return status if any(gpu["partitions"] for gpu in inventory["gpus"]) else None

    def ask(self, config, *arguments):
        return subprocess.run([AGENT, *arguments, "--config", config], capture_output=True, text=True, timeout=60)

    def test_configuration_faults_name_file_and_line_all_at_once(self):
        with Machine() as machine:
            config = machine.folder / "agent.toml"
            text = config.read_text()
            text = text.replace('host = "gpu-1"', 'host = "GPU 1"').replace("[allow]", "[allows]")
            text = text.replace("cgroup =", "cgroups =").replace('functions = ["whpk_', 'functions = ["whsk_')
            config.write_text(text)
            said = self.ask(config, "doctor").stderr
            for fault in ("GPU 1", "allows", "cgroups", "whpk_"):
                line = 1 + text[: text.index(fault if fault != "whpk_" else "functions")].count("\n") if fault != "GPU 1" else 2
                self.assertIn(f"agent.toml:{line}", said, said)
            self.assertIn("allows", said)
            self.assertIn("cgroups", said)


if __name__ == "__main__":
    unittest.main()
