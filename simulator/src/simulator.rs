//! Bringing a simulated host up in a directory, and taking it down.
//!
//! ```text
//! DIR/root/{sys,proc,dev}            the host's files
//! DIR/lib/libnvidia-ml.so.1          NVML; finds ../sim.sock by itself
//! DIR/sim.sock                       kernel and driver
//! DIR/host.toml                      what the host is; marks the directory as a simulator's
//! DIR/staging                        where files are made before they are renamed
//! ```

use std::{
    fs, io,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

use crate::{
    description::{DescriptionError, HostDescription},
    host::Host,
    library,
    server::Server,
    tree::TreeError,
};

/// Why a host does not come up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The description is not usable.
    #[error("the host description is not usable")]
    Description(#[from] DescriptionError),
    /// The host's files cannot be made.
    #[error("cannot render the host's files")]
    Tree(#[from] TreeError),
    /// The directory holds something else.
    #[error("{0} is not empty and not a simulator's; nothing there is touched")]
    Foreign(PathBuf),
    /// Another simulator serves the directory.
    #[error("another simulator serves {0}")]
    Taken(PathBuf),
    /// NVML has not been built.
    #[error(
        "no libgpuhook_simulator_nvml.so: build gpuhook-simulator-nvml; looked for {}",
        list(searched)
    )]
    NoLibrary {
        /// Where it was looked for.
        searched: Vec<PathBuf>,
    },
    /// A file cannot be made.
    #[error("cannot make {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The socket cannot be made; its path may be too long (107 bytes).
    #[error("cannot listen at {path}")]
    Socket {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

fn list(paths: &[PathBuf]) -> String {
    paths
        .iter()
        .map(|each| each.display().to_string())
        .collect::<Vec<_>>()
        .join(", ")
}

/// A simulated host that is up. It goes down when dropped; its files stay.
#[derive(Debug)]
pub struct Simulator {
    dir: PathBuf,
    server: Server,
}

impl Simulator {
    /// Boots `host` in `dir`, with the NVML library that lies beside the current executable.
    ///
    /// # Errors
    /// See [`StartError`]. A directory that is not a simulator's is not touched.
    pub fn start(host: HostDescription, dir: &Path) -> Result<Self, StartError> {
        let library = library::find().map_err(|searched| StartError::NoLibrary { searched })?;
        Self::start_with_library(host, dir, &library)
    }

    /// As [`Self::start`], with the NVML library at `library`.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_with_library(
        host: HostDescription,
        dir: &Path,
        library: &Path,
    ) -> Result<Self, StartError> {
        let file = |path: PathBuf| move |source| StartError::File { path, source };
        claim(dir)?;
        let marker = dir.join("host.toml");
        let text = toml::to_string(&host).map_err(|error| StartError::File {
            path: marker.clone(),
            source: io::Error::other(error),
        })?;
        fs::write(&marker, text).map_err(file(marker))?;

        let lib = dir.join("lib");
        fs::create_dir_all(&lib).map_err(file(lib.clone()))?;
        let (staged, installed) = (
            lib.join("libnvidia-ml.so.1.new"),
            lib.join("libnvidia-ml.so.1"),
        );
        // A copy, not a link: each host's library is a file of its own, so that one process can have several loaded.
        // Renamed into place, because writing into a library that a process has mapped would crash it.
        fs::copy(library, &staged).map_err(file(library.to_owned()))?;
        fs::rename(&staged, &installed).map_err(file(installed))?;

        let socket = dir.join("sim.sock");
        let host = Host::boot(host, dir)?;
        match Server::start(host, &socket) {
            Ok(server) => Ok(Self {
                dir: dir.to_owned(),
                server,
            }),
            Err(source) => Err(StartError::Socket {
                path: socket,
                source,
            }),
        }
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The root of the host's files.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// The NVML library of this host.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        self.dir.join("lib/libnvidia-ml.so.1")
    }

    /// The socket, the value of `GPUHOOK_SIM`.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.join("sim.sock")
    }

    /// Takes the host down: ends every wait and connection, and waits for them.
    pub fn shutdown(mut self) {
        self.server.stop();
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        self.server.stop();
    }
}

/// Makes `dir` ours: empty or absent, or left by an earlier simulator that is not running.
fn claim(dir: &Path) -> Result<(), StartError> {
    let file = |source| StartError::File {
        path: dir.to_owned(),
        source,
    };
    fs::create_dir_all(dir).map_err(file)?;
    if !dir.join("host.toml").exists() && fs::read_dir(dir).map_err(file)?.next().is_some() {
        return Err(StartError::Foreign(dir.to_owned()));
    }
    let socket = dir.join("sim.sock");
    if UnixStream::connect(&socket).is_ok() {
        return Err(StartError::Taken(dir.to_owned()));
    }
    match fs::remove_file(&socket) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(StartError::File {
            path: socket,
            source,
        }),
        _ => Ok(()),
    }
}
