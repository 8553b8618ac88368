"""What only a real AWS account can tell: the open points that emulators cannot settle, each asked, and its
answer set beside what the code and the documents assume. Makes two queues, a table and nothing else, under
names of their own, and removes them again.

    cargo xtask live-aws                     queue and table, with your own credentials
    cargo xtask live-aws -- --stack gpuhook  and the front door of an installation
"""

import argparse
import json
import sys
import time
import urllib.error
import urllib.request
import uuid

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

LONG_POLL = Config(read_timeout=40, retries={"max_attempts": 1})


class Live:
    """One run: its clients, what it made, what it found."""

    def __init__(self, arguments):
        session = boto3.Session(profile_name=arguments.profile, region_name=arguments.region)
        client = lambda name: session.client(name, endpoint_url=arguments.endpoint, config=LONG_POLL)
        self.queues, self.tables, self.stacks = client("sqs"), client("dynamodb"), client("cloudformation")
        self.stack = arguments.stack
        self.name = f"gpuhook-live-{uuid.uuid4().hex[:8]}"
        self.found = []
        account = client("sts").get_caller_identity()
        print(f"account {account['Account']}, region {session.region_name}, as {account['Arn']}")

    def note(self, question, seen, assumed):
        self.found.append((question, str(seen), str(assumed)))
        print(f"{'as assumed' if str(seen) == str(assumed) else 'DIFFERENT '}  {question}: {seen} (assumed: {assumed})")

    def queue(self, suffix, **attributes):
        return self.queues.create_queue(QueueName=self.name + suffix, Attributes=attributes)["QueueUrl"]

    def code(self, call, **arguments):
        """The error code of a call, or `ok`."""
        try:
            call(**arguments)
            return "ok"
        except ClientError as error:
            return error.response["Error"]["Code"]

    # -- queues ----------------------------------------------------------------------------------

    def ask_queues(self):
        standard = self.queue("")
        fifo = self.queue(
            ".fifo", FifoQueue="true", DeduplicationScope="messageGroup", FifoThroughputLimit="perMessageGroupId", VisibilityTimeout="2"
        )
        try:
            size = self.queues.get_queue_attributes(QueueUrl=standard, AttributeNames=["MaximumMessageSize"])
            self.note("MaximumMessageSize of a queue that names none", size["Attributes"]["MaximumMessageSize"], 1048576)
            self.note("a control character in a body", self.code(self.queues.send_message, QueueUrl=standard, MessageBody="a\u0001b"), "InvalidMessageContents")
            self.ask_receipts(fifo)
            self.ask_deduplication(fifo)
        finally:
            self.queues.delete_queue(QueueUrl=standard)
            self.queues.delete_queue(QueueUrl=fifo)

    def send(self, fifo, group, dedup):
        return self.queues.send_message(QueueUrl=fifo, MessageBody=f"{group}/{dedup}", MessageGroupId=group, MessageDeduplicationId=dedup)

    def receive(self, fifo, wait_s=20):
        got = self.queues.receive_message(QueueUrl=fifo, MaxNumberOfMessages=1, WaitTimeSeconds=wait_s, MessageSystemAttributeNames=["All"])
        return (got.get("Messages") or [None])[0]

    def ask_receipts(self, fifo):
        self.send(fifo, "a", "1")
        first = self.receive(fifo)
        sender = first["Attributes"]["SenderId"]
        self.note("SenderId has the form ROLE-ID:SESSION or a user's id", ":" in sender or sender.startswith("AID"), True)
        second = self.receive(fifo)
        self.note("a message comes again after its visibility timeout", second and second["Attributes"]["ApproximateReceiveCount"], 2)
        late = self.code(self.queues.delete_message, QueueUrl=fifo, ReceiptHandle=first["ReceiptHandle"])
        # All of these are `Lost` to the agent (backplane/src/aws/receiver.rs).
        self.note("deleting with an expired receipt of a FIFO queue is known to the agent", late in ("ok", "InvalidParameterValue", "ReceiptHandleIsInvalid"), True)
        late = self.code(self.queues.change_message_visibility, QueueUrl=fifo, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0)
        known = ("ok", "InvalidParameterValue", "ReceiptHandleIsInvalid", "AWS.SimpleQueueService.MessageNotInflight", "MessageNotInflight")
        self.note("changing visibility with it is known to the agent", late in known, True)
        third = self.receive(fifo)
        self.note("the late receipt deleted nothing", third is not None, True)
        self.queues.delete_message(QueueUrl=fifo, ReceiptHandle=third["ReceiptHandle"])

    def ask_deduplication(self, fifo):
        first, second = self.send(fifo, "b", "2"), self.send(fifo, "b", "2")
        self.note("a duplicate has the first one's number", first["SequenceNumber"] == second["SequenceNumber"], True)
        self.send(fifo, "c", "2")
        bodies = set()
        while message := self.receive(fifo, wait_s=3):
            bodies.add(message["Body"])
            self.queues.delete_message(QueueUrl=fifo, ReceiptHandle=message["ReceiptHandle"])
        self.note("the window is per group", sorted(bodies), ["b/2", "c/2"])

    # -- table -----------------------------------------------------------------------------------

    def ask_table(self):
        self.tables.create_table(
            TableName=self.name,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk")],
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        )
        self.tables.get_waiter("table_exists").wait(TableName=self.name, WaiterConfig={"Delay": 2, "MaxAttempts": 60})
        try:
            item = {"pk": {"S": "a"}, "sk": {"S": "-"}, "ver": {"N": "1"}}
            put = {"Put": {"TableName": self.name, "Item": item, "ConditionExpression": "attribute_not_exists(pk)"}}
            token = uuid.uuid4().hex
            write = lambda token: self.code(self.tables.transact_write_items, TransactItems=[put], ClientRequestToken=token)
            self.note("a transaction", write(token), "ok")
            self.note("the same token again", write(token), "ok")
            self.note("another token", write(uuid.uuid4().hex), "TransactionCanceledException")
            many = [{"Put": {"TableName": self.name, "Item": item | {"sk": {"S": str(n)}}}} for n in range(101)]
            over = self.code(self.tables.transact_write_items, TransactItems=many)
            self.note("a transaction of 101 items", over, "ValidationException")
        finally:
            self.tables.delete_table(TableName=self.name)

    # -- the front door --------------------------------------------------------------------------

    def ask_door(self):
        outputs = self.stacks.describe_stacks(StackName=self.stack)["Stacks"][0]["Outputs"]
        url = next(output["OutputValue"] for output in outputs if output["OutputKey"] == "ApiUrl")

        def status(path, body=None, headers=()):
            request = urllib.request.Request(url + path, data=body, headers=dict(headers))
            try:
                with urllib.request.urlopen(request, timeout=35) as answer:
                    return answer.status
            except urllib.error.HTTPError as error:
                return error.code

        self.note("the door is there", status("/healthz"), 200)
        json_type = {"content-type": "application/json"}
        self.note("an unsigned webhook", status("/v1/hooks/nobody", b"{}", json_type), 404)
        self.note("a body that is no UTF-8 in JSON's name", status("/v1/hooks/nobody", b"\xff\xfe\x00", json_type), 404)
        self.note("a binary body", status("/v1/hooks/nobody", b"\xff\xfe\x00", {"content-type": "application/octet-stream"}), 415)
        self.note("a body of 5 MB", status("/v1/hooks/nobody", b"x" * 5_000_000, json_type), 413)
        self.note("an encoded slash in a path", status("/v1/allocations/a%2Fb"), 401)
        # Cut at the decoded `?`, it would be another key's path: then keys with `?` must be refused.
        self.note("an encoded question mark in a path is no query", status("/v1/operations%3Flimit=x"), 404)
        begun = time.monotonic()
        self.note("the door, warm", status("/healthz"), 200)
        print(f"            answered in {(time.monotonic() - begun) * 1000:.0f} ms from here")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stack", help="an installation's stack, to ask its front door too")
    parser.add_argument("--profile")
    parser.add_argument("--region")
    parser.add_argument("--endpoint", help="an emulator, to try this program itself")
    live = Live(parser.parse_args())
    live.ask_queues()
    live.ask_table()
    if live.stack:
        live.ask_door()
    else:
        print("front door not asked: name an installation with --stack")
    print("not asked here: Roles Anywhere's session name and SenderId (needs an enrolled host), the 12 h of a visibility timeout")
    different = [question for question, seen, assumed in live.found if seen != assumed]
    print(json.dumps({"asked": len(live.found), "different": different}))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
