//! The agent's ends, in memory: a GPU with the same-size rule, control groups, a queue, a clock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent::limiter::{Enforcement, GroupName, LimitError, Limiter};
use agent::operation::place::Place;
use agent::partitioner::{
    Access, Class, Observation, ObservedGpu, ObservedPartition, PartitionError, Partitioner, Slot,
};
use async_trait::async_trait;
use backplane::queue::Settled;
use backplane::{Clock, Message, Outgoing, QueueName, ReceiveError, Receiver, SendError, Sender};
use events::inventory::{Backend, ProfileInventory};
use events::{Code, GpuUuid, Limits, PartitionId, ProfileName};

pub(crate) const GPU: &str = "GPU-2a8b1d5e-0000-4000-8000-000000000001";

/// What is on the one GPU, shared by every agent that looks at it.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) partitions: BTreeMap<PartitionId, (ProfileName, Vec<String>)>,
    pub(crate) groups: BTreeMap<GroupName2, Limits>,
    pub(crate) epoch: u32,
    pub(crate) effects: u32,
    /// Errors for the coming creates, in order; `None` lets one pass.
    pub(crate) create_errors: VecDeque<Option<Code>>,
    /// As on a kernel that fails after it has made the device (field F19).
    pub(crate) fail_after_effect: bool,
    pub(crate) limit_error: Option<Code>,
    pub(crate) refuse_limits: bool,
    /// The driver does not answer.
    pub(crate) blind: bool,
    /// How often the host was looked at.
    pub(crate) looks: u32,
}

/// `GroupName` in an order.
pub(crate) type GroupName2 = (String, u32);

pub(crate) fn group(name: &GroupName) -> GroupName2 {
    (name.allocation.to_string(), name.ordinal)
}

/// One agent's hands on the shared state; they may stop for ever at one effect, as a crash does.
pub(crate) struct Hands {
    pub(crate) state: Arc<Mutex<State>>,
    stop_at: Option<Boundary>,
    count: Mutex<u32>,
    hangs: AtomicBool,
}

/// Where an agent stops: the effect's number, and the side of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Boundary {
    pub(crate) effect: u32,
    pub(crate) after: bool,
}

impl Hands {
    pub(crate) fn new(state: &Arc<Mutex<State>>, stop_at: Option<Boundary>) -> Arc<Self> {
        Arc::new(Self {
            state: Arc::clone(state),
            stop_at,
            count: Mutex::new(0),
            hangs: AtomicBool::new(false),
        })
    }

    /// Whether the agent has stopped for ever.
    pub(crate) fn hangs(&self) -> bool {
        self.hangs.load(Ordering::SeqCst)
    }

    /// Runs an effect between its two boundaries.
    fn effect<T>(&self, effect: impl FnOnce(&mut State) -> T) -> T {
        let number = {
            let mut count = self.count.lock().unwrap();
            *count += 1;
            *count
        };
        let stops = |after| {
            self.stop_at
                .is_some_and(|at| at.effect == number && at.after == after)
        };
        if stops(false) {
            self.stop();
        }
        let done = {
            let mut state = self.state.lock().unwrap();
            state.effects += 1;
            effect(&mut state)
        };
        if stops(true) {
            self.stop();
        }
        done
    }

    /// The thread never comes back; its process is as good as dead.
    fn stop(&self) {
        self.hangs.store(true, Ordering::SeqCst);
        loop {
            std::thread::park();
        }
    }
}

fn profile(text: &str, memory_mib: u64, state: &State) -> ProfileInventory {
    let sizes = |name: &ProfileName| if name.as_str() == "T4-8Q" { 8192 } else { 4096 };
    let held: u64 = state.partitions.values().map(|(name, _)| sizes(name)).sum();
    let other = state
        .partitions
        .values()
        .any(|(name, _)| sizes(name) != memory_mib);
    let max_instances = u32::try_from(16384 / memory_mib).unwrap();
    let used = u32::try_from(held / memory_mib).unwrap();
    let available = if other { 0 } else { max_instances - used };
    ProfileInventory::vgpu(text.parse().unwrap(), memory_mib, max_instances, available)
}

