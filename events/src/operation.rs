//! What can be asked for: desired-state, idempotent operations.

mod check;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::gpu::GpuSelector;
use crate::id::AllocationId;
use crate::json::{object, optional_object};
use crate::limits::Limits;
use crate::name::{AllocationKey, HostName, PoolName, ProfileName, TenantName};
pub use crate::tuning::Tune;

use self::check::{check_allocate, check_limits, check_partition, is_lease};

/// One operation, tagged by `op` on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Operation {
    /// The allocation called `key` exists.
    Allocate(Allocate),
    /// An allocation's lease is extended.
    Renew(Renew),
    /// An allocation ends.
    Release(Release),
    /// An allocation gets another profile or other limits. Not executed yet: `not_supported`.
    Resize(Resize),
    /// The whole layout of one GPU.
    Partition(Partition),
    /// A GPU's settings. Not executed yet: `not_supported`.
    Tune(Tune),
    /// One GPU is reset. Not executed yet: `not_supported`.
    Reset(Reset),
    /// Inventory and health of a host.
    Inspect(Inspect),
}

/// Where an operation is to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Target {
    /// A named host, and one GPU of it when given.
    Host(HostTarget),
    /// Any host of a pool.
    Pool(PoolTarget),
}

/// `{host, gpu?}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostTarget {
    /// The host.
    pub host: HostName,
    /// One GPU: UUID, PCI address in any spelling, or index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuSelector>,
}

/// `{pool}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolTarget {
    /// The pool.
    pub pool: PoolName,
}

/// How a GPU is shared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// vGPU: mediated devices or vendor VFIO.
    Vgpu,
    /// Multi-Instance GPU.
    Mig,
    /// CUDA MPS: advisory limits.
    Mps,
    /// CUDA time slicing: no isolation.
    Timeslice,
    /// The whole GPU for one allocation.
    Whole,
    /// vGPU or MIG, whichever fits: never a mode without isolation.
    #[default]
    Any,
}

/// What will use the partition; decides which `use` hints a result carries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Consumer {
    /// A virtual machine.
    #[default]
    Vm,
    /// A container.
    Container,
    /// A plain process.
    Process,
}

/// `allocate`: same key and spec mean the same allocation; another spec is refused, `use_resize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Allocate {
    /// The caller's name for it, unique within the tenant.
    pub key: AllocationKey,
    /// Where; the source's `default_target` when absent.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "optional_object"
    )]
    pub target: Option<Target>,
    /// A vendor profile, such as `T4-4Q`. Either this or `memory_mib`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileName>,
    /// At least this much GPU memory, in MiB: the smallest profile that holds it is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub memory_mib: Option<u64>,
    /// Share of the GPU's compute in percent, 1 to 100; honoured by modes that can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub compute_percent: Option<u8>,
    /// How the GPU is shared.
    #[serde(default)]
    pub mode: Mode,
    /// Number of partitions, all or nothing, 1 to 64.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub count: u32,
    /// Host limits of each partition's control group.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "optional_object"
    )]
    pub limits: Option<Limits>,
    /// Lease in seconds, 1 to 31,536,000; without it the allocation lives until released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 31_536_000))]
    pub ttl_s: Option<u64>,
    /// What will use it.
    #[serde(default)]
    pub consumer: Consumer,
}

fn one() -> u32 {
    1
}

/// `renew`: the lease ends `ttl_s` from now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Renew {
    /// The allocation by key; either this or `id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<AllocationKey>,
    /// The allocation by id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<AllocationId>,
    /// New lease in seconds, 1 to 31,536,000.
    #[schemars(range(min = 1, max = 31_536_000))]
    pub ttl_s: u64,
}

/// `release`: the allocation ends. Releasing the unknown succeeds and says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// The allocation by key; either this or `id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<AllocationKey>,
    /// The allocation by id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<AllocationId>,
}

/// What to do where a change would disturb a user of the partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum IfBusy {
    /// Change nothing and say who holds it.
    #[default]
    Refuse,
    /// Wait for holders to leave, up to a deadline.
    Drain,
    /// Change it under its users.
    Force,
}

/// `resize`: another profile or other limits for a living allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// The allocation.
    pub key: AllocationKey,
    /// The new profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileName>,
    /// The new limits.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "optional_object"
    )]
    pub limits: Option<Limits>,
    /// When the partition is in use.
    #[serde(default)]
    pub if_busy: IfBusy,
    /// How long `drain` waits for whoever holds it, in seconds; an hour without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub deadline_s: Option<u32>,
}

/// `partition`: the whole layout of one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Partition {
    /// The host and its GPU.
    #[serde(deserialize_with = "object")]
    pub target: HostTarget,
    /// How the GPU is shared.
    pub mode: Mode,
    /// Profiles and how many of each.
    pub layout: Vec<LayoutEntry>,
    /// When instances are in use.
    #[serde(default)]
    pub if_busy: IfBusy,
    /// How long `drain` waits for allocations in the way to be released, in seconds; an hour without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub deadline_s: Option<u32>,
    /// Answer the plan and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// One profile of a layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LayoutEntry {
    /// The profile.
    pub profile: ProfileName,
    /// How many.
    pub count: u32,
}

