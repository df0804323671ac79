//! Who is connected to a master: processes that join, announce their room, are slow, leave and are lost.

use std::collections::BTreeSet;
use std::mem;
use std::time::Duration;

use tracing::{info, warn};
use treadle_net::Peer;
use treadle_reactor::awake;
use treadle_shuffle::{Intake, MasterEvent, Standing};

use crate::master::state::State;
use crate::protocol::Protocol;
use crate::room::weight;
use crate::wire::{self, Hello, Met, Room, Welcome};

/// For how long a server that was slow gets fewer partitions.
const SLOW_FOR: Duration = Duration::from_secs(60);

/// A process that is connected.
pub(super) struct Member {
    pub(super) peer: Peer,
    /// With the room that it announced last.
    pub(super) hello: Hello,
    pub(super) weight: u32,
    pub(super) intake: Intake,
    /// A process has said lately that it takes rows much more slowly than the others, until then.
    pub(super) slow_until: Option<Duration>,
    /// The version in which it is spoken to.
    pub(super) protocol: u32,
    /// Servers whose addresses it was told.
    pub(super) met: BTreeSet<u32>,
    pub(super) is_leaving: bool,
}

/// How fast a server takes rows, as it says.
fn intake(hello: &Hello) -> Intake {
    hello.room.as_ref().map(Intake::from).unwrap_or_default()
}

