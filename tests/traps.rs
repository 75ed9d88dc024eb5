//! glommio's four traps, each with and without our way round it.
//!
//! 1. An executor that goes to sleep with runnable tasks, for ever (`server::unpark`).
//! 2. More cancellations in one turn than the ring has entries kill innocent operations
//!    (`server::sockets`: connections take no entries; `server::host`: ring depth).
//! 3. The first file opened decides for all reads, and an empty one decides wrongly
//!    (`server::executor::warm_up`).
//! 4. An executor that accepts at the limit of open files never closes one
//!    (`server::listen`).
//!
//! Each attempt is a process of its own, this binary again with a role in its environment:
//! what the traps spoil is the thread or the process.

#![allow(clippy::unwrap_used, reason = "a test ends at its first surprise")]

use std::cell::Cell;
use std::fs;
use std::future::{Future, poll_fn};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, ExitStatus, Stdio, exit};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::io::{DmaFile, OpenOptions};
use lanemq::server::control::Control;
use lanemq::server::executor::{self, Settings};
use lanemq::server::host;
use lanemq::server::listen::Acceptor;
use lanemq::server::mesh::{Mesh, Message};
use lanemq::server::sys;
use lanemq::server::unpark::{self, Slot};

/// What a role found, as its exit code.
const WENT_WELL: i32 = 0;
const HUNG: i32 = 40;
const FAILED: i32 = 41;

const ROLE: &str = "LANEMQ_TRAP_ROLE";

/// The entry of the child processes; as a test of this process it does nothing.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (name, argument) = role.split_once(' ').unwrap_or((&role, ""));
    exit(match (name, argument) {
        ("storm", guard) => storm(guard == "guarded"),
        ("disconnects", depth) => disconnects(depth.parse().unwrap()),
        ("reads", warm) => reads(warm == "warm"),
        ("accept", "thread") => accept(true),
        ("accept", _) => accept(false),
        other => panic!("no such role {other:?}"),
    });
}

fn begin(role: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "role", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().unwrap()
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or(-1)
}

fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("traps-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

/// Runs one executor of ours to its end; exits as hung when that takes longer than `limit`.
fn on_executor<F: Future<Output = i32> + 'static>(
    settings: Settings,
    guarded: bool,
    limit: Duration,
    root: impl FnOnce() -> F + Send + 'static,
) -> i32 {
    let slot = guarded.then(Arc::<Slot>::default);
    if let Some(slot) = &slot {
        unpark::start(vec![slot.clone()], unpark::PERIOD).unwrap();
    }
    let executor = executor::spawn("trap".to_owned(), settings, slot, root).unwrap();
    let begun = Instant::now();
    while !executor.is_finished() {
        if begun.elapsed() > limit {
            exit(HUNG);
        }
        thread::sleep(Duration::from_millis(5));
    }
    executor.join().unwrap().unwrap()
}

fn settings(ring_depth: usize) -> Settings {
    Settings::new(host::allowed_cpus()[0], ring_depth, 1 << 20)
}

// ---- 1: asleep with runnable tasks ------------------------------------------------------

/// Copies on one core at once: each is descheduled often, which is what the trap needs.
const COPIES: usize = 5;

/// Tasks that yield, sleep and hand each other turns, for a while.
fn storm(guarded: bool) -> i32 {
    on_executor(settings(128), guarded, Duration::from_secs(6), || async {
        let turns = Rc::new(Cell::new(0u64));
        let mut tasks = Vec::new();
        for n in 0..8u64 {
            let turns = turns.clone();
            tasks.push(glommio::spawn_local(async move {
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_millis(400) {
                    turns.set(turns.get() + 1);
                    if n == 0 && turns.get().is_multiple_of(512) {
                        glommio::timer::sleep(Duration::from_micros(200)).await;
                    }
                    glommio::executor().yield_task_queue_now().await;
                }
            }));
        }
        for task in tasks {
            task.await;
        }
        WENT_WELL
    })
}

