//! A registry as ZooKeeper and etcd are: nodes that go with sessions, which end when nothing is heard of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use treadle_shuffle_registry::{Entry, Key};

/// A change of the tree.
#[derive(Clone, Debug)]
pub(crate) enum Changed {
    Put(Arc<Entry>),
    Gone(Key),
}

#[derive(Default)]
pub(crate) struct Registry {
    pub(crate) is_up: bool,
    /// When it was last up.
    pub(crate) down_since: Duration,
    nodes: BTreeMap<Key, (Arc<Entry>, u64)>,
    /// When each session was last heard of.
    sessions: BTreeMap<u64, Duration>,
    last_session: u64,
}

impl Registry {
    pub(crate) fn begin(&mut self, now: Duration) -> u64 {
        self.last_session += 1;
        self.sessions.insert(self.last_session, now);
        self.last_session
    }

    /// A sign of life. False: the session has ended.
    pub(crate) fn hear(&mut self, session: u64, now: Duration) -> bool {
        let last = self.sessions.get_mut(&session);
        last.map(|last| *last = now).is_some()
    }

    pub(crate) fn end(&mut self, session: u64) -> Vec<Changed> {
        self.sessions.remove(&session);
        let gone = self
            .nodes
            .iter()
            .filter(|(_, (_, owner))| *owner == session);
        let gone: Vec<Key> = gone.map(|(key, _)| key.clone()).collect();
        gone.iter().for_each(|key| drop(self.nodes.remove(key)));
        gone.into_iter().map(Changed::Gone).collect()
    }

    /// Ends the sessions of which nothing was heard for so long.
    pub(crate) fn expire(&mut self, timeout: Duration, now: Duration) -> Vec<Changed> {
        let silent = self
            .sessions
            .iter()
            .filter(|(_, last)| **last + timeout < now);
        let silent: Vec<u64> = silent.map(|(session, _)| *session).collect();
        silent
            .into_iter()
            .flat_map(|session| self.end(session))
            .collect()
    }

    pub(crate) fn start(&mut self, forgets: bool, now: Duration) {
        self.is_up = true;
        if forgets {
            self.nodes.clear();
            self.sessions.clear();
        }
        // Who could not speak has its time from now.
        self.sessions.values_mut().for_each(|last| *last = now);
    }

    pub(crate) fn list(&self) -> Vec<Arc<Entry>> {
        self.nodes
            .values()
            .map(|(entry, _)| entry.clone())
            .collect()
    }

    /// None: the session has ended.
    pub(crate) fn write(&mut self, session: u64, entry: Arc<Entry>) -> Option<Vec<Changed>> {
        self.sessions.get(&session)?;
        let before = self.nodes.insert(entry.key(), (entry.clone(), session));
        // As ZooKeeper does, where a node does not change its session.
        let gone = before.filter(|(_, owner)| *owner != session);
        let gone = gone.map(|_| Changed::Gone(entry.key()));
        Some(gone.into_iter().chain([Changed::Put(entry)]).collect())
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Vec<Changed> {
        let gone = self.nodes.remove(key);
        gone.map(|_| Changed::Gone(key.clone()))
            .into_iter()
            .collect()
    }
}
