//! The store: what was accepted, what came of it, and what is owed to callers.
//!
//! Writes are few and each is one transaction. Who may call what: the front door `accept` and
//! `mark_sent`; the results worker `settle`; the sweep `claim_due` and `record_attempt`.

use async_trait::async_trait;
use events::inventory::{HostInventory, Reservation};
use events::outcome::{Allocated, Failure, Outcome};
use events::result::HostEvent;
use events::{
    AllocationId, AllocationKey, DeliveryId, GpuUuid, HostName, Operation, OperationId,
    OperationState, PoolName, SourceName, TenantName,
};
use serde::{Deserialize, Serialize};

/// The store does not answer, or its contents cannot be read. Never treated as "empty".
#[derive(Debug, thiserror::Error)]
#[error("store is unavailable: {context}")]
pub struct StoreError {
    /// What was being done.
    pub context: String,
    /// Why it failed.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// Seconds after an operation's expiry from which its host's silence about it counts: clocks differ,
/// and what the host took just before may still be on its way.
pub const OVERDUE_S: i64 = 60;

/// SHA-256 of something; the store never sees the thing itself.
pub type Digest = [u8; 32];

/// How a delivery is recognised when it comes again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKeys {
    /// Hash over tenant, source and the sender's id.
    pub id: Digest,
    /// Hash over tenant, source and the signed content, when the id is not covered by the signature.
    pub content: Option<Digest>,
}

/// A webhook to be accepted as a whole or not at all.
#[derive(Debug, Clone)]
pub struct Acceptance {
    /// On whose behalf.
    pub tenant: TenantName,
    /// Through which source.
    pub source: SourceName,
    /// Its new id.
    pub delivery: DeliveryId,
    /// How to recognise it later.
    pub keys: IdempotencyKeys,
    /// Hash of the body: same id with another body is a mismatch.
    pub body: Digest,
    /// Unix milliseconds now.
    pub now_ms: i64,
    /// When the idempotency keys may be forgotten, Unix milliseconds.
    pub forget_at_ms: i64,
    /// The response body to give now and on every replay.
    pub response: String,
    /// Its operations, possibly none.
    pub operations: Vec<NewOperation>,
    /// What is owed to the caller of an operation that ends here; queued in the same transaction.
    pub owed: Owed,
}

/// The callbacks of an operation that no host ends, by its final record.
pub type Owed = fn(&OperationRecord) -> Vec<NewCallback>;

/// One operation of an acceptance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewOperation {
    /// Its id.
    pub id: OperationId,
    /// What to do, with placement decided.
    pub operation: Operation,
    /// Where it goes.
    pub route: Route,
    /// Names of the callback endpoints that want its result.
    pub callbacks: Vec<String>,
    /// W3C trace context of the webhook.
    pub traceparent: Option<String>,
    /// Unix seconds after which the host refuses to start it.
    pub expires_at_s: i64,
}

/// Where an operation goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// To a host, in a message group, holding capacity until its result is in.
    Host {
        /// The host.
        host: HostName,
        /// Message group: the GPU's UUID, or the host's name for host-wide operations.
        group: String,
        /// What it reserves; refused as `CapacityMoved` if the host changed since `host_version`.
        reservation: Option<Reservation>,
        /// The [`HostView::version`] that the placement was decided on.
        host_version: u64,
    },
    /// Nowhere: its outcome is known at once (releasing a key that was never allocated, say).
    Settled(Ending),
}

/// A final state with its outcome or failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// The final state.
    pub state: OperationState,
    /// On success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// What became of an acceptance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accepted {
    /// Durable now. The operations as stored, revisions assigned, in order.
    New(Vec<OperationRecord>),
    /// Known under the same content.
    Replay(KnownDelivery),
    /// Known, and its first arrival is still being worked on (accepted, not yet all sent).
    InFlight(KnownDelivery),
    /// Known under other content.
    Mismatch,
    /// A host changed since placement was decided, or the key is held on another one: place again.
    CapacityMoved,
    /// The tenant's quota would be exceeded, in words.
    OverQuota(String),
    /// More than one transaction of this store can take, in words; it never will.
    TooLarge(String),
}

/// A delivery that was accepted before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownDelivery {
    /// Its id.
    pub delivery: DeliveryId,
    /// Hash of its body.
    pub body: Digest,
    /// The response to give again.
    pub response: String,
    /// Operations that were accepted and never sent: to be sent again, to the same host.
    pub unsent: Vec<OperationRecord>,
}

