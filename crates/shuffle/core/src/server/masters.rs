//! The masters that a server serves. Each has a link, and the server a name there ([`ServerId`]). A shuffle is
//! governed by the master that it came from, and ends with its link: a master that comes back knows nothing of it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use crate::config::Guard;
use crate::server::{Effects, Server, ServerEffect};
use crate::{ApplicationId, Broken, Leases, ServerId, ShuffleId, ToMaster, ToNode};

/// A link of a master to a server. The host numbers them, and uses no number twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(pub u64);

impl LinkId {
    /// That of a server that has one master, and ends with it.
    pub const ONLY: Self = Self(0);
}

#[derive(Debug)]
pub(super) struct Masters {
    links: BTreeMap<LinkId, Link>,
    /// What the server is called in each.
    names: BTreeMap<ServerId, LinkId>,
    leases: Leases<LinkId, LinkId>,
    /// When leases are looked at next: not later than one ends. It is asked for with each push.
    due: Option<Duration>,
}

#[derive(Debug)]
struct Link {
    me: ServerId,
    application: Option<ApplicationId>,
}

impl Masters {
    pub(super) fn none(lease: Duration) -> Self {
        Self {
            links: BTreeMap::new(),
            names: BTreeMap::new(),
            leases: Leases::new(lease),
            due: None,
        }
    }

    /// Without a lease.
    pub(super) fn only(me: ServerId, lease: Duration) -> Self {
        let mut masters = Self::none(lease);
        masters.add(LinkId::ONLY, me, None);
        masters
    }

    fn add(&mut self, link: LinkId, me: ServerId, application: Option<ApplicationId>) {
        self.links.insert(link, Link { me, application });
        self.names.insert(me, link);
    }

    fn remove(&mut self, link: LinkId) {
        if let Some(removed) = self.links.remove(&link) {
            self.names.remove(&removed.me);
        }
        self.leases.end(link);
    }

    /// What the server is called in a link.
    pub(super) fn me(&self, link: LinkId) -> Option<ServerId> {
        self.links.get(&link).map(|link| link.me)
    }

    /// The link in which the server is called so.
    pub(super) fn link_of(&self, me: ServerId) -> Option<LinkId> {
        if !Guard::Incarnation.holds() {
            let names = self.names.iter();
            let mut same = names.filter(|(name, _)| name.node == me.node);
            return same.next_back().map(|(_, &link)| link);
        }
        self.names.get(&me).copied()
    }

    /// A name of the server, for who has asked for another one.
    pub(super) fn like(&self, asked: ServerId) -> ServerId {
        let after = self.names.range(asked..).next();
        let name = after.or_else(|| self.names.last_key_value());
        name.map_or_else(ServerId::default, |(&name, _)| name)
    }

    pub(super) fn heard(&mut self, link: LinkId, now: Duration) {
        self.leases.renew(link, now);
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.due
    }

    pub(super) fn check(&self) -> Result<(), Broken> {
        let names = self.names.len() as u64;
        Broken::unless_equal("names in links", self.links.len() as u64, names)?;
        let applications = self.links.values().filter_map(|link| link.application);
        let applications: Vec<ApplicationId> = applications.collect();
        let different: BTreeSet<_> = applications.iter().collect();
        let (all, different) = (applications.len() as u64, different.len() as u64);
        Broken::unless_equal("masters of one application", all, different)
    }
}

impl Server {
    /// The link of the master that governs a shuffle, and what this server is called in it.
    pub fn governor(&self, shuffle: ShuffleId) -> Option<(LinkId, ServerId)> {
        let held = self.shuffles.get(&shuffle)?;
        Some((held.link, held.me))
    }

    /// A master wants to use this server.
    pub(super) fn governed(
        &mut self,
        link: LinkId,
        me: ServerId,
        application: Option<ApplicationId>,
        effects: &mut Effects,
    ) {
        let same = application.and_then(|application| {
            let mut links = self.masters.links.values();
            links.find(|link| link.application == Some(application))
        });
        let reason = if self.masters.names.contains_key(&me) {
            Some("another master calls this server the same")
        } else if same.is_some() && Guard::OneMaster.holds() {
            Some("another master of the same application is there")
        } else {
            None
        };
        if let Some(reason) = reason {
            return effects.push(ServerEffect::Dismiss { link, reason });
        }
        self.masters.add(link, me, application);
        self.masters.leases.grant(link, link, self.now);
        self.masters.due = self.masters.leases.next_deadline();
    }

    /// A link has ended. What its master governs ends, and what waits for it.
    pub(super) fn ungoverned(&mut self, link: LinkId, effects: &mut Effects) {
        let Some(me) = self.masters.me(link) else {
            return;
        };
        let held = self.shuffles.iter().filter(|(_, held)| held.link == link);
        let parked = self.parked.iter().map(|parked| &parked.push);
        let parked = parked.filter(|push| push.group.server == me);
        let parked = parked.map(|push| push.shuffle);
        let ended: BTreeSet<ShuffleId> = held.map(|(&id, _)| id).chain(parked).collect();
        self.masters.remove(link);
        for shuffle in ended {
            // Another server may have adopted what is in the remote store.
            self.close(shuffle, true, effects);
        }
    }

    /// Masters of which nothing was heard for long are gone.
    pub(super) fn expire_masters(&mut self, effects: &mut Effects) {
        for link in self.masters.leases.expire(self.now) {
            self.ungoverned(link, effects);
            let reason = "nothing was heard of it for long";
            effects.push(ServerEffect::Dismiss { link, reason });
        }
        self.masters.due = self.masters.leases.next_deadline();
    }

    /// A master says something. About what another one governs it has no say.
    pub(super) fn told(&mut self, link: LinkId, message: ToNode, effects: &mut Effects) {
        self.masters.heard(link, self.now);
        let governor = self.governor(message.shuffle());
        if Guard::Governor.holds() && governor.is_some_and(|(governor, _)| governor != link) {
            return;
        }
        match message {
            ToNode::Plan(plan) => self.plan(link, plan, effects),
            ToNode::Close(shuffle) => self.close(shuffle, false, effects),
            ToNode::Seal(seal) => self.seal(seal, effects),
            ToNode::Committed { .. } => {}
        }
    }

    /// Tells the master of a shuffle something.
    pub(super) fn report(&self, shuffle: ShuffleId, message: ToMaster, effects: &mut Effects) {
        if let Some((link, _)) = self.governor(shuffle) {
            effects.push(ServerEffect::Report { link, message });
        }
    }
}
