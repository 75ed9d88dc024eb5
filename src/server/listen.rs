//! Accepting: one plain thread that deals connections to the executors.
//!
//! Not on the executors, for two reasons. `SO_REUSEPORT` spreads by a hash: of eight clients
//! six may land on one core. And glommio's accept fails without ever yielding while there is no
//! descriptor left, so the executor that would close some never gets to it.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::control::Control;
use super::mesh::{Mesh, Message};
use super::sys;

/// After an error of accept that will not go away at once: no descriptor, no memory.
const PAUSE: Duration = Duration::from_millis(50);

pub struct Acceptor {
    socket: Arc<TcpListener>,
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Acceptor {
    /// `socket` listens already.
    pub fn start(
        socket: TcpListener,
        mesh: Mesh,
        control: Arc<Control>,
        connections_each: usize,
    ) -> io::Result<Self> {
        let socket = Arc::new(socket);
        let stopping = Arc::new(AtomicBool::new(false));
        let dealer = Dealer { mesh, control, connections_each, next: 0 };
        let thread = thread::Builder::new().name("accept".to_owned()).spawn({
            let (socket, stopping) = (socket.clone(), stopping.clone());
            move || accept_all(&socket, &stopping, dealer)
        })?;
        Ok(Self { socket, stopping, thread })
    }

    /// Closes the port. Connections that are already dealt out stay.
    pub fn stop(self) {
        self.stopping.store(true, Ordering::Release);
        sys::stop_accepting(&self.socket);
        if self.thread.join().is_err() {
            tracing::error!("the accepting thread panicked");
        }
    }
}

fn accept_all(socket: &TcpListener, stopping: &AtomicBool, mut dealer: Dealer) {
    let mut failing = false;
    while !stopping.load(Ordering::Acquire) {
        match socket.accept() {
            Ok((stream, _)) => {
                failing = false;
                dealer.deal(stream);
            }
            Err(error) if is_of_one_client(&error) => {}
            Err(error) => {
                if stopping.load(Ordering::Acquire) {
                    return;
                }
                if !failing {
                    tracing::warn!(%error, "connections cannot be accepted for now");
                }
                failing = true;
                thread::sleep(PAUSE);
            }
        }
    }
}

/// Errors that the one connection brought with it; the next accept is not affected.
fn is_of_one_client(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted)
        || matches!(
            error.raw_os_error(),
            Some(
                libc::EPROTO
                    | libc::ENETDOWN
                    | libc::ENETUNREACH
                    | libc::EHOSTDOWN
                    | libc::EHOSTUNREACH
            )
        )
}

/// Gives each connection to the executor with the fewest, in turn among equals.
struct Dealer {
    mesh: Mesh,
    control: Arc<Control>,
    connections_each: usize,
    next: usize,
}

impl Dealer {
    fn deal(&mut self, stream: TcpStream) {
        let executor = self.choose();
        let gauges = &self.control.gauges[executor];
        let message = if gauges.connections.load(Ordering::Acquire) < self.connections_each {
            gauges.connections.fetch_add(1, Ordering::AcqRel);
            gauges.accepted.fetch_add(1, Ordering::Relaxed);
            Message::Connection(stream)
        } else {
            gauges.refused.fetch_add(1, Ordering::Relaxed);
            Message::Refuse(stream)
        };
        self.mesh.inbox(executor).send(message);
    }

    fn choose(&mut self) -> usize {
        let count = self.control.gauges.len();
        let held =
            |executor: &usize| self.control.gauges[*executor].connections.load(Ordering::Acquire);
        let first = self.next;
        let chosen = (0..count).map(|i| (first + i) % count).min_by_key(held).unwrap_or(0);
        self.next = (chosen + 1) % count;
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_go_where_the_fewest_are() {
        let control = Arc::new(Control::new(3));
        let mut dealer =
            Dealer { mesh: Mesh::new(3), control: control.clone(), connections_each: 2, next: 0 };
        let take = |dealer: &mut Dealer| {
            let chosen = dealer.choose();
            control.gauges[chosen].connections.fetch_add(1, Ordering::Relaxed);
            chosen
        };
        assert_eq!([take(&mut dealer), take(&mut dealer), take(&mut dealer)], [0, 1, 2]);
        control.gauges[1].connections.store(0, Ordering::Relaxed);
        assert_eq!(take(&mut dealer), 1);
        control.gauges[0].connections.store(9, Ordering::Relaxed);
        assert_ne!(take(&mut dealer), 0);
    }
}
