//! Who moves the bytes: whoever waits for them.
//!
//! A driver owns an epoll instance and the sockets that are registered with it. At any time at most
//! one thread *leads* it: it waits for readiness and moves the bytes. A thread that waits for
//! something leads while it waits, so that a message is handled by the thread that wants it, without
//! a hand-over between threads (20–60 µs each way where a sleeping thread must be woken). When
//! several threads wait, one leads and the others are woken when their turn or their result comes.
//! While nobody waits, a background thread leads.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::time::Timespec;
use treadle_memory::{give_back, withhold};

use crate::lookout::Lookout;
use crate::thread::{self, caught};

/// The background thread takes over when nobody has led for this long: longer than most programs
/// take between two waits, since taking the lead back from a sleeping thread costs two switches.
const GRACE: Duration = Duration::from_millis(3);
/// While leaders change more often than this, the background thread looks now and then whether
/// somebody leads; then it sleeps until the leader stops, who has to wake it.
const CALM: Duration = Duration::from_millis(20);
/// The background thread sleeps for this long while there is nothing to drive, and where threads are
/// patient: they come in turns, and are not to be waited for.
const IDLE: Duration = Duration::from_secs(1);
/// The grain of the sources' timers.
const TICK: Duration = Duration::from_millis(50);
/// A waiting thread looks at least this often whether it was interrupted.
const INTERRUPT: Duration = Duration::from_millis(25);
/// Events taken from epoll at a time.
const EVENTS: usize = 64;

/// What a socket is ready for. An error or a hang-up is both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readiness {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

/// Something that a driver drives. Its methods are called by the leader, one at a time.
pub(crate) trait Source: Send + Sync {
    /// Its socket is ready. Does a bounded amount of work: what is left makes it ready again.
    fn ready(self: Arc<Self>, token: Token, readiness: Readiness);
    /// The time that it was to be called at has come: a tick after it was registered, then when it
    /// says (`None`: it does not know), or has asked for with [`Driver::call_at`].
    fn tick(self: Arc<Self>, token: Token, now: Instant) -> Option<Instant>;
    /// One of the other methods has panicked; what to say. Ends what the socket is for.
    fn panicked(self: Arc<Self>, token: Token, reason: String);
}

/// A registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Token(u64);

/// Set in the tokens of control connections: the leader serves them first.
const CONTROL: u64 = 1 << 63;
/// The token of the bell.
const BELL: u64 = u64::MAX;

/// Which readiness to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    Read,
    Write,
    Both,
    None,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        match self {
            Self::Read => epoll::EventFlags::IN,
            Self::Write => epoll::EventFlags::OUT,
            Self::Both => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            Self::None => epoll::EventFlags::empty(),
        }
    }
}

/// How long to wait, and what may interrupt it.
pub struct Wait<'a> {
    /// When to give up.
    pub deadline: Option<Instant>,
    /// Asked now and then, without any lock held: `true` ends the wait.
    pub interrupted: Option<&'a mut dyn FnMut() -> bool>,
}

impl Wait<'_> {
    /// Whether something ends it now.
    pub fn is_interrupted(&mut self) -> bool {
        self.interrupted
            .as_mut()
            .is_some_and(|interrupted| interrupted())
    }

    /// Whether it is time to give up.
    pub(crate) fn is_late(&self) -> bool {
        self.deadline
            .is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// The same wait, which ends at `limit` at the latest.
    pub fn until(&mut self, limit: Option<Instant>) -> Wait<'_> {
        Wait {
            deadline: match (self.deadline, limit) {
                (Some(deadline), Some(limit)) => Some(deadline.min(limit)),
                (deadline, limit) => deadline.or(limit),
            },
            interrupted: match &mut self.interrupted {
                Some(interrupted) => Some(&mut **interrupted),
                None => None,
            },
        }
    }

    /// How long to sleep before it is time to look whether it has ended.
    pub fn look(&self) -> Duration {
        let most = match self.interrupted {
            Some(_) => INTERRUPT,
            None => IDLE,
        };
        match self.deadline {
            Some(deadline) => deadline.saturating_duration_since(Instant::now()).min(most),
            None => most,
        }
    }
}

