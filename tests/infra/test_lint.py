"""AWS's own linter has nothing to say about any template."""

import pathlib
import subprocess
import sys
import unittest

from cloudformation import ROOT, TEMPLATES


LINTER = pathlib.Path(sys.executable).with_name("cfn-lint")


class Lint(unittest.TestCase):
    """cfn-lint, which knows the resources of SAM too."""

    def test_cfn_lint_is_clean_on_every_template(self):
        run = subprocess.run(
            [LINTER, "--include-checks", "I", "--", *map(str, TEMPLATES)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual((run.returncode, run.stdout), (0, ""), run.stderr)

    def test_every_template_is_linted(self):
        found = {*(ROOT / "infra").rglob("*.yaml"), *ROOT.glob("*.yaml")}
        found = {path for path in found if "AWSTemplateFormatVersion" in path.read_text()}
        self.assertEqual(found, set(TEMPLATES))


if __name__ == "__main__":
    unittest.main()
