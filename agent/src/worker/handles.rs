//! How an allocation is used: what a result tells its consumer.

use std::collections::BTreeMap;

use events::inventory::Backend;
use events::operation::Consumer;
use events::outcome::{Allocated, Isolation, LimitsState, PartitionHandle};

use crate::limiter::Enforcement;
use crate::operation::allocation::Allocation;
use crate::partitioner::{ObservedGpu, ObservedPartition};

/// Describes an allocation from what was read back.
pub(super) fn allocated(
    allocation: &Allocation,
    observed: &ObservedGpu,
    enforced: &[Enforcement],
) -> Allocated {
    let reason = enforced.iter().find_map(|enforcement| match enforcement {
        Enforcement::NotApplied { reason } => Some(reason.clone()),
        Enforcement::Applied { .. } => None,
    });
    let limits_state = match (&reason, enforced.is_empty()) {
        (_, true) => LimitsState::NotRequested,
        (Some(_), false) => LimitsState::NotApplied,
        (None, false) => LimitsState::Applied,
    };
    let handles = allocation
        .partitions()
        .enumerate()
        .filter_map(|(ordinal, id)| {
            let seen = observed
                .partitions
                .iter()
                .find(|partition| partition.id == id)?;
            Some(handle(
                ordinal,
                seen,
                enforced.get(ordinal),
                allocation.spec.consumer,
            ))
        });
    Allocated {
        allocation: allocation.id,
        key: allocation.spec.key.clone(),
        gpu: observed.uuid.clone(),
        pci: observed.pci,
        backend: observed.backend.unwrap_or(Backend::Mdev),
        profile: allocation.profile.clone(),
        // vGPUs have frame buffers and schedules of their own, kept by the driver.
        isolation: Isolation::Hardware,
        isolation_note: None,
        limits_state,
        limits_reason: reason,
        expires_at: allocation.expires_at,
        partitions: handles.collect(),
    }
}

fn handle(
    ordinal: usize,
    seen: &ObservedPartition,
    enforced: Option<&Enforcement>,
    consumer: Consumer,
) -> PartitionHandle {
    let cgroup_path = match enforced {
        Some(Enforcement::Applied { cgroup_path }) => Some(cgroup_path.clone()),
        _ => None,
    };
    let mut environment = BTreeMap::new();
    environment.insert("GPUHOOK_PARTITION".to_owned(), seen.id.to_string());
    // facts: libvirt's mdev hostdev and QEMU's sysfsdev, the forms that its own documentation gives.
    let xml = format!(
        "<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='{}'/></source></hostdev>",
        seen.id
    );
    let vm = consumer == Consumer::Vm;
    PartitionHandle {
        id: seen.id,
        ordinal: u32::try_from(ordinal).unwrap_or(u32::MAX),
        sysfs_path: seen.sysfs_path.clone(),
        vf: None,
        mig_uuid: None,
        slices: None,
        device_nodes: Vec::new(),
        libvirt_xml: vm.then_some(xml),
        qemu_args: if vm {
            vec![
                "-device".to_owned(),
                format!("vfio-pci,sysfsdev={}", seen.sysfs_path),
            ]
        } else {
            Vec::new()
        },
        environment,
        cgroup_path,
    }
}
