"""A stranger reads the simulated host: nvidia-ml-py (PyPI), which knows nothing of gpuhook, over the library's C ABI.

Run with `python -m unittest` where `nvidia-ml-py` is installed. The host is the one that GPUHOOK_SIM names (a `sim.sock`
whose library is in `lib` beside it); without it, `gpuhook-simulator` is started from GPUHOOK_BIN_DIR (default
`target/debug`) on a host of two T4.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]

# Runs in a process of its own: pynvml loads `libnvidia-ml.so.1` by name, and the loader reads LD_LIBRARY_PATH only when a
# process begins.
READER = r"""
import json
import pynvml

def gpu(i):
    handle = pynvml.nvmlDeviceGetHandleByIndex(i)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    memory_v2 = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    pci = pynvml.nvmlDeviceGetPciInfo(handle)
    types = pynvml.nvmlDeviceGetSupportedVgpus(handle)
    return {
        "name": pynvml.nvmlDeviceGetName(handle),
        "uuid": pynvml.nvmlDeviceGetUUID(handle),
        "serial": pynvml.nvmlDeviceGetSerial(handle),
        "memory": [memory.total, memory.used, memory.free],
        "memory_v2": [memory_v2.total, memory_v2.used, memory_v2.free, memory_v2.reserved],
        "bus_id": pci.busId,
        "pci_device_id": pci.pciDeviceId,
        "by_uuid": pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(handle))),
        "by_bus_id": pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByPciBusId(pci.busId)),
        "temperature": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        "power_mw": pynvml.nvmlDeviceGetPowerUsage(handle),
        "utilization": pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "processes": len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle)),
        "capability": list(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        "virtualization": pynvml.nvmlDeviceGetVirtualizationMode(handle),
        "creatable": len(pynvml.nvmlDeviceGetCreatableVgpus(handle)),
        "active": len(pynvml.nvmlDeviceGetActiveVgpus(handle)),
        "vgpu_types": {
            pynvml.nvmlVgpuTypeGetName(each): {
                "id": each,
                "class": pynvml.nvmlVgpuTypeGetClass(each),
                "framebuffer": pynvml.nvmlVgpuTypeGetFramebufferSize(each),
                "max_instances": pynvml.nvmlVgpuTypeGetMaxInstances(handle, each),
                "heads": pynvml.nvmlVgpuTypeGetNumDisplayHeads(each),
            }
            for each in types
        },
    }

pynvml.nvmlInit()
try:
    pynvml.nvmlDeviceGetHandleByIndex(99)
    beyond = 0
except pynvml.NVMLError as error:
    beyond = error.value
