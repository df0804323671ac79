//! Transfers: rows of maps are gathered and pushed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use treadle_rows::Wanted;
use treadle_shuffle::{GroupId, Plan, Receipt, Transfer, TransferError, WriterEvent};
use treadle_types::Runs;

use super::{Next, Running, count, micros};
use crate::callbacks::Stopwatch;
use crate::machines::{Gathered, Machines, Step};
use crate::{Activity, Arena, ArenaMemory, Failure, Inner, MapRows, Plane, Source, Waiter};

/// Of several maps that are pushed together, so many bytes are gathered before they are sent.
const TOGETHER: usize = 1 << 20;

/// A group whose rows are to be gathered.
#[derive(Debug)]
struct Gathering {
    group: GroupId,
    partitions: Runs,
    /// Its server is on this host, and memory can be shared with it.
    is_near: bool,
}

/// Maps that are pushed together.
struct Pushing<'a> {
    maps: &'a [MapRows<'a>],
    /// What came of each, once it has ended.
    outcomes: Vec<Option<Result<Receipt, Failure>>>,
    /// How long their rows were gathered.
    gathering: Duration,
}

/// What is to be done about a map: to gather rows, or to compare its receipt.
type NextOfMap = Next<Vec<Gathering>, (Receipt, Arc<Plan>)>;

impl<'a> Pushing<'a> {
    fn new(maps: &'a [MapRows<'a>]) -> Self {
        Self {
            maps,
            outcomes: maps.iter().map(|_| None).collect(),
            gathering: Duration::ZERO,
        }
    }

    fn is_open(&self) -> bool {
        self.outcomes.iter().any(Option::is_none)
    }

    /// What there is to do, by the positions of maps; `None`: nothing yet.
    fn look(&self, machines: &mut Machines) -> Option<Vec<(usize, NextOfMap)>> {
        let open = self.outcomes.iter().zip(self.maps).enumerate();
        let open = open.filter(|(_, (outcome, _))| outcome.is_none());
        let found = open.filter_map(|(at, (_, map))| Some((at, machines.next_of(map.transfer)?)));
        let found: Vec<_> = found.collect();
        (!found.is_empty()).then_some(found)
    }

    /// What came of all. Those that have not ended fail for this reason.
    fn end(self, reason: &Failure) -> Vec<Result<Receipt, Failure>> {
        let outcomes = self.outcomes.into_iter();
        outcomes
            .map(|outcome| outcome.unwrap_or_else(|| Err(reason.of_all())))
            .collect()
    }
}

impl Machines {
    /// A transfer begins, which this thread waits for. `false`: it runs already.
    fn begin_transfer(&mut self, map: &MapRows<'_>, waiter: &Arc<Waiter>) -> bool {
        let transfer = map.transfer;
        if self.tasks.transfers.contains_key(&transfer) {
            return false;
        }
        self.tasks.transfers.insert(transfer, Running::new(waiter));
        let event = WriterEvent::Begin {
            transfer,
            again: map.again,
            replaces: map.replaces,
        };
        self.steps.push_back(Step::Writer(event));
        true
    }

    /// Nobody waits for a transfer any more. One that has not ended is given up.
    fn end_transfer(&mut self, transfer: Transfer) {
        let running = self.tasks.transfers.remove(&transfer);
        if running.is_some_and(|running| running.outcome.is_none()) {
            let event = WriterEvent::Cancel(transfer);
            self.steps.push_back(Step::Writer(event));
        }
    }

    /// What is to be done about a transfer, if anything is.
    fn next_of(&mut self, transfer: Transfer) -> Option<NextOfMap> {
        let me = self.me;
        if let Some(outcome) = self.tasks.transfers.get(&transfer)?.outcome.clone() {
            return Some(Next::Over(
                outcome.map_err(|error| transfer_failed(self, &error)),
            ));
        }
        let running = self.tasks.transfers.get_mut(&transfer)?;
        if running.wanted.is_empty() {
            return None;
        }
        let wanted = std::mem::take(&mut running.wanted).into_iter();
        let wanted = wanted.map(|(group, partitions)| Gathering {
            group,
            partitions,
            is_near: group.server != me && self.outgoing.is_near(group.server),
        });
        Some(Next::Work(wanted.collect()))
    }
}

