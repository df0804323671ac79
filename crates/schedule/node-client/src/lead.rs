//! The thread that waits, takes what comes and processes it.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use treadle_net::{NetError, Wait};
use treadle_reactor::leader::{Busy, Leader};
use treadle_reactor::thread::lock;

#[cfg(doc)]
use super::delivery::Delivery;
use super::delivery::NOTHING;
use super::engine::Engine;
use super::error::ClientError;
use super::{Client, Event};

/// Turns of the poller that [`Lead::poll`] takes at most.
const TURNS: usize = 64;
/// How long a thread that needs room waits before it looks whether it should lead.
const SLICE: Duration = Duration::from_millis(20);

/// The lead: whoever has it alone takes what has come, so things are processed in order. Dropping it,
/// on the thread that has it, lets others lead.
///
/// The thread moves and takes bytes in its own calls only. In between it is [at](Delivery) something, and
/// loses the lead where that takes long.
#[derive(Debug)]
pub struct Lead<'a, T> {
    client: &'a Client<T>,
    /// `None`: this thread leads already. What it processes may run code that waits, too.
    leader: Option<Leader<'a>>,
    /// What this thread was at before, where it led already.
    before: u64,
    /// What it is at; `None`: it does not lead any more.
    at: Cell<Option<u64>>,
}

