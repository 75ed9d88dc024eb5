//! The built binary as a process with a data directory of its own.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::Client;

const START_LIMIT: Duration = Duration::from_secs(30);
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// How a broker is started.
#[derive(Clone)]
pub struct Options {
    pub shards: u32,
    /// More arguments, as on the command line.
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
}

impl Default for Options {
    fn default() -> Self {
        Self { shards: 2, arguments: Vec::new(), environment: Vec::new() }
    }
}

/// A running (or killed, and to be restarted) broker. Dropping it kills it and removes its data.
pub struct Broker {
    options: Options,
    address: SocketAddr,
    root: PathBuf,
    child: Option<Child>,
}

impl Broker {
    /// Starts a broker on a fresh directory and returns when it is healthy.
    pub fn start(options: Options) -> Self {
        let mut broker =
            Self { options, address: free_address(), root: fresh_directory(), child: None };
        broker.restart();
        broker
    }

    /// Starts it again, on the same directory and the same port: clients of a real broker find it
    /// where it was, whatever state the kernel keeps of the old connections.
    pub fn restart(&mut self) {
        self.spawn();
        self.wait_healthy();
    }

    /// Starts the process and does not wait for it.
    pub fn spawn(&mut self) {
        assert!(self.child.is_none(), "the broker still runs");
        let log = File::options().create(true).append(true).open(self.log_path()).unwrap();
        let mut command = Command::new(binary());
        // Settings of the shell that runs the tests are not settings of this broker.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LANEMQ_") {
                command.env_remove(name);
            }
        }
        // Files of the usual size would be gigabytes of zeros for each of some hundred brokers.
        let sized = |argument: &String| argument.starts_with("--segment-bytes");
        if !self.options.arguments.iter().any(sized) {
            command.arg("--segment-bytes=16MiB");
        }
        let child = command
            .args(["--listen", &self.address.to_string()])
            .args(["--shards", &self.options.shards.to_string()])
            .arg("--data-dir")
            .arg(self.data_dir())
            .args(&self.options.arguments)
            .envs(self.options.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    pub fn wait_healthy(&mut self) {
        let limit = Instant::now() + START_LIMIT;
        while !self.is_healthy() {
            let child = self.child.as_mut().expect("a broker was started");
            if let Some(status) = child.try_wait().unwrap() {
                self.child = None;
                panic!("the broker ended with {status} at start:\n{}", self.log_tail());
            }
            assert!(Instant::now() < limit, "not healthy in time:\n{}", self.log_tail());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts it where it must refuse to: waits until it has ended by itself, and returns what it
    /// printed meanwhile. Panics if it serves.
    pub fn refused(&mut self) -> String {
        let before = self.log().len();
        self.spawn();
        let limit = Instant::now() + START_LIMIT;
        loop {
            let child = self.child.as_mut().expect("it was spawned");
            if let Some(status) = child.try_wait().unwrap() {
                self.child = None;
                assert!(!status.success() && status.code().is_some(), "{status}");
                return self.log()[before..].to_owned();
            }
            assert!(!self.is_healthy(), "it serves:\n{}", self.log_tail());
            assert!(Instant::now() < limit, "neither serves nor ends:\n{}", self.log_tail());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn is_healthy(&self) -> bool {
        let answer = self.connect().and_then(|mut client| {
            client.set_read_timeout(Duration::from_secs(5))?;
            client.get("/health")
        });
        answer.is_ok_and(|answer| answer.status == 200)
    }

    pub fn connect(&self) -> io::Result<Client> {
        Client::connect(self.address)
    }

    /// A connection; panics when there is none to be had.
    pub fn client(&self) -> Client {
        self.connect().unwrap_or_else(|error| panic!("{error}:\n{}", self.log_tail()))
    }

    /// SIGKILL, and waits until the process is gone.
    pub fn kill9(&mut self) {
        let mut child = self.child.take().expect("the broker runs");
        if let Some(status) = child.try_wait().unwrap() {
            panic!("the broker had ended by itself with {status}:\n{}", self.log_tail());
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// SIGTERM, and waits for the exit status.
    pub fn terminate(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("the broker runs");
        let pid = libc::pid_t::try_from(child.id()).unwrap();
        // SAFETY: kill takes two integers and touches no memory; the child has not been waited
        // for, so its pid is still its own.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
        let limit = Instant::now() + STOP_LIMIT;
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            if Instant::now() > limit {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("the broker did not end in time after SIGTERM:\n{}", self.log_tail());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// For the next start.
    pub fn set_environment(&mut self, environment: Vec<(String, String)>) {
        self.options.environment = environment;
    }

    /// All that the process has printed.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_path()).unwrap_or_default()).into_owned()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub fn data_dir(&self) -> PathBuf {
        self.root.join("data")
    }

    fn log_path(&self) -> PathBuf {
        self.root.join("log")
    }

    /// The last lines the process printed.
    pub fn log_tail(&self) -> String {
        let text = fs::read(self.log_path()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() && std::env::var_os("KEEP_DATA").is_some() {
            eprintln!("kept {}", self.root.display());
            return;
        }
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// The binary cargo built for this test; `BROKER_BIN` names another, such as a release build for
/// the figures that are measured by hand.
fn binary() -> PathBuf {
    let other = std::env::var_os("BROKER_BIN").filter(|path| !path.is_empty());
    other.map_or_else(|| env!("CARGO_BIN_EXE_lanemq").into(), PathBuf::from)
}

/// A port that is free now. It is below the kernel's range for outgoing connections: a client that
/// tries again and again to reach a broker that is down could otherwise be given the broker's own
/// port, connect to itself, and hold the port against the restart.
fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..1000 {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let offset = (std::process::id().wrapping_mul(37).wrapping_add(step)) % 12_000;
        let port = 20_000 + u16::try_from(offset).unwrap();
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return listener.local_addr().unwrap();
        }
    }
    panic!("no free port");
}

/// Under the build directory: a real disk, where O_DIRECT and fdatasync mean something.
fn fresh_directory() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("broker-{}-{number}", std::process::id());
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(&root).unwrap();
    root
}
