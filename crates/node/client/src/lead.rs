//! The thread that waits, takes what comes and processes it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use treadle_net::{NetError, Wait};
use treadle_reactor::leader::Leader;
use treadle_reactor::thread::lock;

use super::engine::Engine;
use super::error::ClientError;
use super::{Client, Event};

/// Turns of the poller that [`Lead::poll`] takes at most.
const TURNS: usize = 64;
/// How long a thread that needs room waits before it looks whether it should lead.
const SLICE: Duration = Duration::from_millis(20);

/// The lead: whoever has it alone takes what has come, so things are processed in order. Dropping it,
/// on the thread that has it, lets others lead.
#[derive(Debug)]
pub struct Lead<'a, T> {
    client: &'a Client<T>,
    /// `None`: this thread leads already. What it processes may run code that waits, too.
    leader: Option<Leader<'a>>,
}

impl<T> Client<T> {
    /// Leads if no other thread does.
    pub fn try_lead(&self) -> Option<Lead<'_, T>> {
        let leader = self.leadership.try_lead();
        let leads = leader.is_some() || self.leadership.is_leader();
        leads.then_some(Lead {
            client: self,
            leader,
        })
    }

    /// How often threads have processed something and stopped to lead; see [`Client::lead`].
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::SeqCst)
    }

    /// Waits to lead. Nothing: another thread has processed something since there were `seen`
    /// rounds, so it is time to look again whether there is still something to wait for.
    ///
    /// # Errors
    /// When the wait ends.
    pub fn lead(&self, seen: u64, wait: &mut Wait<'_>) -> Result<Option<Lead<'_, T>>, NetError> {
        let mut is_over = || self.rounds() != seen;
        let leader = match self.leadership.is_leader() {
            true => None,
            false => self.leadership.lead(&mut is_over, wait)?,
        };
        // What this thread waits for may have come in another's round, and then nothing else may come
        // to end its own.
        Ok((!is_over()).then_some(Lead {
            client: self,
            leader,
        }))
    }

    /// Whether there is something to process, but for what came of casts.
    fn has_events(&self) -> bool {
        lock(&self.core).has_notifications()
    }

    /// Whether something has come, from the scheduler or a worker, that was not taken.
    fn has_come(&self, engine: &mut Engine) -> bool {
        self.ended_reason().is_none() && self.peer.has_next()
            || engine.control.has_arrived()
            || engine.workers.has_something()
    }

    /// Whether something has come that was not taken, or is due.
    fn has_something(&self) -> bool {
        let mut engine = lock(&self.engine);
        self.has_events()
            || self.has_come(&mut engine)
            || self
                .next_due(&engine)
                .is_some_and(|due| due <= Instant::now())
    }

    /// Whether all that was said and put is where it was to go.
    fn has_settled(&self) -> bool {
        self.flush_all() && lock(&self.sender).has_arrived() && !lock(&self.core).is_bringing()
    }

    /// Waits until all that was said and put is where it was to go.
    pub(super) fn settle(&self, wait: &mut Wait<'_>) -> Result<(), ClientError> {
        while !self.has_settled() {
            if let Some(lead) = self.lead(self.rounds(), wait)? {
                lead.settle(wait)?;
            }
        }
        Ok(())
    }

    /// Waits a moment for room, while another thread leads.
    pub(super) fn wait_briefly(&self, wait: &mut Wait<'_>) -> Result<(), ClientError> {
        let mut brief = wait.until(Some(Instant::now() + SLICE));
        match self.peer.wait_for_room(&mut brief) {
            Err(NetError::Timeout) if wait.deadline.is_none_or(|limit| Instant::now() < limit) => {
                Ok(())
            }
            outcome => Ok(outcome?),
        }
    }
}