/// `reset`: one GPU, only when nothing holds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reset {
    /// The host and its GPU.
    #[serde(deserialize_with = "object")]
    pub target: HostTarget,
}

/// `inspect`: inventory, health and drift of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Inspect {
    /// The host.
    #[serde(deserialize_with = "object")]
    pub target: HostTarget,
}

/// One thing wrong with an operation; `pointer` is a JSON pointer into it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// Where, such as `/limits/swap_mib`; empty for the whole.
    pub pointer: String,
    /// What, for a person.
    pub detail: String,
}

impl Operation {
    /// Reads one operation from untrusted JSON.
    ///
    /// # Errors
    /// All problems found; the shape alone yields one, the ranges yield each of theirs.
    pub fn from_value(value: Value) -> Result<Self, Vec<Problem>> {
        let operation = shape(value).map_err(|problem| vec![problem])?;
        let problems = operation.problems();
        if problems.is_empty() {
            Ok(operation)
        } else {
            Err(problems)
        }
    }

    /// The tag on the wire, also the Cedar action and the agent's allow-list entry.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Allocate(_) => "allocate",
            Self::Renew(_) => "renew",
            Self::Release(_) => "release",
            Self::Resize(_) => "resize",
            Self::Partition(_) => "partition",
            Self::Tune(_) => "tune",
            Self::Reset(_) => "reset",
            Self::Inspect(_) => "inspect",
        }
    }

    /// The allocation it is about, when it is about one.
    #[must_use]
    pub fn allocation(&self, tenant: &TenantName) -> Option<AllocationId> {
        let by_key = |key: &AllocationKey| AllocationId::of(tenant, key);
        match self {
            Self::Allocate(allocate) => Some(by_key(&allocate.key)),
            Self::Resize(resize) => Some(by_key(&resize.key)),
            Self::Renew(Renew { key, id, .. }) | Self::Release(Release { key, id }) => {
                id.or(key.as_ref().map(by_key))
            }
            Self::Partition(_) | Self::Tune(_) | Self::Reset(_) | Self::Inspect(_) => None,
        }
    }

    /// The GPU that the operation is about as a whole.
    #[must_use]
    pub fn gpu(&self) -> Option<&GpuSelector> {
        match self {
            Self::Partition(Partition { target, .. })
            | Self::Tune(Tune { target, .. })
            | Self::Reset(Reset { target }) => target.gpu.as_ref(),
            Self::Allocate(_)
            | Self::Renew(_)
            | Self::Release(_)
            | Self::Resize(_)
            | Self::Inspect(_) => None,
        }
    }

    /// The allocation's key, where the operation names it.
    #[must_use]
    pub fn key(&self) -> Option<&AllocationKey> {
        match self {
            Self::Allocate(Allocate { key, .. }) | Self::Resize(Resize { key, .. }) => Some(key),
            Self::Renew(Renew { key, .. }) | Self::Release(Release { key, .. }) => key.as_ref(),
            Self::Partition(_) | Self::Tune(_) | Self::Reset(_) | Self::Inspect(_) => None,
        }
    }

    /// Every rule that the types alone do not hold.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        let mut check = |good: bool, pointer: &str, detail: &str| {
            if !good {
                found.push(Problem {
                    pointer: pointer.to_owned(),
                    detail: detail.to_owned(),
                });
            }
        };
        match self {
            Self::Allocate(allocate) => check_allocate(allocate, &mut check),
            Self::Renew(renew) => {
                check(
                    renew.key.is_some() != renew.id.is_some(),
                    "/key",
                    "give either key or id",
                );
                check(
                    is_lease(renew.ttl_s),
                    "/ttl_s",
                    "must be from 1 to 31536000",
                );
            }
            Self::Release(release) => check(
                release.key.is_some() != release.id.is_some(),
                "/key",
                "give either key or id",
            ),
            Self::Resize(resize) => {
                check(
                    resize.profile.is_some() || resize.limits.is_some(),
                    "/profile",
                    "give profile, limits or both",
                );
                if let Some(limits) = &resize.limits {
                    check_limits(limits, &mut check);
                }
            }
            Self::Tune(tune) => {
                for (pointer, detail) in tune.problems() {
                    check(false, pointer, detail);
                }
            }
            Self::Partition(partition) => check_partition(partition, &mut check),
            Self::Reset(reset) => check(
                reset.target.gpu.is_some(),
                "/target/gpu",
                "name the GPU: one GPU is reset",
            ),
            Self::Inspect(_) => {}
        }
        found
    }
}

