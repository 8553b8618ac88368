//! One connection to AWS: HTTP client, deadlines, retries, credentials. Built once per process; every
//! client is made from it.
//!
//! Every call has a deadline for connecting, for each attempt and for all attempts together; the SDK
//! itself sets none (field F14). The SDK's protection against stalled streams is off: a quiet long poll
//! looks like one, and the deadlines bound a stalled one as well.

use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use aws_smithy_http_client::{Builder, Connector};
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use aws_smithy_runtime_api::client::identity::SharedIdentityCache;

use super::credentials::{Renewing, StaticKeys};
use super::server_clock::ServerClock;

/// Longest that a connection may take, TLS included.
pub(super) const CONNECT: Duration = Duration::from_secs(3);
/// Longest that one attempt of a call may take, unless it waits for a message.
const ATTEMPT: Duration = Duration::from_secs(3);
/// Longest that a call may take with all its attempts: less than the door's patience with a send.
const CALL: Duration = Duration::from_secs(9);
/// Attempts of a call, with the SDK's exponential, jittered pauses between.
const ATTEMPTS: u32 = 3;

/// Roots that AWS endpoints' certificates chain to, as Mozilla's list has them (Amazon Trust Services,
/// "Certificate authorities"). The first of them ends in 2037.
const AMAZON_ROOTS: &[u8] = include_bytes!("amazon-roots.pem");

/// Which roots are trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Roots {
    /// The system's: what a host uses, and what a proxy that inspects TLS needs. Parsing them takes 8 ms.
    #[default]
    Native,
    /// Amazon's five, embedded: what a function starts with in under a millisecond.
    Amazon,
}

/// How to reach AWS. Everything that is not said comes from the environment and the shared
/// configuration files, as for every AWS tool.
#[derive(Debug, Clone, Default)]
pub struct Connection {
    /// Region; else `AWS_REGION` or the profile's.
    pub region: Option<String>,
    /// Profile of the shared configuration files; else `AWS_PROFILE` or `default`.
    pub profile: Option<String>,
    /// One endpoint for all services, for emulators; else `AWS_ENDPOINT_URL` or AWS itself.
    pub endpoint: Option<String>,
    /// Trusted roots.
    pub roots: Roots,
    /// Whether long-lived access keys may be used.
    pub static_keys: StaticKeys,
    /// Access key and secret for an emulator, to which they mean nothing; nobody else is asked then.
    pub emulator_keys: Option<[String; 2]>,
}

/// Why there is no connection. Nothing was sent yet: credentials are looked for by [`Aws::ready`] and
/// by the first call.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody says where.
    #[error("no AWS region: set it in the configuration, in AWS_REGION or in the profile")]
    NoRegion,
    /// The HTTP client cannot be made.
    #[error("TLS cannot be set up")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A connection; clones share it.
#[derive(Debug, Clone)]
pub struct Aws {
    pub(super) config: SdkConfig,
    pub(super) clock: ServerClock,
    pub(super) credentials: Renewing,
}

impl Aws {
    /// Sets up a connection. Sends nothing.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect(connection: &Connection) -> Result<Self, ConnectError> {
        let http = http_client(connection.roots)?;
        let region = region(connection).await.ok_or(ConnectError::NoRegion)?;
        let credentials = Renewing::new(connection, http.clone(), region.clone());
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT)
            .operation_attempt_timeout(ATTEMPT)
            .operation_timeout(CALL);
        let mut loader = aws_config::defaults(BehaviorVersion::latest())
            .http_client(http)
            .region(region)
            .credentials_provider(credentials.clone())
            // `Renewing` caches, and forgets what AWS says has expired.
            .identity_cache(SharedIdentityCache::new(
                aws_config::identity::IdentityCache::no_cache(),
            ))
            .timeout_config(timeouts.build())
            .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS))
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
        if let Some(profile) = &connection.profile {
            loader = loader.profile_name(profile);
        }
        if let Some(endpoint) = &connection.endpoint {
            loader = loader.endpoint_url(endpoint);
        }
        Ok(Self {
            config: loader.load().await,
            clock: ServerClock::default(),
            credentials,
        })
    }

    /// Looks for credentials, within seconds, so that a start without any fails at once and says which
    /// providers were tried (field F70).
    ///
    /// # Errors
    /// No provider has credentials that may be used.
    pub async fn ready(&self) -> Result<(), super::CredentialsUnavailable> {
        self.credentials.credentials().await.map(drop)
    }

    /// What clients of further services are made from.
    #[must_use]
    pub fn sdk_config(&self) -> &SdkConfig {
        &self.config
    }

    /// What AWS's clocks said.
    #[must_use]
    pub fn server_clock(&self) -> &ServerClock {
        &self.clock
    }
}

/// The client of all services. It goes through `HTTPS_PROXY` (but not for `NO_PROXY`), which the
/// SDK's own default does not.
fn http_client(roots: Roots) -> Result<SharedHttpClient, ConnectError> {
    let trust = match roots {
        Roots::Native => TrustStore::default(),
        Roots::Amazon => TrustStore::empty().with_pem_certificate(AMAZON_ROOTS),
    };
    let tls = TlsContext::builder().with_trust_store(trust).build();
    let tls = tls.map_err(|error| ConnectError::Tls(error.into()))?;
    Ok(
        Builder::new().build_with_connector_fn(move |settings, components| {
            let mut builder = Connector::builder()
                .proxy_config(ProxyConfig::from_env())
                .enable_tcp_nodelay(true);
            if let Some(settings) = settings {
                builder = builder.connector_settings(settings.clone());
            }
            if let Some(components) = components {
                builder.set_sleep_impl(components.sleep_impl());
            }
            builder
                .tls_provider(Provider::Rustls(CryptoMode::Ring))
                .tls_context(tls.clone())
                .build()
        }),
    )
}

/// The region without asking the instance metadata service, which hosts outside AWS do not have.
async fn region(connection: &Connection) -> Option<Region> {
    if let Some(region) = &connection.region {
        return Some(Region::new(region.clone()));
    }
    let environment = aws_config::environment::region::EnvironmentVariableRegionProvider::new();
    let mut profile = aws_config::profile::region::Builder::default();
    if let Some(name) = &connection.profile {
        profile = profile.profile_name(name);
    }
    aws_config::meta::region::RegionProviderChain::first_try(environment)
        .or_else(profile.build())
        .region()
        .await
}
