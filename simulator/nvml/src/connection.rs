//! The process's one connection to the simulator, with NVML's count of its users. Calls of one process follow each other,
//! as the driver's global lock makes them on hardware.

use std::{
    ffi::{CStr, OsStr, c_void},
    io::{self, BufRead, BufReader, Write},
    os::unix::{ffi::OsStrExt, net::UnixStream},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use nvml_wrapper_sys::bindings::{
    nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED as DRIVER_NOT_LOADED,
    nvmlReturn_enum_NVML_ERROR_UNINITIALIZED as UNINITIALIZED,
    nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN, nvmlReturn_t,
};
use simulator::protocol::{Answer, NvmlCall, NvmlValue, Query, Request};

/// What a call answers: nothing, or facts.
type Reply = Result<Option<NvmlValue>, nvmlReturn_t>;

static CONNECTION: Mutex<Connection> = Mutex::new(Connection {
    users: 0,
    stream: None,
});

struct Connection {
    /// `nvmlInit` less `nvmlShutdown`.
    users: u32,
    stream: Option<BufReader<UnixStream>>,
}

/// `nvmlInit`: connects if nobody has. No simulator is no driver.
pub(crate) fn open(function: &str) -> Result<(), nvmlReturn_t> {
    let mut connection = lock();
    if connection.stream.is_none() {
        let stream = UnixStream::connect(socket()).map_err(|_| DRIVER_NOT_LOADED)?;
        connection.stream = Some(BufReader::new(stream));
    }
    let reply = connection.ask(function, Query::Init);
    if reply.is_ok() {
        connection.users += 1;
    } else if connection.users == 0 {
        connection.stream = None;
    }
    reply.map(drop)
}

/// `nvmlShutdown`: the last user's closes the connection.
pub(crate) fn close(function: &str) -> Result<(), nvmlReturn_t> {
    let mut connection = lock();
    if connection.users == 0 {
        return Err(UNINITIALIZED);
    }
    let query = if connection.users == 1 {
        Query::Shutdown
    } else {
        Query::Nothing
    };
    connection.ask(function, query)?;
    connection.users -= 1;
    if connection.users == 0 {
        connection.stream = None;
    }
    Ok(())
}

/// Any other call.
pub(crate) fn ask(function: &str, query: Query) -> Reply {
    let mut connection = lock();
    if connection.users == 0 {
        return Err(UNINITIALIZED);
    }
    connection.ask(function, query)
}

fn lock() -> MutexGuard<'static, Connection> {
    CONNECTION.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    /// A connection that breaks stays broken until the next `nvmlInit`: the driver has gone from under the process.
    fn ask(&mut self, function: &str, query: Query) -> Reply {
        let Some(stream) = &mut self.stream else {
            return Err(UNKNOWN);
        };
        let call = NvmlCall {
            function: function.to_owned(),
            query,
        };
        match exchange(stream, &Request::Nvml(call)) {
            Ok(Answer::Nvml(answer)) if answer.code == 0 => Ok(answer.value),
            Ok(Answer::Nvml(answer)) => Err(answer.code),
            _ => {
                self.stream = None;
                Err(UNKNOWN)
            }
        }
    }
}

fn exchange(stream: &mut BufReader<UnixStream>, request: &Request) -> io::Result<Answer> {
    let mut text = serde_json::to_vec(request)?;
    text.push(b'\n');
    stream.get_mut().write_all(&text)?;
    let mut line = Vec::new();
    stream.read_until(b'\n', &mut line)?;
    Ok(serde_json::from_slice(&line)?)
}

/// Where the simulator listens.
fn socket() -> PathBuf {
    match std::env::var_os("GPUHOOK_SIM") {
        Some(path) => path.into(),
        None => own_file()
            .and_then(|file| Some(file.parent()?.parent()?.join("sim.sock")))
            .unwrap_or_default(),
    }
}

/// The file that this code was loaded from.
fn own_file() -> Option<PathBuf> {
    // SAFETY: all-zero is a valid `Dl_info`.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `socket` lies in this library, and `info` outlives the call.
    let found = unsafe { libc::dladdr(socket as fn() -> PathBuf as *const c_void, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: `dladdr` has succeeded, so the name is a terminated string that lives as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Path::new(OsStr::from_bytes(name.to_bytes()))
        .canonicalize()
        .ok()
}
