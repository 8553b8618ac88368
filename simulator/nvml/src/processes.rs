//! Functions about the processes on a device. Versions 2 and 3 have the same layout.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t};
use simulator::protocol::ProcessFacts;

use crate::{call::exports, pointer::Out};

/// Neither a GPU instance nor a compute instance.
const NO_INSTANCE: c_uint = c_uint::MAX;

exports! { via device(device: nvmlDevice_t);
    fn nvmlDeviceGetComputeRunningProcesses(count: Out<c_uint>, infos: Out<nvmlProcessInfo_v1_t>)
        |gpu| infos.set_list(count, &v1(&gpu.processes));
    fn nvmlDeviceGetComputeRunningProcesses_v2(count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>)
        |gpu| infos.set_list(count, &v2(&gpu.processes));
    fn nvmlDeviceGetComputeRunningProcesses_v3(count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>)
        |gpu| infos.set_list(count, &v2(&gpu.processes));
    // Nothing here draws, and nothing runs under MPS.
    fn nvmlDeviceGetGraphicsRunningProcesses(count: Out<c_uint>, infos: Out<nvmlProcessInfo_v1_t>)
        |_gpu| infos.set_list(count, &[]);
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>)
        |_gpu| infos.set_list(count, &[]);
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>)
        |_gpu| infos.set_list(count, &[]);
    fn nvmlDeviceGetMPSComputeRunningProcesses(count: Out<c_uint>, infos: Out<nvmlProcessInfo_v1_t>)
        |_gpu| infos.set_list(count, &[]);
    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>)
        |_gpu| infos.set_list(count, &[]);
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>)
        |_gpu| infos.set_list(count, &[]);
}

fn v1(processes: &[ProcessFacts]) -> Vec<nvmlProcessInfo_v1_t> {
    processes
        .iter()
        .map(|each| nvmlProcessInfo_v1_t {
            pid: each.pid,
            usedGpuMemory: each.memory_bytes,
        })
        .collect()
}

fn v2(processes: &[ProcessFacts]) -> Vec<nvmlProcessInfo_v2_t> {
    let info = |each: &ProcessFacts| nvmlProcessInfo_v2_t {
        pid: each.pid,
        usedGpuMemory: each.memory_bytes,
        gpuInstanceId: each.instance.map_or(NO_INSTANCE, |(id, _)| id),
        computeInstanceId: each.instance.map_or(NO_INSTANCE, |(_, id)| id),
    };
    processes.iter().map(info).collect()
}
