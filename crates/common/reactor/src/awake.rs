//! A clock that stands still while the process does.
//!
//! A process that was stopped (Ctrl-Z, a paused container, a debugger), or had no processor for
//! long, has not heard anybody meanwhile, because it did not listen. Who judges others by their
//! silence asks this clock, and all of them are as patient after a stop as before it. A thread looks
//! at the clock several times a second: where nobody has for [`STOP`], nothing in the process ran.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How often somebody looks at the least.
const BEAT: Duration = Duration::from_millis(250);
/// From so long on, nobody looked because nobody could. No stop counts for more than this.
pub const STOP: Duration = Duration::from_secs(1);

/// What is known about the time that has passed; in nanoseconds since the clock was made.
#[derive(Debug, Default)]
struct Clock {
    /// When somebody looked last, as far as it was noted.
    seen: AtomicU64,
    /// How much of the time does not count.
    absent: AtomicU64,
    stops: AtomicU64,
    /// Held by whoever notes a stop.
    noting: Mutex<()>,
}

impl Clock {
    /// The time that counts, at a time of `raw()`.
    fn now(&self, raw: impl Fn() -> u64) -> u64 {
        loop {
            // Read again afterwards: a thread may be stopped between any two steps of this.
            let absent = self.absent.load(Ordering::SeqCst);
            let now = raw();
            if now > self.seen.load(Ordering::SeqCst).saturating_add(nanos(STOP)) {
                self.note_stop(&raw);
            } else if self.absent.load(Ordering::SeqCst) == absent {
                return now - absent;
            }
        }
    }

    fn note_stop(&self, raw: &impl Fn() -> u64) {
        let _noting = self.noting.lock().unwrap_or_else(PoisonError::into_inner);
        let now = raw();
        let since = self.seen.load(Ordering::SeqCst).saturating_add(nanos(STOP));
        if now > since {
            // Nobody was told a later time than `since` counts for: time never goes back.
            self.absent.fetch_add(now - since, Ordering::SeqCst);
            self.stops.fetch_add(1, Ordering::SeqCst);
            self.seen.fetch_max(now, Ordering::SeqCst);
        }
    }

    /// Somebody looks at it.
    fn beat(&self, raw: impl Fn() -> u64) {
        self.now(&raw);
        let now = raw();
        // A stop between the two looks is left for the next one to note.
        if now <= self.seen.load(Ordering::SeqCst).saturating_add(nanos(STOP)) {
            self.seen.fetch_max(now, Ordering::SeqCst);
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// That of this process.
static CLOCK: Clock = Clock {
    seen: AtomicU64::new(0),
    absent: AtomicU64::new(0),
    stops: AtomicU64::new(0),
    noting: Mutex::new(()),
};
static EPOCH: OnceLock<Instant> = OnceLock::new();
/// The process in which a thread looks at it: that of a parent does not for a forked child.
static WATCHED: AtomicU32 = AtomicU32::new(0);
/// No thread can be had for it: time passes as it always does.
static ALONE: AtomicBool = AtomicBool::new(false);

fn raw() -> u64 {
    nanos(EPOCH.get_or_init(Instant::now).elapsed())
}

/// The time since some moment during which this process ran. Never goes back.
pub fn now() -> Duration {
    if WATCHED.load(Ordering::Relaxed) == 0 {
        watch();
    }
    if ALONE.load(Ordering::Relaxed) {
        CLOCK.seen.fetch_max(raw(), Ordering::SeqCst);
    }
    Duration::from_nanos(CLOCK.now(raw))
}

/// How often this process was stopped, as far as anybody noticed.
pub fn stops() -> u64 {
    now();
    CLOCK.stops.load(Ordering::SeqCst)
}

/// The moment at which [`now`] will be `time`, if the process is not stopped before. `None`: never.
pub fn moment(time: Duration) -> Option<Instant> {
    Instant::now().checked_add(time.saturating_sub(now()))
}

/// Has a thread look at the clock from now on, if none does: also in a forked child.
pub fn watch() {
    let own = std::process::id();
    if WATCHED.swap(own, Ordering::SeqCst) == own {
        return;
    }
    CLOCK.seen.fetch_max(raw(), Ordering::SeqCst);
    let started = crate::thread::start("treadle-clock", || {
        loop {
            CLOCK.beat(raw);
            std::thread::sleep(BEAT);
        }
    });
    ALONE.store(started.is_err(), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A clock whose time the test sets, in milliseconds.
    #[derive(Default)]
    struct Set {
        clock: Clock,
        raw: Cell<u64>,
    }

    impl Set {
        fn at(&self, millis: u64) -> u64 {
            self.raw.set(millis * 1_000_000);
            self.clock.now(|| self.raw.get()) / 1_000_000
        }

        fn beat(&self, millis: u64) {
            self.raw.set(millis * 1_000_000);
            self.clock.beat(|| self.raw.get());
        }

        fn stops(&self) -> u64 {
            self.clock.stops.load(Ordering::SeqCst)
        }
    }

    #[test]
    fn time_passes_while_the_process_runs() {
        let set = Set::default();
        for beat in 1..100 {
            set.beat(beat * 250);
            assert_eq!(set.at(beat * 250 + 200), beat * 250 + 200);
        }
        assert_eq!(set.stops(), 0);
    }

    #[test]
    fn a_stop_counts_for_a_second_at_most() {
        let set = Set::default();
        set.beat(250);
        assert_eq!(set.at(400), 400);
        // Stopped for a minute; whoever looks first notices.
        assert_eq!(set.at(60_400), 1250);
        assert_eq!(set.at(60_500), 1350);
        set.beat(60_650);
        assert_eq!(set.at(61_000), 1850);
        assert_eq!(set.stops(), 1);
        // The thread that beats may be the first.
        set.beat(90_000);
        assert_eq!(set.stops(), 2);
        assert_eq!(set.at(90_000), 2500);
    }

    #[test]
    fn a_thread_that_was_stopped_between_two_steps_is_told_no_nonsense() {
        let set = Set::default();
        set.beat(250);
        // It read the time, was stopped, and another thread has noted that meanwhile.
        let first = Cell::new(true);
        let now = set.clock.now(|| {
            if first.replace(false) {
                set.at(60_000);
                return 300 * 1_000_000;
            }
            set.raw.get()
        });
        assert_eq!(now / 1_000_000, 1250);
    }

    #[test]
    fn it_is_watched() {
        watch();
        let (before, stops) = (now(), stops());
        std::thread::sleep(STOP * 2);
        assert!(now() > before);
        // This may be a machine without a processor to spare: then it says that it was stopped.
        assert!(now() >= before + STOP || super::stops() > stops);
    }
}
