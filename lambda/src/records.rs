//! SQS events as messages, and the partial answer: which records are to come again.

use backplane::Message;
use serde_json::{Value, json};

/// An event of which some record cannot even be named: it comes again as a whole.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a record of the event has no messageId")]
pub struct Nameless;

/// The messages of an event, in order.
///
/// # Errors
/// [`Nameless`]: an answer cannot ask for that record again, and saying nothing would lose it (field F07).
pub fn messages(event: &Value) -> Result<Vec<Message>, Nameless> {
    let records = event["Records"].as_array();
    records.into_iter().flatten().map(message).collect()
}

fn message(record: &Value) -> Result<Message, Nameless> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let id = text(&record["messageId"]);
    if id.is_empty() {
        return Err(Nameless);
    }
    let attributes = &record["attributes"];
    let receives = attributes["ApproximateReceiveCount"].as_str();
    Ok(Message {
        receipt: text(&record["receiptHandle"]),
        // Of a standard queue each message is a group of its own: one that fails holds up no other.
        group: match attributes["MessageGroupId"].as_str() {
            Some(group) if is_fifo(record) => group.to_owned(),
            _ => id.clone(),
        },
        body: text(&record["body"]),
        receive_count: receives.and_then(|count| count.parse().ok()).unwrap_or(1),
        server_time_ms: 0,
        sender: attributes["SenderId"].as_str().map(str::to_owned),
        id,
    })
}

fn is_fifo(record: &Value) -> bool {
    let arn = record["eventSourceARN"].as_str();
    arn.is_some_and(|arn| arn.ends_with(".fifo"))
}

/// The answer that names what is to come again.
#[must_use]
pub fn answer(failed: &[String]) -> Value {
    let failures: Vec<_> = failed
        .iter()
        .map(|id| json!({"itemIdentifier": id}))
        .collect();
    json!({ "batchItemFailures": failures })
}
