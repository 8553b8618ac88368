//! Intake: one message at a time from the queue into the ledger. The message is acknowledged once
//! the ledger has it; from then on the queue does not matter.

use std::sync::Arc;
use std::time::Duration;

use backplane::queue::{MAX_RECEIVES, Settled};
use backplane::{Message, Receiver};
use events::command::COMMAND_TYPE;
use events::envelope::{self, EnvelopeError};
use events::keyset::KEYSET_TYPE;
use events::outcome::Failure;
use events::result::{EventData, EventKind};
use events::{Code, Command};
use tokio::sync::watch;
use uuid::Uuid;

use crate::config::Allow;
use crate::keys::{Keys, KeysError};
use crate::ledger::{LedgerError, NewEvent};
use crate::operation::admit::{Admit, admit};
use crate::polls::Polls;
use crate::worker::Workers;

/// Longest long poll.
const WAIT: Duration = Duration::from_secs(20);
/// Pause after the queue or the ledger failed; the first doubles up to the last.
const BACKOFF: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(10)];

/// Longest delay of a command that could not be kept; commands expire after 15 minutes.
const LONGEST_DELAY: Duration = Duration::from_secs(600);

/// Takes commands from the queue.
pub struct Intake {
    /// The end of this host's queue.
    pub receiver: Arc<dyn Receiver>,
    /// Keys that commands may be signed with.
    pub keys: Arc<Keys>,
    /// What this host executes.
    pub allow: Allow,
    /// Where accepted work goes.
    pub workers: Arc<Workers>,
    /// How polling goes.
    pub polls: Arc<Polls>,
}

/// Why a message could not be kept here: it stays with the queue.
#[derive(Debug, thiserror::Error)]
enum Unkept {
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error("keyset cannot be stored")]
    Keys(#[from] KeysError),
    #[error("no signature verifies under a trusted key; a newer keyset may be on its way")]
    Untrusted,
}

impl Intake {
    /// Polls until told to stop.
    pub async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        let mut pause = BACKOFF[0];
        loop {
            let received = tokio::select! {
                received = self.receiver.receive(WAIT) => received,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            let taken = match received {
                Ok(message) => {
                    let now_ms = self.workers.shared().clock.now_ms();
                    self.polls
                        .note_answer(now_ms, self.receiver.clock_ahead_ms());
                    match message {
                        Some(message) => self
                            .take(message)
                            .await
                            .map_err(|error| crate::chain(&error)),
                        None => Ok(()),
                    }
                }
                Err(error) => {
                    let error = crate::chain(&error);
                    self.polls
                        .note_failure(&error, self.receiver.clock_ahead_ms());
                    Err(error)
                }
            };
            match taken {
                Ok(()) => pause = BACKOFF[0],
                Err(error) => {
                    tracing::warn!(
                        error,
                        pause_ms = pause.as_millis(),
                        "commands cannot be taken now"
                    );
                    tokio::select! {
                        () = tokio::time::sleep(jittered(pause)) => {}
                        _ = stop.wait_for(|stop| *stop) => return,
                    }
                    pause = (pause * 2).min(BACKOFF[1]);
                }
            }
        }
    }

    /// Takes one message. An error means that the ledger could not have it: it stays with the queue.
    async fn take(self: &Arc<Self>, message: Message) -> Result<(), Unkept> {
        let (intake, body) = (Arc::clone(self), message.body);
        let queue_s = message.server_time_ms.div_euclid(1000);
        let is_last = message.receive_count >= MAX_RECEIVES;
        let job = tokio::task::spawn_blocking(move || intake.enter(&body, queue_s, is_last)).await;
        let accepted = match job.expect("intake does not panic") {
            Ok(accepted) => accepted,
            Err(error) => {
                // Else it would come again every half minute, and after five times be a dead letter.
                let delay = delay(message.receive_count);
                if let Err(error) = self.receiver.nack(&message.receipt, delay).await {
                    let error = crate::chain(&error);
                    tracing::warn!(error, "a command could not be put off; it will come again");
                }
                return Err(error);
            }
        };
        // A lost receipt means that the message comes again; the ledger knows it then.
        match self.receiver.ack(&message.receipt).await {
            Ok(Settled::Done) => {}
            Ok(Settled::Lost) => {
                self.polls.note_lost_receipt();
            }
            Err(error) => {
                tracing::warn!(
                    error = crate::chain(&error),
                    "a command could not be acknowledged; it will come again"
                );
            }
        }
        if let Some(command) = accepted {
            let workers = Arc::clone(&self.workers);
            let queued =
                tokio::task::spawn_blocking(move || workers.enqueue_operation(&command)).await;
            queued.expect("queueing does not panic");
        }
        Ok(())
    }

