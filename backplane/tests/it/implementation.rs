//! The implementations under test, and the clock that they are given.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use backplane::sqlite::SqliteBackplane;
use backplane::{Clock, QueueName, Reads, Receiver, Sender, Store};
use tempfile::TempDir;

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
type Receivers = Box<dyn Fn(&QueueName) -> Arc<dyn Receiver>>;

/// One fresh backplane of some implementation.
pub(crate) struct Backplane {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) reads: Arc<dyn Reads>,
    pub(crate) sender: Arc<dyn Sender>,
    pub(crate) receiver: Receivers,
    pub(crate) clock: Arc<ManualClock>,
    _folder: TempDir,
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
        _folder: folder,
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
    };
}
