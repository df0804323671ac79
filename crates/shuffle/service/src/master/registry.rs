//! The registry: who is told which servers there are, and where the masters of applications are. It keeps nothing
//! that outlives it: servers and masters come again.

use std::collections::{BTreeMap, BTreeSet};

use crate::master::state::State;
use crate::wire::{self, Claim, Server, Servers};

#[derive(Default)]
pub(super) struct Registry {
    /// Members that are told of servers.
    followers: BTreeSet<u32>,
    /// The masters of applications, by the members that they are.
    masters: BTreeMap<u32, Claim>,
}

impl Registry {
    /// A member is gone, and with it the master that it was.
    pub(super) fn lose(&mut self, member: u32) {
        self.followers.remove(&member);
        self.masters.remove(&member);
    }

    /// A master of an application is there. Returns where the application has one already; nothing: it had none.
    pub(super) fn claim(&mut self, member: u32, claim: Claim) -> String {
        let mut masters = self.masters.iter();
        let other =
            masters.find(|(id, other)| **id != member && other.application == claim.application);
        if let Some((_, other)) = other {
            return other.address.clone();
        }
        self.masters.insert(member, claim);
        String::new()
    }

    /// Where the master with a number is.
    pub(super) fn master(&self, number: u32) -> Option<&str> {
        let mut masters = self.masters.values();
        masters
            .find(|claim| claim.master == number)
            .map(|claim| &*claim.address)
    }

    pub(super) fn masters(&self) -> impl Iterator<Item = &Claim> {
        self.masters.values()
    }
}

impl State {
    /// A member wants to know of servers.
    pub(super) fn follow(&mut self, member: u32) {
        self.registry.followers.insert(member);
        self.tell_servers(&BTreeSet::from([member]));
    }

    /// Servers have come, gone, or are to leave.
    pub(super) fn servers_changed(&self) {
        self.tell_servers(&self.registry.followers);
    }

    fn tell_servers(&self, followers: &BTreeSet<u32>) {
        if followers.is_empty() {
            return;
        }
        let members = self.members.iter();
        let servers = members.filter(|(_, member)| member.hello.is_server());
        let servers = servers.map(|(&id, member)| Server {
            name: member.hello.name.clone(),
            address: member.hello.address.clone(),
            domain: member.hello.domain.clone(),
            weight: member.hello.weight,
            version: member.hello.version.clone(),
            newest: member.hello.newest,
            oldest: member.hello.oldest,
            room: member.hello.room,
            id,
            is_leaving: member.is_leaving,
        });
        let list = Servers {
            servers: servers.collect(),
        };
        for follower in followers {
            if let Some(member) = self.members.get(follower) {
                wire::send(&member.peer, wire::SERVERS, &list);
            }
        }
    }
}
