//! Many senders at once: commits are shared between them, and a kill in the middle loses no 202.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use serde_json::json;

use super::life::Life;
use crate::door::{Answer, Door};

/// Senders at the same time.
const SENDERS: u64 = 64;
/// Webhooks of each.
const EACH: u64 = 32;

/// Floods a machine twice: to its end, counting syncs; and until it is killed in the middle.
pub(super) fn run() -> Result<Vec<String>> {
    let mut violations = Vec::new();
    let mut life = Life::begin_without_agent()?;
    life.control.arm(0, false)?;
    let answers = send(&life, "whole");
    let points = life.control.disarm()?;
    let names = life.control.names()?;
    let syncs = names
        .iter()
        .filter(|name| name.starts_with("after sync backplane.db-wal"))
        .count() as u64;
    let (sends, taken) = (SENDERS * EACH, accepted(&answers).count() as u64);
    println!(
        "flood     {SENDERS} senders, {sends} webhooks, {taken} answered 202, {syncs} syncs (1 per {:.1} webhooks)",
        sends as f64 / syncs as f64
    );
    if taken != sends {
        violations.push(format!("flood: only {taken} of {sends} were accepted"));
    }
    if syncs * 4 > sends {
        violations.push(format!("flood: {syncs} syncs for {sends} webhooks"));
    }

    life.control.arm(points / 2, false)?;
    let answers = send(&life, "killed");
    life.until("the kill in the middle of the flood", |life| {
        life.is_dead().ok().filter(|dead| *dead)
    })?;
    life.control.disarm()?;
    life.restart()?;
    let mut kept = 0_u64;
    for (id, answer) in accepted(&answers) {
        let again = life.post(id, &body())?;
        if again.body == answer.body && again.replayed {
            kept += 1;
        } else {
            violations.push(format!(
                "flood: {id} was answered {answer:?}, then {again:?}"
            ));
        }
    }
    println!("flood     killed in the middle: {kept} webhooks answered 202, each of them kept");
    Ok(violations)
}

fn body() -> String {
    json!({"op": "inspect", "target": {"host": crate::site::HOST}}).to_string()
}

type Answers = Vec<(String, Result<Answer>)>;

fn accepted(answers: &Answers) -> impl Iterator<Item = (&String, &Answer)> {
    answers
        .iter()
        .filter_map(|(id, answer)| Some((id, answer.as_ref().ok()?)))
        .filter(|(_, answer)| answer.status == 202)
}

fn send(life: &Life, name: &str) -> Answers {
    let next = AtomicU64::new(0);
    let now_s = life.now_s();
    let sender = |door: Door| {
        let mut answers = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::SeqCst);
            if number >= SENDERS * EACH {
                return answers;
            }
            let id = format!("msg_{name}_{number}");
            let answer = door.post(&id, now_s, &body());
            let is_over = answer.is_err();
            answers.push((id, answer));
            if is_over {
                return answers;
            }
        }
    };
    std::thread::scope(|scope| {
        let sending: Vec<_> = (0..SENDERS)
            .map(|_| scope.spawn(|| sender(Door::kept_open(&life.site))))
            .collect();
        sending
            .into_iter()
            .flat_map(|thread| thread.join().unwrap_or_default())
            .collect()
    })
}
