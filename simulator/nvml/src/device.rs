//! Functions about one device: identity, modes, sensors and clocks.

use std::ffi::{c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlBrandType_enum_NVML_BRAND_NVIDIA as BRAND_NVIDIA, nvmlBrandType_t,
    nvmlClockType_enum_NVML_CLOCK_MEM as CLOCK_MEM,
    nvmlClockType_enum_NVML_CLOCK_VIDEO as CLOCK_VIDEO, nvmlClockType_t, nvmlComputeMode_t,
    nvmlDevice_t, nvmlDeviceArchitecture_t, nvmlEnableState_t, nvmlPciInfo_t, nvmlPstates_t,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED, nvmlReturn_t, nvmlTemperature_t,
    nvmlTemperatureSensors_t, nvmlTemperatureThresholds_t, nvmlUtilization_t,
};
use simulator::protocol::DeviceFacts;

use crate::{
    call::exports,
    pointer::{Out, TextOut, Versioned, fixed},
};

const DISABLED: nvmlEnableState_t = 0;
const ENABLED: nvmlEnableState_t = 1;

/// An idle board rests in P8.
const IDLE_PSTATE: nvmlPstates_t = 8;

/// How often the encoder's and decoder's load is sampled (nvidia-smi of Turing boards).
const SAMPLING_US: c_uint = 167_000;

impl Versioned for nvmlTemperature_t {
    const NUMBER: u32 = 1;

    fn version(&self) -> u32 {
        self.version
    }
}