impl State {
    /// The servers at these addresses are to leave, and no others.
    pub(super) fn leave(&mut self, addresses: BTreeSet<String>) {
        let members = self.members.iter();
        let leaving = members.filter(|(_, member)| addresses.contains(&member.hello.address));
        for id in leaving.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.ask_to_leave(id);
        }
        self.leaving = addresses;
    }

    /// A server gets no further partitions, and what it has is copied elsewhere.
    pub(super) fn ask_to_leave(&mut self, id: u32) {
        if let Some(member) = self.members.get_mut(&id) {
            member.is_leaving = true;
            let asked = self.tell(MasterEvent::Draining(self.name(id)));
            debug_assert_eq!(asked, Ok(()));
        }
    }

    /// The number of a failure domain.
    pub(super) fn domain(&mut self, name: &str) -> u32 {
        *self.domains.entry(name.into()).or_insert_with(|| {
            self.last_domain += 1;
            self.last_domain
        })
    }

    pub(super) fn join(&mut self, peer: &Peer, hello: Hello) -> Result<u32, String> {
        let names = [
            &hello.name,
            &hello.address,
            &hello.domain,
            &hello.rack,
            &hello.host_kind,
        ];
        if names.iter().any(|name| name.len() > wire::LONGEST_NAME) {
            return Err("its name, address, domain, rack or kind of host is too long".into());
        }
        let protocol = self.admit(&hello)?;
        let is_server = hello.is_server();
        // Where this one listens, no other process does any more, whatever has become of its connection.
        let mut members = self.members.iter();
        let replaced = members.find(|(_, other)| other.hello.address == hello.address);
        let replaced = replaced.map(|(&id, _)| id);
        if let Some(id) = replaced.filter(|_| is_server) {
            if let Some(member) = self.members.get(&id) {
                member.peer.start_close();
            }
            self.lose(id);
        }
        // One that leaves makes room for the next with its name.
        let is_same = |other: &Member| other.hello.name == hello.name && !other.is_leaving;
        if is_server && self.servers().any(is_same) {
            return Err(format!(
                "another shuffle server is called {}: choose another name",
                hello.name
            ));
        }
        self.last_member += 1;
        let id = self.last_member;
        let domain = self.domain(&hello.domain);
        let weight = match is_server {
            true => weight(hello.weight, hello.room.as_ref(), None),
            false => 0,
        };
        let standing = Standing {
            domain,
            weight,
            intake: intake(&hello),
            store: hello.store,
        };
        let welcome = Welcome {
            id,
            protocol,
            timeout_ms: self.timeout.as_millis().try_into().unwrap_or(u64::MAX),
            lease_ms: self.lease.as_millis().try_into().unwrap_or(u64::MAX),
            master: self.number,
            ..Welcome::default()
        };
        wire::send(peer, wire::WELCOME, &welcome);
        if is_server && self.is_told {
            let Hello {
                name,
                address,
                domain,
                ..
            } = &hello;
            info!(target: treadle_log::SHUFFLE, "shuffle server {name} at {address} has joined (domain {domain})");
        }
        let is_leaving = self.leaving.contains(&hello.address);
        let member = Member {
            peer: peer.clone(),
            intake: standing.intake,
            hello,
            weight,
            slow_until: None,
            protocol,
            met: BTreeSet::new(),
            is_leaving,
        };
        self.members.insert(id, member);
        let server = self.name(id);
        self.tell(MasterEvent::Standing { server, standing })?;
        if is_leaving {
            self.ask_to_leave(id);
        }
        if is_server {
            self.servers_changed();
        }
        Ok(id)
    }

    /// The version in which a process that joins is spoken to. Members speak to each other, too.
    pub(super) fn admit(&self, hello: &Hello) -> Result<u32, String> {
        let joining = hello.protocol();
        let ours = Protocol::ours();
        let version = env!("CARGO_PKG_VERSION");
        let admitted = ours.admit(joining, &format!("the shuffle master ({version})"));
        let others = self.members.values().map(|member| &member.hello);
        // One that is replaced is gone.
        let others = others.filter(|other| !other.is_server() || other.address != hello.address);
        let refused = others.filter_map(|other| {
            let there = format!("{} ({})", other.name, other.version);
            other.protocol().admit(joining, &there).err()
        });
        let admitted =
            admitted.and_then(|protocol| refused.map(Err).next().unwrap_or(Ok(protocol)));
        admitted.map_err(|reason| format!("its version is {}, and {reason}", hello.version))
    }

    /// A server has other room than before.
    pub(super) fn announced(&mut self, id: u32, room: Room) -> Result<(), String> {
        let member = self.members.get_mut(&id);
        let Some(member) = member.filter(|member| member.hello.is_server()) else {
            return Err("it announces room, and is no server".into());
        };
        member.hello.room = Some(room);
        self.weigh(id)
    }

    /// The weight of a server may be another one.
    pub(super) fn weigh(&mut self, id: u32) -> Result<(), String> {
        let share = self.machine.share(self.name(id));
        let Some(member) = self.members.get_mut(&id) else {
            return Ok(());
        };
        let room = member.hello.room.as_ref();
        let slow = member.slow_until.map(|_| share);
        let weight = weight(member.hello.weight, room, slow);
        let before = mem::replace(&mut member.weight, weight);
        let intake = intake(&member.hello);
        if mem::replace(&mut member.intake, intake) == intake && before == weight {
            return Ok(());
        }
        let name = &member.hello.name;
        match (before, weight) {
            (0, 0) => {}
            (_, 0) => {
                warn!(target: treadle_log::SHUFFLE, "shuffle server {name} has no room: it gets no further partitions until it has");
            }
            (0, _) => info!(target: treadle_log::SHUFFLE, "shuffle server {name} has room again"),
            _ => {}
        }
        let store = member.hello.store;
        let domain = member.hello.domain.clone();
        let domain = self.domain(&domain);
        self.tell(MasterEvent::Standing {
            server: self.name(id),
            standing: Standing {
                domain,
                weight,
                intake,
                store,
            },
        })
    }

    pub(super) fn lose(&mut self, id: u32) {
        let Some(gone) = self.members.remove(&id) else {
            return;
        };
        if gone.hello.is_server() && self.is_told {
            let how = if gone.is_leaving {
                "has left"
            } else {
                "is lost"
            };
            info!(target: treadle_log::SHUFFLE, "shuffle server {} {how}", gone.hello.name);
        }
        for member in self.members.values_mut() {
            // Whatever it asked servers for ends.
            let is_server = member.hello.is_server();
            if member.met.remove(&id) || is_server {
                let met = Met {
                    id,
                    ..Met::default()
                };
                wire::send(&member.peer, wire::LOST, &met);
            }
        }
        self.registry.lose(id);
        let lost = self.tell(MasterEvent::Lost(self.name(id)));
        debug_assert_eq!(lost, Ok(()));
        if gone.hello.is_server() {
            self.servers_changed();
        }
        let domain = &gone.hello.domain;
        if !self
            .members
            .values()
            .any(|member| member.hello.domain == *domain)
        {
            self.domains.remove(domain);
        }
    }

    /// A server takes rows much more slowly than the others.
    pub(super) fn slow(&mut self, id: u32) -> Result<(), String> {
        let member = self.members.get_mut(&id);
        let Some(member) = member.filter(|member| member.hello.is_server()) else {
            return Ok(());
        };
        let until = awake::now() + SLOW_FOR;
        if member.slow_until.replace(until).is_none() {
            let name = &member.hello.name;
            warn!(target: treadle_log::SHUFFLE, "shuffle server {name} takes rows much more slowly than the others: it gets fewer partitions for a while");
        }
        self.weigh(id)
    }

    /// Servers that were slow a while ago count as others again.
    pub(super) fn forgive(&mut self, now: Duration) {
        let slow = self.members.iter();
        let over = slow.filter(|(_, member)| member.slow_until.is_some_and(|until| until <= now));
        for id in over.map(|(&id, _)| id).collect::<Vec<_>>() {
            if let Some(member) = self.members.get_mut(&id) {
                member.slow_until = None;
            }
            let weighed = self.weigh(id);
            debug_assert_eq!(weighed, Ok(()));
        }
    }

    pub(super) fn servers(&self) -> impl Iterator<Item = &Member> {
        let members = self.members.values();
        members.filter(|member| member.hello.is_server())
    }

    pub(super) fn domains(&self) -> u32 {
        let staying = self.servers().filter(|server| !server.is_leaving);
        let domains: BTreeSet<&str> = staying.map(|server| &*server.hello.domain).collect();
        domains.len() as u32
    }
}
