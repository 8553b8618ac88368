//! Settling: what is believed, what is put away, what comes again, and what callers are told.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use backplane::queue::Settled;
use backplane::store::{AllocationRecord, AllocationState, OperationRecord};
use backplane::{Message, ReceiveError, Receiver};
use events::envelope::seal;
use events::key::SecretKey;
use events::result::RESULT_TYPE;
use events::{AllocationId, DeliveryId, HostName, Operation, OperationId, OperationState};
use function::results::ResultsWorker;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use uuid::Uuid;

use crate::receiver::{FakeClock, NOW_MS};
use crate::store::FakeStore;

const HOST: &str = "gpu-1";

pub(crate) fn allocate(key: &str) -> Operation {
    Operation::from_value(json!({"op": "allocate", "key": key, "profile": "T4-4Q"})).unwrap()
}

/// An operation of tenant `acme` on [`HOST`], queued, with one callback endpoint.
pub(crate) fn operation(number: u128, operation: Operation) -> OperationRecord {
    OperationRecord {
        id: OperationId(Uuid::from_u128(number)),
        delivery: DeliveryId(Uuid::from_u128(0xd)),
        tenant: "acme".parse().unwrap(),
        source: "ci".parse().unwrap(),
        operation,
        host: Some(HOST.parse().unwrap()),
        group: "g".to_owned(),
        revision: 1,
        state: OperationState::Queued,
        sent: true,
        accepted_at_ms: NOW_MS,
        changed_at_ms: NOW_MS,
        expires_at_s: NOW_MS / 1_000 + 900,
        outcome: None,
        failure: None,
        callbacks: vec!["demo".to_owned()],
        traceparent: None,
    }
}

/// An event of [`HOST`] about an operation.
fn about(record: &OperationRecord, kind: &str, sequence: u64, extra: Value) -> Value {
    let mut data = json!({"op_id": record.id, "revision": 1});
    data.as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    event(kind, &record.id.to_string(), sequence, data)
}

fn event(kind: &str, subject: &str, sequence: u64, data: Value) -> Value {
    json!({
        "specversion": "1.0", "id": format!("{subject}.{sequence}"), "source": format!("/hosts/{HOST}"),
        "type": format!("dev.gpuhook.{kind}.v1"), "subject": subject, "time": "2023-11-14T22:13:20Z",
        "datacontenttype": "application/json", "sequence": sequence, "tenant": "acme", "data": data,
    })
}

fn message(id: &str, group: &str, body: String) -> Message {
    Message {
        id: id.to_owned(),
        receipt: format!("receipt-{id}"),
        group: group.to_owned(),
        body,
        receive_count: 1,
        server_time_ms: NOW_MS,
        sender: None,
    }
}

struct Bench {
    store: Arc<FakeStore>,
    key: SecretKey,
    worker: Arc<ResultsWorker>,
    changes: Arc<AtomicUsize>,
}

impl Bench {
    fn new() -> Self {
        let (store, key) = (FakeStore::new(), SecretKey::generate().unwrap());
        store
            .rows()
            .hosts
            .insert(HOST.parse().unwrap(), key.public().to_string());
        let changes = Arc::new(AtomicUsize::new(0));
        let counted = changes.clone();
        let worker = ResultsWorker::new(
            store.clone(),
            store.clone(),
            FakeClock::at(NOW_MS),
            Arc::new(move || {
                counted.fetch_add(1, Ordering::SeqCst);
            }),
        );
        Self {
            store,
            key,
            worker: Arc::new(worker),
            changes,
        }
    }

    fn seal(&self, event: &Value) -> String {
        seal(event, RESULT_TYPE, &self.key).unwrap()
    }

