//! Retries as their receiver sees them: over the store that production has, and a process that is a
//! new one at each attempt.

use std::path::Path;
use std::sync::{Arc, Mutex};

use backplane::sqlite::SqliteBackplane;
use backplane::store::{HostRecord, NewCallback, Settlement};
use backplane::{Clock, Store};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use events::inventory::HostInventory;
use events::result::{EventData, EventKind, HostEvent, ResultEvent};
use function::callback::Callbacks;
use function::callback::endpoint::Endpoint;
use function::callback::trust::Trust;
use function::signature::{Refusal, WebhookSecret, standard};
use function::sweep::Sweep;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use crate::receiver::{
    FakeClock, FakeResolver, LIMITS, NAME, NOW_MS, Received, Receiver, settings, status,
};
use crate::sweep::FakeDispatch;

/// Seconds that receivers allow.
const TOLERANCE_S: i64 = 300;
/// Letters beyond ASCII, numbers that another serialiser would write otherwise, maps in maps, and
/// keys out of order.
const BODY: &str = "{\"name\":\"Gr\u{fc}\u{df}e \u{732b} e\u{301}\",\"z\":1.0,\"a\":1e3,\"big\":12345678901234567890,\
    \"maps\":{\"b\":{\"a\":{\"\u{e9}\":[{},[],null]}}},\"escaped\":\"\\u00e9\\/\", \"space\" : 1}";

async fn owe(store: &SqliteBackplane) {
    let host = "gpu-1".parse().unwrap();
    let record = HostRecord {
        host,
        pools: Vec::new(),
        public_key: "whpk_".to_owned(),
    };
    let host = record.host.clone();
    store.put_host(record).await.unwrap();
    let inventory = HostInventory {
        host: host.clone(),
        taken_at_ms: 1,
        epoch: "e".to_owned(),
        driver_version: "1".to_owned(),
        gpus: Vec::new(),
    };
    let event = ResultEvent {
        specversion: "1.0".to_owned(),
        id: "gpu-1.1".to_owned(),
        source: "/hosts/gpu-1".to_owned(),
        kind: EventKind::HostObserved,
        subject: "gpu-1".to_owned(),
        time: "2023-11-14T22:13:20Z".to_owned(),
        datacontenttype: "application/json".to_owned(),
        sequence: 1,
        tenant: None,
        data: EventData {
            inventory: Some(inventory),
            ..EventData::default()
        },
    };
    let callback = NewCallback {
        endpoint: "demo".to_owned(),
        webhook_id: "msg_gpu-1_1".to_owned(),
        body: BODY.to_owned(),
    };
    let event = HostEvent::new(host, event).unwrap();
    let settled = store.settle(event, vec![callback], NOW_MS).await.unwrap();
    assert_eq!(settled, Settlement::Applied(None));
}

/// One look of a process that starts, does what is due, and ends.
async fn sweep(file: &Path, clock: &Arc<FakeClock>, receiver: &Receiver) {
    let url = format!("https://{NAME}:{}/cb", receiver.address.port());
    let (settings, _) = settings("demo", url, receiver.address.port());
    let endpoint = Endpoint::new(settings, &Trust::load()).unwrap();
    let resolver = FakeResolver::always(&[receiver.address]);
    let callbacks = Callbacks::new(vec![endpoint], resolver, clock.clone(), LIMITS);
    let store = SqliteBackplane::open(file, clock.clone()).unwrap();
    let sweep = Sweep::new(
        Arc::new(store),
        clock.clone(),
        Arc::new(callbacks),
        Arc::<FakeDispatch>::default(),
    );
    Arc::new(sweep).once().await;
}

fn headers(request: &Received) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in &request.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        map.append(name, HeaderValue::from_str(value).unwrap());
    }
    map
}

/// The receiver's two secrets, each alone, by the rule of this house's own front door.
fn secrets() -> [[WebhookSecret; 1]; 2] {
    [1, 2].map(|fill: u8| {
        let text = format!("whsec_{}", STANDARD.encode([fill; 32]));
        [WebhookSecret::parse("receiver", &text).unwrap()]
    })
}

/// field F24: a receiver that answers 500 four times while the back-off stretches past five minutes.
#[tokio::test]
async fn every_attempt_verifies_over_the_bytes_received_when_it_is_received() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backplane.db");
    let clock = FakeClock::at(NOW_MS);
    owe(&SqliteBackplane::create_or_open(&file, clock.clone()).unwrap()).await;
    let times = Arc::new(Mutex::new(Vec::new()));
    let receiver = Receiver::start({
        let (times, clock) = (times.clone(), clock.clone());
        move |number| {
            times.lock().unwrap().push(clock.now_s());
            status(if number < 4 { 500 } else { 200 })
        }
    })
    .await;
    let mut now_ms = NOW_MS;
    while receiver.received().len() < 5 {
        assert!(now_ms < NOW_MS + 3_600_000, "five attempts within an hour");
        clock.set(now_ms);
        sweep(&file, &clock, &receiver).await;
        now_ms += 30_000;
    }
    clock.set(NOW_MS + 7 * 24 * 3_600_000);
    sweep(&file, &clock, &receiver).await;
    let (received, times) = (receiver.received(), times.lock().unwrap().clone());
    assert_eq!(received.len(), 5, "delivered is delivered");
    assert!(times[4] - times[3] > TOLERANCE_S, "{times:?}");
    for (request, at_s) in received.iter().zip(&times) {
        assert_eq!(request.header("webhook-timestamp"), at_s.to_string());
        assert_eq!(request.header("webhook-id"), "msg_gpu-1_1");
        assert_eq!(request.body, BODY.as_bytes());
        for secret in &secrets() {
            let verify = |headers: &HeaderMap, body: &[u8], now_s: i64| {
                let verified = standard::verify(headers, body, secret, TOLERANCE_S, now_s);
                verified.map(|verified| verified.id.to_owned())
            };
            let map = headers(request);
            assert_eq!(verify(&map, &request.body, *at_s).unwrap(), "msg_gpu-1_1");
            let late = verify(&map, &request.body, at_s + TOLERANCE_S + 1);
            assert_eq!(late, Err(Refusal::Stale(TOLERANCE_S + 1)));
            // Id, timestamp and body are all covered.
            let again: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
            let again = verify(&map, again.to_string().as_bytes(), *at_s);
            assert_eq!(again, Err(Refusal::Mismatch));
            for (name, value) in [
                ("webhook-id", "msg_gpu-1_2".to_owned()),
                ("webhook-timestamp", (at_s + 1).to_string()),
            ] {
                let mut other = map.clone();
                other.insert(name, HeaderValue::from_str(&value).unwrap());
                assert_eq!(verify(&other, &request.body, *at_s), Err(Refusal::Mismatch));
            }
        }
    }
    // What was signed once, before a loop of retries, would be refused by the last.
    let (first, [secret, _]) = (headers(&received[0]), secrets());
    let replayed = standard::verify(&first, BODY.as_bytes(), &secret, TOLERANCE_S, times[4]);
    assert!(matches!(replayed, Err(Refusal::Stale(_))), "{replayed:?}");
}
