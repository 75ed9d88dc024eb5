//! One glommio executor on a thread of its own, with the settings and the guard it needs.

use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use glommio::io::DmaFile;
use glommio::{LocalExecutorBuilder, Placement};

use super::unpark::Slot;

/// How often glommio comes to its own turn where the tasks leave it none. It ends a doze of the
/// reactor, which a sleep more costs, and nothing that waits for it is urgent: files are opened and
/// removed there, and the watchdog is heard. Short timers make the parking bug likely (see
/// [`super::unpark`]): never without the watchdog.
const PREEMPT: Duration = Duration::from_millis(10);

#[derive(Clone, Debug)]
pub struct Settings {
    pub cpu: usize,
    pub ring_depth: usize,
    pub io_memory: usize,
    pub preempt: Duration,
}

impl Settings {
    pub fn new(cpu: usize, ring_depth: usize, io_memory: usize) -> Self {
        Self { cpu, ring_depth, io_memory, preempt: preempt() }
    }
}

/// `LANEMQ_TEST_PREEMPT_US` is for `tests/traps.rs` alone: at 20 µs the executor loses tasks
/// within a second on a busy core, and the watchdog must find them.
fn preempt() -> Duration {
    std::env::var("LANEMQ_TEST_PREEMPT_US")
        .ok()
        .and_then(|text| text.parse().ok())
        .map_or(PREEMPT, Duration::from_micros)
}

/// Starts an executor thread that runs the future `root` makes. `Err` of the thread: the
/// executor could not be made, in words. Without a slot nobody watches it: tests only.
pub fn spawn<T, F>(
    name: String,
    settings: Settings,
    slot: Option<Arc<Slot>>,
    root: impl FnOnce() -> F + Send + 'static,
) -> io::Result<JoinHandle<Result<T, String>>>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    thread::Builder::new().name(name).spawn(move || {
        let made = LocalExecutorBuilder::new(Placement::Fixed(settings.cpu))
            .ring_depth(settings.ring_depth)
            .io_memory(settings.io_memory)
            .preempt_timer(settings.preempt)
            .make();
        let executor = match made {
            Ok(executor) => executor,
            Err(error) => {
                if let Some(slot) = &slot {
                    slot.finish();
                }
                return Err(error.to_string());
            }
        };
        let Some(slot) = slot else {
            return Ok(executor.run(async move { root().await }));
        };
        slot.before_run();
        Ok(executor.run(async move {
            let _attached = slot.attach().await;
            root().await
        }))
    })
}

/// Shows glommio a file with bytes in it, before any other is opened on this executor.
///
/// The first file opened on a device decides for the thread whether glommio polls for its
/// I/O: it tries a read on the polled ring. At the end of an empty file that read "succeeds"
/// on every device, and from then on all reads fail with EOPNOTSUPP.
pub async fn warm_up(probe: &Path) -> Result<(), String> {
    let file = DmaFile::open(probe).await.map_err(|error| error.to_string())?;
    file.close().await.map_err(|error| error.to_string())
}
