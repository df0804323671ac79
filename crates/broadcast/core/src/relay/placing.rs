//! Who becomes responsible for members: offers that go, and members that come back.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use treadle_types::WorkerId;

use crate::Guard;
use crate::plan::children;
use crate::relay::cast::{Child, Flow, Given, HOPELESS, Memory, Placement};
use crate::relay::timers::Timer;
use crate::relay::{NeighbourState, Relay};
use crate::{CastId, Effect, Effects, Member, Message, Neighbour, Offer, Runs, Settled, Version};

impl Relay {
    /// Gives `members` of a cast to children: those that have no result, and are not this node.
    pub(super) fn place(
        &mut self,
        id: CastId,
        members: &Runs,
        version: Version,
        fresh: bool,
        out: &mut Effects,
    ) {
        let me = self.engine.as_ref().map(|_| self.id());
        let Some(cast) = self.cast(id) else { return };
        let mut members = members.intersection(&cast.waiting);
        if let Some(me) = me {
            members.remove(me);
        }
        if members.is_empty() {
            return;
        }
        match cast.payload.memory {
            Memory::Asked { .. } => {
                // Without memory this node cannot pass the payload on, and gives the members back.
                cast.deferred.push(Placement {
                    members,
                    version,
                    fresh,
                });
                return;
            }
            Memory::Refused(_) => return self.decline(id, &members, out),
            Memory::None | Memory::Granted { .. } => {}
        }
        // Who is silent gets its own, and nobody else is made to wait for it.
        let silent = self.silent().intersection(&members);
        for head in silent.iter() {
            self.give(id, head, Runs::one(head), version, fresh, out);
        }
        let [good, doubtful, hopeless] = self.sort(id, members.difference(&silent));
        for (head, group) in self.groups(id, &good, &doubtful, fresh) {
            self.give(id, head, group, version, fresh, out);
        }
        if !hopeless.is_empty() {
            match self.top {
                Some(_) => self.park(id, &hopeless),
                None => self.decline(id, &hopeless, out),
            }
        }
    }

    /// Who may head a group, who is asked only for itself, and who is not asked any more.
    fn sort(&mut self, id: CastId, members: Runs) -> [Runs; 3] {
        let now = self.now;
        self.avoided.retain(|_, until| *until > now);
        let avoided: Runs = self.avoided.keys().copied().collect();
        let Some(cast) = self.cast(id) else {
            return Default::default();
        };
        let failed = cast.failed.iter();
        let hopeless: Runs = failed
            .clone()
            .filter(|&(_, &times)| times >= HOPELESS)
            .map(|(&member, _)| member)
            .collect();
        let doubtful: Runs = failed.map(|(&member, _)| member).collect();
        let hopeless = hopeless.intersection(&members);
        let rest = members.difference(&hopeless);
        let doubtful = doubtful.union(&avoided).intersection(&rest);
        [rest.difference(&doubtful), doubtful, hopeless]
    }

    /// Groups with their heads. Doubtful members head no group but their own.
    fn groups(
        &mut self,
        id: CastId,
        good: &Runs,
        doubtful: &Runs,
        fresh: bool,
    ) -> Vec<(u64, Runs)> {
        if good.is_empty() {
            return doubtful.iter().map(|id| (id, Runs::one(id))).collect();
        }
        let is_top = self.top.is_some();
        let Some(cast) = self.cast(id) else {
            return Vec::new();
        };
        // A group that failed is tried in more and more parts.
        let widen = match fresh {
            true => 0,
            false => cast.repairs.saturating_sub(1).min(10),
        };
        let shape = cast.shape;
        let processors = self.config.processors;
        let mut groups = match is_top {
            true => self.groups_of_top(good, 1 << widen.saturating_sub(1)),
            false => {
                let [here, elsewhere] = self.by_host(good);
                let crowd: Vec<_> = here.iter().flatten().map(|&id| vec![id]).collect();
                let mut groups = split(&elsewhere, (shape.degree as usize) << widen);
                let near = match shape.chosen {
                    true => shape.local.into(),
                    false => children(shape.local.into(), crowd.len() as u64, processors),
                };
                groups.extend(split(&crowd, (near as usize) << widen));
                groups
            }
        };
        if let Some((_, group)) = groups.first_mut() {
            *group = group.union(doubtful);
        }
        groups
    }

