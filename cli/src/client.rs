//! Talks to a running gpuhook: posts webhooks, reads operations.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use ureq::Agent;

use crate::webhook::Signed;

/// Longest wait of one read (`Prefer: wait=N`), a little under the door's own limit of 25 s.
const WAIT_S: u64 = 20;

/// A connection to one gpuhook.
pub(crate) struct Client {
    agent: Agent,
    base: String,
    token: String,
}

/// An answer of a door.
pub(crate) struct Answer {
    /// HTTP status.
    pub(crate) status: u16,
    /// Whether it was a replay of an earlier delivery.
    pub(crate) replayed: bool,
    /// Body, as JSON; `null` when it was not JSON.
    pub(crate) body: Value,
}

impl Client {
    /// A client of `base` (`http://127.0.0.1:8080`) that reads with `token`.
    pub(crate) fn new(base: &str, token: &str) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(Duration::from_secs(WAIT_S + 10)))
            .build();
        Self {
            agent: config.into(),
            base: base.trim_end_matches('/').to_owned(),
            token: token.to_owned(),
        }
    }

    /// Posts a signed webhook to a source.
    pub(crate) fn post(&self, source: &str, signed: &Signed, body: &[u8]) -> Result<Answer> {
        let url = format!("{}/v1/hooks/{source}", self.base);
        let request = self
            .agent
            .post(&url)
            .header("content-type", "application/json")
            .header("webhook-id", &signed.id)
            .header("webhook-timestamp", &signed.timestamp)
            .header("webhook-signature", &signed.signature);
        answer(
            request
                .send(body)
                .with_context(|| format!("post to {url}: is `gpuhook up` running?"))?,
        )
    }

    /// Reads a status path, waiting a while for a final state.
    pub(crate) fn wait(&self, path: &str) -> Result<Value> {
        let url = format!("{}{path}", self.base);
        let request = self
            .agent
            .get(&url)
            .header("authorization", format!("Bearer {}", self.token))
            .header("prefer", format!("wait={WAIT_S}"));
        let answer = answer(request.call().with_context(|| format!("read {url}"))?)?;
        if answer.status != 200 {
            bail!(
                "{url} answered {}: {}",
                answer.status,
                problem(&answer.body)
            );
        }
        Ok(answer.body)
    }
}

fn answer(response: ureq::http::Response<ureq::Body>) -> Result<Answer> {
    let status = response.status().as_u16();
    let replayed = response.headers().contains_key("idempotent-replayed");
    let text = response
        .into_body()
        .read_to_string()
        .context("read the answer")?;
    Ok(Answer {
        status,
        replayed,
        body: serde_json::from_str(&text).unwrap_or(Value::Null),
    })
}

/// What a problem document says, for people.
pub(crate) fn problem(body: &Value) -> String {
    let text = |field: &str| body[field].as_str().unwrap_or_default();
    let mut message = format!("{}: {}", text("title"), text("detail"));
    for error in body["errors"].as_array().into_iter().flatten() {
        message += &format!(
            "\n  {} {}",
            error["pointer"].as_str().unwrap_or("/"),
            error["detail"].as_str().unwrap_or_default()
        );
    }
    message
}
