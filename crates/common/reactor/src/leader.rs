//! One thread leads, the others follow.
//!
//! Several threads may wait for what one of them can bring: by moving the bytes of connections, say,
//! or by processing what has come. At any time at most one of them leads. The others follow: they
//! park until what they wait for is there, or until it is their turn to lead. So a message is handled
//! by the thread that wants it, without a hand-over between threads (20–60 µs each way where a
//! sleeping thread must be woken).
//!
//! A standby thread leads while nobody else does. It takes over when nobody has led for a grace
//! period, and stops as soon as another thread wants to lead. A timer wakes it, so that whoever stops
//! to lead need not.
//!
//! ```text
//!            lead() and nobody leads                     Leader is dropped
//!   waiting ─────────────────────────► leading ─────────────────────────────► handover: the next
//!      │                                  ▲                                   follower, all, or
//!      │ lead() and somebody leads        │ called, and nobody leads          nobody is called; the
//!      └──────────────► following ────────┘                                   standby's timer is set
//!                           │ done, too late, or interrupted: calls the next
//!                           ▼ in its place
//!                        returns
//! ```
//!
//! What a thread calls while it leads must not wait for what another leader brings, nor run code that
//! may: see [`Busy`].

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard};
use std::thread::{Thread, ThreadId, park_timeout};
use std::time::{Duration, Instant};

use crate::thread::lock;
use crate::wait::{Early, LOOK, Wait};
use crate::wake::Timer;

thread_local! {
    static IS_BUSY: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread moves or takes what others may wait for. It calls nobody then.
pub fn is_busy() -> bool {
    IS_BUSY.get()
}

/// The calling thread [is busy](is_busy), or is not, until this is dropped.
#[derive(Debug)]
pub struct Busy(bool);

impl Busy {
    /// It is, or not.
    pub fn set(is_busy: bool) -> Self {
        Self(IS_BUSY.replace(is_busy))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        IS_BUSY.set(self.0);
    }
}

/// Who is called when a thread stops to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handover {
    /// The follower that has waited longest: each waits for something of its own.
    Next,
    /// All followers: each is to look whether what it waits for is there, and leads if it is not.
    All,
    /// Nobody: followers do the same work, and are [called](Leadership::call) when there is some.
    Nobody,
}

/// Who leads, and who follows.
#[derive(Debug)]
pub struct Leadership {
    handover: Handover,
    state: Mutex<State>,
    standby: Option<Standby>,
    /// Whoever waits looks at least this often.
    look: Duration,
}

#[derive(Debug, Default)]
struct State {
    leader: Option<ThreadId>,
    /// Counts leaders: one that was deposed is none any more.
    term: u64,
    /// The leader is the standby thread.
    is_standby: bool,
    /// The one that has waited longest first. One that is called is not among them any more.
    followers: VecDeque<Thread>,
    /// When somebody led last; `None`: so long ago that the standby thread may lead.
    left: Option<Instant>,
    /// The standby thread's timer is set.
    is_timed: bool,
}

/// How long nobody has led when the standby thread takes over.
#[derive(Clone, Copy, Debug)]
pub struct Grace {
    /// So long.
    pub period: Duration,
    /// The timer is stopped whenever somebody leads, which costs two system calls each time.
    /// Otherwise it goes off for nothing once a period, which costs two switches between threads.
    pub is_stopped: bool,
}

struct Standby {
    grace: Grace,
    timer: Timer,
    /// Has the standby thread, if it leads, see that somebody else wants to.
    interrupt: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Standby {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Standby")
            .field("grace", &self.grace)
            .finish_non_exhaustive()
    }
}

/// The lead, until it is dropped.
#[derive(Debug)]
pub struct Leader<'a> {
    leadership: &'a Leadership,
    term: u64,
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.leadership.end(self.term);
    }
}

impl Leadership {
    /// Nobody leads.
    pub fn new(handover: Handover) -> Self {
        Self {
            handover,
            state: Mutex::default(),
            standby: None,
            look: LOOK,
        }
    }