impl std::fmt::Debug for Wait<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wait")
            .field("deadline", &self.deadline)
            .finish()
    }
}

/// Why a wait ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Early {
    Deadline,
    Interrupted,
}

/// The threads that wait for one thing.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Mutex<Vec<Thread>>);

impl Waiters {
    pub(crate) fn wake(&self) {
        for thread in &*lock(&self.0) {
            thread.unpark();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    fn add(&self) {
        lock(&self.0).push(std::thread::current());
    }

    fn remove(&self) {
        let own = std::thread::current().id();
        let mut waiting = lock(&self.0);
        if let Some(at) = waiting.iter().position(|thread| thread.id() == own) {
            waiting.swap_remove(at);
        }
    }
}

/// A registered socket.
struct Entry {
    source: Arc<dyn Source>,
    /// A descriptor of its own: whoever holds the socket may be busy with it, or waiting in it.
    socket: OwnedFd,
    /// The one that it was registered with, which is open until it is deregistered.
    original: RawFd,
    /// When to call it.
    due: Option<Instant>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        give_back(self.original);
        give_back(self.socket.as_raw_fd());
    }
}

/// The registered sockets, and when to call their sources.
#[derive(Default)]
struct Sources {
    entries: HashMap<u64, Entry, RandomState>,
    /// The earliest first. An entry counts if the source's own `due` is the same.
    timers: BinaryHeap<Reverse<(Instant, u64)>>,
    /// Until when the leader sleeps, if it does and nothing happens.
    sleeps_until: Option<Instant>,
}

impl Sources {
    fn get(&self, token: Token) -> Option<&Entry> {
        self.entries.get(&token.0)
    }

    /// Has a source called; `true`: the leader must be woken for it.
    fn call_at(&mut self, token: Token, when: Instant) -> bool {
        if let Some(entry) = self.entries.get_mut(&token.0)
            && entry.due.is_none_or(|due| when < due)
        {
            entry.due = Some(when);
            self.timers.push(Reverse((when, token.0)));
            let sleeps_until = self.sleeps_until;
            return sleeps_until.is_some_and(|until| until > when.max(Instant::now() + TICK));
        }
        false
    }

    /// When there is something to call.
    fn next(&self) -> Option<Instant> {
        self.timers.peek().map(|&Reverse((due, _))| due)
    }

