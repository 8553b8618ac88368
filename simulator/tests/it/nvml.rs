//! The host through the NVML library, as `nvml-wrapper` (the agent's crate) reads hardware.

use nvml_wrapper::{
    Nvml,
    enum_wrappers::{device::TemperatureSensor, vgpu::VmId},
    enums::device::UsedGpuMemory,
    error::NvmlError,
};
use simulator::{Fault, Window};

use crate::fixture::{DEADLINE, FIRST, Fixture, SECOND, uuid};

fn nvml(host: &Fixture) -> Nvml {
    Nvml::builder()
        .lib_path(host.simulator.library().as_os_str())
        .init()
        .unwrap()
}

#[test]
fn wrapper_reads_identity_memory_and_sensors() {
    let host = Fixture::builtin("two-t4");
    let nvml = nvml(&host);
    let truth = host.client().state().unwrap();
    assert_eq!(nvml.device_count().unwrap(), 2);
    assert_eq!(nvml.sys_driver_version().unwrap(), "535.161.05");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 12020);
    let device = nvml.device_by_index(1).unwrap();
    assert_eq!(device.name().unwrap(), "Tesla T4");
    assert_eq!(device.uuid().unwrap(), truth.gpus[1].uuid);
    let pci = device.pci_info().unwrap();
    assert_eq!(
        (pci.bus_id.as_str(), pci.bus, pci.pci_device_id),
        ("00000000:AF:00.0", 0xaf, 0x1eb8_10de)
    );
    assert_eq!(pci.pci_sub_system_id, Some(0x12a2_10de));
    let memory = device.memory_info().unwrap();
    assert_eq!((memory.total, memory.used), (15360 << 20, 0));
    assert_eq!(memory.total, memory.used + memory.free + memory.reserved);
    assert_eq!(device.temperature(TemperatureSensor::Gpu).unwrap(), 36);
    assert_eq!(
        (
            device.power_usage().unwrap(),
            device.enforced_power_limit().unwrap()
        ),
        (9000, 70000)
    );
    assert_eq!(device.utilization_rates().unwrap().gpu, 0);
    let compute = device.cuda_compute_capability().unwrap();
    assert_eq!((compute.major, compute.minor), (7, 5));
    for by in [
        nvml.device_by_uuid(truth.gpus[1].uuid.as_str()),
        nvml.device_by_pci_bus_id(SECOND),
        nvml.device_by_pci_bus_id("00000000:AF:00.0"),
    ] {
        assert_eq!(by.unwrap().index().unwrap(), 1);
    }
    assert!(matches!(
        nvml.device_by_index(2),
        Err(NvmlError::InvalidArg)
    ));
    assert!(matches!(
        nvml.device_by_pci_bus_id("0000:00:00.0"),
        Err(NvmlError::NotFound)
    ));
    assert!(matches!(device.mig_mode(), Err(NvmlError::NotSupported)));
    assert!(matches!(device.fan_speed(0), Err(NvmlError::NotSupported)));
}

#[test]
fn wrapper_reads_vgpu_types() {
    let host = Fixture::builtin("t4");
    let nvml = nvml(&host);
    let device = nvml.device_by_index(0).unwrap();
    let types = device.vgpu_supported_types().unwrap();
    assert_eq!(types.len(), 17);
    let q4 = types.iter().find(|each| each.id() == 232).unwrap();
    assert_eq!(q4.name().unwrap(), "NVIDIA T4-4Q");
    assert_eq!(q4.class_name().unwrap(), "Quadro");
    assert_eq!(
        (q4.framebuffer_size().unwrap(), q4.max_instances().unwrap()),
        (4096 << 20, 4)
    );
    assert_eq!(
        (q4.num_display_heads().unwrap(), q4.resolution(0).unwrap()),
        (4, (7680, 4320))
    );
    assert!(q4.license().unwrap().contains("GRID-Virtual-WS"));
    assert_eq!(q4.instance_profile_id().unwrap(), u32::MAX);
    assert_eq!(device.vgpu_creatable_types().unwrap().len(), 17);
    host.create(FIRST, 232, uuid(1));
    let mut creatable: Vec<u32> = device
        .vgpu_creatable_types()
        .unwrap()
        .iter()
        .map(|each| each.id())
        .collect();
    creatable.sort_unstable();
    assert_eq!(
        creatable,
        [227, 232, 319],
        "4A, 4Q and 4C have the size of what is there"
    );
}

#[test]
fn vgpu_is_active_only_while_a_vm_has_it_open() {
    let host = Fixture::builtin("t4");
    let nvml = nvml(&host);
    let device = nvml.device_by_index(0).unwrap();
    host.create(FIRST, 232, uuid(1));
    assert_eq!(device.active_vgpus().unwrap().len(), 0);
    assert_eq!(device.memory_info().unwrap().used, 0);
    host.client().vm_open(uuid(1), "vm-a").unwrap();
    let active = device.active_vgpus().unwrap();
    assert_eq!(active.len(), 1);
    assert_eq!(active[0].mdev_uuid().unwrap(), uuid(1).to_string());
    assert_eq!(active[0].instance_type().unwrap().id(), 232);
    assert_eq!(active[0].fb_usage().unwrap(), 4096 << 20);
    assert!(matches!(active[0].vm_id().unwrap(), VmId::Uuid(_)));
    assert_eq!(device.memory_info().unwrap().used, 4096 << 20);
    host.client().vm_close(uuid(1)).unwrap();
    assert!(matches!(active[0].fb_usage(), Err(NvmlError::NotFound)));
}

