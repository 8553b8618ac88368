//! What must be so after a crash. The simulated hardware and the kernel's own files say what is;
//! status and callbacks say what was told; both have to be the same, and to have happened once.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Result;
use events::{AllocationId, AllocationKey, TenantName};
use serde_json::Value;

use super::life::Life;
use crate::receiver::Callback;

/// Control groups of the first version of the hierarchy, by controller.
const CONTROLLERS: [&str; 4] = ["memory", "cpuset", "cpu", "pids"];
/// What trials ask for, in bytes.
const MEMORY: &str = "536870912";

fn allocation(life: &Life, key: &str) -> AllocationId {
    let tenant: TenantName = life
        .site
        .tenant
        .parse()
        .expect("a tenant of our own making");
    let key: AllocationKey = key.parse().expect("a key of our own making");
    AllocationId::of(&tenant, &key)
}

fn about(life: &Life, wanted: impl Fn(&Value) -> bool) -> Vec<Callback> {
    let mut callbacks = life.receiver.callbacks();
    callbacks.retain(|callback| wanted(&callback.event()));
    callbacks
}

fn of_operation(life: &Life, operation: &str) -> Vec<Callback> {
    about(life, |event| {
        event["subject"] == operation && event["data"]["op_id"] == operation
    })
}

fn of_lease_end(life: &Life, key: &str) -> Vec<Callback> {
    let id = allocation(life, key).to_string();
    about(life, |event| event["subject"] == id.as_str())
}

/// Whether the caller was told how an operation ended.
pub(super) fn told(life: &Life, operation: &str) -> bool {
    !of_operation(life, operation).is_empty()
}

/// Whether the caller was told that a lease ended.
pub(super) fn lease_end_told(life: &Life, key: &str) -> bool {
    !of_lease_end(life, key).is_empty()
}

/// One callback, however often it came, and it says what the status says.
pub(super) fn callbacks_of(life: &Life, operation: &str, status: &Value) -> Vec<String> {
    let callbacks = of_operation(life, operation);
    let mut violations = once(&callbacks);
    for callback in &callbacks {
        let event = callback.event();
        if event["data"]["state"] != status["state"] {
            violations.push(format!("told {event}, while the status is {status}"));
        }
    }
    violations
}

/// One callback about the lease's end.
pub(super) fn lease_end_callbacks(life: &Life, key: &str) -> Vec<String> {
    once(&of_lease_end(life, key))
}

fn once(callbacks: &[Callback]) -> Vec<String> {
    let mut violations = Vec::new();
    let ids: BTreeSet<_> = callbacks.iter().map(|callback| &callback.id).collect();
    let bodies: BTreeSet<_> = callbacks.iter().map(|callback| &callback.body).collect();
    if ids.len() != 1 || bodies.len() != 1 {
        violations.push(format!("told more than one thing: {bodies:?}"));
    }
    if callbacks.iter().any(|callback| !callback.verified) {
        violations.push("a callback's signature did not verify".to_owned());
    }
    violations
}

/// The allocation exists: its two partitions, their limits, nothing made twice.
pub(super) fn live(life: &mut Life, key: &str, created: u64, expect: u64) -> Result<Vec<String>> {
    let mut violations = Vec::new();
    let id = allocation(life, key);
    let state = life.hardware()?;
    for ordinal in 0..2 {
        match state.mdev(id.partition(ordinal).0) {
            Some(mdev) if mdev.type_name == "T4-4Q" => {}
            other => violations.push(format!("partition {ordinal} is {other:?}")),
        }
    }
    let made = state.writes.created - created;
    if made != expect {
        violations.push(format!(
            "{made} partitions were created instead of {expect}"
        ));
    }
    let told = life.door.get(&format!("/v1/allocations/{key}"))?;
    if told["state"] != "live" {
        violations.push(format!("the store has it as {told}"));
    }
    let applied = told["allocated"]["limits_state"] == "applied";
    for group in groups(id).iter().filter(|_| applied) {
        let read = std::fs::read_to_string(group.join("memory.limit_in_bytes"));
        let is_memory = group.starts_with("/sys/fs/cgroup/memory");
        if !group.exists() || (is_memory && read.as_deref().map(str::trim).ok() != Some(MEMORY)) {
            violations.push(format!("{} is incomplete: {read:?}", group.display()));
        }
    }
    Ok(violations)
}

/// The new end of the lease is the same everywhere.
pub(super) fn renewed(life: &mut Life, key: &str) -> Result<Vec<String>> {
    let told = life.door.get(&format!("/v1/allocations/{key}"))?;
    let id = allocation(life, key).to_string();
    let status = life.agent_status()?;
    let mut known = status["allocations"].as_array().into_iter().flatten();
    let own = known.find(|known| known["id"] == id.as_str());
    let (store, host) = (
        &told["allocated"]["expires_at"],
        own.map(|own| &own["expires_at"]),
    );
    let differs = host != Some(store);
    Ok(differs
        .then(|| format!("the lease ends at {store} for the store, at {host:?} for the host"))
        .into_iter()
        .collect())
}

/// Nothing is left of the allocation.
pub(super) fn gone(life: &mut Life, key: &str) -> Result<Vec<String>> {
    let mut violations = Vec::new();
    let id = allocation(life, key);
    let state = life.hardware()?;
    for ordinal in 0..2 {
        if state.mdev(id.partition(ordinal).0).is_some() {
            violations.push(format!("partition {ordinal} is left"));
        }
    }
    for group in groups(id) {
        if group.exists() {
            violations.push(format!("{} is left", group.display()));
        }
    }
    let listed = life.door.get("/v1/allocations")?;
    let items = listed["items"].as_array().cloned().unwrap_or_default();
    if items.iter().any(|item| item["key"] == key) {
        violations.push(format!("the store still lists {key}"));
    }
    Ok(violations)
}

/// What is not ours is as it was.
pub(super) fn foreign(life: &mut Life) -> Result<Vec<String>> {
    let state = life.hardware()?;
    let lost = life
        .foreign
        .iter()
        .filter(|mdev| state.mdev(mdev.uuid) != Some(mdev));
    Ok(lost
        .map(|mdev| format!("the foreign partition {} was touched", mdev.uuid))
        .collect())
}

/// After all trials: only what was there at first, everything told once and in order, and the host
/// at peace with its ledger.
pub(super) fn at_the_end(life: &mut Life) -> Result<Vec<String>> {
    let mut violations = Vec::new();
    let state = life.hardware()?;
    if state.mdevs != life.foreign {
        violations.push(format!("the host ends with {:?}", state.mdevs));
    }
    let status = life.agent_status()?;
    if status["drift"] != Value::Array(Vec::new())
        || status["allocations"] != Value::Array(Vec::new())
    {
        violations.push(format!("the agent ends with {status}"));
    }
    let mut last = 0;
    let mut seen = BTreeSet::new();
    for callback in life.receiver.callbacks() {
        if !seen.insert(callback.id.clone()) {
            continue;
        }
        let sequence = callback.event()["sequence"].as_u64().unwrap_or_default();
        if sequence <= last {
            violations.push(format!("sequence {sequence} was told after {last}"));
        }
        last = last.max(sequence);
    }
    Ok(violations)
}

fn groups(id: AllocationId) -> Vec<PathBuf> {
    let mut groups = Vec::new();
    for controller in CONTROLLERS {
        let hierarchy = PathBuf::from(format!("/sys/fs/cgroup/{controller}"));
        if hierarchy.exists() {
            groups.extend((0..2).map(|ordinal| hierarchy.join(format!("gpuhook/{id}/{ordinal}"))));
        }
    }
    groups
}
