//! The remote store of the servers: objects outlive who wrote them.

use std::collections::BTreeMap;

use treadle_shuffle::{
    Adopted, BatchId, GroupId, Inventory, ServerEvent, ShuffleId, Tally, Winners,
};

use crate::process::Content;
use crate::world::{Item, Pid, World};

/// A copy at a server.
pub(super) type CopyName = (ShuffleId, GroupId);
/// An inventory, and the runs of its copy.
pub(super) type Described = (Inventory, Vec<u64>);

/// The object of a run, and of each of its batches what the inventory says: rows, and bytes.
type WrittenRun = (u64, Vec<(BatchId, Tally, u64)>);

#[derive(Clone)]
struct Written {
    inventory: Inventory,
    runs: Vec<WrittenRun>,
}

#[derive(Default)]
pub(super) struct RemoteStore {
    next: u64,
    runs: BTreeMap<u64, Content>,
    inventories: BTreeMap<u64, Written>,
}

impl RemoteStore {
    /// A number that no object had before.
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn put(&mut self, object: u64, content: Content) {
        self.runs.insert(object, content);
    }

    pub(super) fn has(&self, object: u64) -> bool {
        self.runs.contains_key(&object)
    }

    /// Also of what others have removed.
    pub(super) fn remove(&mut self, object: u64) {
        self.runs.remove(&object);
        self.inventories.remove(&object);
    }
}

impl World {
    pub(super) fn write_inventory(
        &mut self,
        pid: Pid,
        copy: CopyName,
        number: u64,
        described: Described,
    ) -> Result<(), String> {
        let store = self.plan.store.ok_or("there is no remote store")?;
        self.procs[pid].describing.insert(number, (copy, described));
        let time = self.kernel.random.micros(50, store.slow);
        self.kernel
            .schedule(time, Item::InventoryWritten(pid, number));
        Ok(())
    }

    pub(super) fn inventory_written(&mut self, pid: Pid, number: u64) -> Result<(), String> {
        let store = self.plan.store.unwrap_or_default();
        let is_refused = self.kernel.random.chance(store.refuses);
        let process = &mut self.procs[pid];
        let Some((copy, (inventory, runs))) = process.describing.remove(&number) else {
            return Ok(());
        };
        let of_run = |run: &u64| {
            let object = process.remote.get(run).copied();
            let object = object.ok_or_else(|| format!("run {run} is not in the store"))?;
            let batches = process.runs.get(run).into_iter().flatten();
            let batches =
                batches.map(|(id, batch)| (*id, batch.header.tally, batch.header.length()));
            Ok((object, batches.collect()))
        };
        let runs = runs.iter().map(of_run).collect::<Result<_, String>>()?;
        let written = match is_refused {
            true => Err("refused".into()),
            false => {
                let object = self.store.number();
                process.remote.insert(number, object);
                self.store
                    .inventories
                    .insert(object, Written { inventory, runs });
                self.summary.inventories += 1;
                Ok(object.to_string().into())
            }
        };
        let (shuffle, group) = copy;
        let event = ServerEvent::InventoryWritten {
            shuffle,
            group,
            number,
            written,
        };
        self.server(pid, event)
    }

    pub(super) fn read_inventory(
        &mut self,
        pid: Pid,
        copy: CopyName,
        first: u64,
        name: &str,
    ) -> Result<(), String> {
        let store = self.plan.store.ok_or("there is no remote store")?;
        let object = name.parse().map_err(|_| "it is no name of an object")?;
        let time = self.kernel.random.micros(50, store.slow);
        self.kernel
            .schedule(time, Item::InventoryRead(pid, copy, first, object));
        Ok(())
    }

    /// How many runs of a copy can be opened, one after the other: up to one that is gone, or that fails this time.
    fn opened(&mut self, written: &Written) -> usize {
        let gone = written
            .runs
            .iter()
            .position(|(object, _)| !self.store.has(*object));
        let opened = gone.unwrap_or(written.runs.len());
        let breaks = self.plan.store.unwrap_or_default().breaks;
        if opened < 2 || self.summary.in_part >= breaks {
            return opened;
        }
        1 + self.kernel.random.below(opened as u64 - 1) as usize
    }

    pub(super) fn inventory_read(
        &mut self,
        pid: Pid,
        (shuffle, group): CopyName,
        first: u64,
        object: u64,
    ) -> Result<(), String> {
        let store = self.plan.store.unwrap_or_default();
        let is_lost = self.kernel.random.chance(store.loses);
        let is_altered = self.kernel.random.chance(store.alters);
        self.summary.damages += u64::from(is_lost || is_altered);
        let found = self.store.inventories.get(&object).filter(|_| !is_lost);
        let mut found = found.cloned();
        let opened = found.as_ref().map(|written| self.opened(written));
        if let Some(written) = found.as_mut().filter(|_| is_altered) {
            // Rows of a map are said not to count.
            let expected = &mut written.inventory.expected;
            let winners: Vec<_> = expected.winners.iter().collect();
            expected.winners = winners.into_iter().skip(1).collect::<Winners>();
        }
        let process = &mut self.procs[pid];
        let found = found.zip(opened).ok_or(0).and_then(|(written, opened)| {
            process.remote.insert(first, object);
            for (run, (object, _)) in (first + 1..).zip(&written.runs[..opened]) {
                process.remote.insert(run, *object);
                process.runs.insert(run, self.store.runs[object].clone());
            }
            if opened < written.runs.len() {
                self.summary.in_part += 1;
                return Err(1 + opened as u64);
            }
            self.summary.adopted += 1;
            let runs = written.runs.into_iter();
            Ok(Adopted {
                inventory: written.inventory,
                runs: runs.map(|(_, batches)| batches).collect(),
            })
        });
        let event = ServerEvent::InventoryRead {
            shuffle,
            group,
            first,
            found,
        };
        self.server(pid, event)
    }
}
