//! A descriptor for event loops: readable while there is something to process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// An eventfd for what comes, and a timer for what is due, behind one descriptor.
#[derive(Debug)]
pub(super) struct Bell {
    both: OwnedFd,
    event: Arc<OwnedFd>,
    timer: OwnedFd,
}

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = Arc::new(eventfd(0, flags)?);
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let readable = epoll::EventFlags::IN;
        epoll::add(&both, &*event, epoll::EventData::new_u64(0), readable)?;
        epoll::add(&both, &timer, epoll::EventData::new_u64(1), readable)?;
        Ok(Self { both, event, timer })
    }

    /// What becomes readable.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.both.as_fd()
    }

    /// What connections write to when something comes.
    pub(super) fn notifier(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.event)
    }

    /// There is something to process.
    pub(super) fn ring(&self) {
        let _ = rustix::io::write(&*self.event, &1u64.to_ne_bytes());
    }

    /// Everything that it rang for is about to be processed.
    pub(super) fn silence(&self) {
        let _ = rustix::io::read(&*self.event, &mut [0; 8]);
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
    }

    /// Rings after a while; nothing: does not.
    pub(super) fn ring_in(&self, delay: Option<Duration>) {
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // A timer of zero is none.
        let value = delay.map_or(zero, |delay| {
            Timespec::try_from(delay.max(Duration::from_micros(1))).unwrap_or(Timespec {
                tv_sec: 1 << 30,
                tv_nsec: 0,
            })
        });
        let timer = Itimerspec {
            it_interval: zero,
            it_value: value,
        };
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer);
    }
}
