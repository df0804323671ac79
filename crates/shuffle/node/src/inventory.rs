//! What a copy in a remote store consists of: an object, for who adopts the copy.

use std::sync::Arc;

use treadle_shuffle::Inventory;
use treadle_shuffle_wire::{InventoryRun, decode_inventory, encode_inventory};

use crate::run::Run;

/// Bytes of an inventory, at most.
const MOST: u64 = 256 << 20;

/// An inventory as bytes.
pub(crate) fn encode(inventory: &Inventory, runs: &[Arc<Run>]) -> Vec<u8> {
    let runs = runs.iter().map(|run| {
        let mut headers: Vec<_> = run.headers.values().copied().collect();
        headers.sort_unstable_by_key(|header| header.batch);
        InventoryRun {
            name: run.kept.name().into(),
            length: run.kept.length(),
            begins: run.index.begins().to_vec(),
            headers,
        }
    });
    encode_inventory(inventory, &runs.collect::<Vec<_>>())
}

/// Reads an inventory of this length with `fetch`.
pub(crate) fn read(
    length: u64,
    fetch: impl FnOnce(&mut [u8]) -> Result<(), String>,
) -> Result<(Inventory, Vec<InventoryRun>), String> {
    if length > MOST {
        return Err(format!(
            "an inventory has {length} bytes, and may have {MOST}"
        ));
    }
    let mut bytes = Vec::new();
    let reserved = bytes.try_reserve_exact(length as usize);
    reserved.map_err(|error| error.to_string())?;
    bytes.resize(length as usize, 0);
    fetch(&mut bytes)?;
    decode_inventory(&bytes).ok_or_else(|| "an inventory is damaged".into())
}