    /// Settles one event and returns the bodies of its callbacks.
    async fn settle(&self, event: &Value) -> Vec<(String, String, Value)> {
        let before = self.store.rows().settled.len();
        let failed = self
            .worker
            .handle(vec![message("m", HOST, self.seal(event))])
            .await;
        assert!(failed.is_empty());
        let rows = self.store.rows();
        let callbacks = rows
            .settled
            .iter()
            .skip(before)
            .flat_map(|(_, callbacks)| callbacks);
        callbacks
            .map(|callback| {
                let body = serde_json::from_str(&callback.body).unwrap();
                (callback.endpoint.clone(), callback.webhook_id.clone(), body)
            })
            .collect()
    }
}

#[tokio::test]
async fn a_final_event_owes_one_callback_per_endpoint() {
    let bench = Bench::new();
    let mut record = operation(7, allocate("job-7"));
    record.callbacks = vec!["demo".to_owned(), "other".to_owned()];
    bench.store.rows().operations.push(record.clone());
    assert!(
        bench
            .settle(&about(&record, "operation.accepted", 1, json!({})))
            .await
            .is_empty()
    );
    let failure = json!({"code": "no_capacity", "retryable": true, "message": "full"});
    let failed = about(&record, "operation.failed", 2, json!({"failure": failure}));
    let callbacks = bench.settle(&failed).await;
    let id = record.id;
    let body = json!({
        "specversion": "1.0", "id": format!("{id}.2"), "source": "/hosts/gpu-1",
        "type": "dev.gpuhook.operation.failed.v1", "subject": id, "time": "2023-11-14T22:13:20Z",
        "datacontenttype": "application/json", "sequence": 2, "tenant": "acme",
        "data": {
            "op_id": id, "delivery_id": record.delivery, "op": "allocate", "key": "job-7", "state": "failed",
            "status_url": format!("/v1/operations/{id}"), "failure": failure,
        },
    });
    let webhook_id = format!("msg_{id}_2");
    assert_eq!(
        callbacks,
        [
            ("demo".to_owned(), webhook_id.clone(), body.clone()),
            ("other".to_owned(), webhook_id, body),
        ]
    );
    assert_eq!(bench.changes.load(Ordering::SeqCst), 2);
    // The same again is stale: nothing new is owed, nobody is woken.
    assert!(bench.settle(&failed).await.is_empty());
    assert_eq!(bench.changes.load(Ordering::SeqCst), 2);
    assert_eq!(bench.worker.poisoned(), 0);
}

#[tokio::test]
async fn the_outcome_is_told_without_other_tenants_partitions() {
    let bench = Bench::new();
    let inspect =
        Operation::from_value(json!({"op": "inspect", "target": {"host": HOST}})).unwrap();
    let record = operation(8, inspect);
    bench.store.rows().operations.push(record.clone());
    let partition = |id: u128, tenant: &str| {
        let id = Uuid::from_u128(id);
        json!({"id": id, "profile": "T4-4Q", "in_use": false, "owner": {"tenant": tenant, "allocation": id}})
    };
    let inventory = json!({
        "host": HOST, "taken_at_ms": 1, "epoch": "e", "driver_version": "1",
        "gpus": [{
            "uuid": "GPU-00000000-0000-0000-0000-000000000001", "pci": "0000:3b:00.0", "index": 0, "name": "T4",
            "profiles": [], "partitions": [partition(0xa, "acme"), partition(0xb, "rival")],
        }],
    });
    let outcome = json!({"kind": "inspected", "inventory": inventory, "checks": [], "drift": []});
    let done = about(
        &record,
        "operation.succeeded",
        3,
        json!({"outcome": outcome, "inventory": inventory}),
    );
    let callbacks = bench.settle(&done).await;
    let (_, _, body) = &callbacks[0];
    let partitions = &body["data"]["outcome"]["inventory"]["gpus"][0]["partitions"];
    assert_eq!(partitions[0]["owner"]["tenant"], "acme");
    assert_eq!(
        partitions[1],
        json!({"id": Uuid::nil(), "profile": "T4-4Q", "in_use": false})
    );
    assert!(!body.to_string().contains("rival"));
    assert!(body["data"].get("inventory").is_none());
    // The store gets the whole of it.
    let (event, _) = bench.store.rows().settled[0].clone();
    assert_eq!(
        event.event.data.inventory.unwrap().gpus[0].partitions.len(),
        2
    );
}