exports! { via device(device: nvmlDevice_t);
    fn nvmlDeviceGetName(name: TextOut, length: c_uint) |gpu| name.set(length, &gpu.name);
    fn nvmlDeviceGetUUID(uuid: TextOut, length: c_uint) |gpu| uuid.set(length, &gpu.uuid);
    fn nvmlDeviceGetSerial(serial: TextOut, length: c_uint) |gpu| serial.set(length, &gpu.serial);
    fn nvmlDeviceGetVbiosVersion(version: TextOut, length: c_uint)
        |gpu| version.set(length, &gpu.vbios);
    fn nvmlDeviceGetIndex(index: Out<c_uint>) |gpu| index.set(gpu.index);
    fn nvmlDeviceGetMinorNumber(minor: Out<c_uint>) |gpu| minor.set(gpu.index);
    fn nvmlDeviceGetBrand(brand: Out<nvmlBrandType_t>) |_gpu| brand.set(BRAND_NVIDIA);
    fn nvmlDeviceGetArchitecture(architecture: Out<nvmlDeviceArchitecture_t>)
        |gpu| architecture.set(gpu.architecture);
    fn nvmlDeviceGetBoardId(id: Out<c_uint>) |gpu| id.set(c_uint::from(gpu.pci.bus) << 8);
    fn nvmlDeviceGetCudaComputeCapability(major: Out<c_int>, minor: Out<c_int>) |gpu| {
        major.set(gpu.compute_capability[0])?;
        minor.set(gpu.compute_capability[1])
    };

    fn nvmlDeviceGetPciInfo(pci: Out<nvmlPciInfo_t>) |gpu| pci.set(pci_info(&gpu));
    fn nvmlDeviceGetPciInfo_v2(pci: Out<nvmlPciInfo_t>) |gpu| pci.set(pci_info(&gpu));
    fn nvmlDeviceGetPciInfo_v3(pci: Out<nvmlPciInfo_t>) |gpu| pci.set(pci_info(&gpu));

    fn nvmlDeviceGetPersistenceMode(mode: Out<nvmlEnableState_t>) |_gpu| mode.set(DISABLED);
    fn nvmlDeviceGetDisplayMode(mode: Out<nvmlEnableState_t>) |_gpu| mode.set(DISABLED);
    fn nvmlDeviceGetDisplayActive(active: Out<nvmlEnableState_t>) |_gpu| active.set(DISABLED);
    fn nvmlDeviceGetComputeMode(mode: Out<nvmlComputeMode_t>) |_gpu| mode.set(0);
    fn nvmlDeviceGetEccMode(current: Out<nvmlEnableState_t>, pending: Out<nvmlEnableState_t>)
        |_gpu| {
        current.set(ENABLED)?;
        pending.set(ENABLED)
    };

    fn nvmlDeviceGetUtilizationRates(rates: Out<nvmlUtilization_t>) |gpu| {
        // Nothing tells the load of a GPU that is cut, nor of a part.
        if gpu.mig_device.is_some() || gpu.mig.is_some_and(|mig| mig.current) {
            return Err(NOT_SUPPORTED);
        }
        rates.set(nvmlUtilization_t { gpu: gpu.utilization_percent, memory: 0 })
    };
    fn nvmlDeviceGetEncoderUtilization(percent: Out<c_uint>, sampling_us: Out<c_uint>) |_gpu| {
        percent.set(0)?;
        sampling_us.set(SAMPLING_US)
    };
    fn nvmlDeviceGetDecoderUtilization(percent: Out<c_uint>, sampling_us: Out<c_uint>) |_gpu| {
        percent.set(0)?;
        sampling_us.set(SAMPLING_US)
    };
    fn nvmlDeviceGetTemperature(sensor: nvmlTemperatureSensors_t, temperature: Out<c_uint>) |gpu| {
        if sensor == 0 { temperature.set(gpu.temperature_c) } else { Err(INVALID_ARGUMENT) }
    };
    fn nvmlDeviceGetTemperatureV(temperature: Out<nvmlTemperature_t>) |gpu| {
        let asked = temperature.get_versioned()?;
        temperature.set(nvmlTemperature_t { temperature: gpu.temperature_c as c_int, ..asked })
    };
    // Shutdown and slowdown of a T4 (nvidia-smi -q: 96 and 93).
    fn nvmlDeviceGetTemperatureThreshold(threshold: nvmlTemperatureThresholds_t, temperature: Out<c_uint>)
        |_gpu| {
        match threshold {
            0 => temperature.set(96),
            1 => temperature.set(93),
            _ => Err(NOT_SUPPORTED),
        }
    };
    // Passive cooling.
    fn nvmlDeviceGetFanSpeed(_percent: Out<c_uint>) |_gpu| Err(NOT_SUPPORTED);
    fn nvmlDeviceGetFanSpeed_v2(_fan: c_uint, _percent: Out<c_uint>) |_gpu| Err(NOT_SUPPORTED);
    fn nvmlDeviceGetNumFans(count: Out<c_uint>) |_gpu| count.set(0);

    fn nvmlDeviceGetPowerUsage(mw: Out<c_uint>) |gpu| mw.set(gpu.power_mw);
    fn nvmlDeviceGetPowerManagementMode(mode: Out<nvmlEnableState_t>) |_gpu| mode.set(ENABLED);
    fn nvmlDeviceGetPowerManagementLimit(mw: Out<c_uint>) |gpu| mw.set(gpu.power_limit_mw);
    fn nvmlDeviceGetPowerManagementDefaultLimit(mw: Out<c_uint>) |gpu| mw.set(gpu.power_limit_mw);
    fn nvmlDeviceGetEnforcedPowerLimit(mw: Out<c_uint>) |gpu| mw.set(gpu.power_limit_mw);
    fn nvmlDeviceGetPowerManagementLimitConstraints(min_mw: Out<c_uint>, max_mw: Out<c_uint>)
        |gpu| {
        min_mw.set(gpu.power_limit_min_mw)?;
        max_mw.set(gpu.power_limit_mw)
    };
    fn nvmlDeviceGetPerformanceState(state: Out<nvmlPstates_t>) |_gpu| state.set(IDLE_PSTATE);
    fn nvmlDeviceGetPowerState(state: Out<nvmlPstates_t>) |_gpu| state.set(IDLE_PSTATE);
    fn nvmlDeviceGetCurrentClocksThrottleReasons(reasons: Out<c_ulonglong>) |_gpu| reasons.set(1);
    fn nvmlDeviceGetCurrentClocksEventReasons(reasons: Out<c_ulonglong>) |_gpu| reasons.set(1);
    fn nvmlDeviceGetClockInfo(clock: nvmlClockType_t, mhz: Out<c_uint>)
        |gpu| mhz.set(of_clock(clock, gpu.sm_clock_mhz, gpu.memory_clock_mhz)?);
    fn nvmlDeviceGetMaxClockInfo(clock: nvmlClockType_t, mhz: Out<c_uint>)
        |gpu| mhz.set(of_clock(clock, gpu.max_sm_clock_mhz, gpu.max_memory_clock_mhz)?);
}

fn pci_info(gpu: &DeviceFacts) -> nvmlPciInfo_t {
    nvmlPciInfo_t {
        // The legacy field has four digits of domain, and capitals like the other.
        busIdLegacy: fixed(&gpu.pci.to_string().to_uppercase()),
        domain: gpu.pci.domain,
        bus: c_uint::from(gpu.pci.bus),
        device: c_uint::from(gpu.pci.device),
        pciDeviceId: gpu.pci_device_id,
        pciSubSystemId: gpu.pci_subsystem_id,
        busId: fixed(&gpu.pci.nvml()),
    }
}

fn of_clock(clock: nvmlClockType_t, sm_mhz: u32, memory_mhz: u32) -> Result<u32, nvmlReturn_t> {
    match clock {
        CLOCK_MEM => Ok(memory_mhz),
        _ if clock <= CLOCK_VIDEO => Ok(sm_mhz),
        _ => Err(INVALID_ARGUMENT),
    }
}
