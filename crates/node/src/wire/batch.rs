//! A client's tasks, which are columns already.

use bytes::Bytes;

use super::WireError;
use super::column::{Cells, Column};
use super::keep::Keeper;
use crate::message::{Batch, TaskOptions};
use crate::wire::proto;

/// The most keys, tasks, inputs or other entries of one message. What a client wants to say about
/// more of them takes several messages.
pub const MOST: u64 = 1 << 20;

pub(super) fn encode(batch: &Batch) -> proto::Batch {
    let (key_lengths, keys) = put_blobs(&batch.keys);
    let (input_counts, inputs) = put_lists(&batch.offsets, &batch.inputs);
    let (definition_counts, definitions) = put_lists(&batch.definition_offsets, &batch.definitions);
    let (recipe_lengths, recipes) = put_blobs(&batch.recipes);
    let options = if batch.options.iter().all(|option| *option == 0) {
        Bytes::new()
    } else {
        put_all(batch.options.iter().map(|option| u64::from(*option)))
    };
    proto::Batch {
        number: batch.number,
        last: batch.last,
        first: batch.first,
        key_lengths,
        keys,
        tasks: put_deltas(&batch.tasks),
        input_counts,
        inputs,
        readers: put_all(batch.readers.iter().map(|readers| u64::from(*readers))),
        ranks: put_deltas(&batch.ranks),
        definition_counts,
        definitions,
        recipe_lengths,
        recipes,
        options,
        option_sets: batch.option_sets.iter().map(put_options).collect(),
        wanted: put_deltas(&batch.wanted),
    }
}

/// An upper bound of the length, in bytes.
pub(super) fn cost(batch: &Batch) -> usize {
    let blobs = |blobs: &[Bytes]| blobs.iter().map(|blob| blob.len() + 5).sum::<usize>();
    let numbers = batch.inputs.len() + batch.definitions.len() + batch.wanted.len();
    let names = |set: &TaskOptions| {
        let workers = set.workers.iter().map(|name| name.len() + 6);
        let resources = set.resources.iter().map(|(name, _)| name.len() + 20);
        26 + workers.sum::<usize>() + resources.sum::<usize>()
    };
    let sets = batch.option_sets.iter().map(names).sum::<usize>();
    200 + blobs(&batch.keys) + blobs(&batch.recipes) + 30 * batch.tasks.len() + 5 * numbers + sets
}

pub(super) fn decode(batch: proto::Batch, keeper: Keeper) -> Result<Batch, WireError> {
    let keys = get_blobs("keys", batch.key_lengths, batch.keys, None)?;
    let tasks = get_deltas("tasks", batch.tasks)?;
    let count = tasks.len();
    let (offsets, inputs) = get_lists("inputs", count, batch.input_counts, batch.inputs)?;
    let (definition_offsets, definitions) = get_lists(
        "definitions",
        count,
        batch.definition_counts,
        batch.definitions,
    )?;
    let ranks = get_deltas("ranks", batch.ranks)?;
    let recipes = get_blobs("recipes", batch.recipe_lengths, batch.recipes, Some(keeper))?;
    let readers = get_all("readers", batch.readers, Cells::get_u32)?;
    let options = if batch.options.is_empty() {
        vec![0; count]
    } else {
        get_all("options", batch.options, Cells::get_u16)?
    };
    for (column, length) in [
        ("ranks", ranks.len()),
        ("recipes", recipes.len()),
        ("readers", readers.len()),
        ("options", options.len()),
    ] {
        if length < count {
            return Err(WireError::Short { column });
        }
        if length > count {
            return Err(WireError::Surplus { column });
        }
    }
    most("option sets", batch.option_sets.len() as u64)?;
    Ok(Batch {
        number: batch.number,
        last: batch.last,
        first: batch.first,
        keys,
        tasks,
        offsets,
        inputs,
        readers,
        ranks,
        definition_offsets,
        definitions,
        recipes,
        options,
        option_sets: batch.option_sets.into_iter().map(get_options).collect(),
        wanted: get_deltas("wanted", batch.wanted)?,
    })
}

fn put_options(options: &TaskOptions) -> proto::TaskOptions {
    proto::TaskOptions {
        priority: options.priority,
        retries: options.retries,
        workers: options.workers.clone(),
        allow_other: options.allow_other,
        resources: put_resources(&options.resources),
        actor: options.actor,
        effects: options.effects,
    }
}