    /// Takes a source that is to be called by now.
    fn pop(&mut self, now: Instant) -> Option<(Token, Arc<dyn Source>)> {
        while let Some(&Reverse((due, token))) = self.timers.peek()
            && due <= now
        {
            self.timers.pop();
            if let Some(entry) = self.entries.get_mut(&token)
                && entry.due == Some(due)
            {
                entry.due = None;
                return Some((Token(token), Arc::clone(&entry.source)));
            }
        }
        None
    }
}

/// What only the leader touches.
struct Lead {
    ticked: Instant,
    lookout: Lookout,
}

const NAPPING: u8 = 0;
const LEADING: u8 = 1;
const PARKED: u8 = 2;

pub(crate) struct Driver {
    epoll: OwnedFd,
    /// Readable when the background thread should stop leading.
    bell: OwnedFd,
    lead: Mutex<Lead>,
    sources: Mutex<Sources>,
    next: AtomicU64,
    /// Threads that wait while another leads.
    followers: Waiters,
    following: AtomicUsize,
    /// The leader sleeps in epoll.
    asleep: AtomicBool,
    left: Mutex<Instant>,
    background: OnceLock<Thread>,
    state: AtomicU8,
    /// Nobody will register anything any more.
    retired: AtomicBool,
    /// Leaders sleep at once.
    patient: AtomicBool,
}

/// Locks a mutex, also after a panic.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere left the data as it was before or after a whole step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Driver {
    /// A driver with its background thread.
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        let driver = Arc::new(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            lead: Mutex::new(Lead {
                ticked: Instant::now(),
                lookout: Lookout::default(),
            }),
            sources: Mutex::default(),
            next: AtomicU64::new(0),
            followers: Waiters::default(),
            following: AtomicUsize::new(0),
            asleep: AtomicBool::new(false),
            left: Mutex::new(Instant::now()),
            background: OnceLock::new(),
            state: AtomicU8::new(NAPPING),
            retired: AtomicBool::new(false),
            patient: AtomicBool::new(false),
        });
        let bell = epoll::EventData::new_u64(BELL);
        epoll::add(&driver.epoll, &driver.bell, bell, epoll::EventFlags::IN)?;
        let own = Arc::clone(&driver);
        let thread = thread::start("treadle-net", move || {
            while caught(|| own.background()).is_err() {
                std::thread::sleep(IDLE);
            }
        })?;
        let _ = driver.background.set(thread.thread().clone());
        Ok(driver)
    }

    /// From now on, leaders sleep at once.
    pub(crate) fn be_patient(&self) {
        self.patient.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_patient(&self) -> bool {
        self.patient.load(Ordering::Relaxed)
    }

    /// Drives a socket from now on.
    pub(crate) fn register(
        &self,
        source: Arc<dyn Source>,
        socket: BorrowedFd<'_>,
        interest: Interest,
        control: bool,
    ) -> io::Result<Token> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let token = if control { number | CONTROL } else { number };
        let original = socket.as_raw_fd();
        let socket = socket.try_clone_to_owned()?;
        withhold(original);
        withhold(socket.as_raw_fd());
        let entry = Entry {
            source,
            socket,
            original,
            due: None,
        };
        let data = epoll::EventData::new_u64(token);
        // Added under the lock, so that the leader finds the source of its first event.
        let mut sources = lock(&self.sources);
        epoll::add(&self.epoll, &entry.socket, data, interest.flags())?;
        sources.entries.insert(token, entry);
        let wakes = sources.call_at(Token(token), Instant::now() + TICK);
        drop(sources);
        if wakes {
            self.ring();
        }
        Ok(Token(token))
    }

    /// Changes what is reported about a socket.
    pub(crate) fn interest(&self, token: Token, interest: Interest) {
        // Nobody asks any more about one that was deregistered meanwhile.
        if let Some(entry) = lock(&self.sources).get(token) {
            let data = epoll::EventData::new_u64(token.0);
            let changed = epoll::modify(&self.epoll, &entry.socket, data, interest.flags());
            debug_assert!(changed.is_ok(), "{changed:?}");
        }
    }

    /// Calls the source of a socket at that time, or up to a tick later, unless it is to be called
    /// before.
    pub(crate) fn call_at(&self, token: Token, when: Instant) {
        let wakes = lock(&self.sources).call_at(token, when);
        if wakes {
            self.ring();
        }
    }

    /// Ends the connection of a socket in both directions: whoever reads it meets the end.
    pub(crate) fn shut(&self, token: Token) {
        if let Some(entry) = lock(&self.sources).get(token) {
            // Fails for a socket that is not connected any more.
            let _ = rustix::net::shutdown(&entry.socket, rustix::net::Shutdown::Both);
        }
    }

    /// Bytes that a socket has taken and the other side has not acknowledged.
    pub(crate) fn unsent(&self, token: Token) -> Option<usize> {
        /// `SIOCOUTQ` of `linux/sockios.h`, the same number as `TIOCOUTQ`.
        const SIOCOUTQ: rustix::ioctl::Opcode = 0x5411;
        let sources = lock(&self.sources);
        let entry = sources.get(token)?;
        // SAFETY: the call writes one `int`, and reads nothing.
        let unsent = unsafe {
            let getter = rustix::ioctl::Getter::<SIOCOUTQ, core::ffi::c_int>::new();
            rustix::ioctl::ioctl(&entry.socket, getter)
        };
        usize::try_from(unsent.ok()?).ok()
    }

    /// Gives another source the events of a socket.
    pub(crate) fn replace(&self, token: Token, source: Arc<dyn Source>) {
        let mut sources = lock(&self.sources);
        let old = sources
            .entries
            .get_mut(&token.0)
            .map(|entry| std::mem::replace(&mut entry.source, source));
        drop(sources);
        drop(old);
    }

    /// Forgets a socket. The source may be dropped here.
    pub(crate) fn deregister(&self, token: Token) {
        let entry = lock(&self.sources).entries.remove(&token.0);
        if let Some(entry) = entry {
            let deleted = epoll::delete(&self.epoll, &entry.socket);
            debug_assert!(deleted.is_ok(), "{deleted:?}");
        }
    }

    /// Waits until `done`, and leads meanwhile if nobody else does. `waiters` is what wakes this
    /// thread when another leader makes it so.
    pub(crate) fn wait(
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
            return ended_early(wait);
        }
        waiters.add();
        let result = self.wait_registered(done, wait);
        waiters.remove();
        result
    }

    /// Leads, if nobody does.
    fn try_lead(&self) -> Option<MutexGuard<'_, Lead>> {
        match self.lead.try_lock() {
            Ok(lead) => Some(lead),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn wait_registered(
        &self,
        done: &mut dyn FnMut() -> bool,
        wait: &mut Wait<'_>,
    ) -> Result<(), Early> {
        loop {
            if let Some(mut lead) = self.try_lead() {
                let finished = self.lead_until(&mut lead, done, wait.look());
                drop(lead);
                // A signal handler may wait for something here, too: it must be able to lead.
                let early = if finished { Ok(()) } else { ended_early(wait) };
                if finished || early.is_err() {
                    self.pass_on();
                    return early;
                }
                continue;
            }
            self.followers.add();
            self.following.fetch_add(1, Ordering::SeqCst);
            if self.state.load(Ordering::SeqCst) == LEADING {
                self.ring();
            }
            // Whoever leads now sees this thread among the followers when it stops.
            let free = self.try_lead().is_some();
            // Once it was so, it is not asked again: it may have taken what it found.
            let finished = !free && done();
            if !free && !finished {
                std::thread::park_timeout(wait.look());
            }
            self.following.fetch_sub(1, Ordering::SeqCst);
            self.followers.remove();
            if finished || done() {
                // The wake-up may have been meant for a new leader.
                self.pass_on();
                return Ok(());
            }
            let early = ended_early(wait);
            if early.is_err() {
                self.pass_on();
                return early;
            }
        }
    }

    /// Leads until `done`, for at most so long: then `false`.
    fn lead_until(&self, lead: &mut Lead, done: &mut dyn FnMut() -> bool, most: Duration) -> bool {
        let started = Instant::now();
        let mut quiet_since = started;
        loop {
            if done() {
                return true;
            }
            let now = Instant::now();
            let left = most.saturating_sub(now - started);
            if left.is_zero() {
                lead.lookout.note_nothing(now - quiet_since);
                return false;
            }
            let looking = !self.is_patient() && now - quiet_since < lead.lookout.length();
            if self.turn(lead, if looking { Duration::ZERO } else { left }) {
                lead.lookout.note(quiet_since.elapsed());
                quiet_since = Instant::now();
            } else if looking {
                std::thread::yield_now();
            }
        }
    }

    /// Wakes whoever should lead next.
    fn pass_on(&self) {
        *lock(&self.left) = Instant::now();
        if self.following.load(Ordering::SeqCst) > 0 {
            if let Some(thread) = lock(&self.followers.0).first() {
                thread.unpark();
            }
        } else if self.state.load(Ordering::SeqCst) == PARKED {
            self.wake_background();
        }
    }

    /// The background thread ends once nothing is registered.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
        self.ring();
        self.wake_background();
    }

    fn is_over(&self) -> bool {
        self.retired.load(Ordering::SeqCst) && lock(&self.sources).entries.is_empty()
    }

    fn wake_background(&self) {
        if let Some(thread) = self.background.get() {
            thread.unpark();
        }
    }

    /// Makes a leader that sleeps look around.
    pub(crate) fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Waits for events for at most `timeout` and handles them. Returns whether there were any.
    fn turn(&self, lead: &mut Lead, timeout: Duration) -> bool {
        let blocks = !timeout.is_zero();
        let limit = match blocks {
            true => self.fall_asleep(lead, timeout),
            false => Duration::ZERO,
        };
        let limit = Timespec::try_from(limit).expect("a short time");
        let mut space = [const { MaybeUninit::uninit() }; EVENTS];
        // An interrupted call is a turn without events: the caller looks whether to stop.
        let events: &[epoll::Event] = match epoll::wait(&self.epoll, &mut space, Some(&limit)) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => &[],
            Err(_) => {
                // Somebody closed the descriptor. Whoever waits notices at its connections.
                std::thread::sleep(TICK);
                &[]
            }
        };
        if blocks {
            self.asleep.store(false, Ordering::SeqCst);
            lock(&self.sources).sleeps_until = None;
        }
        for control in [true, false] {
            for event in events {
                self.handle(*event, control);
            }
        }
        if lead.ticked.elapsed() >= TICK {
            lead.ticked = Instant::now();
            self.tick(lead.ticked);
        }
        !events.is_empty()
    }

    /// The leader sleeps for at most so long, or until a source is to be called; returns how long.
    fn fall_asleep(&self, lead: &Lead, most: Duration) -> Duration {
        let now = Instant::now();
        let mut sources = lock(&self.sources);
        let due = sources.next().map(|due| due.max(lead.ticked + TICK));
        let until = due.map_or(now + most, |due| due.min(now + most));
        sources.sleeps_until = Some(until);
        self.asleep.store(true, Ordering::SeqCst);
        until.saturating_duration_since(now)
    }

    fn handle(&self, event: epoll::Event, control: bool) {
        let token = event.data.u64();
        if (token & CONTROL != 0) != control {
            return;
        }
        if token == BELL {
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
            return;
        }
        let source = match lock(&self.sources).get(Token(token)) {
            Some(entry) => Arc::clone(&entry.source),
            None => return,
        };
        let flags = event.flags;
        let failed = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
        let readiness = Readiness {
            readable: failed || flags.contains(epoll::EventFlags::IN),
            writable: failed || flags.contains(epoll::EventFlags::OUT),
        };
        if let Err(reason) = caught(|| source.ready(Token(token), readiness)) {
            self.panicked(Token(token), reason);
        }
    }

    /// The source of a socket has panicked, in whichever thread leads: it ends by itself, or is
    /// forgotten.
    fn panicked(&self, token: Token, reason: String) {
        let source = lock(&self.sources)
            .get(token)
            .map(|entry| Arc::clone(&entry.source));
        if let Some(source) = source
            && caught(|| source.panicked(token, reason)).is_err()
        {
            self.shut(token);
            self.deregister(token);
        }
    }

    fn tick(&self, now: Instant) {
        // All at once: one that is due again at once is called at the next tick.
        let mut sources = lock(&self.sources);
        let due: Vec<_> = std::iter::from_fn(|| sources.pop(now)).collect();
        drop(sources);
        for (token, source) in due {
            match caught(|| source.tick(token, now)) {
                Ok(Some(next)) => self.call_at(token, next),
                Ok(None) => {}
                Err(reason) => self.panicked(token, reason),
            }
        }
    }

    fn background(&self) {
        while !self.is_over() {
            if self.following.load(Ordering::SeqCst) > 0 {
                // One of them leads next.
                self.park_while(|| self.following.load(Ordering::SeqCst) > 0);
                continue;
            }
            let idle = lock(&self.left).elapsed();
            // Nobody pays for looking whether somebody leads where somebody always does.
            let is_attended = self.is_patient() && !self.retired.load(Ordering::SeqCst);
            let grace = if is_attended { IDLE } else { GRACE };
            if idle < grace {
                std::thread::park_timeout(grace);
                continue;
            }
            match self.try_lead() {
                Some(mut lead) => {
                    self.state.store(LEADING, Ordering::SeqCst);
                    while self.following.load(Ordering::SeqCst) == 0 && !self.is_over() {
                        self.turn(&mut lead, IDLE);
                    }
                    self.state.store(NAPPING, Ordering::SeqCst);
                    drop(lead);
                    self.pass_on();
                }
                None if !is_attended && idle >= CALM && self.asleep.load(Ordering::SeqCst) => {
                    self.park_while(|| self.try_lead().is_none());
                }
                None => std::thread::park_timeout(grace),
            }
        }
    }

    /// Has the background thread sleep, if there still is a reason to: whoever stops to wait last
    /// wakes it.
    fn park_while(&self, reason: impl Fn() -> bool) {
        self.state.store(PARKED, Ordering::SeqCst);
        if reason() {
            std::thread::park_timeout(IDLE);
        }
        self.state.store(NAPPING, Ordering::SeqCst);
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("epoll", &self.epoll.as_fd())
            .finish()
    }
}

