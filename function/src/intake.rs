//! From an authenticated body to a durable acceptance: idempotency look-up, strict JSON, plan, one
//! transaction, commands sent.
//!
//! The look-up comes before parsing, policy and placement, so that a known delivery is replayed
//! whatever has changed since. Nothing is written before everything was decided; `202` is only
//! answered once every command is in its queue.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::StatusCode;
use backplane::store::{
    Acceptance, Accepted, Digest, IdempotencyKeys, KnownDelivery, NewOperation, OperationRecord,
};
use events::operation::Problem as FieldProblem;
use events::{DeliveryId, OperationId};
use ring::digest::{Context, SHA256, digest};
use serde::Serialize;
use uuid::Uuid;

use crate::App;
use crate::causes::chain;
use crate::config::Caller;
use crate::plan::{Asked, Planner};
use crate::policy::PrincipalKind;
use crate::problem::Problem;

/// Seven days: longer than any sender retries (75.6 h, webhook facts §4.3).
const REMEMBER_MS: i64 = 7 * 24 * 3600 * 1000;
/// Plans made when hosts change under them; each is one read and one transaction.
const MAX_PLANS: usize = 5;

/// An authenticated request.
pub(crate) struct Arrival {
    /// On whose behalf.
    pub(crate) caller: Caller,
    /// The sender's id for it, or a random one where the sender gave none.
    pub(crate) id: String,
    /// The body, as received.
    pub(crate) body: Bytes,
    /// W3C trace context.
    pub(crate) traceparent: Option<String>,
}

/// What became of it.
pub(crate) struct Taken {
    /// 202, or 200 when there was nothing to do.
    pub(crate) status: StatusCode,
    /// Its id.
    pub(crate) delivery: DeliveryId,
    /// The answer's body, byte for byte the same on every replay.
    pub(crate) response: String,
    /// Whether it was known.
    pub(crate) replayed: bool,
}

/// Reads a body into operations; called only for deliveries that are not known.
pub(crate) type Reader = fn(&Bytes, &Arrival) -> Result<Vec<Asked>, Problem>;

/// The answer's body.
#[derive(Serialize)]
struct Response<'a> {
    delivery_id: DeliveryId,
    operations: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    op_id: OperationId,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    status_url: String,
}

/// Takes a request. Runs to its end even if the caller goes away meanwhile: what was accepted is
/// sent, and the next attempt finds a finished delivery.
pub(crate) async fn take(app: &Arc<App>, arrival: Arrival, read: Reader) -> Result<Taken, Problem> {
    let app = Arc::clone(app);
    let work = tokio::spawn(async move {
        Intake {
            app: &app,
            arrival: &arrival,
        }
        .run(read)
        .await
    });
    work.await.unwrap_or_else(|error| {
        tracing::error!(%error, "intake did not finish");
        Err(Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "Internal error",
            "This is a fault of gpuhook",
        ))
    })
}

struct Intake<'a> {
    app: &'a Arc<App>,
    arrival: &'a Arrival,
}

