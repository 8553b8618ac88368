"""The installation as the programs expect it: variables, secrets, names, logs, limits, alarms."""

import re
import unittest

from cloudformation import HOST, INSTALLATION, ROLES_ANYWHERE, ROOT, load, of_type, spelt
from permissions import GRANTS

FUNCTIONS = {
    "WebhookFunction": "webhook",
    "ResultsFunction": "results",
    "DeliverFunction": "deliver",
    "SweepFunction": "sweep",
}


class Installation(unittest.TestCase):
    """template.yaml."""

    def setUp(self):
        self.template = load(INSTALLATION)
        self.functions = of_type(self.template, "AWS::Serverless::Function")
        self.shared = self.template["Globals"]["Function"]

    def test_each_program_of_the_lambda_crate_is_a_function(self):
        programs = {path.stem for path in (ROOT / "lambda/src/bin").glob("*.rs")}
        built = {
            name: self.template["Resources"][name]["Metadata"]["BuildProperties"]["Binary"]
            for name in self.functions
        }
        self.assertEqual(built, FUNCTIONS)
        self.assertEqual(programs, set(FUNCTIONS.values()))
        for name, function in self.functions.items():
            self.assertEqual(function["CodeUri"], "lambda", name)
            method = self.template["Resources"][name]["Metadata"]["BuildMethod"]
            self.assertEqual(method, "rust-cargolambda", name)

    def test_functions_run_on_the_architecture_that_they_are_built_for(self):
        self.assertEqual(self.shared["Runtime"], "provided.al2023")
        self.assertEqual(self.shared["Architectures"], [{"Ref": "Architecture"}])
        self.assertEqual(self.shared["MemorySize"], 1024)
        choice = self.template["Parameters"]["Architecture"]
        self.assertEqual((choice["Default"], choice["AllowedValues"]), ("arm64", ["arm64", "x86_64"]))

    def test_every_variable_that_programs_read_is_set(self):
        code = (ROOT / "lambda/src/environment.rs").read_text().split("#[cfg(test)]")[0]
        read = set(re.findall(r'"(GPUHOOK_[A-Z_]+)"', code))
        self.assertGreater(len(read), 3)
        given = set(self.shared["Environment"]["Variables"])
        self.assertEqual(read - given, {"GPUHOOK_SECRETS"}, "which each function has its own of")
        self.assertEqual(given - read, set())

    def test_functions_are_given_the_secrets_that_they_may_read(self):
        for name, function in self.functions.items():
            variables = function.get("Environment", {}).get("Variables", {})
            listed = variables.get("GPUHOOK_SECRETS", {"Fn::Join": [",", []]})
            given = {spelt(secret) for secret in listed["Fn::Join"][1]}
            grants = GRANTS[f"{name.removesuffix('Function')}Role"]
            allowed = {on for action, on in grants if action.startswith("secretsmanager:")}
            self.assertEqual(given, allowed, name)

    def test_secrets_begin_empty_and_are_named_by_what_is_in_them(self):
        secrets = of_type(self.template, "AWS::SecretsManager::Secret")
        names = {spelt(secret["Name"]) for secret in secrets.values()}
        parts = ("config", "sources", "signing", "callbacks")
        self.assertEqual(names, {f"${{Prefix}}/{part}" for part in parts})
        for name, secret in secrets.items():
            self.assertEqual(secret["SecretString"], "{}", name)

    def test_every_log_is_kept_for_as_long_as_asked_and_no_longer(self):
        logs = of_type(self.template, "AWS::Logs::LogGroup")
        for name, log in logs.items():
            self.assertEqual(log["RetentionInDays"], {"Ref": "LogRetentionDays"}, name)
        used = {spelt(f["LoggingConfig"]["LogGroup"])[2:-1] for f in self.functions.values()}
        self.assertEqual(used | {"ApiLog"}, set(logs))
        self.assertEqual(len(used), len(self.functions))

    def test_access_log_holds_no_headers_no_paths_and_no_bodies(self):
        stage = of_type(self.template, "AWS::ApiGatewayV2::Stage")["ApiStage"]
        shown = set(re.findall(r"\$context\.([A-Za-z.]+)", stage["AccessLogSettings"]["Format"]))
        known = "requestId httpMethod status responseLength responseLatency"
        self.assertEqual(shown, {*known.split(), "integrationErrorMessage"})

    def test_prefix_is_one_that_a_table_may_have_as_its_name(self):
        for path in (INSTALLATION, HOST, ROLES_ANYWHERE):
            pattern = load(path)["Parameters"]["Prefix"]["AllowedPattern"]
            for prefix, allowed in (("gpu", True), ("gpuhook", True), ("gp", False), ("g" * 14, True), ("g" * 15, False)):
                self.assertEqual(bool(re.fullmatch(pattern, prefix)), allowed, (path, prefix))

    def test_sessions_of_hosts_may_be_as_long_as_can_be_asked_for(self):
        template = load(ROLES_ANYWHERE)
        asked = template["Parameters"]["SessionSeconds"]["MaxValue"]
        role = template["Resources"]["HostRole"]["Properties"]
        self.assertGreaterEqual(role.get("MaxSessionDuration", 3600), asked)

    def test_one_route_takes_everything_and_is_throttled(self):
        routes = of_type(self.template, "AWS::ApiGatewayV2::Route")
        self.assertEqual([route["RouteKey"] for route in routes.values()], ["$default"])
        integration = of_type(self.template, "AWS::ApiGatewayV2::Integration")["ApiIntegration"]
        self.assertEqual(integration["PayloadFormatVersion"], "2.0")
        stage = of_type(self.template, "AWS::ApiGatewayV2::Stage")["ApiStage"]
        limits = stage["DefaultRouteSettings"]
        self.assertEqual(limits["ThrottlingRateLimit"], {"Ref": "ThrottleRate"})
        self.assertEqual(limits["ThrottlingBurstLimit"], {"Ref": "ThrottleBurst"})

    def test_a_queue_waits_longer_than_its_function_runs(self):
        queues = of_type(self.template, "AWS::SQS::Queue")
        for name, function in self.functions.items():
            for event in function.get("Events", {}).values():
                if event["Type"] != "SQS":
                    continue
                source = event["Properties"]
                self.assertEqual(source["FunctionResponseTypes"], ["ReportBatchItemFailures"])
                queue = queues[source["Queue"]["Fn::GetAtt"][0]]
                self.assertGreaterEqual(queue["VisibilityTimeout"], function["Timeout"], name)

    def test_table_has_the_keys_that_the_store_uses(self):
        table = of_type(self.template, "AWS::DynamoDB::Table")["Table"]
        indexes = {index["IndexName"] for index in table["GlobalSecondaryIndexes"]}
        self.assertEqual(indexes, {"by_tenant", "by_host", "due"})
        keyed = {a["AttributeName"] for a in table["AttributeDefinitions"]}
        code = "".join(p.read_text() for p in (ROOT / "backplane/src/aws/table").rglob("*.rs"))
        for name in indexes | keyed:
            self.assertIn(f'"{name}"', code, "the store knows no such name")
        self.assertEqual(table["TimeToLiveSpecification"]["AttributeName"], "ttl")
        self.assertTrue(table["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"])
        self.assertTrue(table["SSESpecification"]["SSEEnabled"])
        self.assertEqual(self.template["Resources"]["Table"]["DeletionPolicy"], "Retain")

    def test_outputs_are_those_that_the_command_line_reads(self):
        wanted = "ApiUrl Prefix Region TableName QueueBase ResultsQueueUrl ResultsQueueArn"
        wanted += " WebhookRoleArn SweepRoleArn ConfigSecretArn SourcesSecretArn SigningSecretArn"
        self.assertEqual(set(self.template["Outputs"]), {*wanted.split(), "CallbacksSecretArn"})