/// Starts `rounds` times [`COPIES`] storms at 20 µs and counts those that hung.
fn hung_storms(role: &str, rounds: usize) -> usize {
    let mut hung = 0;
    for _ in 0..rounds {
        let start = || {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "role", "--nocapture", "--test-threads=1"]);
            command.env(ROLE, role).env("LANEMQ_TEST_PREEMPT_US", "20");
            command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
        };
        let copies: Vec<Child> = (0..COPIES).map(|_| start()).collect();
        for mut copy in copies {
            match code(copy.wait().unwrap()) {
                WENT_WELL => {}
                HUNG => hung += 1,
                other => panic!("a storm ended with {other}"),
            }
        }
    }
    hung
}

#[test]
fn the_watchdog_wakes_executors_that_sleep_with_work() {
    assert_eq!(hung_storms("storm guarded", 50 / COPIES), 0, "hung under the watchdog");
    assert!(hung_storms("storm alone", 2) > 0, "the trap did not spring without the watchdog");
}

// ---- 2: more cancellations than ring entries ---------------------------------------------

/// Rounds of dropped reads and closed connections beside writers that have done nothing wrong.
fn disconnects(depth: usize) -> i32 {
    let path = folder("disconnects");
    let inside = path.clone();
    let result = on_executor(settings(depth), true, Duration::from_secs(60), move || async move {
        let probe = write_probe(&inside);
        executor::warm_up(&probe).await.unwrap();
        let failures = Rc::new(Cell::new(0u32));
        let stop = Rc::new(Cell::new(false));
        let writers: Vec<_> = (0..16)
            .map(|n| {
                let file = inside.join(format!("writer-{n}"));
                let (failures, stop) = (failures.clone(), stop.clone());
                glommio::spawn_local(write_and_sync(file, failures, stop))
            })
            .collect();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(4) && failures.get() == 0 {
            drop_many(&probe).await;
        }
        stop.set(true);
        for writer in writers {
            writer.await;
        }
        if failures.get() == 0 { WENT_WELL } else { FAILED }
    });
    let _ = fs::remove_dir_all(path);
    result
}

fn write_probe(folder: &Path) -> PathBuf {
    let probe = folder.join("probe");
    let mut file = fs::File::create(&probe).unwrap();
    file.write_all(&[1; 4_096]).unwrap();
    file.sync_all().unwrap();
    probe
}

async fn write_and_sync(path: PathBuf, failures: Rc<Cell<u32>>, stop: Rc<Cell<bool>>) {
    let open = OpenOptions::new().read(true).write(true).create(true).dma_open(&path).await;
    let Ok(file) = open else {
        failures.set(failures.get() + 1);
        return;
    };
    while !stop.get() {
        let mut buffer = file.alloc_dma_buffer(4_096);
        buffer.as_bytes_mut().fill(7);
        let written = file.write_at(buffer, 0).await.is_ok();
        if !written || file.fdatasync().await.is_err() {
            failures.set(failures.get() + 1);
        }
    }
}

type Waiting = Vec<Pin<Box<dyn Future<Output = ()>>>>;

/// Hundreds of reads and of quiet connections, all waiting, dropped in one turn: tasks of their
/// own would be dropped a few at a time.
async fn drop_many(probe: &Path) {
    let listener = glommio::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let file = Rc::new(DmaFile::open(probe).await.unwrap());
    let mut waiting = Waiting::new();
    let mut held = Vec::new();
    for _ in 0..500 {
        held.push(TcpStream::connect(address).unwrap());
        let mut stream = listener.accept().await.unwrap();
        waiting.push(Box::pin(async move {
            let _ = stream.read(&mut [0]).await;
        }));
    }
    begin_all(&mut waiting).await;
    glommio::timer::sleep(Duration::from_millis(1)).await;
    for _ in 0..400 {
        let file = file.clone();
        waiting.push(Box::pin(async move {
            let _ = file.read_at_aligned(0, 4_096).await;
        }));
    }
    begin_all(&mut waiting).await;
    // The reads have reached the kernel and not yet come back.
    glommio::timer::sleep(Duration::from_micros(30)).await;
    drop(waiting);
    drop(held);
    glommio::timer::sleep(Duration::from_millis(1)).await;
}

