//! The first webhook of a simulated machine: the whole path, each step with its time.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tokio::sync::mpsc;

use super::receiver::Callback;
use crate::client::{Answer, Client, problem};
use crate::data::Data;
use crate::{setup, webhook};

/// How long each step may take; on a laptop the whole path takes well under a second.
const STEP: Duration = Duration::from_secs(30);

/// Sends one signed webhook through the real door and shows what comes of it; returns its key.
pub(super) async fn run(
    data: &Data,
    base: &str,
    callbacks: &mut mpsc::Receiver<Callback>,
) -> Result<String> {
    let key = format!("demo:{}", jiff::Timestamp::now().as_millisecond());
    let limits = r#"{"memory_mib":4096,"cpuset":"auto"}"#;
    let body = format!(
        r#"{{"op":"allocate","key":"{key}","profile":"T4-4Q","count":2,"limits":{limits},"ttl_s":900}}"#
    );
    println!("A first webhook, signed as of Standard Webhooks:\n  {body}\n");
    let start = Instant::now();
    let step = |text: String| {
        println!(
            "  {:>7.1} ms  {text}",
            start.elapsed().as_secs_f64() * 1000.0
        );
    };

    let answer = post(data, base, body).await?;
    let operation = &answer.body["operations"][0];
    let op_id = text(&operation["op_id"], "op_id")?;
    step(format!("202 accepted: operation {op_id} is durably queued"));

    let status = final_status(data, base, text(&operation["status_url"], "status_url")?).await?;
    let (state, failure) = (&status["state"], &status["failure"]);
    ensure!(
        state == "succeeded",
        "the operation ended as {state}: {failure}"
    );
    let outcome = &status["outcome"];
    for partition in outcome["partitions"].as_array().into_iter().flatten() {
        let device = text(&partition["sysfs_path"], "sysfs_path")?;
        let root = data.path(setup::SIMULATED).join("root");
        let seen = exists(&root.join(device.trim_start_matches('/')));
        step(format!("partition {device} exists: {seen}"));
    }
    step(format!("limits: {}", limits_line(outcome)));

    let callback = tokio::time::timeout(STEP, wait_for(callbacks, &op_id)).await;
    let callback = callback
        .context("no callback arrived in time")?
        .context("the callback receiver stopped")?;
    let kind = text(&callback.event["type"], "type")?;
    step(format!(
        "callback {kind} received, signatures {} verified",
        callback.schemes
    ));
    println!();
    Ok(key)
}

/// Releases what the first webhook allocated: a machine that is switched off should leave no control
/// groups on the one it was simulated on.
pub(super) async fn undo(data: &Data, base: &str, key: &str) -> Result<()> {
    let answer = post(data, base, format!(r#"{{"op":"release","key":"{key}"}}"#)).await?;
    let path = text(&answer.body["operations"][0]["status_url"], "status_url")?;
    let status = final_status(data, base, path).await?;
    println!("released {key}: {}", status["state"]);
    Ok(())
}

fn text(value: &Value, name: &str) -> Result<String> {
    let text = value.as_str().map(str::to_owned);
    text.with_context(|| format!("no {name} in the answer"))
}

async fn post(data: &Data, base: &str, body: String) -> Result<Answer> {
    let key = webhook::key(&data.secret("secrets/webhook.whsec")?)?;
    let client = Client::new(base, "");
    let id = format!("msg_{}", uuid::Uuid::now_v7().simple());
    let now_s = jiff::Timestamp::now().as_second();
    let signed = webhook::sign(&key, &id, now_s, body.as_bytes());
    let answer =
        tokio::task::spawn_blocking(move || client.post(setup::NAME, &signed, body.as_bytes()))
            .await??;
    if answer.status != 202 {
        bail!(
            "the webhook was answered {}: {}",
            answer.status,
            problem(&answer.body)
        );
    }
    Ok(answer)
}

async fn final_status(data: &Data, base: &str, path: String) -> Result<Value> {
    let client = Client::new(base, &data.secret("secrets/bearer.token")?);
    tokio::task::spawn_blocking(move || {
        let deadline = Instant::now() + STEP;
        loop {
            let status = client.wait(&path)?;
            if !matches!(status["state"].as_str(), Some("queued" | "running")) {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!(
                    "the operation is still {} after {} s",
                    status["state"],
                    STEP.as_secs()
                );
            }
        }
    })
    .await?
}

async fn wait_for(callbacks: &mut mpsc::Receiver<Callback>, op_id: &str) -> Option<Callback> {
    loop {
        let callback = callbacks.recv().await?;
        if callback.event["data"]["op_id"] == op_id {
            return Some(callback);
        }
    }
}

fn exists(path: &Path) -> &'static str {
    if path.exists() {
        "yes, in the simulated host's sysfs"
    } else {
        "NO"
    }
}

fn limits_line(outcome: &Value) -> String {
    let state = outcome["limits_state"].as_str().unwrap_or("unknown");
    match (
        outcome["limits_reason"].as_str(),
        outcome["partitions"][0]["cgroup_path"].as_str(),
    ) {
        (Some(reason), _) => format!("{state}: {reason}"),
        (None, Some(group)) => format!("{state}, first control group {group}"),
        (None, None) => state.to_owned(),
    }
}
