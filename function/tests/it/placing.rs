//! Where allocations go, and what is answered when they go nowhere.

use std::sync::atomic::Ordering;

use events::operation::Target;
use events::{GpuSelector, Operation};
use serde_json::{Value, json};

use crate::board;
use crate::client::Answer;
use crate::machine::{Machine, TOKEN, op_id};

fn allocate(key: &str, fields: &str) -> String {
    format!(r#"{{"op":"allocate","key":"{key}",{fields}}}"#)
}

async fn status(machine: &Machine, answer: &Answer) -> Value {
    machine
        .get(TOKEN, &format!("/v1/operations/{}", op_id(answer, 0)))
        .await
        .json()
}

#[tokio::test]
async fn reservations_of_earlier_deliveries_count() {
    let machine = Machine::start().await;
    for (key, fields, group) in [
        ("a", r#""profile":"T4-4Q","count":3"#, 0),
        ("b", r#""profile":"T4-4Q","count":2"#, 1),
        ("c", r#""memory_mib":4000"#, 0),
        ("d", r#""profile":"T4-4Q","count":2"#, 1),
    ] {
        let answer = machine
            .post(&format!("msg_{key}"), &allocate(key, fields))
            .await;
        assert_eq!(answer.status, 202, "{key}: {answer:?}");
        assert_eq!(
            machine.message().await.unwrap().group,
            board::uuid(group),
            "{key}"
        );
    }
    let full = machine
        .post("msg_e", &allocate("e", r#""profile":"T4-4Q""#))
        .await;
    assert_eq!((full.status, full.code()), (409, "no_capacity".to_owned()));
    assert!(full.header("retry-after").is_some());
    let reasons = full.json()["errors"].to_string();
    assert!(
        reasons.contains("0 of 4 T4-4Q are free") && reasons.contains(&board::uuid(1)),
        "{reasons}"
    );
    let other = machine
        .post("msg_f", &allocate("f", r#""profile":"T4-8Q""#))
        .await;
    assert!(
        other.json()["errors"].to_string().contains("holds T4-4Q"),
        "{other:?}"
    );
    assert_eq!(machine.spy.effects(), (4, 4));
    machine.stop().await;
}

#[tokio::test]
async fn operations_of_one_delivery_see_each_other() {
    let machine = Machine::start().await;
    let list = ["a", "b", "c"].map(|key| allocate(key, r#""profile":"T4-8Q","count":2"#));
    let body = format!(r#"{{"operations":[{},{}]}}"#, list[0], list[1]);
    let answer = machine.post("msg_two", &body).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let mut groups = [
        machine.message().await.unwrap().group,
        machine.message().await.unwrap().group,
    ];
    groups.sort();
    assert_eq!(groups, [board::uuid(0), board::uuid(1)]);
    assert_eq!(
        machine.post("msg_three", &list[2]).await.code(),
        "no_capacity"
    );
    machine.stop().await;
}

#[tokio::test]
async fn unknown_profiles_are_answered_with_the_valid_ones() {
    let machine = Machine::start().await;
    let answer = machine
        .post("msg", &allocate("k", r#""profile":"T4-99Q""#))
        .await;
    assert_eq!(
        (answer.status, answer.code()),
        (422, "unplaceable".to_owned())
    );
    let detail = answer.json()["detail"].to_string();
    assert!(
        detail.contains("T4-1Q, T4-2Q, T4-4Q, T4-8Q, T4-16Q"),
        "{detail}"
    );
    machine.stop().await;
}

#[tokio::test]
async fn a_host_that_has_not_reported_is_503_and_then_works_under_the_same_id() {
    let machine = Machine::silent().await;
    let body = allocate("k", r#""profile":"T4-4Q""#);
    let early = machine.post("msg", &body).await;
    assert_eq!((early.status, early.code()), (503, "no-host".to_owned()));
    assert!(early.header("retry-after").is_some());
    machine.observe(board::inventory(&machine.host())).await;
    assert_eq!(machine.post("msg", &body).await.status, 202);
    machine.stop().await;
}

#[tokio::test]
async fn pools_are_placed_on_by_their_members_in_order() {
    let machine = Machine::start().await;
    let send = async |source: &str, id: &str, fields: &str| {
        machine
            .signed(source, id, allocate(id, fields).as_bytes())
            .send(machine.address)
            .await
    };
    // gpu-2 is a member too, and has reported nothing: it is passed over.
    assert_eq!(
        send("pooled", "a", r#""profile":"T4-4Q""#).await.status,
        202
    );
    assert_eq!(
        send(
            "pooled",
            "b",
            r#""profile":"T4-4Q","target":{"pool":"silent"}"#
        )
        .await
        .code(),
        "no-host"
    );
    let mut second = board::inventory(&"gpu-2".parse().unwrap());
    second.gpus.truncate(1);
    second.gpus[0].uuid = board::uuid(7).parse().unwrap();
    machine.observe(second).await;
    let answer = send(
        "pooled",
        "c",
        r#""profile":"T4-4Q","target":{"pool":"silent"}"#,
    )
    .await;
    let record = machine.record(op_id(&answer, 0)).await;
    assert_eq!(record.host.unwrap().as_str(), "gpu-2");
    machine.stop().await;
}

#[tokio::test]
async fn hosts_that_change_meanwhile_are_placed_on_again() {
    let machine = Machine::start().await;
    machine.spy.moved.store(2, Ordering::SeqCst);
    assert_eq!(
        machine
            .post("msg", &allocate("k", r#""profile":"T4-4Q""#))
            .await
            .status,
        202
    );
    machine.spy.moved.store(100, Ordering::SeqCst);
    let restless = machine
        .post("msg_2", &allocate("k2", r#""profile":"T4-4Q""#))
        .await;
    assert_eq!(
        (restless.status, restless.code()),
        (503, "capacity-moved".to_owned())
    );
    assert_eq!(machine.spy.effects(), (1, 1));
    machine.stop().await;
}

#[tokio::test]
async fn the_same_key_and_spec_again_goes_to_the_same_place_and_reserves_nothing() {
    let machine = Machine::start().await;
    let spec = r#""profile":"T4-4Q","count":2,"limits":{"memory_mib":64},"ttl_s":60"#;
    assert_eq!(
        machine.post("msg_1", &allocate("k", spec)).await.status,
        202
    );
    let first = machine.command().await.unwrap();
    for (id, again) in [
        ("msg_2", spec.to_owned()),
        (
            "msg_3",
            spec.replace(r#""profile":"T4-4Q""#, r#""memory_mib":4096"#),
        ),
        (
            "msg_4",
            format!(r#"{spec},"mode":"vgpu","target":{{"host":"gpu-1","gpu":0}}"#),
        ),
        ("msg_5", format!(r#"{spec},"target":{{"pool":"default"}}"#)),
    ] {
        let answer = machine.post(id, &allocate("k", &again)).await;
        let command = machine
            .command()
            .await
            .unwrap_or_else(|| panic!("{again}: {answer:?}"));
        assert!(command.revision > first.revision, "{again}");
        let (Operation::Allocate(asked), Operation::Allocate(held)) =
            (command.operation, &first.operation)
        else {
            panic!()
        };
        assert_eq!(
            (asked.profile, asked.target),
            (held.profile.clone(), held.target.clone()),
            "{again}"
        );
    }
    let reserved = &machine.app.reads.hosts().await.unwrap()[0].reserved;
    assert_eq!(
        reserved
            .iter()
            .map(|reservation| reservation.count)
            .sum::<u32>(),
        2
    );
    machine.stop().await;
}

#[tokio::test]
async fn the_same_key_with_another_spec_is_refused_use_resize() {
    let machine = Machine::start().await;
    assert_eq!(
        machine
            .post("msg", &allocate("k", r#""profile":"T4-4Q","ttl_s":60"#))
            .await
            .status,
        202
    );
    for (number, fields) in [
        r#""profile":"T4-8Q","ttl_s":60"#,
        r#""memory_mib":5000,"ttl_s":60"#,
        r#""profile":"T4-4Q","ttl_s":61"#,
        r#""profile":"T4-4Q""#,
        r#""profile":"T4-4Q","ttl_s":60,"count":2"#,
        r#""profile":"T4-4Q","ttl_s":60,"limits":{"pids":9}"#,
        "\"profile\":\"T4-4Q\",\"ttl_s\":60,\"consumer\":\"process\"",
        r#""profile":"T4-4Q","ttl_s":60,"target":{"host":"gpu-1","gpu":1}"#,
        r#""profile":"T4-4Q","ttl_s":60,"target":{"host":"gpu-2"}"#,
    ]
    .iter()
    .enumerate()
    {
        let answer = machine
            .post(&format!("msg_{number}"), &allocate("k", fields))
            .await;
        assert_eq!(answer.status, 202, "{fields}: {answer:?}");
        let status = status(&machine, &answer).await;
        assert_eq!(
            (&status["state"], &status["failure"]["code"]),
            (&json!("refused"), &json!("use_resize")),
            "{fields}"
        );
    }
    assert_eq!(machine.spy.effects().1, 1);
    machine.stop().await;
}

#[tokio::test]
async fn an_explicit_gpu_is_the_gpu_in_any_spelling() {
    let machine = Machine::start().await;
    for (key, gpu) in [
        ("a", "1".to_owned()),
        ("b", "\"00000000:3C:00.0\"".to_owned()),
        ("c", format!("\"{}\"", board::uuid(1))),
    ] {
        let body = allocate(
            key,
            &format!(r#""profile":"T4-4Q","target":{{"host":"gpu-1","gpu":{gpu}}}"#),
        );
        assert_eq!(
            machine.post(&format!("msg_{key}"), &body).await.status,
            202,
            "{gpu}"
        );
        let Operation::Allocate(allocate) = machine.command().await.unwrap().operation else {
            panic!()
        };
        let Some(Target::Host(target)) = allocate.target else {
            panic!()
        };
        assert_eq!(
            target.gpu,
            Some(GpuSelector::Uuid(board::uuid(1).parse().unwrap())),
            "{gpu}"
        );
    }
    machine.stop().await;
}
