"""Functions and agents may do what they need and nothing else; whatever widens that is noticed."""

import re
import unittest

from cloudformation import HOST, INSTALLATION, ROLES_ANYWHERE, ROOT, TEMPLATES, load, parse
from permissions import GRANTS, faults

# One change each, of what a template says, that gives somebody more than they need.
WIDER = [
    (INSTALLATION, "Action: dynamodb:Query\n", "Action: dynamodb:*\n", "is a pattern"),
    (INSTALLATION, "dynamodb:PutItem, ", "dynamodb:PutItem, dynamodb:DeleteItem, ", "DeleteItem"),
    (INSTALLATION, "${Prefix}-cmd-*.fifo", "${Prefix}-*", "is a pattern"),
    (INSTALLATION, "Resource: !GetAtt WebhookLog.Arn", "Resource: '*'", "resource * is a pattern"),
    (INSTALLATION, "Resource: !GetAtt ResultsQueue.Arn", "Resource: !GetAtt CallbackQueue.Arn", "may"),
    (
        INSTALLATION,
        "- !Ref CallbacksSecret\n\n  DeliverLog",
        "- !Ref SigningSecret\n\n  DeliverLog",
        "DeliverRole may secretsmanager:GetSecretValue on ${SigningSecret}",
    ),
    (INSTALLATION, "      Role: !GetAtt ResultsRole.Arn\n", "", "ResultsFunction has not just"),
    (
        INSTALLATION,
        "      Role: !GetAtt ResultsRole.Arn\n",
        "      Role: !GetAtt WebhookRole.Arn\n",
        "ResultsFunction has not just",
    ),
    (
        INSTALLATION,
        "      Role: !GetAtt SweepRole.Arn\n",
        "      Role: !GetAtt SweepRole.Arn\n      Policies: AdministratorAccess\n",
        "SweepFunction has not just",
    ),
    (
        INSTALLATION,
        "Service: lambda.amazonaws.com",
        "AWS: '*'",
        "WebhookRole trusts",
    ),
    (INSTALLATION, "!Ref CallbackQueue]", "]", "CallbackQueue can be spoken to without TLS"),
    (INSTALLATION, "Type: AWS::Lambda::Permission", "Type: AWS::IAM::Policy", "nobody checks"),
    (HOST, "- sqs:DeleteMessage\n", "- sqs:DeleteMessage\n              - sqs:PurgeQueue\n", "Purge"),
    (HOST, "- sqs:ReceiveMessage\n", "- sqs:*\n", "is a pattern"),
    (HOST, "Resource: !GetAtt Commands.Arn", "Resource: !GetAtt DeadLetters.Arn", "DeadLetters"),
    (HOST, "${Prefix}-results'", "${Prefix}-callbacks'", "-callbacks"),
    (HOST, "                  - !Ref SweepRoleArn\n", "", "lets others"),
    (HOST, "Effect: Deny", "Effect: Allow", "allows something"),
    (ROLES_ANYWHERE, "${!aws:PrincipalTag/x509Subject/CN}", "*", "on arn"),
    (ROLES_ANYWHERE, "sqs:DeleteMessage, ", "sqs:DeleteMessage, sqs:SendMessage, ", "may sqs:Send"),
    (ROLES_ANYWHERE, ", '*-dlq'", "", "other certificates"),
    (
        ROLES_ANYWHERE,
        "                aws:SourceArn: !GetAtt TrustAnchor.TrustAnchorArn\n",
        "                aws:SourceArn: '*'\n",
        "other certificates",
    ),
]


class Permissions(unittest.TestCase):
    """What the templates grant."""

    def test_everybody_may_do_what_they_need_and_nothing_else(self):
        for path in TEMPLATES:
            with self.subTest(path.name):
                self.assertEqual(faults(load(path)), [])

    def test_everybody_is_judged(self):
        named = set()
        for path in TEMPLATES:
            named |= load(path)["Resources"].keys()
        self.assertLessEqual(GRANTS.keys(), named)

    def test_whatever_widens_a_permission_is_noticed(self):
        for path, narrow, wide, said in WIDER:
            text = path.read_text()
            self.assertIn(narrow, text, "the template no longer says this")
            with self.subTest(f"{path.name}: {wide.strip() or narrow.strip()}"):
                found = faults(parse(text.replace(narrow, wide, 1)))
                self.assertIn(said, " ".join(found))

    def test_functions_may_call_on_the_table_what_the_store_calls(self):
        calls = set()
        for source in (ROOT / "backplane/src/aws").rglob("*.rs"):
            calls |= set(re.findall(r"\.((?:[a-z]+_)+items?|query|scan)\(\)", source.read_text()))
        # A transaction needs what its members need; the store's hold puts only.
        calls.discard("transact_write_items")
        actions = {"dynamodb:" + call.title().replace("_", "") for call in calls}
        granted = {
            action for action, _ in GRANTS["WebhookRole"] if action.startswith("dynamodb:")
        }
        self.assertEqual(actions, granted)

    def test_only_front_door_and_sweep_read_the_signing_key(self):
        readers = {name for name, grants in GRANTS.items() if "SigningSecret" in str(grants)}
        self.assertEqual(readers, {"WebhookRole", "SweepRole"})


if __name__ == "__main__":
    unittest.main()
