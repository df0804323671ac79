//! Tasks that run in a process: what the Python of a worker would do.

use std::collections::VecDeque;
use std::time::Duration;

use treadle_shuffle::{
    AttemptId, Commit, CommitError, MapRange, ReaderEvent, ServerEvent, ServerId, ToMaster, ToNode,
    Transfer, WriterEvent,
};

use crate::engine::{Down, Up};
use crate::tasks::{Failure, Rows, Task, Value, Work};
use crate::world::{Item, Pid, World};

/// The longest time that a read takes where nothing is wrong with its own process.
const HELD_UP: Duration = Duration::from_millis(100);

/// A task that runs.
#[derive(Debug)]
pub(super) enum Running {
    Transfer(Transfer),
    Barrier,
    Unpack {
        /// The reads, by side.
        reads: Vec<u64>,
        rows: Vec<Option<Rows>>,
    },
}

impl World {
    /// Rows of one group are there, and others follow.
    pub(super) fn keep(&mut self, pid: Pid, read: u64) {
        let process = &mut self.procs[pid];
        if !process.reads.contains_key(&read) {
            // It was cancelled a moment ago.
            return;
        }
        let rows = process.rows.remove(&read).unwrap_or_default();
        process.kept.entry(read).or_default().extend(rows);
    }

    /// All rows of a partition are there.
    pub(super) fn returned(&mut self, pid: Pid, read: u64) -> Result<(), String> {
        self.read_was_not_held_up(pid, read)?;
        let process = &mut self.procs[pid];
        let Some(task) = process.reads.remove(&read) else {
            // It was cancelled a moment ago.
            return Ok(());
        };
        let mut rows = process
            .rows
            .remove(&read)
            .ok_or("rows are returned that never came")?;
        if let Some(kept) = process.kept.remove(&read) {
            rows.extend(kept);
            rows.sort_by_key(|(map, _)| *map);
        }
        let Some(Running::Unpack { reads, rows: sides }) = process.tasks.get_mut(&task) else {
            return Ok(());
        };
        let side = reads.iter().position(|&other| other == read);
        sides[side.ok_or("a read of nobody")?] = Some(rows);
        if let Some(rows) = sides.iter().cloned().collect::<Option<Vec<Rows>>>() {
            let readers = self.plan.service.map_or(1, |service| service.readers);
            let sides = rows.chunks(readers as usize).map(|parts| parts.concat());
            let rows = sides.collect();
            self.summary.outputs += 1;
            self.end_task(pid, task, Ok(Value::Rows(rows)));
        }
        Ok(())
    }

    /// Who stands still holds up nobody else.
    fn read_was_not_held_up(&mut self, pid: Pid, read: u64) -> Result<(), String> {
        let process = &mut self.procs[pid];
        let began = process.begun.remove(&read);
        let took = began.map_or(Duration::ZERO, |began| self.kernel.now() - began);
        match self.plan.stopped {
            Some(place) if process.id.node != place && took > HELD_UP => Err(format!(
                "a read of {:?} has waited for a process that stands still: {took:?}",
                process.id
            )),
            _ => Ok(()),
        }
    }

    /// The head says something.
    pub(super) fn process_hears(
        &mut self,
        pid: Pid,
        to: ServerId,
        down: Down,
    ) -> Result<(), String> {
        match down {
            Down::Master(message) => {
                if let ToNode::Committed {
                    shuffle,
                    ask,
                    result,
                } = &message
                {
                    let task = (Task::Barrier(*shuffle), *ask);
                    let result = match result {
                        Ok(generation) => Ok(Value::Generation(*generation)),
                        Err(error @ CommitError::Damaged { .. }) => {
                            Err(Failure::Raised(error.to_string()))
                        }
                        Err(error) => Err(Failure::GivenBack(error.to_string())),
                    };
                    self.end_task(pid, task, result);
                    return Ok(());
                }
                let link = self.link_named(to);
                self.server(
                    pid,
                    ServerEvent::Master {
                        link,
                        message: message.clone(),
                    },
                )?;
                self.writer(pid, WriterEvent::Master(message.clone()))?;
                self.reader(pid, ReaderEvent::Master(message))
            }
            Down::Run(task, attempt, work) => self.run_task(pid, task, attempt, work),
            Down::Cancel(task, attempt) => self.cancel_task(pid, task, attempt),
            Down::Gone(server) => self.server(pid, ServerEvent::Gone(server)),
        }
    }