class Host(unittest.TestCase):
    """infra/host.yaml."""

    def setUp(self):
        self.template = load(HOST)

    def test_commands_are_queued_by_gpu_and_given_up_after_five_receives(self):
        queue = of_type(self.template, "AWS::SQS::Queue")["Commands"]
        self.assertEqual(spelt(queue["QueueName"]), "${Prefix}-cmd-${Host}.fifo")
        self.assertEqual(queue["DeduplicationScope"], "messageGroup")
        self.assertEqual(queue["FifoThroughputLimit"], "perMessageGroupId")
        self.assertEqual(queue["RedrivePolicy"]["maxReceiveCount"], 5)
        # The agent's ledger remembers operations for longer than a queue keeps them.
        self.assertEqual(queue["MessageRetentionPeriod"], 14 * 86400)

    def test_no_host_can_be_named_like_the_dead_letters_of_another(self):
        pattern = self.template["Parameters"]["Host"]["AllowedPattern"]
        for name, allowed in (("t4", True), ("gpu-01", True), ("t4-dlq", False), ("T4", False)):
            self.assertEqual(bool(re.fullmatch(pattern, name)), allowed, name)


class Alarms(unittest.TestCase):
    """Of both templates."""

    def test_what_has_to_be_noticed_raises_an_alarm(self):
        watched = set()
        for path in (INSTALLATION, HOST):
            template = load(path)
            for name, alarm in of_type(template, "AWS::CloudWatch::Alarm").items():
                self.assertIn("HasAlarmTopic", str(alarm["AlarmActions"]), name)
                self.assertEqual(alarm["TreatMissingData"], "notBreaching", name)
                on = [spelt(d["Value"]) for d in alarm.get("Dimensions", [])]
                watched.add((spelt(alarm["MetricName"]), *on))
        self.assertEqual(
            watched,
            {
                ("ApproximateAgeOfOldestMessage", "${Commands.QueueName}"),
                ("ApproximateNumberOfMessagesVisible", "${DeadLetters.QueueName}"),
                ("ApproximateAgeOfOldestMessage", "${ResultsQueue.QueueName}"),
                ("ApproximateNumberOfMessagesVisible", "${ResultsDeadLetters.QueueName}"),
                ("5xx", "${Api}"),
                ("Errors", "${SweepFunction}"),
                ("Errors", "${DeliverFunction}"),
                ("${Prefix}-unauthorized",),
                ("${Prefix}-callbacks-given-up",),
                ("${Prefix}-host-silent",),
                ("${Prefix}-faults",),
            },
        )

    def test_every_metric_of_a_log_has_an_alarm(self):
        template = load(INSTALLATION)
        filters = of_type(template, "AWS::Logs::MetricFilter").values()
        made = {spelt(f["MetricTransformations"][0]["MetricName"]) for f in filters}
        alarms = of_type(template, "AWS::CloudWatch::Alarm").values()
        read = {spelt(a["MetricName"]) for a in alarms if a["Namespace"] == "gpuhook"}
        self.assertEqual(made, read)

    def test_alerts_that_are_looked_for_in_logs_are_written_there(self):
        patterns = INSTALLATION.read_text()
        code = "".join(
            p.read_text() for crate in ("lambda", "function", "backplane") for p in (ROOT / crate / "src").rglob("*.rs")
        )
        sought = set(re.findall(r'\$\.fields\.alert = "([a-z_]+)"', patterns))
        self.assertEqual(sought, {"start", "configuration", "host_silent", "unreadable"})
        for alert in sought:
            self.assertIn(f'alert = "{alert}"', code)


if __name__ == "__main__":
    unittest.main()
