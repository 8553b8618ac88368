//! What a host reports: T4 boards as published, and results of operations.

use events::inventory::{
    Backend, GpuInventory, HostInventory, PartitionInventory, PartitionOwner, ProfileInventory,
};
use events::outcome::{Allocated, Isolation, LimitsState, Released};
use events::result::{EventData, EventKind, HostEvent, ResultEvent};
use events::{AllocationId, HostName, Operation, OperationId, Outcome, TenantName};

const T4: [(&str, u64, u32); 5] = [
    ("T4-1Q", 1024, 16),
    ("T4-2Q", 2048, 8),
    ("T4-4Q", 4096, 4),
    ("T4-8Q", 8192, 2),
    ("T4-16Q", 16384, 1),
];

/// UUID of the GPU number `index`.
pub(crate) fn uuid(index: u8) -> String {
    format!("GPU-00000000-0000-4000-8000-{index:012}")
}

/// A host with two T4s.
pub(crate) fn inventory(host: &HostName) -> HostInventory {
    let gpu = |index: u8| GpuInventory {
        uuid: uuid(index).parse().unwrap(),
        pci: format!("0000:{:02x}:00.0", 0x3b + index).parse().unwrap(),
        index,
        name: "Tesla T4".to_owned(),
        memory_mib: Some(15360),
        backend: Some(Backend::Mdev),
        unavailable: None,
        numa_node: None,
        profiles: T4
            .iter()
            .map(|(name, memory_mib, max)| {
                ProfileInventory::vgpu(name.parse().unwrap(), *memory_mib, *max, *max)
            })
            .collect(),
        partitions: Vec::new(),
    };
    HostInventory {
        host: host.clone(),
        taken_at_ms: 1,
        epoch: "e".to_owned(),
        driver_version: "535.129.03".to_owned(),
        gpus: vec![gpu(0), gpu(1)],
    }
}

/// Puts partitions of an allocation on the first GPU.
pub(crate) fn put(
    inventory: &mut HostInventory,
    tenant: &str,
    key: &str,
    profile: &str,
    count: u32,
) {
    let tenant: TenantName = tenant.parse().unwrap();
    let allocation = AllocationId::of(&tenant, &key.parse().unwrap());
    for ordinal in 0..count {
        inventory.gpus[0].partitions.push(PartitionInventory {
            owner: Some(PartitionOwner {
                tenant: tenant.clone(),
                allocation,
            }),
            ..PartitionInventory::foreign(allocation.partition(ordinal), profile.parse().unwrap())
        });
    }
}

/// An event about an operation, or about the host alone.
pub(crate) fn event(
    host: &HostName,
    sequence: u64,
    kind: EventKind,
    subject: String,
    tenant: Option<TenantName>,
    data: EventData,
) -> HostEvent {
    let event = ResultEvent {
        specversion: "1.0".to_owned(),
        id: format!("{subject}.{sequence}"),
        source: format!("/hosts/{host}"),
        kind,
        subject,
        time: "2023-11-14T22:13:20Z".to_owned(),
        datacontenttype: "application/json".to_owned(),
        sequence,
        tenant,
        data,
    };
    HostEvent::new(host.clone(), event).unwrap()
}

/// Success of an operation, as its host would report it.
pub(crate) fn success(tenant: &TenantName, operation: &Operation) -> Outcome {
    let allocation = operation.allocation(tenant).unwrap();
    match operation {
        Operation::Allocate(allocate) => Outcome::Allocated(Allocated {
            allocation,
            key: allocate.key.clone(),
            gpu: uuid(0).parse().unwrap(),
            pci: "0000:3b:00.0".parse().unwrap(),
            backend: Backend::Mdev,
            profile: allocate.profile.clone().unwrap(),
            isolation: Isolation::Hardware,
            isolation_note: None,
            limits_state: LimitsState::NotRequested,
            limits_reason: None,
            expires_at: None,
            partitions: Vec::new(),
        }),
        _ => Outcome::Released(Released {
            allocation,
            existed: true,
        }),
    }
}

/// Data of a final event.
pub(crate) fn ended(op_id: OperationId, outcome: Outcome, inventory: HostInventory) -> EventData {
    EventData {
        op_id: Some(op_id),
        outcome: Some(outcome),
        inventory: Some(inventory),
        ..EventData::default()
    }
}
