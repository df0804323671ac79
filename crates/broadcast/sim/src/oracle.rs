//! What is true of every call, whoever dies.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use treadle_broadcast::plan::STAR;
use treadle_broadcast::{CastId, Message, Neighbour, Outcome, Output, Runs};
use treadle_types::ClientId;

use crate::host::value;
use crate::network::Body;
use crate::world::{Pid, World};

/// Without faults an abort is answered within this, however long engines run.
const PROMPT: Duration = Duration::from_secs(3);

/// A cast, as its client asked for it.
pub(crate) struct Cast {
    size: u64,
    unordered: bool,
    members: BTreeSet<u64>,
    aborted: Option<Duration>,
    /// At the client.
    results: BTreeMap<u64, Outcome>,
    /// When they came there.
    pub(crate) heard: BTreeMap<u64, Duration>,
    /// Sizes of what engines returned.
    returned: BTreeMap<u64, u64>,
    is_complete: bool,
    pub(crate) begun: Duration,
    /// When the last engine began, and when the client knew of all.
    pub(crate) ran: Duration,
    pub(crate) completed: Duration,
    /// Bytes of the payload that each node sent.
    pub(crate) sent: BTreeMap<Pid, u64>,
    pub(crate) degree: u64,
}

#[derive(Default)]
pub(crate) struct Oracle {
    is_faultless: bool,
    /// How many children a node may have where members share processors.
    star: u64,
    pub(crate) casts: BTreeMap<CastId, Cast>,
    /// The casts of a session to an engine, in the client's order.
    chains: BTreeMap<(ClientId, u64), Vec<u64>>,
    /// Positions in the chain up to which an engine ran.
    ran: BTreeMap<(ClientId, u64), usize>,
    runs: BTreeSet<(CastId, u64)>,
    returned: BTreeSet<(CastId, u64)>,
    /// Members that have aborted while what came before ran.
    pub(crate) early: u64,
    refused: BTreeSet<(CastId, u64)>,
    pub(crate) declared: BTreeSet<u64>,
    pub(crate) clients_gone: BTreeSet<ClientId>,
}

impl Oracle {
    pub(crate) fn new(is_faultless: bool, shares_processors: bool) -> Self {
        Self {
            is_faultless,
            star: if shares_processors { STAR } else { 0 },
            ..Self::default()
        }
    }

    pub(crate) fn cast(
        &mut self,
        id: CastId,
        (size, unordered): (u64, bool),
        members: &Runs,
        now: Duration,
    ) {
        let cast = Cast {
            size,
            unordered,
            members: members.iter().collect(),
            aborted: None,
            results: BTreeMap::new(),
            heard: BTreeMap::new(),
            returned: BTreeMap::new(),
            is_complete: false,
            begun: now,
            ran: now,
            completed: now,
            sent: BTreeMap::new(),
            degree: 0,
        };
        self.casts.insert(id, cast);
        for engine in members.iter() {
            self.chain(id, engine);
        }
    }

    fn chain(&mut self, id: CastId, engine: u64) {
        if !self.is_unordered(id) {
            let chain = self.chains.entry((id.session, engine)).or_default();
            chain.push(id.number);
        }
    }

    pub(crate) fn is_unordered(&self, id: CastId) -> bool {
        self.casts[&id].unordered
    }

    pub(crate) fn extend(&mut self, id: CastId, engine: u64) {
        let cast = self.casts.get_mut(&id).expect("it is open");
        cast.members.insert(engine);
        self.chain(id, engine);
    }

    pub(crate) fn abort(&mut self, id: CastId, now: Duration) {
        let cast = self.casts.get_mut(&id).expect("it is open");
        cast.aborted.get_or_insert(now);
    }

    pub(crate) fn refuse(&mut self, id: CastId, who: Neighbour) {
        if let Neighbour::Worker(worker) = who {
            self.refused.insert((id, u64::from(worker.0)));
        }
    }

    /// Casts of a session that are not complete.
    pub(crate) fn open(&self, session: ClientId) -> Vec<u64> {
        let casts = self.casts.iter();
        let open = casts.filter(|(id, cast)| id.session == session && !cast.is_complete);
        open.map(|(id, _)| id.number).collect()
    }

    pub(crate) fn size(&self, id: CastId) -> u64 {
        self.casts[&id].size
    }

    pub(crate) fn sent(&mut self, from: Pid, message: &Message, body: &Body) {
        let sent = match (message, body) {
            (Message::Chunk { cast, length, .. }, _) => Some((*cast, u64::from(*length))),
            (Message::Offer(offer), Body::Payload(_)) => Some((offer.cast, offer.size)),
            _ => None,
        };
        if let Some((cast, bytes)) = sent {
            let cast = self.casts.get_mut(&cast).expect("it was made");
            *cast.sent.entry(from).or_default() += bytes;
        }
        if let Message::Offer(offer) = message {
            let cast = self.casts.get_mut(&offer.cast).expect("it was made");
            let inline = match body {
                Body::Payload(_) => u64::from(offer.shape.local).max(self.star),
                _ => 0,
            };
            cast.degree = u64::from(offer.shape.degree) + inline;
        }
    }

