"""The spine once more, through API Gateway, Lambda, SQS and DynamoDB as a third party has them."""

import json
import re
import subprocess
import unittest

import test_durability
import test_spine
from cloud import Cloud
from machine import BIN, wait_until


class CloudSpine(test_spine.Spine):
    def machine(self):
        return Cloud().deploy()


class CloudCrash(test_durability.Crash):
    def machine(self):
        return Cloud().deploy()


class Operator(unittest.TestCase):
    """What an operator of an installation types."""

    def test_a_host_is_enrolled_listed_drained_and_removed(self):
        with Cloud().deploy() as machine:
            again = machine.gpuhook("host", "add", "gpu-1", "--pool", "default", "--public-key", self.key(machine), "--out", machine.folder)
            self.assertIn("host gpu-1 is enrolled", again.stdout)
            self.assertIn("sudo sh -c", again.stdout)
            self.assertEqual(self.stacks(machine), ["gpuhook", "gpuhook-host-gpu-1"])
            self.assertIn("last heard never", machine.gpuhook("host", "list").stdout)
            machine.start()
            listed = json.loads(machine.gpuhook("host", "list", "--json").stdout)
            self.assertEqual([(host["host"], host["gpus"]) for host in listed], [("gpu-1", 2)])
            _, _, body = machine.post({"op": "allocate", "key": "last", "profile": "T4-4Q"})
            self.assertEqual(machine.final(body["operations"][0]["status_url"])["state"], "succeeded")
            drained = machine.gpuhook("host", "remove", "gpu-1").stdout
            self.assertIn("still holds 1 allocations and 0 open operations", drained)
            status, _, body = machine.post({"op": "allocate", "key": "more", "profile": "T4-4Q"})
            self.assertEqual(status, 422, body)
            self.assertIn("is being removed", json.dumps(body))
            self.assertIn("being removed", machine.gpuhook("host", "list").stdout)
            _, _, body = machine.post({"op": "release", "key": "last"})
            self.assertEqual(machine.final(body["operations"][0]["status_url"])["state"], "succeeded")
            self.assertIn("is removed", machine.gpuhook("host", "remove", "gpu-1").stdout)
            self.assertEqual(self.stacks(machine), ["gpuhook"])
            self.assertIn("no hosts", machine.gpuhook("host", "list").stdout)
            machine.gpuhook("host", "remove", "gpu-1")

    def test_a_dead_host_is_removed_and_what_it_held_is_freed(self):
        with Cloud().deploy() as machine:
            machine.start()
            _, _, body = machine.post({"op": "allocate", "key": "held", "profile": "T4-4Q"})
            self.assertEqual(machine.final(body["operations"][0]["status_url"])["state"], "succeeded")
            machine.kill()
            _, _, body = machine.post({"op": "allocate", "key": "waiting", "profile": "T4-4Q"})
            waiting = body["operations"][0]
            self.assertIn("is removed", machine.gpuhook("host", "remove", "gpu-1", "--lost").stdout)
            operation = machine.get(waiting["status_url"])[2]
            self.assertEqual((operation["state"], operation["failure"]["code"]), ("expired", "host_silent"))
            self.assertEqual(machine.get("/v1/allocations")[2]["items"], [])
            # The delivery of callbacks looks by itself each minute.
            told = lambda: machine.callbacks_about(waiting["op_id"])
            wait_until(told, "the callback", deadline_s=150, alive=lambda: machine.stack.process.poll() is None)

    def test_a_lost_ledger_is_rebuilt_from_what_the_table_knows(self):
        with Cloud().deploy() as machine:
            machine.start()
            _, _, body = machine.post({"op": "allocate", "key": "kept", "profile": "T4-4Q", "count": 2})
            self.assertEqual(machine.final(body["operations"][0]["status_url"])["state"], "succeeded")
            before = machine.mdevs()
            machine.kill()
            for file in (machine.folder / "agent").glob("ledger.db*"):
                file.unlink()
            statement = machine.folder / "gpu-1.holdings"
            written = machine.gpuhook("host", "holdings", "gpu-1", "--aws", "--data", machine.folder, "--out", statement)
            self.assertIn("1 allocations and 0 open operations", written.stdout)
            rebuilt = subprocess.run(
                [BIN / "gpuhook-agent", "rebuild", "--config", machine.folder / "agent.toml", statement],
                capture_output=True, text=True, timeout=60,
            )
            self.assertEqual(rebuilt.returncode, 0, rebuilt.stderr)
            machine.start()
            self.assertEqual(machine.mdevs(), before)
            _, _, body = machine.post({"op": "release", "key": "kept"})
            self.assertEqual(machine.final(body["operations"][0]["status_url"])["outcome"]["existed"], True)
            self.assertEqual(machine.mdevs(), [])

    def test_what_would_be_done_is_shown_and_what_is_missing_is_said(self):
        with Cloud().deploy() as machine:
            plan = machine.gpuhook("host", "add", "gpu-2", "--pool", "default", "--print").stdout
            for part in ("stack gpuhook-host-gpu-2", "creates SQS::Queue", "Host = gpu-2", "nothing was created"):
                self.assertIn(part, plan)
            self.assertEqual(self.stacks(machine), ["gpuhook", "gpuhook-host-gpu-1"])
            missing = machine.gpuhook("host", "list", "--stack", "elsewhere", check=False)
            self.assertNotEqual(missing.returncode, 0)
            self.assertIn("there is no stack elsewhere: deploy template.yaml first", missing.stderr)
            # Pushed again, nothing is written.
            self.assertEqual(machine.gpuhook("config", "push", "--data", machine.folder).stdout.count("as it was"), 4)
            held = machine.stack.client("secretsmanager").get_secret_value(SecretId="gpuhook/signing")
            self.assertEqual(list(json.loads(held["SecretString"])), ["keys/function.whsk"])

    def key(self, machine):
        return re.search(r'public_key = "(.*)"', (machine.folder / "gpuhook.toml").read_text()).group(1)

    def stacks(self, machine):
        stacks = machine.stack.client("cloudformation").describe_stacks()["Stacks"]
        return sorted(stack["StackName"] for stack in stacks if stack["StackStatus"] != "DELETE_COMPLETE")


