//! What must be so when everything has healed: the simulated hardware, the agent's ledger, the store
//! and what callers were told are one story, and nothing was left lying about.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use backplane::Reads;
use backplane::store::{AllocationState, OperationRecord};
use events::{AllocationId, Operation, OperationState, PartitionId, TenantName};
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;

use super::script::Script;
use crate::site::{HOST, Site};

fn database(site: &Site) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Ok(Connection::open_with_flags(
        site.folder.join("backplane.db"),
        flags,
    )?)
}

/// The last sequence that the store took from the host.
pub(super) fn sequence(site: &Site) -> Result<i64> {
    let sql = "SELECT COALESCE(MAX(sequence), -1) FROM hosts";
    Ok(database(site)?.query_row(sql, [], |row| row.get(0))?)
}

/// What still moves; empty means that everything is at rest.
pub(super) fn unrest(script: &mut Script) -> Result<Vec<String>> {
    let mut left = Vec::new();
    for record in script.operations()? {
        if !record.state.is_final() {
            left.push(format!("operation {}", brief(&record)));
        }
    }
    let unanswered = script.webhooks.iter().filter(|webhook| webhook.is_open());
    left.extend(unanswered.map(|webhook| format!("webhook {} {}", webhook.id, webhook.body)));
    let connection = database(&script.site)?;
    for (what, sql) in [
        ("messages", "SELECT COUNT(*) FROM messages"),
        (
            "callbacks",
            "SELECT COUNT(*) FROM callbacks WHERE state = 'pending'",
        ),
    ] {
        let count: i64 = connection.query_row(sql, [], |row| row.get(0))?;
        if count > 0 {
            left.push(format!("{count} {what}"));
        }
    }
    let status = script.machine.agent_status();
    if status["drift"] != Value::Array(Vec::new()) {
        left.push(format!("drift {}", status["drift"]));
    }
    let allocations = status["allocations"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    left.extend(
        allocations
            .iter()
            .filter(|allocation| allocation["phase"] != "live")
            .map(|allocation| format!("allocation {allocation}")),
    );
    let seen = partitions(&status);
    let real: BTreeSet<_> = script
        .kernel
        .state()?
        .mdevs
        .iter()
        .map(|mdev| mdev.uuid.to_string())
        .collect();
    if seen != real {
        left.push(format!("the agent last saw {seen:?}, there is {real:?}"));
    }
    Ok(left)
}

/// An operation in a line.
fn brief(record: &OperationRecord) -> String {
    let failure = record.failure.as_ref().map(|failure| &failure.message);
    format!(
        "{} {} {:?} r{} on {:?}: {:?} {failure:?}",
        record.id,
        record.operation.name(),
        record.operation.key().map(ToString::to_string),
        record.revision,
        record.host.as_ref().map(ToString::to_string),
        record.state,
    )
}

fn partitions(status: &Value) -> BTreeSet<String> {
    let gpus = status["inventory"]["gpus"].as_array();
    gpus.into_iter()
        .flatten()
        .flat_map(|gpu| gpu["partitions"].as_array().cloned().unwrap_or_default())
        .filter_map(|partition| Some(partition["id"].as_str()?.to_owned()))
        .collect()
}

/// Compares the four stories.
pub(super) fn compare(script: &mut Script) -> Result<Vec<String>> {
    let mut violations = Vec::new();
    let status = script.machine.agent_status();
    let ledger = ledger(&status);
    violations.extend(hardware(script, &ledger)?);
    violations.extend(store(script, &ledger)?);
    violations.extend(told(script)?);
    violations.extend(last_words(script, &ledger)?);
    violations.extend(groups(script, &ledger)?);
    Ok(violations)
}

/// What the agent's ledger wants: allocation, then its partitions' count and its lease's end.
type Wanted = BTreeMap<AllocationId, (u32, Value)>;

fn ledger(status: &Value) -> Wanted {
    let allocations = status["allocations"].as_array();
    allocations
        .into_iter()
        .flatten()
        .filter_map(|allocation| {
            let id = serde_json::from_value(allocation["id"].clone()).ok()?;
            let count = allocation["spec"]["count"].as_u64().unwrap_or(1);
            Some((
                id,
                (u32::try_from(count).ok()?, allocation["expires_at"].clone()),
            ))
        })
        .collect()
}

/// Hardware = ledger + foreign.
fn hardware(script: &mut Script, ledger: &Wanted) -> Result<Vec<String>> {
    let mut violations = Vec::new();
    let mdevs = script.kernel.state()?.mdevs;
    for foreign in &script.foreign {
        if !mdevs.contains(foreign) {
            violations.push(format!("the foreign {foreign:?} was touched"));
        }
    }
    let wanted: BTreeSet<PartitionId> = ledger
        .iter()
        .flat_map(|(id, (count, _))| (0..*count).map(|ordinal| id.partition(ordinal)))
        .collect();
    let real: BTreeSet<PartitionId> = mdevs
        .iter()
        .filter(|mdev| {
            script
                .foreign
                .iter()
                .all(|foreign| foreign.uuid != mdev.uuid)
        })
        .map(|mdev| PartitionId(mdev.uuid))
        .collect();
    if wanted != real {
        violations.push(format!("the ledger wants {wanted:?}, there is {real:?}"));
    }
    Ok(violations)
}

/// Ledger = store: the same allocations with the same lease; nothing pending, nothing reserved.
fn store(script: &Script, ledger: &Wanted) -> Result<Vec<String>> {
    let mut violations = Vec::new();
    let tenant: TenantName = script.site.tenant.parse()?;
    let inner = &script.machine.flaky.inner;
    let page = script.machine.ask(inner.allocations(&tenant, None, 1000))?;
    let mut known = BTreeMap::new();
    for record in page.items {
        if record.state != AllocationState::Live {
            violations.push(format!("the store has {record:?}"));
        }
        let allocated = record.allocated.as_ref();
        let ends = allocated.and_then(|allocated| allocated.expires_at);
        let count = allocated.map_or(0, |allocated| allocated.partitions.len());
        known.insert(
            record.id,
            (u32::try_from(count)?, ends.map_or(Value::Null, Value::from)),
        );
    }
    if known != *ledger {
        violations.push(format!("the store has {known:?}, the ledger {ledger:?}"));
    }
    let host = script.machine.ask(inner.host(&HOST.parse()?))?;
    if let Some(host) = host.filter(|host| !host.reserved.is_empty()) {
        violations.push(format!("still reserved: {:?}", host.reserved));
    }
    Ok(violations)
}

/// What was released last is not there: no operation of a lower revision came after it.
fn last_words(script: &Script, ledger: &Wanted) -> Result<Vec<String>> {
    let tenant: TenantName = script.site.tenant.parse()?;
    let mut last: BTreeMap<AllocationId, OperationRecord> = BTreeMap::new();
    for record in script.operations()? {
        let Some(id) = record.operation.allocation(&tenant) else {
            continue;
        };
        let succeeded = record.state == OperationState::Succeeded;
        let newer = last
            .get(&id)
            .is_none_or(|known| known.revision < record.revision);
        let decides = matches!(
            record.operation,
            Operation::Allocate(_) | Operation::Release(_)
        );
        if succeeded && newer && decides {
            last.insert(id, record);
        }
    }
    Ok(last
        .iter()
        .filter(|(id, record)| {
            matches!(record.operation, Operation::Release(_)) && ledger.contains_key(id)
        })
        .map(|(_, record)| format!("there, though released last: {}", brief(record)))
        .collect())
}

/// Every operation that a host ended was told once, and as the store has it.
fn told(script: &Script) -> Result<Vec<String>> {
    let mut violations = Vec::new();
    let mut told: BTreeMap<String, BTreeSet<(String, String)>> = BTreeMap::new();
    for callback in script.receiver.callbacks() {
        if !callback.verified {
            violations.push(format!("unverified: {callback:?}"));
        }
        let event = callback.event();
        if let Some(operation) = event["data"]["op_id"].as_str()
            && event["subject"] == operation
        {
            let state = event["data"]["state"].as_str().unwrap_or_default();
            told.entry(operation.to_owned())
                .or_default()
                .insert((callback.id, state.to_owned()));
        }
    }
    for record in script.operations()? {
        let heard = told.remove(&record.id.to_string()).unwrap_or_default();
        let states: Vec<_> = heard.iter().map(|(_, state)| state.as_str()).collect();
        if states != [record.state.as_str()] {
            violations.push(format!("told {heard:?} of {}", brief(&record)));
        }
    }
    if !told.is_empty() {
        violations.push(format!(
            "told of operations that nobody asked for: {told:?}"
        ));
    }
    Ok(violations)
}

/// No control group but those of allocations that are.
fn groups(script: &Script, ledger: &Wanted) -> Result<Vec<String>> {
    let tenant: TenantName = script.site.tenant.parse()?;
    let mut violations = Vec::new();
    for key in super::script::KEYS {
        let id = AllocationId::of(&tenant, &format!("job:{key}").parse()?);
        for controller in ["memory", "cpuset", "cpu", "pids"] {
            let group = format!("/sys/fs/cgroup/{controller}/gpuhook/{id}");
            if !ledger.contains_key(&id) && std::path::Path::new(&group).exists() {
                violations.push(format!("{group} is left"));
            }
        }
    }
    Ok(violations)
}

/// Removes the control groups of allocations that live on: their machine is thrown away.
pub(super) fn clear_groups(site: &Site) -> Result<()> {
    let tenant: TenantName = site.tenant.parse()?;
    for key in super::script::KEYS {
        let id = AllocationId::of(&tenant, &format!("job:{key}").parse()?);
        for controller in ["memory", "cpuset", "cpu", "pids"] {
            let group = format!("/sys/fs/cgroup/{controller}/gpuhook/{id}");
            for ordinal in 0..2 {
                // Absent where the allocation had no limits, or fewer partitions.
                let _ = std::fs::remove_dir(format!("{group}/{ordinal}"));
            }
            let _ = std::fs::remove_dir(group);
        }
    }
    Ok(())
}

/// Files of a machine that has stopped: nothing but what it is made of.
pub(super) fn files(site: &Site) -> Vec<String> {
    const KNOWN: [&str; 9] = [
        "backplane.db",
        "backplane.db-shm",
        "backplane.db-wal",
        "backplane.db.wake",
        "ledger.db",
        "ledger.db-shm",
        "ledger.db-wal",
        "ledger.db.lock",
        "enrolled",
    ];
    let mut violations = Vec::new();
    for folder in [site.folder.clone(), site.folder.join("agent")] {
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            let configured = ["toml", "pem", "key"].iter().any(|end| name.ends_with(end));
            if entry.path().is_file() && !configured && !KNOWN.contains(&name.as_str()) {
                violations.push(format!("{} is left", entry.path().display()));
            }
        }
    }
    violations
}

