"""The same machine on the shape that gpuhook is for: `template.yaml` itself, deployed into a third
party's cloud on loopback (PyPI `ministack`), the functions' release binaries run by it, and
`gpuhook-agent` as a process beside the simulated host, talking to it through SQS alone."""

import contextlib
import io
import os
import pathlib
import re
import signal
import subprocess
import sys
import urllib.request
import zipfile

import boto3
from botocore.config import Config

from machine import BIN, REPOSITORY, Machine, free_port, wait_until
from proxy import Proxy

LAMBDA = pathlib.Path(os.environ.get("GPUHOOK_LAMBDA_DIR", REPOSITORY / "target" / "release"))
MINISTACK = pathlib.Path(sys.executable).with_name("ministack")
ACCOUNT = "000000000000"
REGION = "us-east-1"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": REGION}
FUNCTIONS = ("webhook", "results", "deliver", "sweep")


class MiniStack:
    """The third party's cloud, as one process on a loopback port. Functions reach it through `endpoint`
    if that is another."""

    def __init__(self, folder, log, port, endpoint=None):
        self.port = port
        self.endpoint = f"http://127.0.0.1:{self.port}"
        # Its own folders stay in ours; of the environment it needs nothing of ours.
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self.port),
            # Given to every function, as Lambda gives the region.
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
        }
        self.process = subprocess.Popen([MINISTACK], stdout=log, stderr=log, env=environment, cwd=folder)
        wait_until(self._healthy, "MiniStack to start", alive=lambda: self.process.poll() is None)

    def _healthy(self):
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"{self.endpoint}/_ministack/health", timeout=5).status == 200
        return False

    def client(self, service):
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=Config(retries={"max_attempts": 0}),
        )

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=30)


def bundled(name):
    """A function's package, as `cargo lambda build` has it: one file named bootstrap."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        entry = zipfile.ZipInfo("bootstrap")
        entry.external_attr = 0o755 << 16
        archive.writestr(entry, (LAMBDA / name).read_bytes(), zipfile.ZIP_DEFLATED, 1)
    return packed.getvalue()


class Cloud(Machine):
    """A simulated host, its agent, and an installation in MiniStack."""

    def __init__(self, host="two-t4", cut=False):
        """With `cut`, functions and agent reach the cloud through a proxy that can be cut."""
        super().__init__(host)
        self.agent = None
        port = free_port()
        self.proxy = Proxy(port) if cut else None
        self.endpoint = self.proxy.endpoint if cut else f"http://127.0.0.1:{port}"
        self.stack = MiniStack(self.folder, self.log, port, self.endpoint)

    # -- deployment ------------------------------------------------------------------------------

    def deploy(self):
        """The template itself, then what an operator types."""
        storage = self.stack.client("s3")
        storage.create_bucket(Bucket="code")
        template = (REPOSITORY / "template.yaml").read_text()
        for name in FUNCTIONS:
            storage.put_object(Bucket="code", Key=f"{name}.zip", Body=bundled(name))
            # The only edit: where the code is.
            template = re.sub(
                rf"(Binary: {name}\n(?:.*\n)*?\s+CodeUri: )lambda\n", rf"\1s3://code/{name}.zip\n", template, count=1
            )
        self.outputs = self._create("gpuhook", template, {"Architecture": "x86_64"})
        self.api = self.outputs["ApiUrl"].split("//")[1].split(".")[0]
        self.gpuhook("config", "push", "--data", self.folder)
        public_key = re.search(r'public_key = "(.*)"', (self.folder / "gpuhook.toml").read_text()).group(1)
        self.gpuhook("host", "add", "gpu-1", "--pool", "default", "--public-key", public_key, "--out", self.folder)
        self._adapt_agent()
        return self

    def gpuhook(self, *arguments, check=True):
        """The operator's program, which finds this cloud as it finds AWS: by its environment."""
        ran = subprocess.run(
            [BIN / "gpuhook", *arguments],
            capture_output=True,
            text=True,
            env=os.environ | KEYS | {"AWS_ENDPOINT_URL": self.stack.endpoint},
            timeout=120,
        )
        if check:
            assert ran.returncode == 0, (arguments, ran.stdout, ran.stderr)
        return ran

    def _adapt_agent(self):
        """The configuration that `host add` wrote, on a host that is simulated, in a cloud that is."""
        text = (self.folder / "gpu-1" / "agent.toml").read_text()
        for given, here in {
            'state_dir = "/var/lib/gpuhook"': 'state_dir = "agent"',
            'root = "/"': f'root = "{self.host_folder}/root"\nattributes = "{self.host_folder}/sim.sock"',
            'nvml = "libnvidia-ml.so.1"': f'nvml = "{self.host_folder}/lib/libnvidia-ml.so.1"',
            'host = "host.whsk"': 'host = "keys/host.whsk"',
            "127.0.0.1:9478": f"127.0.0.1:{self.agent_port}",
            f'region = "{REGION}"': f'region = "{REGION}"\nendpoint = "{self.endpoint}"\nallow_static_keys = true',
        }.items():
            assert given in text, (given, text)
            text = text.replace(given, here)
        (self.folder / "agent.toml").write_text(text)
        keyset = self.folder / "gpu-1" / "keyset.json"
        if keyset.exists():
            (self.folder / "keyset.json").write_text(keyset.read_text())

    def _create(self, name, template, parameters):
        formation = self.stack.client("cloudformation")
        formation.create_stack(
            StackName=name,
            TemplateBody=template,
            Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()],
            Capabilities=["CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"],
        )

        def settled():
            stack = formation.describe_stacks(StackName=name)["Stacks"][0]
            return None if stack["StackStatus"].endswith("IN_PROGRESS") else stack

        stack = wait_until(settled, f"stack {name}")
        assert stack["StackStatus"] == "CREATE_COMPLETE", (stack["StackStatus"], stack.get("StackStatusReason"))
        return {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", [])}

    def start(self, prefix=()):
        """Starts the agent and waits until the front door answers and can place on its host."""
        self.start_agent()
        wait_until(self._healthy, "the front door to answer", alive=self.alive)
        wait_until(self._observed, "the host's first inventory", alive=self.alive)
        return self

    def start_agent(self, environment=None):
        self.agent = subprocess.Popen(
            [BIN / "gpuhook-agent", "run", "--config", self.folder / "agent.toml"],
            stdout=self.log,
            stderr=self.log,
            env=os.environ | KEYS | (environment or {}),
        )

    # -- processes -------------------------------------------------------------------------------

    def alive(self):
        return self.agent.poll() is None and self.stack.process.poll() is None

    def kill(self):
        """SIGKILL to the agent; the functions are gone between two events anyway."""
        self.agent.send_signal(signal.SIGKILL)
        self.agent.wait()

    def stop(self):
        if self.agent and self.agent.poll() is None:
            self.agent.send_signal(signal.SIGTERM)
            self.agent.wait(timeout=60)

    def _allocations(self):
        if self.agent is None or not self.alive():
            return []
        items = self.get("/v1/allocations")[2].get("items", [])
        return [item["id"] for item in items]

    def close(self):
        try:
            super().close()
        finally:
            self.stack.close()
            if self.proxy:
                self.proxy.close()

    # -- the outside world -----------------------------------------------------------------------

    def door(self):
        """The API's own host name, as the world reaches it."""
        return self.stack.port, {"host": f"{self.api}.execute-api.localhost:{self.stack.port}"}