async fn begin_all(waiting: &mut Waiting) {
    poll_fn(|cx| {
        waiting.retain_mut(|future| future.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
}

#[test]
fn rings_deeper_than_all_that_may_be_dropped_kill_no_innocent_operation() {
    // What the least of ordinary users gets, against a ring that is too small.
    assert_eq!(code(begin("disconnects 1024").wait().unwrap()), WENT_WELL);
    let small = (0..3).map(|_| code(begin("disconnects 128").wait().unwrap()));
    assert!(small.into_iter().any(|code| code == FAILED), "the trap did not spring at depth 128");
}

// ---- 3: an empty first file ----------------------------------------------------------------

/// Opens an empty file first of all, then writes and reads it.
fn reads(warm: bool) -> i32 {
    let path = folder("reads");
    let inside = path.clone();
    let result = on_executor(settings(128), true, Duration::from_secs(20), move || async move {
        let probe = write_probe(&inside);
        if warm {
            executor::warm_up(&probe).await.unwrap();
        }
        let file = inside.join("fresh");
        let file = OpenOptions::new().read(true).write(true).create(true).dma_open(&file).await;
        let file = file.unwrap();
        let mut buffer = file.alloc_dma_buffer(4_096);
        buffer.as_bytes_mut().fill(9);
        file.write_at(buffer, 0).await.unwrap();
        match file.read_at_aligned(0, 4_096).await {
            Ok(read) if read.iter().all(|byte| *byte == 9) => WENT_WELL,
            Ok(_) => panic!("other bytes than were written"),
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => FAILED,
            Err(error) => panic!("{error}"),
        }
    });
    let _ = fs::remove_dir_all(path);
    result
}

#[test]
fn a_look_at_a_written_file_first_keeps_reads_working() {
    assert_eq!(code(begin("reads warm").wait().unwrap()), WENT_WELL);
    // On a device that can be polled, or on tmpfs, there is no trap to spring.
    let cold = code(begin("reads cold").wait().unwrap());
    if cold == WENT_WELL {
        eprintln!("this device does not show the trap");
    } else {
        assert_eq!(cold, FAILED);
    }
}

// ---- 4: accept at the limit of open files --------------------------------------------------

const FILES: u64 = 100;
const CLIENTS: usize = 200;

/// Serves echoes with few descriptors: accepting on a thread of its own, or on the executor as
/// glommio's examples do. Prints its port; ends when its input does.
fn accept(on_thread: bool) -> i32 {
    let socket = sys::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    sys::listen(&socket, 1_024).unwrap();
    let port = socket.local_addr().unwrap().port();
    let mesh = Mesh::new(1);
    let served = Arc::new(AtomicU64::new(0));
    let inbox = mesh.inbox(0).clone();
    let slot = Arc::<Slot>::default();
    unpark::start(vec![slot.clone()], unpark::PERIOD).unwrap();
    let copy = (!on_thread).then(|| socket.try_clone().unwrap());
    let counted = served.clone();
    executor::spawn("trap".to_owned(), settings(1_024), Some(slot), move || async move {
        if let Some(copy) = copy {
            glommio::spawn_local(accept_on_executor(copy, counted.clone())).detach();
        }
        let mut batch = Vec::new();
        loop {
            inbox.receive(&mut batch).await;
            for message in batch.drain(..) {
                if let Message::Connection(stream) = message {
                    let stream = sys::stream_over(stream.into());
                    glommio::spawn_local(echo(stream, counted.clone())).detach();
                }
            }
        }
    })
    .unwrap();
    let control = Arc::new(Control::new(1));
    if on_thread {
        std::mem::forget(Acceptor::start(socket, mesh, control, 10_000).unwrap());
    }
    eprintln!("port {port}");
    let _ = io::stdin().read(&mut [0]);
    WENT_WELL
}

async fn accept_on_executor(socket: TcpListener, served: Arc<AtomicU64>) {
    use std::os::fd::{FromRawFd, IntoRawFd};
    // SAFETY: the descriptor is a listening socket, and we give up our ownership of it.
    let listener = unsafe { glommio::net::TcpListener::from_raw_fd(socket.into_raw_fd()) };
    loop {
        if let Ok(stream) = listener.accept().await {
            glommio::spawn_local(echo(stream, served.clone())).detach();
        }
    }
}

async fn echo(mut stream: glommio::net::TcpStream, served: Arc<AtomicU64>) {
    let mut bytes = [0; 64];
    while let Ok(n) = stream.read(&mut bytes).await {
        if n == 0 || stream.write_all(&bytes[..n]).await.is_err() {
            return;
        }
        served.fetch_add(1, Ordering::Relaxed);
    }
}

fn echoes(stream: &mut TcpStream, within: Duration) -> bool {
    stream.set_read_timeout(Some(within)).unwrap();
    let mut answer = [0; 4];
    stream.write_all(b"ping").is_ok() && stream.read_exact(&mut answer).is_ok()
}

fn connect(port: u16) -> TcpStream {
    TcpStream::connect(("127.0.0.1", port)).unwrap()
}

/// Processor time of a process in hundredths of a second.
fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let behind = stat.rsplit_once(')').unwrap().1;
    behind.split_ascii_whitespace().skip(11).take(2).map(|f| f.parse::<u64>().unwrap()).sum()
}

fn begin_accepting(role: &str) -> (Child, u16) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "role", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    // SAFETY: between fork and exec only one system call is made, over memory of the closure.
    unsafe {
        command.pre_exec(|| {
            let limit = libc::rlimit { rlim_cur: FILES, rlim_max: FILES };
            match libc::setrlimit(libc::RLIMIT_NOFILE, &limit) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
    }
    let mut child = command.spawn().unwrap();
    let mut said = String::new();
    let mut stderr = child.stderr.take().unwrap();
    while !said.ends_with('\n') || !said.contains("port ") {
        let mut byte = [0];
        assert_eq!(stderr.read(&mut byte).unwrap(), 1, "the role said {said:?} and ended");
        said.push(byte[0].into());
    }
    // Read on in the background, or the child would block on a full pipe.
    thread::spawn(move || io::copy(&mut stderr, &mut io::sink()));
    let port = said.rsplit_once("port ").unwrap().1.trim().parse().unwrap();
    (child, port)
}

#[test]
fn at_the_file_limit_connections_are_served_and_accepting_goes_on_later() {
    let (mut child, port) = begin_accepting("accept thread");
    let mut first = connect(port);
    assert!(echoes(&mut first, Duration::from_secs(5)));
    let crowd: Vec<TcpStream> = (0..CLIENTS).map(|_| connect(port)).collect();
    thread::sleep(Duration::from_millis(200));
    let before = ticks(child.id());
    for _ in 0..10 {
        assert!(echoes(&mut first, Duration::from_secs(2)), "no answer at the file limit");
        thread::sleep(Duration::from_millis(100));
    }
    let spent = ticks(child.id()) - before;
    assert!(spent < 40, "{spent} % of a core at the file limit");
    drop(crowd);
    thread::sleep(Duration::from_millis(300));
    assert!(echoes(&mut connect(port), Duration::from_secs(5)), "accepting did not go on");
    drop(child.stdin.take());
    let _ = child.kill();
    let _ = child.wait();

    let (mut child, port) = begin_accepting("accept executor");
    let mut first = connect(port);
    assert!(echoes(&mut first, Duration::from_secs(5)));
    let crowd: Vec<TcpStream> = (0..CLIENTS).map(|_| connect(port)).collect();
    thread::sleep(Duration::from_millis(200));
    let answered = echoes(&mut first, Duration::from_secs(1));
    drop(crowd);
    let _ = child.kill();
    let _ = child.wait();
    assert!(!answered, "the trap did not spring with glommio's own accept");
}
