//! What is going on when the machine dies, and what a sound machine makes of it afterwards.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::judge;
use super::life::Life;

/// A scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Scenario {
    /// Two partitions with limits.
    Allocate,
    /// A lease is prolonged.
    Renew,
    /// They are removed.
    Release,
    /// A lease ends by itself.
    Expire,
    /// Nothing but accepting, settling and telling: a look at the host.
    Settle,
}

/// What came of one trial.
pub(super) struct Trial {
    /// Whether its point was reached.
    pub(super) killed: bool,
    /// Points passed.
    pub(super) points: u64,
    /// The last of them, in words.
    pub(super) last_point: String,
    /// What is wrong afterwards.
    pub(super) violations: Vec<String>,
}

/// The lease that trials ask for.
const LEASE_S: i64 = 3600;

impl Scenario {
    /// All of them.
    pub(super) const ALL: [Self; 5] = [
        Self::Allocate,
        Self::Renew,
        Self::Release,
        Self::Expire,
        Self::Settle,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Allocate => "allocate",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Expire => "expire",
            Self::Settle => "settle",
        }
    }

    /// Plays the scenario once and kills the machine at `point`.
    pub(super) fn try_at(self, life: &mut Life, point: u64) -> Result<Trial> {
        let key = format!("job:{}:{point}:{}", self.name(), life.now_s());
        let before = self.prepare(life, &key)?;
        let swallow = matches!(life.breakage(), Some(super::Breakage::Sync));
        let webhook = (life.webhook_id(), self.webhook(&key));
        let answer = match &webhook.1 {
            Some(body) => {
                life.control.arm(point, swallow)?;
                life.post(&webhook.0, body).ok()
            }
            // A lease that ran out while the machine was down: its points are those of a start, too.
            None => {
                life.kill()?;
                life.leap(LEASE_S + 1)?;
                life.control.arm(point, swallow)?;
                life.spawn()?;
                None
            }
        };
        let told = answer.as_ref().map(operation_of).transpose()?;
        let killed = life.until_killed_or("the scenario to end", |life| {
            self.is_over(life, &key, told.as_deref())
        })?;
        let points = life.control.disarm()?;
        let last_point = life.control.names()?.pop().unwrap_or_default();
        if killed {
            life.restart()?;
        }
        let verdict = self.afterwards(life, &key, &webhook, answer.as_ref(), &before);
        let violations = match verdict {
            Ok(violations) => violations,
            Err(error) => vec![format!("{error:#}\n{}", life.last_words())],
        };
        Ok(Trial {
            killed,
            points,
            last_point,
            violations,
        })
    }

    fn prepare(self, life: &mut Life, key: &str) -> Result<Value> {
        if matches!(self, Self::Renew | Self::Release | Self::Expire) {
            let id = life.webhook_id();
            let answer = life.post(&id, &allocate(key))?;
            let operation = final_operation(life, &operation_of(&answer)?)?;
            ensure!(operation["state"] == "succeeded", "prepare: {operation}");
            wait_for_callback(life, &operation_of(&answer)?)?;
        }
        Ok(json!(life.hardware()?.writes.created))
    }

    /// What the sender sends; nothing where time alone acts.
    fn webhook(self, key: &str) -> Option<String> {
        match self {
            Self::Allocate => Some(allocate(key)),
            Self::Renew => {
                Some(json!({"op": "renew", "key": key, "ttl_s": 2 * LEASE_S}).to_string())
            }
            Self::Release => Some(json!({"op": "release", "key": key}).to_string()),
            Self::Expire => None,
            Self::Settle => {
                Some(json!({"op": "inspect", "target": {"host": crate::site::HOST}}).to_string())
            }
        }
    }

    fn is_over(self, life: &Life, key: &str, operation: Option<&str>) -> bool {
        match operation {
            Some(operation) => judge::told(life, operation),
            None => judge::lease_end_told(life, key),
        }
    }

    /// The sender repeats what was not answered; then everything is compared.
    fn afterwards(
        self,
        life: &mut Life,
        key: &str,
        webhook: &(String, Option<String>),
        answer: Option<&crate::door::Answer>,
        before: &Value,
    ) -> Result<Vec<String>> {
        let mut violations = Vec::new();
        if let Some(body) = &webhook.1 {
            // A sender that got no 202 sends again; one that did may all the same.
            let again = life.post(&webhook.0, body)?;
            ensure!(
                again.status == 202,
                "the repeated webhook was answered {again:?}"
            );
            if let Some(first) = answer.filter(|first| first.status == 202)
                && (first.body != again.body || !again.replayed)
            {
                violations.push(format!("answered {first:?}, then {again:?}"));
            }
            let operation = operation_of(&again)?;
            let ended = final_operation(life, &operation)?;
            if ended["state"] != "succeeded" {
                violations.push(format!("the operation ended as {ended}"));
            }
            wait_for_callback(life, &operation)?;
            violations.extend(judge::callbacks_of(life, &operation, &ended));
        } else {
            life.until("the lease's end to be told", |life| {
                judge::lease_end_told(life, key).then_some(())
            })?;
            violations.extend(judge::lease_end_callbacks(life, key));
        }
        let created = before.as_u64().unwrap_or_default();
        match self {
            Self::Allocate => violations.extend(judge::live(life, key, created, 2)?),
            Self::Renew => {
                violations.extend(judge::live(life, key, created, 0)?);
                violations.extend(judge::renewed(life, key)?);
            }
            Self::Release | Self::Expire => violations.extend(judge::gone(life, key)?),
            Self::Settle => {}
        }
        violations.extend(judge::foreign(life)?);
        if matches!(self, Self::Allocate | Self::Renew) {
            clear(life, key)?;
            violations.extend(judge::gone(life, key)?);
        }
        Ok(violations)
    }
}

fn allocate(key: &str) -> String {
    json!({
        "op": "allocate", "key": key, "profile": "T4-4Q", "count": 2, "ttl_s": LEASE_S,
        "target": {"host": crate::site::HOST, "gpu": 0},
        "limits": {"memory_mib": 512, "cpuset": "auto"},
    })
    .to_string()
}

fn clear(life: &mut Life, key: &str) -> Result<()> {
    let id = life.webhook_id();
    let answer = life.post(&id, &json!({"op": "release", "key": key}).to_string())?;
    let operation = operation_of(&answer)?;
    let ended = final_operation(life, &operation)?;
    ensure!(ended["state"] == "succeeded", "clearing away: {ended}");
    wait_for_callback(life, &operation)
}

/// The operation that an answer names.
fn operation_of(answer: &crate::door::Answer) -> Result<String> {
    let id = answer.body["operations"][0]["op_id"].as_str();
    Ok(id
        .with_context(|| format!("no operation in {answer:?}"))?
        .to_owned())
}

fn final_operation(life: &mut Life, operation: &str) -> Result<Value> {
    let path = format!("/v1/operations/{operation}");
    life.until("a final state", |life| {
        let seen = life.door.get(&path).ok()?;
        (!matches!(seen["state"].as_str(), Some("queued" | "running"))).then_some(seen)
    })
}

fn wait_for_callback(life: &mut Life, operation: &str) -> Result<()> {
    life.until("the callback", |life| {
        judge::told(life, operation).then_some(())
    })
}
