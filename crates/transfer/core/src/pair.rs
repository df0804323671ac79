//! The state machine of a pair of peers: both halves, and whether the other side is there.

use alloc::vec::Vec;
use core::time::Duration;

use treadle_guards::InvariantError;

use crate::Guard;
use crate::event::{
    Config, Effect, Event, Extent, Message, PairEnd, StripeId, TransferId, Violation,
};
use crate::receiver::Receiver;
use crate::sender::Sender;

/// A ping this often while nothing is heard, relative to the timeout: by the side that dials.
const PINGS: u32 = 6;
/// The other side waits a little longer, so that one of them is enough.
const PINGS_OF_LISTENER: u32 = 5;
/// The first ping comes this soon, so that the round trip is known.
const FIRST_PING: Duration = Duration::from_secs(1);

/// One side of a pair. Times are durations since any fixed moment.
#[derive(Debug)]
pub struct Pair {
    timeout: Duration,
    /// Silence after which this side asks whether the other one is there.
    quiet: Duration,
    sender: Sender,
    receiver: Receiver,
    heard: Duration,
    pinged: Duration,
    round_trip: Option<Duration>,
    ended: Option<PairEnd>,
}

/// Counts about a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Outgoing stripes in use.
    pub stripes: usize,
    /// Objects that are being sent or wait for it.
    pub sending: usize,
    /// Outgoing stripes that broke and were replaced.
    pub replaced: u64,
    /// Incoming extents that were damaged.
    pub corrupt: u64,
    /// The last round trip of a ping: of the first second, or after the last silence.
    pub round_trip: Option<Duration>,
    /// When something came last, a ping or its answer included.
    pub heard: Duration,
}

impl Pair {
    /// A pair whose other side gives `peer_credit` bytes of credit for headers.
    pub fn new(config: &Config, peer_credit: u64, now: Duration) -> Self {
        Self {
            timeout: config.timeout,
            quiet: config.timeout
                / if config.dials {
                    PINGS
                } else {
                    PINGS_OF_LISTENER
                },
            sender: Sender::new(config, peer_credit),
            receiver: Receiver::new(config),
            heard: now,
            pinged: now,
            round_trip: None,
            ended: None,
        }
    }

    /// Handles an event. An error means that the other side broke the protocol: the caller closes
    /// the connection and says why, then calls [`Pair::end`].
    pub fn handle(
        &mut self,
        event: Event,
        now: Duration,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        if self.ended.is_some() {
            self.after_end(event, effects);
            return Ok(());
        }
        let from = effects.len();
        match event {
            Event::Send {
                object,
                regions,
                cost,
                shared,
            } => self.sender.send(object, regions, cost, shared, effects),
            Event::Cancel(object) => self.sender.cancel(object, effects),
            Event::Accept(object) => self.receiver.accept(object, effects),
            Event::Mapped(object) => self.receiver.mapped(object, effects),
            Event::Refuse(object, reason) => self.receiver.refuse(object, reason, effects),
            Event::Take(object) => self.receiver.take(object, effects),
            Event::Received(message) => {
                self.heard = now;
                self.received(message, now, effects)?;
            }
            Event::Opened(stripe) => self.sender.opened(stripe, now, effects),
            Event::OpenFailed(stripe, reason) => {
                self.sender.open_failed(stripe, reason, now, effects);
            }
            Event::Drained(stripe, bytes) => self.sender.drained(stripe, bytes, now, effects),
            Event::Retransmitted(stripe, bytes) => self.sender.retransmitted(stripe, bytes),
            Event::Lost(stripe) => self.sender.lost(stripe, now, effects),
            Event::Joined(stripe) => self.receiver.joined(stripe, effects)?,
            Event::DialFailed(stripe, reason) => {
                self.receiver.dial_failed(stripe, reason, effects);
            }
            Event::Arrived { stripe, intact } => {
                if Guard::ArrivalHeard.holds() {
                    self.heard = now;
                }
                self.receiver.arrived(stripe, intact, effects);
            }
            Event::Ended(stripe) => self.receiver.ended(stripe, effects),
            Event::Tick => self.tick(now, effects),
            // The other side has the whole timeout again.
            Event::Woke => self.heard = now,
            Event::Probe => self.ping(now, effects),
        }
        // Either half may ask for the end. What is under way in both fails before it is said.
        let is_end = |effect: &Effect| matches!(effect, Effect::End(_));
        if let Some(at) = effects[from..].iter().position(is_end)
            && let Effect::End(end) = effects.remove(from + at)
        {
            self.end(end, effects);
        }
        Ok(())
    }

