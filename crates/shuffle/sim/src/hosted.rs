//! The shuffle plane of processes whose tasks another engine runs: the real scheduler, in
//! `treadle-sim`. That one has the master, the clock, and the connections to the processes.

use std::collections::BTreeSet;
use std::time::Duration;

use treadle_shuffle::{
    Generation, Receipt, ServerEvent, ServerId, ShuffleId, ToMaster, ToNode, Verdict,
};
use treadle_sim_kernel::{Trace, World as _};

use crate::data::{Expected, Source};
use crate::engine::{Down, Up};
use crate::plan::Plan;
use crate::process::Process;
use crate::tasks::{Failure, Rows, Task, Value, Work};
use crate::world::{Pid, Summary, World};

/// The inputs of a shuffle.
#[derive(Clone, Copy, Debug)]
pub struct Inputs {
    /// Which rows they have: those of a shuffle that begins anew are the same.
    pub data: u64,
    /// How many there are.
    pub maps: u32,
    /// How many outputs their rows are for.
    pub partitions: u32,
    /// Rows of an input, at most.
    pub rows: u32,
    /// Whether each attempt has the same rows.
    pub is_deterministic: bool,
}

impl Inputs {
    fn source(&self, shuffle: ShuffleId) -> Source {
        Source {
            shuffle,
            data: self.data,
            partitions: self.partitions,
            rows: self.rows,
            is_deterministic: self.is_deterministic,
        }
    }
}

/// What a task does.
#[derive(Clone, Debug)]
pub enum Act {
    /// Pushes the rows of a map.
    Transfer {
        /// Which map.
        map: u32,
        /// Whether the map may have run before.
        again: bool,
    },
    /// Has the servers compare their rows with the receipts.
    Commit(Vec<Receipt>),
    /// Reads a partition.
    Read(Generation, u32),
}

/// What a task returns.
#[derive(Clone, Debug)]
pub enum Returned {
    /// Of a transfer.
    Receipt(Receipt),
    /// Of a barrier.
    Generation(Generation),
    /// Of a read.
    Output(Output),
}

/// The rows of a partition, by map, in the order in which they came.
#[derive(Clone, Debug)]
pub struct Output(Rows);

/// Why a task returns nothing.
#[derive(Clone, Debug)]
pub enum Ended {
    /// It asks to run again.
    GivenBack(String),
    /// It raises.
    Raised(String),
}

/// What a process says to the engine.
#[derive(Debug)]
pub enum Said {
    /// For the master.
    ToMaster(ToMaster),
    /// A task has ended, by its attempt.
    Over(u64, Result<Returned, Ended>),
}

/// The shuffle plane of all processes, with the network between them.
pub struct Planes {
    world: World,
    is_deterministic: bool,
}

impl Planes {
    /// What a seed decides, without a process. `is_deterministic`: all inputs are.
    pub fn new(seed: u64, is_deterministic: bool) -> Self {
        let mut world = World::new(Plan::hosted(seed), Trace::Off);
        world.said = Some(Vec::new());
        Self {
            world,
            is_deterministic,
        }
    }

    /// Where it says what happens.
    pub fn trace(&mut self) -> &mut Trace {
        &mut self.world.kernel.trace
    }

    /// What happened.
    pub fn summary(&self) -> Summary {
        self.world.summary
    }

    /// When something is to happen.
    pub fn due(&self) -> Option<Duration> {
        self.world.kernel.next_at()
    }

    /// It is so late: what is due happens.
    ///
    /// # Errors
    /// What does not hold.
    pub fn advance(&mut self, now: Duration) -> Result<(), String> {
        self.world.run_until(now)
    }

    /// What was said since the last call.
    ///
    /// # Errors
    /// Rows were found wrong, and nothing had made them wrong.
    pub fn said(&mut self) -> Result<Vec<(ServerId, Said)>, String> {
        let all = self.world.said.as_mut().map(std::mem::take);
        let mut said = Vec::new();
        for (server, up) in all.unwrap_or_default() {
            said.push((
                server,
                match up {
                    Up::Master(message) => {
                        self.must_be_well(&message)?;
                        Said::ToMaster(message)
                    }
                    Up::Finished(_, attempt, value) => Said::Over(
                        attempt,
                        Ok(match value {
                            Value::Receipt(receipt) => Returned::Receipt(receipt),
                            Value::Generation(generation) => Returned::Generation(generation),
                            Value::Rows(mut sides) => {
                                Returned::Output(Output(sides.pop().unwrap_or_default()))
                            }
                        }),
                    ),
                    Up::Failed(_, attempt, failure) => Said::Over(
                        attempt,
                        Err(match failure {
                            Failure::GivenBack(why) => Ended::GivenBack(why),
                            Failure::Raised(why) => Ended::Raised(why),
                        }),
                    ),
                    Up::Joined | Up::Dismissed => continue,
                },
            ));
        }
        Ok(said)
    }

