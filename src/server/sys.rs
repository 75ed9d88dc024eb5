//! Every call into libc, and all `unsafe` but that of the ring: the few things neither std nor glommio
//! offers, each behind a function that cannot be misused. The sockets' calls go to the kernel by
//! rustix: libc makes each a point where its thread could be cancelled, by two atomic operations.

use std::io::{self, IoSlice};
use std::mem;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;

use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};

/// `-1` and `errno` to a result.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Asks the kernel for a ring of two entries and gives it back. The error is the kernel's own:
/// EPERM where a seccomp profile or the sysctl forbids io_uring, ENOSYS where it is missing.
pub fn probe_io_uring() -> io::Result<()> {
    // struct io_uring_params is 120 bytes; zeroed means no flags.
    let mut params = [0u8; 120];
    // SAFETY: the kernel reads and writes the 120 bytes of `params` and nothing else.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 2u32, params.as_mut_ptr()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel just made `fd` for us, and nobody else knows it.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

/// No huge pages for this process. They save nothing here, where memory is touched in small
/// scattered pieces, but each costs 2 MiB of zeros at its first touch, and most of it is never
/// used: with them the resident size was two thirds larger and a message cost an eighth more.
pub fn forgo_huge_pages() {
    // SAFETY: takes integers and touches no memory. Where the kernel has no such switch nothing
    // changes.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
}

/// The release of the running kernel, such as `6.18.1-arch`.
pub fn kernel_release() -> String {
    // SAFETY: utsname is plain arrays of bytes, for which zeros are a value.
    let mut name: libc::utsname = unsafe { mem::zeroed() };
    // SAFETY: `name` lives through the call, which only writes to it.
    if unsafe { libc::uname(&mut name) } != 0 {
        return String::new();
    }
    let bytes: Vec<u8> =
        name.release.iter().take_while(|c| **c != 0).map(|c| c.to_ne_bytes()[0]).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Bytes of the file system that holds `path`: in use, and all that an ordinary user may have.
pub fn disk_usage(path: &std::path::Path) -> io::Result<(u64, u64)> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)?;
    // SAFETY: statvfs is plain integers, for which zeros are a value.
    let mut found: libc::statvfs = unsafe { mem::zeroed() };
    // SAFETY: `path` ends with a zero, both live through the call, which only writes to `found`.
    check(unsafe { libc::statvfs(path.as_ptr(), &mut found) })?;
    let used = (found.f_blocks - found.f_bfree) * found.f_frsize;
    Ok((used, used + found.f_bavail * found.f_frsize))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    LockedMemory,
    OpenFiles,
}

/// Raises the soft limit to the hard one and returns what then holds.
pub fn raise_limit(limit: Limit) -> io::Result<u64> {
    let resource = match limit {
        Limit::LockedMemory => libc::RLIMIT_MEMLOCK,
        Limit::OpenFiles => libc::RLIMIT_NOFILE,
    };
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `now` lives through the call, which only writes to it.
    check(unsafe { libc::getrlimit(resource, &mut now) })?;
    if now.rlim_cur < now.rlim_max {
        now.rlim_cur = now.rlim_max;
        // SAFETY: `now` lives through the call, which only reads it.
        check(unsafe { libc::setrlimit(resource, &now) })?;
    }
    Ok(now.rlim_cur)
}

/// Takes the whole-file lock that other processes respect. `WouldBlock`: one of them has it.
pub fn lock_exclusively(file: &std::fs::File) -> io::Result<()> {
    // SAFETY: a plain system call on a descriptor that `file` keeps open.
    check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }).map(drop)
}

/// Reserves blocks for exactly `bytes`; the file then has that length and reads as zeros.
pub fn reserve(file: &std::fs::File, bytes: u64) -> io::Result<()> {
    let bytes = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
    // SAFETY: a plain system call on a descriptor that `file` keeps open.
    check(unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes) }).map(drop)
}

