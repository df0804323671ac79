//! Descriptors that wake whoever waits for them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// The pause where a descriptor is of no use any more, as when somebody has closed it.
const PAUSE: Duration = Duration::from_millis(50);

/// An eventfd: readable from [`Waker::wake`] until [`Waker::reset`]. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// One that is not readable.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(Arc::new(eventfd(0, flags)?)))
    }

    /// Makes it readable.
    pub fn wake(&self) {
        // A counter that is full is readable.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable.
    pub fn reset(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A timerfd: readable once its time has come.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// One that is not set.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Goes off after that time instead of what was set before; `None`: never.
    pub fn set(&self, after: Option<Duration>) {
        // Zero would be never.
        let after = after.map(|after| after.max(Duration::from_nanos(1)));
        let value = after.map_or(Ok(Timespec::default()), Timespec::try_from);
        let time = Itimerspec {
            it_interval: Timespec::default(),
            // A time that no clock reaches is never.
            it_value: value.unwrap_or_default(),
        };
        let set = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &time);
        debug_assert!(set.is_ok(), "{set:?}");
    }

    /// Makes it unreadable until it goes off again.
    pub fn reset(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    /// Waits until it goes off, at most so long.
    pub(crate) fn wait(&self, most: Duration) {
        let most = Timespec::try_from(most).expect("a short time");
        let mut descriptors = [PollFd::new(&self.0, PollFlags::IN)];
        let waited = poll(&mut descriptors, Some(&most));
        let usual = [Errno::AGAIN, Errno::INTR];
        let read = waited.and_then(|_| rustix::io::read(&self.0, &mut [0; 8]));
        if read.is_err_and(|error| !usual.contains(&error)) {
            std::thread::sleep(PAUSE);
        }
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