impl<T> Lead<'_, T> {
    /// Waits until there is something to process, or somebody called [`Client::wake`].
    ///
    /// # Errors
    /// When the connection is over and everything was processed, or the wait ends.
    pub fn receive(&self, wait: &mut Wait<'_>) -> Result<(), ClientError> {
        loop {
            if self.client.has_events() || self.client.casts.has_arrived() {
                return Ok(());
            }
            self.client.check()?;
            self.turn(wait)?;
            if self.client.is_woken() {
                return Ok(());
            }
        }
    }

    /// Waits until there is room to send.
    pub(super) fn make_room(&self, wait: &mut Wait<'_>) -> Result<(), ClientError> {
        while !self.client.has_room() {
            self.client.check()?;
            self.turn(wait)?;
        }
        Ok(())
    }

    /// Waits until nothing is on its way to the scheduler and to workers that closing would stop.
    pub(super) fn settle(&self, wait: &mut Wait<'_>) -> Result<(), ClientError> {
        while !self.client.has_settled() {
            self.client.check()?;
            // Nothing comes when the last byte of a message has arrived there.
            let mut brief = wait.until(Some(Instant::now() + SLICE));
            match self.turn(&mut brief) {
                Err(ClientError::Net(NetError::Timeout))
                    if wait.deadline.is_none_or(|limit| Instant::now() < limit) => {}
                outcome => outcome?,
            }
        }
        Ok(())
    }

    /// Waits for something, and takes it.
    fn turn(&self, wait: &mut Wait<'_>) -> Result<(), ClientError> {
        let client = self.client;
        client.flush_all();
        let due = {
            let mut engine = lock(&client.engine);
            if engine.workers.mute(true) {
                client.peer.set_waker(None);
            }
            client.next_due(&engine)
        };
        let mut shorter = wait.until(due);
        match client.poller.next(&mut shorter) {
            Ok(turn) => client.serve(turn),
            Err(NetError::Timeout) if wait.deadline.is_none_or(|limit| Instant::now() < limit) => {
                client.on_time();
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Takes what is here, a bounded amount, without waiting.
    pub fn poll(&self) {
        let client = self.client;
        client.flush_all();
        let now = Instant::now();
        let due = client.next_due(&lock(&client.engine));
        if due.is_some_and(|due| due <= now) {
            client.on_time();
        }
        for _ in 0..TURNS {
            let mut none = Wait {
                deadline: Some(now),
                interrupted: None,
            };
            match client.poller.next(&mut none) {
                Ok(turn) => client.serve(turn),
                Err(_) => return,
            }
        }
        // There may be more.
        client.notifier.notify();
    }

    /// Something could not be processed to its end: it is the next thing again.
    pub fn put_back(&self, event: Event<T>) {
        lock(&self.client.core).put_back(event);
    }

    /// The next thing to process. `read` copies what the application keeps of the key that it is
    /// about, under a lock: it must not call out.
    pub fn next(&self, read: impl FnMut(&T) -> T) -> Option<Event<T>> {
        self.client.take_arrivals();
        lock(&self.client.core).next(read)
    }
}

impl<T> Drop for Lead<'_, T> {
    fn drop(&mut self) {
        let client = self.client;
        let is_outermost = self.leader.is_some();
        let mut left = false;
        if is_outermost {
            let mut engine = lock(&client.engine);
            left = client.has_events();
            if engine.workers.mute(false) {
                client.peer.set_waker(Some(client.notifier.waker()));
                // What came before the notifier was back.
                left |= client.has_come(&mut engine);
            }
            let due = client.next_due(&engine);
            if due != engine.timer {
                engine.timer = due;
                let delay = due.map(|due| due.saturating_duration_since(Instant::now()));
                client.notifier.notify_in(delay);
            }
            drop(engine);
            left |= !client.flush_all();
            if left {
                client.notifier.notify();
            }
        }
        client.rounds.fetch_add(1, Ordering::SeqCst);
        match self.leader.take() {
            Some(leader) => drop(leader),
            None => client.leadership.call_all(),
        }
        // What of casts arrived meanwhile has told nobody but the thread that led. What else did, or
        // was left, may have told an event loop that could not lead.
        let was_reset = is_outermost && client.was_reset.swap(false, Ordering::SeqCst);
        if is_outermost && client.casts.has_arrived()
            || was_reset && (left || client.has_something())
        {
            client.notifier.notify();
        }
    }
}
