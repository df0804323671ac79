//! Several applications on the same servers. Each has a master that knows nothing of the others. Masters die, with
//! a word or without one, stand still, come back, are replaced, and say what is not theirs to say.

use std::time::Duration;

use treadle_shuffle::{ApplicationId, LinkId, ServerEvent, ServerId, ShuffleId, ToNode};

use crate::engine::{Down, Up};
use crate::world::{Item, Pid, World};

/// A server drops a master that says nothing for so long.
pub(super) const LEASE: Duration = Duration::from_millis(30);
/// The node of the first master, for pauses: servers and clients are at places.
const FIRST: u32 = 1 << 20;

/// What a master of a simulation is.
#[derive(Clone, Debug)]
pub(super) struct Application {
    pub(super) number: u64,
    /// When it begins.
    pub(super) at: Duration,
    /// Where its tasks run.
    pub(super) clients: std::ops::Range<u32>,
    /// Nothing happens to it: none of its rows are made again, whatever becomes of others.
    pub(super) is_undisturbed: bool,
}

/// A connection of a master to a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) head: usize,
    /// What the server is called in it.
    pub(super) name: ServerId,
    pub(super) pid: Pid,
    is_open: bool,
}

/// The node of a master.
pub(super) fn node(head: usize) -> u32 {
    FIRST + head as u32
}

fn link_of(name: ServerId) -> LinkId {
    LinkId(name.incarnation.into())
}

impl World {
    /// Whether each application has a master of its own.
    pub(super) fn is_shared(&self) -> bool {
        !self.plan.masters.is_empty()
    }

    /// A name that no server and no client had before.
    pub(super) fn name(&mut self, place: u32) -> ServerId {
        self.names += 1;
        ServerId {
            node: place,
            incarnation: self.names,
        }
    }

    /// What a process is called, by each master that has to do with it.
    pub(super) fn names_of(&self, pid: Pid) -> Vec<(usize, ServerId)> {
        let process = &self.procs[pid];
        if let Some(head) = process.head {
            return vec![(head, process.id)];
        }
        let links = self.links.values();
        let links = links.filter(|link| link.pid == pid && link.is_open);
        links.map(|link| (link.head, link.name)).collect()
    }

    /// Whether an application has something to do still.
    fn is_working(&self, head: usize) -> bool {
        let mut jobs = self.jobs.iter().filter(|job| job.plan.master == head);
        self.heads[head].is_there && jobs.any(|job| job.ended.is_none())
    }

    pub(super) fn begin_master(&mut self) {
        let head = self.at;
        self.heads[head].is_there = true;
        for place in self.plan.masters[head].clients.clone() {
            self.start(place);
        }
        for place in 1..=self.plan.servers() {
            self.call(place);
        }
        self.beat();
    }

    /// The master connects to a server, if it is not connected.
    pub(super) fn call(&mut self, place: u32) {
        let head = self.at;
        let is_known = self.heads[head].workers().any(|name| name.node == place);
        if is_known || !self.is_working(head) {
            return;
        }
        // Whoever starts there is called, too.
        let pid = self.places.get(&place).copied();
        let Some(pid) = pid.filter(|&pid| self.procs[pid].is_alive) else {
            return;
        };
        let name = self.name(place);
        let link = Link {
            head,
            name,
            pid,
            is_open: true,
        };
        self.links.insert(link_of(name), link);
        self.by_id.insert(name, pid);
        self.down_to(pid, Item::Governed(pid, link_of(name)));
    }

    /// A server is asked to serve a master.
    pub(super) fn governed(&mut self, pid: Pid, link: LinkId) -> Result<(), String> {
        let Link { head, name, .. } = self.links[&link];
        self.server(
            pid,
            ServerEvent::Governed {
                link,
                me: name,
                application: Some(ApplicationId(self.plan.masters[head].number)),
            },
        )?;
        if self.links[&link].is_open {
            self.up_as(pid, (head, name), Up::Joined);
        }
        Ok(())
    }