    pub(super) fn run_task(
        &mut self,
        pid: Pid,
        task: Task,
        id: u64,
        work: Work,
    ) -> Result<(), String> {
        match (task, work) {
            (
                Task::Transfer(shuffle, map),
                Work::Transfer {
                    again,
                    fails,
                    replaces,
                },
            ) => {
                let transfer = Transfer {
                    shuffle,
                    map,
                    attempt: AttemptId(id),
                };
                let running = Running::Transfer(transfer);
                self.procs[pid].tasks.insert((task, id), running);
                if fails {
                    let time = self.kernel.random.micros(0, 3_000);
                    self.kernel.schedule(time, Item::Raise(pid, task, id));
                }
                self.writer(
                    pid,
                    WriterEvent::Begin {
                        transfer,
                        again,
                        replaces,
                    },
                )
            }
            (Task::Barrier(shuffle), Work::Barrier { maps, receipts }) => {
                self.procs[pid].tasks.insert((task, id), Running::Barrier);
                let commit = Commit::new(shuffle, maps, &receipts);
                let commit = commit.map_err(|error| format!("receipts do not fit: {error}"))?;
                self.up(pid, Up::Master(ToMaster::Commit { ask: id, commit }));
                Ok(())
            }
            (Task::Unpack(..), Work::Unpack(sides)) => {
                let process = &mut self.procs[pid];
                let mut begins = VecDeque::new();
                let readers = self.plan.service.map_or(1, |service| service.readers);
                for (shuffle, generation, partition) in sides {
                    for part in 0..readers {
                        let range = (readers > 1).then(|| {
                            let maps = self.jobs[(shuffle.0 / 2) as usize].plan.maps;
                            MapRange::part(maps, part, readers)
                        });
                        let read = process.next_read;
                        process.next_read += 1;
                        process.reads.insert(read, (task, id));
                        process.begun.insert(read, self.kernel.now());
                        begins.push_back(ReaderEvent::Begin {
                            read,
                            shuffle,
                            generation,
                            partition,
                            maps: range,
                        });
                    }
                }
                let first = process.next_read - begins.len() as u64;
                let running = Running::Unpack {
                    reads: (first..process.next_read).collect(),
                    rows: vec![None; begins.len()],
                };
                process.tasks.insert((task, id), running);
                for (begin, read) in begins.into_iter().zip(first..) {
                    // The other side may have failed at once, and ended the task.
                    if self.procs[pid].reads.contains_key(&read) {
                        self.reader(pid, begin)?;
                    }
                }
                Ok(())
            }
            (task, work) => Err(format!("{task:?} cannot do {work:?}")),
        }
    }

    /// A task has ended, with a value or without.
    pub(super) fn end_task(&mut self, pid: Pid, task: (Task, u64), result: Result<Value, Failure>) {
        if !self.forget_task(pid, task) {
            return;
        }
        let up = match result {
            Ok(value) => Up::Finished(task.0, task.1, value),
            Err(failure) => Up::Failed(task.0, task.1, failure),
        };
        self.up(pid, up);
    }

    /// Whether the task was there. Its reads end.
    fn forget_task(&mut self, pid: Pid, task: (Task, u64)) -> bool {
        let process = &mut self.procs[pid];
        let Some(running) = process.tasks.remove(&task) else {
            return false;
        };
        if let Running::Unpack { reads, .. } = running {
            for read in reads {
                process.reads.remove(&read);
                process.rows.remove(&read);
                process.kept.remove(&read);
                self.kernel
                    .schedule(Duration::ZERO, Item::CancelRead(pid, read));
            }
        }
        true
    }

    pub(super) fn cancel_task(&mut self, pid: Pid, task: Task, attempt: u64) -> Result<(), String> {
        let transfer = match self.procs[pid].tasks.get(&(task, attempt)) {
            Some(Running::Transfer(transfer)) => Some(*transfer),
            _ => None,
        };
        self.forget_task(pid, (task, attempt));
        match transfer {
            Some(transfer) => self.writer(pid, WriterEvent::Cancel(transfer)),
            None => Ok(()),
        }
    }

    /// A transfer raises in the middle.
    pub(super) fn raise(&mut self, pid: Pid, task: Task, attempt: u64) -> Result<(), String> {
        if !self.procs[pid].tasks.contains_key(&(task, attempt)) {
            return Ok(());
        }
        self.summary.raised += 1;
        self.cancel_task(pid, task, attempt)?;
        let failure = Failure::GivenBack("it raised".into());
        self.up(pid, Up::Failed(task, attempt, failure));
        Ok(())
    }
}