    pub(crate) fn run(&mut self, id: CastId, engine: u64, now: Duration) -> Result<(), String> {
        let wrong = |reason: String| Err(format!("{engine} runs {id:?}, {reason}"));
        if !self.runs.insert((id, engine)) {
            return wrong("and ran it before".into());
        }
        let cast = self.casts.get_mut(&id).expect("it was made");
        cast.ran = now;
        if !cast.members.contains(&engine) {
            return wrong("which is not for it".into());
        }
        if let Some(result @ (Outcome::Aborted | Outcome::Refused(_))) = cast.results.get(&engine) {
            return wrong(format!("which is {result:?}"));
        }
        if cast.unordered {
            return Ok(());
        }
        let chain = &self.chains[&(id.session, engine)];
        let position = chain.iter().position(|&number| number == id.number);
        let position = position.expect("it is a member");
        // What is gone and does not know it has no future, and so no order: its casts are settled.
        if self.declared.contains(&engine) {
            return Ok(());
        }
        let next = self.ran.entry((id.session, engine)).or_default();
        if position < *next {
            return wrong(format!("after {}", chain[*next - 1]));
        }
        let skipped = &chain[*next..position];
        *next = position + 1;
        for &number in skipped {
            let session = id.session;
            let before = CastId { session, number };
            let cast = &self.casts[&before];
            let is_over = cast.aborted.is_some()
                || self.refused.contains(&(before, engine))
                || cast.results.contains_key(&engine);
            if !is_over {
                return wrong(format!("and did not run {before:?} before"));
            }
        }
        Ok(())
    }

    pub(crate) fn returned(&mut self, id: CastId, engine: u64, size: u64) {
        let cast = self.casts.get_mut(&id).expect("it was made");
        cast.returned.insert(engine, size);
        self.returned.insert((id, engine));
    }

    pub(crate) fn result(
        &mut self,
        id: CastId,
        engines: &Runs,
        outcome: &Outcome,
        body: &Body,
        now: Duration,
    ) -> Result<(), String> {
        let cast = self.casts.get_mut(&id).expect("it was made");
        let values: BTreeSet<u64> = match body {
            Body::Results(values) => values.iter().copied().collect(),
            _ => BTreeSet::new(),
        };
        for engine in engines.iter() {
            let wrong = |reason: &str| Err(format!("{id:?} at {engine} is {outcome:?}, {reason}"));
            if cast.results.insert(engine, outcome.clone()).is_some() {
                return wrong("and had a result before");
            }
            cast.heard.insert(engine, now);
            if !cast.members.contains(&engine) {
                return wrong("and it is no member");
            }
            let has_run = self.runs.contains(&(id, engine));
            let is_right = match outcome {
                Outcome::Finished { size } => {
                    let is_same = cast.returned.get(&engine) == Some(size);
                    is_same && (*size == 0 || values.contains(&value(id, engine)))
                }
                Outcome::Aborted => {
                    let is_prompt = |at| !self.is_faultless || now <= at + PROMPT;
                    cast.aborted.is_some_and(is_prompt) && !has_run
                }
                Outcome::Refused(_) => self.refused.contains(&(id, engine)) && !has_run,
                Outcome::Lost(_) => self.declared.contains(&engine),
                Outcome::Unreachable => {
                    !self.is_faultless && now >= cast.begun + Duration::from_secs(1)
                }
            };
            if !is_right {
                return wrong("which is not what happened");
            }
            if *outcome == Outcome::Aborted && !cast.unordered {
                let runs = |number: &u64| {
                    let (session, number) = (id.session, *number);
                    let before = CastId { session, number };
                    let has_returned = self.returned.contains(&(before, engine));
                    self.runs.contains(&(before, engine)) && !has_returned
                };
                let before = self.chains[&(id.session, engine)].iter();
                let mut before = before.take_while(|&&number| number != id.number);
                self.early += u64::from(before.any(runs));
            }
        }
        Ok(())
    }

    pub(crate) fn output(&self, session: ClientId, output: &Output) -> Result<(), String> {
        let number = output.number;
        let id = CastId { session, number };
        let engine = u64::from(output.engine.0);
        if self.casts[&id].results.contains_key(&engine) {
            return Err(format!("{engine} writes for {id:?} after its result"));
        }
        Ok(())
    }

    pub(crate) fn complete(&mut self, id: CastId, now: Duration) -> Result<(), String> {
        let cast = self.casts.get_mut(&id).expect("it was made");
        if std::mem::replace(&mut cast.is_complete, true) {
            return Err(format!("{id:?} is complete twice"));
        }
        cast.completed = now;
        match cast
            .members
            .iter()
            .find(|member| !cast.results.contains_key(member))
        {
            Some(member) => Err(format!("{id:?} is complete without {member}")),
            None => Ok(()),
        }
    }

    /// Nothing happens any more: everything is over, and nothing is left.
    pub(crate) fn end(&self, world: &World) -> Result<(), String> {
        for (id, cast) in &self.casts {
            if self.clients_gone.contains(&id.session) {
                continue;
            }
            if !cast.is_complete {
                let missing = cast.members.iter();
                let missing: Vec<_> = missing
                    .filter(|member| !cast.results.contains_key(member))
                    .collect();
                return Err(format!("{id:?} is not complete, {missing:?} are missing"));
            }
            for (pid, &bytes) in &cast.sent {
                if self.is_faultless && bytes > cast.size * cast.degree.max(1) {
                    let name = world.name(*pid);
                    return Err(format!("{name} sends {bytes} bytes of {id:?}"));
                }
            }
        }
        for (pid, process) in world.procs.iter().enumerate() {
            if !process.is_alive {
                continue;
            }
            let name = world.name(pid);
            if process.relay.casts() > 0 {
                return Err(format!("{name} keeps {} casts", process.relay.casts()));
            }
            if !process.payloads.is_empty() || !process.results.is_empty() {
                return Err(format!("{name} keeps payloads or results"));
            }
            if let Some(running) = process.running.as_ref().or(process.unordered.first()) {
                return Err(format!("{name} runs {running:?} for ever"));
            }
            if process.relay.next_deadline().is_some() {
                return Err(format!("{name} waits for something"));
            }
        }
        Ok(())
    }
}
