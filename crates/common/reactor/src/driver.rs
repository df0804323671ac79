//! Which thread moves the bytes: one that waits for them.
//!
//! A driver is an epoll instance with the sockets that are registered with it, and the
//! [`Leadership`] of the threads that wait for what comes on them: the leader waits for readiness and
//! moves the bytes. While nobody waits, a background thread does.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::leader::{Busy, Grace, Handover, Leadership};
use crate::sources::Sources;
use crate::spin::Spin;
use crate::thread::{self, caught, lock};
use crate::wait::{Early, Wait, Waiters};

/// The background thread takes over when nobody has led for this long: longer than most programs
/// take between two waits, since taking the lead back from a sleeping thread costs two switches.
const GRACE: Duration = Duration::from_millis(3);
/// The longest sleep of the background thread, and its grace period where a thread always waits.
const IDLE: Duration = Duration::from_secs(1);

/// Nanoseconds for which leaders have spun in vain.
static SPUN: AtomicU64 = AtomicU64::new(0);

/// How long the leaders of this process have spun in vain, altogether.
pub fn spun() -> Duration {
    Duration::from_nanos(SPUN.load(Ordering::Relaxed))
}

/// What only the leader touches.
#[derive(Debug)]
struct Lead {
    ticked: Instant,
    spin: Spin,
}

/// An epoll instance, and the threads that wait at it.
#[derive(Debug)]
pub struct Driver {
    /// The sockets that it drives.
    pub sources: Sources,
    leadership: Leadership,
    lead: Mutex<Lead>,
    /// Leaders look again for a moment before they sleep.
    spins: bool,
    /// Nobody will register anything any more.
    retired: AtomicBool,
}

impl Driver {
    /// A driver with its background thread.
    ///
    /// # Errors
    /// When the system has no more threads or descriptors.
    pub fn start() -> io::Result<Arc<Self>> {
        Self::new(true, GRACE)
    }

    /// The same, for threads that sleep at once. One nearly always waits. The background thread
    /// leads until the first one does.
    ///
    /// # Errors
    /// As [`Driver::start`].
    pub fn start_attended() -> io::Result<Arc<Self>> {
        Self::attended(IDLE)
    }

    fn attended(period: Duration) -> io::Result<Arc<Self>> {
        let driver = Self::new(false, period)?;
        // Nobody waits yet, and what comes first would wait for the whole period.
        driver.leadership.call_standby();
        Ok(driver)
    }

    fn new(spins: bool, period: Duration) -> io::Result<Arc<Self>> {
        let sources = Sources::new()?;
        let waker = sources.waker().clone();
        let interrupt = move || waker.wake();
        // Threads lead and stop many times a period.
        let grace = Grace {
            period,
            is_stopped: false,
        };
        let driver = Arc::new(Self {
            sources,
            leadership: Leadership::with_standby(Handover::Next, grace, interrupt)?,
            lead: Mutex::new(Lead {
                ticked: Instant::now(),
                spin: Spin::default(),
            }),
            spins,
            retired: AtomicBool::new(false),
        });
        let own = Arc::clone(&driver);
        thread::start("treadle-net", move || {
            let mut turn = || {
                let is_over = own.is_over();
                if !is_over {
                    own.turn(&mut lock(&own.lead), IDLE);
                }
                !is_over
            };
            while caught(|| own.leadership.stand_by(&mut turn)).is_err() {
                std::thread::sleep(IDLE);
            }
        })?;
        Ok(driver)
    }

    /// Whether leaders look again for a moment before they sleep.
    pub fn spins(&self) -> bool {
        self.spins
    }

    /// Waits until `done`, and leads meanwhile if nobody else does. `waiters` is what wakes this
    /// thread when another leader makes it so.
    ///
    /// # Errors
    /// When the wait ends before.
    pub fn wait(
        &self,
        waiters: &Waiters,
        done: &mut dyn FnMut() -> bool,
        wait: &mut Wait<'_>,
    ) -> Result<(), Early> {
        if done() {
            return Ok(());
        }
        // Who only looks does not lead: the background thread may go on.
        if wait.is_late() {
            return wait.check();
        }
        let _waiting = waiters.enter();
        while let Some(leader) = self.leadership.lead(done, wait)? {
            if self.lead_until(done, wait.look()) {
                break;
            }
            // A signal handler may wait for something here, too: it must be able to lead.
            drop(leader);
            wait.check()?;
        }
        Ok(())
    }