/// Descriptors and threads of this process.
pub(super) struct Leaks {
    descriptors: BTreeSet<String>,
    threads: usize,
}

/// Open descriptors with what they stand for.
fn descriptors() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/proc/self/fd");
    let open = entries.into_iter().flatten().flatten();
    open.filter_map(|entry| {
        let target = std::fs::read_link(entry.path()).ok()?;
        // The one that this very listing is read through is gone afterwards.
        (!target.starts_with("/proc"))
            .then(|| format!("{:?} {}", entry.file_name(), target.display()))
    })
    .collect()
}

fn entries(path: &str) -> usize {
    std::fs::read_dir(path).map_or(0, Iterator::count)
}

impl Leaks {
    pub(super) fn before() -> Self {
        // The runtime keeps one pair of sockets for signals, for as long as the process lives.
        let _ = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build();
        Self {
            descriptors: descriptors(),
            threads: entries("/proc/self/task"),
        }
    }

    /// What is more than before.
    pub(super) fn after(&self) -> Vec<String> {
        let mut violations = Vec::new();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        // Threads that were told to end need a moment to.
        while entries("/proc/self/task") > self.threads && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        let threads = entries("/proc/self/task");
        let leaked: Vec<_> = descriptors()
            .difference(&self.descriptors)
            .cloned()
            .collect();
        if !leaked.is_empty() {
            violations.push(format!("descriptors are left open: {leaked:?}"));
        }
        if threads > self.threads {
            violations.push(format!("{threads} threads run, {} did", self.threads));
        }
        violations
    }
}
