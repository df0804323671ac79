//! A descriptor for event loops: readable while there is something to process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll;
use treadle_reactor::Waker;
use treadle_reactor::wake::Timer;

/// A waker for what comes, and a timer for what is due, behind one descriptor.
#[derive(Debug)]
pub(super) struct Notifier {
    both: OwnedFd,
    waker: Waker,
    timer: Timer,
}

impl Notifier {
    pub(super) fn new() -> io::Result<Self> {
        let (waker, timer) = (Waker::new()?, Timer::new()?);
        let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let readable = epoll::EventFlags::IN;
        epoll::add(&both, &waker, epoll::EventData::new_u64(0), readable)?;
        epoll::add(&both, &timer, epoll::EventData::new_u64(1), readable)?;
        Ok(Self { both, waker, timer })
    }

    /// What becomes readable.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.both.as_fd()
    }

    /// What connections wake when something comes.
    pub(super) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// There is something to process.
    pub(super) fn notify(&self) {
        self.waker.wake();
    }

    /// Everything that it was notified of is about to be processed.
    pub(super) fn reset(&self) {
        self.waker.reset();
        self.timer.reset();
    }

    /// Notifies after a while; nothing: does not.
    pub(super) fn notify_in(&self, delay: Option<Duration>) {
        self.timer.set(delay);
    }
}
