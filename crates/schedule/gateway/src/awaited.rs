//! Keys that clients have futures of and that nobody has submitted yet.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use bytes::Bytes;
use treadle_guards::{InvariantError, ensure, ensure_eq};
use treadle_types::ClientId;

/// By key, who waits for it, under which local id.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    by_key: BTreeMap<Bytes, Vec<(ClientId, u32)>>,
    keys: BTreeMap<(ClientId, u32), Bytes>,
}

impl Awaited {
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) fn add(&mut self, key: &Bytes, client: ClientId, id: u32) {
        self.by_key
            .entry(key.clone())
            .or_default()
            .push((client, id));
        self.keys.insert((client, id), key.clone());
    }

    /// The client waits no more.
    pub(crate) fn remove(&mut self, client: ClientId, id: u32) {
        if let Some(key) = self.keys.remove(&(client, id))
            && let Some(waiting) = self.by_key.get_mut(&key)
        {
            waiting.retain(|who| *who != (client, id));
            if waiting.is_empty() {
                self.by_key.remove(&key);
            }
        }
    }

    /// The client is gone.
    pub(crate) fn remove_client(&mut self, client: ClientId) {
        let ids = self.keys.keys().filter(|(who, _)| *who == client);
        let ids: Vec<u32> = ids.map(|(_, id)| *id).collect();
        for id in ids {
            self.remove(client, id);
        }
    }

    /// Verifies that both tables say the same, of clients that are there.
    pub(crate) fn check(&self, is_there: impl Fn(ClientId) -> bool) -> Result<(), InvariantError> {
        let count: usize = self.by_key.values().map(Vec::len).sum();
        ensure_eq!(count, self.keys.len(), "those who wait for keys");
        for ((client, id), key) in &self.keys {
            let waiting = self.by_key.get(key);
            ensure!(
                is_there(*client) && waiting.is_some_and(|all| all.contains(&(*client, *id))),
                "{client:?} waits as {id} for a key, and is gone, or is not told"
            );
        }
        Ok(())
    }

    /// The key is known now: who has waited for that.
    pub(crate) fn take(&mut self, key: &[u8]) -> Vec<(ClientId, u32)> {
        let waiting = self.by_key.remove(key).unwrap_or_default();
        for who in &waiting {
            self.keys.remove(who);
        }
        waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_told_once() {
        let mut awaited = Awaited::default();
        let key = Bytes::from_static(b"key");
        for (client, id) in [(1, 5), (2, 6), (2, 7)] {
            awaited.add(&key, ClientId(client), id);
        }
        awaited.remove(ClientId(2), 6);
        assert_eq!(awaited.take(b"key"), [(ClientId(1), 5), (ClientId(2), 7)]);
        assert!(awaited.take(b"key").is_empty() && awaited.is_empty());
        awaited.add(&key, ClientId(1), 8);
        awaited.remove_client(ClientId(1));
        assert!(awaited.is_empty() && awaited.by_key.is_empty());
    }
}
