"""A 202 means fsynced, and a SIGKILL in the middle of an allocate doubles nothing."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import unittest

from machine import BIN, Machine, wait_until


class Durability(unittest.TestCase):
    @unittest.skipUnless(shutil.which("strace"), "strace is not installed")
    def test_data_is_synced_between_a_delivery_and_its_202(self):
        with Machine(agent=False) as machine:
            trace = machine.folder / "trace.txt"
            prefix = ["strace", "-f", "-tt", "-s", "64", "-e", "trace=fdatasync,fsync,recvfrom,read,write,writev,sendto", "-o", trace]
            machine.process = subprocess.Popen(
                [*prefix, BIN / "gpuhook", "up", "--data", machine.folder],
                stdout=machine.log, stderr=machine.log,
            )
            wait_until(machine._healthy, "the door to open", alive=machine.alive)
            # Releasing the unknown is accepted without any host.
            status, _, body = machine.post({"op": "release", "key": "never-there"}, message_id="msg_traced")
            self.assertEqual(status, 202, body)
            # The traced process is asked to stop; its tracer ends with it.
            tracer = machine.process.pid
            children = pathlib.Path(f"/proc/{tracer}/task/{tracer}/children").read_text().split()
            os.kill(int(children[0]), signal.SIGTERM)
            machine.process.wait(timeout=60)
            lines = trace.read_text(errors="replace").splitlines()
            arrived = next(i for i, line in enumerate(lines) if "POST /v1/hooks/ci" in line)
            answered = next(i for i, line in enumerate(lines) if "HTTP/1.1 202" in line and i > arrived)
            synced = [line for line in lines[arrived:answered] if re.search(r"\bfdatasync\(", line)]
            self.assertTrue(synced, "no fdatasync between arrival and 202:\n" + "\n".join(lines[arrived:answered]))


class Crash(unittest.TestCase):
    def machine(self):
        return Machine()

    def test_a_kill_in_the_middle_of_an_allocate_leaves_one_allocation_and_one_result(self):
        with self.machine() as machine:
            machine.start()
            # The second create is held in the kernel, so that the kill falls between the two.
            machine.simulate({"fault": {"write_hold": {"path_suffix": "/create", "nth": 2}}})
            allocate = {"op": "allocate", "key": "crash", "profile": "T4-4Q", "count": 2}
            status, _, body = machine.post(allocate, message_id="msg_crash")
            self.assertEqual(status, 202, body)
            wait_until(lambda: len(machine.mdevs()) == 1, "the first partition", alive=machine.alive)
            machine.kill()
            self.assertEqual(len(machine.mdevs()), 1, "the kill came too late to prove anything")
            # The dead process's write goes on, as it does in a kernel.
            machine.simulate({"release": {}})
            machine.start()
            operation = machine.final(body["operations"][0]["status_url"])
            self.assertEqual(operation["state"], "succeeded", operation)
            wanted = sorted(partition["id"] for partition in operation["outcome"]["partitions"])
            self.assertEqual(machine.mdevs(), wanted)
            self.assertEqual(len(machine.get("/v1/allocations")[2]["items"]), 1)
            again = machine.post(allocate, message_id="msg_crash")
            self.assertEqual((again[0], again[2]), (202, body))
            self.assertEqual(machine.mdevs(), wanted)
            wait_until(lambda: machine.callbacks_about(operation["op_id"]), "the callback", alive=machine.alive)
            ids = {headers["webhook-id"] for headers, _ in machine.callbacks_about(operation["op_id"])}
            self.assertEqual(len(ids), 1, "one result")


if __name__ == "__main__":
    unittest.main()
