//! A configured receiver of callbacks. Endpoints come from configuration, never from a payload.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use events::key::SecretKey;
use ring::hmac;
use rustls::pki_types::ServerName;
use url::{Host, Url};

use super::address::{AllowPrivate, PUBLIC_PORTS, is_allowed};
use super::trust::{Trust, TrustError};

/// Why a URL cannot receive callbacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidUrl {
    /// Not a URL at all.
    #[error("callback URL cannot be read")]
    Syntax(#[source] url::ParseError),
    /// Without TLS anybody on the way reads the result.
    #[error("callback URL must begin with https://")]
    Scheme,
    /// Credentials do not belong into URLs; they also hide the real host (`good@10.0.0.1`).
    #[error("callback URL must not hold a user name or password")]
    UserInfo,
    /// Never sent, so it means that something else was intended.
    #[error("callback URL must not have a fragment")]
    Fragment,
    /// Neither a usual port nor listed.
    #[error("callback port {0} is neither 443 nor 8443 nor listed in allow_private")]
    Port(u16),
    /// An address where a name is expected.
    #[error("callback host {0} is an address that allow_private does not list")]
    Address(IpAddr),
    /// Not a name that TLS can prove.
    #[error("callback host is not a DNS name")]
    Name,
}

/// Why an endpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidEndpoint {
    /// Its URL.
    #[error(transparent)]
    Url(#[from] InvalidUrl),
    /// Neither a secret nor a key.
    #[error("callback has neither secrets nor key_files, so nothing would be signed")]
    Unsigned,
    /// Its extra root.
    #[error(transparent)]
    Trust(#[from] TrustError),
}

/// What configuration says of one endpoint, secrets loaded.
pub struct EndpointSettings {
    /// Its name; sources refer to it.
    pub name: String,
    /// Where it is.
    pub url: String,
    /// v1 secrets; every one signs.
    pub secrets: Vec<hmac::Key>,
    /// v1a keys; every one signs.
    pub keys: Vec<SecretKey>,
    /// One more trusted root, PEM.
    pub ca_pem: Option<Vec<u8>>,
    /// Private destinations that are meant.
    pub allow_private: Vec<AllowPrivate>,
}

/// An endpoint whose URL passed the rules of this module. `Debug` and logs know it by its name
/// alone: paths and queries of callback URLs often hold tokens.
pub struct Endpoint {
    name: String,
    destination: Destination,
    /// What signs v1.
    pub(super) secrets: Vec<hmac::Key>,
    /// What signs v1a.
    pub(super) keys: Vec<SecretKey>,
    /// What its certificate is checked with.
    pub(super) tls: Arc<rustls::ClientConfig>,
    /// Private destinations that are meant.
    pub(super) allow_private: Vec<AllowPrivate>,
}

/// What a callback URL comes down to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Destination {
    /// A name to resolve, or an address that was listed.
    pub(super) host: DestinationHost,
    /// The port.
    pub(super) port: u16,
    /// The `Host` header.
    pub(super) authority: String,
    /// Path and query.
    pub(super) path: String,
    /// What the certificate must be for.
    pub(super) server_name: ServerName<'static>,
}

/// Where a destination is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DestinationHost {
    /// To be resolved, once per attempt.
    Name(String),
    /// Listed in `allow_private`.
    Address(IpAddr),
}

