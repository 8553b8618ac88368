"""What broke other people's vGPU hosts (field records), on the whole system: signed webhook in,
simulated kernel out, another manager's devices present throughout."""

import base64
import pathlib
import subprocess
import tempfile
import unittest
import uuid

from machine import BIN, Machine, wait_until

T4, V100D = "0000:3b:00.0", "0000:d8:00.0"
FOREIGN = ["f0f0f0f0-0000-4000-8000-000000000001", "f0f0f0f0-0000-4000-8000-000000000002"]


class OnOneHost(unittest.TestCase):
    host = "mixed"

    def setUp(self):
        self.machine = self.enterContext(Machine(host=self.host).start())

    def ask(self, **operation):
        status, _, body = self.machine.post(operation)
        if status != 202:
            return status, body
        ended = self.machine.final(body["operations"][0]["status_url"])
        return ended["state"], ended

    def allocate(self, key, profile, gpu, count=1):
        target = {"host": "gpu-1", "gpu": gpu}
        return self.ask(op="allocate", key=key, profile=profile, count=count, target=target)

    def write(self, attribute, text):
        encoded = base64.b64encode(text.encode()).decode()
        self.machine.simulate({"attribute_write": {"path": attribute, "bytes": encoded}})

    def ours(self):
        return [mdev for mdev in self.machine.mdevs() if mdev not in FOREIGN]

    def available(self, pci, type_id):
        path = self.machine.host_folder / f"root/sys/bus/pci/devices/{pci}/mdev_supported_types/nvidia-{type_id}"
        return int((path / "available_instances").read_text())

    def agent_status(self):
        done = subprocess.run(
            [BIN / "gpuhook-agent", "status", "--config", self.machine.folder / "agent.toml"],
            capture_output=True, text=True, check=True,
        )
        return done.stdout


class HalfMade(OnOneHost):
    def test_a_create_that_fails_after_its_effect_leaves_nothing_twenty_times_over(self):
        """field F19, F73: one create per device, and nothing left of one that failed."""
        for errno in (5, 16, 22):
            before = self.available(T4, 232)
            fault = {"path_suffix": "nvidia-232/create", "errno": errno, "effect": "after", "times": 0}
            self.machine.simulate({"fault": {"write": fault}})
            for n in range(20 if errno == 5 else 3):
                state, ended = self.allocate(f"half:{errno}:{n}", "T4-4Q", 0)
                self.assertEqual(state, "failed", ended)
                self.assertEqual(ended["failure"].get("residue", []), [], ended)
            self.assertEqual(self.available(T4, 232), before)
            self.assertEqual(self.machine.mdevs(), FOREIGN)
            self.machine.simulate({"fault": {"clear": {}}})
            state, ended = self.allocate(f"whole:{errno}", "T4-4Q", 0)
            self.assertEqual(state, "succeeded", ended)
            self.assertEqual(self.ask(op="release", key=f"whole:{errno}")[0], "succeeded")

    def test_what_cannot_be_undone_is_named_counted_and_finished_later(self):
        """field F19: if remove fails too, the device is reported with its UUID."""
        self.machine.simulate({"fault": {"write": {"path_suffix": "create", "errno": 5, "effect": "after", "times": 0}}})
        self.machine.simulate({"fault": {"write": {"path_suffix": "remove", "errno": 5, "times": 0}}})
        state, ended = self.allocate("stuck", "T4-4Q", 0)
        self.assertEqual(state, "failed", ended)
        [left] = self.ours()
        self.assertIn(left, " ".join(ended["failure"]["residue"]))
        refused = self.allocate("another", "T4-4Q", 0)
        self.assertEqual(refused[1]["code"], "no_capacity", "the GPU is out of use until a person has looked")
        self.machine.simulate({"fault": {"clear": {}}})
        gpu = next(gpu for gpu in self.machine.get("/v1/hosts")[2]["items"][0]["gpus"] if gpu["pci"] == T4)["uuid"]
        self.machine.stop()
        agent = [BIN / "gpuhook-agent", "quarantine", "--config", self.machine.folder / "agent.toml"]
        listed = subprocess.run(agent, capture_output=True, text=True, check=True).stdout
        self.assertIn(gpu, listed)
        subprocess.run([*agent, "--clear", gpu], check=True, capture_output=True)
        self.machine.start()
        wait_until(lambda: self.ours() == [], "what was left is removed", alive=self.machine.alive)
        self.assertEqual(self.allocate("another", "T4-4Q", 0)[0], "succeeded")