    /// Those who follow look so often, and not each second, for what they were not called for.
    #[must_use]
    pub fn with_look(mut self, look: Duration) -> Self {
        self.look = look;
        self
    }

    /// Nobody leads; a thread [stands by](Leadership::stand_by), which takes over when nobody has led
    /// for a while. `interrupt` is called, by any thread, to have it come back from its turn.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn with_standby(
        handover: Handover,
        grace: Grace,
        interrupt: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let timer = Timer::new()?;
        timer.set(Some(grace.period));
        Ok(Self {
            handover,
            state: Mutex::new(State {
                left: Some(Instant::now()),
                is_timed: true,
                ..State::default()
            }),
            standby: Some(Standby {
                grace,
                timer,
                interrupt: Box::new(interrupt),
            }),
            look: LOOK,
        })
    }

    /// The thread that leads.
    pub fn leader(&self) -> Option<ThreadId> {
        lock(&self.state).leader
    }

    /// Whether the calling thread leads.
    pub fn is_leader(&self) -> bool {
        self.leader() == Some(std::thread::current().id())
    }

    /// Whether a thread leads that is neither this one nor the standby thread.
    pub fn is_led_elsewhere(&self) -> bool {
        let state = lock(&self.state);
        let own = std::thread::current().id();
        !state.is_standby && state.leader.is_some_and(|leader| leader != own)
    }

    /// The number of the present leader, or of the last one.
    pub fn term(&self) -> u64 {
        lock(&self.state).term
    }

    /// Leads, if nobody does.
    pub fn try_lead(&self) -> Option<Leader<'_>> {
        let state = lock(&self.state);
        match state.leader {
            None => Some(self.begin(state, false)),
            Some(_) => None,
        }
    }

    /// Waits to lead. `None`: it was `done` before. That is asked of followers only, without a lock,
    /// whenever they are woken, and never again after it was so. Whoever makes it so unparks them.
    ///
    /// # Errors
    /// When the wait ends before.
    pub fn lead(
        &self,
        done: &mut dyn FnMut() -> bool,
        wait: &mut Wait<'_>,
    ) -> Result<Option<Leader<'_>>, Early> {
        loop {
            let state = lock(&self.state);
            if state.leader.is_none() {
                return Ok(Some(self.begin(state, false)));
            }
            let following = self.follow(state);
            // Asked once it follows: who made it so before did not know whom to unpark.
            let mut is_done = done();
            if !is_done {
                park_timeout(wait.look_within(self.look));
                is_done = done();
            }
            let is_called = following.end();
            if is_done {
                if is_called {
                    self.pass_on();
                }
                return Ok(None);
            }
            // One that is called leads first, and looks after that whether the wait has ended.
            if !is_called {
                wait.check()?;
            }
        }
    }

    /// Calls the follower that has waited longest, if there is one.
    pub fn call(&self) {
        let next = lock(&self.state).followers.pop_front();
        if let Some(next) = next {
            next.unpark();
        }
    }

    /// Calls all followers.
    pub fn call_all(&self) {
        let all = std::mem::take(&mut lock(&self.state).followers);
        all.iter().for_each(Thread::unpark);
    }

    /// Stands by until `turn`, which is called again and again while nobody else wants to lead,
    /// returns `false`. Only one thread may stand by.
    pub fn stand_by(&self, turn: &mut dyn FnMut() -> bool) {
        let Some(standby) = &self.standby else {
            return;
        };
        loop {
            let Some(_leader) = self.stand_in(standby) else {
                standby.timer.wait(self.look);
                continue;
            };
            while lock(&self.state).followers.is_empty() {
                if !turn() {
                    return;
                }
            }
        }
    }

    /// Has the standby thread lead now, if nobody else does.
    pub fn call_standby(&self) {
        if let Some(standby) = &self.standby {
            let mut state = lock(&self.state);
            state.left = None;
            state.is_timed = true;
            standby.timer.set(Some(Duration::ZERO));
        }
    }

    fn begin(&self, mut state: MutexGuard<'_, State>, is_standby: bool) -> Leader<'_> {
        state.leader = Some(std::thread::current().id());
        state.term += 1;
        state.is_standby = is_standby;
        if let Some(standby) = &self.standby
            && standby.grace.is_stopped
            && std::mem::take(&mut state.is_timed)
        {
            standby.timer.set(None);
        }
        Leader {
            leadership: self,
            term: state.term,
        }
    }

    /// The standby thread leads, if nobody has for long enough.
    fn stand_in(&self, standby: &Standby) -> Option<Leader<'_>> {
        let mut state = lock(&self.state);
        state.is_timed = false;
        // Whoever stops to lead sets the timer.
        if state.leader.is_some() || !state.followers.is_empty() {
            return None;
        }
        let idle = state.left.map_or(Duration::MAX, |left| left.elapsed());
        match standby.grace.period.checked_sub(idle) {
            Some(rest) if !rest.is_zero() => {
                state.time(standby, rest);
                None
            }
            _ => Some(self.begin(state, true)),
        }
    }

    /// The calling thread is a follower from now on.
    fn follow(&self, mut state: MutexGuard<'_, State>) -> Following<'_> {
        let own = std::thread::current();
        debug_assert_ne!(state.leader, Some(own.id()), "it would wait for itself");
        state.followers.push_back(own);
        let is_standby = state.is_standby;
        drop(state);
        if is_standby && let Some(standby) = &self.standby {
            (standby.interrupt)();
        }
        Following(self)
    }

    /// The calling thread follows no more; whether it was called.
    fn unfollow(&self) -> bool {
        let own = std::thread::current().id();
        let followers = &mut lock(&self.state).followers;
        let place = followers.iter().position(|thread| thread.id() == own);
        place.and_then(|place| followers.remove(place)).is_none()
    }

    /// A follower that was called does not lead.
    fn pass_on(&self) {
        let state = lock(&self.state);
        if self.handover == Handover::Next && state.leader.is_none() {
            self.hand_over(state);
        }
    }

    /// Ends the lead of the leader of this number, unless it has ended: others may lead, whatever that thread
    /// does meanwhile.
    pub fn end(&self, term: u64) {
        let state = lock(&self.state);
        if state.term == term {
            self.leave(state);
        }
    }

    /// Ends the lead of the calling thread, if it has it.
    pub fn end_own(&self) {
        let state = lock(&self.state);
        if state.leader == Some(std::thread::current().id()) {
            self.leave(state);
        }
    }

    fn leave(&self, mut state: MutexGuard<'_, State>) {
        if state.leader.take().is_none() {
            return;
        }
        state.is_standby = false;
        state.left = Some(Instant::now());
        self.hand_over(state);
    }

    fn hand_over(&self, mut state: MutexGuard<'_, State>) {
        let (next, all) = match self.handover {
            Handover::Next => (state.followers.pop_front(), VecDeque::new()),
            Handover::All => (None, std::mem::take(&mut state.followers)),
            Handover::Nobody => (None, VecDeque::new()),
        };
        if next.is_none()
            && let Some(standby) = &self.standby
        {
            state.time(standby, standby.grace.period);
        }
        drop(state);
        next.iter().chain(&all).for_each(Thread::unpark);
    }
}

impl State {
    /// Has the standby thread look after that time, unless it looks before.
    fn time(&mut self, standby: &Standby, after: Duration) {
        if !std::mem::replace(&mut self.is_timed, true) {
            standby.timer.set(Some(after));
        }
    }
}

/// A thread that follows.
struct Following<'a>(&'a Leadership);

impl Following<'_> {
    /// It follows no more; whether it was called.
    fn end(self) -> bool {
        let leadership = self.0;
        std::mem::forget(self);
        leadership.unfollow()
    }
}

impl Drop for Following<'_> {
    /// It panics.
    fn drop(&mut self) {
        if self.0.unfollow() {
            self.0.pass_on();
        }
    }
}