impl Partitioner for Hands {
    fn observe(&self) -> Result<Observation, PartitionError> {
        let gpu = self.observe_gpu(&GPU.parse().unwrap())?;
        let epoch = self.state.lock().unwrap().epoch;
        Ok(Observation {
            epoch: format!("boot-{epoch}"),
            driver_version: "535".to_owned(),
            gpus: vec![gpu],
        })
    }

    fn observe_gpu(&self, gpu: &GpuUuid) -> Result<ObservedGpu, PartitionError> {
        let mut state = self.state.lock().unwrap();
        state.looks += 1;
        if state.blind {
            return Err(PartitionError {
                code: Code::DriverError,
                class: Class::Retry,
                message: "the driver does not answer".to_owned(),
            });
        }
        let partitions =
            state
                .partitions
                .iter()
                .map(|(id, (profile, holders))| ObservedPartition {
                    place: Place::mdev(*id),
                    is_complete: true,
                    profile: profile.clone(),
                    holders: holders.clone(),
                    access: Access {
                        sysfs_path: format!("/sys/bus/mdev/devices/{id}"),
                        ..Access::default()
                    },
                });
        Ok(ObservedGpu {
            uuid: gpu.clone(),
            pci: "0000:3b:00.0".parse().unwrap(),
            index: 0,
            name: "Tesla T4".to_owned(),
            memory_mib: Some(15360),
            backend: Some(Backend::Mdev),
            unavailable: None,
            numa_node: None,
            profiles: vec![
                profile("T4-4Q", 4096, &state),
                profile("T4-8Q", 8192, &state),
            ],
            free_vfs: None,
            mig: None,
            holders: Vec::new(),
            partitions: partitions.collect(),
        })
    }

    fn create(&self, slot: &Slot, profile: &ProfileName) -> Result<(), PartitionError> {
        self.effect(|state| {
            let error = state.create_errors.pop_front().flatten();
            if error.is_none() || state.fail_after_effect {
                assert!(
                    state
                        .partitions
                        .insert(slot.place.uuid().unwrap(), (profile.clone(), Vec::new()))
                        .is_none(),
                    "created twice"
                );
            }
            let failed = |code| PartitionError {
                code,
                class: Class::Refuse,
                message: format!("create {}: told to fail", slot.place),
            };
            error.map_or(Ok(()), |code| Err(failed(code)))
        })
    }

    fn destroy(&self, slot: &Slot) -> Result<(), PartitionError> {
        self.effect(|state| {
            let id = slot.place.uuid().unwrap();
            assert!(state.partitions.remove(&id).is_some(), "removed twice");
            Ok(())
        })
    }

    fn set_mig(&self, gpu: &GpuUuid, _: bool) -> Result<(), PartitionError> {
        Err(PartitionError {
            code: Code::NotSupported,
            class: Class::Refuse,
            message: format!("GPU {gpu} has no MIG"),
        })
    }
}

impl Limiter for Hands {
    fn describe(&self) -> String {
        "fake".to_owned()
    }

    fn check(&self, _: &Limits, _: Option<u16>) -> Result<(), LimitError> {
        let refuses = self.state.lock().unwrap().refuse_limits;
        let error = LimitError {
            code: Code::LimitRefused,
            class: Class::Refuse,
            message: "this host has CPUs 0-1".to_owned(),
        };
        if refuses { Err(error) } else { Ok(()) }
    }

    fn ensure(
        &self,
        name: &GroupName,
        limits: &Limits,
        _: Option<u16>,
    ) -> Result<Enforcement, LimitError> {
        self.effect(|state| {
            if let Some(code) = state.limit_error {
                return Err(LimitError {
                    code,
                    class: Class::Retry,
                    message: "write memory.limit_in_bytes: told to fail".to_owned(),
                });
            }
            state.groups.insert(group(name), limits.clone());
            Ok(Enforcement::Applied {
                cgroup_path: format!("/gpuhook/{}/{}", name.allocation, name.ordinal),
            })
        })
    }

