//! What the host around a node does: memory, engine, and bytes by their names.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use treadle_broadcast::{CastId, Effect, Event, Message, Neighbour, Outcome};

use crate::network::Body;
use crate::world::{Item, Pid, Process, World};
use treadle_sim_kernel::mix;

/// What there is of a payload.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// What it is the payload of; 0: nothing is there.
    of: u64,
    /// From the beginning up to here.
    have: u64,
}

/// What the bytes of a cast's payload are.
fn identity(cast: CastId) -> u64 {
    mix(u64::from(cast.session.0) << 40 | cast.number)
}

/// What an engine returns.
pub(crate) fn value(cast: CastId, engine: u64) -> u64 {
    mix(identity(cast) ^ engine)
}

impl Stored {
    pub(crate) fn whole(cast: CastId, size: u64) -> Self {
        Self {
            of: identity(cast),
            have: size,
        }
    }
}

impl Process {
    /// Puts bytes of a payload into their place.
    pub(crate) fn fill(
        &mut self,
        cast: CastId,
        offset: u64,
        length: u32,
        body: &Body,
    ) -> Result<(), String> {
        let Some(stored) = self.payloads.get_mut(&cast) else {
            return Err(format!("there is no memory for {cast:?}"));
        };
        let Body::Payload(of) = *body else {
            return Err("a chunk without bytes".into());
        };
        let is_next = offset <= stored.have && stored.have < offset + u64::from(length);
        if !is_next || (stored.have > 0 && stored.of != of) {
            return Err(format!("a chunk of {cast:?} at {offset} does not fit"));
        }
        *stored = Stored {
            of,
            have: offset + u64::from(length),
        };
        Ok(())
    }

    fn runs(&self, cast: CastId) -> bool {
        self.running == Some(cast) || self.unordered.contains(&cast)
    }

    /// Takes a cast back that the engine has not begun; whether there was one.
    fn withdraw(
        &mut self,
        which: impl Fn(CastId) -> bool,
        events: &mut VecDeque<(Event, Body)>,
    ) -> bool {
        let waits = self.running.filter(|&cast| !self.has_begun && which(cast));
        if let Some(cast) = waits {
            self.running = None;
            events.push_back((Event::Withdrawn(cast), Body::None));
        }
        waits.is_some()
    }

    fn drop_casts(&mut self, which: impl Fn(CastId) -> bool) {
        self.payloads.retain(|&cast, _| !which(cast));
        self.results.retain(|&(cast, _), _| !which(cast));
    }
}

