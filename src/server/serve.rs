//! The life of the process: checks, recovery, serving, drain.
//!
//! ```text
//! checks ─▶ executors open their shards ─▶ shards exchange ─▶ port opens ─▶ … signal
//!                                                                             │
//!   exit 0 ◀─ executors end ◀─ shards write their marker ◀─ requests finish ◀─┘
//! ```

use std::net::{SocketAddr, TcpListener};
use std::process::exit;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::auth::AuthPart;
use super::cadence::Cadence;
use super::clock::Clock;
use super::control::{Control, Progress};
use super::directory::{self, Directory};
use super::executor;
use super::host::{self, Plan, StartRefused};
use super::jwks::{self, Refresher};
use super::listen::Acceptor;
use super::mesh::{Mesh, Message};
use super::node::{self, Part};
use super::observe::About;
use super::process;
use super::sampler::Sampler;
use super::settings::Settings;
use super::shard::Surroundings;
use super::sys::{self, StopSignals};
use super::unpark::{self, Slot};
use crate::base::ids::ShardId;
use crate::base::uuid;
use crate::broker::shard::ShardConfig;
use crate::http::Limits;

/// How often the main thread looks whether an executor has died.
const LOOK: Duration = Duration::from_millis(500);
/// Bound of the time that open requests have to finish.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// Bound of the time that the shards' final markers may take.
const STOP_MAX: Duration = Duration::from_secs(10);
/// After a fault: time for what can still be answered.
const FAULT_GRACE: Duration = Duration::from_millis(500);
/// The newest part of each shard's log kept in memory, at most.
const TAIL_BYTES_MAX: u64 = 32 << 20;
const TAIL_BYTES_MIN: u64 = 4 << 20;
/// What is kept of reads behind it is this part of it.
const READ_AHEAD_PART: u64 = 4;

/// Why serving ended before it was asked to.
#[derive(Debug)]
pub enum Failure {
    /// Nothing was served. Exit code 2.
    Refused(StartRefused),
    /// In words. Exit code 1.
    Fault(String),
}

impl From<StartRefused> for Failure {
    fn from(refused: StartRefused) -> Self {
        Self::Refused(refused)
    }
}

/// Serves until a signal. `Ok` after a clean drain. `announce` is told the address once the
/// port is open.
pub fn run(
    settings: &Settings,
    signals: StopSignals,
    announce: impl FnOnce(SocketAddr),
) -> Result<(), Failure> {
    host::check_kernel()?;
    sys::forgo_huge_pages();
    let socket = host::bind(settings.listen)?;
    let fresh = u16::try_from(host::cpus(settings)?.len()).unwrap_or(u16::MAX);
    let directory = Directory::open(&settings.data_dir, settings.shards, fresh)?;
    let plan = host::plan(settings, usize::from(directory.shards))?;
    tracing::info!(?settings, ?plan, shards = directory.shards, "starting");

    let control = Arc::new(Control::new(plan.cpus.len()));
    watch_signals(signals, control.clone());
    let mut broker = Broker::start(settings, &plan, &directory, control)?;
    broker.recover()?;
    broker.sampler.look();
    let address = host::open_port(&socket, settings.listen)?;
    let acceptor = broker.accept(socket, plan.connections_each())?;
    announce(address);
    let ended = broker.until_end();
    match ended {
        Some(fault) => {
            thread::sleep(FAULT_GRACE);
            Err(Failure::Fault(fault))
        }
        None => broker.drain(acceptor),
    }
}

/// Signals are waited for in a plain thread: glommio has nothing for them. A second one ends
/// the process at once; a crash loses nothing that was answered.
fn watch_signals(signals: StopSignals, control: Arc<Control>) {
    let waiting = thread::Builder::new().name("signals".to_owned()).spawn(move || {
        loop {
            let name = signals.wait();
            let mut count = 0;
            control.report(|progress| {
                progress.signal.get_or_insert(name);
                progress.signals += 1;
                count = progress.signals;
            });
            if count > 1 {
                tracing::warn!(name, "a second signal: ending at once");
                exit(128 + if name == "SIGINT" { libc::SIGINT } else { libc::SIGTERM });
            }
        }
    });
    if let Err(error) = waiting {
        tracing::error!(%error, "signals are not heard: end this process with SIGKILL");
    }
}

struct Broker {
    mesh: Mesh,
    control: Arc<Control>,
    sampler: Sampler,
    executors: Vec<JoinHandle<Result<(), String>>>,
}