    fn must_be_well(&self, message: &ToMaster) -> Result<(), String> {
        let is_suspect = match message {
            ToMaster::Sealed { verdict, .. } => *verdict != Verdict::Complete,
            ToMaster::Damaged { .. } | ToMaster::Differs { .. } => true,
            _ => false,
        };
        match is_suspect && self.is_deterministic {
            true => Err(format!("nothing was damaged, and yet: {message:?}")),
            false => Ok(()),
        }
    }

    fn at(&self, server: ServerId) -> Option<Pid> {
        let pid = self.world.by_id.get(&server).copied()?;
        self.world.procs[pid].is_alive.then_some(pid)
    }

    /// The engine calls a process so, which is on a machine.
    pub fn joined(&mut self, server: ServerId, machine: u32) {
        let pid = self.world.add_process(server, Some(0));
        self.world.procs[pid].node = machine;
    }

    /// A process ends.
    pub fn killed(&mut self, server: ServerId) {
        if let Some(pid) = self.at(server) {
            self.world.kill(pid);
        }
    }

    /// A process does nothing for so long.
    pub fn paused(&mut self, server: ServerId, length: Duration) {
        self.world.kernel.pause(server.node, length);
    }

    /// Two machines cannot reach each other for so long.
    pub fn cut(&mut self, one: u32, other: u32, length: Duration) {
        self.world.cut(one, other, length);
    }

    /// A process hears of the master.
    ///
    /// # Errors
    /// What does not hold.
    pub fn hears(&mut self, server: ServerId, message: ToNode) -> Result<(), String> {
        match self.at(server) {
            Some(pid) => self.world.process_hears(pid, server, Down::Master(message)),
            None => Ok(()),
        }
    }

    /// A process hears that another one is lost.
    ///
    /// # Errors
    /// What does not hold.
    pub fn hears_of_loss(&mut self, server: ServerId, lost: ServerId) -> Result<(), String> {
        let Some(pid) = self.at(server) else {
            return Ok(());
        };
        self.world.unreached(pid, lost)?;
        self.world.server(pid, ServerEvent::Gone(lost))
    }

    /// An attempt of a task begins.
    ///
    /// # Errors
    /// What does not hold.
    pub fn begin(
        &mut self,
        server: ServerId,
        attempt: u64,
        (shuffle, inputs): (ShuffleId, &Inputs),
        act: Act,
    ) -> Result<(), String> {
        let Some(pid) = self.at(server) else {
            return Ok(());
        };
        self.world.sources.insert(shuffle, inputs.source(shuffle));
        let (task, work) = match act {
            Act::Transfer { map, again } => {
                let work = Work::Transfer {
                    again,
                    fails: false,
                    replaces: true,
                };
                (Task::Transfer(shuffle, map), work)
            }
            Act::Commit(receipts) => {
                let maps = inputs.maps;
                (Task::Barrier(shuffle), Work::Barrier { maps, receipts })
            }
            Act::Read(generation, partition) => {
                let work = Work::Unpack(vec![(shuffle, generation, partition)]);
                (Task::Unpack(0, partition), work)
            }
        };
        self.world.run_task(pid, task, attempt, work)
    }

    /// Nobody waits for an attempt any more.
    ///
    /// # Errors
    /// What does not hold.
    pub fn cancel(&mut self, server: ServerId, attempt: u64) -> Result<(), String> {
        let Some(pid) = self.at(server) else {
            return Ok(());
        };
        let mut running = self.world.procs[pid].tasks.keys();
        match running.find(|(_, other)| *other == attempt).copied() {
            Some((task, attempt)) => self.world.cancel_task(pid, task, attempt),
            None => Ok(()),
        }
    }

    /// Compares outputs of a shuffle with what its maps hold: every row once, in order, and of one
    /// attempt of each map. `attempts`: all that there were of a map.
    ///
    /// # Errors
    /// What is wrong.
    pub fn verify<'a>(
        inputs: &Inputs,
        attempts: impl Fn(u32) -> BTreeSet<u64>,
        outputs: impl IntoIterator<Item = (u32, &'a Output)>,
    ) -> Result<(), String> {
        let source = inputs.source(ShuffleId(inputs.data));
        let mut expected = Expected::new(&source, inputs.maps, attempts);
        let mut outputs = outputs.into_iter();
        outputs.try_for_each(|(partition, output)| expected.verify(partition, &output.0))
    }

    /// Nothing of a shuffle is left at processes that are there.
    ///
    /// # Errors
    /// What is left.
    pub fn must_be_empty(&self) -> Result<(), String> {
        let mut alive = self.world.procs.iter().filter(|process| process.is_alive);
        alive.find_map(Process::leftovers).map_or(Ok(()), Err)
    }
}