/// Drops the file's clean pages from the page cache.
pub fn forget_cached(file: &std::fs::File) {
    // SAFETY: a plain system call on a descriptor that `file` keeps open.
    // It is advice: an error changes nothing that anybody relies on.
    let _ = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// Binds without `SO_REUSEPORT`, so a port that anybody listens on is refused, whoever it is.
/// It does not listen yet: until [`listen`], clients are refused as if nobody were there.
/// (`SO_REUSEADDR` only lets a restart pass over connections in TIME_WAIT.)
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: a plain system call that makes a descriptor.
    let fd = check(unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the kernel just made `fd` for us; a socket in any state is a valid TcpListener,
    // calls on one that does not listen fail.
    let socket = unsafe { TcpListener::from_raw_fd(fd) };
    let on: libc::c_int = 1;
    // SAFETY: `on` lives through the call and its size is given.
    check(unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_REUSEADDR,
            ptr::from_ref(&on).cast(),
            size_of_u32::<libc::c_int>(),
        )
    })?;
    match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: `raw` lives through the call and its size is given.
            check(unsafe {
                libc::bind(fd, ptr::from_ref(&raw).cast(), size_of_u32::<libc::sockaddr_in>())
            })?;
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: `raw` lives through the call and its size is given.
            check(unsafe {
                libc::bind(fd, ptr::from_ref(&raw).cast(), size_of_u32::<libc::sockaddr_in6>())
            })?;
        }
    }
    Ok(socket)
}

fn size_of_u32<T>() -> libc::socklen_t {
    mem::size_of::<T>() as libc::socklen_t
}

/// Opens a bound port. Two sockets may be bound to one address while neither listens; the
/// second to come here is refused.
pub fn listen(socket: &TcpListener, backlog: i32) -> io::Result<()> {
    net::listen(socket, backlog).map_err(io::Error::from)
}

/// Ends a blocking `accept` on this socket in another thread, now and for ever.
pub fn stop_accepting(socket: &TcpListener) {
    // The one error, not listening, means there is nobody to end.
    let _ = net::shutdown(socket, Shutdown::Both);
}

/// Says to the peer that nothing more will come, without closing.
pub fn finish_sending(socket: &impl AsFd) {
    // It fails only where the peer is gone already.
    let _ = net::shutdown(socket, Shutdown::Write);
}

/// Whether the peer has closed or reset, and nothing it sent is left to read.
pub fn has_left(socket: &impl AsFd) -> bool {
    let mut byte = [0];
    match net::recv(socket, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, count)) => count == 0,
        Err(error) => !matches!(error, Errno::AGAIN | Errno::INTR),
    }
}

/// Takes what the socket has and `space` holds without waiting; `Ok(0)` is the peer's end.
pub fn receive(socket: &impl AsFd, space: &mut [u8]) -> io::Result<usize> {
    let (_, count) = net::recv(socket, space, RecvFlags::DONTWAIT)?;
    Ok(count)
}

/// A stream of the executor of this thread over any descriptor that can be polled. Nothing but
/// its readiness means anything where it is no socket.
pub fn stream_over(descriptor: OwnedFd) -> glommio::net::TcpStream {
    // SAFETY: the descriptor is open, and we give up our ownership of it. On a wrong kind of it
    // socket calls fail and have no effect.
    unsafe { glommio::net::TcpStream::from_raw_fd(descriptor.into_raw_fd()) }
}

/// Sends what the socket takes of `parts` without waiting. No SIGPIPE.
pub fn send_vectored(socket: &impl AsFd, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = match parts {
        [part] => net::send(socket, part, flags),
        _ => net::sendmsg(socket, parts, &mut SendAncillaryBuffer::default(), flags),
    };
    sent.map_err(io::Error::from)
}

/// A thread that a signal can be sent to, for as long as it runs.
#[derive(Clone, Copy)]
pub struct ThreadHandle(libc::pthread_t);

impl ThreadHandle {
    pub fn current() -> Self {
        // SAFETY: it has no preconditions.
        Self(unsafe { libc::pthread_self() })
    }

