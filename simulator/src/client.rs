//! The typed client of `sim.sock`, for tests and tools. One connection: what it holds is released when it is dropped.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use base64::Engine as _;
use uuid::Uuid;

use crate::{
    fault::Fault,
    protocol::{Answer, Lifetime, MAX_LINE, NvmlAnswer, NvmlCall, Query, Request},
    state::State,
};

/// A request that was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No simulator answers there.
    #[error("cannot reach the simulator at {path}")]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The connection broke, or did not speak the protocol.
    #[error("the simulator's connection failed")]
    Connection(#[source] io::Error),
    /// The kernel or driver refused, with its errno.
    #[error("the simulated host refused: {0}")]
    Refused(io::Error),
    /// The request makes no sense.
    #[error("the simulator does not understand: {0}")]
    Misunderstood(String),
    /// What was waited for has not come.
    #[error("the simulated host has not come to what was awaited within {0:?}")]
    TimedOut(Duration),
}

impl ClientError {
    /// errno of a refusal.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused(error) => error.raw_os_error(),
            _ => None,
        }
    }
}

/// A connection to a simulator.
#[derive(Debug)]
pub struct Client {
    reader: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the simulator that serves `dir_or_socket`: its directory or its `sim.sock`.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`].
    pub fn connect(dir_or_socket: &Path) -> Result<Self, ClientError> {
        let path = if dir_or_socket.is_dir() {
            dir_or_socket.join("sim.sock")
        } else {
            dir_or_socket.to_owned()
        };
        match UnixStream::connect(&path) {
            Ok(stream) => Ok(Self {
                reader: BufReader::new(stream),
            }),
            Err(source) => Err(ClientError::Unreachable { path, source }),
        }
    }

    /// Sends one request and reads its answer.
    ///
    /// # Errors
    /// [`ClientError::Connection`]; refusals are answers here.
    pub fn ask(&mut self, request: &Request) -> Result<Answer, ClientError> {
        let mut text =
            serde_json::to_vec(request).map_err(|error| ClientError::Connection(error.into()))?;
        text.push(b'\n');
        self.reader
            .get_mut()
            .write_all(&text)
            .map_err(ClientError::Connection)?;
        let mut line = Vec::new();
        let read = (&mut self.reader)
            .take(MAX_LINE)
            .read_until(b'\n', &mut line)
            .map_err(ClientError::Connection)?;
        if read == 0 {
            return Err(ClientError::Connection(io::ErrorKind::UnexpectedEof.into()));
        }
        serde_json::from_slice(&line).map_err(|error| ClientError::Connection(error.into()))
    }

    /// Writes to a kernel attribute; returns when the kernel's write would.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the kernel's errno.
    pub fn write(&mut self, path: &str, bytes: &[u8]) -> Result<(), ClientError> {
        let bytes = base64::engine::general_purpose::STANDARD.encode(bytes);
        self.order(&Request::AttributeWrite {
            path: path.to_owned(),
            bytes,
        })
    }

    /// The truth now.
    ///
    /// # Errors
    /// [`ClientError::Connection`].
    pub fn state(&mut self) -> Result<State, ClientError> {
        self.state_after(None, Duration::ZERO)
    }

    /// Waits until the truth satisfies `wanted`, and answers it. Asks again only when something has changed.
    ///
    /// # Errors
    /// [`ClientError::TimedOut`] after `timeout`.
    pub fn wait_for(
        &mut self,
        timeout: Duration,
        wanted: impl Fn(&State) -> bool,
    ) -> Result<State, ClientError> {
        let deadline = Instant::now() + timeout;
        let mut seen = None;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let state = self.state_after(seen, left)?;
            if wanted(&state) {
                return Ok(state);
            }
            if left.is_zero() {
                return Err(ClientError::TimedOut(timeout));
            }
            seen = Some(state.generation);
        }
    }

    /// Arms a fault.
    ///
    /// # Errors
    /// [`ClientError::Misunderstood`] for a GPU that the host does not have.
    pub fn fault(&mut self, fault: Fault) -> Result<(), ClientError> {
        self.order(&Request::Fault(fault))
    }

    /// Lets every held write go on.
    ///
    /// # Errors
    /// [`ClientError::Connection`].
    pub fn release(&mut self) -> Result<(), ClientError> {
        self.order(&Request::Release {})
    }

    /// A VM opens an mdev, and has it open until [`Self::vm_close`] or a reboot.
    ///
    /// # Errors
    /// [`ClientError::Refused`]: ENOENT no such mdev, EBUSY another VM has it, ENODEV it is being removed, EIO lost GPU.
    pub fn vm_open(&mut self, uuid: Uuid, vm_name: &str) -> Result<(), ClientError> {
        self.order(&Request::VmOpen {
            uuid,
            vm_name: Some(vm_name.to_owned()),
            lifetime: Lifetime::Host,
        })
    }

    /// As [`Self::vm_open`], but the VM ends with this connection: the process is the VM.
    ///
    /// # Errors
    /// As [`Self::vm_open`].
    pub fn become_vm(&mut self, uuid: Uuid, vm_name: &str) -> Result<(), ClientError> {
        self.order(&Request::VmOpen {
            uuid,
            vm_name: Some(vm_name.to_owned()),
            lifetime: Lifetime::Connection,
        })
    }

    /// The VM closes the mdev.
    ///
    /// # Errors
    /// [`ClientError::Refused`]: ENOENT no such mdev, ENODEV no VM has it open.
    pub fn vm_close(&mut self, uuid: Uuid) -> Result<(), ClientError> {
        self.order(&Request::VmClose { uuid })
    }

    /// This process creates a compute context on a GPU (UUID, PCI address or index), until the connection is dropped.
    ///
    /// # Errors
    /// [`ClientError::Misunderstood`] for a GPU that the host does not have.
    pub fn process_open(&mut self, gpu: &str, memory_mib: u64) -> Result<(), ClientError> {
        self.order(&Request::ProcessOpen {
            gpu: gpu.to_owned(),
            memory_mib,
        })
    }

    /// Restarts the host.
    ///
    /// # Errors
    /// [`ClientError::Connection`].
    pub fn reboot(&mut self) -> Result<(), ClientError> {
        self.order(&Request::Reboot {})
    }

    /// One NVML call, as the library makes it.
    ///
    /// # Errors
    /// [`ClientError::Connection`]; NVML's own refusals are codes.
    pub fn nvml(&mut self, function: &str, query: Query) -> Result<NvmlAnswer, ClientError> {
        match self.ask(&Request::Nvml(NvmlCall {
            function: function.to_owned(),
            query,
        }))? {
            Answer::Nvml(answer) => Ok(answer),
            other => Err(unexpected(other)),
        }
    }

    fn state_after(&mut self, after: Option<u64>, timeout: Duration) -> Result<State, ClientError> {
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        match self.ask(&Request::State { after, timeout_ms })? {
            Answer::State(state) => Ok(*state),
            other => Err(unexpected(other)),
        }
    }

    fn order(&mut self, request: &Request) -> Result<(), ClientError> {
        match self.ask(request)? {
            Answer::Ok(_) => Ok(()),
            other => Err(unexpected(other)),
        }
    }
}

fn unexpected(answer: Answer) -> ClientError {
    match answer {
        Answer::Errno(errno) => ClientError::Refused(io::Error::from_raw_os_error(errno)),
        Answer::Error(sentence) => ClientError::Misunderstood(sentence),
        other => ClientError::Misunderstood(format!("an answer to another question: {other:?}")),
    }
}
