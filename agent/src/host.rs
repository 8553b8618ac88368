//! This host as its configuration describes it: the constructors, and the only place that knows
//! whether attributes are files or a socket.

use std::path::PathBuf;
use std::sync::Arc;

use crate::attributes::{Attributes, ChildAttributes};
use crate::cgroup::CgroupLimiter;
use crate::config::Config;
use crate::gpus::Gpus;
use crate::probe::HostRoot;

/// The running program, whatever has become of its file since it was started.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// The seams of one host.
#[derive(Clone)]
pub struct Host {
    /// Its GPUs.
    pub partitioner: Arc<Gpus>,
    /// Its control groups.
    pub limiter: Arc<CgroupLimiter>,
}

impl Host {
    /// The host that `config` describes. Nothing is touched yet. The running program must have the
    /// hidden subcommand `write-attribute` ([`crate::attributes::WriteArguments`]).
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self::with_writer(config, THIS_PROGRAM.into())
    }

    /// As [`Self::new`], for a program without that subcommand: `program` has it.
    #[must_use]
    pub fn with_writer(config: &Config, program: PathBuf) -> Self {
        let (paths, deadline) = (&config.paths, config.write_deadline);
        let attributes = match &paths.attributes {
            Some(socket) => ChildAttributes::socket(program, socket.clone(), deadline),
            None => ChildAttributes::files(program, paths.root.clone(), deadline),
        };
        let attributes: Arc<dyn Attributes> = Arc::new(attributes.taking_over(&paths.proc));
        let partitioner = Gpus::new(
            paths.root.clone(),
            paths.nvml.clone(),
            paths.proc.clone(),
            attributes,
        );
        let limiter = CgroupLimiter::new(
            paths.cgroup.clone(),
            &paths.proc,
            HostRoot::new(paths.root.clone()),
        );
        Self {
            partitioner: Arc::new(partitioner),
            limiter: Arc::new(limiter),
        }
    }
}
