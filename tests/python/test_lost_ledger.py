"""A host's ledger is lost: nothing starts empty, and what the front door knows and the hardware
shows make it whole again."""

import base64
import json
import subprocess
import unittest
import uuid

from machine import BIN, Machine, wait_until

CREATE = "/sys/bus/pci/devices/0000:3b:00.0/mdev_supported_types/nvidia-232/create"


def allocate(machine, key, count, gpu=0):
    target = {"host": "gpu-1", "gpu": gpu}
    answer = machine.post({"op": "allocate", "key": key, "profile": "T4-4Q", "count": count, "target": target})
    assert answer[0] == 202, answer
    return answer[2]["operations"][0]


def partitions(operation):
    return [partition["id"] for partition in operation["outcome"]["partitions"]]


class LostLedger(unittest.TestCase):
    def setUp(self):
        self.machine = self.enterContext(Machine().start())
        self.folder = self.machine.folder

    def lose(self):
        self.machine.kill()
        for file in (self.folder / "agent").glob("ledger.db*"):
            file.unlink()

    def write(self, attribute, text):
        encoded = base64.b64encode(text.encode()).decode()
        self.machine.simulate({"attribute_write": {"path": attribute, "bytes": encoded}})

    def run_program(self, *arguments):
        done = subprocess.run([BIN / arguments[0], *arguments[1:]], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def holdings(self, name="holdings.json", host="gpu-1"):
        out = self.folder / name
        code, text = self.run_program("gpuhook", "host", "holdings", host, "--data", self.folder, "--out", out)
        self.assertEqual(code, 0, text)
        return out

    def rebuild(self, file):
        return self.run_program("gpuhook-agent", "rebuild", "--config", self.folder / "agent.toml", file)

    def test_a_lost_ledger_is_never_replaced_by_an_empty_one_and_can_be_rebuilt(self):
        """field F47: saved state is compared with the hardware; what is missing is made again."""
        machine = self.machine
        first = machine.final(allocate(machine, "a", 2)["status_url"])
        second = machine.final(allocate(machine, "b", 1, gpu=1)["status_url"])
        ours = sorted(partitions(first) + partitions(second))
        self.lose()

        code, text = self.run_program("gpuhook", "up", "--data", self.folder)
        self.assertNotEqual(code, 0)
        self.assertIn("ledger.db is gone", text)
        self.assertEqual(machine.mdevs(), ours)

        # Meanwhile the hardware has changed: one of ours is gone, a stranger's has come.
        foreign = str(uuid.uuid4())
        self.write(f"/sys/bus/mdev/devices/{partitions(first)[1]}/remove", "1")
        self.write(CREATE, foreign)
        code, text = self.rebuild(self.holdings())
        self.assertEqual(code, 0, text)
        self.assertIn("2 allocations and 0 open operations", text)
        code, text = self.rebuild(self.folder / "holdings.json")
        self.assertNotEqual(code, 0)
        self.assertIn("is rebuilt only in the place of one that is gone", text)

        machine.start()
        everything = sorted([*ours, foreign])
        wait_until(lambda: machine.mdevs() == everything, "the missing partition under its own id")
        callbacks = len(machine.receiver.callbacks)
        released = machine.post({"op": "release", "key": "a"})[2]["operations"][0]
        self.assertEqual(machine.final(released["status_url"])["outcome"]["existed"], True)
        self.assertEqual(machine.mdevs(), sorted([*partitions(second), foreign]))
        wait_until(lambda: len(machine.receiver.callbacks) > callbacks, "the callback: the sequence goes on above")

    def test_an_operation_that_was_under_way_is_finished_after_a_rebuild(self):
        machine = self.machine
        hold = {"write_hold": {"path_suffix": "create", "effect": "after", "nth": 2, "times": 1}}
        machine.simulate({"fault": hold})
        operation = allocate(machine, "c", 2)
        wait_until(lambda: len(machine.mdevs()) == 2, "the second effect, held in the kernel")
        wait_until(lambda: machine.get(operation["status_url"])[2]["state"] == "running", "running")
        self.lose()
        machine.simulate({"release": {}})
        code, text = self.rebuild(self.holdings())
        self.assertEqual(code, 0, text)
        self.assertIn("0 allocations and 1 open operations", text)
        machine.start()
        ended = machine.final(operation["status_url"])
        self.assertEqual(ended["state"], "succeeded", ended)
        self.assertEqual(machine.mdevs(), sorted(partitions(ended)), "what it had made is its own")
        wait_until(lambda: machine.callbacks_about(operation["op_id"]), "the callback")

    def test_only_the_hosts_own_signed_statement_is_taken(self):
        self.lose()
        good = self.holdings()
        envelope = json.loads(good.read_text())
        payload = json.loads(base64.b64decode(envelope["payload"]))
        payload["sequence"] += 1
        envelope["payload"] = base64.b64encode(json.dumps(payload).encode()).decode()
        forged = self.folder / "forged.json"
        forged.write_text(json.dumps(envelope))
        code, text = self.rebuild(forged)
        self.assertNotEqual(code, 0)
        self.assertIn("cannot be trusted", text)
        self.assertFalse((self.folder / "agent" / "ledger.db").exists(), "nothing was made of it")
        code, text = self.run_program(
            "gpuhook", "host", "holdings", "gpu-9", "--data", self.folder, "--out", self.folder / "none"
        )
        self.assertNotEqual(code, 0)
        self.assertIn("host gpu-9 is not enrolled", text)


if __name__ == "__main__":
    unittest.main()
