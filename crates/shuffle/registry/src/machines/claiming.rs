//! A master's side: it says that it is the master of an application, unless there is another.
//!
//! ```text
//!   Away ──▶ Connecting ──▶ Claiming ──▶ Held
//!    ▲            │            │ ▲  │      │
//!    │            │            │ │  └──▶ Elsewhere
//!    └────────────┴────────────┘ └─────────┴┘
//! ```
//!
//! The registry decides who was first. A claim goes with its session: one whose session has ended is made again.

use std::time::Duration;

use super::attempts::Attempts;
use super::{Config, Failure, Guard};
use crate::master::Master;

/// What happened.
#[derive(Clone, PartialEq, Debug)]
pub enum ClaimingEvent {
    /// There is a session.
    Connected,
    /// The registry has this master.
    Claimed,
    /// The application has another master.
    Taken(Master),
    /// The session cannot be used now. It may be resumed, or end.
    Interrupted(String),
    /// The session can be used again.
    Resumed,
    /// The session has ended, and the claim with it.
    Ended(String),
    /// What was asked last failed.
    Failed(Failure),
    /// The master ends.
    Withdraw,
    /// Time has passed.
    Tick,
}

/// What is to be done. `Connect` and `Claim` are answered by an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimingEffect {
    /// Begin a session. The one before ends when the registry has answered this one.
    Connect,
    /// Write the master, unless there is another.
    Claim,
    /// End the session, and with it the claim.
    Close,
}

/// How a claim stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClaimStanding {
    /// It is under way.
    Trying,
    /// The registry cannot be reached, or refuses. It is tried again.
    Away(Failure),
    /// The registry has this master.
    Held,
    /// The application has this master. It is tried again, in case that ends.
    Elsewhere(Master),
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
    Claiming,
    Held,
    /// It is claimed again then, in the same session.
    Elsewhere(Duration),
    Over,
}

/// The machine of a claim.
#[derive(Debug)]
pub struct Claiming {
    config: Config,
    pub(super) step: Step,
    pub(super) standing: ClaimStanding,
    attempts: Attempts,
    /// Withdraw as soon as what is under way has ended.
    is_leaving: bool,
}

impl Claiming {
    /// A claim that begins with the first `Tick`. `seed` spreads its attempts.
    pub fn new(config: Config, seed: u64) -> Self {
        Self {
            config,
            step: Step::Away(Duration::ZERO),
            standing: ClaimStanding::Trying,
            attempts: Attempts::new(seed),
            is_leaving: false,
        }
    }

    /// How it stands.
    pub fn standing(&self) -> &ClaimStanding {
        &self.standing
    }

    /// Nothing will follow any more.
    pub fn is_over(&self) -> bool {
        self.step == Step::Over
    }

    /// When a `Tick` is due.
    pub fn deadline(&self) -> Option<Duration> {
        match self.step {
            Step::Away(until) | Step::Interrupted(until) | Step::Elsewhere(until) => Some(until),
            Step::Connecting | Step::Claiming | Step::Held | Step::Over => None,
        }
    }

    /// Takes what happened. Returns what follows.
    pub fn handle(&mut self, event: ClaimingEvent, now: Duration) -> Option<ClaimingEffect> {
        use ClaimingEvent as Event;
        if self.step == Step::Over {
            return None;
        }
        match event {
            Event::Tick => {}
            Event::Withdraw => self.is_leaving = true,
            Event::Connected | Event::Resumed => return Some(self.claim()),
            Event::Claimed => {
                self.attempts.reset();
                (self.step, self.standing) = (Step::Held, ClaimStanding::Held);
            }
            Event::Taken(master) => {
                self.attempts.reset();
                self.step = Step::Elsewhere(now + self.config.longest_pause);
                self.standing = ClaimStanding::Elsewhere(master);
            }
            Event::Interrupted(why) => {
                self.step = Step::Interrupted(now + self.config.interruption);
                self.standing = away(why);
            }
            Event::Ended(why) => {
                self.step = match Guard::Renewal.holds() {
                    true => Step::Away(now + self.attempts.pause(&self.config, false)),
                    false => Step::Interrupted(Duration::MAX),
                };
                self.standing = away(why);
            }
            Event::Failed(failure) => {
                let pause = self.attempts.pause(&self.config, failure.is_refusal);
                self.step = Step::Away(now + pause);
                self.standing = ClaimStanding::Away(failure);
            }
        }
        self.proceed(now)
    }

    /// Begins what is due.
    fn proceed(&mut self, now: Duration) -> Option<ClaimingEffect> {
        match self.step {
            Step::Connecting | Step::Claiming | Step::Over => None,
            _ if self.is_leaving => {
                (self.step, self.standing) = (Step::Over, ClaimStanding::Withdrawn);
                Some(ClaimingEffect::Close)
            }
            Step::Away(until) | Step::Interrupted(until) if until <= now => {
                self.step = Step::Connecting;
                Some(ClaimingEffect::Connect)
            }
            Step::Elsewhere(until) if until <= now => Some(self.claim()),
            Step::Away(_) | Step::Interrupted(_) | Step::Elsewhere(_) | Step::Held => None,
        }
    }

    fn claim(&mut self) -> ClaimingEffect {
        self.step = Step::Claiming;
        ClaimingEffect::Claim
    }
}

fn away(why: String) -> ClaimStanding {
    ClaimStanding::Away(Failure {
        why,
        is_refusal: false,
    })
}