print(json.dumps({
    "driver": pynvml.nvmlSystemGetDriverVersion(),
    "nvml": pynvml.nvmlSystemGetNVMLVersion(),
    "cuda": pynvml.nvmlSystemGetCudaDriverVersion(),
    "beyond": beyond,
    "gpus": [gpu(i) for i in range(pynvml.nvmlDeviceGetCount())],
}))
pynvml.nvmlShutdown()
"""


class NvmlReader(unittest.TestCase):
    """What nvidia-ml-py reads."""

    @classmethod
    def setUpClass(cls):
        cls.simulator = None
        socket = os.environ.get("GPUHOOK_SIM")
        if socket is None:
            cls.directory = tempfile.TemporaryDirectory()
            cls.addClassCleanup(cls.directory.cleanup)
            cls.start(cls.directory.name)
            socket = os.path.join(cls.directory.name, "sim.sock")
        cls.host = pathlib.Path(socket).resolve().parent
        environment = dict(os.environ, LD_LIBRARY_PATH=str(cls.host / "lib"), GPUHOOK_SIM=socket)
        done = subprocess.run(
            [sys.executable, "-c", READER], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode != 0:
            raise AssertionError(f"nvidia-ml-py could not read the host:\n{done.stderr}")
        cls.seen = json.loads(done.stdout)

    @classmethod
    def start(cls, directory):
        folder = pathlib.Path(os.environ.get("GPUHOOK_BIN_DIR", REPOSITORY / "target" / "debug"))
        command = [folder / "gpuhook-simulator", "--host", "two-t4", "--dir", directory, "--until-stdin-closes"]
        cls.simulator = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        def stop():
            cls.simulator.stdin.close()
            cls.simulator.wait(timeout=30)
            cls.simulator.stdout.close()

        cls.addClassCleanup(stop)
        line = cls.simulator.stdout.readline()
        if not line.startswith("ready "):
            raise AssertionError(f"the simulator did not come up: {line!r}")

    def test_driver_is_the_one_in_proc(self):
        version = (self.host / "root/sys/module/nvidia/version").read_text().strip()
        self.assertEqual(self.seen["driver"], version)
        self.assertTrue(self.seen["nvml"].endswith(version))
        self.assertGreaterEqual(self.seen["cuda"], 11000)

    def test_gpus_are_those_in_sysfs(self):
        devices = self.host / "root/sys/bus/pci/devices"
        self.assertEqual(len(self.seen["gpus"]), len(list(devices.iterdir())))
        for gpu in self.seen["gpus"]:
            self.assertRegex(gpu["bus_id"], r"^[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-7]$")
            device = devices / gpu["bus_id"][4:].lower()
            vendor = int((device / "vendor").read_text(), 16)
            model = int((device / "device").read_text(), 16)
            self.assertEqual(gpu["pci_device_id"], model << 16 | vendor)
            information = (self.host / "root/proc/driver/nvidia/gpus" / device.name / "information").read_text()
            self.assertIn(gpu["uuid"], information)
            self.assertIn(gpu["name"], information)

    def test_identity_is_complete_and_unique(self):
        for i, gpu in enumerate(self.seen["gpus"]):
            self.assertRegex(gpu["uuid"], r"^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
            self.assertEqual((gpu["by_uuid"], gpu["by_bus_id"]), (i, i))
        self.assertEqual(len({gpu["uuid"] for gpu in self.seen["gpus"]}), len(self.seen["gpus"]))
        self.assertEqual(self.seen["beyond"], 2, "INVALID_ARGUMENT for an index beyond the last")

    def test_t4_has_its_published_memory(self):
        for gpu in self.seen["gpus"]:
            self.assertEqual(gpu["name"], "Tesla T4")
            self.assertEqual(gpu["capability"], [7, 5])
            total, used, free = gpu["memory"]
            self.assertEqual((total, used + free), (15360 << 20, total))
            total_v2, used_v2, free_v2, reserved = gpu["memory_v2"]
            self.assertEqual((total_v2, used_v2 + free_v2 + reserved), (total, total))
            self.assertEqual(used_v2 + reserved, used, "version 1 counts the reserve as used")

    def test_sensors_are_those_of_a_board_in_a_rack(self):
        for gpu in self.seen["gpus"]:
            self.assertTrue(15 <= gpu["temperature"] <= 90)
            self.assertTrue(5_000 <= gpu["power_mw"] <= 70_000)
            self.assertTrue(0 <= gpu["utilization"] <= 100)
            self.assertEqual(gpu["virtualization"], 3, "host vGPU")

    def test_vgpu_types_are_those_in_sysfs(self):
        for gpu in self.seen["gpus"]:
            types = self.host / "root/sys/class/mdev_bus" / gpu["bus_id"][4:].lower() / "mdev_supported_types"
            self.assertEqual(len(gpu["vgpu_types"]), 17)
            for name, seen in gpu["vgpu_types"].items():
                of_type = types / f"nvidia-{seen['id']}"
                self.assertEqual((of_type / "name").read_text().strip(), name)
                description = dict(re.findall(r"(\w+)=([\w]+)", (of_type / "description").read_text()))
                self.assertEqual(seen["framebuffer"], int(description["framebuffer"].rstrip("M")) << 20)
                self.assertEqual(seen["max_instances"], int(description["max_instance"]))
                self.assertEqual(seen["heads"], int(description["num_heads"]))
            self.assertEqual(gpu["vgpu_types"]["NVIDIA T4-4Q"]["id"], 232)
            self.assertEqual(gpu["vgpu_types"]["NVIDIA T4-4Q"]["class"], "Quadro")


if __name__ == "__main__":
    unittest.main()
