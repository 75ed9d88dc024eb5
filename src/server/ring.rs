//! The log's reads and writes, on an io_uring of their own.
//!
//! glommio hands an operation to the kernel, and sees its end, only in a turn of its own, which with
//! a sleep in it costs ten times what the operation does. Here an operation is handed over with the
//! one system call that it needs, and its end is a look at the ring's memory. The ring's descriptor
//! lies in the executor's epoll set (see [`super::reactor`]), so nobody waits for it elsewhere.
//!
//! What an operation uses, its file and its memory, is the ring's until the kernel has ended it,
//! whatever becomes of the future that waits for it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use glommio::io::{DmaBuffer, DmaFile};
use io_uring::{IoUring, opcode, squeue, types};

/// Operations in the kernel at a time; more wait here.
const DEPTH: u32 = 256;

pub struct Ring {
    state: RefCell<State>,
}

struct State {
    uring: IoUring,
    slots: Vec<Slot>,
    free: Vec<usize>,
    in_kernel: u32,
    /// Slots whose operation has not been handed over.
    waiting: VecDeque<usize>,
}

enum Slot {
    Free,
    Open {
        op: Operation,
        waker: Option<Waker>,
    },
    /// Nobody waits for it any more; the kernel still works on it.
    Abandoned(Operation),
    Done {
        op: Operation,
        result: i32,
    },
}

/// One operation with all that the kernel reads and writes for it.
struct Operation {
    file: Rc<DmaFile>,
    kind: Kind,
}

enum Kind {
    Write { bytes: Rc<DmaBuffer>, part: Range<usize>, at: u64 },
    Read { into: DmaBuffer, at: u64 },
    DataSync,
}

impl Ring {
    pub fn new() -> io::Result<Self> {
        // Ends are noted when the executor is in the kernel anyway, instead of interrupting it.
        let uring = match IoUring::builder().setup_coop_taskrun().build(DEPTH) {
            // A kernel before 5.19.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::new(DEPTH)?,
            made => made?,
        };
        Ok(Self {
            state: RefCell::new(State {
                uring,
                slots: Vec::new(),
                free: Vec::new(),
                in_kernel: 0,
                waiting: VecDeque::new(),
            }),
        })
    }

    /// Writes that part of the buffer at byte `at`, or as much of it as the answer says.
    pub async fn write(
        self: &Rc<Self>,
        file: &Rc<DmaFile>,
        (bytes, part): (Rc<DmaBuffer>, Range<usize>),
        at: u64,
    ) -> io::Result<usize> {
        self.run(file, Kind::Write { bytes, part, at }).await.0
    }

    /// Fills the buffer from byte `at` on, as far as the answer says.
    pub async fn read(
        self: &Rc<Self>,
        file: &Rc<DmaFile>,
        into: DmaBuffer,
        at: u64,
    ) -> io::Result<(usize, DmaBuffer)> {
        let (read, kind) = self.run(file, Kind::Read { into, at }).await;
        match kind {
            Kind::Read { into, .. } => Ok((read?, into)),
            Kind::Write { .. } | Kind::DataSync => unreachable!("a read came back as another"),
        }
    }

    pub async fn data_sync(self: &Rc<Self>, file: &Rc<DmaFile>) -> io::Result<()> {
        self.run(file, Kind::DataSync).await.0.map(drop)
    }

    /// Begins at once, not at the first poll.
    fn run(self: &Rc<Self>, file: &Rc<DmaFile>, kind: Kind) -> Running {
        let op = Operation { file: file.clone(), kind };
        let slot = self.state.borrow_mut().begin(op);
        Running { ring: self.clone(), slot: Some(slot) }
    }

    /// The kernel has refused to take something for now. The next [`Self::harvest`] tries again.
    pub fn is_behind(&self) -> bool {
        !self.state.borrow_mut().uring.submission().is_empty()
    }