    fn drift(
        &self,
        name: &GroupName,
        limits: &Limits,
        _: Option<u16>,
    ) -> Result<Vec<String>, LimitError> {
        let holds = self.state.lock().unwrap().groups.get(&group(name)) == Some(limits);
        Ok(if holds {
            Vec::new()
        } else {
            vec!["limits differ".to_owned()]
        })
    }

    fn remove(&self, name: &GroupName) -> Result<(), LimitError> {
        self.state.lock().unwrap().groups.remove(&group(name));
        Ok(())
    }
}

/// Both ends of the queues: commands wait here, results arrive here.
#[derive(Default)]
pub(crate) struct Queues {
    commands: Mutex<VecDeque<String>>,
    pub(crate) acknowledged: Mutex<u32>,
    /// Delays of messages that were returned.
    pub(crate) put_off: Mutex<Vec<Duration>>,
    /// So many receipts have run out before they come back: the message is delivered again.
    pub(crate) lost: AtomicI64,
    /// The queue's own clock, Unix milliseconds.
    pub(crate) server_time_ms: AtomicI64,
    results: Mutex<Vec<Outgoing>>,
    changed: tokio::sync::Notify,
}

impl Queues {
    pub(crate) fn put(&self, body: String) {
        self.commands.lock().unwrap().push_back(body);
        self.changed.notify_waiters();
    }

    pub(crate) fn results(&self) -> Vec<Outgoing> {
        self.results.lock().unwrap().clone()
    }

    /// Waits for a change, at most a moment: who waits looks again.
    pub(crate) async fn change(&self) {
        let _ = tokio::time::timeout(Duration::from_millis(20), self.changed.notified()).await;
    }
}

#[async_trait]
impl Receiver for Queues {
    async fn receive(&self, wait: Duration) -> Result<Option<Message>, ReceiveError> {
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            let head = self.commands.lock().unwrap().pop_front();
            if let Some(body) = head {
                let (id, receipt, group) = ("1".to_owned(), body.clone(), GPU.to_owned());
                return Ok(Some(Message {
                    id,
                    receipt,
                    group,
                    body,
                    receive_count: 1,
                    server_time_ms: self.server_time_ms.load(Ordering::SeqCst),
                    sender: None,
                }));
            }
            if tokio::time::Instant::now() >= deadline {
                return Ok(None);
            }
            self.change().await;
        }
    }

    async fn ack(&self, receipt: &str) -> Result<Settled, ReceiveError> {
        if self.lost.fetch_sub(1, Ordering::SeqCst) > 0 {
            self.put(receipt.to_owned());
            return Ok(Settled::Lost);
        }
        *self.acknowledged.lock().unwrap() += 1;
        self.changed.notify_waiters();
        Ok(Settled::Done)
    }

    async fn nack(&self, _: &str, after: Duration) -> Result<Settled, ReceiveError> {
        self.put_off.lock().unwrap().push(after);
        Ok(Settled::Done)
    }
}

#[async_trait]
impl Sender for Queues {
    async fn send(&self, queue: &QueueName, message: Outgoing) -> Result<(), SendError> {
        assert_eq!(*queue, QueueName::Results);
        let mut results = self.results.lock().unwrap();
        // The queue's own deduplication.
        if !results.iter().any(|known| known.dedup == message.dedup) {
            results.push(message);
        }
        drop(results);
        self.changed.notify_waiters();
        Ok(())
    }
}

/// A clock that stands still until it is moved: the wall's time, and the time that has passed.
pub(crate) struct ManualClock {
    pub(crate) wall_ms: AtomicI64,
    pub(crate) elapsed_ms: AtomicI64,
}

impl Clock for ManualClock {
    fn now_ms(&self) -> i64 {
        self.wall_ms.load(Ordering::SeqCst)
    }

    fn elapsed_ms(&self) -> i64 {
        self.elapsed_ms.load(Ordering::SeqCst)
    }
}