    /// From bytes to ledger: verify, then parse, then decide. Returns what is to be worked on.
    ///
    /// A command is expired if either this host's clock or the queue's says so: a host whose clock
    /// runs late must not start what the front door has given up (DESIGN §3).
    /// `is_last` tells that the queue gives the message up after this delivery.
    fn enter(&self, body: &str, queue_s: i64, is_last: bool) -> Result<Option<Command>, Unkept> {
        let shared = self.workers.shared();
        let now_ms = shared.clock.now_ms();
        if envelope::claimed_type(body).as_deref() == Some(KEYSET_TYPE) {
            return self.trust(body, now_ms).map(|()| None);
        }
        let (command, hash) = match self.open(body) {
            Ok(opened) => opened,
            // Groups are unordered: the keyset that trusts its key may be behind it.
            Err(EnvelopeError::Untrusted) if self.keys.is_rooted() && !is_last => {
                return Err(Unkept::Untrusted);
            }
            Err(error) => {
                tracing::error!(
                    error = crate::chain(&error),
                    "a message on the command queue is not a command for this host; kept aside"
                );
                shared
                    .ledger
                    .dead_letter(body, &error.to_string(), now_ms / 1000)?;
                return Ok(None);
            }
        };
        let known = shared.ledger.known(&command, now_ms / 1000)?;
        let decided = admit(
            &command,
            &hash,
            &known,
            &self.allow,
            &shared.host,
            queue_s.max(now_ms / 1000),
        );
        let take = |kind, failure| {
            let (event, is_final) = (
                event_of(&command, kind, failure, now_ms),
                kind != EventKind::OperationAccepted,
            );
            shared.ledger.take(&command, &hash, event, is_final)
        };
        let accepted = decided == Admit::Accept;
        match decided {
            Admit::Accept => take(EventKind::OperationAccepted, None)?,
            Admit::Known => shared.ledger.report_again(command.op_id)?,
            Admit::Refuse(failure) => take(EventKind::OperationRefused, Some(failure))?,
            Admit::Expire => {
                let text = "the command reached its host after its expiry; nothing was done";
                take(
                    EventKind::OperationExpired,
                    Some(Failure::new(Code::Expired, text)),
                )?;
            }
            Admit::DeadLetter(reason) => {
                tracing::error!(operation.id = %command.op_id, reason, "a signed command cannot be executed here; kept aside");
                shared.ledger.dead_letter(body, reason, now_ms / 1000)?;
            }
        }
        (shared.on_event)();
        Ok(accepted.then_some(command))
    }

    /// Takes a keyset, or keeps aside what is none of this host's root.
    fn trust(&self, body: &str, now_ms: i64) -> Result<(), Unkept> {
        match self.keys.take(body) {
            Ok(false) => tracing::info!("keyset told again"),
            Ok(true) => {
                let now = self.keys.now();
                let ids: Vec<_> = now.keys.iter().map(|key| key.id()).collect();
                tracing::info!(keyset.version = now.version, keys = ?ids, "keyset changed");
            }
            // A full disk passes; the message comes again.
            Err(error @ KeysError::File { .. }) => {
                return Err(error.into());
            }
            Err(error) => {
                let reason = crate::chain(&error);
                tracing::error!(error = reason, "a keyset is not taken; kept aside");
                let ledger = &self.workers.shared().ledger;
                ledger.dead_letter(body, &reason, now_ms / 1000)?;
            }
        }
        Ok(())
    }

    /// The command of an envelope, with the hash of its signed bytes.
    fn open(&self, body: &str) -> Result<(Command, [u8; 32]), EnvelopeError> {
        let payload = envelope::open_bytes(body, COMMAND_TYPE, &self.keys.now().keys)?;
        let command = serde_json::from_slice(&payload).map_err(EnvelopeError::Payload)?;
        Ok((command, digest(&payload)))
    }
}

/// 1, 8, 64, 512 s after the first, second, … delivery: with the queue's five deliveries the ledger may be
/// away for ten minutes before a command is a dead letter.
fn delay(receive_count: u32) -> Duration {
    let seconds = 8_u64.saturating_pow(receive_count.saturating_sub(1));
    Duration::from_secs(seconds).min(LONGEST_DELAY)
}

/// A pause, shortened by up to its half: hosts that lost the queue together do not come back together.
pub(crate) fn jittered(pause: Duration) -> Duration {
    // A UUIDv7 ends in random bits.
    let random = u32::try_from(Uuid::now_v7().as_u128() % 1024).expect("below 1024");
    pause - pause / 2 * random / 1024
}

fn event_of(command: &Command, kind: EventKind, failure: Option<Failure>, now_ms: i64) -> NewEvent {
    NewEvent {
        kind,
        subject: command.op_id.to_string(),
        tenant: Some(command.tenant.clone()),
        data: EventData {
            op_id: Some(command.op_id),
            allocation: command.operation.allocation(&command.tenant),
            revision: Some(command.revision),
            failure,
            ..EventData::default()
        },
        now_ms,
    }
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}