/// One operation as stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationRecord {
    /// Its id.
    pub id: OperationId,
    /// The webhook that asked for it.
    pub delivery: DeliveryId,
    /// On whose behalf.
    pub tenant: TenantName,
    /// Through which source.
    pub source: SourceName,
    /// What to do, with placement decided.
    pub operation: Operation,
    /// The host, unless it was settled at once.
    pub host: Option<HostName>,
    /// Its message group; empty when there is no host.
    pub group: String,
    /// Its revision.
    pub revision: u64,
    /// Where it stands.
    pub state: OperationState,
    /// Whether its command has been queued; true where there is none to queue.
    pub sent: bool,
    /// Unix milliseconds of acceptance; also the command's `iat`.
    pub accepted_at_ms: i64,
    /// Unix milliseconds of the last change.
    pub changed_at_ms: i64,
    /// Unix seconds after which the host refuses to start it.
    pub expires_at_s: i64,
    /// What came of it, once final.
    pub outcome: Option<Outcome>,
    /// Why not, otherwise.
    pub failure: Option<Failure>,
    /// Callback endpoints that want its result.
    pub callbacks: Vec<String>,
    /// W3C trace context.
    pub traceparent: Option<String>,
}

/// An allocation as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationRecord {
    /// Its id.
    pub id: AllocationId,
    /// Its key.
    pub key: AllocationKey,
    /// Whose.
    pub tenant: TenantName,
    /// Where.
    pub host: HostName,
    /// On which GPU.
    pub gpu: GpuUuid,
    /// Where it stands.
    pub state: AllocationState,
    /// The spec it was asked for with.
    pub spec: Operation,
    /// As it stands on the host, once allocated.
    pub allocated: Option<Allocated>,
    /// Unix milliseconds of the last change.
    pub changed_at_ms: i64,
}

/// Where an allocation stands, as far as the store knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllocationState {
    /// Accepted; its capacity is reserved.
    Pending,
    /// It exists on the host.
    Live,
    /// It ended, failed, expired or was lost; the row is kept for its revision.
    Ended,
}

/// An enrolled host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRecord {
    /// Its name.
    pub host: HostName,
    /// Pools it belongs to.
    pub pools: Vec<PoolName>,
    /// The key its results are verified with, `whpk_…`.
    pub public_key: String,
}

/// A host with what it has and what is promised of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostView {
    /// The host.
    pub record: HostRecord,
    /// As last observed; `None` before its first report.
    pub inventory: Option<HostInventory>,
    /// Promised and not yet reported.
    pub reserved: Vec<Reservation>,
    /// Changes with every change of inventory or reservations.
    pub version: u64,
    /// Unix milliseconds of the last event from it, by the store's clock.
    pub heard_at_ms: Option<i64>,
    /// Whether it is being removed: nothing new is placed on it.
    pub cordoned: bool,
}

/// What a host holds, for rebuilding its ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostHoldings {
    /// The last sequence it was heard under; 0 if it never was.
    pub sequence: u64,
    /// Its live allocations.
    pub allocations: Vec<HeldAllocation>,
    /// Operations that it took and did not end, oldest first.
    pub running: Vec<OperationRecord>,
}

/// A live allocation with what its record alone does not say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldAllocation {
    /// The allocation.
    pub record: AllocationRecord,
    /// The allocate that made it.
    pub operation: OperationId,
    /// The highest revision given out for it.
    pub revision: u64,
}

/// A callback to queue with a settlement or an acceptance. The body is fixed now; signature and timestamp are made
/// afresh for each attempt (field F24).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCallback {
    /// The configured endpoint.
    pub endpoint: String,
    /// `webhook-id`, the same on every attempt.
    pub webhook_id: String,
    /// The body, byte for byte.
    pub body: String,
}

/// What became of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// It moved something; the operation after it, for operation events.
    Applied(Option<Box<OperationRecord>>),
    /// It is older than what is known: no state moved, no callback was queued. Its inventory is taken
    /// all the same when it is the newest.
    Stale,
    /// It names an operation that this store never accepted for that host and tenant.
    Unknown,
}

/// Something that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Due {
    /// Accepted and never confirmed as sent.
    Unsent(Box<OperationRecord>),
    /// Past its expiry without a final state.
    Overdue(Box<OperationRecord>),
    /// A callback to attempt.
    Callback(DueCallback),
}

/// Which due rows to claim: what one function cannot do must not be leased away from another that can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DueKinds {
    /// Whatever is due.
    All,
    /// Operations, unsent and overdue.
    Operations,
    /// Callbacks.
    Callbacks,
}

impl DueKinds {
    /// Whether operations are among them.
    #[must_use]
    pub fn operations(self) -> bool {
        self != Self::Callbacks
    }

