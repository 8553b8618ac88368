"""The main job on real input: a webhook signed by a third party becomes two partitions with limits
in the kernel, and a callback that third parties verify."""

import base64
import json
import os
import pathlib
import subprocess
import sys
import unittest
import urllib.parse

from cryptography.hazmat.primitives.asymmetric import ed25519
from standardwebhooks import Webhook

from machine import Machine, wait_until

ALLOCATE = {
    "op": "allocate",
    "key": "github:org/repo:job-7",
    "profile": "T4-4Q",
    "count": 2,
    "limits": {"memory_mib": 4096, "cpuset": "0-1"},
}

V1 = pathlib.Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")


def group_of(pid, controller):
    """A process's group for one v1 controller, as the kernel tells."""
    for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return pathlib.Path(f"/sys/fs/cgroup/{controller}{path}")
    raise AssertionError(f"process {pid} is in no {controller} group")


class Spine(unittest.TestCase):
    def machine(self):
        """What the tests run on; test_cloud.py repeats them on another shape of it."""
        return Machine()

    def test_a_webhook_becomes_partitions_limits_and_a_verified_callback(self):
        with self.machine() as machine:
            machine.start()
            before = machine.available()
            status, headers, body = machine.post(ALLOCATE, message_id="msg_first")
            self.assertEqual(status, 202, body)
            self.assertEqual(headers["location"], f"/v1/deliveries/{body['delivery_id']}")
            operation = machine.final(body["operations"][0]["status_url"])
            self.assertEqual(operation["state"], "succeeded", operation)
            partitions = operation["outcome"]["partitions"]
            self.assertEqual(len(partitions), 2)
            self.assertEqual(sorted(p["id"] for p in partitions), machine.mdevs())
            self.limits_hold(operation["outcome"])
            self.callback_verifies(machine, operation["op_id"])
            self.replay_changes_nothing(machine, body)
            self.release_restores(machine, before)

    def limits_hold(self, outcome):
        if os.geteuid() != 0 or not V1.exists():
            self.assertEqual(outcome["limits_state"], "not_applied")
            self.assertTrue(outcome["limits_reason"])
            print("limits: not root or no cgroup v1 here; checked that the result says not_applied", file=sys.stderr)
            return
        self.assertEqual(outcome["limits_state"], "applied", outcome)
        for partition in outcome["partitions"]:
            stand_in = subprocess.Popen(["sleep", "600"])
            try:
                self.attach_and_read(stand_in.pid, partition["cgroup_path"])
            finally:
                stand_in.kill()
                stand_in.wait()

    def attach_and_read(self, pid, cgroup_path):
        for controller in ("memory", "cpuset", "cpu", "pids"):
            group = pathlib.Path(f"/sys/fs/cgroup/{controller}{cgroup_path}")
            if group.exists():
                (group / "cgroup.procs").write_text(str(pid))
        memory = group_of(pid, "memory") / "memory.limit_in_bytes"
        self.assertEqual(memory.read_text().strip(), str(4096 * 1024 * 1024))
        cpuset = group_of(pid, "cpuset")
        self.assertEqual((cpuset / "cpuset.cpus").read_text().strip(), "0-1")
        self.assertNotEqual((cpuset / "cpuset.mems").read_text().strip(), "")
        allowed = [line for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if "Cpus_allowed_list" in line]
        self.assertEqual(allowed, ["Cpus_allowed_list:\t0-1"])

    def callback_verifies(self, machine, op_id):
        found = wait_until(lambda: machine.callbacks_about(op_id), "the callback", alive=machine.alive)
        self.assertEqual(len(found), 1, "one result, one callback")
        headers, body = found[0]
        headers = {name.lower(): value for name, value in headers.items()}
        event = Webhook(machine.callback_secret).verify(body, headers)
        self.assertEqual(event["type"], "dev.gpuhook.operation.succeeded.v1")
        self.assertEqual(event["specversion"], "1.0")
        self.assertEqual(event["data"]["key"], ALLOCATE["key"])
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        entries = [entry.split(",", 1) for entry in headers["webhook-signature"].split(" ")]
        v1a = [base64.b64decode(signature) for tag, signature in entries if tag == "v1a"]
        self.assertEqual(len(v1a), 1)
        raw = base64.b64decode(machine.callback_public)
        ed25519.Ed25519PublicKey.from_public_bytes(raw).verify(v1a[0], signed)

    def replay_changes_nothing(self, machine, first):
        mdevs, writes = machine.mdevs(), machine.available()
        status, headers, body = machine.post(ALLOCATE, message_id="msg_first")
        self.assertEqual(status, 202)
        self.assertEqual(headers["idempotent-replayed"], "true")
        self.assertEqual(body, first)
        self.assertEqual((machine.mdevs(), machine.available()), (mdevs, writes))
        other = ALLOCATE | {"count": 1}
        status, _, body = machine.post(other, message_id="msg_first")
        self.assertEqual((status, body["code"]), (409, "idempotency-mismatch"), body)
        _, _, listing = machine.get("/v1/operations")
        self.assertEqual(len(listing["items"]), 1, "the replay and the mismatch made no operation")

    def release_restores(self, machine, before):
        status, _, body = machine.post({"op": "release", "key": ALLOCATE["key"]})
        self.assertEqual(status, 202, body)
        operation = machine.final(body["operations"][0]["status_url"])
        self.assertEqual(operation["state"], "succeeded", operation)
        self.assertEqual(operation["outcome"]["existed"], True)
        self.assertEqual(machine.mdevs(), [])
        self.assertEqual(machine.available(), before)
        left = list(pathlib.Path("/sys/fs/cgroup").glob(f"*/gpuhook*/{operation['outcome']['allocation']}"))
        self.assertEqual(left, [], "no control group is left")

    def test_a_v1a_sender_is_accepted_and_its_forgery_is_not(self):
        with self.machine() as machine:
            machine.start()
            body = json.dumps({"op": "inspect", "target": {"host": "gpu-1"}})
            headers = machine.signed_headers(body)
            signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{body}".encode()
            signature = base64.b64encode(machine.sender_v1a.sign(signed)).decode()
            headers["webhook-signature"] = f"v1a,{signature}"
            status, _, answer = machine.request("POST", "/v1/hooks/ci", body=body, headers=headers)
            self.assertEqual(status, 202, answer)
            operation = machine.final(answer["operations"][0]["status_url"])
            self.assertEqual(operation["outcome"]["kind"], "inspected", operation)
            headers["webhook-id"] += "x"
            status, _, answer = machine.request("POST", "/v1/hooks/ci", body=body, headers=headers)
            self.assertEqual(status, 401, answer)

    def test_the_seed_door_allocates_with_an_api_key(self):
        with self.machine() as machine:
            machine.start()
            body = json.dumps({"gpu_id": 0, "vgpu_type": "T4-4Q"})
            headers = {"content-type": "application/json", "x-api-key": machine.api_key, "idempotency-key": "once"}
            first = machine.request("POST", "/vgpu", body=body, headers=headers)
            again = machine.request("POST", "/vgpu", body=body, headers=headers)
            self.assertEqual(first[0], 202, first)
            self.assertEqual((again[0], again[1].get("idempotent-replayed"), again[2]), (202, "true", first[2]))
            operation = machine.final(first[2]["operations"][0]["status_url"])
            self.assertEqual(operation["state"], "succeeded", operation)
            self.assertEqual(len(machine.mdevs()), 1)
            headers["x-api-key"] = "key_wrong_wrong_wrong_wrong_wrong"
            self.assertEqual(machine.request("POST", "/vgpu", body=body, headers=headers)[0], 401)

    def test_a_release_that_overtakes_its_allocate_wins_and_a_used_key_may_be_used_again(self):
        with self.machine() as machine:
            machine.start()

            def outcome(operation):
                status, _, body = machine.post(operation)
                self.assertEqual(status, 202, body)
                return machine.final(body["operations"][0]["status_url"])

            early = outcome({"op": "release", "key": "late"})
            self.assertEqual((early["state"], early["outcome"]["existed"]), ("succeeded", False))
            late = outcome({"op": "allocate", "key": "late", "profile": "T4-4Q"})
            self.assertEqual((late["state"], late["failure"]["code"]), ("refused", "released_before_allocate"))
            for _ in range(2):
                used = outcome({"op": "allocate", "key": "used", "profile": "T4-4Q"})
                self.assertEqual(used["state"], "succeeded", used)
                self.assertEqual(outcome({"op": "release", "key": "used"})["outcome"]["existed"], True)
            other = outcome({"op": "allocate", "key": "spec", "profile": "T4-4Q"})
            self.assertEqual(other["state"], "succeeded")
            other = outcome({"op": "allocate", "key": "spec", "profile": "T4-8Q"})
            self.assertEqual((other["state"], other["failure"]["code"]), ("refused", "use_resize"))
            for unsupported in ({"op": "reset", "target": {"host": "gpu-1", "gpu": 0}}, {"op": "resize", "key": "spec", "profile": "T4-8Q"}):
                refused = outcome(unsupported)
                self.assertEqual((refused["state"], refused["failure"]["code"]), ("refused", "not_supported"))
            renewed = outcome({"op": "renew", "key": "spec", "ttl_s": 3600})
            self.assertEqual(renewed["outcome"]["kind"], "renewed", renewed)

    def test_a_reboot_of_the_host_brings_every_partition_back_under_its_id(self):
        with self.machine() as machine:
            machine.start()
            _, _, body = machine.post(ALLOCATE)
            self.assertEqual(machine.final(body["operations"][0]["status_url"])["state"], "succeeded")
            before = machine.mdevs()
            machine.simulate({"reboot": {}})
            wait_until(lambda: machine.mdevs() == before, "the partitions to come back", alive=machine.alive)

    def test_a_lease_that_runs_out_is_removed_and_reported(self):
        with self.machine() as machine:
            machine.start()
            lease = {"op": "allocate", "key": "short", "profile": "T4-8Q", "ttl_s": 2}
            status, _, body = machine.post(lease)
            self.assertEqual(status, 202, body)
            self.assertEqual(machine.final(body["operations"][0]["status_url"])["state"], "succeeded")
            wait_until(lambda: machine.mdevs() == [], "the lease to end", alive=machine.alive)
            ended = "dev.gpuhook.allocation.expired.v1"
            wait_until(
                lambda: any(json.loads(b)["type"] == ended for _, b in list(machine.receiver.callbacks)),
                "the callback about the ended lease", alive=machine.alive,
            )
            listed = lambda: machine.get("/v1/allocations")[2]["items"] == []
            wait_until(listed, "the allocation to leave the list", alive=machine.alive)

    def test_other_tenants_see_nothing_but_occupied_slices(self):
        with self.machine() as machine:
            machine.start()
            _, _, body = machine.post(ALLOCATE)
            url = body["operations"][0]["status_url"]
            self.assertEqual(machine.final(url)["state"], "succeeded")
            rival = machine.other_token
            self.assertEqual(machine.get(url, token=rival)[0], 404)
            self.assertEqual(machine.get("/v1/operations", token=rival)[2]["items"], [])
            self.assertEqual(machine.get("/v1/allocations", token=rival)[2]["items"], [])
            status, _, hosts = machine.get("/v1/hosts", token=rival)
            self.assertEqual(status, 200)
            self.assertNotIn(ALLOCATE["key"], json.dumps(hosts))
            self.assertNotIn("acme", json.dumps(hosts))
            self.assertIn("occupied", json.dumps(hosts))
            self.assertEqual(machine.get("/v1/hosts", token="gpht_wrong")[0], 401)
            path = "/v1/allocations/" + urllib.parse.quote(ALLOCATE["key"], safe="")
            delete = lambda token: machine.request("DELETE", path, headers={"authorization": f"Bearer {token}"})
            self.assertEqual(delete(rival)[0], 403, "a token without roles only reads")
            self.assertEqual(len(machine.mdevs()), 2)
            self.assertEqual(machine.get(path)[2]["key"], ALLOCATE["key"])
            status, _, body = delete(machine.token)
            self.assertEqual(status, 202, body)
            self.assertEqual(machine.final(body["operations"][0]["status_url"])["state"], "succeeded")
            self.assertEqual(machine.mdevs(), [])


if __name__ == "__main__":
    unittest.main()
