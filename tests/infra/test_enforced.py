"""Permissions as a third party enforces them: PyPI `ministack` with AUTH=true deploys the templates, and
every call is made under a role with the very policies that a template gives.

What it has differently from AWS, and what is done about it here: functions' roles are for Lambda alone, so
that each role's policies are copied to one that the test may assume; a secret's `Ref` is its name, which is
put right in the copy; variables in a resource are not filled in, so that the test fills in a host's name;
`aws:PrincipalArn` is a session's, so that host.yaml is given sessions as the roles that may send.
"""

import contextlib
import io
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
import zipfile

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from cloudformation import HOST, INSTALLATION, ROLES_ANYWHERE, load, spelt

MINISTACK = pathlib.Path(sys.executable).with_name("ministack")
ACCOUNT = "000000000000"
KEY = {"pk": {"S": "HOSTS"}, "sk": {"S": "-"}}
FUNCTIONS = ("webhook", "results", "deliver", "sweep")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Cloud:
    """A third party's cloud that checks signatures and policies."""

    def __init__(self, folder):
        port = free_port()
        self.endpoint = f"http://127.0.0.1:{port}"
        environment = {"PATH": os.environ["PATH"], "HOME": folder, "TMPDIR": folder, "AUTH": "true"}
        environment |= {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port)}
        self.log = open(pathlib.Path(folder) / "log", "w")  # noqa: SIM115, closed below
        self.process = subprocess.Popen(
            [MINISTACK], env=environment, cwd=folder, stdout=self.log, stderr=self.log
        )
        deadline = time.monotonic() + 60
        while not self._healthy():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError("MiniStack did not start")

    def _healthy(self):
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"{self.endpoint}/_ministack/health", timeout=5).status == 200
        return False

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=30)
        self.log.close()

    def client(self, service, keys=None, over="https"):
        """A client of the account, or of a session; it says how it claims to have come."""
        keys = keys or {"AccessKeyId": "test", "SecretAccessKey": "test", "SessionToken": None}
        client = boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=keys["AccessKeyId"],
            aws_secret_access_key=keys["SecretAccessKey"],
            aws_session_token=keys["SessionToken"],
            config=Config(retries={"max_attempts": 0}),
        )

        def come_over(request, **_):
            request.headers["X-Forwarded-Proto"] = over

        client.meta.events.register("before-send", come_over)
        return client

    def deploy(self, name, text, **parameters):
        given = [{"ParameterKey": k, "ParameterValue": v} for k, v in parameters.items()]
        stacks = self.client("cloudformation")
        allowed = ["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"]
        stacks.create_stack(StackName=name, TemplateBody=text, Parameters=given, Capabilities=allowed)
        deadline = time.monotonic() + 60
        while True:
            stack = stacks.describe_stacks(StackName=name)["Stacks"][0]
            if stack["StackStatus"] == "CREATE_COMPLETE":
                return {o["OutputKey"]: o["OutputValue"] for o in stack.get("Outputs", [])}
            if not stack["StackStatus"].endswith("IN_PROGRESS") or time.monotonic() > deadline:
                raise AssertionError(f"{name}: {stack['StackStatus']} {stack.get('StackStatusReason')}")

    def session(self, name, policies):
        """Keys of a role that the test may assume, with these policies."""
        iam = self.client("iam")
        trust = {"Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}}
        trust["Action"] = "sts:AssumeRole"
        document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
        role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=document)["Role"]["Arn"]
        for number, policy in enumerate(policies):
            text = json.dumps(policy)
            iam.put_role_policy(RoleName=name, PolicyName=f"p{number}", PolicyDocument=text)
        sts = self.client("sts")
        return sts.assume_role(RoleArn=role, RoleSessionName="session")["Credentials"]



