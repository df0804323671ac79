//! The top of a session.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use treadle_types::{Cause, ClientId, WorkerId};

use crate::Guard;
use crate::relay::cast::{Cast, Session, Trouble};
use crate::relay::timers::Timer;
use crate::relay::{Relay, Violation};
use crate::run_map::RunMap;
use crate::{CastId, Effect, Effects, Neighbour, Outcome, Runs, Shape, Tree, TreeError, Version};

/// The wait between two tries is doubled so many times at most.
const DOUBLINGS: u32 = 5;

/// What only the top knows.
pub(crate) struct Top {
    pub(crate) session: ClientId,
    pub(crate) host: Option<u32>,
    /// The number of the next cast.
    pub(crate) next: u64,
    /// The last cast to each engine.
    pub(crate) last: RunMap,
    pub(crate) root: Option<u64>,
    /// Engines that are gone, and why.
    pub(crate) causes: BTreeMap<u64, Cause>,
    /// Casts that members have aborted before their turn.
    pub(crate) skipping: BTreeSet<u64>,
    /// The last plan: for whom, for up to how many bytes, and what was asked of it.
    plan: Option<(Runs, u64, Tree, Shape)>,
}

impl Top {
    pub(crate) fn new(session: ClientId, host: Option<u32>) -> Self {
        Self {
            session,
            host,
            next: 1,
            last: RunMap::default(),
            root: None,
            causes: BTreeMap::new(),
            skipping: BTreeSet::new(),
            plan: None,
        }
    }
}

impl Relay {
    pub(super) fn make(
        &mut self,
        number: u64,
        members: &Runs,
        (size, unordered, tree): (u64, bool, Tree),
        out: &mut Effects,
    ) -> Result<(), Violation> {
        let wrong = |reason| Err(Violation::cast(number, reason));
        let Some(top) = &self.top else {
            return wrong("this is no client");
        };
        let id = CastId {
            session: top.session,
            number,
        };
        if number != top.next {
            return wrong("it is not the next");
        }
        if !self.has_room() {
            return wrong("there are too many that are not complete");
        }
        if !members.is_subset(&self.known.union(&self.gone)) {
            return wrong("an engine is not known");
        }
        let shape = self.shape(members, size, tree)?;
        let now = self.now;
        let session = self.sessions.get_mut(&id.session).expect("it has one");
        let mut cast = Cast::new(size, unordered, shape, now);
        cast.payload.have = size;
        session.casts.insert(number, cast);
        self.top.as_mut().expect("it is one").next += 1;
        self.add(id, members, out);
        Ok(())
    }

    pub(super) fn extend(
        &mut self,
        number: u64,
        members: &Runs,
        out: &mut Effects,
    ) -> Result<(), Violation> {
        let wrong = |reason| Err(Violation::cast(number, reason));
        let Some(top) = &self.top else {
            return wrong("this is no client");
        };
        if !members.is_subset(&self.known.union(&self.gone)) {
            return wrong("an engine is not known");
        }
        let session = top.session;
        let id = CastId { session, number };
        let Some(cast) = self.cast(id) else {
            return Ok(());
        };
        if cast.waiting.is_empty() {
            return Ok(());
        }
        let members = members.difference(&cast.members);
        self.add(id, &members, out);
        Ok(())
    }

    /// A cast is for these members, who were no members before.
    fn add(&mut self, id: CastId, members: &Runs, out: &mut Effects) {
        let top = self.top.as_mut().expect("only the top adds members");
        let session = self.sessions.get_mut(&id.session).expect("it has one");
        let cast = session.casts.get_mut(&id.number).expect("it was made");
        if !cast.unordered {
            let before = top.last.project(members);
            cast.previous.set_some(members, &before, members);
            top.last.set(members, id.number);
        }
        cast.members = cast.members.union(members);
        cast.waiting = cast.waiting.union(members);
        let gone = members.intersection(&self.gone);
        if members.is_empty() {
            return self.complete(id, out);
        }
        for engine in gone.iter() {
            let cause = self.top.as_ref().and_then(|top| top.causes.get(&engine));
            let cause = cause.cloned().unwrap_or(Cause::Unreachable);
            self.learn(id, Runs::one(engine), Outcome::Lost(cause), out);
        }
        let version = Version::default();
        self.place(id, &members.difference(&gone), version, true, out);
    }

