"""MIG by webhook: a GPU is cut, instances are given and taken, and nvidia-ml-py (PyPI), which knows nothing of gpuhook,
finds on the hardware what the results said."""

import json
import os
import subprocess
import sys
import unittest

from standardwebhooks import Webhook

from machine import Machine, wait_until

# In a process of its own: pynvml loads `libnvidia-ml.so.1` by name when a process begins.
READER = r"""
import json
from ctypes import byref, c_uint
import pynvml as nvml

nvml.nvmlInit()
found = []
for index in range(nvml.nvmlDeviceGetCount()):
    device = nvml.nvmlDeviceGetHandleByIndex(index)
    devices = []
    for slot in range(nvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, slot)
        except nvml.NVMLError as error:
            assert error.value == nvml.NVML_ERROR_NOT_FOUND or nvml.nvmlDeviceGetMigMode(device)[0] == 0, error
            continue
        attributes = nvml.nvmlDeviceGetAttributes(part)
        parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)
        # pynvml answers the C integer itself.
        assert getattr(nvml.nvmlDeviceIsMigDeviceHandle(part), "value", 1) == 1
        assert nvml.nvmlDeviceGetUUID(parent) == nvml.nvmlDeviceGetUUID(device)
        devices.append({
            "uuid": nvml.nvmlDeviceGetUUID(part),
            "name": nvml.nvmlDeviceGetName(part),
            "instance": nvml.nvmlDeviceGetGpuInstanceId(part),
            "slices": attributes.gpuInstanceSliceCount,
            "memory_mib": attributes.memorySizeMB,
            "total_mib": nvml.nvmlDeviceGetMemoryInfo(part).total >> 20,
        })
    found.append({"mode": nvml.nvmlDeviceGetMigMode(device), "devices": devices})
print(json.dumps(found))
nvml.nvmlShutdown()
"""


class Mig(unittest.TestCase):
    def setUp(self):
        self.machine = Machine(host="h100")
        self.addCleanup(self.machine.close)
        self.machine.start()

    def read(self):
        """What nvidia-ml-py finds on each GPU."""
        library = str(self.machine.host_folder / "lib")
        done = subprocess.run(
            [sys.executable, "-c", READER],
            env=os.environ | {"LD_LIBRARY_PATH": library},
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def names(self, gpu=0):
        return sorted(device["name"].split(" MIG ")[1] for device in self.read()[gpu]["devices"])

    def do(self, operation, source="ci"):
        status, _, body = self.machine.post(operation, source=source)
        self.assertEqual(status, 202, body)
        return self.machine.final(body["operations"][0]["status_url"])

    def partition(self, *layout, **more):
        target = {"host": "gpu-1", "gpu": 0}
        layout = [{"profile": profile, "count": count} for profile, count in layout]
        return self.do({"op": "partition", "target": target, "mode": "mig", "layout": layout} | more, source="admin")

    def test_a_gpu_is_cut_given_and_taken_back(self):
        on = {"op": "allocate", "key": "early", "mode": "mig", "profile": "1g.10gb"}
        status, _, body = self.machine.post(on)
        self.assertEqual((status, body["code"]), (409, "no_capacity"), body)
        self.assertIn("its MIG is off", json.dumps(body))

        plan = self.partition(("3g.40gb", 1), ("1g.10gb", 2), dry_run=True)
        self.assertEqual((plan["state"], plan["outcome"]["dry_run"]), ("succeeded", True), plan)
        self.assertEqual(self.read()[0]["mode"], [0, 0])

        cut = self.partition(("3g.40gb", 1), ("1g.10gb", 2))
        self.assertEqual(cut["state"], "succeeded", cut)
        self.assertEqual(self.read()[0]["mode"], [1, 1])
        self.assertEqual(self.read()[1]["mode"], [0, 0])
        self.assertEqual(self.names(), ["1g.10gb", "1g.10gb", "3g.40gb"])
        self.callback_verifies(cut["op_id"])

        wait_until(lambda: self.spare() == 3, "the new layout in the inventory", alive=self.machine.alive)
        given = self.do(on | {"count": 2})
        self.assertEqual(given["state"], "succeeded", given)
        by_uuid = {device["uuid"]: device for device in self.read()[0]["devices"]}
        for partition in given["outcome"]["partitions"]:
            device = by_uuid[partition["mig_uuid"]]
            self.assertEqual((device["slices"], device["memory_mib"], device["total_mib"]), (1, 9984, 9984))
        self.assertEqual(self.names(), ["1g.10gb", "1g.10gb", "3g.40gb"], "what was spare is given, nothing is made")

        # What is not in the layout is made where there is room, and goes with its allocation.
        more = self.do({"op": "allocate", "key": "more", "mode": "any", "memory_mib": 12000})
        self.assertEqual((more["state"], more["outcome"]["profile"]), ("succeeded", "2g.20gb"), more)
        self.assertEqual(self.names(), ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"])
        self.assertEqual(self.do({"op": "release", "key": "more"})["state"], "succeeded")
        self.assertEqual(self.do({"op": "release", "key": "early"})["state"], "succeeded")
        self.assertEqual(self.names(), ["1g.10gb", "1g.10gb", "3g.40gb"])

        gone = self.partition()
        self.assertEqual((gone["state"], self.names()), ("succeeded", []), gone)

    def test_what_is_held_is_not_cut_away(self):
        self.assertEqual(self.partition(("7g.80gb", 1))["state"], "succeeded")
        wait_until(lambda: self.spare() == 1, "the new layout in the inventory", alive=self.machine.alive)
        held = self.do({"op": "allocate", "key": "held", "mode": "mig", "profile": "7g.80gb"})
        self.assertEqual(held["state"], "succeeded", held)
        refused = self.partition(("1g.10gb", 7))
        self.assertEqual((refused["state"], refused["failure"]["code"]), ("refused", "in_use"), refused)
        self.assertEqual(self.names(), ["7g.80gb"])
        status, _, body = self.machine.post({"op": "allocate", "key": "vm", "mode": "vgpu", "profile": "7g.80gb"})
        self.assertEqual(status, 422, body)
        self.assertIn("it serves containers with MIG instances", json.dumps(body))

    def spare(self):
        _, _, listing = self.machine.get("/v1/hosts")
        gpus = listing["items"][0]["gpus"]
        return sum(partition.get("spare", False) for partition in gpus[0]["partitions"])

    def callback_verifies(self, op_id):
        found = wait_until(lambda: self.machine.callbacks_about(op_id), "the callback", alive=self.machine.alive)
        headers, body = found[0]
        headers = {name.lower(): value for name, value in headers.items()}
        event = Webhook(self.machine.callback_secret).verify(body, headers)
        self.assertEqual(event["type"], "dev.gpuhook.operation.succeeded.v1")


if __name__ == "__main__":
    unittest.main()