fn get_options(options: proto::TaskOptions) -> TaskOptions {
    TaskOptions {
        priority: options.priority,
        retries: options.retries,
        workers: options.workers,
        allow_other: options.allow_other,
        resources: get_resources(options.resources),
        actor: options.actor,
        effects: options.effects,
    }
}

pub(super) fn put_resources(resources: &[(String, f64)]) -> Vec<proto::Resource> {
    resources
        .iter()
        .map(|(name, amount)| proto::Resource {
            name: name.clone(),
            amount: *amount,
        })
        .collect()
}

pub(super) fn get_resources(resources: Vec<proto::Resource>) -> Vec<(String, f64)> {
    resources
        .into_iter()
        .map(|resource| (resource.name, resource.amount))
        .collect()
}

fn most(what: &'static str, count: u64) -> Result<(), WireError> {
    if count > MOST {
        return Err(WireError::TooMany {
            what,
            count,
            most: MOST,
        });
    }
    Ok(())
}

pub(super) fn put_all(values: impl Iterator<Item = u64>) -> Bytes {
    let mut column = Column::default();
    for value in values {
        column.put(value);
    }
    column.into_bytes()
}

pub(super) fn put_deltas(values: &[u32]) -> Bytes {
    let mut column = Column::default();
    for value in values {
        column.put_delta((*value).into());
    }
    column.into_bytes()
}

/// Lengths, and bytes.
pub(super) fn put_blobs(blobs: &[Bytes]) -> (Bytes, Bytes) {
    let (mut lengths, mut column) = (Column::default(), Column::default());
    for blob in blobs {
        lengths.put(blob.len() as u64);
        column.put_bytes(blob);
    }
    (lengths.into_bytes(), column.into_bytes())
}

/// Counts, and entries.
fn put_lists(offsets: &[u32], entries: &[u32]) -> (Bytes, Bytes) {
    let (mut counts, mut column) = (Column::default(), Column::default());
    for range in offsets.windows(2) {
        counts.put((range[1] - range[0]).into());
        for entry in &entries[range[0] as usize..range[1] as usize] {
            column.put_delta((*entry).into());
        }
    }
    (counts.into_bytes(), column.into_bytes())
}

pub(super) fn get_all<T>(
    name: &'static str,
    bytes: Bytes,
    mut get: impl FnMut(&mut Cells) -> Result<T, WireError>,
) -> Result<Vec<T>, WireError> {
    // Never less than a byte an entry, and mostly little more.
    let mut values = Vec::with_capacity(bytes.len().min(MOST as usize));
    let mut column = Cells::new(name, bytes);
    while !column.is_done() {
        values.push(get(&mut column)?);
        most(name, values.len() as u64)?;
    }
    Ok(values)
}

pub(super) fn get_deltas(name: &'static str, bytes: Bytes) -> Result<Vec<u32>, WireError> {
    get_all(name, bytes, Cells::get_delta_u32)
}

/// Without a keeper, views of the packet.
pub(super) fn get_blobs(
    name: &'static str,
    lengths: Bytes,
    bytes: Bytes,
    keeper: Option<Keeper>,
) -> Result<Vec<Bytes>, WireError> {
    let mut blobs = Cells::new(name, bytes);
    let Some(keeper) = keeper else {
        let found = get_all(name, lengths, |lengths| {
            let length = lengths.get()?;
            blobs.slice(length)
        })?;
        blobs.end()?;
        return Ok(found);
    };
    let mut blobs = keeper.column(blobs);
    let found = get_all(name, lengths, |lengths| {
        let length = lengths.get()?;
        blobs.next(length)
    })?;
    blobs.end()?;
    Ok(found)
}

/// Offsets, and entries.
fn get_lists(
    name: &'static str,
    rows: usize,
    counts: Bytes,
    entries: Bytes,
) -> Result<(Vec<u32>, Vec<u32>), WireError> {
    let entries = get_deltas(name, entries)?;
    let mut offsets = Vec::with_capacity(rows + 1);
    offsets.push(0);
    let mut counts = Cells::new(name, counts);
    let mut end = 0u64;
    for _ in 0..rows {
        end = end.saturating_add(counts.get()?);
        if end > entries.len() as u64 {
            return Err(WireError::Short { column: name });
        }
        offsets.push(end as u32);
    }
    counts.end()?;
    if end < entries.len() as u64 {
        return Err(WireError::Surplus { column: name });
    }
    Ok((offsets, entries))
}
