//! Constants that the client keeps after it has brought them: it brings them again if every worker
//! that had one is lost.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use bytes::Bytes;
use treadle_guards::{InvariantError, ensure, ensure_eq};

/// Whether the frames of a constant are still those that its key names: who owns their memory may
/// have written to it since. Called with the key, the kind of the serialised value and the frames.
pub type IsIntact = fn(&[u8], u32, &[Bytes]) -> bool;

/// A constant. Its frames view the memory of the object that they were made of.
#[derive(Clone, Debug)]
pub struct Constant {
    pub(crate) key: Bytes,
    pub(crate) nbytes: u64,
    pub(crate) class: Bytes,
    pub(crate) kind: u32,
    pub(crate) frames: Vec<Bytes>,
    pub(crate) is_intact: IsIntact,
}

/// The constants that the scheduler may ask for, by the id of the last put of each. It says when it
/// will not any more; when they are more bytes than the limit, the oldest go.
#[derive(Debug)]
pub(crate) struct Kept {
    by_id: BTreeMap<u32, Constant>,
    ids: BTreeMap<Bytes, u32>,
    bytes: u64,
    limit: u64,
}

impl Constant {
    /// The key, encoded.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Whether it is still what it was. Reads all of it.
    pub fn is_intact(&self) -> bool {
        (self.is_intact)(&self.key, self.kind, &self.frames)
    }
}

impl Kept {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            by_id: BTreeMap::new(),
            ids: BTreeMap::new(),
            bytes: 0,
            limit,
        }
    }

    /// Keeps a constant that is put under an id. Returns the ids of those that are not kept any more
    /// for its sake; nothing if it is too large itself.
    pub(crate) fn keep(&mut self, id: u32, constant: Constant) -> Option<Vec<u32>> {
        if let Some(before) = self.ids.get(&constant.key) {
            self.remove(*before);
        }
        if constant.nbytes > self.limit {
            return None;
        }
        self.bytes += constant.nbytes;
        let mut dropped = Vec::new();
        while self.bytes > self.limit
            // Ids grow, so the lowest is the oldest.
            && let Some((&oldest, _)) = self.by_id.first_key_value()
        {
            self.remove(oldest);
            dropped.push(oldest);
        }
        self.ids.insert(constant.key.clone(), id);
        self.by_id.insert(id, constant);
        Some(dropped)
    }

    /// A value is put again, under another id; whether it is kept.
    pub(crate) fn rename(&mut self, key: &[u8], id: u32) -> bool {
        let Some(known) = self.ids.get_mut(key) else {
            return false;
        };
        let before = core::mem::replace(known, id);
        if let Some(constant) = self.by_id.remove(&before) {
            self.by_id.insert(id, constant);
        }
        true
    }

    pub(crate) fn get(&self, id: u32) -> Option<&Constant> {
        self.by_id.get(&id)
    }

    pub(crate) fn remove(&mut self, id: u32) {
        if let Some(constant) = self.by_id.remove(&id) {
            self.ids.remove(&constant.key);
            self.bytes -= constant.nbytes;
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.limit);
    }

    /// The ids of the last puts, and the keys.
    pub(crate) fn names(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.ids.iter().map(|(key, id)| (*id, &key[..]))
    }

    /// Verifies that the tables agree.
    pub(crate) fn check(&self) -> Result<(), InvariantError> {
        for (key, id) in &self.ids {
            let of_id = self.by_id.get(id).map(|constant| &constant.key);
            ensure_eq!(of_id, Some(key), "what is kept under {id}");
        }
        ensure_eq!(
            self.ids.len(),
            self.by_id.len(),
            "ids, and constants that are kept"
        );
        let bytes: u64 = self.by_id.values().map(|constant| constant.nbytes).sum();
        ensure_eq!(
            bytes,
            self.bytes,
            "the bytes that are kept are counted wrong"
        );
        ensure!(bytes <= self.limit, "{bytes} bytes are kept");
        Ok(())
    }

    /// How many constants are kept, and how many bytes they are.
    pub(crate) fn totals(&self) -> (usize, u64) {
        (self.by_id.len(), self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constant(key: &'static str, nbytes: u64) -> Constant {
        Constant {
            key: key.into(),
            nbytes,
            class: Bytes::new(),
            kind: 0,
            frames: Vec::new(),
            is_intact: |_, _, _| true,
        }
    }

    #[test]
    fn the_oldest_make_room_for_the_latest() {
        let mut kept = Kept::new(100);
        assert_eq!(kept.keep(1, constant("a", 40)), Some(vec![]));
        assert_eq!(kept.keep(2, constant("b", 40)), Some(vec![]));
        assert_eq!(kept.keep(3, constant("too large", 101)), None);
        // Put again, it is the latest.
        assert!(kept.rename(b"a", 4) && !kept.rename(b"c", 5));
        assert_eq!(kept.keep(6, constant("c", 40)), Some(vec![2]));
        assert!(kept.get(1).is_none() && kept.get(4).is_some());
        assert_eq!(kept.totals(), (2, 80));
        // The same content counts once.
        assert_eq!(kept.keep(7, constant("a", 40)), Some(vec![]));
        assert_eq!(kept.totals(), (2, 80));
        kept.remove(4);
        kept.remove(7);
        assert_eq!(kept.totals(), (1, 40));
        kept.clear();
        assert_eq!(kept.totals(), (0, 0));
    }
}
