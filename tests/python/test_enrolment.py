"""Keys of a host are made on the host; its certificate is what AWS knows it by. Judged by PyPI's
`cryptography`."""

import datetime
import os
import stat
import subprocess
import tempfile
import pathlib
import unittest

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from machine import BIN


class Enrolment(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        self.host, self.ca = self.folder / "host", self.folder / "ca"

    def run_it(self, program, *arguments, check=True):
        ran = subprocess.run([BIN / program, *arguments], capture_output=True, text=True, timeout=60)
        if check:
            self.assertEqual(ran.returncode, 0, (arguments, ran.stdout, ran.stderr))
        return ran

    def enrol(self):
        return self.run_it("gpuhook-agent", "enrol", "--host", "gpu-01", "--out", self.host).stdout.strip()

    def request(self, *names, extensions=()):
        """A request that somebody else made."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([x509.NameAttribute(oid, text) for oid, text in names]))
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        path = self.folder / "other.csr"
        path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return path

    def test_a_host_is_certified_under_its_name_for_a_short_time(self):
        public = self.enrol()
        self.assertTrue(public.startswith("whpk_"))
        for secret in ("host.whsk", "host.key"):
            self.assertEqual(stat.S_IMODE(os.stat(self.host / secret).st_mode), 0o600)
        before = (self.host / "host.key").read_bytes()
        self.assertEqual(self.enrol(), public, "done again, nothing is replaced")
        self.assertEqual((self.host / "host.key").read_bytes(), before)
        request = x509.load_pem_x509_csr((self.host / "host.csr").read_bytes())
        self.assertTrue(request.is_signature_valid)
        self.assertEqual(request.subject.rfc4514_string(), "CN=gpu-01")

        self.run_it("gpuhook", "ca", "new", "--out", self.ca)
        self.run_it("gpuhook", "ca", "new", "--out", self.ca)
        self.assertEqual(stat.S_IMODE(os.stat(self.ca / "ca.key").st_mode), 0o600)
        authority = x509.load_pem_x509_certificate((self.ca / "ca.pem").read_bytes())
        constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints)
        self.assertTrue(constraints.critical and constraints.value.ca and constraints.value.path_length == 0)
        usage = authority.extensions.get_extension_for_class(x509.KeyUsage).value
        self.assertTrue(usage.key_cert_sign and usage.crl_sign and not usage.digital_signature)

        serials = set()
        for _ in range(2):
            signed = self.run_it("gpuhook", "ca", "sign", self.host / "host.csr", "--ca", self.ca)
            self.assertIn("host gpu-01, for 72 hours", signed.stdout)
            certificate = x509.load_pem_x509_certificate((self.host / "host.pem").read_bytes())
            certificate.verify_directly_issued_by(authority)
            serials.add(certificate.serial_number)
        self.assertEqual(len(serials), 2)
        self.assertEqual(certificate.subject.rfc4514_string(), "CN=gpu-01")
        self.assertEqual(certificate.public_key(), request.public_key())
        life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        self.assertLess(life, datetime.timedelta(hours=73))
        self.assertFalse(certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
        self.assertTrue(usage.digital_signature and not usage.key_cert_sign)
        purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        self.assertEqual(list(purposes), [ExtendedKeyUsageOID.CLIENT_AUTH])

    def test_names_that_are_not_a_hosts_are_not_certified(self):
        self.run_it("gpuhook", "ca", "new", "--out", self.ca)
        name = NameOID.COMMON_NAME
        for names, extensions, why in (
            ([(name, "*")], (), "is no host's name"),
            ([(name, "GPU-1")], (), "is no host's name"),
            ([(name, "a.fifo")], (), "is no host's name"),
            ([(name, "gpu-1-dlq")], (), "dead letters"),
            ([(name, "gpu-1"), (NameOID.ORGANIZATION_NAME, "x")], (), "nothing else"),
            ([(NameOID.ORGANIZATION_NAME, "gpu-1")], (), "nothing else"),
            ([], (), "nothing else"),
            ([(name, "gpu-1")], (x509.SubjectAlternativeName([x509.DNSName("gpu-2")]),), "further names"),
        ):
            request = self.request(*names, extensions=extensions)
            ran = self.run_it("gpuhook", "ca", "sign", request, "--ca", self.ca, "--out", self.folder / "out.pem", check=False)
            self.assertNotEqual(ran.returncode, 0, names)
            self.assertIn(why, ran.stderr, names)
            self.assertFalse((self.folder / "out.pem").exists())
        # Whoever asks to be an authority becomes a host.
        request = self.request((name, "gpu-1"), extensions=(x509.BasicConstraints(ca=True, path_length=None),))
        self.run_it("gpuhook", "ca", "sign", request, "--ca", self.ca, "--out", self.folder / "out.pem")
        certificate = x509.load_pem_x509_certificate((self.folder / "out.pem").read_bytes())
        self.assertFalse(certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)


if __name__ == "__main__":
    unittest.main()
