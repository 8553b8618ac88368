//! The NVML library where the safe wrapper hides what matters: versions, buffer sizes and the two-call protocol.
#![expect(unsafe_code, reason = "raw NVML calls")]

use std::ffi::{CStr, c_uint};

use nvml_wrapper::Nvml;
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlMemory_v2_t, nvmlVgpuTypeBar1Info_t};

use crate::fixture::{FIRST, Fixture, remove, uuid};

const INVALID_ARGUMENT: c_uint = 2;
const INSUFFICIENT_SIZE: c_uint = 7;
const VERSION_MISMATCH: c_uint = 25;

fn nvml(host: &Fixture) -> Nvml {
    Nvml::builder()
        .lib_path(host.simulator.library().as_os_str())
        .init()
        .unwrap()
}

fn handle(nvml: &Nvml) -> nvmlDevice_t {
    let device = nvml.device_by_index(0).unwrap();
    // SAFETY: the handle is used while `nvml` lives.
    unsafe { device.handle() }
}

#[test]
fn wrong_struct_version_is_25() {
    let host = Fixture::builtin("t4");
    let nvml = nvml(&host);
    let get = nvml.lib().nvmlDeviceGetMemoryInfo_v2.as_ref().unwrap();
    let size = size_of::<nvmlMemory_v2_t>() as u32;
    assert_eq!(size | 2 << 24, 0x0200_0028);
    for (version, expect) in [
        (0, VERSION_MISMATCH),
        (size | 1 << 24, VERSION_MISMATCH),
        (2 << 24, VERSION_MISMATCH),
        (size | 2 << 24, 0),
    ] {
        let mut memory = nvmlMemory_v2_t {
            version,
            total: 0,
            reserved: 0,
            free: 0,
            used: 0,
        };
        // SAFETY: a valid handle and struct.
        assert_eq!(
            unsafe { get(handle(&nvml), &raw mut memory) },
            expect,
            "{version:#x}"
        );
        assert_eq!(memory.total > 0, expect == 0);
    }
    let get = nvml.lib().nvmlVgpuTypeGetBAR1Info.as_ref().unwrap();
    let version = size_of::<nvmlVgpuTypeBar1Info_t>() as u32 | 1 << 24;
    let mut info = nvmlVgpuTypeBar1Info_t {
        version,
        bar1Size: 0,
    };
    // SAFETY: a valid struct.
    assert_eq!(unsafe { get(232, &raw mut info) }, 0);
    assert_eq!(info.bar1Size, 256 << 20);
}

#[test]
fn array_is_filled_only_where_there_is_room_and_its_count_is_always_told() {
    let host = Fixture::builtin("t4");
    let nvml = nvml(&host);
    let get = nvml.lib().nvmlDeviceGetCreatableVgpus.as_ref().unwrap();
    let ask = |room: c_uint| {
        let (mut count, mut ids) = (room, [0; 32]);
        // SAFETY: a valid handle, and never more room than `ids` has.
        let code = unsafe { get(handle(&nvml), &raw mut count, ids.as_mut_ptr()) };
        (code, count, ids)
    };
    let (code, count, ids) = ask(0);
    assert_eq!((code, count, ids), (INSUFFICIENT_SIZE, 17, [0; 32]));
    let (code, count, ids) = ask(16);
    assert_eq!(
        (code, count, ids),
        (INSUFFICIENT_SIZE, 17, [0; 32]),
        "nothing is written into too little room"
    );
    assert_eq!(ask(17).0, 0);
    // Between the two calls of a reader the number shrinks: the second count is the right one.
    host.create(FIRST, 234, uuid(1));
    let (code, count, ids) = ask(17);
    assert_eq!((code, count, ids), (0, 0, [0; 32]));
    host.write(&remove(uuid(1)), b"1");
    host.create(FIRST, 232, uuid(1));
    let (code, count, ids) = ask(17);
    assert_eq!((code, count), (0, 3));
    assert!(ids[..3].iter().all(|id| *id != 0) && ids[3..].iter().all(|id| *id == 0));
}

#[test]
fn text_needs_room_for_its_terminator() {
    let host = Fixture::builtin("t4");
    let nvml = nvml(&host);
    let name = nvml.lib().nvmlDeviceGetName.as_ref().unwrap();
    let type_name = nvml.lib().nvmlVgpuTypeGetName.as_ref().unwrap();
    for (length, expect) in [(0, INSUFFICIENT_SIZE), (8, INSUFFICIENT_SIZE), (9, 0)] {
        let mut buffer = [1; 64];
        // SAFETY: a valid handle, and never more length than `buffer` has.
        assert_eq!(
            unsafe { name(handle(&nvml), buffer.as_mut_ptr(), length) },
            expect,
            "{length}"
        );
        if expect == 0 {
            // SAFETY: the call has succeeded, so the text is terminated.
            assert_eq!(unsafe { CStr::from_ptr(buffer.as_ptr()) }, c"Tesla T4");
        }
    }
    let (mut buffer, mut length) = ([0; 64], 3);
    // SAFETY: as above.
    assert_eq!(
        unsafe { type_name(232, buffer.as_mut_ptr(), &raw mut length) },
        INSUFFICIENT_SIZE
    );
    assert_eq!(length, 13, "what `NVIDIA T4-4Q` needs");
    // SAFETY: as above.
    assert_eq!(
        unsafe { type_name(232, buffer.as_mut_ptr(), &raw mut length) },
        0
    );
}

#[test]
fn nonsense_is_refused_and_not_followed() {
    let host = Fixture::builtin("t4");
    let nvml = nvml(&host);
    let name = nvml.lib().nvmlDeviceGetName.as_ref().unwrap();
    let mut buffer = [0; 64];
    for bad in [std::ptr::null_mut(), std::ptr::without_provenance_mut(1)] {
        // SAFETY: the library does not follow handles.
        assert_eq!(
            unsafe { name(bad, buffer.as_mut_ptr(), 64) },
            INVALID_ARGUMENT
        );
    }
    // SAFETY: NVML refuses a null buffer.
    assert_eq!(
        unsafe { name(handle(&nvml), std::ptr::null_mut(), 64) },
        INVALID_ARGUMENT
    );
    let text = nvml.lib().nvmlErrorString.as_ref().unwrap();
    for (code, expect) in [
        (0, c"Success"),
        (19, c"In use by another client"),
        (999, c"Unknown Error"),
    ] {
        // SAFETY: the answer is a static string.
        assert_eq!(unsafe { CStr::from_ptr(text(code)) }, expect);
    }
}
