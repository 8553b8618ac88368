//! The files that do not change while the host is up: identity of the machine, its driver and its GPUs.

use std::fs;

use super::{Tree, TreeError, below_sys, device};
use crate::machine::{Gpu, Machine};

impl Tree {
    /// What belongs to no GPU.
    pub(super) fn render_host(&self, machine: &Machine, boot_id: &str) -> Result<(), TreeError> {
        let description = &machine.description;
        let version = &description.driver_version;
        self.update_boot_id(boot_id)?;
        self.file(
            "proc/sys/kernel/osrelease",
            0o444,
            &format!("{}\n", description.kernel_release),
        )?;
        self.file(
            "proc/driver/nvidia/version",
            0o444,
            &format!(
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Thu Jan  1 00:00:00 UTC 1970\nGCC version:  gcc version 12.2.0\n"
            ),
        )?;
        self.file("sys/module/nvidia/version", 0o444, &format!("{version}\n"))?;
        self.file("sys/module/nvidia/initstate", 0o444, "live\n")?;
        self.directory("sys/bus/pci/drivers/nvidia")?;
        self.file("dev/nvidiactl", 0o666, "")?;
        self.file("dev/vfio/vfio", 0o600, "")?;
        if machine.has_vgpu() {
            self.directory("sys/bus/mdev/devices")?;
            self.directory("sys/bus/mdev/drivers/nvidia-vgpu-vfio")?;
            self.directory("sys/class/mdev_bus")?;
            self.file("sys/module/nvidia_vgpu_vfio/initstate", 0o444, "live\n")?;
        }
        let nodes = machine.gpus.iter().map(|gpu| gpu.numa_node).chain([0]);
        for node in nodes {
            self.file(
                &format!("sys/devices/system/node/node{node}/cpulist"),
                0o444,
                &cpulist(node),
            )?;
        }
        self.file("sys/devices/system/cpu/online", 0o444, &online())
    }

    /// One GPU's PCI device with its types, `/proc` entry and device node.
    pub(super) fn render_gpu(&self, machine: &Machine, gpu: &Gpu) -> Result<(), TreeError> {
        let (pci, board, path, real) = (gpu.pci, &gpu.board, device(gpu.pci), below_sys(gpu.pci));
        let attribute = |name: &str, value: String| {
            self.file(&format!("{path}/{name}"), 0o444, &format!("{value}\n"))
        };
        attribute("vendor", format!("{:#06x}", board.pci_vendor))?;
        attribute("device", format!("{:#06x}", board.pci_device))?;
        attribute(
            "subsystem_vendor",
            format!("{:#06x}", board.pci_subsystem_vendor),
        )?;
        attribute(
            "subsystem_device",
            format!("{:#06x}", board.pci_subsystem_device),
        )?;
        attribute("class", format!("{:#08x}", board.pci_class))?;
        attribute("revision", format!("{:#04x}", board.pci_revision))?;
        attribute("numa_node", gpu.numa_node.to_string())?;
        attribute(
            "local_cpulist",
            cpulist(gpu.numa_node).trim_end().to_owned(),
        )?;
        self.file(
            &format!("{path}/uevent"),
            0o644,
            &format!(
                "DRIVER=nvidia\nPCI_CLASS={:X}\nPCI_ID={:04X}:{:04X}\nPCI_SUBSYS_ID={:04X}:{:04X}\nPCI_SLOT_NAME={pci}\n",
                board.pci_class, board.pci_vendor, board.pci_device, board.pci_subsystem_vendor, board.pci_subsystem_device
            ),
        )?;
        self.link(&format!("{path}/driver"), "../../../bus/pci/drivers/nvidia")?;
        self.link(&format!("{path}/subsystem"), "../../../bus/pci")?;
        self.link(
            &format!("{path}/iommu_group"),
            &format!("../../../kernel/iommu_groups/{}", gpu.index + 1),
        )?;
        self.link(
            &format!("sys/kernel/iommu_groups/{}/devices/{pci}", gpu.index + 1),
            &format!("../../../../{real}"),
        )?;
        self.link(
            &format!("sys/bus/pci/devices/{pci}"),
            &format!("../../../{real}"),
        )?;
        self.link(
            &format!("sys/bus/pci/drivers/nvidia/{pci}"),
            &format!("../../../../{real}"),
        )?;

        self.file(
            &format!("proc/driver/nvidia/gpus/{pci}/information"),
            0o444,
            &format!(
                "Model: \t\t {}\nIRQ:   \t\t {}\nGPU UUID: \t {}\nVideo BIOS: \t {}\nBus Type: \t PCIe\nDMA Size: \t 47 bits\nDMA Mask: \t 0x7fffffffffff\nBus Location: \t {pci}\nDevice Minor: \t {}\nGPU Excluded:\t No\n",
                board.product,
                100 + gpu.index,
                gpu.uuid,
                board.vbios,
                gpu.index
            ),
        )?;
        self.file(&format!("dev/nvidia{}", gpu.index), 0o666, "")?;

        if machine.has_vgpu() {
            self.render_types(machine, gpu)?;
            self.link(
                &format!("sys/class/mdev_bus/{pci}"),
                &format!("../../{real}"),
            )?;
        }
        Ok(())
    }

    fn render_types(&self, machine: &Machine, gpu: &Gpu) -> Result<(), TreeError> {
        for vgpu_type in &gpu.board.vgpu_types {
            let path = format!(
                "{}/mdev_supported_types/{}",
                device(gpu.pci),
                vgpu_type.directory()
            );
            self.file(
                &format!("{path}/name"),
                0o444,
                &format!("{}\n", machine.description.type_name(&vgpu_type.name)),
            )?;
            self.file(
                &format!("{path}/description"),
                0o444,
                &format!("{}\n", vgpu_type.description()),
            )?;
            self.file(&format!("{path}/device_api"), 0o444, "vfio-pci\n")?;
            self.file(&format!("{path}/create"), 0o200, "")?;
            self.directory(&format!("{path}/devices"))?;
        }
        Ok(())
    }
}

/// CPUs of a NUMA node: the machine's own, so that a cpuset made from it is accepted by the kernel. A node that the
/// machine lacks gets every CPU.
fn cpulist(node: u32) -> String {
    fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist"))
        .unwrap_or_else(|_| online())
}

fn online() -> String {
    fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_else(|_| "0\n".to_owned())
}