    /// Leads until `done`, for at most so long: then `false`.
    fn lead_until(&self, done: &mut dyn FnMut() -> bool, most: Duration) -> bool {
        let lead = &mut *lock(&self.lead);
        let _busy = Busy::set(true);
        let started = Instant::now();
        let mut quiet_since = started;
        let mut spun_since: Option<Instant> = None;
        loop {
            if done() {
                return true;
            }
            let now = Instant::now();
            if let Some(since) = spun_since.take() {
                let spun = (now - since).as_nanos() as u64;
                SPUN.fetch_add(spun, Ordering::Relaxed);
            }
            let left = most.saturating_sub(now - started);
            if left.is_zero() {
                lead.spin.note_nothing(now - quiet_since);
                return false;
            }
            let spinning = self.spins && now - quiet_since < lead.spin.length();
            if self.turn(lead, if spinning { Duration::ZERO } else { left }) {
                lead.spin.note(quiet_since.elapsed());
                quiet_since = Instant::now();
            } else if spinning {
                std::thread::yield_now();
                spun_since = Some(now);
            }
        }
    }

    fn turn(&self, lead: &mut Lead, timeout: Duration) -> bool {
        self.sources.turn(&mut lead.ticked, timeout)
    }

    /// Has a leader that sleeps look around.
    pub fn wake(&self) {
        self.sources.waker().wake();
    }

    /// The background thread ends once nothing is registered.
    pub fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
        self.wake();
        self.leadership.call_standby();
    }

    fn is_over(&self) -> bool {
        self.retired.load(Ordering::SeqCst) && self.sources.is_empty()
    }
}

/// The drivers that this process shares. A connection lives on one of them.
///
/// # Errors
/// When the system has no thread or descriptor for the first of them.
pub fn drivers() -> io::Result<&'static [Arc<Driver>]> {
    static DRIVERS: OnceLock<Vec<Arc<Driver>>> = OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());
    if let Some(drivers) = DRIVERS.get() {
        return Ok(drivers);
    }
    let _starting = lock(&STARTING);
    if DRIVERS.get().is_none() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // One core moves about 4 GB/s, checksums included: a quarter of a large machine's fills
        // any network.
        let count = (cores / 4).clamp(1, 8);
        let mut started = vec![Driver::start()?];
        // One is enough where the system has no more threads.
        started.extend((1..count).map_while(|_| Driver::start().ok()));
        let _ = DRIVERS.set(started);
    }
    Ok(DRIVERS.get().expect("set above"))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;

    use super::*;
    use crate::sources::{Interest, Readiness, Source, Token};

    /// Panics wherever the driver calls it, and does something when it is told so.
    struct Broken<F>(F);

    impl<F: Fn(Token, String) + Send + Sync> Source for Broken<F> {
        fn ready(self: Arc<Self>, _token: Token, _readiness: Readiness) {
            panic!("ready");
        }

        fn tick(self: Arc<Self>, _token: Token, _now: Instant) -> Option<Instant> {
            panic!("tick");
        }

        fn panicked(self: Arc<Self>, token: Token, reason: String) {
            (self.0)(token, reason);
        }
    }

    const SOON: Duration = Duration::from_secs(30);

    #[test]
    fn the_background_thread_leads_until_somebody_waits() {
        let driver = Driver::attended(Duration::from_secs(3600)).unwrap();
        let until = Instant::now() + SOON;
        while driver.leadership.leader().is_none() {
            assert!(Instant::now() < until, "nobody leads");
            std::thread::sleep(Duration::from_millis(1));
        }
        driver.retire();
    }

    #[test]
    fn a_source_that_panics_is_told_and_the_others_go_on() {
        let driver = Driver::start().unwrap();
        let register = |is_hopeless: bool| {
            let (told, reasons) = mpsc::channel();
            let (near, far) = UnixStream::pair().unwrap();
            let source = Arc::new(Broken(move |_, reason| {
                told.send(reason).unwrap();
                assert!(!is_hopeless, "panicked");
            }));
            let token = driver
                .sources
                .register(source, near.as_fd(), Interest::Read, false);
            (near, far, token.unwrap(), reasons)
        };
        let (_near, far, token, reasons) = register(false);
        let told = reasons.recv_timeout(SOON).unwrap();
        assert_eq!(told, "a thread of the engine panicked: tick");
        rustix::io::write(&far, b"x").unwrap();
        let told = reasons.recv_timeout(SOON).unwrap();
        assert_eq!(told, "a thread of the engine panicked: ready");
        driver.sources.deregister(token);
        // One that is of no use at all is forgotten.
        let (_near, _far, token, reasons) = register(true);
        reasons.recv_timeout(SOON).unwrap();
        let until = Instant::now() + SOON;
        while driver.sources.has(token) {
            assert!(Instant::now() < until);
            std::thread::yield_now();
        }
        driver.retire();
    }
}