    /// The shape for a payload to some members. It is computed anew when these are others, or more
    /// than twice the bytes.
    fn shape(&mut self, members: &Runs, size: u64, tree: Tree) -> Result<Shape, TreeError> {
        let bytes = match size {
            0 => 0,
            _ => size.next_power_of_two(),
        };
        let top = self.top.as_ref().expect("only the top plans");
        if let Some((same, most, asked, shape)) = &top.plan
            && (*most, *asked) == (bytes, tree)
            && same == members
        {
            return Ok(*shape);
        }
        let mut hosts: BTreeMap<u32, u64> = BTreeMap::new();
        for member in members.iter().filter_map(|id| self.directory.get(&id)) {
            *hosts.entry(member.host).or_default() += 1;
        }
        let crowd = hosts.values().copied().max().unwrap_or(0);
        let (network, local) = (&self.config.network, &self.config.local);
        let hosts = hosts.len() as u64;
        let shape = match tree.degree(hosts, crowd)? {
            Some(degree) => Shape::of_degree(degree, bytes, hosts, network),
            None => Shape::new(bytes, hosts, crowd, network, local),
        };
        self.top.as_mut().expect("it is one").plan = Some((members.clone(), bytes, tree, shape));
        Ok(shape)
    }

    /// All members have a result.
    pub(super) fn complete(&mut self, id: CastId, out: &mut Effects) {
        let Some(cast) = self.cast(id) else { return };
        if !cast.waiting.is_empty() {
            return;
        }
        let is_over = cast.skipped.is_empty();
        let number = id.number;
        out.push(Effect::Complete { number });
        if is_over {
            self.settle(id.session, &Runs::one(number), out);
        }
    }

    /// Members have aborted a cast. To be settled means that its turn has come, and what came before
    /// is over: so it is not, where that is not yet so.
    pub(super) fn skip(&mut self, id: CastId, members: &Runs) {
        if !Guard::SettleOrder.holds() {
            return;
        }
        let (Some(session), Some(top)) = (self.sessions.get_mut(&id.session), &mut self.top) else {
            return;
        };
        let early = session.behind(id.number, members);
        if let Some(cast) = session.casts.get_mut(&id.number)
            && !early.is_empty()
        {
            cast.skipped = cast.skipped.union(&early);
            top.skipping.insert(id.number);
        }
    }

    /// Settles what is complete, and was aborted before its turn, when this has come.
    pub(super) fn close_up(&mut self, out: &mut Effects) {
        let mut is_moving = true;
        while is_moving {
            is_moving = false;
            let Some(top) = &self.top else { return };
            let id = top.session;
            for number in top.skipping.clone() {
                let (Some(session), Some(top)) = (self.sessions.get_mut(&id), &mut self.top) else {
                    return;
                };
                let cast = &session.casts[&number];
                let early = session.behind(number, &cast.skipped);
                if early == cast.skipped {
                    continue;
                }
                is_moving = true;
                let cast = session.casts.get_mut(&number).expect("it is kept");
                cast.skipped = early;
                if cast.skipped.is_empty() {
                    top.skipping.remove(&number);
                    if cast.waiting.is_empty() {
                        self.settle(id, &Runs::one(number), out);
                    }
                }
            }
        }
    }

    /// Nobody could reach these members: they are tried again later.
    pub(super) fn park(&mut self, id: CastId, members: &Runs) {
        let (now, retry, forget) = (self.now, self.config.retry, self.config.unreachable);
        let Some(cast) = self.cast(id) else { return };
        cast.parked = cast.parked.union(members);
        let mut tries = 0;
        for member in members.iter() {
            let trouble = cast.trouble.entry(member).or_insert(Trouble {
                since: now,
                last: now,
                tries: 0,
            });
            // It had been reached in the meantime.
            if now - trouble.last > forget {
                trouble.since = now;
            }
            trouble.last = now;
            tries = tries.max(trouble.tries);
        }
        let wait = retry * (1 << tries.min(DOUBLINGS));
        self.timers.arm(Timer::Retry(id), now + wait);
    }

