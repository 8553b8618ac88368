//! The front door as the outside world uses it: signed webhooks in, status out.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use ureq::Agent;

use crate::site::{SOURCE, Site};

/// Longest wait for one answer.
const ANSWER: Duration = Duration::from_secs(20);

/// A client of one machine.
pub struct Door {
    agent: Agent,
    base: String,
    token: String,
    key: ring::hmac::Key,
}

/// What the door answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Whether it said that this is a replay.
    pub replayed: bool,
    /// The body.
    pub body: Value,
}

impl Door {
    /// The door of a site.
    #[must_use]
    pub fn of(site: &Site) -> Self {
        // A connection of an earlier life of the server would be broken.
        Self::with_connections(site, 0)
    }

    /// A sender that keeps its connection.
    #[must_use]
    pub fn kept_open(site: &Site) -> Self {
        Self::with_connections(site, 1)
    }

    fn with_connections(site: &Site, idle: usize) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_idle_connections(idle)
            .timeout_global(Some(ANSWER))
            .build();
        Self {
            agent: config.into(),
            base: format!("http://127.0.0.1:{}", site.port),
            token: site.token.clone(),
            key: site.webhook.clone(),
        }
    }

    /// Posts `body` as the webhook `id`, signed as of `now_s`.
    ///
    /// # Errors
    /// The connection broke: whether it was accepted is not known.
    pub fn post(&self, id: &str, now_s: i64, body: &str) -> Result<Answer> {
        let mac = ring::hmac::sign(&self.key, format!("{id}.{now_s}.{body}").as_bytes());
        let request = self
            .agent
            .post(format!("{}/v1/hooks/{SOURCE}", self.base))
            .header("content-type", "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", now_s.to_string())
            .header("webhook-signature", format!("v1,{}", STANDARD.encode(mac)));
        answer(request.send(body.as_bytes())?)
    }

    /// Reads a path with the tenant's token.
    ///
    /// # Errors
    /// The connection broke, or the answer is not 200.
    pub fn get(&self, path: &str) -> Result<Value> {
        let request = self
            .agent
            .get(format!("{}{path}", self.base))
            .header("authorization", format!("Bearer {}", self.token));
        let answer = answer(request.call()?)?;
        if answer.status != 200 {
            bail!("{path} answered {}: {}", answer.status, answer.body);
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