    fn received(
        &mut self,
        message: Message,
        now: Duration,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        match message {
            Message::Offer {
                object,
                regions,
                cost,
                shared,
            } => self
                .receiver
                .offered(object, &regions, cost, shared, effects)?,
            Message::Accept { object } => self.sender.accepted(object, now, effects)?,
            Message::Refuse { object, reason } => self.sender.refused(object, reason, effects)?,
            Message::Placed { object } => self.sender.placed(object, now, effects)?,
            Message::Cancel { object } => self.receiver.cancelled(object, effects),
            Message::Credit { bytes } => self.sender.credited(bytes, effects),
            Message::Dial { stripe } => self.receiver.dial(stripe, effects)?,
            Message::DialFailed { stripe, reason } => {
                self.sender.dial_failed(stripe, reason, now, effects)?;
            }
            Message::Broken { stripe } => self.receiver.broken(stripe, effects),
            Message::Report {
                stripe,
                extents,
                corrupt,
            } => self
                .sender
                .reported(stripe, extents, corrupt, now, effects)?,
            Message::Ping { token } => effects.push(Effect::Tell(Message::Pong { token })),
            Message::Pong { token } => {
                self.round_trip = now.checked_sub(Duration::from_nanos(token));
            }
            Message::Goodbye => effects.push(Effect::End(PairEnd::Goodbye)),
        }
        Ok(())
    }

    fn tick(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if now.saturating_sub(self.heard) > self.timeout && Guard::Silence.holds() {
            effects.push(Effect::End(PairEnd::Silent(self.timeout)));
            return;
        }
        if now >= self.next_ping() {
            self.ping(now, effects);
        }
        self.sender.tick(now, effects);
    }

    fn ping(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        self.pinged = now;
        let token = now.as_nanos() as u64;
        if Guard::Ping.holds() {
            effects.push(Effect::Tell(Message::Ping { token }));
        }
    }

    fn next_ping(&self) -> Duration {
        match self.round_trip {
            None => self.pinged + self.quiet.min(FIRST_PING),
            Some(_) => self.heard.max(self.pinged) + self.quiet,
        }
    }

    /// When [`Event::Tick`] is due: before that it would do nothing. Other events may bring it
    /// forward. Zero: as often as the caller's clock ticks.
    pub fn due(&self) -> Duration {
        if self.ended.is_some() {
            Duration::MAX
        } else if self.sender.is_resting() {
            self.next_ping().min(self.heard + self.timeout)
        } else {
            Duration::ZERO
        }
    }

    /// After the end, what the application asks for fails at once.
    fn after_end(&mut self, event: Event, effects: &mut Vec<Effect>) {
        let end = self.ended.clone().expect("called after the end");
        match event {
            Event::Send { object, .. } => {
                let failure = crate::Failure::Pair(end);
                effects.push(Effect::SendFailed(object, failure));
            }
            Event::Take(object) => {
                // The credit that comes back has nobody to go to.
                self.receiver.take(object, &mut Vec::new());
            }
            Event::Opened(stripe) => effects.push(Effect::Drop(stripe)),
            Event::Joined(stripe) => effects.push(Effect::DropIncoming(stripe)),
            _ => {}
        }
    }

    /// Ends the pair: everything under way fails, what is complete can still be taken.
    pub fn end(&mut self, end: PairEnd, effects: &mut Vec<Effect>) {
        if self.ended.is_none() {
            self.sender.end(&end, effects);
            self.receiver.end(&end, effects);
            effects.push(Effect::End(end.clone()));
            self.ended = Some(end);
        }
    }

    /// Why the pair ended, if it did.
    pub fn ended(&self) -> Option<&PairEnd> {
        self.ended.as_ref()
    }

    /// The next extent to send on a stripe whose socket has room. It counts as sent from now on.
    pub fn next_extent(&mut self, stripe: StripeId, now: Duration) -> Option<Extent> {
        self.sender.next_extent(stripe, now)
    }

    /// An extent's header arrived on an incoming stripe. `true`: receive its bytes into their
    /// place, then tell [`Event::Arrived`]. `false`: the same, but drop the bytes.
    pub fn begin(&mut self, stripe: StripeId, extent: &Extent) -> Result<bool, Violation> {
        if self.ended.is_some() {
            return Ok(false);
        }
        self.receiver.begin(stripe, extent)
    }

    /// Bytes of an incoming object's regions in place, and in total.
    pub fn progress(&self, object: TransferId) -> Option<(u64, u64)> {
        self.receiver.progress(object)
    }

    /// Counts.
    pub fn stats(&self) -> Stats {
        Stats {
            stripes: self.sender.open(),
            sending: self.sender.pending(),
            replaced: self.sender.replaced(),
            corrupt: self.receiver.corrupt,
            round_trip: self.round_trip,
            heard: self.heard,
        }
    }

    /// Verifies every invariant.
    ///
    /// # Errors
    /// [`InvariantError`]: one does not hold, a bug of this crate.
    pub fn check(&self) -> Result<(), InvariantError> {
        self.sender.check()?;
        self.receiver.check()?;
        Ok(())
    }
}
