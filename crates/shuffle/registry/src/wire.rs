//! Entries and masters as bytes, and their names in registries' trees.

use treadle_codec::{Detacher, Schema, Wire, WireError, wire_struct};

use crate::entry::{Entry, Key, Load};
use crate::master::Master;

treadle_codec::generated! {
    /// The messages of `proto/registry.proto`.
    proto, "registry"
}

/// The first bytes of an entry. They change with a format that earlier releases must not read.
const MAGIC: &[u8; 4] = b"TSR1";
const HEAD: usize = 8;
/// The longest entry, in bytes.
pub const LONGEST_ENTRY: usize = 4 << 10;

/// The schema `proto/registry.proto`.
struct Registry;

impl Schema for Registry {}

wire_struct! { Registry:
    Entry => proto::Entry {
        name, incarnation, address, domain, rack, version, host_kind, weight, newest, oldest, load,
        is_leaving,
    } check Entry::checked;
    Load => proto::Load { free, held, waiting, is_full };
    Master => proto::Master { application, address, number } check Master::checked;
}

/// Why the bytes of a node are no entry.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EntryError {
    /// It was written by something else, or by a release with another format.
    #[error("it is no entry of this release of Treadle")]
    Foreign,
    /// Its checksum is wrong.
    #[error("it is damaged: its checksum is wrong")]
    Damaged,
    /// More bytes than an entry has.
    #[error("it has {0} bytes; an entry has at most {LONGEST_ENTRY}")]
    Long(usize),
    /// A field has no meaning.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The node belongs to another server.
    #[error("it is the entry of {0}")]
    Elsewhere(Key),
}

/// The bytes of an entry.
pub fn encode_entry(entry: &Entry) -> Vec<u8> {
    framed(&Registry::to_wire::<proto::Entry, _>(entry))
}

/// The bytes of a master.
pub fn encode_master(master: &Master) -> Vec<u8> {
    framed(&Registry::to_wire::<proto::Master, _>(master))
}

fn framed(message: &impl prost::Message) -> Vec<u8> {
    let payload = message.encode_to_vec();
    let mut bytes = Vec::with_capacity(HEAD + payload.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&checksum(&payload).to_le_bytes());
    bytes.extend_from_slice(&payload);
    bytes
}

/// The entry with these bytes.
///
/// # Errors
/// For bytes of something else, damaged ones, and fields without a meaning.
pub fn decode_entry(bytes: &[u8]) -> Result<Entry, EntryError> {
    let payload = unframed(bytes)?;
    let message: proto::Entry = prost::Message::decode(payload).map_err(WireError::from)?;
    Ok(Entry::of_wire(message, Detacher::new(payload.len()))?)
}

/// The master with these bytes.
///
/// # Errors
/// As [`decode_entry`].
pub fn decode_master(bytes: &[u8]) -> Result<Master, EntryError> {
    let payload = unframed(bytes)?;
    let message: proto::Master = prost::Message::decode(payload).map_err(WireError::from)?;
    Ok(Master::of_wire(message, Detacher::new(payload.len()))?)
}

fn unframed(bytes: &[u8]) -> Result<&[u8], EntryError> {
    if bytes.len() > LONGEST_ENTRY {
        return Err(EntryError::Long(bytes.len()));
    }
    let rest = bytes.strip_prefix(MAGIC).ok_or(EntryError::Foreign)?;
    let (sum, payload) = rest.split_first_chunk().ok_or(EntryError::Damaged)?;
    if u32::from_le_bytes(*sum) != checksum(payload) {
        return Err(EntryError::Damaged);
    }
    Ok(payload)
}

fn checksum(payload: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(payload)
}

impl Key {
    /// The two parts of its path: the name, in which all but letters, digits, `-`, `_` and `.` is escaped, and the
    /// incarnation with 16 hexadecimal digits.
    pub fn path(&self) -> (String, String) {
        (escaped(&self.name), format!("{:016x}", self.incarnation))
    }