def nothing():
    """A package that is deployed and never run."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("bootstrap", "#!/bin/sh\n")
    return packed.getvalue()


class Enforced(unittest.TestCase):
    """Roles of functions and hosts, in use."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="gpuhook-enforced-")
        cls.addClassCleanup(folder.cleanup)
        cls.cloud = Cloud(folder.name)
        cls.addClassCleanup(cls.cloud.close)
        store = cls.cloud.client("s3")
        store.create_bucket(Bucket="code")
        store.put_object(Bucket="code", Key="nothing.zip", Body=nothing())
        text = INSTALLATION.read_text().replace("CodeUri: lambda", "CodeUri: s3://code/nothing.zip")
        cls.cloud.deploy("installation", text, Architecture="x86_64")
        session = f"arn:aws:sts::{ACCOUNT}:assumed-role/{{}}/session"
        senders = {
            "WebhookRoleArn": session.format("as-webhook"),
            "SweepRoleArn": session.format("as-sweep"),
        }
        for host in ("t4", "a100"):
            cls.cloud.deploy(host, HOST.read_text(), Host=host, **senders)
        cls.sessions = {name: cls._as_function(name) for name in FUNCTIONS}
        cls.sessions |= {host: cls._as_host(host) for host in ("t4", "a100")}

    @classmethod
    def _as_function(cls, name):
        stacks, iam = cls.cloud.client("cloudformation"), cls.cloud.client("iam")
        found = stacks.describe_stack_resource(
            StackName="installation", LogicalResourceId=f"{name.title()}Role"
        )
        role = found["StackResourceDetail"]["PhysicalResourceId"]
        policies = []
        for policy in iam.list_role_policies(RoleName=role)["PolicyNames"]:
            got = iam.get_role_policy(RoleName=role, PolicyName=policy)["PolicyDocument"]
            policies.append(cls._with_secrets(got if isinstance(got, dict) else json.loads(got)))
        return cls.cloud.session(f"as-{name}", policies)

    @classmethod
    def _with_secrets(cls, policy):
        secrets = {s["Name"]: s["ARN"] for s in cls.cloud.client("secretsmanager").list_secrets()["SecretList"]}
        for statement in policy["Statement"]:
            if statement["Action"] == "secretsmanager:GetSecretValue":
                statement["Resource"] = [secrets[name] for name in statement["Resource"]]
        return policy

    @classmethod
    def _as_host(cls, host):
        """A session as Roles Anywhere gives it for a certificate of this name."""
        role = load(ROLES_ANYWHERE)["Resources"]["HostRole"]["Properties"]
        policy = role["Policies"][0]["PolicyDocument"]
        for statement in policy["Statement"]:
            resource = spelt(statement["Resource"]).replace("${AWS::Partition}", "aws")
            resource = resource.replace("${AWS::Region}", "us-east-1")
            resource = resource.replace("${AWS::AccountId}", ACCOUNT).replace("${Prefix}", "gpuhook")
            statement["Resource"] = resource.replace("${!aws:PrincipalTag/x509Subject/CN}", host)
        return cls.cloud.session(f"as-{host}", [policy])

    def may(self, who, service, call, over="https", **arguments):
        """Whether a session may make a call."""
        client = self.cloud.client(service, self.sessions[who], over)
        try:
            getattr(client, call)(**arguments)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            self.assertIn(code, ("AccessDenied", "AccessDeniedException"), error)
            return False
        return True

    def who_may(self, service, call, **arguments):
        return {who for who in self.sessions if self.may(who, service, call, **arguments)}

    def queue(self, name):
        return f"{self.cloud.endpoint}/{ACCOUNT}/gpuhook-{name}"

    def test_only_front_door_and_sweep_send_commands(self):
        command = {"MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "1"}
        for host in ("t4", "a100"):
            url = self.queue(f"cmd-{host}.fifo")
            self.assertEqual(self.who_may("sqs", "send_message", QueueUrl=url, **command), {"webhook", "sweep"})

    def test_a_host_receives_its_own_commands_and_no_others(self):
        for host in ("t4", "a100"):
            url = self.queue(f"cmd-{host}.fifo")
            self.assertEqual(self.who_may("sqs", "receive_message", WaitTimeSeconds=0, QueueUrl=url), {host})
            dead = self.queue(f"cmd-{host}-dlq.fifo")
            self.assertEqual(self.who_may("sqs", "receive_message", WaitTimeSeconds=0, QueueUrl=dead), set())
            self.assertEqual(self.who_may("sqs", "purge_queue", QueueUrl=url), set())

    def test_hosts_post_results_and_only_the_results_function_takes_them(self):
        url = self.queue("results")
        self.assertEqual(self.who_may("sqs", "send_message", QueueUrl=url, MessageBody="x"), {"t4", "a100"})
        self.assertEqual(self.who_may("sqs", "receive_message", WaitTimeSeconds=0, QueueUrl=url), {"results"})

    def test_results_and_sweep_wake_the_delivery_of_callbacks(self):
        url = self.queue("callbacks")
        self.assertEqual(self.who_may("sqs", "send_message", QueueUrl=url, MessageBody="x"), {"results", "sweep"})
        self.assertEqual(self.who_may("sqs", "receive_message", WaitTimeSeconds=0, QueueUrl=url), {"deliver"})

    def test_secrets_are_read_by_whom_they_are_for(self):
        readers = {
            "config": {"webhook", "deliver", "sweep"},
            "sources": {"webhook"},
            "signing": {"webhook", "sweep"},
            "callbacks": {"deliver"},
        }
        for secret, wanted in readers.items():
            found = self.who_may("secretsmanager", "get_secret_value", SecretId=f"gpuhook/{secret}")
            self.assertEqual(found, wanted, secret)

    def test_functions_use_the_table_and_delete_nothing(self):
        put = [{"Put": {"TableName": "gpuhook", "Item": KEY}}]
        listed = {"KeyConditionExpression": "due_pk = :p", "ExpressionAttributeValues": {":p": {"S": "x"}}}
        functions = set(FUNCTIONS)
        self.assertEqual(self.who_may("dynamodb", "transact_write_items", TransactItems=put), functions)
        self.assertEqual(
            self.who_may("dynamodb", "query", TableName="gpuhook", IndexName="due", **listed), functions
        )
        wanted = {"gpuhook": {"Keys": [KEY]}}
        self.assertEqual(self.who_may("dynamodb", "batch_get_item", RequestItems=wanted), functions)
        for call in ("delete_item", "get_item"):
            self.assertEqual(self.who_may("dynamodb", call, TableName="gpuhook", Key=KEY), set(), call)
        self.assertEqual(self.who_may("dynamodb", "scan", TableName="gpuhook"), set())

    def test_queues_are_not_spoken_to_in_clear_text(self):
        url = self.queue("cmd-t4.fifo")
        self.assertTrue(self.may("t4", "sqs", "receive_message", WaitTimeSeconds=0, QueueUrl=url))
        self.assertFalse(self.may("t4", "sqs", "receive_message", over="http", WaitTimeSeconds=0, QueueUrl=url))
        url = self.queue("results")
        self.assertFalse(self.may("t4", "sqs", "send_message", over="http", QueueUrl=url, MessageBody="x"))


if __name__ == "__main__":
    unittest.main()
