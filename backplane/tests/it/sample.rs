//! What travels through the backplane, as tests want it.

use backplane::store::{
    Acceptance, Accepted, Attempt, Due, DueCallback, DueKinds, HostRecord, IdempotencyKeys,
    NewCallback, NewOperation, OperationRecord, Route, Settlement,
};
use backplane::{Clock, Outgoing, QueueName};
use events::inventory::{Backend, GpuInventory, HostInventory, Reservation};
use events::outcome::{Allocated, Isolation, LimitsState, Outcome};
use events::result::{EventData, EventKind, HostEvent, ResultEvent};
use events::{AllocationId, DeliveryId, HostName, Operation, OperationId, TenantName};
use serde_json::json;
use uuid::Uuid;

use crate::implementation::Backplane;

pub(crate) const GPU: &str = "GPU-2a8b1d5e-0000-4000-8000-000000000001";

pub(crate) fn tenant() -> TenantName {
    "acme".parse().unwrap()
}

pub(crate) fn host(name: &str) -> HostName {
    name.parse().unwrap()
}

pub(crate) fn id_of(key: &str) -> AllocationId {
    AllocationId::of(&tenant(), &key.parse().unwrap())
}

pub(crate) fn commands(name: &str) -> QueueName {
    QueueName::Commands(host(name))
}

pub(crate) fn message(group: &str, dedup: &str) -> Outgoing {
    Outgoing {
        group: group.to_owned(),
        dedup: dedup.to_owned(),
        body: format!("{group}/{dedup}"),
    }
}

pub(crate) fn operation(value: serde_json::Value) -> Operation {
    Operation::from_value(value).unwrap()
}

pub(crate) fn allocate(key: &str) -> Operation {
    operation(json!({"op": "allocate", "key": key, "profile": "T4-4Q", "mode": "vgpu"}))
}

pub(crate) fn release(key: &str) -> Operation {
    operation(json!({"op": "release", "key": key}))
}

/// An operation on its way to a host's GPU, reserving nothing.
pub(crate) fn new(operation: Operation, host_name: &str) -> NewOperation {
    NewOperation {
        id: OperationId(Uuid::now_v7()),
        operation,
        route: Route::Host {
            host: host(host_name),
            group: GPU.to_owned(),
            reservation: None,
            host_version: 0,
        },
        callbacks: vec!["hooks".to_owned()],
        traceparent: None,
        expires_at_s: crate::implementation::START_MS / 1000 + 900,
    }
}

/// An allocate placed on a host as it was at `version`.
pub(crate) fn placed(key: &str, host_name: &str, version: u64) -> NewOperation {
    let reservation = Some(Reservation {
        allocation: id_of(key),
        gpu: GPU.parse().unwrap(),
        profile: "T4-4Q".parse().unwrap(),
        count: 1,
    });
    let route = Route::Host {
        host: host(host_name),
        group: GPU.to_owned(),
        reservation,
        host_version: version,
    };
    NewOperation {
        route,
        ..new(allocate(key), host_name)
    }
}

/// A delivery number `n`: its id, its body and its response differ from every other number's.
pub(crate) fn delivery(n: u8, now_ms: i64, operations: Vec<NewOperation>) -> Acceptance {
    Acceptance {
        tenant: tenant(),
        source: "ci".parse().unwrap(),
        delivery: DeliveryId(Uuid::now_v7()),
        keys: IdempotencyKeys {
            id: [n; 32],
            content: None,
        },
        body: [n; 32],
        now_ms,
        forget_at_ms: now_ms + 7 * 24 * 3600 * 1000,
        response: format!("response {n}"),
        operations,
        owed,
    }
}

/// One callback per endpoint, named by the operation and how it ended.
pub(crate) fn owed(record: &OperationRecord) -> Vec<NewCallback> {
    let callback = |endpoint: &String| NewCallback {
        endpoint: endpoint.clone(),
        webhook_id: format!("{}_{}", record.id, record.state.as_str()),
        body: "{}".to_owned(),
    };
    record.callbacks.iter().map(callback).collect()
}

pub(crate) fn gpu() -> GpuInventory {
    GpuInventory {
        uuid: GPU.parse().unwrap(),
        pci: "0000:3b:00.0".parse().unwrap(),
        index: 0,
        name: "Tesla T4".to_owned(),
        memory_mib: Some(15360),
        backend: Some(Backend::Mdev),
        unavailable: None,
        numa_node: None,
        profiles: Vec::new(),
        partitions: Vec::new(),
    }
}

pub(crate) fn inventory(host_name: &str, taken_at_ms: i64) -> HostInventory {
    HostInventory {
        host: host(host_name),
        taken_at_ms,
        epoch: "boot-1".to_owned(),
        driver_version: "550.90".to_owned(),
        gpus: vec![gpu()],
    }
}

