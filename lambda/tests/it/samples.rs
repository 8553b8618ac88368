//! The committed events, which people try functions with, are what the adapters read.

use std::path::Path;

use lambda::{gateway, records};
use serde_json::Value;

fn sample(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../events/samples/aws");
    let text = std::fs::read_to_string(path.join(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn each_carriers_sample_is_the_same_webhook() {
    for name in ["http-api.json", "rest-api.json", "load-balancer.json"] {
        let request = gateway::request(&sample(name)).unwrap();
        assert_eq!(
            (request.method().as_str(), request.uri().path()),
            ("POST", "/v1/hooks/ci")
        );
        assert_eq!(request.headers()["webhook-id"], "msg_sample", "{name}");
    }
}

#[test]
fn the_samples_of_queues_and_schedules_are_read() {
    let messages = records::messages(&sample("results.json")).unwrap();
    assert_eq!(messages.len(), 1);
    assert_eq!(records::messages(&sample("schedule.json")), Ok(Vec::new()));
}
