//! The read doors: by bearer token, each tenant its own.

use serde_json::json;

use crate::board;
use crate::client::Request;
use crate::machine::{Machine, READER, RIVAL, TOKEN, op_id};

const KEY: &str = "github:org/repo:job-7";
const PATH: &str = "/v1/allocations/github:org%2Frepo:job-7";

async fn allocated() -> (Machine, String, String) {
    let machine = Machine::start().await;
    let body = format!(r#"{{"op":"allocate","key":"{KEY}","profile":"T4-4Q","count":2}}"#);
    let answer = machine.post("msg", &body).await;
    let mut inventory = board::inventory(&machine.host());
    board::put(&mut inventory, "acme", KEY, "T4-4Q", 2);
    machine.succeed(op_id(&answer, 0), inventory).await;
    let operation = format!("/v1/operations/{}", op_id(&answer, 0));
    let delivery = answer.header("location").unwrap().to_owned();
    (machine, operation, delivery)
}

#[tokio::test]
async fn a_tenant_reads_its_own() {
    let (machine, operation, delivery) = allocated().await;
    let got = machine.get(TOKEN, &operation).await.json();
    assert_eq!(
        (&got["state"], &got["outcome"]["kind"], &got["key"]),
        (&json!("succeeded"), &json!("allocated"), &json!(KEY))
    );
    assert_eq!(
        machine.get(TOKEN, &delivery).await.json()["operations"][0],
        got
    );
    assert_eq!(
        machine.get(TOKEN, "/v1/operations").await.json()["items"][0],
        got
    );
    // A carrier that decodes paths (API Gateway) leaves the key's slashes bare.
    let decoded = machine.get(TOKEN, &PATH.replace("%2F", "/")).await.json();
    let allocation = machine.get(TOKEN, PATH).await.json();
    assert_eq!(decoded, allocation);
    assert_eq!(
        (
            &allocation["key"],
            &allocation["state"],
            &allocation["host"]
        ),
        (&json!(KEY), &json!("live"), &json!("gpu-1"))
    );
    assert_eq!(
        machine.get(TOKEN, "/v1/allocations").await.json()["items"][0],
        allocation
    );
    let hosts = machine.get(TOKEN, "/v1/hosts").await.json();
    let gpu = &hosts["items"][0]["gpus"][0];
    assert_eq!(gpu["partitions"].as_array().unwrap().len(), 2);
    assert_eq!(gpu["partitions"][0]["allocation"], allocation["id"]);
    let free = |profile: &str| {
        gpu["profiles"]
            .as_array()
            .unwrap()
            .iter()
            .find(|other| other["profile"] == profile)
            .unwrap()["free"]
            .clone()
    };
    assert_eq!((free("T4-4Q"), free("T4-8Q")), (json!(2), json!(0)));
    machine.stop().await;
}

#[tokio::test]
async fn another_tenant_sees_nothing_but_occupied_slices() {
    let (machine, operation, delivery) = allocated().await;
    for path in [operation.as_str(), delivery.as_str(), PATH] {
        let answer = machine.get(RIVAL, path).await;
        assert_eq!(
            (answer.status, answer.code()),
            (404, "not-found".to_owned()),
            "{path}"
        );
    }
    for path in ["/v1/operations", "/v1/allocations"] {
        assert_eq!(
            machine.get(RIVAL, path).await.json()["items"],
            json!([]),
            "{path}"
        );
    }
    let hosts = machine.get(RIVAL, "/v1/hosts").await;
    assert_eq!(
        hosts.json()["items"][0]["gpus"][0]["partitions"],
        json!([{"profile": "T4-4Q", "occupied": true}, {"profile": "T4-4Q", "occupied": true}])
    );
    assert!(
        !hosts.text.contains("acme") && !hosts.text.contains(KEY),
        "{}",
        hosts.text
    );
    // The rival's own allocation under the same key is another one.
    let body = format!(r#"{{"op":"release","key":"{KEY}"}}"#);
    let answer = machine
        .signed("rival", "msg", body.as_bytes())
        .send(machine.address)
        .await;
    let status = machine
        .get(RIVAL, &format!("/v1/operations/{}", op_id(&answer, 0)))
        .await
        .json();
    assert_eq!(status["outcome"]["existed"], false);
    machine.stop().await;
}

#[tokio::test]
async fn tokens_that_are_not_known_get_one_answer() {
    let (machine, operation, delivery) = allocated().await;
    let mut texts = std::collections::BTreeSet::new();
    for path in [
        &operation,
        &delivery,
        "/v1/operations",
        "/v1/allocations",
        PATH,
        "/v1/hosts",
        "/v1/operations/junk",
    ] {
        for authorization in [
            None,
            Some(""),
            Some("Bearer "),
            Some("Bearer gpht_wrong"),
            Some(TOKEN),
            Some("Basic YTpi"),
            Some("Bearer\u{e9}"),
        ] {
            let mut request = Request::new("GET", path, "");
            if let Some(value) = authorization {
                request = request.with("authorization", value);
            }
            let answer = request.send(machine.address).await;
            assert_eq!(
                (answer.status, answer.header("www-authenticate")),
                (401, Some("Bearer realm=\"gpuhook\"")),
                "{path} {authorization:?}"
            );
            texts.insert(answer.json()["detail"].to_string());
        }
        let twice = machine
            .reading(TOKEN, path)
            .with("authorization", format!("Bearer {TOKEN}"));
        assert_eq!(twice.send(machine.address).await.status, 401, "{path}");
        let delete = Request {
            method: "PATCH".to_owned(),
            ..machine.reading(TOKEN, path)
        };
        let answer = delete.send(machine.address).await;
        assert_eq!(answer.status, 405, "{path}");
        assert!(answer.header("allow").unwrap().contains("GET"), "{path}");
    }
    assert_eq!(texts.len(), 1, "{texts:?}");
    machine.stop().await;
}

#[tokio::test]
async fn ids_and_keys_that_are_none_are_not_found() {
    let machine = Machine::start().await;
    for path in [
        "/v1/operations/junk",
        "/v1/deliveries/junk",
        "/v1/operations/01890000-0000-7000-8000-000000000000",
        "/v1/deliveries/01890000-0000-7000-8000-000000000000",
        "/v1/allocations/unknown",
        "/v1/allocations/%00",
        "/v1/allocations/a%20b",
        "/v1/allocations/%ff",
        "/v1/operations/",
    ] {
        assert_eq!(machine.get(TOKEN, path).await.code(), "not-found", "{path}");
    }
    for query in ["?limit=0", "?limit=201", "?limit=x", "?after=%27%3B--"] {
        assert_eq!(
            machine
                .get(TOKEN, &format!("/v1/operations{query}"))
                .await
                .code(),
            "malformed-query",
            "{query}"
        );
    }
    machine.stop().await;
}

#[tokio::test]
async fn lists_come_in_pages_newest_first() {
    let machine = Machine::start().await;
    for number in 0..5 {
        machine
            .post(
                &format!("msg_{number}"),
                &format!(r#"{{"op":"release","key":"k{number}"}}"#),
            )
            .await;
    }
    let (mut seen, mut path) = (Vec::new(), "/v1/operations?limit=2".to_owned());
    loop {
        let page = machine.get(TOKEN, &path).await.json();
        seen.extend(
            page["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|item| item["key"].as_str().unwrap().to_owned()),
        );
        let Some(next) = page["next"].as_str() else {
            break;
        };
        path = format!("/v1/operations?limit=2&after={next}");
    }
    assert_eq!(seen, ["k4", "k3", "k2", "k1", "k0"]);
    machine.stop().await;
}

#[tokio::test]
async fn delete_is_a_release_for_tokens_with_a_role() {
    let (machine, ..) = allocated().await;
    machine.message().await.unwrap();
    let delete = |token: &str| Request {
        method: "DELETE".to_owned(),
        ..machine.reading(token, PATH)
    };
    assert_eq!(delete("gpht_wrong").send(machine.address).await.status, 401);
    assert_eq!(
        delete(READER).send(machine.address).await.code(),
        "not-permitted"
    );
    let request = delete(TOKEN).with("idempotency-key", "once");
    let first = request.send(machine.address).await;
    let again = request.send(machine.address).await;
    assert_eq!(
        (
            first.status,
            again.status,
            again.header("idempotent-replayed")
        ),
        (202, 202, Some("true"))
    );
    assert_eq!(first.text, again.text);
    let command = machine.command().await.unwrap();
    assert_eq!(
        (command.operation.name(), command.source.as_str()),
        ("release", "ops")
    );
    assert!(machine.command().await.is_none());
    // The rival has no such allocation, and says nothing of ours.
    let rival = delete(RIVAL).send(machine.address).await;
    let status = machine
        .get(RIVAL, &format!("/v1/operations/{}", op_id(&rival, 0)))
        .await
        .json();
    assert_eq!(status["outcome"]["existed"], false);
    machine.stop().await;
}