impl Intake<'_> {
    async fn run(&self, read: Reader) -> Result<Taken, Problem> {
        let keys = IdempotencyKeys {
            id: idempotency_key(&self.arrival.caller, &self.arrival.id),
            content: None,
        };
        let _in_flight = self.app.begin(keys.id).ok_or_else(in_progress)?;
        let body: Digest = sha256(&self.arrival.body);
        let known = self
            .app
            .reads
            .known_delivery(&keys, self.app.clock.now_ms())
            .await;
        if let Some(known) = known.map_err(|error| Problem::store_unavailable(&error))? {
            return self.replay(known, body).await;
        }
        let asked = read(&self.arrival.body, self.arrival)?;
        for _ in 0..MAX_PLANS {
            let planner = Planner::look(
                self.app,
                &self.arrival.caller,
                self.arrival.traceparent.clone(),
            )
            .await?;
            let operations = planner.plan(&asked).await?;
            let acceptance = self.acceptance(keys.clone(), body, operations);
            let (delivery, response) = (acceptance.delivery, acceptance.response.clone());
            let accepted = self.app.store.accept(acceptance).await;
            match accepted.map_err(|error| Problem::store_unavailable(&error))? {
                Accepted::New(records) => return self.send(delivery, response, &records).await,
                Accepted::Replay(known) => return self.replay(known, body).await,
                // Another process has just accepted it and is sending.
                Accepted::InFlight(known) if known.body == body => return Err(in_progress()),
                Accepted::InFlight(_) | Accepted::Mismatch => return Err(mismatch()),
                Accepted::TooLarge(detail) => {
                    let errors = vec![FieldProblem {
                        pointer: String::new(),
                        detail,
                    }];
                    return Err(Problem::unprocessable(
                        "too-many-operations",
                        "The webhook asks for more than is taken at once",
                        errors,
                    ));
                }
                Accepted::OverQuota(detail) => {
                    let title = "Over quota";
                    return Err(
                        Problem::new(StatusCode::CONFLICT, "over-quota", title, detail)
                            .retry_after_s(60),
                    );
                }
                Accepted::CapacityMoved => {
                    tracing::info!(delivery.id = %delivery, "a host changed; placing again")
                }
            }
        }
        let detail =
            "Hosts changed faster than the request could be placed; send it again, unchanged";
        Err(Problem::unavailable("capacity-moved", detail).retry_after_s(1))
    }

    fn acceptance(
        &self,
        keys: IdempotencyKeys,
        body: Digest,
        operations: Vec<NewOperation>,
    ) -> Acceptance {
        let now_ms = self.app.clock.now_ms();
        let delivery = DeliveryId(Uuid::now_v7());
        let entries = operations.iter().map(|operation| Entry {
            op_id: operation.id,
            key: operation.operation.key().map(events::AllocationKey::as_str),
            status_url: format!("/v1/operations/{}", operation.id),
        });
        let response = Response {
            delivery_id: delivery,
            operations: entries.collect(),
        };
        Acceptance {
            tenant: self.arrival.caller.principal.tenant.clone(),
            source: self.arrival.caller.name.clone(),
            delivery,
            keys,
            body,
            now_ms,
            forget_at_ms: now_ms.saturating_add(REMEMBER_MS),
            response: serde_json::to_string(&response).expect("ids and strings always serialise"),
            operations,
            owed: crate::results::owed_at_once,
        }
    }

    /// A known delivery: the same answer, and what was never sent is sent now, to the same host.
    async fn replay(&self, known: KnownDelivery, body: Digest) -> Result<Taken, Problem> {
        if known.body != body {
            return Err(mismatch());
        }
        let mut taken = self
            .send(known.delivery, known.response, &known.unsent)
            .await?;
        taken.replayed = true;
        Ok(taken)
    }

    async fn send(
        &self,
        delivery: DeliveryId,
        response: String,
        records: &[OperationRecord],
    ) -> Result<Taken, Problem> {
        for record in records
            .iter()
            .filter(|record| record.host.is_some() && !record.sent)
        {
            if let Err(error) = self.app.dispatcher.send(record).await {
                tracing::error!(operation.id = %record.id, error = %chain(&error), "accepted, not sent");
                let detail = "The delivery is recorded and its commands are not all queued; send it again, unchanged";
                return Err(Problem::unavailable("queue-unavailable", detail));
            }
        }
        tracing::info!(
            delivery.id = %delivery, source.name = %self.arrival.caller.name, operations = records.len(), "delivery accepted"
        );
        self.app.changes.poke();
        let nothing = response.ends_with(r#""operations":[]}"#);
        let status = if nothing {
            StatusCode::OK
        } else {
            StatusCode::ACCEPTED
        };
        Ok(Taken {
            status,
            delivery,
            response,
            replayed: false,
        })
    }
}

/// Over tenant, source and the sender's id, each with its length, so that no two of them can be
/// shifted into each other; tokens and sources have names of their own.
fn idempotency_key(caller: &Caller, id: &str) -> Digest {
    let kind = match caller.principal.kind {
        PrincipalKind::Source => "source",
        PrincipalKind::Token => "token",
    };
    let mut context = Context::new(&SHA256);
    for part in [
        kind,
        caller.principal.tenant.as_str(),
        caller.name.as_str(),
        id,
    ] {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part.as_bytes());
    }
    context
        .finish()
        .as_ref()
        .try_into()
        .expect("SHA-256 has 32 bytes")
}

/// SHA-256 of some bytes.
pub(crate) fn sha256(bytes: &[u8]) -> Digest {
    digest(&SHA256, bytes)
        .as_ref()
        .try_into()
        .expect("SHA-256 has 32 bytes")
}

fn in_progress() -> Problem {
    let detail = "The first arrival of this delivery is still being worked on";
    Problem::new(StatusCode::CONFLICT, "in-progress", "In progress", detail).retry_after_s(1)
}

fn mismatch() -> Problem {
    let detail = "This id was used before with another body";
    Problem::new(
        StatusCode::CONFLICT,
        "idempotency-mismatch",
        "Idempotency mismatch",
        detail,
    )
}

/// 422 for a body that is JSON and no operation.
pub(crate) fn invalid(errors: Vec<FieldProblem>) -> Problem {
    Problem::unprocessable(
        "invalid-operation",
        "The body is not a valid operation; errors tells each field",
        errors,
    )
}