class Strangers(unittest.TestCase):
    """Events that nobody should send."""

    def test_no_event_kills_a_function_and_no_record_holds_up_another(self):
        with Cloud().deploy() as machine:
            machine.start()
            functions = machine.stack.client("lambda")
            http = {"version": "2.0", "rawPath": "/v1/hooks/ci", "requestContext": {"http": {"method": "POST"}}, "headers": {}}
            for event in (
                http | {"body": "%%%", "isBase64Encoded": True},
                http | {"headers": {"webhook-id": "a\u0000b"}},
                http | {"body": "x" * 5_000_000, "headers": {"content-type": "application/json"}},
                http,
                {},
                [],
                "text",
                {"Records": [{}]},
            ):
                for name in ("webhook", "results", "deliver", "sweep"):
                    functions.invoke(FunctionName=f"gpuhook-{name}", Payload=json.dumps(event).encode())
                    self.assertEqual(machine.request("GET", "/healthz")[0], 200)
            results = machine.stack.client("sqs")
            for body in ("junk", "{}", "bnVsbA==", '{"payload":"","payloadType":"x","signatures":[]}'):
                results.send_message(QueueUrl=machine.outputs["ResultsQueueUrl"], MessageBody=body)
            _, _, body = machine.post({"op": "allocate", "key": "among-junk", "profile": "T4-4Q"})
            self.assertEqual(machine.final(body["operations"][0]["status_url"])["state"], "succeeded")

            def left():
                counts = results.get_queue_attributes(QueueUrl=machine.outputs["ResultsQueueUrl"], AttributeNames=["All"])["Attributes"]
                return counts["ApproximateNumberOfMessages"] == counts["ApproximateNumberOfMessagesNotVisible"] == "0"

            wait_until(left, "the junk to be put away", alive=machine.alive)


if __name__ == "__main__":
    unittest.main()
