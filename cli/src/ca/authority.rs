//! The authority at work.

use std::path::Path;

use anyhow::{Context, Result, bail};
use events::HostName;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, DnValue, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SerialNumber,
};
use time::{Duration, OffsetDateTime};

use crate::data::Data;
use crate::webhook;

/// How long an authority lives.
const AUTHORITY: Duration = Duration::days(3650);
/// Clocks differ: a certificate counts from a little before it was signed.
const EARLIER: Duration = Duration::minutes(5);

/// Makes an authority.
pub(super) fn new(folder: &Path, name: &str) -> Result<()> {
    let data = Data::locate(Some(folder.to_owned()), false)?;
    if data.path("ca.pem").exists() {
        println!("{} is there already", data.path("ca.pem").display());
        return Ok(());
    }
    let key = KeyPair::generate().context("make a key")?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    // It signs hosts and no other authority.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (params.not_before, params.not_after) = life(AUTHORITY);
    params.serial_number = Some(serial()?);
    let certificate = params.self_signed(&key).context("sign the authority")?;
    data.write_new("ca.key", &key.serialize_pem())?;
    data.write_new("ca.pem", &certificate.pem())?;
    println!(
        "{} and ca.key; keep the key offline, and deploy infra/iam/roles-anywhere.yaml with the certificate and IssuerCommonName={name:?}",
        data.path("ca.pem").display()
    );
    Ok(())
}

/// Signs a host's request.
pub(super) fn sign(request: &Path, folder: &Path, out: &Path, hours: u32) -> Result<()> {
    let read = |path: &Path| {
        std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
    };
    let key = KeyPair::from_pem(&read(&folder.join("ca.key"))?).context("read ca.key")?;
    let issuer =
        Issuer::from_ca_cert_pem(&read(&folder.join("ca.pem"))?, key).context("read ca.pem")?;
    let asked = CertificateSigningRequestParams::from_pem(&read(request)?).with_context(|| {
        format!(
            "{} is no request, or its signature does not hold",
            request.display()
        )
    })?;
    let host = host_of(&asked.params)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, host.as_str());
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    (params.not_before, params.not_after) = life(Duration::hours(i64::from(hours)));
    params.serial_number = Some(serial()?);
    // Nothing of the request is taken over but its name and its key.
    let checked = CertificateSigningRequestParams {
        params,
        public_key: asked.public_key,
    };
    let certificate = checked.signed_by(&issuer).context("sign the certificate")?;
    std::fs::write(out, certificate.pem()).with_context(|| format!("write {}", out.display()))?;
    println!("{}: host {host}, for {hours} hours", out.display());
    Ok(())
}

/// The host that a request is about: one common name, and nothing else that could be read as one.
fn host_of(asked: &CertificateParams) -> Result<HostName> {
    let names: Vec<_> = asked.distinguished_name.iter().collect();
    let [(DnType::CommonName, name)] = names.as_slice() else {
        bail!("a host's request has a common name and nothing else in its subject");
    };
    let text = match name {
        DnValue::Utf8String(text) => text.clone(),
        DnValue::PrintableString(text) => text.as_str().to_owned(),
        _ => bail!("the common name is in an encoding that hosts' names do not need"),
    };
    if !asked.subject_alt_names.is_empty() {
        bail!("the request asks for further names");
    }
    let host: HostName = text
        .parse()
        .with_context(|| format!("{text:?} is no host's name"))?;
    if host.as_str().ends_with("-dlq") {
        bail!("a host may not be named like the dead letters of another: {host} ends in -dlq");
    }
    Ok(host)
}

fn life(length: Duration) -> (OffsetDateTime, OffsetDateTime) {
    let now = OffsetDateTime::now_utc();
    (now - EARLIER, now + length)
}

/// Unique and not to be guessed: AWS names a host's sessions by it.
fn serial() -> Result<SerialNumber> {
    let mut bytes = webhook::random::<16>()?.to_vec();
    // Positive, and as long as the others.
    bytes[0] = bytes[0] & 0x3f | 0x40;
    Ok(SerialNumber::from(bytes))
}
