//! A server's side: it registers, refreshes its load, and withdraws.
//!
//! ```text
//!   Away ──▶ Connecting ──▶ Reading ──▶ Writing ──▶ Registered ──▶ Withdrawing ──▶ Withdrawn
//!    ▲            │            ▲  │        │          │     │
//!    └────────────┴────────────┼──┴────────┴──────────┘     │ again and again
//!                              └────────────────────────────┘
//! ```
//!
//! Reading looks for other servers with the name: if one has a later incarnation, this one is superseded for good.

use std::time::Duration;

use super::attempts::Attempts;
use super::{Config, Failure, Guard};
use crate::entry::{Entry, Load};

/// Another server with the same name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rival {
    pub incarnation: u64,
    /// Empty: its entry cannot be read.
    pub address: String,
}

/// What happened.
#[derive(Clone, PartialEq, Debug)]
pub enum RegisteringEvent {
    /// There is a session.
    Connected,
    /// Servers with this name were read; this one is among them if it is registered.
    Rivals(Vec<Rival>),
    /// The entry was written.
    Written,
    /// The session cannot be used now. It may be resumed, or end.
    Interrupted(String),
    /// The session can be used again.
    Resumed,
    /// The session has ended, and with it what was registered.
    Ended(String),
    /// What was asked last failed.
    Failed(Failure),
    /// The server's load is this.
    Refresh(Load),
    /// The server was asked to leave: masters should give it nothing more.
    Leaving,
    /// The server stops.
    Withdraw,
    /// The entry was removed.
    Removed,
    /// Time has passed.
    Tick,
}

/// What is to be done, in this order. Each but `Close` is answered by an event.
#[derive(Clone, PartialEq, Debug)]
pub enum RegisteringEffect {
    /// Begin a session. The one before ends when this one has written the entry.
    Connect,
    /// Read which servers with this name are registered.
    ReadRivals,
    /// Write the entry, whether or not it is there.
    Write(Box<Entry>),
    /// Remove an earlier incarnation. Nothing answers this.
    RemoveRival(u64),
    /// Remove the entry.
    Remove,
    /// End the session.
    Close,
}

/// How a registration stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It is under way.
    Trying,
    /// The registry cannot be reached, or refuses. It is tried again. Masters may have the entry still.
    Away(Failure),
    /// The registry has the entry.
    Registered,
    /// A later incarnation with this name is registered. This one is not, for good.
    Superseded(Rival),
    /// It was withdrawn.
    Withdrawn,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Nothing is under way until then.
    Away(Duration),
    /// The session was interrupted. It is given up then.
    Interrupted(Duration),
    Connecting,
    Reading,
    Writing,
    Registered,
    Withdrawing,
    Over,
}

/// What changes of an entry, as it was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    at: Duration,
    load: Option<Load>,
    is_leaving: bool,
}

/// The machine of a registration.
#[derive(Debug)]
pub struct Registering {
    pub(super) config: Config,
    pub(super) entry: Entry,
    pub(super) step: Step,
    pub(super) standing: Standing,
    attempts: Attempts,
    /// What the registry has.
    pub(super) written: Option<Written>,
    /// When rivals are looked for again.
    pub(super) audit: Duration,
    /// Withdraw as soon as what is under way has ended.
    is_withdrawing: bool,
}

impl Registering {
    /// A registration that begins with the first `Tick`. `seed` spreads its attempts.
    pub fn new(entry: Entry, config: Config, seed: u64) -> Self {
        Self {
            config,
            entry,
            step: Step::Away(Duration::ZERO),
            standing: Standing::Trying,
            attempts: Attempts::new(seed),
            written: None,
            audit: Duration::ZERO,
            is_withdrawing: false,
        }
    }

    /// How it stands.
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// Nothing will follow any more.
    pub fn is_over(&self) -> bool {
        self.step == Step::Over
    }

    /// When a `Tick` is due.
    pub fn deadline(&self) -> Option<Duration> {
        match self.step {
            Step::Away(until) | Step::Interrupted(until) => Some(until),
            Step::Registered => Some(self.write_at().map_or(self.audit, |at| at.min(self.audit))),
            _ => None,
        }
    }

