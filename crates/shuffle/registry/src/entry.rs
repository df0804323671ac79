//! What a registry has of a shuffle server.

use treadle_codec::WireError;
use treadle_net::Address;

/// The longest name, domain, rack, version or kind of host, in bytes.
pub const LONGEST_NAME: usize = 256;
/// The longest address, in bytes.
pub const LONGEST_ADDRESS: usize = 1 << 10;
/// What may change before it is written at once: an eighth.
const MUCH: u64 = 8;
/// So little never counts as a change, in bytes and in requests.
const LITTLE_ROOM: u64 = 1 << 20;
const LITTLE_WAITING: u64 = 64;

/// A shuffle server, as a registry lists it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Entry {
    /// Chosen by who starts the server. Not empty, without control characters.
    pub name: String,
    /// It grows from one life of the server to the next. 0: not known, in a static list.
    pub incarnation: u64,
    /// Where others reach it: `treadle://host:port` or `treadle+tls://host:port`.
    pub address: String,
    /// What fails together. Empty: its host.
    pub domain: String,
    /// Empty: not known.
    pub rack: String,
    /// The release of its code, for people.
    pub version: String,
    /// For people and for rules of placement, such as `ssd`.
    pub host_kind: String,
    /// How much it is to have compared to others with as much room.
    pub weight: u32,
    /// The newest and the oldest version of the service's messages that it speaks. 0: not known.
    pub newest: u32,
    pub oldest: u32,
    /// `None`: not known, in a static list.
    pub load: Option<Load>,
    /// It was asked to leave, and gets no further partitions.
    pub is_leaving: bool,
}

/// What changes while a server runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Load {
    /// Bytes that it can take: in memory, and in files.
    pub free: u64,
    /// Bytes of rows that it holds.
    pub held: u64,
    /// Requests that wait at it.
    pub waiting: u64,
    /// Its disk is full, or cannot be written.
    pub is_full: bool,
}

/// One life of a server.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    pub name: String,
    pub incarnation: u64,
}

impl Entry {
    /// Which life of which server it is.
    pub fn key(&self) -> Key {
        Key {
            name: self.name.clone(),
            incarnation: self.incarnation,
        }
    }

    /// The same, if a registry can have it.
    ///
    /// # Errors
    /// For a name that is empty or too long, control characters, and an address that is none.
    pub fn checked(self) -> Result<Self, WireError> {
        let texts = [
            ("name", &self.name),
            ("domain", &self.domain),
            ("rack", &self.rack),
            ("version", &self.version),
            ("kind of host", &self.host_kind),
        ];
        for (what, text) in texts {
            treadle_codec::at_most(what, text.len() as u64, LONGEST_NAME as u64)?;
            if text.chars().any(char::is_control) {
                return Err(WireError::Missing(what));
            }
        }
        if self.name.is_empty() {
            return Err(WireError::Missing("name"));
        }
        treadle_codec::at_most("address", self.address.len() as u64, LONGEST_ADDRESS as u64)?;
        match self.address.parse::<Address>() {
            Ok(address) if address.port > 0 => Ok(self),
            _ => Err(WireError::Missing("address")),
        }
    }
}

impl Load {
    /// Whether masters should know at once that it was `before`.
    pub fn has_changed(&self, before: &Self) -> bool {
        let differs =
            |now: u64, before: u64, least: u64| now.abs_diff(before) > (before / MUCH).max(least);
        self.is_full != before.is_full
            || differs(self.free, before.free, LITTLE_ROOM)
            || differs(self.waiting, before.waiting, LITTLE_WAITING)
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({:x})", self.name, self.incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            name: "a".into(),
            address: "treadle://h:7791".into(),
            ..Entry::default()
        }
    }

    #[test]
    fn what_a_registry_cannot_have_is_named() {
        assert!(entry().checked().is_ok());
        let refused = |change: &dyn Fn(&mut Entry)| {
            let mut entry = entry();
            change(&mut entry);
            entry.checked().unwrap_err().to_string()
        };
        assert!(refused(&|entry| entry.name.clear()).contains("name"));
        assert!(refused(&|entry| entry.rack = "a\nb".into()).contains("rack"));
        assert!(refused(&|entry| entry.domain = "d".repeat(LONGEST_NAME + 1)).contains("domain"));
        assert!(refused(&|entry| entry.address = "treadle://h:0".into()).contains("address"));
        assert!(refused(&|entry| entry.address = "http://h:1".into()).contains("address"));
    }

    #[test]
    fn what_changes_much_is_written_at_once() {
        let before = Load {
            free: 8 << 30,
            ..Load::default()
        };
        let with = |change: &dyn Fn(&mut Load)| {
            let mut load = before;
            change(&mut load);
            load.has_changed(&before)
        };
        assert!(!with(&|load| load.free = 9 << 30));
        assert!(with(&|load| load.free = (9 << 30) + 1));
        assert!(with(&|load| load.is_full = true));
        assert!(!with(&|load| load.waiting = 64));
        assert!(with(&|load| load.waiting = 65));
        assert!(!with(&|load| load.held = 1 << 40));
    }
}
