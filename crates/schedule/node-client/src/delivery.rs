//! What the thread that leads is at, while it processes what has come.
//!
//! That runs code of the application, which may wait for something that comes later: in this thread,
//! which leads again, or in another one. So a thread leads on only while it gets on with things. One that
//! has been at the same thing for long is stuck, as far as others can tell, and one of them takes the
//! lead, and the next thing.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use treadle_reactor::thread::lock;

/// A thread that is at the same thing for longer is stuck.
const GRACE: Duration = Duration::from_millis(250);
/// Nobody processes anything.
pub(super) const NOTHING: u64 = 0;

/// What is processed now, by number.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) grace: Duration,
    /// A thread that moves bytes is at [`NOTHING`]; whoever makes it so leads alone.
    present: AtomicU64,
    count: AtomicU64,
    /// What somebody saw first, and when.
    seen: Mutex<Option<(u64, Instant)>>,
    is_watched: AtomicBool,
}

impl Default for Delivery {
    fn default() -> Self {
        Self {
            grace: GRACE,
            present: AtomicU64::default(),
            count: AtomicU64::default(),
            seen: Mutex::default(),
            is_watched: AtomicBool::default(),
        }
    }
}

impl Delivery {
    pub(super) fn present(&self) -> u64 {
        self.present.load(Ordering::SeqCst)
    }

    /// The leader is at something new; its number.
    pub(super) fn start(&self) -> u64 {
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        self.resume(number);
        number
    }

    /// The leader is at this again.
    pub(super) fn resume(&self, number: u64) {
        self.present.store(number, Ordering::SeqCst);
    }

    /// Whoever was at this is at nothing; `false`: it was not, any more.
    pub(super) fn stop(&self, number: u64) -> bool {
        let (from, to) = (Ordering::SeqCst, Ordering::Relaxed);
        let stopped = self.present.compare_exchange(number, NOTHING, from, to);
        stopped.is_ok()
    }

    /// What the leader has been at since somebody saw it long ago.
    pub(super) fn stuck(&self) -> Option<u64> {
        let present = self.present();
        if present == NOTHING {
            return None;
        }
        let now = Instant::now();
        let mut seen = lock(&self.seen);
        match *seen {
            Some((number, since)) if number == present => {
                (now.saturating_duration_since(since) >= self.grace).then_some(present)
            }
            _ => {
                *seen = Some((present, now));
                None
            }
        }
    }

    /// Whether nobody is going to look yet.
    pub(super) fn is_to_be_watched(&self) -> bool {
        !self.is_watched.load(Ordering::Relaxed) && !self.is_watched.swap(true, Ordering::SeqCst)
    }

    /// Somebody is about to look.
    pub(super) fn looked(&self) {
        self.is_watched.store(false, Ordering::SeqCst);
    }
}
