//! A host that is silent, and a command that it never got: nothing is concluded from silence, and
//! everything from the host's own word.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use rusqlite::Connection;
use serde_json::{Value, json};

use super::judge;
use super::life::Life;

/// A command's expiry, and the minute after it.
const OVERDUE_S: i64 = 15 * 60 + 60;

/// Plays it and says what was wrong.
pub(super) fn run() -> Result<Vec<String>> {
    let mut violations = Vec::new();
    let mut life = Life::begin(None)?;
    // The host goes away; what was seen of it is still known, so that it is placed on.
    life.kill()?;
    let (agent, away) = (
        life.site.folder.join("agent.toml"),
        life.site.folder.join("agent.away"),
    );
    std::fs::rename(&agent, &away)?;
    life.start()?;
    let allocate = json!({
        "op": "allocate", "key": "silent", "profile": "T4-4Q",
        "target": {"host": crate::site::HOST, "gpu": 0},
    });
    let answer = life.post("msg_silent", &allocate.to_string())?;
    ensure!(answer.status == 202, "{answer:?}");
    let id = answer.body["operations"][0]["op_id"].clone();
    let path = format!("/v1/operations/{}", id.as_str().unwrap_or_default());
    life.leap(OVERDUE_S + 1)?;
    life.until("the alert", |life| {
        life.has_logged("host_silent").then_some(())
    })?;
    let seen = life.door.get(&path)?;
    if seen["state"] != "queued" {
        violations.push(format!("silence: without evidence it is {seen}"));
    }
    // The command is lost on the way; then the host is back and says what it has.
    life.kill()?;
    let connection = Connection::open(database(&life))?;
    connection.execute_batch("DELETE FROM messages")?;
    connection.close().map_err(|(_, error)| error)?;
    std::fs::rename(&away, &agent)?;
    life.start()?;
    // What the sweep has looked at in vain, it looks at again when its lease has run out.
    life.leap(120)?;
    let ended = life.until("the operation to expire", |life| {
        let seen = life.door.get(&path).ok()?;
        (seen["state"] != "queued").then_some(seen)
    })?;
    if ended["state"] != "expired" || ended["failure"]["code"] != "host_silent" {
        violations.push(format!("silence: on the host's evidence it became {ended}"));
    }
    let operation = id.as_str().unwrap_or_default().to_owned();
    life.until("the callback", |life| {
        judge::told(life, &operation).then_some(())
    })?;
    violations.extend(judge::callbacks_of(&life, &operation, &ended));
    let again = life.post("msg_again", &allocate.to_string())?;
    let fresh = again.body["operations"][0]["op_id"]
        .as_str()
        .map(str::to_owned);
    let fresh = format!("/v1/operations/{}", fresh.unwrap_or_default());
    let made: Value = life.until("the key to be free again", |life| {
        let seen = life.door.get(&fresh).ok()?;
        (!matches!(seen["state"].as_str(), Some("queued" | "running"))).then_some(seen)
    })?;
    if made["state"] != "succeeded" {
        violations.push(format!("silence: asked again, it became {made}"));
    }
    println!(
        "silence   queued while its host was silent, then {} ({}), then {} when asked again",
        ended["state"], ended["failure"]["code"], made["state"]
    );
    Ok(violations)
}

fn database(life: &Life) -> PathBuf {
    life.site.folder.join("backplane.db")
}
