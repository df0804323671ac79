//! What a forked child does not hold of its parent: sockets, and files that are locked.
//!
//! A connection ends, and a lock with it, when nobody has its descriptor any more. A child that had
//! copies would keep those of its parent: whoever is at the other end would not hear that the parent
//! was killed, nor the parent's own epoll that a socket was closed.

use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// Descriptors that are looked after. A process that has more of them keeps the highest in children.
const MOST: usize = 1 << 16;

/// A bit for each descriptor. No lock: a child may come to be at any time.
static OPEN: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];
static WATCH: Once = Once::new();

fn place(descriptor: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(descriptor).ok()?;
    let word = OPEN.get(number / 64)?;
    Some((word, 1 << (number % 64)))
}

/// From now on, a forked child has something harmless in the place of this descriptor, which is to be
/// given back to children before it is closed.
pub fn withhold(descriptor: RawFd) {
    // SAFETY: the handler is a function of this library, which is never unloaded.
    WATCH.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(close_in_child));
    });
    if let Some((word, bit)) = place(descriptor) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// The descriptor is about to be closed.
pub fn give_back(descriptor: RawFd) {
    if let Some((word, bit)) = place(descriptor) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// In a forked child: puts something harmless where the parent's descriptors were. The numbers stay taken,
/// since what has them here is never dropped.
extern "C" fn close_in_child() {
    // SAFETY: system calls that a signal handler may make. The descriptors are those of this library.
    unsafe {
        let nothing = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        if nothing < 0 {
            return;
        }
        for (index, word) in OPEN.iter().enumerate() {
            let mut bits = word.swap(0, Ordering::Relaxed);
            while bits != 0 {
                let number = index * 64 + bits.trailing_zeros() as usize;
                libc::dup3(nothing, number as libc::c_int, libc::O_CLOEXEC);
                bits &= bits - 1;
            }
        }
        libc::close(nothing);
    }
}
