//! Results on their way up.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use treadle_types::ClientId;

use crate::Guard;
use crate::relay::cast::Session;
use crate::relay::timers::Timer;
use crate::relay::{Relay, Violation};
use crate::{
    CastId, CastResult, Effect, Effects, Message, Neighbour, Outcome, Output, Runs, Settled,
};

/// A message with results has about so many bytes of them at most, or one result.
const MESSAGE: u64 = 1 << 20;
/// So many bytes of text wait at a node for each session; more is dropped.
const OUTPUT: usize = 1 << 18;

impl Relay {
    pub(super) fn receive_results(
        &mut self,
        from: Neighbour,
        session: ClientId,
        results: Vec<CastResult>,
        out: &mut Effects,
    ) -> Result<(), Violation> {
        let is_made =
            |result: &CastResult| matches!(result.outcome, Outcome::Lost(_) | Outcome::Unreachable);
        if results.iter().any(is_made) {
            let reason = "only the top knows who is lost";
            return Err(Violation::protocol(from, reason));
        }
        let Some(known) = self.sessions.get(&session) else {
            return Ok(());
        };
        let mut is_late = false;
        let mut heard = Vec::with_capacity(results.len());
        for result in results {
            is_late |= known.settled.contains(result.number);
            heard.push(result);
        }
        // Who sends this keeps it, as it has not heard that it is settled.
        if is_late {
            let settled = Settled(known.settled.clone());
            out.send(from, Message::Settled { session, settled });
        }
        for result in heard {
            let number = result.number;
            let id = CastId { session, number };
            let Some(cast) = self.cast(id) else { continue };
            let Some(child) = cast.child(from) else {
                continue;
            };
            // One that was passed over may still bring results of those that were taken from it.
            let engines = result.engines.intersection(&child.asked);
            let engines = engines.intersection(&cast.waiting);
            self.learn(id, engines, result.outcome, out);
        }
        Ok(())
    }

    /// Takes in a result of members that have none.
    pub(super) fn learn(&mut self, id: CastId, engines: Runs, outcome: Outcome, out: &mut Effects) {
        if engines.is_empty() {
            return;
        }
        let is_top = self.top.is_some();
        let Some(session) = self.sessions.get_mut(&id.session) else {
            return;
        };
        let Some(cast) = session.casts.get_mut(&id.number) else {
            return;
        };
        cast.waiting = cast.waiting.difference(&engines);
        if !is_top {
            if matches!(outcome, Outcome::Finished { size: 1.. }) {
                let (cast, engines) = (id, engines.clone());
                out.push(Effect::StoreResults { cast, engines });
            }
            cast.log.push((engines, outcome));
            session.dirty.insert(id.number);
            return;
        }
        cast.parked = cast.parked.difference(&engines);
        let is_complete = cast.waiting.is_empty();
        if outcome == Outcome::Aborted {
            self.skip(id, &engines);
        }
        let number = id.number;
        out.push(Effect::Result {
            number,
            engines,
            outcome,
        });
        if is_complete {
            self.complete(id, out);
        }
        self.close_up(out);
    }

    /// See [`Relay::flush`], for all sessions.
    pub(super) fn flush_dirty(&mut self, out: &mut Effects) {
        let is_dirty = |session: &&Session| !session.dirty.is_empty();
        if self.sessions.values().any(|session| is_dirty(&session)) {
            let sessions = self
                .sessions
                .iter()
                .filter(|(_, session)| is_dirty(session));
            let dirty: Vec<_> = sessions.map(|(&id, _)| id).collect();
            for id in dirty {
                self.flush(id, false, out);
            }
        }
    }

