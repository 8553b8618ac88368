//! SQS events: nothing is lost for a record that is strange (field F07).

use lambda::records::{self, Nameless};
use serde_json::{Value, json};

fn record(id: &str) -> Value {
    json!({
        "messageId": id, "receiptHandle": format!("receipt-{id}"), "body": format!("body-{id}"),
        "attributes": {"ApproximateReceiveCount": "3", "SenderId": "AROAX:4f2a", "MessageGroupId": "a"},
        "eventSourceARN": "arn:aws:sqs:eu-west-1:1:gpuhook-results",
    })
}

#[test]
fn each_record_of_a_standard_queue_stands_for_itself() {
    let event = json!({"Records": [record("1"), record("2")]});
    let messages = records::messages(&event).unwrap();
    let seen: Vec<_> = messages
        .iter()
        .map(|message| {
            (
                message.id.as_str(),
                message.group.as_str(),
                message.body.as_str(),
            )
        })
        .collect();
    assert_eq!(seen, [("1", "1", "body-1"), ("2", "2", "body-2")]);
    assert_eq!(messages[0].receive_count, 3);
    assert_eq!(messages[0].sender.as_deref(), Some("AROAX:4f2a"));
}

#[test]
fn records_of_a_fifo_queue_keep_their_group() {
    let mut fifo = record("1");
    fifo["eventSourceARN"] = "arn:aws:sqs:eu-west-1:1:gpuhook-cmd-t4.fifo".into();
    let messages = records::messages(&json!({ "Records": [fifo] })).unwrap();
    assert_eq!(messages[0].group, "a");
}

#[test]
fn a_strange_record_keeps_its_own_name() {
    for strange in [
        json!({"messageId": "x"}),
        json!({"messageId": "x", "body": 7, "attributes": "none", "receiptHandle": null}),
        json!({"messageId": "x", "attributes": {"ApproximateReceiveCount": "many"}}),
    ] {
        let messages = records::messages(&json!({"Records": [record("1"), strange]})).unwrap();
        assert_eq!(
            (messages[1].id.as_str(), messages[1].body.as_str()),
            ("x", "")
        );
    }
}

#[test]
fn a_record_without_a_name_fails_the_event_as_a_whole() {
    for nameless in [
        json!({}),
        json!({"messageId": ""}),
        json!({"messageId": 7}),
        json!("text"),
    ] {
        let event = json!({"Records": [record("1"), nameless]});
        assert_eq!(records::messages(&event), Err(Nameless));
    }
    for empty in [
        json!({}),
        json!({"Records": []}),
        json!({"Records": null}),
        json!("x"),
    ] {
        assert_eq!(records::messages(&empty), Ok(Vec::new()));
    }
}

#[test]
fn the_answer_names_what_failed_and_nothing_else() {
    assert_eq!(records::answer(&[]), json!({"batchItemFailures": []}));
    assert_eq!(
        records::answer(&["b".to_owned()]),
        json!({"batchItemFailures": [{"itemIdentifier": "b"}]})
    );
}
