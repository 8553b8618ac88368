//! How a process tells its loops to stop: a watch channel that becomes true, or whose sender is gone.

use tokio::sync::watch;

/// Returns once `shutdown` says so. May be dropped and called again.
pub(crate) async fn requested(shutdown: &mut watch::Receiver<bool>) {
    // An error means that nobody is left to say it.
    let _ = shutdown.wait_for(|stop| *stop).await;
}
