//! What a driver drives: sockets, and when to call whoever owns them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::Timespec;
use treadle_memory::{give_back, withhold};

use crate::thread::{Panicked, caught, lock};
use crate::wake::Waker;

/// The grain of the sources' timers.
pub const TICK: Duration = Duration::from_millis(50);
/// Events taken from epoll at a time.
const EVENTS: usize = 64;

/// What a socket is ready for. An error or a hang-up is both.
#[derive(Clone, Copy, Debug)]
pub struct Readiness {
    /// There is something to read, or the end.
    pub readable: bool,
    /// There is room to write.
    pub writable: bool,
}

/// Something that a driver drives. Its methods are called by the leader, one at a time.
pub trait Source: Send + Sync {
    /// Its socket is ready. Does a bounded amount of work: what is left makes it ready again.
    fn ready(self: Arc<Self>, token: Token, readiness: Readiness);
    /// The time that it was to be called at has come: a tick after it was registered, then when it
    /// says (`None`: it does not know), or has asked for with [`Sources::call_at`].
    fn tick(self: Arc<Self>, token: Token, now: Instant) -> Option<Instant>;
    /// One of the other methods has panicked; what to say. Ends what the socket is for.
    fn panicked(self: Arc<Self>, token: Token, reason: String);
}

/// A registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(u64);

/// Set in the tokens of control connections: the leader serves them first.
const CONTROL: u64 = 1 << 63;
/// The token of the waker.
const WAKER: u64 = u64::MAX;

/// Which readiness to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// That it can be read.
    Read,
    /// That it can be written.
    Write,
    /// Either.
    Both,
    /// Errors and hang-ups only.
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
struct Registry {
    entries: HashMap<u64, Entry, RandomState>,
    /// The earliest first. An entry counts if the source's own `due` is the same.
    timers: BinaryHeap<Reverse<(Instant, u64)>>,
    /// Until when the leader sleeps, if it does and nothing happens.
    sleeps_until: Option<Instant>,
}

impl Registry {
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

/// The registered sockets, with the epoll instance that watches them.
pub struct Sources {
    epoll: OwnedFd,
    /// Has a leader that sleeps look around.
    waker: Waker,
    registry: Mutex<Registry>,
    next: AtomicU64,
}

impl Sources {
    /// An epoll instance that watches nothing yet.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = Waker::new()?;
        let data = epoll::EventData::new_u64(WAKER);
        epoll::add(&epoll, &waker, data, epoll::EventFlags::IN)?;
        Ok(Self {
            epoll,
            waker,
            registry: Mutex::default(),
            next: AtomicU64::new(0),
        })
    }

    /// Has a leader that sleeps look around.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    #[cfg(test)]
    pub(crate) fn has(&self, token: Token) -> bool {
        lock(&self.registry).get(token).is_some()
    }

    /// Whether no socket is registered.
    pub fn is_empty(&self) -> bool {
        lock(&self.registry).entries.is_empty()
    }

