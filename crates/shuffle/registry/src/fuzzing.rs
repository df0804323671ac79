//! What the fuzz target calls: any bytes as a node of a registry.

use crate::wire::{decode_entry, decode_master, encode_entry, encode_master};

/// Takes an entry or a master apart, and packs what it held again. The checksum is made right: a fuzzer does not find it.
///
/// # Panics
/// When the decoder breaks its word.
pub fn registry(bytes: &[u8]) {
    again(bytes);
    again(
        &[
            &b"TSR1"[..],
            &crc_fast::crc32_iscsi(bytes).to_le_bytes(),
            bytes,
        ]
        .concat(),
    );
}

fn again(bytes: &[u8]) {
    if let Ok(entry) = decode_entry(bytes) {
        assert_eq!(decode_entry(&encode_entry(&entry)), Ok(entry.clone()));
        let (name, incarnation) = entry.key().path();
        assert_eq!(crate::Key::of_path(&name, &incarnation), Some(entry.key()));
    }
    if let Ok(master) = decode_master(bytes) {
        assert_eq!(decode_master(&encode_master(&master)), Ok(master));
    }
}

#[cfg(test)]
#[macro_use]
#[path = "../../../../fuzz/kept.rs"]
#[allow(unreachable_pub, reason = "it is a module of several crates' tests")]
mod kept;

#[cfg(test)]
mod tests {
    use crate::wire::{encode_entry, encode_master};
    use crate::{Entry, Load, Master};

    fn seeds() -> Vec<(&'static str, Vec<u8>)> {
        let least = Entry {
            name: "a".into(),
            address: "treadle://127.0.0.1:9".into(),
            ..Entry::default()
        };
        let most = Entry {
            incarnation: u64::MAX,
            domain: "power-1".into(),
            rack: "r/7".into(),
            version: "1.2.3".into(),
            host_kind: "ssd".into(),
            weight: 3,
            newest: 2,
            oldest: 1,
            load: Some(Load {
                free: 1 << 40,
                held: 12,
                waiting: 3,
                is_full: true,
            }),
            is_leaving: true,
            ..least.clone()
        };
        let master = Master {
            application: u64::MAX,
            address: "treadle://127.0.0.1:9".into(),
            number: 1 << 30,
        };
        let whole = encode_entry(&most);
        vec![
            ("least", encode_entry(&least)),
            ("payload", whole[8..].to_vec()),
            ("master", encode_master(&master)),
            ("most", whole),
        ]
    }

    kept!(registry, seeds);
}
