//! This host as its configuration describes it: the constructors, and the only place that knows
//! whether attributes are files or a socket.

use std::sync::Arc;

use crate::attributes::{Attributes, FileAttributes, SocketAttributes};
use crate::cgroup::CgroupLimiter;
use crate::config::Paths;
use crate::mdev::MdevPartitioner;
use crate::probe::HostRoot;

/// The seams of one host.
#[derive(Clone)]
pub struct Host {
    /// Its GPUs.
    pub partitioner: Arc<MdevPartitioner>,
    /// Its control groups.
    pub limiter: Arc<CgroupLimiter>,
}

impl Host {
    /// The host whose things lie at `paths`. Nothing is touched yet.
    #[must_use]
    pub fn new(paths: &Paths) -> Self {
        let attributes: Arc<dyn Attributes> = match &paths.attributes {
            Some(socket) => Arc::new(SocketAttributes {
                socket: socket.clone(),
            }),
            None => Arc::new(FileAttributes {
                root: paths.root.clone(),
            }),
        };
        let partitioner = MdevPartitioner::new(
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
