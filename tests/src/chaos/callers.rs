//! What callers do: ask, ask again, and ask for something else under a known id.

use anyhow::Result;
use serde_json::{Value, json};

use super::script::{KEYS, Script, Webhook};

/// Profiles of both boards: those that fit beside the foreign partitions, and one that never does.
const PROFILES: [&str; 5] = ["T4-4Q", "T4-4Q", "V100D-8Q", "V100D-8Q", "V100D-4Q"];

impl Script {
    pub(super) fn key(&self) -> String {
        format!("job:{}", self.dice.throw("key", KEYS.end))
    }

    pub(super) fn allocate(&mut self) -> Result<()> {
        let profile = PROFILES[self.dice.throw("profile", PROFILES.len() as u64) as usize];
        let mut body = json!({
            "op": "allocate", "key": self.key(), "profile": profile,
            "count": 1 + self.dice.throw("count", 2),
        });
        if self.dice.throw("pinned", 2) == 0 {
            let gpu = u64::from(profile.starts_with("V100"));
            body["target"] = json!({"host": crate::site::HOST, "gpu": gpu});
        }
        if self.dice.throw("leased", 3) == 0 {
            body["ttl_s"] = json!(60 + self.dice.throw("ttl", 600));
        }
        if self.dice.throw("limited", 3) == 0 {
            body["limits"] = json!({"memory_mib": 256, "pids": 64});
        }
        self.ask(body)
    }

    pub(super) fn on_a_key(&mut self, op: &str) -> Result<()> {
        let mut body = json!({"op": op, "key": self.key()});
        if op == "renew" {
            body["ttl_s"] = json!(60 + self.dice.throw("ttl", 600));
        }
        self.ask(body)
    }

    pub(super) fn ask(&mut self, body: Value) -> Result<()> {
        let id = format!("msg_{}", self.webhooks.len());
        self.webhooks.push(Webhook {
            id,
            body: body.to_string(),
            answer: None,
            is_refused: false,
        });
        self.count("operations");
        self.send(self.webhooks.len() - 1)
    }

    /// Sends a webhook, perhaps again. A final answer never changes.
    pub(super) fn send(&mut self, index: usize) -> Result<()> {
        let webhook = &self.webhooks[index];
        let now_s = jiff::Timestamp::now().as_second() + self.machine.store_clock.shift_s();
        let answer = self.door.post(&webhook.id, now_s, &webhook.body)?;
        let told = answer.body["code"].as_str().unwrap_or("");
        self.say(&format!(
            "{} -> {} {told}",
            self.webhooks[index].body, answer.status
        ));
        let webhook = &mut self.webhooks[index];
        match (&webhook.answer, answer.status) {
            // A refusal is an answer that a sender can live with. It leaves no trace, so that the same
            // webhook may be accepted later, when its host is whole again or has room.
            (None, 422) => webhook.is_refused = true,
            (None, 409) if answer.body["code"] == "no_capacity" => webhook.is_refused = true,
            (_, 503 | 409) => webhook.is_refused = false,
            (None, 200 | 202) => webhook.answer = Some(answer),
            (Some(first), _) if first.body == answer.body => {}
            (first, _) => self.violations.push(format!(
                "{} was answered {first:?}, then {answer:?}",
                webhook.id
            )),
        }
        Ok(())
    }

    pub(super) fn repeat(&mut self) -> Result<()> {
        if self.webhooks.is_empty() {
            return Ok(());
        }
        self.count("repeats");
        let index = self.dice.throw("repeat", self.webhooks.len() as u64) as usize;
        self.send(index)
    }

    pub(super) fn mismatch(&mut self) -> Result<()> {
        let known = self.webhooks.iter().rev().find(|webhook| {
            webhook
                .answer
                .as_ref()
                .is_some_and(|answer| answer.status == 202)
        });
        let Some(webhook) = known else { return Ok(()) };
        let body = webhook.body.replace("{\"", "{ \"");
        let now_s = jiff::Timestamp::now().as_second() + self.machine.store_clock.shift_s();
        let answer = self.door.post(&webhook.id, now_s, &body)?;
        if !matches!(answer.status, 409 | 503) {
            self.violations.push(format!(
                "another body under a known id was answered {answer:?}"
            ));
        }
        self.count("mismatches");
        Ok(())
    }
}