impl<T> Client<T> {
    /// Leads if no other thread does.
    pub fn try_lead(&self) -> Option<Lead<'_, T>> {
        let nested = self.lead_again();
        nested.or_else(|| Some(self.begin(Some(self.leadership.try_lead()?), NOTHING)))
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
        let is_over = || self.rounds() != seen;
        let lead = match self.lead_again() {
            Some(nested) => nested,
            None => {
                let mut is_over = || {
                    // It is asked whenever this thread looks around.
                    self.depose_if_stuck();
                    is_over()
                };
                match self.leadership.lead(&mut is_over, wait)? {
                    Some(leader) => self.begin(Some(leader), NOTHING),
                    None => return Ok(None),
                }
            }
        };
        // What this thread waits for may have come in another's round, and then nothing else may come
        // to end its own.
        Ok((!is_over()).then_some(lead))
    }

    /// Leads again, if this thread leads.
    fn lead_again(&self) -> Option<Lead<'_, T>> {
        if !self.leadership.is_leader() {
            return None;
        }
        let before = self.delivery.present();
        if before == NOTHING || !self.delivery.stop(before) {
            // Another thread is about to end its lead.
            self.leadership.end_own();
            return None;
        }
        Some(self.begin(None, before))
    }

    fn begin<'a>(&'a self, leader: Option<Leader<'a>>, before: u64) -> Lead<'a, T> {
        Lead {
            client: self,
            leader,
            before,
            at: Cell::new(Some(self.delivery.start())),
        }
    }

    /// Lets others lead, if the calling thread leads: it is about to wait for what they may bring.
    pub fn step_aside(&self) {
        if self.leadership.is_leader() {
            self.depose(self.delivery.present());
        }
    }

    /// Lets others lead if the thread that does has been at the same thing for long.
    pub(super) fn depose_if_stuck(&self) {
        if let Some(stuck) = self.delivery.stuck() {
            self.depose(stuck);
        }
    }

    /// Ends the lead of the thread that is at this.
    fn depose(&self, at: u64) {
        let term = self.leadership.term();
        // If so, it was the leader of that term.
        if at != NOTHING && self.delivery.stop(at) {
            self.rest(|| self.leadership.end(term));
        }
    }

    /// Nobody leads from now on: `end` says so to those who wait.
    fn rest(&self, end: impl FnOnce()) {
        let mut engine = lock(&self.engine);
        let mut left = self.has_events();
        if engine.workers.mute(false) {
            self.peer.set_waker(Some(self.notifier.waker()));
            // What came before the notifier was back.
            left |= self.has_come(&mut engine);
        }
        let due = self.next_due(&engine);
        if due != engine.timer {
            engine.timer = due;
            let delay = due.map(|due| due.saturating_duration_since(Instant::now()));
            self.notifier.notify_in(delay);
        }
        drop(engine);
        left |= !self.flush_all();
        if left {
            self.notifier.notify();
        }
        self.rounds.fetch_add(1, Ordering::SeqCst);
        end();
        // What of casts arrived meanwhile has told nobody but the thread that led. What else did, or
        // was left, may have told an event loop that could not lead.
        let was_reset = self.was_reset.swap(false, Ordering::SeqCst);
        if self.casts.has_arrived() || was_reset && (left || self.has_something()) {
            self.notifier.notify();
        }
    }

    /// Has the event loop look after a while whether the thread that leads is stuck.
    fn have_watched(&self) {
        if self.delivery.is_to_be_watched() {
            self.notifier.look_in(self.delivery.grace);
        }
    }

    /// The event loop looks whether the thread that leads is stuck.
    pub(super) fn look(&self) {
        self.delivery.looked();
        self.depose_if_stuck();
        if self.delivery.present() != NOTHING {
            self.have_watched();
        }
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
                self.client.have_watched();
                return Ok(());
            }
            self.client.check()?;
            self.turn(wait)?;
            if self.client.is_woken() || self.is_over() {
                return Ok(());
            }
        }
    }

    /// Whether others lead by now.
    fn is_over(&self) -> bool {
        self.at.get().is_none()
    }

    /// From now on the thread moves bytes, and calls nobody; whether it leads still.
    fn take_up(&self) -> bool {
        let leads = self
            .at
            .get()
            .is_some_and(|at| self.client.delivery.stop(at));
        if !leads {
            self.at.set(None);
        }
        leads
    }

    /// What the thread does now may take long.
    fn set_down(&self) {
        self.at.set(Some(self.client.delivery.start()));
    }

    /// Waits until there is room to send.
    pub(super) fn make_room(&self, wait: &mut Wait<'_>) -> Result<(), ClientError> {
        while !self.client.has_room() && !self.is_over() {
            self.client.check()?;
            self.turn(wait)?;
        }
        Ok(())
    }

    /// Waits until nothing is on its way to the scheduler and to workers that closing would stop.
    pub(super) fn settle(&self, wait: &mut Wait<'_>) -> Result<(), ClientError> {
        while !self.client.has_settled() && !self.is_over() {
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
        if !self.take_up() {
            return Ok(());
        }
        let busy = Busy::set(true);
        client.flush_all();
        let due = {
            let mut engine = lock(&client.engine);
            if engine.workers.mute(true) {
                client.peer.set_waker(None);
            }
            client.next_due(&engine)
        };
        let Wait {
            deadline,
            interrupted,
        } = wait.until(due);
        // A signal handler may wait here, too.
        let mut is_interrupted = false;
        let mut ask = interrupted.map(|interrupted| {
            || {
                let _idle = Busy::set(false);
                self.set_down();
                is_interrupted = interrupted();
                !self.take_up() || is_interrupted
            }
        });
        let interrupted = ask.as_mut().map(|ask| ask as &mut dyn FnMut() -> bool);
        let next = client.poller.next(&mut Wait {
            deadline,
            interrupted,
        });
        let outcome = match next {
            Ok(turn) => {
                client.serve(turn);
                Ok(())
            }
            // Another thread has taken the lead meanwhile.
            Err(_) if self.is_over() && !is_interrupted => return Ok(()),
            Err(error) if self.is_over() => return Err(error.into()),
            Err(NetError::Timeout) if wait.deadline.is_none_or(|limit| Instant::now() < limit) => {
                client.on_time();
                Ok(())
            }
            Err(error) => Err(error.into()),
        };
        drop(busy);
        self.set_down();
        outcome
    }

    /// Takes what is here, a bounded amount, without waiting.
    pub fn poll(&self) {
        if self.take_up() {
            let busy = Busy::set(true);
            self.take_all();
            drop(busy);
            self.set_down();
            self.client.have_watched();
        }
    }

    fn take_all(&self) {
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
        if self.is_over() {
            self.client.notifier.notify();
        }
    }

    /// The next thing to process; nothing, too, where others lead by now. `read` copies what the application
    /// keeps of the key that it is about, under a lock: it must not call out.
    pub fn next(&self, read: impl FnMut(&T) -> T) -> Option<Event<T>> {
        if !self.take_up() {
            return None;
        }
        self.client.take_arrivals();
        let next = lock(&self.client.core).next(read);
        self.set_down();
        next
    }
}

impl<T> Drop for Lead<'_, T> {
    fn drop(&mut self) {
        let client = self.client;
        let leads = self.take_up();
        match self.leader.take() {
            Some(leader) if leads => client.rest(|| drop(leader)),
            outermost => {
                client.rounds.fetch_add(1, Ordering::SeqCst);
                client.leadership.call_all();
                if outermost.is_none() && leads {
                    // The call around this one goes on with what it was at.
                    client.delivery.resume(self.before);
                }
            }
        }
    }
}
