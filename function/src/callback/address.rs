//! Which addresses a callback may reach. Pure; whoever connects asks here first.
//!
//! The receiver's operator names a host, DNS names addresses, and DNS may lie: a public name may
//! resolve to a private address (field F12). So addresses are judged, never names.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// Ports that need no permission.
pub const PUBLIC_PORTS: [u16; 2] = [443, 8443];

/// Not globally reachable, or reachable as something else than what it looks like: IANA's
/// special-purpose registries, multicast, and every transition prefix that embeds an IPv4 address
/// (mapped addresses are made IPv4 before they are looked up here).
const DENIED: [Cidr; 28] = [
    v4(0, 0, 0, 0, 8),
    v4(10, 0, 0, 0, 8),
    v4(100, 64, 0, 0, 10),
    v4(127, 0, 0, 0, 8),
    v4(169, 254, 0, 0, 16),
    v4(172, 16, 0, 0, 12),
    v4(192, 0, 0, 0, 24),
    v4(192, 0, 2, 0, 24),
    v4(192, 88, 99, 0, 24),
    v4(192, 168, 0, 0, 16),
    v4(198, 18, 0, 0, 15),
    v4(198, 51, 100, 0, 24),
    v4(203, 0, 113, 0, 24),
    v4(224, 0, 0, 0, 4),
    v4(240, 0, 0, 0, 4),
    // Unspecified, loopback, the retired form ::a.b.c.d and SIIT's ::ffff:0:a.b.c.d.
    v6([0, 0, 0, 0], 64),
    // NAT64, well-known and local: both lead to IPv4.
    v6([0x64, 0xff9b, 0, 0], 96),
    v6([0x64, 0xff9b, 1, 0], 48),
    v6([0x100, 0, 0, 0], 64),
    // IETF protocol assignments, Teredo among them.
    v6([0x2001, 0, 0, 0], 23),
    v6([0x2001, 0xdb8, 0, 0], 32),
    // 6to4 embeds IPv4.
    v6([0x2002, 0, 0, 0], 16),
    v6([0x3fff, 0, 0, 0], 20),
    v6([0x5f00, 0, 0, 0], 16),
    v6([0xfc00, 0, 0, 0], 7),
    v6([0xfe80, 0, 0, 0], 10),
    v6([0xfec0, 0, 0, 0], 10),
    v6([0xff00, 0, 0, 0], 8),
];

/// Where clouds serve their machines' credentials: no configuration opens these.
const METADATA: [Cidr; 4] = [
    v4(169, 254, 0, 0, 16),
    v6([0xfd00, 0xec2, 0, 0], 32),
    v6([0xfe80, 0, 0, 0], 10),
    // Alibaba Cloud's, within the shared address space.
    v4(100, 100, 100, 200, 32),
];

/// A range of addresses, such as `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    network: IpAddr,
    prefix: u8,
}

/// A text that is no range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCidr {
    /// Not `address/length`.
    #[error("must be an address, '/' and a prefix length, such as 10.0.0.0/8")]
    Form,
    /// Longer than the address.
    #[error("prefix is longer than the address")]
    Prefix,
    /// Perhaps one address was meant, perhaps the range: not for us to guess.
    #[error("address has bits set beyond the prefix")]
    HostBits,
}

impl Cidr {
    /// Whether `address` lies within; IPv4-mapped addresses count as IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.network, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let differing = u32::from(network) ^ u32::from(address);
                self.prefix == 0 || differing >> (32 - self.prefix) == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let differing = u128::from(network) ^ u128::from(address);
                self.prefix == 0 || differing >> (128 - self.prefix) == 0
            }
            _ => false,
        }
    }
}

impl FromStr for Cidr {
    type Err = InvalidCidr;

