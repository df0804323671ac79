//! A descriptor for event loops: readable while there is something to process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll;
use treadle_reactor::Waker;
use treadle_reactor::wake::Timer;

/// A waker for what comes, and timers for what is due and for a look at who leads, behind one descriptor.
#[derive(Debug)]
pub(super) struct Notifier {
    all: OwnedFd,
    waker: Waker,
    timer: Timer,
    look: Timer,
}

impl Notifier {
    pub(super) fn new() -> io::Result<Self> {
        let (waker, timer, look) = (Waker::new()?, Timer::new()?, Timer::new()?);
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let readable = epoll::EventFlags::IN;
        epoll::add(&all, &waker, epoll::EventData::new_u64(0), readable)?;
        epoll::add(&all, &timer, epoll::EventData::new_u64(1), readable)?;
        epoll::add(&all, &look, epoll::EventData::new_u64(2), readable)?;
        Ok(Self {
            all,
            waker,
            timer,
            look,
        })
    }

    /// What becomes readable.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
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
        self.look.reset();
    }

    /// Notifies after a while; nothing: does not.
    pub(super) fn notify_in(&self, delay: Option<Duration>) {
        self.timer.set(delay);
    }

    /// Notifies after that time, whatever comes.
    pub(super) fn look_in(&self, delay: Duration) {
        self.look.set(Some(delay));
    }
}