impl Plane {
    /// Pushes the rows of a map to the servers of their partitions, and waits until they have them. `again`:
    /// the map may have run before. `replaces`: its rows count even if others of the map were committed, and all
    /// of the shuffle is made again then. `interrupted` is called about every 25 ms.
    ///
    /// # Errors
    /// [`Failure`]. The servers drop the rows of the transfer.
    pub fn transfer(
        &self,
        transfer: Transfer,
        (again, replaces): (bool, bool),
        source: &dyn Source,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Receipt, Failure> {
        let map = MapRows {
            transfer,
            again,
            replaces,
            source,
        };
        let mut outcomes = self.transfer_all(&[map], interrupted);
        outcomes.pop().unwrap_or(Err(Failure::Interrupted))
    }

    /// Pushes the rows of several maps of a shuffle together, and waits until the servers have them. What came of
    /// each, in their order: one that fails leaves the others alone. Small maps take less time so than one after
    /// the other. The batches of all of them are in memory until the servers have them.
    pub fn transfer_all(
        &self,
        maps: &[MapRows<'_>],
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Vec<Result<Receipt, Failure>> {
        let inner = &self.0;
        let waiter = Waiter::current();
        let mut pushing = Pushing::new(maps);
        if let Err(failure) = inner.serve_connections() {
            return pushing.end(&failure);
        }
        let begun: Vec<bool> = inner.with(|machines| {
            let begin = |map: &MapRows<'_>| machines.begin_transfer(map, &waiter);
            maps.iter().map(begin).collect()
        });
        let is_begun = |at: usize| begun[at];
        for (at, map) in maps.iter().enumerate().filter(|(at, _)| !is_begun(*at)) {
            let text = format!("{:?} runs already", map.transfer);
            pushing.outcomes[at] = Some(Err(Failure::Failed(text)));
        }
        let watch = Stopwatch::new(&*inner.callbacks);
        let began = Instant::now();
        let ended = inner.push(&mut pushing, (&waiter, interrupted));
        let gathering = pushing.gathering;
        let waited = began.elapsed().saturating_sub(gathering);
        let failure = ended.err().unwrap_or(Failure::Interrupted);
        let outcomes = pushing.end(&failure);
        let Some(shuffle) = maps.first().map(|map| map.transfer.shuffle) else {
            return outcomes;
        };
        if outcomes.iter().any(Result::is_ok) {
            let receipts = outcomes.iter().flatten();
            let bytes = receipts.map(|receipt| receipt.tally().bytes);
            watch.done(Activity::Push, shuffle, bytes.sum());
        }
        inner.with(|machines| {
            let usage = machines.usage(shuffle);
            usage.gathering += micros(gathering);
            usage.pushing += micros(waited);
            for at in (0..maps.len()).filter(|&at| is_begun(at)) {
                if let Err(failure) = &outcomes[at] {
                    count(machines.usage(shuffle), failure);
                }
                machines.end_transfer(maps[at].transfer);
            }
        });
        outcomes
    }
}

impl Inner {
    /// Gathers the rows that the writer asks for, until all transfers have ended.
    fn push(
        &self,
        pushing: &mut Pushing<'_>,
        (waiter, interrupted): (&Waiter, &mut dyn FnMut() -> bool),
    ) -> Result<(), Failure> {
        while pushing.is_open() {
            let found = self.wait(waiter, interrupted, |machines| pushing.look(machines))?;
            let mut gathered = Vec::new();
            let mut bytes = 0;
            for (at, next) in found {
                let map = &pushing.maps[at];
                let wanted = match next {
                    Next::Over(outcome) => {
                        let outcome = outcome
                            .and_then(|(receipt, plan)| compared(receipt, &plan, map.source));
                        pushing.outcomes[at] = Some(outcome);
                        continue;
                    }
                    Next::Work(wanted) => wanted,
                };
                match self.gather(map, &wanted, &mut pushing.gathering) {
                    Ok(arenas) => {
                        bytes += arenas.iter().map(|arena| arena.memory.len()).sum::<usize>();
                        gathered.push((map.transfer, wanted, arenas));
                    }
                    Err(failure) => pushing.outcomes[at] = Some(Err(failure)),
                }
                // The servers have something to do while the others are gathered.
                if bytes >= TOGETHER {
                    self.gathered(std::mem::take(&mut gathered));
                    bytes = 0;
                }
            }
            self.gathered(gathered);
        }
        Ok(())
    }

    /// Gathers the rows of a map for these groups. Adds how long that took to `gathering`.
    fn gather(
        &self,
        map: &MapRows<'_>,
        wanted: &[Gathering],
        gathering: &mut Duration,
    ) -> Result<Vec<Arena>, Failure> {
        let groups = wanted.iter().map(|wanted| Wanted {
            epoch: wanted.group.epoch,
            partitions: wanted.partitions.clone(),
        });
        let groups: Vec<Wanted> = groups.collect();
        let allocate = |group: usize, len| ArenaMemory::new(len, wanted[group].is_near);
        let watch = Stopwatch::new(&*self.callbacks);
        let began = Instant::now();
        let arenas = map.source.gather(map.transfer, &groups, &allocate);
        *gathering += began.elapsed();
        let arenas = arenas?;
        let bytes = arenas.iter().map(|arena| arena.memory.len() as u64);
        watch.done(Activity::Gather, map.transfer.shuffle, bytes.sum());
        match arenas.len() == wanted.len() {
            true => Ok(arenas),
            false => Err(Failure::Failed(
                "the source did not return one arena for each group".into(),
            )),
        }
    }

    /// The rows of some maps were gathered.
    fn gathered(&self, gathered: Vec<(Transfer, Vec<Gathering>, Vec<Arena>)>) {
        if gathered.is_empty() {
            return;
        }
        let all = gathered.into_iter().flat_map(|(transfer, wanted, arenas)| {
            let arenas = wanted.into_iter().zip(arenas);
            arenas.map(move |(wanted, arena)| {
                let gathered = Gathered {
                    bytes: self.held.charge(arena.memory.into_bytes()),
                    batches: arena.batches,
                };
                (transfer, wanted.group, gathered)
            })
        });
        let all = all.collect();
        self.with(|machines| machines.gathered(all));
    }
}

/// The receipt, if it counts the rows that the source has for the plan. Servers are compared with receipts, so
/// that a row which a receipt leaves out would be lost unseen.
fn compared(receipt: Receipt, plan: &Plan, source: &dyn Source) -> Result<Receipt, Failure> {
    let (counted, rows) = (receipt.tally().rows, source.count_in(&mut plan.outputs()));
    if counted == rows as u64 {
        return Ok(receipt);
    }
    let groups = plan.groups.iter().map(|group| {
        let mut shares = receipt.shares.iter();
        let share = shares.find(|share| share.group == group.id);
        let rows = share.map_or(0, |share| share.tally.rows);
        let ranges = group.partitions.ranges();
        format!("{rows} in {:?} of {ranges:?}", group.id)
    });
    let map = receipt.transfer.map;
    Err(Failure::Failed(format!(
        "input {map} has {rows} rows, and its receipt counts {counted}: this is a bug of Treadle. Write it \
         again. By group: {}",
        groups.collect::<Vec<_>>().join("; ")
    )))
}

fn transfer_failed(machines: &Machines, error: &TransferError) -> Failure {
    let text = error.to_string();
    let at = |server| machines.with_address(&text, server);
    match *error {
        TransferError::Ended(_) => Failure::Again(text),
        TransferError::Unreachable { server, .. } => Failure::Again(at(server)),
        TransferError::Late(_) => Failure::Late(text),
        TransferError::NoRoom { server, .. } => Failure::NoRoom(at(server)),
        TransferError::Malformed { server, .. } => Failure::Failed(at(server)),
    }
}
