//! What travels over `sim.sock`: one JSON object a line each way, answered in order. [`Request`] and [`Answer`] are the
//! whole language. A connection is an open handle: what it holds (an NVML session, a compute context, a VM opened with
//! [`Lifetime::Connection`]) is released when it closes, however its process ends.
//!
//! ```text
//! {"attribute_write":{"path":"/sys/.../create","bytes":"<base64>"}}   {"ok":true} | {"errno":5}
//! {"nvml":{"function":"nvmlDeviceGetName","query":{"device":0}}}      {"nvml":{"code":0,"value":{"device":{..}}}}
//! {"state":{}}                                                        {"state":{..}}
//! {"state":{"after":17,"timeout_ms":1000}}                            the same, once it is newer than 17
//! {"fault":{"write":{"path_suffix":"create","errno":5}}}              {"ok":true}
//! {"release":{}}                                                      {"ok":true}
//! {"vm_open":{"uuid":"..","vm_name":"vm1"}}                           {"ok":true} | {"errno":16}
//! {"vm_close":{"uuid":".."}}                                          {"ok":true} | {"errno":19}
//! {"process_open":{"gpu":"0","memory_mib":512}}                       {"ok":true}
//! {"reboot":{}}                                                       {"ok":true}
//! anything else                                                       {"error":"a sentence"}
//! ```

use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use crate::facts::{
    ComputeInstanceFacts, ComputeProfileFacts, DeviceFacts, GpuInstanceFacts, HostFacts,
    MigDeviceFacts, MigFacts, ProcessFacts, VgpuInstanceFacts, VgpuTypeFacts,
};
pub use crate::fault::{Effect, Fault, Window};
pub use crate::state::State;

/// Longest request or answer in bytes. An attribute takes at most a page; the state of a full host is the longest answer.
pub const MAX_LINE: u64 = 1 << 20;

/// What a client asks for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// A write to a kernel attribute: one `open`, one `write`, one `close`. Returns when the kernel's write would.
    AttributeWrite {
        /// Absolute path in the simulated host.
        path: String,
        /// Standard base64 of what is written.
        bytes: String,
    },
    /// One NVML call.
    Nvml(NvmlCall),
    /// The truth, for tests; with `after`, once it is newer than that generation or `timeout_ms` have passed.
    State {
        /// Generation that the client has seen.
        #[serde(default)]
        after: Option<u64>,
        /// How long to wait for a newer one, in ms, 60 s at most.
        #[serde(default)]
        timeout_ms: u64,
    },
    /// Arms a fault.
    Fault(Fault),
    /// Lets every held write go on, and drops the faults that hold.
    Release {},
    /// A VM opens an mdev.
    VmOpen {
        /// The mdev.
        uuid: Uuid,
        /// What `vm_name` reads from now on.
        #[serde(default)]
        vm_name: Option<String>,
        /// When the VM ends.
        #[serde(default)]
        lifetime: Lifetime,
    },
    /// The VM closes it.
    VmClose {
        /// The mdev.
        uuid: Uuid,
    },
    /// The client's process creates a compute context on a GPU.
    ProcessOpen {
        /// UUID of a GPU or MIG device, PCI address or index of a GPU.
        gpu: String,
        /// Frame buffer that it uses.
        memory_mib: u64,
    },
    /// The host restarts: no mdev, VM or session is left, and there is a new boot id.
    Reboot {},
}

/// When an opened device closes by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lifetime {
    /// At `vm_close` or reboot only.
    #[default]
    Host,
    /// When the connection that opened it closes.
    Connection,
}

/// What the simulator answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Done.
    Ok(bool),
    /// The kernel's refusal.
    Errno(i32),
    /// NVML's answer.
    Nvml(NvmlAnswer),
    /// The truth.
    State(Box<State>),
    /// The request makes no sense; a sentence.
    Error(String),
}

/// One NVML call: which C function (for faults and counters) and what it needs to know.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NvmlCall {
    /// Symbol as exported, `nvmlDeviceGetMemoryInfo_v2`.
    pub function: String,
    /// What it asks.
    pub query: Query,
}

/// What an NVML call needs to know. Answers are whole descriptions; the library picks what its caller asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Query {
    /// Opens the driver: the connection is a client from now on.
    Init,
    /// Closes the driver.
    Shutdown,
    /// The driver and the number of GPUs.
    Host,
    /// The GPU with this index.
    Device(u32),
    /// The MIG device of this compute instance.
    MigDevice(u64),
    /// A GPU instance.
    GpuInstance(u64),
    /// Changes what a GPU is cut into.
    Cut(Cut),
    /// The index of the GPU, or the MIG device, with this UUID.
    DeviceByUuid(String),
    /// The index of the GPU with this serial number.
    DeviceBySerial(String),
    /// The index of the GPU at this PCI address, in any spelling.
    DeviceByPci(String),
    /// A vGPU type.
    VgpuType(u32),
    /// An active vGPU.
    VgpuInstance(u32),
    /// Nothing: the call is only counted, delayed or failed by a fault.
    Nothing,
}

/// A change of MIG mode or instances. GPUs are named by index, instances by handle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// Turns MIG on or off.
    Mode {
        /// The GPU.
        gpu: u32,
        /// On.
        on: bool,
    },
    /// Makes a GPU instance.
    CreateInstance {
        /// The GPU.
        gpu: u32,
        /// Its profile's id.
        profile: u32,
        /// First memory slice and number; absent leaves it to the driver.
        placement: Option<(u32, u32)>,
    },
    /// Removes a GPU instance.
    DestroyInstance(u64),
    /// Makes a compute instance.
    CreateCompute {
        /// The GPU instance.
        instance: u64,
        /// Its profile's id.
        profile: u32,
        /// First compute slice; absent leaves it to the driver.
        start: Option<u32>,
    },
    /// Removes a compute instance.
    DestroyCompute(u64),
}

/// NVML's answer to one call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NvmlAnswer {
    /// `nvmlReturn_t`.
    pub code: u32,
    /// With code 0: what was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<NvmlValue>,
}

/// What an NVML call learns.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NvmlValue {
    /// The driver and the number of GPUs.
    Host(HostFacts),
    /// A GPU.
    Device(Box<DeviceFacts>),
    /// A GPU instance.
    GpuInstance(Box<GpuInstanceFacts>),
    /// The handle of what was made.
    Handle(u64),
    /// The activation status of a change of MIG mode.
    Activation(u32),
    /// A MIG device, by its compute instance.
    MigDevice(u64),
    /// A GPU's index.
    Index(u32),
    /// A vGPU type.
    VgpuType(VgpuTypeFacts),
    /// An active vGPU.
    VgpuInstance(VgpuInstanceFacts),
}