    /// Wakes whose operations have ended. True if there were any.
    pub fn harvest(&self) -> bool {
        self.state.borrow_mut().harvest()
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let fd: RawFd = self.state.borrow().uring.as_raw_fd();
        // SAFETY: the descriptor is open as long as the ring, which outlives the borrow.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl State {
    fn begin(&mut self, op: Operation) -> usize {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::Free);
            self.slots.len() - 1
        });
        self.slots[index] = Slot::Open { op, waker: None };
        self.waiting.push_back(index);
        self.hand_over();
        index
    }

    /// Gives the kernel what it has room for.
    fn hand_over(&mut self) {
        let mut added = false;
        while self.in_kernel < DEPTH
            && let Some(index) = self.waiting.pop_front()
        {
            let (Slot::Open { op, .. } | Slot::Abandoned(op)) = &mut self.slots[index] else {
                unreachable!("an operation ended before it began")
            };
            let entry = op.entry().user_data(index as u64);
            // SAFETY: the file and the memory that the entry names stay in the slot until the
            // kernel has ended the operation. A write's memory is shared, so nobody writes to it;
            // a read's is the slot's alone.
            let pushed = unsafe { self.uring.submission().push(&entry) };
            pushed.expect("the ring holds as many entries as may be in the kernel");
            self.in_kernel += 1;
            added = true;
        }
        if added || !self.uring.submission().is_empty() {
            self.submit();
        }
    }

    fn submit(&self) {
        match self.uring.submit() {
            Ok(_) => {}
            // The entries stay in the ring and go over with the next, at the latest at the next
            // look, and the reactor does not sleep before that.
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EBUSY | libc::EINTR) => {}
                _ => panic!("the log's ring does not take operations: {error}"),
            },
        }
    }

    fn harvest(&mut self) -> bool {
        let mut any = false;
        while let Some(entry) = { self.uring.completion().next() } {
            any = true;
            self.in_kernel -= 1;
            let index = usize::try_from(entry.user_data()).unwrap_or(usize::MAX);
            match std::mem::replace(&mut self.slots[index], Slot::Free) {
                Slot::Open { op, waker } => {
                    self.slots[index] = Slot::Done { op, result: entry.result() };
                    if let Some(waker) = waker {
                        waker.wake();
                    }
                }
                Slot::Abandoned(_) => self.free.push(index),
                Slot::Free | Slot::Done { .. } => unreachable!("an operation ended twice"),
            }
        }
        if !self.waiting.is_empty() || !self.uring.submission().is_empty() {
            self.hand_over();
        }
        any
    }
}

impl Operation {
    fn entry(&mut self) -> squeue::Entry {
        let file = types::Fd(self.file.as_raw_fd());
        let length = |len: usize| u32::try_from(len).expect("operations are of some megabytes");
        match &mut self.kind {
            Kind::Write { bytes, part, at } => {
                let bytes = &bytes.as_bytes()[part.clone()];
                opcode::Write::new(file, bytes.as_ptr(), length(bytes.len())).offset(*at).build()
            }
            Kind::Read { into, at } => {
                let into = into.as_bytes_mut();
                opcode::Read::new(file, into.as_mut_ptr(), length(into.len())).offset(*at).build()
            }
            Kind::DataSync => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
        }
    }
}

impl Drop for Ring {
    /// The kernel must not write to memory that has been given back.
    fn drop(&mut self) {
        let state = self.state.get_mut();
        state.waiting.clear();
        while state.in_kernel > 0 {
            match state.uring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                // What is still there stays there.
                Err(_) => return std::mem::forget(std::mem::take(&mut state.slots)),
            }
            state.in_kernel -= u32::try_from(state.uring.completion().count()).unwrap_or(u32::MAX);
        }
    }
}

/// An operation that has begun.
struct Running {
    ring: Rc<Ring>,
    /// Until it has ended.
    slot: Option<usize>,
}