    /// Members on the node's own host, and on each other.
    fn by_host(&self, members: &Runs) -> [Vec<Vec<u64>>; 2] {
        let mine = self.host();
        let located = members.iter().map(|id| (self.directory[&id].host, id));
        let mut sorted: Vec<_> = located.collect();
        sorted.sort_unstable();
        let hosts = sorted.chunk_by(|one, other| one.0 == other.0);
        let mut result = [Vec::new(), Vec::new()];
        for host in hosts {
            let is_mine = Some(host[0].0) == mine;
            result[usize::from(!is_mine)].push(host.iter().map(|&(_, id)| id).collect());
        }
        result
    }

    /// The top has one root, or some when repairs fail again and again; best one that it has already.
    fn groups_of_top(&mut self, good: &Runs, parts: u64) -> Vec<(u64, Runs)> {
        if parts == 1 {
            return vec![(self.root(good), good.clone())];
        }
        let members: Vec<u64> = good.iter().collect();
        let length = members.len().div_ceil(parts as usize).max(1);
        let parts = members.chunks(length);
        parts
            .map(|part| (part[0], part.iter().copied().collect()))
            .collect()
    }

    /// Who of `members` becomes the root.
    fn root(&mut self, members: &Runs) -> u64 {
        let connected = self.links.iter().filter_map(|(who, link)| match who {
            Neighbour::Worker(worker) if link.is_connected => Some(u64::from(worker.0)),
            _ => None,
        });
        let top = self.top.as_mut().expect("only the top has a root");
        let last = top.root.filter(|&root| members.contains(root));
        let root = last
            .or_else(|| connected.into_iter().find(|&id| members.contains(id)))
            .or_else(|| members.first())
            .expect("a group has members");
        top.root = Some(root);
        root
    }

    /// Makes `head` responsible for `group`.
    pub(super) fn give(
        &mut self,
        id: CastId,
        head: u64,
        group: Runs,
        version: Version,
        fresh: bool,
        out: &mut Effects,
    ) {
        let Some(member) = self.directory.get(&head).cloned() else {
            return;
        };
        let (who, neighbour) = (member.worker, Neighbour::Worker(member.worker));
        let since = self.now;
        if group.len() > 1 {
            let at = since + self.config.silence;
            self.timers.arm(Timer::Silence, at);
        }
        let Some(cast) = self.cast(id) else { return };
        cast.version = cast.version.max(version);
        if cast.child(neighbour).is_none() {
            cast.children.push(Child {
                who,
                asked: Runs::new(),
                given: Default::default(),
                flow: Flow::None,
            });
        }
        let child = cast.child(neighbour).expect("it was added");
        child.given.push(Given {
            members: group,
            version,
            fresh,
            since,
            sent: false,
        });
        match self.links.get(&neighbour) {
            Some(link) if link.is_connected => self.send_offers(id, who, out),
            Some(_) => {}
            None => self.connect(member, out),
        }
    }

    fn connect(&mut self, member: Member, out: &mut Effects) {
        let who = Neighbour::Worker(member.worker);
        let heard = self.now;
        let link = NeighbourState {
            heard,
            ..NeighbourState::default()
        };
        self.links.insert(who, link);
        out.push(Effect::Connect(member));
    }

    /// Sends a child what it was given and has not heard.
    pub(super) fn send_offers(&mut self, id: CastId, who: WorkerId, out: &mut Effects) {
        let neighbour = Neighbour::Worker(who);
        let is_near = self.is_near(who);
        let inline = self.config.inline;
        let Some(session) = self.sessions.get_mut(&id.session) else {
            return;
        };
        let Some(cast) = session.casts.get_mut(&id.number) else {
            return;
        };
        let (waiting, size, shape) = (cast.waiting.clone(), cast.size, cast.shape);
        let (aborted, unordered, previous) = (cast.aborted, cast.unordered, &cast.previous);
        let is_it = |child: &&mut Child| child.who == who;
        let Some(child) = cast.children.iter_mut().find(is_it) else {
            return;
        };
        let mut offers = Vec::new();
        for given in child.given.iter_mut().filter(|given| !given.sent) {
            given.sent = true;
            let members = given.members.intersection(&waiting);
            if members.is_empty() {
                continue;
            }
            child.asked = child.asked.union(&members);
            if given.fresh && size > inline && !aborted && child.flow == Flow::None {
                child.flow = match is_near {
                    true => Flow::Mapping,
                    false => Flow::Chunks { sent: 0, acked: 0 },
                };
            }
            offers.push(Offer {
                cast: id,
                previous: previous.project(&members),
                members,
                size,
                shape,
                version: given.version,
                fresh: given.fresh,
                unordered,
                mapped: is_near,
                aborted,
                settled: Settled(session.settled.clone()),
            });
        }
        // The offers say what is settled.
        session.owes.remove(&neighbour);
        for offer in offers {
            self.introduce(neighbour, &offer.members, out);
            out.send(neighbour, Message::Offer(Box::new(offer)));
        }
        self.pump(id, out);
    }

