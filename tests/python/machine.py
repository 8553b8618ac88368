"""One machine for a system test: a simulated host, `gpuhook up`, and a callback receiver.

Everything that stands for the outside world is a third party's: webhooks are signed and callbacks
verified by PyPI's `standardwebhooks`, v1a by PyPI's `cryptography`. Nothing here shares code with
the product.
"""

import base64
import contextlib
import http.client
import http.server
import ipaddress
import json
import os
import pathlib
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID
from standardwebhooks import Webhook

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("GPUHOOK_BIN_DIR", REPOSITORY / "target" / "debug"))

# Longest wait for anything here; every wait ends as soon as its condition holds.
DEADLINE_S = 60.0


def wait_until(condition, what, deadline_s=DEADLINE_S, alive=None):
    """Waits for `condition()` to be truthy and returns it: level-triggered, with a deadline."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if alive is not None and not alive():
            raise AssertionError(f"the process died while waiting for {what}")
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline_s} s in vain for {what}")
        time.sleep(0.01)


def free_port():
    """A port that is free now, below those that the kernel gives to outgoing connections: one of
    them would take it while its server is down."""
    while True:
        port = 12000 + secrets.randbelow(18000)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def new_whsec():
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


class Receiver:
    """An HTTPS endpoint that keeps every callback as received, headers and exact bytes."""

    def __init__(self, folder):
        self.port = free_port()
        self.callbacks = []
        self.answers = []
        self._certificate(folder)
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                owner.callbacks.append((dict(self.headers.items()), body))
                status = owner.answers.pop(0) if owner.answers else 204
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "receiver.pem", folder / "receiver.key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def _certificate(self, folder):
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "receiver")])
        now = datetime.datetime.now(datetime.timezone.utc)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=30))
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .sign(key, hashes.SHA256())
        )
        (folder / "receiver.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (folder / "receiver.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Machine:
    """A simulated host and `gpuhook up` over it. `kill()` and `start()` model a crash."""

    def __init__(self, host="two-t4", simulator_arguments=(), agent=True):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpuhook-system-"))
        self.host_folder = self.folder / "host"
        self.port = free_port()
        self.receiver = Receiver(self.folder)
        self.webhook_secret = new_whsec()
        self.callback_secret = new_whsec()
        self.api_key = "key_" + secrets.token_urlsafe(32)
        self.token = "gpht_" + secrets.token_urlsafe(32)
        self.other_token = "gpht_" + secrets.token_urlsafe(32)
        self.sender = Webhook(self.webhook_secret)
        self.v1a = ed25519.Ed25519PrivateKey.generate()
        self.process = None
        self.log = open(self.folder / "gpuhook.log", "ab")
        self._write_configuration(agent)
        self.simulator = subprocess.Popen(
            [BIN / "gpuhook-simulator", "--host", host, "--dir", self.host_folder, *simulator_arguments],
            stdout=subprocess.PIPE,
            stderr=self.log,
        )
        line = self.simulator.stdout.readline()
        assert line.startswith(b"ready"), line

    # -- configuration ---------------------------------------------------------------------------

    def _secret(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(text + "\n")

    def _key(self, name):
        """A key pair made by `gpuhook key new`; returns the public half that it prints."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        made = subprocess.run(
            [BIN / "gpuhook", "key", "new", "--out", path], check=True, capture_output=True, text=True
        )
        return made.stdout.strip()

    def _write_configuration(self, agent):
        def sha256(text):
            digest = hashes.Hash(hashes.SHA256())
            digest.update(text.encode())
            return digest.finalize().hex()

        raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
        seed = self.v1a.private_bytes(
            serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption()
        )
        whpk = base64.b64encode(self.v1a.public_key().public_bytes(*raw)).decode()
        whsk = base64.b64encode(seed + self.v1a.public_key().public_bytes(*raw)).decode()
        self._secret("keys/callback.whsk", f"whsk_{whsk}")
        # The sender's own v1a pair: only its public half is configured.
        self.sender_v1a = ed25519.Ed25519PrivateKey.generate()
        sender_pk = base64.b64encode(self.sender_v1a.public_key().public_bytes(*raw)).decode()
        self._secret("secrets/webhook.whsec", self.webhook_secret)
        self._secret("secrets/sender.whpk", f"whpk_{sender_pk}")
        self._secret("secrets/callback.whsec", self.callback_secret)
        self._secret("secrets/api.key", self.api_key)
        self.callback_public = whpk
        function_key, host_key = self._key("keys/function.whsk"), self._key("keys/host.whsk")
        (self.folder / "gpuhook.toml").write_text(
            f"""
[server]
listen = "127.0.0.1:{self.port}"

[signing]
key_file = "keys/function.whsk"

[store]
path = "backplane.db"

[[source]]
name = "ci"
tenant = "acme"
preset = "standard-webhooks"
secrets = ["file:secrets/webhook.whsec", "file:secrets/sender.whpk"]
roles = ["operator"]
default_target = {{ host = "gpu-1" }}
callbacks = ["receiver"]

[[source]]
name = "seed"
tenant = "acme"
preset = "api-key"
secrets = ["file:secrets/api.key"]
roles = ["operator"]
default_target = {{ host = "gpu-1" }}

[[source]]
name = "admin"
tenant = "acme"
preset = "standard-webhooks"
secrets = ["file:secrets/webhook.whsec"]
roles = ["admin"]
default_target = {{ host = "gpu-1" }}
callbacks = ["receiver"]

[[source]]
name = "readonly"
tenant = "acme"
preset = "standard-webhooks"
secrets = ["file:secrets/webhook.whsec"]
roles = ["nobody"]
default_target = {{ host = "gpu-1" }}

[[token]]
tenant = "acme"
name = "test"
roles = ["operator"]
sha256 = "{sha256(self.token)}"

[[token]]
tenant = "rival"
name = "rival"
sha256 = "{sha256(self.other_token)}"

[[callback]]
name = "receiver"
url = "https://127.0.0.1:{self.receiver.port}/callbacks"
secrets = ["file:secrets/callback.whsec"]
key_files = ["keys/callback.whsk"]
ca_file = "receiver.pem"
allow_private = [{{ cidr = "127.0.0.1/32", port = {self.receiver.port} }}]

[[host]]
name = "gpu-1"
pools = ["default"]
public_key = "{host_key}"
"""
        )
        if not agent:
            return
        self.agent_port = free_port()
        (self.folder / "agent.toml").write_text(
            f"""
host = "gpu-1"
state_dir = "agent"

[paths]
root = "{self.host_folder}/root"
nvml = "{self.host_folder}/lib/libnvidia-ml.so.1"
attributes = "{self.host_folder}/sim.sock"
cgroup = "/sys/fs/cgroup"
proc = "/proc"

[queue]
backplane = "backplane.db"

[keys]
host = "keys/host.whsk"
functions = ["{function_key}"]

[server]
listen = "127.0.0.1:{self.agent_port}"

[allow]
operations = ["allocate", "renew", "release", "inspect", "partition"]
modes = ["vgpu", "mig"]
tenants = ["acme"]
"""
        )

    # -- processes -------------------------------------------------------------------------------

    def start(self, prefix=()):
        """Starts `gpuhook up` and waits until its door answers and it can place on the host."""
        self.process = subprocess.Popen(
            [*prefix, BIN / "gpuhook", "up", "--data", self.folder], stdout=self.log, stderr=self.log
        )
        wait_until(self._healthy, "the door to open", alive=self.alive)
        wait_until(self._observed, "the host's first inventory", alive=self.alive)
        return self

    def alive(self):
        return self.process.poll() is None

    def _healthy(self):
        with contextlib.suppress(OSError):
            return self.request("GET", "/healthz")[0] == 200
        return False

    def _observed(self):
        status, _, body = self.get("/v1/hosts")
        hosts = body.get("hosts", body.get("items", [])) if status == 200 else []
        return any(host.get("gpus") for host in hosts)

    def kill(self):
        """SIGKILL to every process of `gpuhook up`, as a power cut has it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process and self.alive():
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=30)

    def close(self):
        left = self._allocations()
        self.stop()
        # A machine that is thrown away must leave no control groups on the one that runs the tests.
        for allocation in left:
            for group in pathlib.Path("/sys/fs/cgroup").glob(f"*/gpuhook/{allocation}"):
                for child in group.glob("*/"):
                    child.rmdir()
                group.rmdir()
        self.simulator.terminate()
        self.simulator.wait(timeout=30)
        self.simulator.stdout.close()
        self.receiver.close()
        self.log.close()
        if sys.exc_info()[0] is None:
            subprocess.run(["rm", "-rf", self.folder], check=True)

    def _allocations(self):
        if self.process is None or not self.alive():
            return []
        items = self.get("/v1/allocations")[2].get("items", [])
        return [item["allocation"] if "allocation" in item else item["id"] for item in items]

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            print(f"--- {self.folder}/gpuhook.log ---", file=sys.stderr)
            print((self.folder / "gpuhook.log").read_text(errors="replace")[-8000:], file=sys.stderr)
        self.close()

    # -- the outside world -----------------------------------------------------------------------

    def door(self):
        """Port of the front door, and what every request to it has to say."""
        return self.port, {}

    def request(self, method, path, body=None, headers=None):
        port, given = self.door()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request(method, path, body=body, headers={**given, **(headers or {})})
            response = connection.getresponse()
            text = response.read()
            headers = {name.lower(): value for name, value in response.getheaders()}
            try:
                return response.status, headers, json.loads(text) if text else {}
            except json.JSONDecodeError:
                return response.status, headers, {"text": text.decode(errors="replace")}
        finally:
            connection.close()

    def get(self, path, token=None, headers=None):
        headers = {"authorization": f"Bearer {token or self.token}", **(headers or {})}
        return self.request("GET", path, headers=headers)

    def signed_headers(self, body, message_id=None, at=None, sender=None):
        """Headers of a webhook as a third party makes them."""
        message_id = message_id or "msg_" + secrets.token_hex(12)
        at = at or datetime.datetime.now(datetime.timezone.utc)
        return {
            "content-type": "application/json",
            "webhook-id": message_id,
            "webhook-timestamp": str(int(at.timestamp())),
            "webhook-signature": (sender or self.sender).sign(message_id, at, body),
        }

    def post(self, operation, message_id=None, source="ci", headers=None):
        body = operation if isinstance(operation, str) else json.dumps(operation)
        signed = self.signed_headers(body, message_id) | (headers or {})
        return self.request("POST", f"/v1/hooks/{source}", body=body.encode(), headers=signed)

    def final(self, status_url):
        """The operation once its state is final."""

        def read():
            status, _, body = self.get(status_url, headers={"prefer": "wait=20"})
            assert status == 200, (status, body)
            return body if body["state"] not in ("queued", "running") else None

        return wait_until(read, f"a final state of {status_url}", alive=self.alive)

    def callbacks_about(self, op_id):
        about = []
        for headers, body in list(self.receiver.callbacks):
            if json.loads(body)["data"].get("op_id") == op_id:
                about.append((headers, body))
        return about

    # -- the oracle ------------------------------------------------------------------------------

    def mdevs(self):
        """UUIDs of the mediated devices in the host's sysfs."""
        return sorted(os.listdir(self.host_folder / "root/sys/bus/mdev/devices"))

    def simulate(self, request):
        """Asks the simulated host's own socket: faults, reboots, VMs."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.host_folder / "sim.sock"))
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(connection.makefile().readline())
        assert "error" not in answer and "errno" not in answer, answer
        return answer

    def available(self, kind="nvidia-232"):
        """What the host's GPUs say still fits of a type, by PCI address."""
        devices = self.host_folder / "root/sys/bus/pci/devices"
        found = {}
        for device in sorted(os.listdir(devices)):
            path = devices / device / "mdev_supported_types" / kind / "available_instances"
            if path.exists():
                found[device] = path.read_text().strip()
        return found