#[tokio::test]
async fn the_end_of_an_allocation_is_told_to_who_made_it() {
    let bench = Bench::new();
    let key = "job-7".parse().unwrap();
    let allocation = AllocationId::of(&"acme".parse().unwrap(), &key);
    let mut made = operation(7, allocate("job-7"));
    made.state = OperationState::Succeeded;
    let Operation::Allocate(spec) = &made.operation else {
        panic!("allocate")
    };
    let record = AllocationRecord {
        id: allocation,
        key: spec.key.clone(),
        tenant: made.tenant.clone(),
        host: HOST.parse().unwrap(),
        gpu: "GPU-00000000-0000-0000-0000-000000000001".parse().unwrap(),
        state: AllocationState::Live,
        spec: made.operation.clone(),
        allocated: None,
        changed_at_ms: NOW_MS,
    };
    {
        let mut rows = bench.store.rows();
        rows.operations.push(made.clone());
        // Operations that came after it: failed ones under the same key, others, and some pages of them.
        for number in 100..700 {
            let mut later = operation(
                number,
                allocate(if number % 2 == 0 { "job-7" } else { "job-8" }),
            );
            later.state = if number % 2 == 0 {
                OperationState::Refused
            } else {
                OperationState::Succeeded
            };
            rows.operations.push(later);
        }
        rows.allocations.push(record);
    }
    let expired = event(
        "allocation.expired",
        &allocation.to_string(),
        9,
        json!({"allocation": allocation}),
    );
    let callbacks = bench.settle(&expired).await;
    let (endpoint, webhook_id, body) = &callbacks[0];
    assert_eq!(
        (endpoint.as_str(), webhook_id),
        ("demo", &format!("msg_{allocation}_9"))
    );
    assert_eq!(body["type"], "dev.gpuhook.allocation.expired.v1");
    assert_eq!(body["data"]["op_id"], made.id.to_string());
    assert_eq!(
        (&body["data"]["key"], &body["data"]["allocation"]),
        (&json!("job-7"), &json!(allocation))
    );
    assert!(body["data"].get("state").is_none());
    // Another host's allocation is nobody's business of this host.
    bench.store.rows().allocations[0].host = "gpu-2".parse().unwrap();
    assert!(bench.settle(&expired).await.is_empty());
}

#[tokio::test]
async fn what_can_never_be_settled_is_put_away_and_leaves_no_trace() {
    let bench = Bench::new();
    let record = operation(7, allocate("job-7"));
    let other = SecretKey::generate().unwrap();
    {
        let mut rows = bench.store.rows();
        rows.operations.push(record.clone());
        rows.hosts
            .insert("gpu-2".parse().unwrap(), other.public().to_string());
        rows.hosts
            .insert("gpu-3".parse().unwrap(), "whpk_broken".to_owned());
    }
    let good = about(&record, "operation.succeeded", 1, json!({}));
    let with = |field: &str, value: Value| {
        let mut event = good.clone();
        event[field] = value;
        event
    };
    let inventory =
        json!({"host": "gpu-2", "taken_at_ms": 1, "epoch": "e", "driver_version": "1", "gpus": []});
    let bodies = [
        String::new(),
        "not json".to_owned(),
        "{}".to_owned(),
        "[]".to_owned(),
        good.to_string(),
        "x".repeat(300_000),
        // Signed by another host's key, claiming to be this one; and the other way round.
        seal(&good, RESULT_TYPE, &other).unwrap(),
        bench.seal(&with("source", json!("/hosts/gpu-2"))),
        bench.seal(&with("source", json!("/hosts/unknown"))),
        bench.seal(&with("source", json!("/hosts/gpu-3"))),
        bench.seal(&with("source", json!("/hosts/../gpu-1"))),
        bench.seal(&with("source", json!(7))),
        seal(&good, "application/vnd.gpuhook.command.v1+json", &bench.key).unwrap(),
        // Signed by the right host, and wrong all the same.
        bench.seal(&with("type", json!("dev.gpuhook.operation.invented.v1"))),
        bench.seal(&with("subject", json!("somebody-else"))),
        bench.seal(&with("data", json!({}))),
        bench.seal(&about(
            &record,
            "operation.succeeded",
            1,
            json!({"inventory": inventory}),
        )),
        bench.seal(&event("allocation.expired", "x.1", 1, json!({}))),
    ];
    let count = bodies.len();
    let messages = bodies.into_iter().enumerate();
    let messages = messages
        .map(|(number, body)| message(&number.to_string(), HOST, body))
        .collect();
    assert_eq!(bench.worker.handle(messages).await, Vec::<String>::new());
    assert_eq!(bench.worker.poisoned(), u64::try_from(count).unwrap());
    assert!(bench.store.rows().settled.is_empty());
    assert_eq!(bench.changes.load(Ordering::SeqCst), 0);
    // And what comes after them is settled.
    assert_eq!(bench.settle(&good).await.len(), 1);
}