    fn from_str(text: &str) -> Result<Self, InvalidCidr> {
        let (address, prefix) = text.split_once('/').ok_or(InvalidCidr::Form)?;
        let network: IpAddr = address.parse().map_err(|_| InvalidCidr::Form)?;
        let digits = prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix: u8 = prefix
            .parse()
            .ok()
            .filter(|_| digits)
            .ok_or(InvalidCidr::Form)?;
        let (bits, width) = match network {
            IpAddr::V4(address) => (u128::from(u32::from(address)) << 96, 32),
            IpAddr::V6(address) => (u128::from(address), 128),
        };
        if prefix > width {
            return Err(InvalidCidr::Prefix);
        }
        // A mapped range would never match, since addresses are made IPv4 before they are compared.
        if network.to_canonical() != network {
            return Err(InvalidCidr::Form);
        }
        match bits.checked_shl(u32::from(prefix)) {
            Some(beyond) if beyond != 0 => Err(InvalidCidr::HostBits),
            _ => Ok(Self { network, prefix }),
        }
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

/// A private destination that is meant: an internal receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllowPrivate {
    /// Addresses.
    pub cidr: Cidr,
    /// The only port.
    pub port: u16,
}

impl AllowPrivate {
    fn covers(&self, address: SocketAddr) -> bool {
        self.port == address.port() && self.cidr.contains(address.ip())
    }
}

/// Whether one of `allowed` names this destination.
#[must_use]
pub fn is_allowed(address: SocketAddr, allowed: &[AllowPrivate]) -> bool {
    !is_within(address.ip(), &METADATA) && allowed.iter().any(|entry| entry.covers(address))
}

/// Whether a callback may connect to `address`: public and on a usual port, or listed.
#[must_use]
pub fn may_connect(address: SocketAddr, allowed: &[AllowPrivate]) -> bool {
    let public = !is_within(address.ip(), &DENIED) && PUBLIC_PORTS.contains(&address.port());
    public || is_allowed(address, allowed)
}

fn is_within(address: IpAddr, ranges: &[Cidr]) -> bool {
    ranges.iter().any(|range| range.contains(address))
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Cidr {
    Cidr {
        network: IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        prefix,
    }
}

/// From the upper half; no range here needs more.
const fn v6(upper: [u16; 4], prefix: u8) -> Cidr {
    let [a, b, c, d] = upper;
    Cidr {
        network: IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0)),
        prefix,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str, port: u16) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), port)
    }

    /// Webhook facts §8: first and last address of every denied range, and their neighbours.
    #[test]
    fn denied_ranges_are_denied_from_their_first_to_their_last_address() {
        let denied = "
            0.0.0.0 0.255.255.255 10.0.0.0 10.255.255.255 100.64.0.0 100.127.255.255 127.0.0.1 127.255.255.255
            169.254.0.0 169.254.169.254 169.254.255.255 172.16.0.0 172.31.255.255 192.0.0.0 192.0.0.255
            192.0.2.0 192.0.2.255 192.88.99.0 192.88.99.255 192.168.0.0 192.168.255.255 198.18.0.0
            198.19.255.255 198.51.100.0 198.51.100.255 203.0.113.0 203.0.113.255 224.0.0.0 239.255.255.255
            240.0.0.0 255.255.255.255 :: ::1 ::7f00:1 ::ffff:10.0.0.1 ::ffff:127.0.0.1 ::ffff:169.254.169.254
            ::ffff:0:7f00:1 64:ff9b:: 64:ff9b::a00:1 64:ff9b::ffff:ffff 64:ff9b:1:: 64:ff9b:1:ffff:ffff:ffff:ffff:ffff
            100:: 100::ffff:ffff:ffff:ffff 2001:: 2001:0:ffff:ffff:ffff:ffff:ffff:ffff 2001:db8::
            2001:db8:ffff:ffff:ffff:ffff:ffff:ffff 2002:: 2002:a00:1:: 3fff:: 3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff
            5f00:: 5f00:ffff::1 fc00:: fd00:ec2::254 fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff fe80::1
            febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff fec0::1 ff00:: ff02::1";
        for address in denied.split_whitespace() {
            assert!(!may_connect(at(address, 443), &[]), "{address}");
        }
        let public = "
            1.1.1.1 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 169.253.255.255
            169.255.0.0 172.15.255.255 172.32.0.0 192.0.1.0 192.0.3.0 192.88.98.255 192.88.100.0 192.167.255.255
            192.169.0.0 198.17.255.255 198.20.0.0 198.51.99.255 198.51.101.0 203.0.112.255 203.0.114.0
            223.255.255.255 ::ffff:8.8.8.8 2001:4860:4860::8888 2606:4700:4700::1111 2003:: 3ffe:: 3fff:1000::";
        for address in public.split_whitespace() {
            assert!(may_connect(at(address, 443), &[]), "{address}");
            assert!(may_connect(at(address, 8443), &[]), "{address}");
            assert!(!may_connect(at(address, 80), &[]), "{address} port 80");
        }
    }

    #[test]
    fn listed_destinations_are_reached_on_their_port_alone() {
        let allowed = [AllowPrivate {
            cidr: "10.1.0.0/16".parse().unwrap(),
            port: 9443,
        }];
        for (address, port, expect) in [
            ("10.1.2.3", 9443, true),
            ("::ffff:10.1.2.3", 9443, true),
            ("10.1.2.3", 443, false),
            ("10.2.0.0", 9443, false),
            ("1.1.1.1", 9443, false),
            ("1.1.1.1", 443, true),
        ] {
            assert_eq!(
                may_connect(at(address, port), &allowed),
                expect,
                "{address} {port}"
            );
        }
    }

    #[test]
    fn no_list_opens_the_metadata_services() {
        let all = ["0.0.0.0/0", "::/0"].map(|cidr| AllowPrivate {
            cidr: cidr.parse().unwrap(),
            port: 443,
        });
        for address in [
            "169.254.169.254",
            "169.254.170.2",
            "::ffff:169.254.169.254",
            "fd00:ec2::254",
            "100.100.100.200",
        ] {
            assert!(!may_connect(at(address, 443), &all), "{address}");
        }
        assert!(may_connect(at("127.0.0.1", 443), &all));
        assert!(may_connect(at("::1", 443), &all));
    }

    #[test]
    fn ranges_are_read_strictly() {
        for (text, expect) in [
            ("10.0.0.0/8", Ok(())),
            ("0.0.0.0/0", Ok(())),
            ("127.0.0.1/32", Ok(())),
            ("fc00::/7", Ok(())),
            ("::1/128", Ok(())),
            ("10.0.0.1/8", Err(InvalidCidr::HostBits)),
            ("::1/0", Err(InvalidCidr::HostBits)),
            ("10.0.0.0/33", Err(InvalidCidr::Prefix)),
            ("10.0.0.0", Err(InvalidCidr::Form)),
            ("10.0.0.0/+8", Err(InvalidCidr::Form)),
            ("10.0.0.0/", Err(InvalidCidr::Form)),
            ("::ffff:10.0.0.0/104", Err(InvalidCidr::Form)),
            ("localhost/8", Err(InvalidCidr::Form)),
        ] {
            assert_eq!(text.parse::<Cidr>().map(|_| ()), expect, "{text}");
        }
    }
}