    /// Tells a neighbour who members are that it has not heard of on this connection.
    fn introduce(&mut self, to: Neighbour, members: &Runs, out: &mut Effects) {
        let Some(link) = self.links.get_mut(&to) else {
            return;
        };
        let strangers = members.difference(&link.introduced);
        if strangers.is_empty() {
            return;
        }
        link.introduced = link.introduced.union(&strangers);
        let strangers: Vec<u64> = strangers.iter().collect();
        for some in strangers.chunks(self.config.introduced) {
            let members = some.iter().filter_map(|id| self.directory.get(id).cloned());
            out.send(to, Message::Introduce(members.collect()));
        }
    }

    /// A child is lost: its members come back. `weight`: how bad it was.
    pub(super) fn lose_child(&mut self, id: CastId, who: WorkerId, weight: u32, out: &mut Effects) {
        let by = self.maker();
        let Some(cast) = self.cast(id) else { return };
        let Some(position) = cast.children.iter().position(|child| child.who == who) else {
            return;
        };
        let child = cast.children.remove(position);
        let members = child.responsible().intersection(&cast.waiting);
        *cast.failed.entry(u64::from(who.0)).or_default() += weight;
        if members.is_empty() {
            return;
        }
        cast.repairs += 1;
        let version = cast.next_version(by);
        if Guard::Responsibility.holds() {
            self.place(id, &members, version, false, out);
        }
    }

    /// A child gives members back.
    pub(super) fn declined(
        &mut self,
        from: Neighbour,
        id: CastId,
        members: &Runs,
        out: &mut Effects,
    ) {
        let by = self.maker();
        let Some(cast) = self.cast(id) else { return };
        let waiting = cast.waiting.clone();
        let Some(child) = cast.child(from) else {
            return;
        };
        let taken = child.take(&members.intersection(&waiting), None);
        if !taken.is_empty() {
            let version = cast.next_version(by);
            self.place(id, &taken, version, false, out);
        }
    }

    /// Gives members back to all who asked for them.
    pub(super) fn decline(&mut self, id: CastId, members: &Runs, out: &mut Effects) {
        let Some(cast) = self.cast(id) else { return };
        cast.members = cast.members.difference(members);
        cast.waiting = cast.waiting.difference(members);
        for child in &mut cast.children {
            child.take(members, None);
        }
        for placement in &mut cast.deferred {
            placement.members = placement.members.difference(members);
        }
        // Who asks for them again has them tried anew.
        cast.failed.retain(|&member, _| !members.contains(member));
        for parent in &mut cast.parents {
            let asked = parent.asked.intersection(members);
            if !asked.is_empty() {
                parent.asked = parent.asked.difference(&asked);
                let (cast, members) = (id, asked);
                out.send(parent.who, Message::Decline { cast, members });
            }
        }
        // What remains may be complete.
        if let Some(session) = self.sessions.get_mut(&id.session) {
            session.dirty.insert(id.number);
        }
    }
}

/// Divides hosts into at most `parts` groups next to each other, of nearly as many hosts each; the
/// first member of each is the head.
fn split(hosts: &[Vec<u64>], parts: usize) -> Vec<(u64, Runs)> {
    let parts = parts.min(hosts.len());
    let mut groups = Vec::with_capacity(parts);
    let mut rest = hosts;
    for left in (1..=parts).rev() {
        let (group, others) = rest.split_at(rest.len().div_ceil(left));
        rest = others;
        let members = group.iter().flatten().copied().collect();
        groups.push((group[0][0], members));
    }
    groups
}