#[tokio::test]
async fn results_of_unknown_operations_are_done_with() {
    let bench = Bench::new();
    let unknown = operation(9, allocate("job-9"));
    let callbacks = bench
        .settle(&about(&unknown, "operation.succeeded", 1, json!({})))
        .await;
    assert!(callbacks.is_empty());
    assert_eq!(
        (
            bench.worker.poisoned(),
            bench.changes.load(Ordering::SeqCst)
        ),
        (0, 0)
    );
}

#[tokio::test]
async fn inventory_alone_is_settled_without_callbacks() {
    let bench = Bench::new();
    let inventory =
        json!({"host": HOST, "taken_at_ms": 1, "epoch": "e", "driver_version": "1", "gpus": []});
    let mut observed = event("host.observed", HOST, 4, json!({"inventory": inventory}));
    observed.as_object_mut().unwrap().remove("tenant");
    assert!(bench.settle(&observed).await.is_empty());
    assert_eq!(bench.store.rows().settled.len(), 1);
}

#[tokio::test]
async fn while_the_store_is_down_messages_come_again_in_order() {
    let bench = Bench::new();
    let records = [operation(1, allocate("a")), operation(2, allocate("b"))];
    bench.store.rows().operations.extend(records.clone());
    let body =
        |record: &OperationRecord| bench.seal(&about(record, "operation.succeeded", 1, json!({})));
    let messages = vec![
        message("1", HOST, body(&records[0])),
        message("2", HOST, "poison".to_owned()),
        message("3", "another-group", "poison".to_owned()),
    ];
    bench.store.rows().down = true;
    // The poison behind the failure fails with its group; in another group it is put away.
    assert_eq!(bench.worker.handle(messages.clone()).await, ["1", "2"]);
    bench.store.rows().down = false;
    assert_eq!(bench.worker.handle(messages).await, Vec::<String>::new());
    assert_eq!(bench.store.rows().settled.len(), 1);
}

#[tokio::test]
async fn what_there_is_no_time_for_is_left_to_come_again() {
    let bench = Bench::new();
    let messages = vec![
        message("1", HOST, "poison".to_owned()),
        message("2", "another-group", "poison".to_owned()),
    ];
    let no_time = bench
        .worker
        .handle_within(messages.clone(), Duration::ZERO)
        .await;
    assert_eq!(no_time, ["1", "2"]);
    assert_eq!(bench.worker.poisoned(), 0);
    assert_eq!(bench.worker.handle(messages).await, Vec::<String>::new());
}

