//! From a message to an event that is certainly its host's.
//!
//! The host is read from the *unverified* payload, only to find the key; the event is then read
//! again from the bytes that this key verified, and must name the same host.

use backplane::{Reads, StoreError};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use events::HostName;
use events::envelope::{self, Envelope, EnvelopeError, MAX_ENVELOPE};
use events::key::{KeyError, PublicKey};
use events::result::{ForeignEvent, HostEvent, RESULT_TYPE, ResultEvent};
use serde::Deserialize;

/// Why a message yields no event.
#[derive(Debug)]
pub(super) enum Unverified {
    /// It never will.
    Never(Poison),
    /// It may, once the store answers.
    Later(StoreError),
}

/// What is wrong with a message for good.
#[derive(Debug, thiserror::Error)]
pub(super) enum Poison {
    /// No host can be read from it.
    #[error("it names no host")]
    NoHost,
    /// The host is not enrolled.
    #[error("host {0} is not enrolled")]
    UnknownHost(HostName),
    /// What is enrolled for the host is no key.
    #[error("the key enrolled for host {0} cannot be used: {1}")]
    Key(HostName, KeyError),
    /// Its envelope.
    #[error("claimed to be from host {0}: {1}")]
    Envelope(HostName, EnvelopeError),
    /// It speaks for another host.
    #[error(transparent)]
    Foreign(#[from] ForeignEvent),
    /// Its parts contradict each other.
    #[error("host {0} signed an event without the subject that its type needs")]
    Subject(HostName),
}

/// The one field of an event that is believed before it is verified.
#[derive(Deserialize)]
struct Claim {
    source: String,
}

/// Verifies a message.
pub(super) async fn verify(body: &str, reads: &dyn Reads) -> Result<HostEvent, Unverified> {
    let host = claimed_host(body).ok_or(Unverified::Never(Poison::NoHost))?;
    let view = reads.host(&host).await.map_err(Unverified::Later)?;
    let Some(view) = view else {
        return Err(Unverified::Never(Poison::UnknownHost(host)));
    };
    open(body, host, &view.record.public_key).map_err(Unverified::Never)
}

fn claimed_host(body: &str) -> Option<HostName> {
    if body.len() > MAX_ENVELOPE {
        return None;
    }
    let envelope: Envelope = serde_json::from_str(body).ok()?;
    let payload = STANDARD.decode(envelope.payload).ok()?;
    let claim: Claim = serde_json::from_slice(&payload).ok()?;
    claim.source.strip_prefix("/hosts/")?.parse().ok()
}

fn open(body: &str, host: HostName, key: &str) -> Result<HostEvent, Poison> {
    let key = PublicKey::parse(key).map_err(|error| Poison::Key(host.clone(), error))?;
    let event: ResultEvent = envelope::open(body, RESULT_TYPE, &[key])
        .map_err(|error| Poison::Envelope(host.clone(), error))?;
    if has_subject(&event) {
        Ok(HostEvent::new(host, event)?)
    } else {
        Err(Poison::Subject(host))
    }
}

/// Whether the event says which operation or allocation it is about, in both places alike.
fn has_subject(event: &ResultEvent) -> bool {
    use events::result::EventKind::{
        AllocationChanged, AllocationExpired, AllocationLost, HostObserved, OperationAccepted,
        OperationExpired, OperationFailed, OperationRefused, OperationSucceeded,
    };
    let is_subject = |id: Option<String>| id.is_some_and(|id| id == event.subject);
    match event.kind {
        OperationAccepted | OperationSucceeded | OperationFailed | OperationRefused
        | OperationExpired => is_subject(event.data.op_id.map(|id| id.to_string())),
        AllocationExpired | AllocationLost | AllocationChanged => {
            is_subject(event.data.allocation.map(|id| id.to_string()))
        }
        HostObserved => true,
    }
}