class NotOurs(OnOneHost):
    def test_devices_of_another_manager_are_counted_listed_and_never_touched(self):
        """field F44: reconcile removes nothing that it has not created, and keeps its own UUIDs."""
        idle = str(uuid.uuid4())
        self.write(f"/sys/bus/pci/devices/{T4}/mdev_supported_types/nvidia-232/create", idle)
        self.addCleanup(lambda: self.assertIn(idle, self.machine.mdevs()))
        state, first = self.allocate("one", "T4-4Q", 0)
        state, second = self.allocate("two", "T4-4Q", 0)
        self.assertEqual(state, "succeeded", second)
        kept = [partition["id"] for partition in second["outcome"]["partitions"]]
        # Four fit, two of them are strangers', one of which a VM holds.
        state, full = self.allocate("three", "T4-4Q", 0)
        self.assertEqual((state, full["code"]), (409, "no_capacity"))
        state, other = self.allocate("three", "T4-8Q", 0)
        self.assertEqual((state, other["code"]), (409, "no_capacity"))
        self.assertIn("holds T4-4Q", other["errors"][0]["detail"], "field F57: which size is in the way")
        self.assertEqual(self.ask(op="release", key="one")[0], "succeeded")
        self.assertEqual(self.allocate("one", "T4-4Q", 0)[0], "succeeded")
        self.assertIn(kept[0], self.machine.mdevs(), "what nobody asked to change keeps its UUID")
        listed = wait_until(lambda: (text := self.agent_status()) and text.count("foreign") == 3 and text, "the agent's list")
        for mdev in [idle, *FOREIGN]:
            self.assertIn(mdev, listed)
        for key in ("one", "two"):
            self.assertEqual(self.ask(op="release", key=key)[0], "succeeded")
        self.assertEqual(self.machine.mdevs(), sorted([idle, *FOREIGN]))
        # Naming another manager's device as one's own gets nobody anywhere.
        state, body = self.ask(op="release", id=FOREIGN[1])
        self.assertEqual((state, body["outcome"]["existed"]), ("succeeded", False))
        self.assertIn(FOREIGN[1], self.machine.mdevs())

    def test_a_type_is_asked_for_by_its_exact_name_on_its_own_board(self):
        """field F57: names are exact and per GPU, an unknown one lists the choices."""
        for wrong in ("T4-4", "T4-4q", "T4-16P", "V100D-8Q", "nvidia-232", "232", "GRID T4-4Q"):
            status, body = self.allocate("typo", wrong, 0)
            self.assertEqual(status, 422, (wrong, body))
        self.assertIn("T4-4Q", self.allocate("typo", "T4-16P", 0)[1]["detail"])
        self.assertEqual(self.allocate("right", "V100D-8Q", 1)[0], "succeeded")
        self.assertEqual(self.allocate("size", "V100D-4Q", 1)[1]["code"], "no_capacity")

    def test_a_ledger_of_another_host_moves_nothing_here(self):
        """field F47: saved state is compared with the hardware."""
        with Machine(host="two-t4").start() as other:
            body = other.post({"op": "allocate", "key": "there", "profile": "T4-4Q", "count": 2})[2]
            self.assertEqual(other.final(body["operations"][0]["status_url"])["state"], "succeeded")
            other.stop()
            self.machine.stop()
            for file in (self.machine.folder / "agent").glob("ledger.db*"):
                file.unlink()
            for file in (other.folder / "agent").glob("ledger.db*"):
                (self.machine.folder / "agent" / file.name).write_bytes(file.read_bytes())
        before = self.machine.mdevs()
        self.machine.start()
        told = wait_until(lambda: "drift" in (text := self.agent_status()) and text, "the drift to be told")
        self.assertIn("is missing", told)
        self.assertEqual(self.machine.mdevs(), before)


class Spelling(unittest.TestCase):
    DESCRIPTION = """
name = "far"
driver_version = "535.161.05"
cuda_version = "12.2"
kernel_release = "6.1.0-57-amd64"
flavour = "vgpu_host"
kernel = "vfio_core"
[[boards]]
board = "T4"
pci = "0000:c1:00.0"
[[boards]]
board = "V100"
pci = "000f:01:00.0"
"""

    def test_every_spelling_of_an_address_means_the_same_gpu(self):
        """field F02: NVML's eight digits, sysfs' four, no domain, upper case, and domains beyond 0000."""
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "far.toml").write_text(self.DESCRIPTION)
        machine = self.enterContext(Machine(host=folder / "far.toml").start())
        seen = {gpu["pci"]: gpu["uuid"] for gpu in machine.get("/v1/hosts")[2]["items"][0]["gpus"]}
        self.assertEqual(sorted(seen), ["0000:c1:00.0", "000f:01:00.0"])

        def place(key, gpu, profile):
            target = {"host": "gpu-1", "gpu": gpu}
            return machine.post({"op": "allocate", "key": key, "profile": profile, "target": target})

        for n, spelling in enumerate(["00000000:C1:00.0", "0000:c1:00.0", "C1:00.0", "0000:C1:00.0 ", seen["0000:c1:00.0"]]):
            status, _, body = place(f"near:{n % 2}", spelling, "T4-4Q")
            self.assertEqual(status, 202, (spelling, body))
            ended = machine.final(body["operations"][0]["status_url"])
            self.assertEqual((ended["state"], ended["outcome"]["pci"]), ("succeeded", "0000:c1:00.0"), spelling)
        status, _, body = place("far", "0000000F:01:00.0", "V100-8Q")
        self.assertEqual(status, 202, body)
        self.assertEqual(machine.final(body["operations"][0]["status_url"])["outcome"]["pci"], "000f:01:00.0")
        self.assertEqual(len(machine.mdevs()), 3, "the same key on the same GPU is the same allocation")
        for wrong in ["10000:01:00.0", "0000:c1:00.0/../0000:c2:00.0", "0000:c1:00.8", "c1", "", "0000:c1:00"]:
            status, _, body = place("bad", wrong, "T4-4Q")
            self.assertEqual(status, 422, (wrong, body))


if __name__ == "__main__":
    unittest.main()