impl Broker {
    /// Starts the watchdog and the executors, which begin to recover their shards.
    fn start(
        settings: &Settings,
        plan: &Plan,
        directory: &Directory,
        control: Arc<Control>,
    ) -> Result<Self, Failure> {
        let count = plan.cpus.len();
        let mesh = Mesh::new(count);
        let clock = Arc::new(Clock::start());
        let around = Surroundings {
            clock: clock.clone(),
            mesh: mesh.clone(),
            cadence: Arc::new(Cadence::new(directory.shards)),
            control: control.clone(),
        };
        let sampler = Sampler::new(control.clone(), clock, settings.data_dir.clone());
        let about = Arc::new(about(settings, directory));
        let (auth, refresher) = auth_of(settings)?;
        if let Some(refresher) = refresher {
            let mesh = mesh.clone();
            let thread = thread::Builder::new().name("key-set".to_owned());
            thread.spawn(move || refresher.run(&mesh)).map_err(no_thread)?;
        }
        let slots: Vec<Arc<Slot>> = (0..count).map(|_| Arc::default()).collect();
        unpark::start(slots.clone(), unpark::PERIOD).map_err(no_thread)?;
        let mut executors = Vec::with_capacity(count);
        for (index, (cpu, slot)) in plan.cpus.iter().zip(slots).enumerate() {
            let part = Part {
                index,
                probe: directory.probe(),
                shards: shards_of(index, count, settings, directory)?,
                around: around.clone(),
                limits: Limits { body_bytes: settings.max_body_bytes, ..Limits::default() },
                keys: settings.keys.clone(),
                auth: auth.clone(),
                about: about.clone(),
                shards_total: directory.shards,
                default_subscription: settings.default_subscription,
            };
            let ring = executor::Settings::new(*cpu, plan.ring_depth, plan.io_memory);
            let name = format!("executor-{index}");
            let executor = executor::spawn(name, ring, Some(slot), move || node::run(part));
            executors.push(executor.map_err(no_thread)?);
        }
        Ok(Self { mesh, control, sampler, executors })
    }

    /// Resolves once every shard is ready for clients.
    fn recover(&mut self) -> Result<(), Failure> {
        let count = self.executors.len();
        self.reach(|progress| progress.opened == count)?;
        self.mesh.tell_all(|| Message::Begin);
        self.reach(|progress| progress.ready == count)
    }

    /// Waits for a step of the start. A signal meanwhile ends the process: nothing is open yet.
    fn reach(&mut self, there: impl Fn(&Progress) -> bool) -> Result<(), Failure> {
        loop {
            let seen = self.control.wait(Some(LOOK), |progress| {
                there(progress)
                    || progress.refused.is_some()
                    || progress.fault.is_some()
                    || progress.signal.is_some()
            });
            match seen {
                Some(Progress { refused: Some(text), .. }) => return Err(unopened(&text).into()),
                Some(Progress { fault: Some(text), .. }) => return Err(Failure::Fault(text)),
                Some(Progress { signal: Some(name), .. }) => {
                    tracing::info!(name, "ending before the port was opened");
                    exit(0);
                }
                Some(_) => return Ok(()),
                None => self.refuse_dead()?,
            }
        }
    }

    /// An executor that could not be made has ended its thread with the reason.
    fn refuse_dead(&mut self) -> Result<(), Failure> {
        let Some(dead) = self.executors.iter().position(JoinHandle::is_finished) else {
            return Ok(());
        };
        let reason = match self.executors.swap_remove(dead).join() {
            Ok(Ok(())) => "its thread ended early".to_owned(),
            Ok(Err(reason)) => reason,
            Err(_) => "its thread panicked".to_owned(),
        };
        Err(host::explain_executor(&reason).into())
    }

    fn accept(&self, socket: TcpListener, connections_each: usize) -> Result<Acceptor, Failure> {
        Acceptor::start(socket, self.mesh.clone(), self.control.clone(), connections_each)
            .map_err(no_thread)
    }

    /// Sleeps while the broker serves. Returns a fault, or nothing after a signal.
    fn until_end(&mut self) -> Option<String> {
        loop {
            self.sampler.look();
            let seen = self
                .control
                .wait(Some(LOOK), |progress| progress.fault.is_some() || progress.signal.is_some());
            match seen {
                Some(Progress { fault: Some(fault), .. }) => return Some(fault),
                Some(Progress { signal, .. }) => {
                    tracing::info!(signal, "draining");
                    return None;
                }
                None if self.executors.iter().any(JoinHandle::is_finished) => {
                    return Some("an executor thread has ended".to_owned());
                }
                None => {}
            }
        }
    }