pub(crate) fn allocated(key: &str) -> Allocated {
    Allocated {
        allocation: id_of(key),
        key: key.parse().unwrap(),
        gpu: GPU.parse().unwrap(),
        pci: "0000:3b:00.0".parse().unwrap(),
        backend: Backend::Mdev,
        profile: "T4-4Q".parse().unwrap(),
        isolation: Isolation::Hardware,
        isolation_note: None,
        limits_state: LimitsState::Applied,
        limits_reason: None,
        expires_at: Some(1000),
        partitions: Vec::new(),
    }
}

/// An event of a host, about what `data` says.
pub(crate) fn event(host_name: &str, kind: EventKind, sequence: u64, data: EventData) -> HostEvent {
    let subject = match (data.op_id, data.allocation) {
        (Some(id), _) => id.to_string(),
        (None, Some(id)) => id.to_string(),
        (None, None) => host_name.to_owned(),
    };
    let event = ResultEvent {
        specversion: "1.0".to_owned(),
        id: format!("{subject}.{sequence}"),
        source: format!("/hosts/{host_name}"),
        kind,
        subject,
        time: "2026-05-29T00:00:00Z".to_owned(),
        datacontenttype: "application/json".to_owned(),
        sequence,
        tenant: (kind != EventKind::HostObserved).then(tenant),
        data,
    };
    HostEvent::new(host(host_name), event).unwrap()
}

pub(crate) fn of_operation(
    record: &OperationRecord,
    kind: EventKind,
    sequence: u64,
    outcome: Option<Outcome>,
) -> HostEvent {
    let data = EventData {
        op_id: Some(record.id),
        outcome,
        ..EventData::default()
    };
    event(record.host.as_ref().unwrap().as_str(), kind, sequence, data)
}

pub(crate) fn succeeded(record: &OperationRecord, sequence: u64, outcome: Outcome) -> HostEvent {
    of_operation(
        record,
        EventKind::OperationSucceeded,
        sequence,
        Some(outcome),
    )
}

pub(crate) fn of_allocation(
    host_name: &str,
    key: &str,
    kind: EventKind,
    sequence: u64,
) -> HostEvent {
    let data = EventData {
        allocation: Some(id_of(key)),
        ..EventData::default()
    };
    event(host_name, kind, sequence, data)
}

pub(crate) fn callback(webhook_id: &str) -> NewCallback {
    NewCallback {
        endpoint: "hooks".to_owned(),
        webhook_id: webhook_id.to_owned(),
        body: format!("body of {webhook_id}"),
    }
}

/// What tests say about a backplane again and again.
impl Backplane {
    pub(crate) fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    pub(crate) async fn enrol(&self, host_name: &str) {
        let record = HostRecord {
            host: host(host_name),
            pools: vec!["default".parse().unwrap()],
            public_key: "whpk_test".to_owned(),
        };
        self.store.put_host(record).await.unwrap();
    }

    pub(crate) async fn version(&self, host_name: &str) -> u64 {
        let view = self.reads.host(&host(host_name)).await.unwrap();
        view.unwrap().version
    }

    pub(crate) async fn reserved(&self, host_name: &str) -> usize {
        let view = self.reads.host(&host(host_name)).await.unwrap();
        view.unwrap().reserved.len()
    }

    /// Accepts delivery `n` of these operations, which must be new.
    pub(crate) async fn accept(
        &self,
        n: u8,
        operations: Vec<NewOperation>,
    ) -> Vec<OperationRecord> {
        let acceptance = delivery(n, self.now_ms(), operations);
        match self.store.accept(acceptance).await.unwrap() {
            Accepted::New(records) => records,
            other => panic!("delivery {n} was not new: {other:?}"),
        }
    }

    /// Accepts an allocate placed on a host as it is now.
    pub(crate) async fn accept_placed(&self, n: u8, key: &str, host_name: &str) -> OperationRecord {
        let new = placed(key, host_name, self.version(host_name).await);
        self.accept(n, vec![new]).await.remove(0)
    }

    pub(crate) async fn settle(&self, event: HostEvent) -> Settlement {
        let settled = self.store.settle(event, Vec::new(), self.now_ms()).await;
        settled.unwrap()
    }

    pub(crate) async fn due(&self, max: usize) -> Vec<Due> {
        let due = self
            .store
            .claim_due(DueKinds::All, self.now_ms(), 60_000, max)
            .await;
        due.unwrap()
    }

    pub(crate) async fn attempt(&self, callback: &DueCallback, attempt: Attempt) {
        let recorded = self.store.record_attempt(callback, attempt, self.now_ms());
        recorded.await.unwrap();
    }
}