fn ended_early(wait: &mut Wait<'_>) -> Result<(), Early> {
    if wait.is_interrupted() {
        return Err(Early::Interrupted);
    }
    match wait.is_late() {
        true => Err(Early::Deadline),
        false => Ok(()),
    }
}

/// The drivers of this process. A pair of peers lives on one of them; its stripes may be spread.
pub(crate) fn drivers() -> io::Result<&'static [Arc<Driver>]> {
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
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;

    use super::*;
    use crate::secret::Secret;
    use crate::{Listener, Options, Peer};

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
    fn a_source_that_panics_is_told_and_the_others_go_on() {
        let driver = Driver::start().unwrap();
        let register = |is_hopeless: bool| {
            let (told, reasons) = mpsc::channel();
            let (near, far) = UnixStream::pair().unwrap();
            let source = Arc::new(Broken(move |_, reason| {
                told.send(reason).unwrap();
                assert!(!is_hopeless, "panicked");
            }));
            let token = driver.register(source, near.as_fd(), Interest::Read, false);
            (near, far, token.unwrap(), reasons)
        };
        let (_near, far, token, reasons) = register(false);
        let told = reasons.recv_timeout(SOON).unwrap();
        assert_eq!(told, "a thread of the engine panicked: tick");
        rustix::io::write(&far, b"x").unwrap();
        let told = reasons.recv_timeout(SOON).unwrap();
        assert_eq!(told, "a thread of the engine panicked: ready");
        driver.deregister(token);
        // One that is of no use at all is forgotten.
        let (_near, _far, token, reasons) = register(true);
        reasons.recv_timeout(SOON).unwrap();
        let until = Instant::now() + SOON;
        while lock(&driver.sources).get(token).is_some() {
            assert!(Instant::now() < until);
            std::thread::yield_now();
        }
        driver.retire();
    }

    #[test]
    fn a_pair_that_panics_ends_for_both_sides() {
        let options = Options {
            secret: Some(Secret::new([7; 32]).unwrap()),
            ..Options::default()
        };
        let soon = || Wait {
            deadline: Some(Instant::now() + SOON),
            interrupted: None,
        };
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &options).unwrap();
        let address = listener.address().clone();
        let connecting =
            std::thread::spawn(move || Peer::connect(&address, &options, &mut soon()).unwrap());
        let near = listener.accept(&mut soon()).unwrap();
        let far = connecting.join().unwrap();
        let shared = Arc::clone(&near.shared);
        let (driver, token) = (Arc::clone(&shared.driver), shared.token);
        let broken = Broken(move |token, reason| Arc::clone(&shared).panicked(token, reason));
        driver.replace(token, Arc::new(broken));
        far.send(1, &[vec![1, 2, 3].into()]).unwrap();
        let error = near.next(&mut soon()).unwrap_err();
        assert_eq!(error.to_string(), "a thread of the engine panicked: ready");
        assert!(far.next(&mut soon()).is_err());
    }
}
