//! One physical GPU.

use uuid::Uuid;

use super::mig::Mig;
use crate::{board::Board, description::BoardSlot, pci::PciAddress};

/// Namespace of GPU UUIDs: the same description always has the same GPUs.
const GPUS: Uuid = Uuid::from_u128(0x5f0c_2b7e_93a1_5d44_8e17_0a6b_c3d2_0001);

/// One physical GPU.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) index: usize,
    pub(crate) pci: PciAddress,
    pub(crate) numa_node: u32,
    /// `GPU-<uuid>`, as NVML spells it.
    pub(crate) uuid: String,
    pub(crate) serial: String,
    pub(crate) board: Board,
    pub(crate) condition: Condition,
    pub(crate) processes: Vec<GpuProcess>,
    pub(crate) mig: Mig,
}

/// Whether the GPU answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    Healthy,
    /// Fallen off the bus (Xid 79).
    Lost,
}

/// A process with a compute context on the GPU; it lives as long as its connection.
#[derive(Debug, Clone)]
pub(crate) struct GpuProcess {
    pub(crate) connection: u64,
    pub(crate) pid: u32,
    pub(crate) memory_mib: u64,
    /// The compute instance that it is on.
    pub(crate) compute: Option<u64>,
}

impl Gpu {
    pub(crate) fn new(index: usize, slot: &BoardSlot, board: Board, host: &str) -> Self {
        let id = Uuid::new_v5(&GPUS, format!("{host}/{}", slot.pci).as_bytes());
        // Thirteen digits, as on the board's label.
        let serial = format!("{:013}", id.as_u128() % 10_000_000_000_000);
        Self {
            index,
            pci: slot.pci,
            numa_node: slot.numa_node,
            uuid: format!("GPU-{id}"),
            serial,
            board,
            condition: Condition::Healthy,
            processes: Vec::new(),
            mig: Mig::default(),
        }
    }
}