    /// A server does not serve a master any more.
    pub(super) fn dismiss(&mut self, pid: Pid, link: LinkId) {
        if let Some(link) = self.links.get_mut(&link) {
            link.is_open = false;
            let of = (link.head, link.name);
            self.up_as(pid, of, Up::Dismissed);
        }
    }

    /// The master hears that. It tries again.
    pub(super) fn dismissed(&mut self, name: ServerId) -> Result<(), String> {
        self.summary.dismissed += 1;
        self.worker_lost(name)?;
        self.call_later(name.node);
        Ok(())
    }

    pub(super) fn call_later(&mut self, place: u32) {
        let pause = self.kernel.random.micros(500, 5_000);
        self.kernel.schedule(pause, Item::Call(self.at, place));
    }

    /// The master closes its connection to a server.
    pub(super) fn hang_up(&mut self, name: ServerId) {
        if let Some(link) = self.links.get_mut(&link_of(name)) {
            link.is_open = false;
            let pid = link.pid;
            self.down_to(pid, Item::Ungoverned(pid, link_of(name)));
        }
    }

    /// Says to all servers that the master is there.
    pub(super) fn beat(&mut self) {
        let head = self.at;
        if !self.is_working(head) {
            return;
        }
        for name in self.servers_of(head) {
            if let Some(&pid) = self.by_id.get(&name) {
                self.down_to(pid, Item::Heard(pid, link_of(name)));
            }
        }
        self.kernel.schedule(LEASE / 3, Item::Beat(head));
    }

    fn servers_of(&self, head: usize) -> Vec<ServerId> {
        let names = self.heads[head].workers();
        let names = names.filter(|name| name.node <= self.plan.servers());
        names.collect()
    }

    /// The link in which a server is called so.
    pub(super) fn link_named(&self, name: ServerId) -> LinkId {
        match self.is_shared() && name.node <= self.plan.servers() {
            true => link_of(name),
            false => LinkId::ONLY,
        }
    }

    /// An application that has nothing to do any more leaves.
    pub(super) fn leave_if_idle(&mut self) {
        let head = self.at;
        if self.is_shared() && !self.is_working(head) {
            for name in self.servers_of(head) {
                self.hang_up(name);
            }
        }
    }

    /// A master ends in the middle, and all of its application.
    pub(super) fn kill_master(&mut self, is_told: bool) {
        let head = self.at;
        if !self.is_working(head) {
            return;
        }
        self.summary.orphaned += 1;
        if is_told {
            for name in self.servers_of(head) {
                self.hang_up(name);
            }
        }
        self.heads[head].is_there = false;
        for job in self.jobs.iter_mut().filter(|job| job.plan.master == head) {
            job.ended.get_or_insert(Err("its master is gone".into()));
        }
        for pid in 0..self.procs.len() {
            if self.procs[pid].head == Some(head) {
                self.kill(pid);
            }
        }
    }

    /// A master says that the shuffles of others have ended.
    pub(super) fn stray(&mut self) {
        let head = self.at;
        let others = self.jobs.iter().filter(|job| job.plan.master != head);
        let others = others.flat_map(|job| job.sources.iter().map(|source| source.shuffle));
        let others: Vec<ShuffleId> = others.collect();
        for name in self.servers_of(head) {
            for &shuffle in &others {
                self.summary.strays += 1;
                self.down(name, Down::Master(ToNode::Close(shuffle)));
            }
        }
    }

    /// Something happens to the current application that must not happen because of others.
    pub(super) fn disturbs(&mut self, what: &str) {
        let application = self.plan.masters.get(self.at);
        if application.is_some_and(|application| application.is_undisturbed) {
            let text = format!("application {} is disturbed by others: {what}", self.at);
            self.disturbed.get_or_insert(text);
        }
    }
}
