//! Who serves a node's connections.
//!
//! While the engine's thread waits for a cast it serves them itself: most of what comes is for it, and
//! goes on without another thread's waking. A thread of the node's own stands in when the engine has
//! been away for [`GRACE`]: a call that is shorter costs no switch between threads, and what comes
//! meanwhile is handled after it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::serving::Rhythm;
use crate::lock;

/// How long the engine's thread is away before another one stands in.
const GRACE: Duration = Duration::from_micros(500);
/// At once; no time at all stops a timer.
const AT_ONCE: Duration = Duration::from_nanos(1);

/// Who serves.
#[derive(Debug)]
pub(super) struct Duty {
    /// Whoever serves holds it.
    rhythm: Mutex<Rhythm>,
    engine: Mutex<Engine>,
    /// Wakes who stands in.
    timer: OwnedFd,
}

/// The engine's thread.
#[derive(Clone, Copy, Debug)]
enum Engine {
    /// It has never come.
    Unknown,
    /// It serves, or wants to.
    Here(ThreadId),
    /// It left then.
    Away(Instant),
}

/// The engine's thread serves until this is dropped.
#[derive(Debug)]
pub(super) struct OnDuty<'a> {
    duty: &'a Duty,
    pub(super) rhythm: MutexGuard<'a, Rhythm>,
}

impl Duty {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            rhythm: Mutex::default(),
            engine: Mutex::new(Engine::Unknown),
            timer: timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?,
        })
    }

    /// The engine's thread comes. `step_aside` has whoever serves [look](Self::is_engine_here).
    pub(super) fn come(&self, step_aside: impl FnOnce()) -> OnDuty<'_> {
        *lock(&self.engine) = Engine::Here(std::thread::current().id());
        self.wake_in(Duration::ZERO);
        let rhythm = self.rhythm.try_lock().unwrap_or_else(|_| {
            step_aside();
            lock(&self.rhythm)
        });
        OnDuty { duty: self, rhythm }
    }

    /// Waits until the engine has been away for a while; then the caller serves.
    pub(super) fn stand_in(&self) -> MutexGuard<'_, Rhythm> {
        loop {
            let engine = *lock(&self.engine);
            let is_needed = match engine {
                Engine::Unknown => true,
                Engine::Here(_) => false,
                Engine::Away(since) => since.elapsed() >= GRACE,
            };
            if is_needed {
                return lock(&self.rhythm);
            }
            // However this ends, the reason to wait is looked at again.
            let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        }
    }

    /// Whether the engine's thread serves, or wants to.
    pub(super) fn is_engine_here(&self) -> bool {
        matches!(*lock(&self.engine), Engine::Here(_))
    }

    /// Whether it does, and is another than this one.
    pub(super) fn is_engine_elsewhere(&self) -> bool {
        match *lock(&self.engine) {
            Engine::Here(thread) => thread != std::thread::current().id(),
            Engine::Unknown | Engine::Away(_) => false,
        }
    }

    fn leave(&self) {
        *lock(&self.engine) = Engine::Away(Instant::now());
        self.wake_in(GRACE);
    }

    /// There is nothing to serve any more: nobody waits here.
    pub(super) fn end(&self) {
        *lock(&self.engine) = Engine::Unknown;
        self.wake_in(AT_ONCE);
    }

    fn wake_in(&self, time: Duration) {
        let wake = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec::try_from(time).expect("a short time"),
        };
        let set = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &wake);
        debug_assert!(set.is_ok(), "{set:?}");
    }
}

impl Drop for OnDuty<'_> {
    fn drop(&mut self) {
        self.duty.leave();
    }
}
