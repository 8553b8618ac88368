//! Inventories to place on: T4 boards as published, with partitions put on them by hand.

use events::AllocationId;
use events::inventory::{
    Backend, GpuInventory, HostInventory, PartitionInventory, PartitionOwner, ProfileInventory,
    Reservation,
};
use events::operation::{Allocate, Operation};

/// Name, MiB, how many on an empty board.
pub(crate) const T4: [(&str, u64, u32); 6] = [
    ("T4-1B", 1024, 16),
    ("T4-1Q", 1024, 16),
    ("T4-2Q", 2048, 8),
    ("T4-4Q", 4096, 4),
    ("T4-8Q", 8192, 2),
    ("T4-16Q", 16384, 1),
];

/// An empty T4.
pub(crate) fn t4(index: u8) -> GpuInventory {
    let profiles = T4.iter().map(|(name, memory_mib, max)| {
        ProfileInventory::vgpu(name.parse().unwrap(), *memory_mib, *max, *max)
    });
    GpuInventory {
        uuid: format!("GPU-00000000-0000-4000-8000-{index:012}")
            .parse()
            .unwrap(),
        pci: format!("0000:{:02x}:00.0", 0x3b + index).parse().unwrap(),
        index,
        name: "Tesla T4".to_owned(),
        memory_mib: Some(15360),
        backend: Some(Backend::Mdev),
        unavailable: None,
        numa_node: None,
        profiles: profiles.collect(),
        partitions: Vec::new(),
    }
}

/// A host with these GPUs.
pub(crate) fn host(name: &str, gpus: Vec<GpuInventory>) -> HostInventory {
    HostInventory {
        host: name.parse().unwrap(),
        taken_at_ms: 0,
        epoch: "e".to_owned(),
        driver_version: "535.0".to_owned(),
        gpus,
    }
}

/// An allocation id from a number.
pub(crate) fn allocation(number: u32) -> AllocationId {
    AllocationId::of(
        &"acme".parse().unwrap(),
        &format!("k{number}").parse().unwrap(),
    )
}

/// Puts one partition on a GPU and lets the driver recount, as the kernel does: a shared counter,
/// and nothing of another size.
pub(crate) fn put(gpu: &mut GpuInventory, profile: &str, owner: Option<u32>) {
    let ordinal = u32::try_from(gpu.partitions.len()).unwrap();
    let id = allocation(owner.unwrap_or(u32::MAX)).partition(ordinal + 64 * u32::from(gpu.index));
    gpu.partitions.push(PartitionInventory {
        owner: owner.map(|owner| PartitionOwner {
            tenant: "acme".parse().unwrap(),
            allocation: allocation(owner),
        }),
        ..PartitionInventory::foreign(id, profile.parse().unwrap())
    });
    let size = T4
        .iter()
        .find(|(name, ..)| *name == profile)
        .map(|(_, size, _)| *size);
    let held = u32::try_from(gpu.partitions.len()).unwrap();
    for offered in &mut gpu.profiles {
        let same = Some(offered.memory_mib) == size;
        offered.available = if same {
            offered.max_instances.saturating_sub(held)
        } else {
            0
        };
    }
}

/// A promise.
pub(crate) fn reservation(
    number: u32,
    gpu: &GpuInventory,
    profile: &str,
    count: u32,
) -> Reservation {
    Reservation {
        allocation: allocation(number),
        gpu: gpu.uuid.clone(),
        profile: profile.parse().unwrap(),
        count,
    }
}

/// An `allocate` from JSON without `op` and `key`.
pub(crate) fn request(fields: &str) -> Allocate {
    let text = format!(r#"{{"op":"allocate","key":"k",{fields}}}"#);
    match serde_json::from_str(&text).unwrap() {
        Operation::Allocate(allocate) => allocate,
        other => panic!("{other:?}"),
    }
}
