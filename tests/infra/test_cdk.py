"""The CDK constructs say what the templates say, and add where the code is."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from cloudformation import HOST, INSTALLATION, ROOT, load, of_type

# Where the packages of infra/cdk/package-lock.json are installed; `cargo xtask ci` says.
INSTALLED = os.environ.get("GPUHOOK_CDK")
PROGRAMS = ("webhook", "results", "deliver", "sweep")
LINTER = pathlib.Path(sys.executable).with_name("cfn-lint")


def run(folder, *command, **variables):
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def synthesised(folder, out, **told):
    """The templates of the app, by stack. No network, no account, no region."""
    told = {"checkout": str(ROOT), "programs": str(folder / "programs"), **told}
    variables = {"CDK_OUTDIR": str(out), "CDK_CONTEXT_JSON": json.dumps(told)}
    run(folder, "node", "dist/bin/gpuhook.js", **variables)
    found = out.glob("*.template.json")
    return {path.name.split(".")[0]: json.loads(path.read_text()) for path in found}


def filled(value, parameters):
    """A value with parameters put in, and attributes as lists."""
    match value:
        case {"Ref": name} if name in parameters:
            return parameters[name]
        case {"Fn::GetAtt": str(path)}:
            return {"Fn::GetAtt": path.split(".", 1)}
        case dict():
            return {key: filled(member, parameters) for key, member in value.items()}
        case list():
            return [filled(member, parameters) for member in value]
        case str():
            for name, text in parameters.items():
                value = value.replace(f"${{{name}}}", text)
    return value


@unittest.skipUnless(INSTALLED, "npm is not installed, so that CDK is not either")
class Cdk(unittest.TestCase):
    """infra/cdk, compiled and run."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(INSTALLED)
        for name in ("bin", "lib", "tsconfig.json"):
            source = ROOT / "infra/cdk" / name
            if source.is_dir():
                shutil.rmtree(cls.folder / name, ignore_errors=True)
                shutil.copytree(source, cls.folder / name)
            else:
                shutil.copy(source, cls.folder / name)
        shutil.rmtree(cls.folder / "dist", ignore_errors=True)
        run(cls.folder, "node", "node_modules/typescript/bin/tsc", "--project", ".")
        for name in PROGRAMS:
            program = cls.folder / "programs" / name / "bootstrap"
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(f"stands for {name}\n")
        cls.out = pathlib.Path(tempfile.mkdtemp(prefix="gpuhook-cdk-"))
        cls.addClassCleanup(shutil.rmtree, cls.out)
        cls.stacks = synthesised(cls.folder, cls.out, hosts="t4,a100")

    def test_installation_is_the_template_with_code_from_assets(self):
        made = self.stacks["gpuhook"]
        template = load(INSTALLATION)
        wanted = filled(template["Resources"], {"Prefix": "gpuhook"})
        resources = filled(made["Resources"], {})
        for name in of_type(template, "AWS::Serverless::Function"):
            code = resources[name]["Properties"].pop("CodeUri")
            self.assertEqual(set(code), {"Bucket", "Key"}, name)
            self.assertEqual(wanted[name]["Properties"].pop("CodeUri"), "lambda")
        self.assertEqual(resources, wanted)
        self.assertEqual(made["Globals"], filled(template["Globals"], {"Prefix": "gpuhook"}))
        self.assertEqual(made["Transform"], template["Transform"])

    def test_installation_has_no_parameters_but_those_of_the_template_and_of_assets(self):
        made = set(self.stacks["gpuhook"]["Parameters"])
        ours = set(load(INSTALLATION)["Parameters"]) - {"Prefix"}
        self.assertEqual(made - ours, {"BootstrapVersion"})
        outputs = set(self.stacks["gpuhook"]["Outputs"]) - set(load(INSTALLATION)["Outputs"])
        self.assertTrue(all(name.startswith("ExportsOutput") for name in outputs), outputs)

    def test_each_function_has_its_own_program(self):
        resources = self.stacks["gpuhook"]["Resources"]
        assets = json.loads((self.out / "gpuhook.assets.json").read_text())["files"]
        for name in PROGRAMS:
            key = resources[f"{name.title()}Function"]["Properties"]["CodeUri"]["Key"]
            folder = self.out / assets[key.removesuffix(".zip")]["source"]["path"]
            self.assertEqual((folder / "bootstrap").read_text(), f"stands for {name}\n")

    def test_each_host_is_the_template_of_a_host(self):
        made = self.stacks["gpuhook-hosts"]["Resources"]
        template = load(HOST)["Resources"]
        self.assertEqual(len(made), 2 * len(template))
        for host in ("t4", "a100"):
            names = {}
            for logical in template:
                found = [name for name in made if name.startswith(f"{host}Template{logical}")]
                names[logical] = min(found, key=len)
            text = json.dumps([made[name] for name in names.values()])
            for logical, name in names.items():
                text = text.replace(f'"{name}.', f'"{logical}.').replace(f'"{name}"', f'"{logical}"')
            for logical, resource in zip(names, json.loads(text), strict=True):
                wanted = filled(template[logical], {"Prefix": "gpuhook", "Host": host})
                self.assertEqual(resource["Type"], wanted["Type"])
                if wanted["Type"] in ("AWS::SQS::Queue", "AWS::IAM::ManagedPolicy"):
                    self.assertEqual(filled(resource, {}), wanted)

    def test_hosts_take_commands_from_this_installation_only(self):
        for name, policy in of_type(self.stacks["gpuhook-hosts"], "AWS::SQS::QueuePolicy").items():
            senders = policy["PolicyDocument"]["Statement"][1]["Condition"]["ArnNotLike"]
            text = json.dumps(senders["aws:PrincipalArn"][:2])
            self.assertIn("FnGetAttWebhookRoleArn", text, name)
            self.assertIn("FnGetAttSweepRoleArn", text, name)

    def test_what_is_synthesised_is_clean_for_the_linter(self):
        # Where a parameter was given, its `Fn::Sub` has no variable left.
        templates = map(str, sorted(self.out.glob("*.template.json")))
        run(self.out, LINTER, "--ignore-checks", "W1020", "--", *templates)

    def test_a_function_without_its_program_is_an_error(self):
        with tempfile.TemporaryDirectory() as empty, self.assertRaisesRegex(
            AssertionError, "has no bootstrap; build it with cargo lambda build"
        ):
            synthesised(self.folder, pathlib.Path(empty) / "out", programs=empty)


if __name__ == "__main__":
    unittest.main()