    /// Whether callbacks are among them.
    #[must_use]
    pub fn callbacks(self) -> bool {
        self != Self::Operations
    }
}

/// A callback to attempt; leased to the caller until `lease_ms` has passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueCallback {
    /// The configured endpoint.
    pub endpoint: String,
    /// `webhook-id`; one endpoint is owed each id once, so that the two name the callback.
    pub webhook_id: String,
    /// The body.
    pub body: String,
    /// Attempts made before this one.
    pub attempts: u32,
}

/// What came of attempting a callback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempt {
    /// The receiver has it.
    Delivered,
    /// To be tried again at this time, Unix milliseconds, with the reason for people.
    RetryAt(i64, String),
    /// Given up; kept for operators with the reason.
    Parked(String),
}

/// One page of a list; `next` is the cursor of the page after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// The rows, newest first.
    pub items: Vec<T>,
    /// Where to go on, if there is more.
    pub next: Option<String>,
}

/// Writes. Each method is one transaction, durable when it returns.
#[async_trait]
pub trait Store: Send + Sync {
    /// Takes a webhook: idempotency keys, operations, reservations and quota, all or nothing.
    async fn accept(&self, acceptance: Acceptance) -> Result<Accepted, StoreError>;
    /// Records that an operation's command is in its host's queue.
    async fn mark_sent(&self, operation: OperationId) -> Result<(), StoreError>;
    /// Applies a host's event: status forward only, inventory, reservation, and callback rows.
    async fn settle(
        &self,
        event: HostEvent,
        callbacks: Vec<NewCallback>,
        now_ms: i64,
    ) -> Result<Settlement, StoreError>;
    /// Leases up to `max` due rows of these kinds until `now_ms + lease_ms`.
    async fn claim_due(
        &self,
        kinds: DueKinds,
        now_ms: i64,
        lease_ms: i64,
        max: usize,
    ) -> Result<Vec<Due>, StoreError>;
    /// Ends an overdue operation as expired, if its host's own inventory, taken [`OVERDUE_S`] after the
    /// expiry, does not know it; the record after it, or `None` if there is no such evidence (yet).
    async fn expire(
        &self,
        operation: OperationId,
        owed: Owed,
        now_ms: i64,
    ) -> Result<Option<OperationRecord>, StoreError>;
    /// Records what came of a callback attempt.
    async fn record_attempt(
        &self,
        callback: &DueCallback,
        attempt: Attempt,
        now_ms: i64,
    ) -> Result<(), StoreError>;
    /// Enrols or re-enrols a host.
    async fn put_host(&self, host: HostRecord) -> Result<(), StoreError>;
}

/// Reads. Everything about tenants takes the tenant: there is no way to read across them by mistake.
#[async_trait]
pub trait Reads: Send + Sync {
    /// A delivery by its idempotency keys, before anything is decided.
    async fn known_delivery(
        &self,
        keys: &IdempotencyKeys,
        now_ms: i64,
    ) -> Result<Option<KnownDelivery>, StoreError>;
    /// A delivery's operations, in order; empty if unknown (or if it had none).
    async fn delivery(
        &self,
        tenant: &TenantName,
        id: DeliveryId,
    ) -> Result<Option<Vec<OperationRecord>>, StoreError>;
    /// One operation.
    async fn operation(
        &self,
        tenant: &TenantName,
        id: OperationId,
    ) -> Result<Option<OperationRecord>, StoreError>;
    /// Operations, newest first.
    async fn operations(
        &self,
        tenant: &TenantName,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<OperationRecord>, StoreError>;
    /// One allocation by id (keys map to ids by [`AllocationId::of`]); ended ones included.
    async fn allocation(
        &self,
        tenant: &TenantName,
        id: AllocationId,
    ) -> Result<Option<AllocationRecord>, StoreError>;
    /// Pending and live allocations, newest first.
    async fn allocations(
        &self,
        tenant: &TenantName,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<AllocationRecord>, StoreError>;
    /// Every enrolled host with its capacity, by name.
    async fn hosts(&self) -> Result<Vec<HostView>, StoreError>;
    /// One host.
    async fn host(&self, host: &HostName) -> Result<Option<HostView>, StoreError>;
    /// Everything that a host holds, of all tenants: for its operator. `None` if it is not enrolled.
    async fn holdings(&self, host: &HostName) -> Result<Option<HostHoldings>, StoreError>;
    /// Looks up which tenant and operation an event's callbacks belong to, for building their bodies.
    async fn operation_for_host(
        &self,
        host: &HostName,
        id: OperationId,
    ) -> Result<Option<OperationRecord>, StoreError>;
}