    /// The key with this path, if it is one.
    pub fn of_path(name: &str, incarnation: &str) -> Option<Self> {
        let key = Self {
            name: unescaped(name)?,
            incarnation: u64::from_str_radix(incarnation, 16).ok()?,
        };
        let path = key.path();
        (path.0 == name && path.1 == incarnation).then_some(key)
    }

    /// The entry that a node with this key has.
    ///
    /// # Errors
    /// As [`decode_entry`], and if it is another server's.
    pub fn decode(&self, bytes: &[u8]) -> Result<Entry, EntryError> {
        let entry = decode_entry(bytes)?;
        match entry.key() {
            key if key == *self => Ok(entry),
            key => Err(EntryError::Elsewhere(key)),
        }
    }
}

/// A name as a part of a path.
pub(crate) fn escaped(name: &str) -> String {
    let mut path = String::with_capacity(name.len());
    for byte in name.bytes() {
        // A registry gives `.` and `..` a meaning.
        let is_dot = byte == b'.' && path.is_empty();
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' if !is_dot => {
                path.push(byte.into());
            }
            _ => path.push_str(&format!("%{byte:02x}")),
        }
    }
    path
}

fn unescaped(path: &str) -> Option<String> {
    let mut name = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first == b'%' {
            let (digits, after) = rest.split_at_checked(2)?;
            name.push(u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            name.push(*first);
        }
    }
    String::from_utf8(name).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry() -> Entry {
        Entry {
            name: "a/b".into(),
            incarnation: 7,
            address: "treadle://h:7791".into(),
            load: Some(Load::default()),
            ..Entry::default()
        }
    }

    #[test]
    fn a_bit_that_flips_is_noticed() {
        let bytes = encode_entry(&entry());
        assert_eq!(decode_entry(&bytes), Ok(entry()));
        for bit in 0..8 * bytes.len() {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let is_foreign = decode_entry(&damaged) == Err(EntryError::Foreign);
            assert_eq!(is_foreign, bit < 32);
            assert!(is_foreign || decode_entry(&damaged) == Err(EntryError::Damaged));
        }
        for length in 0..bytes.len() {
            assert!(decode_entry(&bytes[..length]).is_err());
        }
    }

    #[test]
    fn an_entry_of_a_later_release_is_read() {
        let mut payload = encode_entry(&entry())[HEAD..].to_vec();
        // Field 100, a varint: this release does not know it.
        payload.extend([0xa0, 0x06, 0x01]);
        let mut bytes = MAGIC.to_vec();
        bytes.extend(checksum(&payload).to_le_bytes());
        bytes.extend(payload);
        assert_eq!(decode_entry(&bytes), Ok(entry()));
    }

    #[test]
    fn a_node_at_the_path_of_another_server_is_refused() {
        let mut key = entry().key();
        let bytes = encode_entry(&entry());
        assert_eq!(key.decode(&bytes), Ok(entry()));
        key.incarnation += 1;
        let error = EntryError::Elsewhere(entry().key());
        assert_eq!(key.decode(&bytes), Err(error));
        assert_eq!(decode_entry(&vec![0; 5_000]), Err(EntryError::Long(5_000)));
    }

    proptest! {
        #[test]
        fn a_name_is_one_part_of_a_path(name in ".{1,20}", incarnation: u64) {
            let key = Key { name, incarnation };
            let (first, second) = key.path();
            prop_assert!(!first.contains('/') && !first.starts_with('.'));
            prop_assert_eq!(Key::of_path(&first, &second), Some(key));
        }

        #[test]
        fn other_paths_are_no_keys(first in "[a-zA-Z%./0-9]{0,8}", second in "[0-9a-fA-FxX+]{0,18}") {
            if let Some(key) = Key::of_path(&first, &second) {
                prop_assert_eq!(key.path(), (first, second));
            }
        }
    }
}
