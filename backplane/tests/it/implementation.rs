//! The implementations under test, and the clock that they are given.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use backplane::sqlite::SqliteBackplane;
use backplane::{Clock, QueueName, Reads, Receiver, Sender, Store};

/// Longer than anything here takes on a slow machine; passing it means that nothing will come.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Some time in 2026.
pub(crate) const START_MS: i64 = 1_780_000_000_000;

/// Stands still until told otherwise.
pub(crate) struct ManualClock {
    now_ms: AtomicI64,
}

impl ManualClock {
    pub(crate) fn start() -> Arc<Self> {
        Arc::new(Self {
            now_ms: AtomicI64::new(START_MS),
        })
    }

    pub(crate) fn advance(&self, by: Duration) {
        let by_ms = i64::try_from(by.as_millis()).unwrap();
        self.now_ms.fetch_add(by_ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> i64 {
        self.now_ms.load(Ordering::SeqCst)
    }
}

/// Makes receivers of a backplane's queues.
pub(crate) type Receivers = Box<dyn Fn(&QueueName) -> Arc<dyn Receiver>>;

/// What differs between implementations, beside whose clock is whose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueTime {
    /// The queue goes by the test's clock, and says whenever a receipt had run out.
    OfTheTest,
    /// The queue goes by a clock of its own, which nobody can move; SQS's stand-ins accept receipts that
    /// have run out, without effect once the message was delivered again (docs/emulators.md).
    ItsOwn,
}

/// One fresh backplane of some implementation.
pub(crate) struct Backplane {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) reads: Arc<dyn Reads>,
    pub(crate) sender: Arc<dyn Sender>,
    pub(crate) receiver: Receivers,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) queue_time: QueueTime,
    /// What has to live as long as the backplane.
    pub(crate) _kept: Box<dyn std::any::Any>,
}

/// The embedded one.
pub(crate) fn sqlite() -> Backplane {
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::start();
    let backplane = open(&folder.path().join("backplane.db"), clock.clone());
    let shared = Arc::new(backplane.clone());
    Backplane {
        store: shared.clone(),
        reads: shared.clone(),
        sender: shared,
        receiver: Box::new(move |queue| Arc::new(backplane.receiver(queue))),
        clock,
        queue_time: QueueTime::OfTheTest,
        _kept: Box::new(folder),
    }
}

pub(crate) fn open(path: &Path, clock: Arc<dyn Clock>) -> SqliteBackplane {
    SqliteBackplane::create_or_open(path, clock).unwrap()
}

/// Runs each case of the suite against each implementation.
macro_rules! conforms {
    ($($case:ident),* $(,)?) => {
        mod sqlite {
            $(
                #[tokio::test]
                async fn $case() {
                    super::$case(crate::implementation::sqlite()).await;
                }
            )*
        }

        #[cfg(feature = "aws")]
        mod aws {
            $(
                #[tokio::test]
                async fn $case() {
                    super::$case(crate::aws::backplane().await).await;
                }
            )*
        }
    };
}