/// Hands out its messages, and says what became of their receipts.
#[derive(Default)]
struct FakeReceiver {
    messages: Mutex<VecDeque<Message>>,
    log: Mutex<Vec<String>>,
    faults: AtomicUsize,
    changed: Notify,
}

#[async_trait]
impl Receiver for FakeReceiver {
    async fn receive(&self, _: Duration) -> Result<Option<Message>, ReceiveError> {
        if self.faults.load(Ordering::SeqCst) > 0 {
            self.faults.fetch_sub(1, Ordering::SeqCst);
            return Err(ReceiveError::Unavailable("fake".to_owned()));
        }
        let next = self.messages.lock().unwrap().pop_front();
        match next {
            Some(message) => Ok(Some(message)),
            None => std::future::pending().await,
        }
    }

    async fn ack(&self, receipt: &str) -> Result<Settled, ReceiveError> {
        self.log.lock().unwrap().push(format!("ack {receipt}"));
        self.changed.notify_waiters();
        Ok(Settled::Done)
    }

    async fn nack(&self, receipt: &str, after: Duration) -> Result<Settled, ReceiveError> {
        self.log
            .lock()
            .unwrap()
            .push(format!("nack {receipt} {after:?}"));
        self.changed.notify_waiters();
        Ok(Settled::Lost)
    }
}

#[tokio::test]
async fn the_loop_acknowledges_what_is_settled_or_poison_and_returns_the_rest_later() {
    let bench = Bench::new();
    let record = operation(1, allocate("a"));
    bench.store.rows().operations.push(record.clone());
    let host: HostName = "down".parse().unwrap();
    let receiver = Arc::new(FakeReceiver::default());
    receiver.faults.store(1, Ordering::SeqCst);
    let good = bench.seal(&about(&record, "operation.succeeded", 1, json!({})));
    let mut third = message("3", host.as_str(), good.clone());
    third.receive_count = 3;
    let messages = [
        message("1", HOST, "poison".to_owned()),
        message("2", HOST, good.clone()),
        third,
    ];
    receiver.messages.lock().unwrap().extend(messages);
    let (stop, stopped) = watch::channel(false);
    let running = tokio::spawn({
        let (worker, receiver) = (bench.worker.clone(), receiver.clone());
        async move { worker.run(&*receiver, stopped).await }
    });
    let wait_for = async |count: usize| {
        let seen = async {
            loop {
                let changed = receiver.changed.notified();
                if receiver.log.lock().unwrap().len() >= count {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), seen)
            .await
            .unwrap();
    };
    wait_for(3).await;
    assert_eq!(
        *receiver.log.lock().unwrap(),
        ["ack receipt-1", "ack receipt-2", "ack receipt-3"],
        "a redelivery is stale and done with"
    );
    stop.send(true).unwrap();
    tokio::time::timeout(Duration::from_secs(20), running)
        .await
        .unwrap()
        .unwrap();

    bench.store.rows().down = true;
    let receiver = FakeReceiver::default();
    for (count, after) in [(1, "1s"), (2, "8s"), (3, "64s"), (4, "512s"), (9, "600s")] {
        let mut message = message("4", HOST, good.clone());
        message.receive_count = count;
        receiver.messages.lock().unwrap().push_back(message);
        let (stop, stopped) = watch::channel(false);
        let stopping = async {
            let seen = async {
                loop {
                    let changed = receiver.changed.notified();
                    if receiver
                        .log
                        .lock()
                        .unwrap()
                        .last()
                        .is_some_and(|line| line.ends_with(after))
                    {
                        return;
                    }
                    changed.await;
                }
            };
            tokio::time::timeout(Duration::from_secs(20), seen)
                .await
                .unwrap();
            stop.send(true).unwrap();
        };
        tokio::join!(bench.worker.run(&receiver, stopped), stopping);
        assert_eq!(
            receiver.log.lock().unwrap().last().unwrap(),
            &format!("nack receipt-4 {after}")
        );
    }
}
