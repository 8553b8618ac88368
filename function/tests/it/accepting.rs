//! What is accepted becomes one signed command per operation, in its host's queue, before the 202.

use events::operation::{Mode, Target};
use events::{GpuSelector, Operation};
use serde_json::json;

use crate::board;
use crate::machine::{Machine, NOW, TOKEN, op_id};

const ALLOCATE: &str = r#"{"op":"allocate","key":"github:org/repo:job-7","profile":"T4-4Q","count":2,"limits":{"memory_mib":4096,"cpuset":"0-1"},"ttl_s":60}"#;

#[tokio::test]
async fn an_allocate_is_placed_stored_signed_and_queued_before_its_202() {
    let machine = Machine::start().await;
    let answer = machine.post("msg_1", ALLOCATE).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let body = answer.json();
    let id = op_id(&answer, 0);
    let url = format!("/v1/operations/{id}");
    assert_eq!(
        body["operations"],
        json!([{"op_id": id, "key": "github:org/repo:job-7", "status_url": url}])
    );
    let delivery = format!("/v1/deliveries/{}", body["delivery_id"].as_str().unwrap());
    assert_eq!(answer.header("location"), Some(delivery.as_str()));
    assert_eq!(answer.header("retry-after"), Some("2"));
    assert_eq!(answer.header("idempotent-replayed"), None);

    let message = machine.message().await.unwrap();
    assert_eq!(message.group, board::uuid(0), "the group is the GPU");
    let command: events::Command = events::envelope::open(
        &message.body,
        events::command::COMMAND_TYPE,
        &[machine.app.dispatcher.signing_key.public()],
    )
    .unwrap();
    assert_eq!(
        (
            command.op_id,
            command.aud.as_str(),
            command.tenant.as_str(),
            command.source.as_str()
        ),
        (id, "gpu-1", "acme", "ci")
    );
    assert_eq!(
        (command.v, command.revision, command.iat, command.exp),
        (1, 1, NOW, NOW + 900)
    );
    let Operation::Allocate(allocate) = command.operation else {
        panic!()
    };
    let Some(Target::Host(target)) = allocate.target else {
        panic!()
    };
    assert_eq!(
        target.gpu,
        Some(GpuSelector::Uuid(board::uuid(0).parse().unwrap()))
    );
    assert_eq!(
        (allocate.mode, allocate.memory_mib, allocate.count),
        (Mode::Vgpu, None, 2)
    );
    assert!(machine.record(id).await.sent);
    assert_eq!(machine.spy.effects(), (1, 1));

    let status = machine.get(TOKEN, &url).await.json();
    assert_eq!(
        (&status["state"], &status["op"], &status["accepted_at"]),
        (
            &json!("queued"),
            &json!("allocate"),
            &json!("2023-11-14T22:13:20Z")
        )
    );
    machine.stop().await;
}