impl World {
    pub(crate) fn act(
        &mut self,
        pid: Pid,
        effect: Effect,
        body: &Body,
        events: &mut VecDeque<(Event, Body)>,
    ) -> Result<(), String> {
        match effect {
            Effect::Send(to, message) => return self.say(pid, to, message),
            Effect::Connect(member) => {
                let to = self.by_neighbour[&Neighbour::Worker(member.worker)];
                self.dial(pid, to);
            }
            Effect::Reserve { cast, mapped, .. } => self.reserve(pid, cast, mapped, events),
            Effect::StorePayload(cast) => {
                let Body::Payload(of) = *body else {
                    return Err("no payload came that could be stored".into());
                };
                let have = self.oracle.size(cast);
                let stored = Stored { of, have };
                self.procs[pid].payloads.insert(cast, stored);
            }
            Effect::StoreResults { cast, engines } => {
                let Body::Results(values) = body else {
                    return Err("no results came that could be stored".into());
                };
                for engine in engines.iter() {
                    let value = value(cast, engine);
                    if !values.contains(&value) {
                        return Err(format!("the result of {engine} for {cast:?} did not come"));
                    }
                    self.procs[pid].results.insert((cast, engine), value);
                }
            }
            Effect::Run(cast) => return self.run(pid, cast),
            Effect::Stop { cast, interrupt } => {
                if !self.procs[pid].runs(cast) {
                    return Err(format!("{cast:?} is to stop and does not run"));
                }
                let is_back = self.procs[pid].withdraw(|other| other == cast, events);
                if interrupt && !is_back {
                    self.kernel
                        .schedule(Duration::from_micros(10), Item::RunEnds(pid, cast));
                }
            }
            Effect::Drop(cast) => {
                self.procs[pid].drop_casts(|other| other == cast);
                self.procs[pid].withdraw(|other| other == cast, events);
            }
            Effect::DropSession(session) => {
                self.procs[pid].drop_casts(|cast| cast.session == session);
                self.procs[pid].withdraw(|cast| cast.session == session, events);
            }
            Effect::Ask(session) => {
                self.summary.asked += 1;
                let wait = self.kernel.random.micros(100, 5_000);
                self.kernel.schedule(wait, Item::Ask(pid, session));
            }
            Effect::Result {
                number,
                engines,
                outcome,
            } => {
                let count = engines.len();
                match &outcome {
                    Outcome::Finished { .. } => self.summary.finished += count,
                    Outcome::Aborted => self.summary.aborted += count,
                    Outcome::Refused(_) => self.summary.refused += count,
                    Outcome::Lost(_) => self.summary.lost += count,
                    Outcome::Unreachable => self.summary.unreachable += count,
                }
                let Neighbour::Top(session) = self.procs[pid].neighbour else {
                    return Err("an engine has results as if it were a client".into());
                };
                let cast = CastId { session, number };
                return self
                    .oracle
                    .result(cast, &engines, &outcome, body, self.kernel.now());
            }
            Effect::Output(output) => {
                self.summary.outputs += 1;
                let Neighbour::Top(session) = self.procs[pid].neighbour else {
                    return Err("an engine has output as if it were a client".into());
                };
                return self.oracle.output(session, &output);
            }
            Effect::Complete { number } => {
                let Neighbour::Top(session) = self.procs[pid].neighbour else {
                    return Err("an engine completes a cast".into());
                };
                return self
                    .oracle
                    .complete(CastId { session, number }, self.kernel.now());
            }
        }
        Ok(())
    }

    fn say(&mut self, pid: Pid, to: Neighbour, message: Message) -> Result<(), String> {
        if self.procs[pid].dead.contains(&to) {
            let name = self.name(pid);
            return Err(format!("{name} says something to {to:?}, which is gone"));
        }
        let body = self.body(pid, &message)?;
        let to = self.by_neighbour[&to];
        self.transmit(pid, to, message, body)
    }

    /// What travels with a message: what the sender has under the names that the message says.
    fn body(&self, pid: Pid, message: &Message) -> Result<Body, String> {
        let process = &self.procs[pid];
        let payload = |cast: CastId, end: u64| {
            let stored = process.payloads.get(&cast);
            let stored = stored.filter(|stored| stored.have >= end);
            let name = self.name(pid);
            let missing = || format!("{name} sends what it has not of {cast:?}");
            Ok(Body::Payload(stored.ok_or_else(missing)?.of))
        };
        match message {
            Message::Offer(offer) if offer.size <= self.plan.config.inline => {
                payload(offer.cast, offer.size)
            }
            Message::Chunk {
                cast,
                offset,
                length,
            } => payload(*cast, offset + u64::from(*length)),
            Message::Mapping { cast } => payload(*cast, self.oracle.size(*cast)),
            Message::Results { session, results } => {
                let mut values = Vec::new();
                for result in results {
                    let number = result.number;
                    let cast = CastId {
                        session: *session,
                        number,
                    };
                    if !matches!(result.outcome, Outcome::Finished { size: 1.. }) {
                        continue;
                    }
                    for engine in result.engines.iter() {
                        let value = process.results.get(&(cast, engine));
                        let name = self.name(pid);
                        let missing = || format!("{name} has no result of {engine} for {cast:?}");
                        values.push(*value.ok_or_else(missing)?);
                    }
                }
                Ok(Body::Results(values))
            }
            _ => Ok(Body::None),
        }
    }