    /// Takes what happened, and appends what follows.
    pub fn handle(
        &mut self,
        event: RegisteringEvent,
        now: Duration,
        effects: &mut Vec<RegisteringEffect>,
    ) {
        use RegisteringEvent as Event;
        if self.step == Step::Over {
            return;
        }
        match event {
            Event::Refresh(load) => self.entry.load = Some(load),
            Event::Leaving => self.entry.is_leaving = true,
            Event::Withdraw => self.is_withdrawing = true,
            Event::Tick => {}
            Event::Connected | Event::Resumed => self.read(effects),
            Event::Rivals(rivals) => self.rivals(rivals, now, effects),
            Event::Written => {
                self.attempts.reset();
                self.standing = Standing::Registered;
                self.step = Step::Registered;
            }
            Event::Interrupted(why) => {
                self.step = Step::Interrupted(now + self.config.interruption);
                self.standing = away(why);
            }
            Event::Ended(why) => {
                self.written = None;
                self.standing = away(why);
                self.step = match Guard::Renewal.holds() {
                    true => Step::Away(now + self.attempts.pause(&self.config, false)),
                    false => Step::Interrupted(Duration::MAX),
                };
            }
            Event::Failed(failure) => {
                let pause = self.attempts.pause(&self.config, failure.is_refusal);
                self.written = None;
                self.step = Step::Away(now + pause);
                self.standing = Standing::Away(failure);
            }
            Event::Removed => self.end(Standing::Withdrawn, effects),
        }
        self.proceed(now, effects);
    }

    /// Begins what is due.
    fn proceed(&mut self, now: Duration, effects: &mut Vec<RegisteringEffect>) {
        match self.step {
            // The entry goes with the session.
            Step::Away(_) | Step::Interrupted(_) if self.is_withdrawing => {
                self.end(Standing::Withdrawn, effects);
            }
            Step::Registered if self.is_withdrawing => {
                self.step = Step::Withdrawing;
                effects.push(RegisteringEffect::Remove);
            }
            Step::Away(until) | Step::Interrupted(until) if until <= now => {
                self.step = Step::Connecting;
                effects.push(RegisteringEffect::Connect);
            }
            Step::Registered if self.audit <= now => self.read(effects),
            Step::Registered if self.write_at().is_some_and(|at| at <= now) => {
                self.write(now, effects);
            }
            _ => {}
        }
    }

    fn read(&mut self, effects: &mut Vec<RegisteringEffect>) {
        self.step = Step::Reading;
        effects.push(RegisteringEffect::ReadRivals);
    }

    fn rivals(&mut self, rivals: Vec<Rival>, now: Duration, effects: &mut Vec<RegisteringEffect>) {
        self.audit = now + self.config.longest_refresh;
        let ours = self.entry.incarnation;
        let is_there = rivals.iter().any(|rival| rival.incarnation == ours);
        let (later, earlier): (Vec<_>, Vec<_>) = rivals
            .into_iter()
            .filter(|rival| rival.incarnation != ours)
            .partition(|rival| rival.incarnation > ours);
        let latest = later.into_iter().max_by_key(|rival| rival.incarnation);
        if let Some(rival) = latest.filter(|_| Guard::Rivals.holds()) {
            effects.push(RegisteringEffect::Remove);
            self.end(Standing::Superseded(rival), effects);
            return;
        }
        let is_written = is_there
            && self.written.is_some_and(|written| {
                written.load == self.entry.load && written.is_leaving == self.entry.is_leaving
            })
            && self.standing == Standing::Registered;
        match is_written {
            true => self.step = Step::Registered,
            false => self.write(now, effects),
        }
        // Only now: masters never see none.
        let earlier = earlier.iter().map(|rival| rival.incarnation);
        effects.extend(earlier.map(RegisteringEffect::RemoveRival));
    }

    fn write(&mut self, now: Duration, effects: &mut Vec<RegisteringEffect>) {
        self.step = Step::Writing;
        self.written = Some(Written {
            at: now,
            load: self.entry.load,
            is_leaving: self.entry.is_leaving,
        });
        effects.push(RegisteringEffect::Write(Box::new(self.entry.clone())));
    }

    /// When what has changed is to be written.
    fn write_at(&self) -> Option<Duration> {
        let written = self.written?;
        let before = written.load.unwrap_or_default();
        // What changes little is written with the next audit.
        let is_due = written.is_leaving != self.entry.is_leaving
            || self
                .entry
                .load
                .is_some_and(|load| load.has_changed(&before));
        is_due.then(|| written.at + self.config.shortest_refresh)
    }

    fn end(&mut self, standing: Standing, effects: &mut Vec<RegisteringEffect>) {
        self.step = Step::Over;
        self.standing = standing;
        effects.push(RegisteringEffect::Close);
    }
}

fn away(why: String) -> Standing {
    Standing::Away(Failure {
        why,
        is_refusal: false,
    })
}