impl Endpoint {
    /// Checks an endpoint.
    ///
    /// # Errors
    /// The first fault; [`check_url`] finds the URL's alone.
    pub fn new(settings: EndpointSettings, trust: &Trust) -> Result<Self, InvalidEndpoint> {
        let destination = read_url(&settings.url, &settings.allow_private)?;
        if settings.secrets.is_empty() && settings.keys.is_empty() {
            return Err(InvalidEndpoint::Unsigned);
        }
        Ok(Self {
            name: settings.name,
            destination,
            secrets: settings.secrets,
            keys: settings.keys,
            tls: trust.client(settings.ca_pem.as_deref())?,
            allow_private: settings.allow_private,
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn destination(&self) -> &Destination {
        &self.destination
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Endpoint({})", self.name)
    }
}

/// Checks a callback URL by itself, for whoever reports every fault of a configuration at once.
///
/// # Errors
/// See [`InvalidUrl`].
pub fn check_url(url: &str, allow_private: &[AllowPrivate]) -> Result<(), InvalidUrl> {
    read_url(url, allow_private).map(|_| ())
}

/// Only what the parser made of the text is looked at: it turns `2130706433`, `0x7f.1` and
/// full-width digits into the address that a connection would go to (webhook facts §8).
fn read_url(text: &str, allow_private: &[AllowPrivate]) -> Result<Destination, InvalidUrl> {
    let url = Url::parse(text).map_err(InvalidUrl::Syntax)?;
    if url.scheme() != "https" {
        return Err(InvalidUrl::Scheme);
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(InvalidUrl::UserInfo);
    }
    if url.fragment().is_some() {
        return Err(InvalidUrl::Fragment);
    }
    let port = url.port_or_known_default().unwrap_or(443);
    let listed = allow_private.iter().any(|entry| entry.port == port);
    if !PUBLIC_PORTS.contains(&port) && !listed {
        return Err(InvalidUrl::Port(port));
    }
    let literal = |address: IpAddr| {
        if is_allowed(SocketAddr::new(address, port), allow_private) {
            Ok((DestinationHost::Address(address), ServerName::from(address)))
        } else {
            Err(InvalidUrl::Address(address))
        }
    };
    let (host, server_name) = match url.host() {
        Some(Host::Ipv4(address)) => literal(address.into())?,
        Some(Host::Ipv6(address)) => literal(address.into())?,
        Some(Host::Domain(name)) => {
            let server_name =
                ServerName::try_from(name.to_owned()).map_err(|_| InvalidUrl::Name)?;
            (DestinationHost::Name(name.to_owned()), server_name)
        }
        None => return Err(InvalidUrl::Name),
    };
    let path = match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    };
    Ok(Destination {
        host,
        port,
        authority: url.authority().to_owned(),
        path,
        server_name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(url: &str) -> Result<(), InvalidUrl> {
        check_url(url, &[])
    }

    #[test]
    fn plain_https_urls_are_taken() {
        for url in [
            "https://hooks.example.com/gpuhook",
            "https://hooks.example.com:443/",
            "https://hooks.example.com:8443/a?token=b",
            "HTTPS://Hooks.Example.COM",
            // Names that only resolution catches (webhook facts §8).
            "https://localhost./",
            "https://127.0.0.1.nip.io/",
        ] {
            assert_eq!(check(url), Ok(()), "{url}");
        }
    }

    /// field F12: every spelling of an address is the address.
    #[test]
    fn hostile_spellings_are_seen_through() {
        let address = |text: &str| Err(InvalidUrl::Address(text.parse().unwrap()));
        for (url, expect) in [
            ("https://2130706433/", address("127.0.0.1")),
            ("https://0x7f.1/", address("127.0.0.1")),
            ("https://0177.0.0.1/", address("127.0.0.1")),
            ("https://127.1/", address("127.0.0.1")),
            ("https://127。0。0。1/", address("127.0.0.1")),
            ("https://①②⑦.0.0.1/", address("127.0.0.1")),
            ("https://169.254.169.254/", address("169.254.169.254")),
            ("https://100.64.0.1/", address("100.64.0.1")),
            ("https://10.0.0.1:8443/", address("10.0.0.1")),
            ("http://2130706433/", Err(InvalidUrl::Scheme)),
            ("http://0x7f.1/", Err(InvalidUrl::Scheme)),
            ("https://[::1]/", address("::1")),
            ("https://[::ffff:10.0.0.1]/", address("::ffff:10.0.0.1")),
            ("https://1.1.1.1/", address("1.1.1.1")),
            ("https://good@10.0.0.1/", Err(InvalidUrl::UserInfo)),
            (
                "https://user:pw@x@169.254.169.254/",
                Err(InvalidUrl::UserInfo),
            ),
            ("https://:pw@example.com/", Err(InvalidUrl::UserInfo)),
            ("http://example.com/", Err(InvalidUrl::Scheme)),
            ("ftp://example.com/", Err(InvalidUrl::Scheme)),
            ("file:///etc/passwd", Err(InvalidUrl::Scheme)),
            ("https://example.com/#x", Err(InvalidUrl::Fragment)),
            ("https://example.com:22/", Err(InvalidUrl::Port(22))),
            ("https://example.com:80/", Err(InvalidUrl::Port(80))),
            ("https://-._/", Err(InvalidUrl::Name)),
        ] {
            assert_eq!(check(url), expect, "{url}");
        }
        for url in [
            "",
            "example.com",
            "//example.com/",
            "https://",
            "https://a b/",
            "https://[::1/",
        ] {
            assert!(matches!(check(url), Err(InvalidUrl::Syntax(_))), "{url}");
        }
    }

    #[test]
    fn listed_addresses_and_ports_are_taken() {
        let allow = [AllowPrivate {
            cidr: "127.0.0.1/32".parse().unwrap(),
            port: 9443,
        }];
        for (url, expect) in [
            ("https://127.0.0.1:9443/", true),
            ("https://internal.example:9443/", true),
            ("https://127.0.0.2:9443/", false),
            ("https://127.0.0.1:8443/", false),
            ("https://127.0.0.1:9444/", false),
        ] {
            assert_eq!(check_url(url, &allow).is_ok(), expect, "{url}");
        }
    }

    #[test]
    fn the_destination_is_what_the_parser_made_of_the_url() {
        let read = read_url("https://Hooks.Example.com:8443/a/../b?c=d", &[]).unwrap();
        assert_eq!(
            read.host,
            DestinationHost::Name("hooks.example.com".to_owned())
        );
        assert_eq!(read.authority, "hooks.example.com:8443");
        assert_eq!((read.port, read.path.as_str()), (8443, "/b?c=d"));
        assert_eq!(read.server_name.to_str(), "hooks.example.com");
        // The usual port is left out, as RFC 9110 §4.2.3 prefers.
        let read = read_url(r"https://good.example\@evil.example/", &[]).unwrap();
        assert_eq!(
            (read.authority.as_str(), read.path.as_str()),
            ("good.example", "/@evil.example/")
        );
    }
}
