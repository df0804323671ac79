//! What a master knows, and what follows from what happens: the pure master with its members.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tracing::{error, warn};
use treadle_shuffle::{
    GroupId, Leases, Master as Machine, MasterEffect, MasterEvent, ServerId, ShuffleId, ToMaster,
    ToNode,
};
use treadle_shuffle_wire::encode_shuffled;

use crate::config;
use crate::master::MasterOptions;
use crate::master::known::Known;
use crate::master::membership::Member;
use crate::master::pushed::Pushed;
use crate::master::registry::Registry;
use crate::place::Place;
use crate::records::Records;
use crate::wire::{self, Met};

pub(super) struct State {
    pub(super) number: u32,
    pub(super) machine: Machine,
    pub(super) registry: Registry,
    /// Addresses of servers that were asked to leave elsewhere.
    pub(super) leaving: BTreeSet<String>,
    pub(super) leases: Leases,
    pub(super) records: Records,
    pub(super) members: BTreeMap<u32, Member>,
    pub(super) shuffles: BTreeMap<ShuffleId, Known>,
    pub(super) pushed: Pushed,
    /// The numbers of failure domains that some server is in.
    pub(super) domains: HashMap<String, u32>,
    pub(super) last_domain: u32,
    pub(super) last_member: u32,
    pub(super) last_shuffle: u64,
    pub(super) is_told: bool,
    pub(super) timeout: Duration,
    pub(super) lease: Duration,
    pub(super) place: Option<Place>,
}

impl State {
    /// That of a master with a number. `has_recorder`: another master keeps the records, too.
    pub(super) fn new(number: u32, options: &MasterOptions, has_recorder: bool) -> Self {
        Self {
            number,
            // Small shuffles of many masters do not all begin at the same server.
            machine: Machine::beginning(config(), number as usize),
            registry: Registry::default(),
            leaving: BTreeSet::new(),
            leases: Leases::new(options.lease),
            records: Records::new(has_recorder),
            members: BTreeMap::new(),
            shuffles: BTreeMap::new(),
            pushed: Pushed::default(),
            domains: HashMap::new(),
            last_domain: 0,
            last_member: 0,
            last_shuffle: u64::from(number) << 32,
            is_told: options.is_told,
            timeout: options.timeout,
            lease: options.lease,
            place: options.place,
        }
    }

    /// Hands the machine an event, and does what follows.
    pub(super) fn tell(&mut self, event: MasterEvent) -> Result<(), String> {
        self.records.saw(&event);
        let mut effects = Vec::new();
        let handled = self.machine.handle(event, &mut effects);
        debug_assert_eq!(self.machine.check(), Ok(()));
        for effect in effects {
            self.records.follows(&effect, |server| {
                let member = self.members.get(&server.node);
                member.map_or_else(
                    || server.node.to_string(),
                    |member| member.hello.name.clone(),
                )
            });
            match effect {
                MasterEffect::Send { to, message } => {
                    if let ToNode::Committed {
                        shuffle,
                        result: Ok(generation),
                        ..
                    } = &message
                        && let Some(known) = self.shuffles.get_mut(shuffle)
                    {
                        known.committed(*generation);
                    }
                    self.send(to.node, &message);
                }
                MasterEffect::Invalidate {
                    shuffle,
                    maps,
                    outputs,
                } => {
                    if let Some(known) = self.shuffles.get_mut(&shuffle) {
                        known.lost = known.lost.union(&maps);
                        if outputs && let Some(now) = self.machine.progress(shuffle) {
                            known.restarted(now.generation);
                        }
                    }
                }
                MasterEffect::NotDeterministic { shuffle, map } => {
                    let name = self
                        .shuffles
                        .get(&shuffle)
                        .map_or("", |known| &known.is.name);
                    let which = map.map_or_else(String::new, |map| format!(" {map}"));
                    warn!(target: treadle_log::SHUFFLE,
                        "map{which} of shuffle {name} has other rows than when it ran before: all of \
                         it runs again"
                    );
                }
                MasterEffect::Drained(server) => {
                    if let Some(member) = self.members.get(&server.node) {
                        wire::send_bytes(&member.peer, wire::DRAINED, Vec::new());
                    }
                }
            }
        }
        self.records.look_after();
        handled.map_err(|error| error.to_string())
    }

