//! A global allocator that counts the allocations of each thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

#[global_allocator]
static COUNTED: Counted = Counted;

struct Counted;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
    static EXEMPT: Cell<bool> = const { Cell::new(false) };
}

/// Of all threads but the exempt ones.
static OTHERS: AtomicUsize = AtomicUsize::new(0);

fn count() {
    COUNT.with(|count| count.set(count.get() + 1));
    if !EXEMPT.get() {
        OTHERS.fetch_add(1, Ordering::Relaxed);
    }
}

/// What this thread asks for is not the others'.
pub fn exempt() {
    EXEMPT.set(true);
}

/// How often threads that are not exempt have asked for memory so far.
pub fn of_others() -> usize {
    OTHERS.load(Ordering::Relaxed)
}

// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing, for
// the cell is initialised at compile time and has no destructor.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(at, layout, bytes) }
    }
}

/// How often `call` asks for memory.
pub fn allocations(call: impl FnOnce()) -> usize {
    let before = COUNT.with(Cell::get);
    call();
    COUNT.with(Cell::get) - before
}