#[tokio::test]
async fn one_delivery_holds_up_to_32_operations_all_or_nothing() {
    let machine = Machine::start().await;
    let release = |number: usize| format!(r#"{{"op":"release","key":"k{number}"}}"#);
    let list = |items: Vec<String>| format!(r#"{{"operations":[{}]}}"#, items.join(","));
    let answer = machine
        .post("msg_32", &list((0..32).map(release).collect()))
        .await;
    assert_eq!(
        (
            answer.status,
            answer.json()["operations"].as_array().unwrap().len()
        ),
        (202, 32)
    );
    let bad = list(vec![
        release(1),
        r#"{"op":"allocate","key":"x","profile":"T4-4Q","count":0}"#.to_owned(),
        r#"{"op":"release"}"#.to_owned(),
    ]);
    let answer = machine.post("msg_bad", &bad).await;
    let pointers: Vec<_> = answer.json()["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["pointer"].clone())
        .collect();
    assert_eq!(
        (answer.status, pointers),
        (
            422,
            vec![json!("/operations/1/count"), json!("/operations/2/key")]
        )
    );
    let unplaceable = list(vec![
        r#"{"op":"allocate","key":"a","profile":"T4-4Q"}"#.to_owned(),
        r#"{"op":"allocate","key":"b","profile":"T4-3Q"}"#.to_owned(),
    ]);
    assert_eq!(machine.post("msg_half", &unplaceable).await.status, 422);
    assert_eq!(
        machine.spy.effects(),
        (1, 0),
        "nothing of a delivery that is refused"
    );
    machine.stop().await;
}

#[tokio::test]
async fn an_empty_list_is_answered_200_and_is_a_delivery_like_any_other() {
    let machine = Machine::start().await;
    let first = machine.post("msg_empty", r#"{"operations":[]}"#).await;
    let again = machine.post("msg_empty", r#"{"operations":[]}"#).await;
    assert_eq!(
        (first.status, &first.json()["operations"]),
        (200, &json!([]))
    );
    assert_eq!(
        (
            again.status,
            again.header("idempotent-replayed"),
            &again.text
        ),
        (200, Some("true"), &first.text)
    );
    assert_eq!(
        machine
            .post("msg_empty", r#"{"op":"release","key":"k"}"#)
            .await
            .code(),
        "idempotency-mismatch"
    );
    machine.stop().await;
}

#[tokio::test]
async fn operations_that_are_not_executed_are_refused_by_name() {
    let machine = Machine::start().await;
    let target = r#""target":{"host":"gpu-1","gpu":0}"#;
    for (number, body) in [
        r#"{"op":"resize","key":"k","profile":"T4-8Q"}"#.to_owned(),
        format!(r#"{{"op":"tune",{target},"defaults":true}}"#),
        format!(r#"{{"op":"reset",{target}}}"#),
        r#"{"op":"allocate","key":"k","memory_mib":1024,"mode":"mps"}"#.to_owned(),
    ]
    .iter()
    .enumerate()
    {
        let answer = machine.post(&format!("msg_{number}"), body).await;
        assert_eq!(answer.status, 202, "{body}: {answer:?}");
        let status = machine
            .get(TOKEN, &format!("/v1/operations/{}", op_id(&answer, 0)))
            .await
            .json();
        assert_eq!(
            (&status["state"], &status["failure"]["code"]),
            (&json!("refused"), &json!("not_supported")),
            "{body}"
        );
    }
    assert_eq!(machine.spy.effects(), (4, 0), "no command was sent");
    machine.stop().await;
}

#[tokio::test]
async fn a_layout_goes_to_its_gpu_in_the_order_of_everything_on_it() {
    let machine = Machine::start().await;
    let send = async |id: &str, body: &str| {
        let signed = machine.signed("pooled", id, body.as_bytes());
        signed.send(machine.address).await
    };
    let unknown =
        r#"{"op":"partition","target":{"host":"gpu-1","gpu":9},"mode":"mig","layout":[]}"#;
    let refused = send("msg_0", unknown).await;
    assert_eq!(refused.status, 422, "{refused:?}");
    assert!(refused.text.contains("/target/gpu"), "{}", refused.text);
    let body = r#"{"op":"partition","target":{"host":"gpu-1","gpu":0},"mode":"mig","layout":[{"profile":"1g.10gb","count":7}]}"#;
    let denied = machine.post("msg_9", body).await;
    assert_eq!(
        denied.code(),
        "not-permitted",
        "operators use GPUs, administrators cut them"
    );
    for (number, revision) in [(1, 1), (2, 2)] {
        let answer = send(&format!("msg_{number}"), body).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        let command = machine.command().await.unwrap();
        let Operation::Partition(partition) = &command.operation else {
            panic!("{command:?}");
        };
        let gpu = board::inventory(&machine.host()).gpus[0].uuid.clone();
        assert_eq!(partition.target.gpu, Some(GpuSelector::Uuid(gpu)));
        assert_eq!(command.revision, revision);
    }
    machine.stop().await;
}

#[tokio::test]
async fn what_is_unknown_is_settled_at_once() {
    let machine = Machine::start().await;
    let answer = machine.post("msg_1", r#"{"op":"release","key":"k"}"#).await;
    let status = machine
        .get(TOKEN, &format!("/v1/operations/{}", op_id(&answer, 0)))
        .await
        .json();
    assert_eq!(
        (&status["state"], &status["outcome"]["existed"]),
        (&json!("succeeded"), &json!(false))
    );
    let answer = machine
        .post("msg_2", r#"{"op":"renew","key":"k","ttl_s":60}"#)
        .await;
    let status = machine
        .get(TOKEN, &format!("/v1/operations/{}", op_id(&answer, 0)))
        .await
        .json();
    assert_eq!(
        (&status["state"], &status["failure"]["code"]),
        (&json!("refused"), &json!("unknown_allocation"))
    );
    assert_eq!(machine.spy.effects(), (2, 0));
    machine.stop().await;
}

#[tokio::test]
async fn release_renew_and_inspect_go_to_their_host_and_group() {
    let machine = Machine::start().await;
    let allocated = machine.post("msg_1", ALLOCATE).await;
    machine.command().await.unwrap();
    let mut inventory = board::inventory(&machine.host());
    board::put(&mut inventory, "acme", "github:org/repo:job-7", "T4-4Q", 2);
    machine.succeed(op_id(&allocated, 0), inventory).await;
    for (id, body, group, revision) in [
        (
            "msg_2",
            r#"{"op":"renew","key":"github:org/repo:job-7","ttl_s":60}"#,
            board::uuid(0),
            2,
        ),
        (
            "msg_3",
            r#"{"op":"release","key":"github:org/repo:job-7"}"#,
            board::uuid(0),
            3,
        ),
        (
            "msg_4",
            r#"{"op":"inspect","target":{"host":"gpu-1"}}"#,
            "gpu-1".to_owned(),
            1,
        ),
    ] {
        assert_eq!(machine.post(id, body).await.status, 202, "{body}");
        let message = machine.message().await.unwrap();
        assert_eq!(message.group, group, "{body}");
        let command: events::Command = events::envelope::open(
            &message.body,
            events::command::COMMAND_TYPE,
            &[machine.app.dispatcher.signing_key.public()],
        )
        .unwrap();
        assert_eq!(command.revision, revision, "{body}");
    }
    machine.stop().await;
}

#[tokio::test]
async fn both_secrets_of_a_rotation_are_taken_and_the_trace_goes_along() {
    let machine = Machine::start().await;
    let body = br#"{"op":"inspect","target":{"host":"gpu-1"}}"#;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let timestamp = NOW.to_string();
    let signature = crate::machine::sign("next", b"msg_next", timestamp.as_bytes(), body);
    let request = machine
        .signed("ci", "msg_next", body)
        .replacing("webhook-signature", signature)
        .with("traceparent", trace);
    assert_eq!(request.send(machine.address).await.status, 202);
    assert_eq!(
        machine.command().await.unwrap().traceparent.as_deref(),
        Some(trace)
    );
    // Chunked bodies without a length are taken up to the cap.
    let mut request = machine
        .signed("ci", "msg_chunked", body)
        .with("transfer-encoding", "chunked");
    request.body = [
        format!("{:x}\r\n", body.len()).as_bytes(),
        body,
        b"\r\n0\r\n\r\n",
    ]
    .concat();
    assert_eq!(request.send(machine.address).await.status, 202);
    machine.stop().await;
}