    fn reserve(
        &mut self,
        pid: Pid,
        cast: CastId,
        mapped: bool,
        events: &mut VecDeque<(Event, Body)>,
    ) {
        let draw = mix(self.plan.seed ^ mix(pid as u64) ^ identity(cast)) % 100;
        let result = match draw < self.plan.refusals {
            true => Err(Arc::from("there is no memory")),
            false => Ok(()),
        };
        let process = &mut self.procs[pid];
        match &result {
            Ok(()) if !mapped => {
                let nothing = Stored { of: 0, have: 0 };
                process.payloads.entry(cast).or_insert(nothing);
            }
            Ok(()) => {}
            Err(_) => self.oracle.refuse(cast, process.neighbour),
        }
        let event = Event::Reserved { cast, result };
        if self.plan.slow_memory > 0 && self.kernel.random.chance(self.plan.slow_memory) {
            let wait = self.kernel.random.micros(1, 3_000);
            self.kernel.schedule(wait, Item::Event(pid, event));
        } else {
            events.push_front((event, Body::None));
        }
    }

    fn run(&mut self, pid: Pid, cast: CastId) -> Result<(), String> {
        let process = &mut self.procs[pid];
        let Neighbour::Worker(worker) = process.neighbour else {
            return Err("a client runs a cast".into());
        };
        let engine = u64::from(worker.0);
        if self.oracle.is_unordered(cast) {
            process.unordered.insert(cast);
        } else if let Some(running) = process.running.replace(cast) {
            return Err(format!("{engine} runs {running:?} and {cast:?}"));
        }
        let stored = process.payloads.get(&cast);
        let size = self.oracle.size(cast);
        let is_whole =
            stored.is_some_and(|stored| stored.of == identity(cast) && stored.have == size);
        if !is_whole {
            return Err(format!("{engine} runs {cast:?} without its payload"));
        }
        if self.procs[pid].unordered.contains(&cast) {
            return self.run_begins(pid, cast);
        }
        self.procs[pid].has_begun = false;
        if self.kernel.random.chance(self.plan.queued) {
            let most = self.plan.longest.as_micros() as u64;
            let wait = self.kernel.random.micros(1, most);
            self.kernel.schedule(wait, Item::RunBegins(pid, cast));
            return Ok(());
        }
        self.run_begins(pid, cast)
    }

    /// The engine takes what is to be run.
    pub(crate) fn run_begins(&mut self, pid: Pid, cast: CastId) -> Result<(), String> {
        let process = &mut self.procs[pid];
        // It may have been taken back.
        let Neighbour::Worker(worker) = process.neighbour else {
            return Ok(());
        };
        let is_unordered = process.unordered.contains(&cast);
        let waits = process.running == Some(cast) && !process.has_begun;
        if !is_unordered && !waits {
            return Ok(());
        }
        process.has_begun |= waits;
        let engine = u64::from(worker.0);
        self.summary.runs += 1;
        self.oracle.run(cast, engine, self.kernel.now())?;
        let longest = self.plan.longest.as_micros() as u64;
        let time = match longest {
            0 => Duration::ZERO,
            longest => self.kernel.random.micros(1, longest),
        };
        if self.kernel.random.chance(self.plan.writes) {
            let text = Bytes::from_static(b"text");
            let event = Event::Wrote { cast, text };
            self.kernel.schedule(time / 2, Item::Event(pid, event));
        }
        self.kernel.schedule(time, Item::RunEnds(pid, cast));
        Ok(())
    }

    pub(crate) fn run_ends(&mut self, pid: Pid, cast: CastId) -> Result<(), String> {
        let process = &mut self.procs[pid];
        // An interrupted run ends once.
        let waits = process.running == Some(cast) && !process.has_begun;
        if !process.runs(cast) || waits {
            return Ok(());
        }
        if !process.unordered.remove(&cast) {
            process.running = None;
        }
        let Neighbour::Worker(worker) = process.neighbour else {
            return Ok(());
        };
        let value = value(cast, u64::from(worker.0));
        let has_bytes = value % 100 < self.plan.results;
        let size = if has_bytes { 1 + value % 3_000 } else { 0 };
        let body = Body::Results(vec![value]);
        self.oracle.returned(cast, u64::from(worker.0), size);
        self.handle(pid, Event::Ran { cast, size }, body)
    }
}