impl Future for Running {
    type Output = (io::Result<usize>, Kind);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let index = self.slot.expect("polled after its end");
        let ring = self.ring.clone();
        let state = &mut *ring.state.borrow_mut();
        if let Slot::Open { waker, .. } = &mut state.slots[index] {
            *waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let Slot::Done { op, result } = std::mem::replace(&mut state.slots[index], Slot::Free)
        else {
            unreachable!("its slot went to another")
        };
        state.free.push(index);
        self.slot = None;
        let result =
            usize::try_from(result).map_err(|_negative| io::Error::from_raw_os_error(-result));
        Poll::Ready((result, op.kind))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(index) = self.slot else { return };
        let state = &mut *self.ring.state.borrow_mut();
        match std::mem::replace(&mut state.slots[index], Slot::Free) {
            Slot::Open { op, .. } => state.slots[index] = Slot::Abandoned(op),
            Slot::Done { .. } => state.free.push(index),
            Slot::Free | Slot::Abandoned(_) => unreachable!("its slot went to another"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::buf::ALIGN;
    use crate::server::clock::Clock;
    use crate::server::reactor::Reactor;
    use std::sync::Arc;

    /// Runs `test` with a file of a thousand blocks, each filled with its number's low byte.
    fn with_file<F: Future<Output = ()>>(
        name: &str,
        test: impl FnOnce(Rc<Ring>, Rc<DmaFile>) -> F + Send + 'static,
    ) {
        // On the file system of the working directory: tmpfs would not do.
        let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let path = folder.join(format!("lanemq-ring-{name}-{}", std::process::id()));
        let bytes: Vec<u8> = (0..BLOCKS).flat_map(|block| [block as u8; ALIGN]).collect();
        std::fs::write(&path, bytes).unwrap();
        glommio::LocalExecutorBuilder::default().io_memory(1 << 20).make().unwrap().run(async {
            let reactor = Reactor::new(Arc::new(Clock::start()), Arc::default()).unwrap();
            glommio::spawn_local(reactor.clone().run(|_| {})).detach();
            let file = Rc::new(DmaFile::open(&path).await.unwrap());
            test(reactor.ring.clone(), file).await;
        });
        std::fs::remove_file(&path).unwrap();
    }

    const BLOCKS: usize = 1_000;

    async fn block(ring: &Rc<Ring>, file: &Rc<DmaFile>, block: usize) -> u8 {
        let into = glommio::allocate_dma_buffer(ALIGN);
        let (read, bytes) = ring.read(file, into, (block * ALIGN) as u64).await.unwrap();
        assert_eq!(read, ALIGN);
        let first = bytes.as_bytes()[0];
        assert!(bytes.as_bytes().iter().all(|byte| *byte == first));
        first
    }

    #[test]
    fn more_operations_than_the_ring_holds_all_end() {
        const { assert!(BLOCKS > 3 * DEPTH as usize) };
        with_file("many", |ring, file| async move {
            let tasks: Vec<_> = (0..BLOCKS)
                .map(|n| {
                    let (ring, file) = (ring.clone(), file.clone());
                    glommio::spawn_local(async move { (n, block(&ring, &file, n).await) })
                })
                .collect();
            assert!(!ring.state.borrow().waiting.is_empty());
            for task in tasks {
                let (n, byte) = task.await;
                assert_eq!(byte, n as u8);
            }
            let state = ring.state.borrow();
            assert_eq!((state.in_kernel, state.free.len()), (0, state.slots.len()));
        });
    }

    #[test]
    fn what_nobody_waits_for_keeps_its_memory_until_its_end() {
        with_file("abandoned", |ring, file| async move {
            for n in 0..BLOCKS {
                let into = glommio::allocate_dma_buffer(ALIGN);
                drop(ring.run(&file, Kind::Read { into, at: (n * ALIGN) as u64 }));
                assert_eq!(block(&ring, &file, BLOCKS - 1 - n).await, (BLOCKS - 1 - n) as u8);
            }
            while ring.state.borrow().in_kernel > 0 {
                block(&ring, &file, 0).await;
            }
            // The last end may still lie in the ring, but slots do not add up.
            assert!(ring.state.borrow().slots.len() < 8);
        });
    }

    #[test]
    fn an_error_carries_the_kernels_number() {
        with_file("errors", |ring, file| async move {
            let into = glommio::allocate_dma_buffer(ALIGN);
            let read = ring.run(&file, Kind::Read { into, at: 1 }).await.0;
            assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::EINVAL));
            // It was opened for reading.
            let bytes = Rc::new(glommio::allocate_dma_buffer(ALIGN));
            let written = ring.write(&file, (bytes, 0..ALIGN), 0).await;
            assert_eq!(written.unwrap_err().raw_os_error(), Some(libc::EBADF));
            ring.data_sync(&file).await.unwrap();
        });
    }
}
