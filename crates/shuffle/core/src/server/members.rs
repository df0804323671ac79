//! Who is connected. The master's word ends a process here, too: nothing waits for what it does not do.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::ServerId;
use crate::config::Guard;
use crate::server::{ConnectionId, Effects, Server, ServerEffect};

/// Processes that are gone of which it is remembered: they may connect once more before they know it.
const MOST_GONE: usize = 1024;

/// Processes that are connected, and those that are gone.
#[derive(Debug, Default)]
pub(super) struct Members {
    connected: BTreeMap<ConnectionId, ServerId>,
    gone: BTreeSet<ServerId>,
    /// The same, as they went.
    order: VecDeque<ServerId>,
}

impl Members {
    pub(super) fn disconnected(&mut self, from: ConnectionId) {
        self.connected.remove(&from);
    }
}

impl Server {
    pub(super) fn connected(
        &mut self,
        from: ConnectionId,
        member: ServerId,
        effects: &mut Effects,
    ) {
        match self.members.gone.contains(&member) {
            true => effects.push(ServerEffect::Disconnect(from)),
            false => _ = self.members.connected.insert(from, member),
        }
    }

    /// The master has dropped a process. What it asked for ends, and its connections.
    pub(super) fn gone(&mut self, member: ServerId, effects: &mut Effects) {
        if !Guard::Gone.holds() {
            return;
        }
        if self.members.gone.insert(member) {
            self.members.order.push_back(member);
        }
        if self.members.gone.len() > MOST_GONE
            && let Some(first) = self.members.order.pop_front()
        {
            self.members.gone.remove(&first);
        }
        let all = self.members.connected.iter();
        let its = all.filter(|(_, other)| **other == member);
        for from in its.map(|(&from, _)| from).collect::<alloc::vec::Vec<_>>() {
            self.disconnected(from, effects);
            effects.push(ServerEffect::Disconnect(from));
        }
    }
}
