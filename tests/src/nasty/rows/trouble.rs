//! Rows 57, 59 and 60: hostile callback URLs, outages, and keys that were rotated out.

use anyhow::Result;

use super::{Row, row};
use crate::nasty::machine::Traces;
use crate::nasty::outage::Outage;
use crate::nasty::sender::{self, GOOD, Key};
use crate::nasty::trial::{Trial, UNAUTHENTICATED};

/// The rows.
pub(super) const ROWS: &[Row] = &[
    row(
        57,
        "hostile callback URL",
        "endpoints are configuration, never payload: 422 as an unknown field; not loaded when configured; names that resolve inside are refused when resolved",
        callbacks,
    ),
    row(
        59,
        "queue or table down",
        "503 and Retry-After, never 202; healed, the same webhook is accepted once",
        outages,
    ),
    row(
        60,
        "signature under a rotated-out key",
        "401; the configuration is the grace period",
        rotated_out,
    ),
];

/// URLs that mean something else than they seem to, or something inside.
const HOSTILE: [&str; 25] = [
    "http://example.com/",
    "HTTP://example.com/",
    "file:///etc/passwd",
    "gopher://example.com/",
    "javascript:alert(1)",
    "https://",
    "https:///127.0.0.1/",
    "https://12\t7.0.0.1/",
    "example.com/hook",
    "",
    "https://user:pw@example.com/",
    "https://example.com@10.0.0.1/",
    "https://example.com/#fragment",
    "https://example.com:22/",
    "https://127.0.0.1/",
    "https://127.1/",
    "https://2130706433/",
    "https://0x7f.1/",
    "https://0177.0.0.1/",
    "https://\u{ff11}\u{ff12}\u{ff17}.\u{ff10}.\u{ff10}.\u{ff11}/",
    "https://\u{2460}\u{2461}\u{2466}.\u{24ea}.\u{24ea}.\u{2460}/",
    "https://169.254.169.254/latest/meta-data",
    "https://[::1]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[fd00:ec2::254]/",
];

fn callbacks(trial: &mut Trial<'_>) -> Result<()> {
    for url in HOSTILE {
        let quoted = serde_json::Value::from(url).to_string();
        let body = format!(r#"{{"op":"release","key":"k","callback_url":{quoted}}}"#);
        let request = trial.webhook().body(body).request();
        trial.refused(
            format!("payload: {url}"),
            &request,
            422,
            "invalid-operation",
        );
        let block =
            format!("[[callback]]\nname = \"x\"\nurl = {quoted}\nsecrets = [\"file:ci\"]\n");
        trial.misconfigured(format!("configuration: {url}"), &block, "callback");
    }
    let keyed = r#"{"vgpu_type":"T4-4Q","callback_url":"https://example.com/"}"#;
    trial.refused("API key", &sender::keyed(keyed), 422, "invalid-operation");
    let unsigned = "[[callback]]\nname = \"x\"\nurl = \"https://example.com/\"\n";
    trial.misconfigured(
        "configuration: nothing signs",
        unsigned,
        "nothing would be signed",
    );
    Ok(())
}

fn outages(trial: &mut Trial<'_>) -> Result<()> {
    for (name, outage, code) in [
        ("table", Outage::Table, "store-unavailable"),
        (
            "writes of the table",
            Outage::TableWrites,
            "store-unavailable",
        ),
    ] {
        for webhook in trial.both() {
            let request = webhook.request();
            trial.machine.backplane.set(outage);
            for attempt in ["down", "still down"] {
                trial.refused(format!("{name} {attempt}"), &request, 503, code);
            }
            trial.machine.backplane.set(Outage::None);
            trial.accepted(format!("{name} healed"), &request);
            trial.replayed(format!("{name} healed, again"), &request);
        }
    }
    // The delivery is in the store by then and its command is not, or may not be, in the queue.
    for (name, outage) in [
        ("queue refuses", Outage::QueueRefuses),
        ("queue is silent", Outage::QueueSilent),
        (
            "queue takes it and its answer is lost",
            Outage::QueueUnconfirmed,
        ),
        (
            "queue takes it and the table does not learn of it",
            Outage::TableMarks,
        ),
    ] {
        for source in ["ci", "deploy"] {
            recovers(trial, name, source, outage)?;
        }
    }
    Ok(())
}

/// Accepted once and sent once, however often it was tried while the queue was down.
fn recovers(trial: &mut Trial<'_>, name: &str, source: &'static str, outage: Outage) -> Result<()> {
    let request = trial.machine.webhook(source).request();
    let before = trial.machine.traces()?;
    trial.machine.backplane.set(outage);
    let mut told = Vec::new();
    for _ in 0..3 {
        let (exchange, _) = trial.send(&request.bytes())?;
        let answers = exchange.answers.into_iter();
        told.extend(answers.map(|answer| {
            let retry = answer.header("retry-after").is_some();
            (answer.status, answer.code(), retry)
        }));
    }
    trial.machine.backplane.set(Outage::None);
    let down = (503, "queue-unavailable".to_owned(), true);
    let fault = (told != vec![down; 3]).then(|| format!("{told:?}"));
    trial.holds(format!("{name}, thrice"), "503 and Retry-After", fault);
    let (mut exchange, _) = trial.send(&request.bytes())?;
    let healed = exchange.answers.pop().map(|answer| {
        let replayed = answer.header("idempotent-replayed") == Some("true");
        (answer.status, replayed)
    });
    let left = trial.machine.traces()? - before;
    let once = Traces {
        deliveries: 1,
        operations: 1,
        allocations: 0,
        messages: 1,
    };
    let right = healed == Some((202, true)) && left == once;
    let fault = (!right).then(|| format!("{healed:?}, left {left:?}"));
    trial.holds(format!("{name}, healed"), "202 replayed, sent once", fault);
    let other = trial.machine.webhook(source).request();
    trial.accepted(format!("{name}, healed: another"), &other);
    Ok(())
}

fn rotated_out(trial: &mut Trial<'_>) -> Result<()> {
    let rotating = |trial: &Trial<'_>, key| trial.machine.webhook("rotating").under(Key::V1(key));
    let old = rotating(trial, "former");
    trial.accepted("former key, both configured", &old.request());
    let new = rotating(trial, "fresh");
    trial.accepted("fresh key, both configured", &new.request());
    trial.machine.rotate_out()?;
    let late = rotating(trial, "former");
    trial.refused(
        "former key, taken out",
        &late.request(),
        401,
        UNAUTHENTICATED,
    );
    trial.refused(
        "former key, a known delivery",
        &old.request(),
        401,
        UNAUTHENTICATED,
    );
    let both = format!(
        "{} {}",
        late.entry(),
        late.clone().under(Key::V1("fresh")).entry()
    );
    let both = late.request().replacing("webhook-signature", both);
    trial.accepted("signed with both, as rotating senders do", &both);
    let again = old.under(Key::V1("fresh"));
    trial.replayed("fresh key, the known delivery", &again.request());
    let never = rotating(trial, "never-configured").body(GOOD);
    trial.refused(
        "a key that never was",
        &never.request(),
        401,
        UNAUTHENTICATED,
    );
    Ok(())
}