    /// Tries again to reach members: themselves, and through others in turns. Gives those up that
    /// nobody reaches for too long, in the order of their casts.
    pub(super) fn retry(&mut self, id: CastId, out: &mut Effects) {
        let (now, limit) = (self.now, self.config.unreachable);
        let Some(session) = self.sessions.get_mut(&id.session) else {
            return;
        };
        let Some(cast) = session.casts.get_mut(&id.number) else {
            return;
        };
        let parked = core::mem::take(&mut cast.parked).intersection(&cast.waiting);
        let mut by_tries: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        let mut over = Vec::new();
        for member in parked.iter() {
            let trouble = cast.trouble.get_mut(&member).expect("it is parked");
            trouble.tries += 1;
            // Otherwise it would be parked again without a try.
            cast.failed.remove(&member);
            match now - trouble.since >= limit {
                true => over.push(member),
                false => by_tries.entry(trouble.tries).or_default().push(member),
            }
        }
        let lost: Runs = over.into_iter().collect();
        // A result here is settled, and would let an engine go on past what it has not run.
        let kept = session.behind(id.number, &lost);
        self.learn(id, lost.difference(&kept), Outcome::Unreachable, out);
        if !kept.is_empty() {
            self.park(id, &kept);
        }
        for (tries, members) in by_tries {
            let members: Runs = members.into_iter().collect();
            self.try_again(id, &members, tries, out);
        }
    }

    fn try_again(&mut self, id: CastId, members: &Runs, tries: u32, out: &mut Effects) {
        let relays = self.links.iter().filter_map(|(who, link)| match who {
            Neighbour::Worker(WorkerId(id)) if link.is_connected => Some(u64::from(*id)),
            _ => None,
        });
        let passed = members.union(&self.silent());
        let relays: Vec<_> = relays.filter(|&id| !passed.contains(id)).collect();
        let Some(cast) = self.cast(id) else { return };
        let version = cast.next_version(None);
        if tries % 2 == 1 && !relays.is_empty() {
            let relay = relays[tries as usize / 2 % relays.len()];
            self.give(id, relay, members.clone(), version, false, out);
        } else {
            self.place(id, members, version, false, out);
        }
    }

    /// The scheduler says that an engine is gone.
    pub(super) fn lose(&mut self, worker: WorkerId, cause: &Cause, out: &mut Effects) {
        let Some(top) = &mut self.top else { return };
        let engine = u64::from(worker.0);
        top.causes.insert(engine, cause.clone());
        let session = top.session;
        let casts = self.sessions[&session].casts.iter();
        let waiting = casts.filter(|(_, cast)| cast.waiting.contains(engine));
        let waiting: Vec<_> = waiting.map(|(&number, _)| number).collect();
        for number in waiting {
            let id = CastId { session, number };
            let outcome = Outcome::Lost(cause.clone());
            self.learn(id, Runs::one(engine), outcome, out);
            if let Some(cast) = self.cast(id) {
                cast.trouble.remove(&engine);
                let engine = Runs::one(engine);
                for child in &mut cast.children {
                    child.take(&engine, None);
                }
            }
        }
    }
}

impl Session {
    /// Those of `members` of a cast that have not finished what they got before it.
    fn behind(&self, number: u64, members: &Runs) -> Runs {
        let Some(cast) = self.casts.get(&number) else {
            return Runs::new();
        };
        let mut behind = Runs::new();
        for (start, end, previous) in cast.previous.entries(members) {
            if let Some(before) = self.casts.get(&previous) {
                let open = before.waiting.union(&before.skipped);
                behind = behind.union(&open.intersection(&Runs::range(start, end)));
            }
        }
        behind
    }
}

impl Relay {
    /// Top: whether another cast would be taken.
    pub fn has_room(&self) -> bool {
        let session = self.top.as_ref().map(|top| &self.sessions[&top.session]);
        session.is_some_and(|session| session.casts.len() < self.config.outstanding)
    }

    /// Top: the number of the next cast.
    pub fn next_number(&self) -> u64 {
        self.top.as_ref().map_or(0, |top| top.next)
    }
}

impl Violation {
    pub(super) fn cast(number: u64, reason: &'static str) -> Self {
        Self::Cast { number, reason }
    }

    pub(super) fn protocol(from: Neighbour, reason: &'static str) -> Self {
        Self::Protocol { from, reason }
    }
}