#[test]
fn struct_that_the_wrapper_sends_without_a_version_is_refused() {
    let host = Fixture::builtin("t4");
    let nvml = nvml(&host);
    let device = nvml.device_by_index(0).unwrap();
    host.create(FIRST, 232, uuid(1));
    host.client().vm_open(uuid(1), "vm").unwrap();
    let active = device.active_vgpus().unwrap();
    assert!(matches!(
        active[0].placement_id(),
        Err(NvmlError::UnexpectedVariant(25))
    ));
    assert!(matches!(
        active[0].runtime_state_size(),
        Err(NvmlError::UnexpectedVariant(25))
    ));
    let types = device.vgpu_supported_types().unwrap();
    assert!(matches!(
        types[0].bar1_info(),
        Err(NvmlError::UnexpectedVariant(25))
    ));
}

#[test]
fn function_that_the_driver_lacks_is_a_missing_symbol() {
    let host = Fixture::builtin("t4");
    let nvml = nvml(&host);
    let error = nvml
        .device_by_index(0)
        .unwrap()
        .vgpu_scheduler_capabilities()
        .unwrap_err();
    assert!(matches!(error, NvmlError::FailedToLoadSymbol(_)), "{error}");
}

#[test]
fn faults_reach_the_caller_as_nvml_errors() {
    let host = Fixture::builtin("t4");
    let nvml = nvml(&host);
    let device = nvml.device_by_index(0).unwrap();
    let arm = |code| {
        let fault = Fault::Nvml {
            function: "nvmlDeviceGetMemoryInfo".into(),
            code,
            window: Window::default(),
        };
        host.client().fault(fault).unwrap();
    };
    arm(19);
    assert!(matches!(device.memory_info(), Err(NvmlError::InUse)));
    arm(23);
    assert!(matches!(
        device.memory_info(),
        Err(NvmlError::UnexpectedVariant(23))
    ));
    device.memory_info().unwrap();
    host.client()
        .fault(Fault::GpuLost { gpu: "0".into() })
        .unwrap();
    assert!(matches!(device.name(), Err(NvmlError::GpuLost)));
    assert!(matches!(nvml.device_by_index(0), Err(NvmlError::GpuLost)));
    assert_eq!(nvml.device_count().unwrap(), 1);
}

#[test]
fn process_with_a_context_is_listed_until_it_ends() {
    let host = Fixture::builtin("t4");
    let nvml = nvml(&host);
    let device = nvml.device_by_index(0).unwrap();
    assert!(device.running_compute_processes().unwrap().is_empty());
    let mut process = host.client();
    process.process_open("0", 512).unwrap();
    let processes = device.running_compute_processes().unwrap();
    assert_eq!(processes.len(), 1);
    assert_eq!(processes[0].pid, std::process::id());
    assert_eq!(processes[0].used_gpu_memory, UsedGpuMemory::Used(512 << 20));
    assert_eq!(device.memory_info().unwrap().used, 512 << 20);
    drop(process);
    host.client()
        .wait_for(DEADLINE, |state| state.gpus[0].used_mib == 0)
        .unwrap();
    assert!(device.running_compute_processes().unwrap().is_empty());
}

#[test]
fn session_is_a_holder_until_the_last_user_shuts_down() {
    let host = Fixture::builtin("t4");
    let holders = || host.client().state().unwrap().holders;
    let (one, two) = (nvml(&host), nvml(&host));
    assert_eq!(holders().len(), 1, "a process is one client");
    assert_eq!(holders()[0].pid, std::process::id());
    drop(one);
    assert_eq!(holders().len(), 1);
    two.device_count().unwrap();
    drop(two);
    assert!(holders().is_empty());
}

#[test]
fn two_hosts_are_read_side_by_side_in_one_process() {
    let (one, two) = (Fixture::builtin("t4"), Fixture::builtin("two-t4"));
    let counts = [nvml(&one), nvml(&two)].map(|nvml| nvml.device_count().unwrap());
    assert_eq!(counts, [1, 2]);
}

#[test]
fn library_without_a_simulator_is_a_driver_that_is_not_loaded() {
    let host = Fixture::builtin("t4");
    let nvml = nvml(&host);
    let copy = host.simulator.dir().join("lib/alone/libnvidia-ml.so.1");
    std::fs::create_dir(copy.parent().unwrap()).unwrap();
    std::fs::copy(host.simulator.library(), &copy).unwrap();
    let alone = Nvml::builder().lib_path(copy.as_os_str()).init();
    assert!(matches!(alone, Err(NvmlError::DriverNotLoaded)));
    let Fixture { simulator, _dir } = host;
    simulator.shutdown();
    assert!(matches!(nvml.device_count(), Err(NvmlError::Unknown)));
}

#[test]
fn reboot_ends_the_session() {
    let host = Fixture::builtin("t4");
    let nvml = nvml(&host);
    host.client().reboot().unwrap();
    assert!(matches!(nvml.device_count(), Err(NvmlError::Uninitialized)));
    assert!(host.client().state().unwrap().holders.is_empty());
}

#[test]
fn data_centre_driver_has_no_vgpu_functions() {
    let mut description = simulator::HostDescription::builtin("t4").unwrap();
    description.flavour = simulator::Flavour::DataCentre;
    let host = Fixture::with(description);
    let nvml = nvml(&host);
    let device = nvml.device_by_index(0).unwrap();
    assert!(matches!(
        device.vgpu_supported_types(),
        Err(NvmlError::NotSupported)
    ));
    assert!(matches!(
        device.vgpu_host_mode(),
        Err(NvmlError::NotSupported)
    ));
}
