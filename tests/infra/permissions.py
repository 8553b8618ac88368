"""Who may do what, and the judge of it. What templates grant has to be this, to the letter: a grant that
is not here is wider than somebody needs."""

from cloudformation import listed, of_type, spelt

SQS = "arn:${AWS::Partition}:sqs:${AWS::Region}:${AWS::AccountId}:${Prefix}"
# Hosts come and go without the installation's stack being touched.
ALL_COMMANDS = f"{SQS}-cmd-*.fifo"
# The indexes of one table; only `dynamodb:Query` has them.
INDEXES = "${Table.Arn}/index/*"
PATTERNS = {ALL_COMMANDS, INDEXES}


def _function(log, *more):
    table = [
        ("dynamodb:BatchGetItem", "${Table.Arn}"),
        ("dynamodb:PutItem", "${Table.Arn}"),
        ("dynamodb:Query", "${Table.Arn}"),
        ("dynamodb:UpdateItem", "${Table.Arn}"),
        ("dynamodb:Query", INDEXES),
    ]
    logs = [("logs:CreateLogStream", f"${{{log}.Arn}}"), ("logs:PutLogEvents", f"${{{log}.Arn}}")]
    return {*table, *logs, *more}


def _polls(queue):
    actions = ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes")
    return [(action, f"${{{queue}.Arn}}") for action in actions]


def _reads(*secrets):
    return [("secretsmanager:GetSecretValue", f"${{{secret}}}") for secret in secrets]


def _agent(commands):
    actions = ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility")
    return {*((action, commands) for action in actions), ("sqs:SendMessage", f"{SQS}-results")}


COMMANDS = ("sqs:SendMessage", ALL_COMMANDS)
WAKE = ("sqs:SendMessage", "${CallbackQueue.Arn}")
GRANTS = {
    "WebhookRole": _function(
        "WebhookLog", COMMANDS, *_reads("ConfigSecret", "SourcesSecret", "SigningSecret")
    ),
    "ResultsRole": _function("ResultsLog", WAKE, *_polls("ResultsQueue")),
    "DeliverRole": _function(
        "DeliverLog", *_polls("CallbackQueue"), *_reads("ConfigSecret", "CallbacksSecret")
    ),
    "SweepRole": _function("SweepLog", COMMANDS, WAKE, *_reads("ConfigSecret", "SigningSecret")),
    "AgentPolicy": _agent("${Commands.Arn}"),
    "HostRole": _agent(f"{SQS}-cmd-${{!aws:PrincipalTag/x509Subject/CN}}.fifo"),
}
SERVICES = dict.fromkeys(GRANTS, "lambda.amazonaws.com") | {
    "HostRole": "rolesanywhere.amazonaws.com"
}
# Resources that hold permissions; of any other that can, there is none.
HOLDERS = {"AWS::IAM::Role", "AWS::IAM::ManagedPolicy", "AWS::SQS::QueuePolicy"}
# Grants that name no principal of ours: a service may invoke a function, nothing more.
INVOKED = {"AWS::Lambda::Permission"}


def faults(template):
    """Every grant of a template that is wider or narrower than it has to be, as sentences."""
    found = [*_strange_holders(template), *_functions(template), *_queues(template)]
    for name, role in of_type(template, "AWS::IAM::Role").items():
        if role.get("ManagedPolicyArns"):
            found.append(f"{name} has policies of others")
        documents = [policy["PolicyDocument"] for policy in role.get("Policies", [])]
        found += _granted(name, documents)
        found += _trusted(name, role["AssumeRolePolicyDocument"])
    for name, policy in of_type(template, "AWS::IAM::ManagedPolicy").items():
        found += _granted(name, [policy["PolicyDocument"]])
    return found


def _strange_holders(template):
    for name, resource in template["Resources"].items():
        kind = resource["Type"]
        speaks = kind.startswith("AWS::IAM::") or kind.endswith(("Policy", "Permission"))
        if speaks and kind not in HOLDERS | INVOKED:
            yield f"{name} is a {kind}, which nobody checks"


def _functions(template):
    """SAM makes no role, and so adds nothing to one, where a function names its own."""
    for name, function in of_type(template, "AWS::Serverless::Function").items():
        role = f"{name.removesuffix('Function')}Role"
        if function.get("Policies") or function.get("Role") != {"Fn::GetAtt": [role, "Arn"]}:
            yield f"{name} has not just the role {role}"


def _granted(name, documents):
    granted = set()
    for document in documents:
        for statement in document["Statement"]:
            if statement["Effect"] != "Allow" or {"NotAction", "NotResource"} & statement.keys():
                yield f"{name}: {statement.get('Sid')} is no plain permission"
                continue
            for action in listed(statement["Action"]):
                for resource in map(spelt, listed(statement["Resource"])):
                    granted.add((action, resource))
    for action, resource in granted:
        if "*" in action or "?" in action:
            yield f"{name}: action {action} is a pattern"
        if "*" in resource and resource not in PATTERNS:
            yield f"{name}: resource {resource} is a pattern"
    wanted = GRANTS.get(name, set())
    yield from (f"{name} may {action} on {on}" for action, on in granted - wanted)
    yield from (f"{name} may not {action} on {on}" for action, on in wanted - granted)


def _trusted(name, document):
    for statement in document["Statement"]:
        if statement["Principal"] != {"Service": SERVICES.get(name)}:
            yield f"{name} trusts {statement['Principal']}"
        if name == "HostRole":
            yield from _certificates(statement)


def _certificates(statement):
    """A host's role is for certificates of one authority, through one anchor, with a plain name."""
    wanted = {
        "ArnEquals": {"aws:SourceArn": {"Fn::GetAtt": ["TrustAnchor", "TrustAnchorArn"]}},
        "StringEquals": {"aws:PrincipalTag/x509Issuer/CN": {"Ref": "IssuerCommonName"}},
        "StringNotLike": {"aws:PrincipalTag/x509Subject/CN": ["*${*}*", "*${?}*", "*-dlq"]},
    }
    if statement.get("Condition") != wanted:
        yield "HostRole is for other certificates than hosts'"


def _queues(template):
    """Queues are spoken to over TLS only; their policies allow nothing."""
    guarded = set()
    for name, policy in of_type(template, "AWS::SQS::QueuePolicy").items():
        statements = policy["PolicyDocument"]["Statement"]
        if any(statement["Effect"] != "Deny" for statement in statements):
            yield f"{name} allows something"
        plain = {"Bool": {"aws:SecureTransport": "false"}}
        if any(
            statement["Action"] == "sqs:*" and statement.get("Condition") == plain
            for statement in statements
        ):
            guarded |= set(map(spelt, policy["Queues"]))
        senders = [s["Condition"] for s in statements if s["Action"] == "sqs:SendMessage"]
        if "Commands" in template["Resources"] and senders != [SENDERS]:
            yield f"{name} lets others than front door, sweep and operator send"
    for name in of_type(template, "AWS::SQS::Queue"):
        if f"${{{name}}}" not in guarded:
            yield f"{name} can be spoken to without TLS"


SENDERS = {
    "ArnNotLike": {
        "aws:PrincipalArn": [
            {"Ref": "WebhookRoleArn"},
            {"Ref": "SweepRoleArn"},
            {"Fn::If": ["HasOperator", {"Ref": "OperatorArn"}, {"Ref": "AWS::NoValue"}]},
        ]
    }
}
