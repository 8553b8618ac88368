"""Queue and table are cut off in the middle of many operations: the front door answers 503 or success
and never a false 202, and afterwards nothing is lost and nothing was done twice (field F04).

The default is a short form; `cargo xtask nightly` cuts for a minute in the middle of 1,000 operations."""

import collections
import json
import os
import secrets
import sys
import threading
import time
import unittest

from cloud import Cloud
from machine import wait_until

OPERATIONS = int(os.environ.get("GPUHOOK_OUTAGE_OPERATIONS", "48"))
CUT_S = float(os.environ.get("GPUHOOK_OUTAGE_S", "6"))
SENDERS = 8


class Sender(threading.Thread):
    """Allocates and releases one key after the other; sends again what was not accepted, under the same
    id, as every webhook sender does."""

    def __init__(self, machine, number):
        super().__init__(daemon=True)
        self.machine, self.number = machine, number
        self.answers = collections.Counter()
        self.accepted = []
        self.error = None

    def run(self):
        try:
            for pair in range(self.number, OPERATIONS // 2, SENDERS):
                key = f"outage:{pair}"
                self.carry_out({"op": "allocate", "key": key, "profile": "T4-1Q"})
                self.carry_out({"op": "release", "key": key})
        except BaseException as error:  # Reported by the test.
            self.error = error

    def carry_out(self, operation):
        message_id = "msg_" + secrets.token_hex(12)

        def send():
            status, _, body = self.machine.post(operation, message_id=message_id)
            self.answers[status] += 1
            # 409: the first arrival is still being worked on.
            assert status in (202, 409, 503), (status, body)
            return body if status == 202 else None

        body = wait_until(send, "a 202", deadline_s=300)
        op_id = body["operations"][0]["op_id"]
        self.accepted.append(op_id)

        def read():
            status, _, body = self.machine.get(f"/v1/operations/{op_id}")
            assert status in (200, 503), (status, body)
            return body if status == 200 and body["state"] not in ("queued", "running") else None

        final = wait_until(read, f"the end of {operation}", deadline_s=300)
        assert final["state"] == "succeeded", final


class Outage(unittest.TestCase):
    def test_an_outage_of_queue_and_table_loses_and_doubles_nothing(self):
        with Cloud(cut=True).deploy() as machine:
            machine.start()
            senders = [Sender(machine, number) for number in range(SENDERS)]
            for sender in senders:
                sender.start()
            done = lambda: sum(len(sender.accepted) for sender in senders)
            wait_until(lambda: done() >= OPERATIONS // 4, "a quarter of the operations", deadline_s=600)
            machine.proxy.cut()
            begun = time.monotonic()
            # Somebody has to notice, and the time has to pass.
            refused = lambda: sum(sender.answers[503] for sender in senders)
            wait_until(lambda: refused() and time.monotonic() - begun >= CUT_S, "the outage", deadline_s=CUT_S + 60)
            machine.proxy.mend()
            for sender in senders:
                sender.join(timeout=900)
                self.assertFalse(sender.is_alive(), "a sender is stuck")
                if sender.error:
                    raise sender.error
            self.judge(machine, senders)

    def judge(self, machine, senders):
        accepted = [op_id for sender in senders for op_id in sender.accepted]
        answers = sum((sender.answers for sender in senders), collections.Counter())
        print(f"outage: {len(accepted)} operations, answers {dict(answers)}", file=sys.stderr)
        self.assertEqual(len(accepted), OPERATIONS)
        self.assertEqual(len(set(accepted)), OPERATIONS, "every webhook is one operation")
        self.assertGreater(answers[503], 0, "the outage was not noticed")
        known, after = [], ""
        while True:
            listing = machine.get(f"/v1/operations?limit=200{after}")[2]
            known += [operation["op_id"] for operation in listing["items"]]
            if not listing.get("next"):
                break
            after = f"&after={listing['next']}"
        self.assertEqual(sorted(known), sorted(accepted), "nothing is known but what was answered 202")
        self.assertEqual(machine.get("/v1/allocations")[2]["items"], [])
        wait_until(lambda: machine.mdevs() == [], "the hardware to be as before", alive=machine.alive)
        wait_until(lambda: len(self.told(machine)) == OPERATIONS, "every callback", deadline_s=180, alive=machine.alive)
        for op_id, ids in self.told(machine).items():
            self.assertEqual(len(ids), 1, f"{op_id} ended once")

    def told(self, machine):
        told = collections.defaultdict(set)
        for headers, body in list(machine.receiver.callbacks):
            op_id = json.loads(body)["data"].get("op_id")
            if op_id:
                told[op_id].add({name.lower(): value for name, value in headers.items()}["webhook-id"])
        return told


if __name__ == "__main__":
    unittest.main()
