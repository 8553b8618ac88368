//! Names to addresses, behind a seam so that tests decide what a name resolves to.

use std::io;
use std::net::SocketAddr;

use async_trait::async_trait;

/// Resolves names. Asked once per attempt; what it answers is judged and then connected to, so
/// that a second answer (rebinding) has no part to play.
#[async_trait]
pub trait Resolver: Send + Sync {
    /// Every address of `host`, with `port` put in.
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
}

/// The system's resolver.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

#[async_trait]
impl Resolver for SystemResolver {
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host((host, port)).await?.collect())
    }
}