/// Reads an operation's own type, so that what does not fit is named by its place (field F26): through
/// the tagged enum every place would be the whole.
fn shape(value: Value) -> Result<Operation, Problem> {
    let Value::Object(mut fields) = value else {
        return Err(Problem {
            pointer: String::new(),
            detail: "an operation must be a JSON object".to_owned(),
        });
    };
    let Some(Value::String(name)) = fields.remove("op") else {
        return Err(Problem {
            pointer: "/op".to_owned(),
            detail: "must be the name of an operation".to_owned(),
        });
    };
    let fields = Value::Object(fields);
    match name.as_str() {
        "allocate" => at(fields).map(Operation::Allocate),
        "renew" => at(fields).map(Operation::Renew),
        "release" => at(fields).map(Operation::Release),
        "resize" => at(fields).map(Operation::Resize),
        "partition" => at(fields).map(Operation::Partition),
        "tune" => at(fields).map(Operation::Tune),
        "reset" => at(fields).map(Operation::Reset),
        "inspect" => at(fields).map(Operation::Inspect),
        _ => Err(Problem {
            pointer: "/op".to_owned(),
            detail: "is not an operation; there are allocate, renew, release, resize, partition, tune, reset and inspect".to_owned(),
        }),
    }
}

fn at<T: serde::de::DeserializeOwned>(fields: Value) -> Result<T, Problem> {
    use serde_path_to_error::Segment;
    serde_path_to_error::deserialize(fields).map_err(|error| {
        let pointer = error.path().iter().map(|segment| match segment {
            Segment::Seq { index } => format!("/{index}"),
            Segment::Map { key } => format!("/{}", key.replace('~', "~0").replace('/', "~1")),
            Segment::Enum { variant } => format!("/{variant}"),
            Segment::Unknown => "/?".to_owned(),
        });
        let detail = error.inner().to_string();
        // serde tells what is missing in the object that lacks it.
        let missing = detail
            .strip_prefix("missing field `")
            .and_then(|rest| rest.strip_suffix('`'))
            .map(|name| format!("/{name}"));
        Problem {
            pointer: pointer.chain(missing).collect(),
            detail,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Operation, Vec<Problem>> {
        Operation::from_value(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn allocate_reads_with_its_defaults() {
        let Ok(Operation::Allocate(allocate)) =
            read(r#"{"op":"allocate","key":"k","profile":"T4-4Q"}"#)
        else {
            panic!()
        };
        assert_eq!(
            (allocate.count, allocate.mode, allocate.consumer),
            (1, Mode::Any, Consumer::Vm)
        );
    }

    #[test]
    fn bad_operations_name_the_field() {
        for (text, pointer) in [
            (r#"{"op":"allocate","key":"k"}"#, "/profile"),
            (
                r#"{"op":"allocate","key":"k","profile":"T4-4Q","memory_mib":1}"#,
                "/profile",
            ),
            (
                r#"{"op":"allocate","key":"k","profile":"T4-4Q","count":0}"#,
                "/count",
            ),
            (
                r#"{"op":"allocate","key":"k","profile":"T4-4Q","ttl_s":0}"#,
                "/ttl_s",
            ),
            (
                r#"{"op":"allocate","key":"k","profile":"T4-4Q","limits":{"swap_mib":1}}"#,
                "/limits/swap_mib",
            ),
            (r#"{"op":"release"}"#, "/key"),
            (
                r#"{"op":"release","key":"k","id":"2a8b1d5e-0000-4000-8000-000000000001"}"#,
                "/key",
            ),
        ] {
            assert_eq!(read(text).unwrap_err()[0].pointer, pointer, "{text}");
        }
    }

    /// webhook §10 rows 37, 39-44: a derived struct would take an array positionally.
    #[test]
    fn wrong_shapes_are_refused() {
        for text in [
            "[]",
            "null",
            "1",
            r#"["allocate",{}]"#,
            r#"{"op":"format_disk"}"#,
            r#"{"key":"k"}"#,
            r#"{"op":"allocate","key":"k","profile":"T4-4Q","limits":[1,2]}"#,
            r#"{"op":"allocate","key":"k","profile":"T4-4Q","target":["h"]}"#,
            r#"{"op":"allocate","key":"k","profile":"T4-4Q","target":{"host":"h","pool":"p"}}"#,
            r#"{"op":"allocate","key":"k","profile":"T4-4Q","extra":1}"#,
            r#"{"op":"allocate","key":"k","profile":"T4-4Q","count":1.0}"#,
            r#"{"op":"allocate","key":"k","profile":"T4-4Q","count":"1"}"#,
            r#"{"op":"allocate","key":null,"profile":"T4-4Q"}"#,
            r#"{"op":"inspect","target":["h"]}"#,
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn operations_round_trip() {
        for text in [
            r#"{"op":"allocate","key":"k","target":{"host":"h","gpu":"GPU-2a8b1d5e-0000-4000-8000-000000000001"},"profile":"T4-4Q","mode":"any","count":2,"limits":{"memory_mib":4096,"cpus":1.5,"cpuset":"0-1"},"ttl_s":60,"consumer":"vm"}"#,
            r#"{"op":"renew","key":"k","ttl_s":60}"#,
            r#"{"op":"inspect","target":{"host":"h"}}"#,
        ] {
            assert_eq!(serde_json::to_string(&read(text).unwrap()).unwrap(), text);
        }
    }
}