    pub(super) fn send(&mut self, to: u32, message: &ToNode) {
        if let ToNode::Plan(plan) = message {
            if let Some(known) = self.shuffles.get_mut(&plan.shuffle) {
                known.plan = Some(Arc::clone(plan));
            }
            let holders = plan.groups.iter().flat_map(|group| group.holders());
            let servers: BTreeSet<u32> = holders.map(|server| server.node).collect();
            for server in servers {
                self.introduce(to, server);
            }
        }
        if let Some(member) = self.members.get(&to) {
            wire::send_bytes(&member.peer, wire::TO_NODE, encode_shuffled(message));
        }
    }

    /// Tells a member the address of a server, once.
    pub(super) fn introduce(&mut self, to: u32, server: u32) {
        let other = self.members.get(&server);
        let other = other.map(|it| (it.hello.address.clone(), it.protocol));
        if let (Some(member), Some((address, protocol))) = (self.members.get_mut(&to), other)
            && to != server
            && member.met.insert(server)
        {
            let met = Met {
                id: server,
                address,
                protocol,
            };
            wire::send(&member.peer, wire::MET, &met);
        }
    }

    /// Ends the shuffles that run.
    pub(super) fn end_all(&mut self) {
        for shuffle in self.shuffles.keys().copied().collect::<Vec<_>>() {
            self.end_shuffle(shuffle);
        }
    }

    /// Whether the records of all shuffles are complete, and the registry has them.
    pub(super) fn is_recorded(&mut self) -> bool {
        self.records.look_after();
        self.records.is_told()
    }

    /// What a member is called.
    pub(super) fn name(&self, node: u32) -> ServerId {
        ServerId {
            node,
            incarnation: self.number,
        }
    }

    pub(super) fn hear(&mut self, from: u32, message: ToMaster) -> Result<(), String> {
        // What only the server of a copy can know of it, it says itself.
        if let ToMaster::Sealed { group, .. }
        | ToMaster::Measured { group, .. }
        | ToMaster::Filled { group, .. }
        | ToMaster::Uploaded { group, .. }
        | ToMaster::Full { group, .. } = &message
            && group.server != self.name(from)
        {
            return Err("it speaks for another server".into());
        }
        if !self.may_say(from, &message) {
            return match &message {
                ToMaster::Commit { .. } => {
                    Err("it commits a shuffle of another application".into())
                }
                _ => Ok(()),
            };
        }
        let again = match &message {
            ToMaster::Transferred { transfer, .. } => Some((transfer.shuffle, transfer.map)),
            _ => None,
        };
        if let Some((shuffle, map)) = again
            && let Some(known) = self.shuffles.get_mut(&shuffle)
        {
            // Unless the machine says at once that its rows are gone.
            known.lost.remove(u64::from(map));
        }
        if let ToMaster::Slow {
            shuffle,
            server,
            times,
        } = &message
            && !self.machine.has_its_share(*shuffle, (*server, *times))
        {
            self.slow(server.node)?;
        }
        let from = self.name(from);
        if let Err(reason) = self.tell(MasterEvent::Message { from, message }) {
            error!(target: treadle_log::SHUFFLE, "{reason}");
        }
        Ok(())
    }

    /// Whether a member may say this of a shuffle. What makes maps run again is said by its application, and by servers
    /// of its copies. Others may write maps, too.
    fn may_say(&self, from: u32, message: &ToMaster) -> bool {
        let shuffle = match message {
            ToMaster::Commit { commit, .. } => commit.shuffle,
            ToMaster::Transferred { transfer, .. } => transfer.shuffle,
            ToMaster::Slow { shuffle, .. }
            | ToMaster::Damaged { shuffle, .. }
            | ToMaster::Differs { shuffle, .. }
            | ToMaster::Poisoned { shuffle, .. } => *shuffle,
            _ => return true,
        };
        let Some(known) = self.shuffles.get(&shuffle) else {
            // It has ended. Of all that, only a commit is answered.
            return !matches!(message, ToMaster::Slow { .. });
        };
        let application = self.members.get(&from).map(|it| it.hello.application);
        if application == Some(known.tenant.application.0) {
            return true;
        }
        let mut groups = known.plan.iter().flat_map(|plan| &plan.groups);
        match message {
            ToMaster::Transferred { groups: named, .. } => {
                let all: BTreeSet<GroupId> = groups.map(|group| group.id).collect();
                named.iter().all(|group| all.contains(group))
            }
            ToMaster::Damaged { group, .. } | ToMaster::Poisoned { group, .. } => {
                let (copy, from) = (group.server, self.name(from));
                groups.any(|other| {
                    let holds = |server| other.holders().any(|holder| holder == server);
                    other.id.epoch == group.epoch && holds(copy) && holds(from)
                })
            }
            _ => false,
        }
    }
}