    /// Interrupts whatever system call the thread sleeps in. [`install_kick`] comes first.
    ///
    /// The caller makes sure that the thread still runs: [`super::unpark`] forgets a handle
    /// under the same lock before its thread may end.
    pub fn kick(self) {
        // SAFETY: the thread runs, as said above; SIGURG has a handler that does nothing.
        let _ = unsafe { libc::pthread_kill(self.0, libc::SIGURG) };
    }
}

/// Gives SIGURG a handler that does nothing, so that it interrupts and has no other effect.
pub fn install_kick() -> io::Result<()> {
    extern "C" fn nothing(_signal: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = nothing;
    // SAFETY: sigaction is numbers and an optional pointer, for which zeros are a value: an
    // empty mask and no flags, so also no SA_RESTART.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    // SAFETY: the handler touches nothing, so it is safe at any moment in any thread.
    check(unsafe { libc::sigaction(libc::SIGURG, &action, ptr::null_mut()) }).map(drop)
}

/// The signals that end the broker, blocked in the calling thread and all it will start.
pub struct StopSignals(libc::sigset_t);

impl StopSignals {
    /// To be called before the first thread is started.
    pub fn block() -> io::Result<Self> {
        // SAFETY: sigset_t is plain numbers, for which zeros are a value.
        let mut set: libc::sigset_t = unsafe { mem::zeroed() };
        // SAFETY: `set` lives through the calls, which only write to it or read it.
        unsafe {
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGTERM);
            libc::sigaddset(&mut set, libc::SIGINT);
            match libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut()) {
                0 => Ok(Self(set)),
                errno => Err(io::Error::from_raw_os_error(errno)),
            }
        }
    }

    /// Sleeps until one arrives. In a plain thread of its own, never on an executor.
    pub fn wait(&self) -> &'static str {
        loop {
            let mut signal = 0;
            // SAFETY: both live through the call.
            if unsafe { libc::sigwait(&self.0, &mut signal) } == 0 {
                return if signal == libc::SIGINT { "SIGINT" } else { "SIGTERM" };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpStream;

    #[test]
    fn a_bound_port_refuses_a_second_listener_and_clients_until_it_listens() {
        let first = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = first.local_addr().unwrap();
        assert!(TcpStream::connect(address).is_err());
        listen(&first, 16).unwrap();
        assert!(TcpStream::connect(address).is_ok());
        let error = bind(address).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EADDRINUSE));
    }

    #[test]
    fn parts_are_sent_in_one_message() {
        let server = bind("[::1]:0".parse().unwrap()).unwrap();
        listen(&server, 16).unwrap();
        let mut client = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let (stream, _) = server.accept().unwrap();
        let parts = [IoSlice::new(b"head "), IoSlice::new(b"body")];
        assert_eq!(send_vectored(&stream, &parts).unwrap(), 9);
        finish_sending(&stream);
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text, "head body");
    }

    #[test]
    fn a_peer_that_left_is_seen_only_behind_what_it_sent() {
        let server = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        listen(&server, 16).unwrap();
        let client = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let (mut stream, _) = server.accept().unwrap();
        assert!(!has_left(&stream));
        send_vectored(&client, &[IoSlice::new(b"x")]).unwrap();
        drop(client);
        stream.read_exact(&mut [0]).unwrap();
        // The FIN is behind the byte on the loopback by now, or a moment later.
        stream.read_exact(&mut [0]).unwrap_err();
        assert!(has_left(&stream));
    }

    #[test]
    fn accept_in_another_thread_can_be_ended() {
        let server = std::sync::Arc::new(bind("127.0.0.1:0".parse().unwrap()).unwrap());
        listen(&server, 16).unwrap();
        let waiting = std::thread::spawn({
            let server = server.clone();
            move || server.accept().map(drop)
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        stop_accepting(&server);
        assert!(waiting.join().unwrap().is_err());
    }

    #[test]
    fn this_kernel_says_its_release_and_gives_a_ring() {
        assert!(kernel_release().contains('.'));
        probe_io_uring().unwrap();
    }
}
