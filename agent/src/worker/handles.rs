//! How an allocation is used: what a result tells its consumer.

use events::PartitionId;
use events::inventory::Backend;
use events::operation::{Consumer, Mode};
use events::outcome::{Allocated, Isolation, LimitsState, PartitionHandle};

use crate::limiter::Enforcement;
use crate::operation::allocation::Allocation;
use crate::operation::choice::offer;
use crate::operation::place::Place;
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
    let partitions = allocation.partitions_placed().enumerate();
    let handles = partitions.map(|(ordinal, (id, place))| {
        let seen = place.as_ref().and_then(|place| observed.at(place));
        let mut handle = handle(id, place.as_ref(), seen, allocation.spec.consumer);
        handle.ordinal = u32::try_from(ordinal).unwrap_or(u32::MAX);
        if let Some(Enforcement::Applied { cgroup_path }) = enforced.get(ordinal) {
            handle.cgroup_path = Some(cgroup_path.clone());
        }
        handle
    });
    let mode = offer(observed, &allocation.profile).map_or(Mode::Vgpu, |offer| offer.mode);
    let (isolation, isolation_note) = isolation(mode);
    Allocated {
        allocation: allocation.id,
        key: allocation.spec.key.clone(),
        gpu: observed.uuid.clone(),
        pci: observed.pci,
        backend: match mode {
            Mode::Mps => Backend::Mps,
            Mode::Timeslice => Backend::Timeslice,
            _ => observed.backend.unwrap_or(Backend::Mdev),
        },
        profile: allocation.profile.clone(),
        isolation,
        isolation_note,
        limits_state,
        limits_reason: reason,
        expires_at: allocation.expires_at,
        partitions: handles.collect(),
    }
}

/// What separates tenants in a mode, and what to know about it.
fn isolation(mode: Mode) -> (Isolation, Option<String>) {
    match mode {
        // NVIDIA/k8s-device-plugin#720: a tenant with several processes has the limit several times.
        Mode::Mps => (
            Isolation::Advisory,
            Some("limits are per client process and bind clients of the MPS daemon only; a fault of one client ends all".to_owned()),
        ),
        Mode::Timeslice => (
            Isolation::None,
            Some("tenants take turns; nothing limits their memory".to_owned()),
        ),
        // vGPUs and GPU instances have memory and schedules of their own, kept by driver or hardware.
        Mode::Vgpu | Mode::Mig | Mode::Whole | Mode::Any => (Isolation::Hardware, None),
    }
}

fn handle(
    id: PartitionId,
    place: Option<&Place>,
    seen: Option<&ObservedPartition>,
    consumer: Consumer,
) -> PartitionHandle {
    let access = seen.map(|seen| seen.access.clone()).unwrap_or_default();
    let mut environment = access.environment;
    environment.insert("GPUHOOK_PARTITION".to_owned(), id.to_string());
    if let Some(uuid) = &access.mig_uuid {
        environment.insert("CUDA_VISIBLE_DEVICES".to_owned(), uuid.clone());
        environment.insert("NVIDIA_VISIBLE_DEVICES".to_owned(), uuid.clone());
    }
    let machine = place.filter(|_| consumer == Consumer::Vm);
    let (libvirt_xml, device) = match machine {
        // The forms that libvirt's and QEMU's own documentation give.
        Some(Place::Mdev { uuid, .. }) => (
            Some(format!(
                "<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='{uuid}'/></source></hostdev>"
            )),
            Some(format!("vfio-pci,sysfsdev={}", access.sysfs_path)),
        ),
        // libvirt must not bind the function to vfio-pci: it would lose its vGPU (gpu facts §3.5).
        Some(Place::Vf(vf)) => {
            let (domain, bus, device, function) = vf.parts();
            (
                Some(format!(
                    "<hostdev mode='subsystem' type='pci' managed='no'><source><address domain='0x{domain:04x}' bus='0x{bus:02x}' slot='0x{device:02x}' function='0x{function:x}'/></source></hostdev>"
                )),
                Some(format!("vfio-pci,sysfsdev=/sys/bus/pci/devices/{vf}")),
            )
        }
        _ => (None, None),
    };
    PartitionHandle {
        id,
        ordinal: 0,
        sysfs_path: access.sysfs_path,
        vf: place.and_then(Place::function),
        mig_uuid: access.mig_uuid,
        slices: place.and_then(Place::slices),
        device_nodes: access.device_nodes,
        libvirt_xml,
        qemu_args: device
            .map(|device| vec!["-device".to_owned(), device])
            .unwrap_or_default(),
        environment,
        cgroup_path: None,
    }
}