    /// `/health` says so first; parked pops get their empty answer, open requests finish, the
    /// shards write their final marker.
    fn drain(self, acceptor: Acceptor) -> Result<(), Failure> {
        self.control.begin_draining();
        self.mesh.tell_all(|| Message::Drain);
        let begun = std::time::Instant::now();
        while self.control.open_requests() > 0 && begun.elapsed() < DRAIN_MAX {
            thread::sleep(Duration::from_millis(5));
        }
        acceptor.stop();
        let left = self.control.open_requests();
        if left > 0 {
            tracing::warn!(left, "requests are still open after {DRAIN_MAX:?}: cut off");
        }
        self.mesh.tell_all(|| Message::Stop);
        let count = self.executors.len();
        let stopped = self
            .control
            .wait(Some(STOP_MAX), |progress| progress.stopped == count || progress.fault.is_some());
        match stopped {
            None => {
                return Err(Failure::Fault("the final markers took too long to write".to_owned()));
            }
            Some(Progress { fault: Some(fault), .. }) => return Err(Failure::Fault(fault)),
            Some(_) => {}
        }
        self.mesh.tell_all(|| Message::Exit);
        for executor in self.executors {
            if executor.join().is_err() {
                return Err(Failure::Fault("an executor thread panicked at its end".to_owned()));
            }
        }
        tracing::info!("stopped");
        Ok(())
    }
}

fn about(settings: &Settings, directory: &Directory) -> About {
    About {
        hostname: settings.server_id.clone().unwrap_or_else(process::hostname),
        listen: settings.listen,
        cluster: String::from_utf8_lossy(&uuid::to_text(&directory.identity)).into_owned(),
        metrics_queues: settings.metrics_queues,
        queen_metrics: settings.queen_metrics,
    }
}

/// The shards of one executor, by what [`Mesh::executor_of`] says.
fn shards_of(
    index: usize,
    executors: usize,
    settings: &Settings,
    directory: &Directory,
) -> Result<Vec<(ShardConfig, std::path::PathBuf)>, Failure> {
    let memory = settings.memory_limit.unwrap_or_else(|| host::machine_memory() / 2);
    let each = memory / u64::from(directory.shards);
    let tail = (each / 8).clamp(TAIL_BYTES_MIN, TAIL_BYTES_MAX);
    let ahead = tail / READ_AHEAD_PART;
    let bytes = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    (index..usize::from(directory.shards))
        .step_by(executors)
        .map(|shard| {
            let shard = ShardId(u16::try_from(shard).unwrap_or(u16::MAX));
            let entropy = directory::random_bytes().map_err(|error| {
                StartRefused::new(
                    format!("/dev/urandom cannot be read ({error})"),
                    "mounting /dev in this container",
                )
            })?;
            let config = ShardConfig {
                shard,
                shards: directory.shards,
                directory: directory.identity,
                segment_bytes: settings.segment_bytes,
                memory_bytes: bytes(each.saturating_sub(tail + ahead).max(TAIL_BYTES_MIN)),
                tail_bytes: bytes(tail),
                read_ahead_bytes: bytes(ahead),
                compress_bytes: settings.compress_bytes,
                keys: settings.keys.clone(),
                trace_retention_seconds: settings.trace_retention_seconds,
                entropy: u64::from_le_bytes(entropy),
            };
            Ok((config, directory.shard(shard)))
        })
        .collect()
}

/// What the executors need to let requests in, and what keeps the key set fresh.
fn auth_of(settings: &Settings) -> Result<(Option<AuthPart>, Option<Refresher>), Failure> {
    let Some(auth) = &settings.auth else { return Ok((None, None)) };
    let settings = Arc::new(auth.clone());
    let Some(refresh) = auth.refresh.clone() else {
        return Ok((Some(AuthPart { settings, keys: Arc::default(), asking: None }), None));
    };
    let (keys, asking, refresher) = jwks::begin(refresh).map_err(|text| {
        StartRefused::new(text, "putting a key set with an RSA or Ed25519 key there")
    })?;
    Ok((Some(AuthPart { settings, keys, asking: Some(asking) }), Some(refresher)))
}

fn unopened(text: &str) -> StartRefused {
    StartRefused::new(
        text,
        "restoring what it names from a backup; no file was changed beyond what recovery cuts",
    )
}

fn no_thread(error: std::io::Error) -> Failure {
    StartRefused::new(format!("a thread cannot be started ({error})"), "ulimit -u 4096").into()
}
