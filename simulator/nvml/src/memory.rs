//! Functions about a device's memory. Version 1 counts the driver's reserve as used, version 2 tells it apart.

use nvml_wrapper_sys::bindings::{nvmlBAR1Memory_t, nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t};

use crate::{
    call::exports,
    pointer::{Out, Versioned},
};

impl Versioned for nvmlMemory_v2_t {
    const NUMBER: u32 = 2;

    fn version(&self) -> u32 {
        self.version
    }
}

exports! { via device(device: nvmlDevice_t);
    fn nvmlDeviceGetMemoryInfo(memory: Out<nvmlMemory_t>) |gpu| {
        let used = gpu.memory_used_bytes + gpu.memory_reserved_bytes;
        memory.set(nvmlMemory_t { total: gpu.memory_total_bytes, free: gpu.memory_total_bytes - used, used })
    };
    fn nvmlDeviceGetMemoryInfo_v2(memory: Out<nvmlMemory_v2_t>) |gpu| {
        let asked = memory.get_versioned()?;
        memory.set(nvmlMemory_v2_t {
            version: asked.version,
            total: gpu.memory_total_bytes,
            reserved: gpu.memory_reserved_bytes,
            free: gpu.memory_total_bytes - gpu.memory_reserved_bytes - gpu.memory_used_bytes,
            used: gpu.memory_used_bytes,
        })
    };
    fn nvmlDeviceGetBAR1MemoryInfo(memory: Out<nvmlBAR1Memory_t>) |gpu| {
        memory.set(nvmlBAR1Memory_t { bar1Total: gpu.bar1_bytes, bar1Free: gpu.bar1_bytes, bar1Used: 0 })
    };
}
