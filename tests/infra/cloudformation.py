"""CloudFormation templates as plain data: each short tag becomes the function that it stands for."""

import pathlib

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
INSTALLATION = ROOT / "template.yaml"
HOST = ROOT / "infra/host.yaml"
ROLES_ANYWHERE = ROOT / "infra/iam/roles-anywhere.yaml"
TEMPLATES = (INSTALLATION, HOST, ROLES_ANYWHERE)


class Loader(yaml.SafeLoader):
    """YAML with CloudFormation's tags."""


def _function(loader, suffix, node):
    if isinstance(node, yaml.ScalarNode):
        value = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = loader.construct_mapping(node, deep=True)
    if suffix in ("Ref", "Condition"):
        return {suffix: value}
    if suffix == "GetAtt" and isinstance(value, str):
        value = value.split(".", 1)
    return {f"Fn::{suffix}": value}


Loader.add_multi_constructor("!", _function)


def load(path):
    """The template in a file."""
    return parse(path.read_text())


def parse(text):
    """The template in a text."""
    return yaml.load(text, Loader)  # noqa: S506, a SafeLoader


def of_type(template, kind):
    """Properties of all resources of a type, by logical id."""
    return {
        name: resource.get("Properties", {})
        for name, resource in template["Resources"].items()
        if resource["Type"] == kind
    }


def spelt(value):
    """A value as one text, as `!Sub` would spell it."""
    match value:
        case str():
            return value
        case {"Ref": name}:
            return f"${{{name}}}"
        case {"Fn::GetAtt": path}:
            return f"${{{'.'.join(path)}}}"
        case {"Fn::Sub": text}:
            return text
    raise ValueError(f"no text: {value!r}")


def listed(value):
    """A value that may be one or many, as many."""
    return value if isinstance(value, list) else [value]
