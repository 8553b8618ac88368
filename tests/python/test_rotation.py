"""The key that signs commands is replaced while everything runs: hosts trust both for a while, then the
new one alone, and nobody brings the old one back."""

import json
import re
import subprocess
import unittest

from cloud import Cloud
from machine import BIN, Machine, wait_until


def gpuhook(*arguments, check=True):
    ran = subprocess.run([BIN / "gpuhook", *arguments], capture_output=True, text=True, timeout=60)
    if check:
        assert ran.returncode == 0, (arguments, ran.stdout, ran.stderr)
    return ran


def rooted(machine):
    """Gives a machine a root, and its agent the first keyset in place of a fixed key."""
    root = machine.folder / "offline" / "root.whsk"
    public = gpuhook("key", "new", "--out", root).stdout.strip()
    gpuhook("key", "rotate", "init", "--root", root, "--data", machine.folder)
    config = machine.folder / "agent.toml"
    text = config.read_text()
    config.write_text(re.sub(r"functions = .*", f'root = "{public}"\nkeyset = "keys/first.json"', text))
    (machine.folder / "keys/first.json").write_text((machine.folder / "keys/keyset.json").read_text())
    return root


class Rotation(unittest.TestCase):
    def done(self, machine, key):
        status, _, body = machine.post({"op": "allocate", "key": key, "profile": "T4-1Q"})
        self.assertEqual(status, 202, body)
        operation = machine.final(body["operations"][0]["status_url"])
        self.assertEqual(operation["state"], "succeeded", operation)

    def keyset(self, machine):
        status = subprocess.run(
            [BIN / "gpuhook-agent", "status", "--json", "--config", machine.folder / "agent.toml"],
            capture_output=True, text=True, timeout=60,
        )
        return json.loads(status.stdout)["keyset"]

    def version(self, machine, version):
        wait_until(lambda: self.keyset(machine)["version"] == version, f"keyset {version}", alive=machine.alive)

    def test_a_key_is_rotated_with_an_overlap_and_never_comes_back(self):
        with Machine() as machine:
            root = rooted(machine)
            folder = machine.folder
            rotate = lambda step, *more, **how: gpuhook("key", "rotate", step, "--data", folder, *more, **how)
            machine.start()
            self.done(machine, "before")
            self.version(machine, 1)
            first = (folder / "keys/keyset.json").read_text()

            forced = rotate("activate")
            self.assertIn("nothing is prepared", forced.stdout)
            for _ in range(2):
                rotate("prepare", "--root", root)
            self.version(machine, 2)
            self.assertEqual(len(self.keyset(machine)["key_ids"]), 2)
            self.done(machine, "still-the-old-key")
            early = rotate("retire", "--root", root, check=False)
            self.assertIn("is prepared and not in use yet", early.stderr)

            old = (folder / "keys/function.whsk").read_text()
            rotate("activate")
            self.assertNotEqual((folder / "keys/function.whsk").read_text(), old)
            machine.stop()
            machine.start()
            self.version(machine, 2)
            self.done(machine, "the-new-key")
            for _ in range(2):
                rotate("retire", "--root", root)
            self.version(machine, 3)
            self.assertEqual(len(self.keyset(machine)["key_ids"]), 1)
            self.done(machine, "the-new-key-alone")

            # A stolen old key, an old keyset and a stranger's root are worth nothing.
            stranger = folder / "offline" / "stranger.whsk"
            gpuhook("key", "new", "--out", stranger)
            (folder / "keys/function-next.whsk").write_text(old)
            (folder / "keys/function-next.whsk").chmod(0o600)
            refused = rotate("prepare", "--root", stranger, check=False)
            self.assertIn("is not the root of this folder's keysets", refused.stderr)
            (folder / "keys/function-next.whsk").unlink()
            newest = (folder / "keys/keyset.json").read_text()
            (folder / "keys/keyset.json").write_text(first)
            rotate("tell")
            (folder / "keys/keyset.json").write_text(newest)
            self.done(machine, "after-the-old-keyset-was-told")
            self.assertEqual(self.keyset(machine)["version"], 3)
            (folder / "keys/function.whsk").write_text(old)
            machine.stop()
            machine.start()
            _, _, body = machine.post({"op": "allocate", "key": "of-the-old-key", "profile": "T4-1Q"})
            log = lambda: "no signature verifies under a trusted key" in (folder / "gpuhook.log").read_text(errors="replace")
            wait_until(log, "the command of the old key to be refused", alive=machine.alive)
            self.assertEqual(len(machine.mdevs()), 5)

    def test_hosts_in_the_cloud_are_told_through_their_queues(self):
        with Cloud() as machine:
            root = machine.folder / "offline" / "root.whsk"
            gpuhook("key", "new", "--out", root)
            gpuhook("key", "rotate", "init", "--root", root, "--data", machine.folder)
            machine.deploy()
            self.assertIn("keyset = ", (machine.folder / "agent.toml").read_text())
            rotate = lambda step, *more: machine.gpuhook("key", "rotate", step, "--aws", "--data", machine.folder, *more)
            machine.start()
            self.assertEqual(self.keyset(machine)["version"], 1)
            rotate("prepare", "--root", root)
            self.version(machine, 2)
            rotate("activate")
            self.assertIn("gpuhook/signing: written", machine.gpuhook("config", "push", "--data", machine.folder).stdout)
            self.done(machine, "with-either-key")
            rotate("retire", "--root", root)
            self.version(machine, 3)


if __name__ == "__main__":
    unittest.main()
