//! Start-up checks of the real binary: each lack of the host is one line that says what is
//! wrong and what mends it, with exit code 2.

#![allow(clippy::unwrap_used, reason = "a test ends at its first surprise")]

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use lanemq::server::directory::Directory;

/// A folder on the file system of the target directory, which goes away with the value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("startup-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn data(&self) -> String {
        self.0.join("data").display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn lanemq(folder: &Folder) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lanemq"));
    command.args(["--data-dir", &folder.data(), "--listen", "127.0.0.1:0"]);
    command.env("LANEMQ_LOG_LEVEL", "error").stdin(Stdio::null());
    command
}

/// Runs `lanemq` under a shell that first does `before`.
fn under_shell(folder: &Folder, before: &str) -> Command {
    let mut command = Command::new("sh");
    let run = format!("{before} exec \"$0\" --listen 127.0.0.1:0 --data-dir \"$1\"");
    command.args(["-c", &run, env!("CARGO_BIN_EXE_lanemq"), &folder.data()]);
    command.env("LANEMQ_LOG_LEVEL", "error").stdin(Stdio::null());
    command
}

/// The one line of a refused start.
fn refusal(mut command: Command) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    let text = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("lanemq: ") && text.contains("; mend it with: "), "{text}");
    text
}

fn is_root() -> bool {
    fs::read_to_string("/proc/self/status")
        .unwrap()
        .lines()
        .any(|line| line.starts_with("Uid:") && line.split_ascii_whitespace().nth(2) == Some("0"))
}

/// Makes io_uring_setup fail with `errno` in the child, as a container's seccomp profile does.
fn block_io_uring(command: &mut Command, errno: u32) {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter};
    let op = |code: u32, k: u32, jt, jf| sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        // The number of the system call is the first word of seccomp_data.
        op(BPF_LD | BPF_W | BPF_ABS, 0, 0, 0),
        op(BPF_JMP | BPF_JEQ | BPF_K, libc::SYS_io_uring_setup as u32, 0, 1),
        op(BPF_RET | BPF_K, libc::SECCOMP_RET_ERRNO | errno, 0, 0),
        op(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    // SAFETY: between fork and exec only two system calls are made, over memory of the closure.
    unsafe {
        command.pre_exec(move || {
            let program =
                libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) != 0
            {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
}

#[test]
fn io_uring_that_is_forbidden_or_missing_is_named() {
    let folder = Folder::new("uring");
    let mut command = lanemq(&folder);
    block_io_uring(&mut command, libc::EPERM as u32);
    let text = refusal(command);
    assert!(text.contains("EPERM") && text.contains("seccomp"), "{text}");
    let mut command = lanemq(&folder);
    block_io_uring(&mut command, libc::ENOSYS as u32);
    assert!(refusal(command).contains("ENOSYS"));
    assert!(!folder.0.join("data").exists(), "a refused start made a data directory");
}

#[test]
fn an_old_kernel_is_named() {
    let folder = Folder::new("kernel");
    let mut command = lanemq(&folder);
    // SAFETY: between fork and exec only one system call is made. The personality makes uname
    // say 2.6.
    unsafe {
        command.pre_exec(|| match libc::personality(libc::UNAME26 as libc::c_ulong) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    assert!(refusal(command).contains("kernel 2.6"));
}

#[test]
fn low_limits_are_named_with_the_command_that_raises_them() {
    let folder = Folder::new("limits");
    let text = refusal(under_shell(&folder, "ulimit -Sl 128; ulimit -Hl 256;"));
    assert!(text.contains("locked memory") && text.contains("ulimit -l"), "{text}");
    let text = refusal(under_shell(&folder, "ulimit -Sn 40; ulimit -Hn 80;"));
    assert!(text.contains("open files") && text.contains("ulimit -n"), "{text}");
    let mut command = under_shell(&folder, "ulimit -n 1000;");
    command.env("LANEMQ_MAX_CONNECTIONS", "5000");
    let text = refusal(command);
    assert!(text.contains("5000 connections"), "{text}");
}

#[test]
fn a_taken_port_is_named() {
    let folder = Folder::new("port");
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lanemq"));
    command.args(["--data-dir", &folder.data()]).env("LANEMQ_LOG_LEVEL", "error");
    command.args(["--listen", &held.local_addr().unwrap().to_string()]);
    command.stdin(Stdio::null());
    let text = refusal(command);
    assert!(text.contains(&held.local_addr().unwrap().port().to_string()), "{text}");
    assert!(text.contains("taken"), "{text}");
}

#[test]
fn a_locked_directory_is_named_with_its_holder() {
    let folder = Folder::new("locked");
    let held = Directory::open(&folder.0.join("data"), None, 1).unwrap();
    let text = refusal(lanemq(&folder));
    assert!(text.contains("locked by another process"), "{text}");
    assert!(text.contains(&std::process::id().to_string()), "{text}");
    drop(held);
}

#[test]
fn another_number_of_shards_and_a_newer_format_are_refused() {
    let folder = Folder::new("shards");
    drop(Directory::open(&folder.0.join("data"), Some(3), 1).unwrap());
    let mut command = lanemq(&folder);
    command.args(["--shards", "2"]);
    let text = refusal(command);
    assert!(text.contains("has 3 shards"), "{text}");
    let file = folder.0.join("data/directory");
    let mut bytes = fs::read(&file).unwrap();
    bytes[8] = 99;
    fs::write(&file, bytes).unwrap();
    assert!(refusal(lanemq(&folder)).contains("newer lanemq (format 99"));
}

#[test]
fn a_core_that_is_not_there_is_named() {
    let folder = Folder::new("cpus");
    let mut command = lanemq(&folder);
    command.args(["--cpus", "4000"]);
    assert!(refusal(command).contains("core 4000"));
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    if !is_root() {
        return;
    }
    // Root may write everywhere. Nobody may not write into a folder of root's, but must reach
    // the binary, which may lie in root's home.
    let folder = std::env::temp_dir().join(format!("lanemq-startup-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let binary = folder.join("lanemq");
    fs::hard_link(env!("CARGO_BIN_EXE_lanemq"), &binary)
        .or_else(|_| fs::copy(env!("CARGO_BIN_EXE_lanemq"), &binary).map(drop))
        .unwrap();
    let mut command = Command::new(binary);
    command.args(["--listen", "127.0.0.1:0", "--data-dir"]).arg(folder.join("data"));
    command.uid(65_534).gid(65_534).current_dir("/").env("LANEMQ_LOG_LEVEL", "error");
    let text = refusal(command);
    assert!(text.contains("not writable"), "{text}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_file_system_without_o_direct_is_named() {
    if !is_root() {
        return;
    }
    let folder = Folder::new("direct");
    let data = folder.0.join("data");
    fs::create_dir(&data).unwrap();
    // ramfs is the one file system everywhere that has no direct I/O.
    let script = format!(
        "mount -t ramfs none '{0}' && exec '{1}' --listen 127.0.0.1:0 --data-dir '{0}'",
        data.display(),
        env!("CARGO_BIN_EXE_lanemq")
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script]).env("LANEMQ_LOG_LEVEL", "error");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() != Some(2) && (text.contains("mount") || text.contains("unshare")) {
        eprintln!("skipped: this place lets nobody mount ({text})");
        return;
    }
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("no O_DIRECT"), "{text}");
}
