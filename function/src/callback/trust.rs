//! Whom callbacks trust: the system's roots, loaded once, and one more where an endpoint names it.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Why an extra root cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// Not PEM, or no certificate in it.
    #[error("ca_file holds no PEM certificate")]
    Pem(#[source] Option<rustls::pki_types::pem::Error>),
    /// Not a certificate that can be a root.
    #[error("ca_file holds a certificate that cannot be trusted")]
    Certificate(#[source] rustls::Error),
    /// The TLS library refuses its own defaults.
    #[error("TLS cannot be set up")]
    Setup(#[source] rustls::Error),
}

/// The system's roots.
#[derive(Debug, Clone)]
pub struct Trust {
    roots: RootCertStore,
}

impl Trust {
    /// Loads the system's roots. Unreadable ones are left out and said; a system without any can
    /// still reach endpoints that bring their own.
    #[must_use]
    pub fn load() -> Self {
        let loaded = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        let (taken, left_out) = roots.add_parsable_certificates(loaded.certs);
        for error in &loaded.errors {
            tracing::warn!(%error, "system roots could not be read");
        }
        if taken == 0 {
            tracing::warn!(
                "the system has no roots: only callbacks with a ca_file can be delivered"
            );
        }
        tracing::debug!(taken, left_out, "system roots loaded");
        Self { roots }
    }

    /// How an endpoint's certificate is checked: TLS 1.2 or 1.3, HTTP/1.1.
    pub(super) fn client(&self, ca_pem: Option<&[u8]>) -> Result<Arc<ClientConfig>, TrustError> {
        let mut roots = self.roots.clone();
        if let Some(pem) = ca_pem {
            let mut found = 0;
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|error| TrustError::Pem(Some(error)))?;
                roots.add(certificate).map_err(TrustError::Certificate)?;
                found += 1;
            }
            if found == 0 {
                return Err(TrustError::Pem(None));
            }
        }
        // The provider is named, so that no process-wide default decides it.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TrustError::Setup)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}