    /// Tells parents what they have not heard: a parent whose members have all their results at once,
    /// others when time is up or `all` are reported.
    pub(super) fn flush(&mut self, id: ClientId, all: bool, out: &mut Effects) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if session.dirty.is_empty() && (!all || session.outputs.is_empty()) {
            return;
        }
        let mut messages: BTreeMap<Neighbour, Vec<CastResult>> = BTreeMap::new();
        let dirty = core::mem::take(&mut session.dirty);
        for number in dirty {
            let Some(cast) = session.casts.get_mut(&number) else {
                continue;
            };
            let mut is_dirty = false;
            for parent in &mut cast.parents {
                if parent.reported == cast.log.len() && parent.again.is_empty() {
                    continue;
                }
                if !all && !parent.asked.is_disjoint(&cast.waiting) {
                    is_dirty = true;
                    continue;
                }
                let results = messages.entry(parent.who).or_default();
                let again = core::mem::take(&mut parent.again);
                let (old, new) = cast.log.split_at(parent.reported);
                merge(number, old, &again, results);
                merge(number, new, &parent.asked, results);
                parent.reported = cast.log.len();
            }
            if !Guard::Keeping.holds() && !is_dirty && !cast.parents.is_empty() {
                cast.log.clear();
                cast.parents
                    .iter_mut()
                    .for_each(|parent| parent.reported = 0);
            }
            if is_dirty {
                session.dirty.insert(number);
            }
        }
        // What an engine wrote comes before its result.
        if all || !messages.is_empty() {
            self.flush_outputs(id, out);
        }
        for (who, results) in messages {
            for results in pack(results) {
                let session = id;
                out.send(who, Message::Results { session, results });
            }
        }
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        if !session.dirty.is_empty() || !session.outputs.is_empty() {
            let at = self.now + self.config.flush;
            self.timers.arm(Timer::Flush(id), at);
        }
    }

    fn flush_outputs(&mut self, id: ClientId, out: &mut Effects) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        session.output_bytes = 0;
        let mut messages: BTreeMap<Neighbour, Vec<Output>> = BTreeMap::new();
        for output in core::mem::take(&mut session.outputs) {
            let Some(cast) = session.casts.get(&output.number) else {
                continue;
            };
            let engine = u64::from(output.engine.0);
            // Only the one that has given the engine to this node takes it, see `wrote`.
            let asked = |parent: &&crate::relay::cast::Parent| parent.asked.contains(engine);
            for parent in cast.parents.iter().filter(asked) {
                let outputs = messages.entry(parent.who).or_default();
                outputs.push(output.clone());
            }
        }
        for (who, outputs) in messages {
            let session = id;
            out.send(who, Message::Outputs { session, outputs });
        }
    }

    /// An engine wrote something: this node's own (`from` is `None`), or one that a child has been
    /// given; from others it comes as well, by the way on which responsibility went.
    pub(super) fn wrote(
        &mut self,
        from: Option<Neighbour>,
        id: ClientId,
        outputs: Vec<Output>,
        out: &mut Effects,
    ) {
        let is_top = self.top.is_some();
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        for output in outputs {
            let Some(cast) = session.casts.get_mut(&output.number) else {
                continue;
            };
            let engine = u64::from(output.engine.0);
            let is_given = from.is_none_or(|from| {
                let child = cast.child(from);
                child.is_some_and(|child| child.responsible().contains(engine))
            });
            let length = output.text.len();
            if !is_given || !cast.waiting.contains(engine) {
                continue;
            }
            if is_top {
                out.push(Effect::Output(output));
            } else if session.output_bytes + length <= OUTPUT {
                session.output_bytes += length;
                session.outputs.push(output);
            }
        }
        if !session.outputs.is_empty() {
            let at = self.now + self.config.flush;
            self.timers.arm(Timer::Flush(id), at);
        }
    }
}

/// Adds what `log` has of `engines`, one entry for those with the same outcome.
fn merge(number: u64, log: &[(Runs, Outcome)], engines: &Runs, results: &mut Vec<CastResult>) {
    if engines.is_empty() {
        return;
    }
    for (all, outcome) in log {
        let engines = all.intersection(engines);
        if engines.is_empty() {
            continue;
        }
        // Results of the same size come next to each other, or it is not worth a search.
        let mut recent = results.iter_mut().rev().take(4);
        let same = recent.find(|result| result.number == number && result.outcome == *outcome);
        match same {
            Some(result) => result.engines = result.engines.union(&engines),
            None => {
                let outcome = outcome.clone();
                results.push(CastResult {
                    number,
                    engines,
                    outcome,
                });
            }
        }
    }
}

/// Divides results into messages.
fn pack(results: Vec<CastResult>) -> Vec<Vec<CastResult>> {
    let mut messages = vec![Vec::new()];
    let mut bytes = 0;
    for result in results {
        let size = match result.outcome {
            Outcome::Finished { size } => size,
            _ => 0,
        };
        // The results of an entry are divided too.
        let each = match size {
            0 => u64::MAX,
            _ => (MESSAGE / size).max(1),
        };
        for engines in result.engines.parts(each) {
            let length = size.saturating_mul(engines.len());
            if length > MESSAGE - bytes.min(MESSAGE) && bytes > 0 {
                messages.push(Vec::new());
                bytes = 0;
            }
            bytes = length.saturating_add(bytes);
            let (number, outcome) = (result.number, result.outcome.clone());
            messages.last_mut().expect("there is one").push(CastResult {
                number,
                engines,
                outcome,
            });
        }
    }
    messages.retain(|results| !results.is_empty());
    messages
}