    /// Drives a socket from now on. Those of `control` are served before others.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn register(
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
        let mut registry = lock(&self.registry);
        epoll::add(&self.epoll, &entry.socket, data, interest.flags())?;
        registry.entries.insert(token, entry);
        let wakes = registry.call_at(Token(token), Instant::now() + TICK);
        drop(registry);
        if wakes {
            self.waker.wake();
        }
        Ok(Token(token))
    }

    /// Changes what is reported about a socket.
    pub fn interest(&self, token: Token, interest: Interest) {
        // Nobody asks any more about one that was deregistered meanwhile.
        if let Some(entry) = lock(&self.registry).get(token) {
            let data = epoll::EventData::new_u64(token.0);
            let changed = epoll::modify(&self.epoll, &entry.socket, data, interest.flags());
            debug_assert!(changed.is_ok(), "{changed:?}");
        }
    }

    /// Calls the source of a socket at that time, or up to a tick later, unless it is to be called
    /// before.
    pub fn call_at(&self, token: Token, when: Instant) {
        let wakes = lock(&self.registry).call_at(token, when);
        if wakes {
            self.waker.wake();
        }
    }

    /// Ends the connection of a socket in both directions: whoever reads it meets the end.
    pub fn shut(&self, token: Token) {
        if let Some(entry) = lock(&self.registry).get(token) {
            // Fails for a socket that is not connected any more.
            let _ = rustix::net::shutdown(&entry.socket, rustix::net::Shutdown::Both);
        }
    }

    /// Bytes that a socket has taken and the other side has not acknowledged.
    pub fn unsent(&self, token: Token) -> Option<usize> {
        /// `SIOCOUTQ` of `linux/sockios.h`, the same number as `TIOCOUTQ`.
        const SIOCOUTQ: rustix::ioctl::Opcode = 0x5411;
        let registry = lock(&self.registry);
        let entry = registry.get(token)?;
        // SAFETY: the call writes one `int`, and reads nothing.
        let unsent = unsafe {
            let getter = rustix::ioctl::Getter::<SIOCOUTQ, core::ffi::c_int>::new();
            rustix::ioctl::ioctl(&entry.socket, getter)
        };
        usize::try_from(unsent.ok()?).ok()
    }

    /// Gives another source the events of a socket.
    pub fn replace(&self, token: Token, source: Arc<dyn Source>) {
        let mut registry = lock(&self.registry);
        let old = registry
            .entries
            .get_mut(&token.0)
            .map(|entry| std::mem::replace(&mut entry.source, source));
        drop(registry);
        // Without the lock: what a source holds may come back here when it is dropped.
        drop(old);
    }

    /// Forgets a socket. The source may be dropped here.
    pub fn deregister(&self, token: Token) {
        let entry = lock(&self.registry).entries.remove(&token.0);
        if let Some(entry) = entry {
            let deleted = epoll::delete(&self.epoll, &entry.socket);
            debug_assert!(deleted.is_ok(), "{deleted:?}");
        }
    }

    /// Waits for events for at most so long, or until a source is to be called, and handles them.
    /// Returns whether there were any. `ticked` is when sources were called last.
    pub fn turn(&self, ticked: &mut Instant, timeout: Duration) -> bool {
        let blocks = !timeout.is_zero();
        let limit = match blocks {
            true => self.fall_asleep(*ticked, timeout),
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
            lock(&self.registry).sleeps_until = None;
        }
        for control in [true, false] {
            for event in events {
                self.handle(*event, control);
            }
        }
        if ticked.elapsed() >= TICK {
            *ticked = Instant::now();
            self.tick(*ticked);
        }
        !events.is_empty()
    }

    /// The leader sleeps for at most so long, or until a source is to be called; returns how long.
    fn fall_asleep(&self, ticked: Instant, most: Duration) -> Duration {
        let now = Instant::now();
        let mut registry = lock(&self.registry);
        let due = registry.next().map(|due| due.max(ticked + TICK));
        let until = due.map_or(now + most, |due| due.min(now + most));
        registry.sleeps_until = Some(until);
        until.saturating_duration_since(now)
    }

    fn handle(&self, event: epoll::Event, control: bool) {
        let token = event.data.u64();
        if (token & CONTROL != 0) != control {
            return;
        }
        if token == WAKER {
            self.waker.reset();
            return;
        }
        let source = match lock(&self.registry).get(Token(token)) {
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
            self.panicked(Token(token), &reason);
        }
    }

    /// The source of a socket has panicked, in whichever thread leads: it ends by itself, or is
    /// forgotten.
    fn panicked(&self, token: Token, reason: &Panicked) {
        let source = lock(&self.registry)
            .get(token)
            .map(|entry| Arc::clone(&entry.source));
        if let Some(source) = source
            && caught(|| source.panicked(token, reason.to_string())).is_err()
        {
            self.shut(token);
            self.deregister(token);
        }
    }

    fn tick(&self, now: Instant) {
        // All at once: one that is due again at once is called at the next tick.
        let mut registry = lock(&self.registry);
        let due: Vec<_> = std::iter::from_fn(|| registry.pop(now)).collect();
        drop(registry);
        for (token, source) in due {
            match caught(|| source.tick(token, now)) {
                Ok(Some(next)) => self.call_at(token, next),
                Ok(None) => {}
                Err(reason) => self.panicked(token, &reason),
            }
        }
    }
}

impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sources")
            .field("epoll", &self.epoll.as_fd())
            .finish_non_exhaustive()
    }
}
