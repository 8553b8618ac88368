//! `gpuhook-agent enrol`: the keys of a host, made on the host, which they never leave. What is there stays
//! as it is, so that it may be done again.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use events::HostName;
use events::key::{KeyError, SecretKey};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

/// Signs results.
pub const HOST_KEY: &str = "host.whsk";
/// Of the certificate that the host proves its name to AWS with: P-256, PKCS #8.
pub const TLS_KEY: &str = "host.key";
/// The request for that certificate.
pub const REQUEST: &str = "host.csr";

/// Why a host has no keys.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// A file cannot be read or written.
    #[error("cannot {doing} {path}")]
    File {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A key that is there is none, or none can be made.
    #[error("{path} is no usable key")]
    Key {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: KeyError,
    },
    /// The request cannot be made.
    #[error("certificate request cannot be made")]
    Request(#[source] rcgen::Error),
}

/// What the host has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enrolled {
    /// Public half of the key that signs results, `whpk_…`.
    pub public_key: String,
    /// The request for a certificate.
    pub request: PathBuf,
}

/// Makes what `folder` lacks: the key that signs results, a TLS key, and a request for its certificate
/// under the host's name.
///
/// # Errors
/// See [`EnrolError`].
pub fn enrol(folder: &Path, host: &HostName) -> Result<Enrolled, EnrolError> {
    std::fs::create_dir_all(folder).map_err(failed("make", folder))?;
    let public_key = host_key(&folder.join(HOST_KEY))?;
    let key = tls_key(&folder.join(TLS_KEY))?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, host.as_str());
    let request = params
        .serialize_request(&key)
        .map_err(EnrolError::Request)?;
    let text = request.pem().map_err(EnrolError::Request)?;
    let path = folder.join(REQUEST);
    std::fs::write(&path, text).map_err(failed("write", &path))?;
    Ok(Enrolled {
        public_key,
        request: path,
    })
}

fn host_key(path: &Path) -> Result<String, EnrolError> {
    let unusable = |source| EnrolError::Key {
        path: path.to_owned(),
        source,
    };
    if !path.exists() {
        let key = SecretKey::generate().map_err(unusable)?;
        write_new(path, &format!("{}\n", key.expose().as_str()))?;
    }
    let text = std::fs::read_to_string(path).map_err(failed("read", path))?;
    Ok(SecretKey::parse(&text)
        .map_err(unusable)?
        .public()
        .to_string())
}

fn tls_key(path: &Path) -> Result<KeyPair, EnrolError> {
    if !path.exists() {
        let key = KeyPair::generate().map_err(EnrolError::Request)?;
        write_new(path, &key.serialize_pem())?;
    }
    let text = std::fs::read_to_string(path).map_err(failed("read", path))?;
    KeyPair::from_pem(&text).map_err(EnrolError::Request)
}

/// Readable by its owner alone, and never in the place of another.
fn write_new(path: &Path, text: &str) -> Result<(), EnrolError> {
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| {
        file.write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
    })
    .map_err(failed("write", path))
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> EnrolError {
    let path = path.to_owned();
    move |source| EnrolError::File {
        doing,
        path,
        source,
    }
}
