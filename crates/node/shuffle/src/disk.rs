//! Runs: files with batches that were in memory.
//!
//! A run is written partition by partition, each in the order of map, attempt and batch. Each piece has
//! an entry of [`ENTRY`] bytes before its rows. So a partition is one range of the file. The
//! beginnings of the ranges are kept in memory.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use treadle_memory::Pool;
use treadle_reactor::thread::{self, caught};
use treadle_shuffle::block::{Header, Table};
use treadle_shuffle::{AttemptId, BatchId, ReadPiece, ServerEvent, ShuffleId};
use treadle_volume::{File, Options, Volume, VolumeError};

use crate::held::{Filed, Held};
use crate::machines::Step;
use crate::{Activity, Inner, Stopwatch};

/// The ending of the names of files.
const LABEL: &str = "shuffle";
/// Bytes before the rows of a piece: map 4, number 4, attempt 8, rows 8, bytes 8, digest 4, and 4 of 0.
const ENTRY: usize = 40;
/// Bytes that are written at once, since pieces may be small.
const WRITE: usize = 4 << 20;

/// Pieces of a partition that were read from a run.
pub(crate) type Loaded = Vec<(ReadPiece, Bytes)>;

/// A batch with its table.
pub(crate) type Batch = (BatchId, Bytes, Table);

/// A job of the thread that reads and writes files.
enum Job {
    Spill {
        run: u64,
        shuffle: ShuffleId,
        batches: Vec<Batch>,
    },
    Load {
        load: u64,
        run: u64,
        partition: u32,
    },
    Drop(u64),
}

/// The thread that reads and writes files. It starts with the first run.
#[derive(Debug)]
pub(crate) struct Disk {
    options: Options,
    held: Arc<Held>,
    volume: Arc<OnceLock<Volume>>,
    jobs: Option<Sender<Job>>,
}

impl Disk {
    pub(crate) fn new(options: Options, held: Arc<Held>) -> Self {
        Self {
            options,
            held,
            volume: Arc::default(),
            jobs: None,
        }
    }

    /// Starts to write a run. `false`: the thread could not start, or has ended.
    pub(crate) fn spill(
        &mut self,
        inner: &Weak<Inner>,
        run: u64,
        shuffle: ShuffleId,
        batches: Vec<Batch>,
    ) -> bool {
        if self.jobs.is_none() {
            let (jobs, queue) = channel();
            let thread = DiskThread {
                inner: Weak::clone(inner),
                options: self.options.clone(),
                held: Arc::clone(&self.held),
                volume: Arc::clone(&self.volume),
                runs: HashMap::new(),
            };
            let started = thread::start("treadle-shuffle-disk", move || thread.run(&queue));
            if started.is_err() {
                return false;
            }
            self.jobs = Some(jobs);
        }
        self.put(Job::Spill {
            run,
            shuffle,
            batches,
        })
    }

    /// Starts to read a partition from a run. `false`: the thread has ended.
    pub(crate) fn load(&self, load: u64, run: u64, partition: u32) -> bool {
        let job = Job::Load {
            load,
            run,
            partition,
        };
        self.put(job)
    }

    /// Removes a run.
    pub(crate) fn remove(&self, run: u64) {
        self.put(Job::Drop(run));
    }

    fn put(&self, job: Job) -> bool {
        let jobs = self.jobs.as_ref();
        jobs.is_some_and(|jobs| jobs.send(job).is_ok())
    }

    /// Removes all files, and ends the thread.
    pub(crate) fn close(&mut self) {
        self.jobs = None;
        if let Some(volume) = self.volume.get() {
            volume.close();
        }
    }
}

struct DiskThread {
    inner: Weak<Inner>,
    options: Options,
    held: Arc<Held>,
    volume: Arc<OnceLock<Volume>>,
    runs: HashMap<u64, Run>,
}

/// A file, and where each partition begins in it.
struct Run {
    file: File,
    _counted: Filed,
    shuffle: ShuffleId,
    /// In ascending order.
    partitions: Vec<(u32, u64)>,
}

impl DiskThread {
    fn run(mut self, queue: &Receiver<Job>) {
        while let Ok(job) = queue.recv() {
            let done = caught(|| self.job(job));
            let Some(inner) = self.inner.upgrade() else {
                return;
            };
            if let Err(reason) = done {
                return inner.callbacks.panicked(reason.to_string());
            }
        }
    }

    fn job(&mut self, job: Job) {
        match job {
            Job::Spill {
                run,
                shuffle,
                batches,
            } => {
                let bytes: u64 = batches.iter().map(|(_, bytes, _)| bytes.len() as u64).sum();
                let written = self.timed(Activity::Spill, Some(shuffle), |disk| {
                    disk.write(shuffle, &batches).map(|run| (run, bytes))
                });
                // Mapped memory: this lets its owner use it again.
                drop(batches);
                let written = match written {
                    Ok(written) => {
                        self.runs.insert(run, written);
                        Ok(())
                    }
                    Err(error) => {
                        self.log(&format!("cannot write rows of a shuffle: {error}"));
                        Err(error.to_string().into())
                    }
                };
                self.say(|inner| {
                    inner.with(|machines| {
                        if written.is_ok() {
                            machines.stats.spilled += bytes;
                        }
                        let event = ServerEvent::Spilled { run, written };
                        machines.steps.push_back(Step::Server(event));
                    });
                });
            }
            Job::Load {
                load,
                run,
                partition,
            } => {
                let shuffle = self.runs.get(&run).map(|run| run.shuffle);
                let loaded = self.timed(Activity::Load, shuffle, |disk| {
                    let loaded = disk.read(run, partition)?;
                    let bytes = loaded.iter().map(|(piece, _)| piece.bytes).sum();
                    Ok::<_, String>((loaded, bytes))
                });
                if let Err(reason) = &loaded {
                    self.log(&format!("cannot read rows of a shuffle: {reason}"));
                }
                let loaded = loaded.ok();
                self.say(|inner| inner.with(|machines| machines.loaded(load, run, loaded)));
            }
            Job::Drop(run) => drop(self.runs.remove(&run)),
        }
    }

    /// Runs `act`, which also returns a number of bytes, and records it for the trace.
    fn timed<T, E>(
        &self,
        what: Activity,
        shuffle: Option<ShuffleId>,
        act: impl FnOnce(&Self) -> Result<(T, u64), E>,
    ) -> Result<T, E> {
        let inner = self.inner.upgrade();
        let watch = inner
            .as_ref()
            .map(|inner| Stopwatch::new(&*inner.callbacks));
        let (done, bytes) = act(self)?;
        if let (Some(watch), Some(shuffle)) = (watch, shuffle) {
            watch.done(what, shuffle, bytes);
        }
        Ok(done)
    }

    fn say(&self, act: impl FnOnce(&Arc<Inner>)) {
        if let Some(inner) = self.inner.upgrade() {
            act(&inner);
        }
    }

    fn log(&self, line: &str) {
        self.say(|inner| inner.log(line));
    }

    fn write(&self, shuffle: ShuffleId, batches: &[Batch]) -> Result<Run, VolumeError> {
        let volume = match self.volume.get() {
            Some(volume) => volume,
            None => {
                let opened = Volume::open(&self.options)?;
                self.volume.get_or_init(|| opened)
            }
        };
        let file = volume.create(LABEL)?;
        let mut staged = Vec::with_capacity(WRITE);
        let mut end = 0;
        let mut partitions: Vec<(u32, u64)> = Vec::new();
        for (partition, piece, rows) in in_order(batches) {
            if partitions.last().is_none_or(|(last, _)| *last != partition) {
                partitions.push((partition, end));
            }
            end += (ENTRY + rows.len()) as u64;
            staged.extend(encode(&piece));
            if staged.len() + rows.len() > WRITE {
                file.append(&[&staged, rows])?;
                staged.clear();
            } else {
                staged.extend_from_slice(rows);
            }
        }
        if !staged.is_empty() {
            file.append(&[&staged])?;
        }
        let counted = self.held.file(end);
        Ok(Run {
            file,
            _counted: counted,
            shuffle,
            partitions,
        })
    }

    fn read(&self, run: u64, partition: u32) -> Result<Loaded, String> {
        let Some(run) = self.runs.get(&run) else {
            return Err("the file is gone".into());
        };
        let Some(range) = run.range(partition) else {
            return Ok(Vec::new());
        };
        let length = usize::try_from(range.end - range.start).map_err(|error| error.to_string())?;
        let buffer = Pool::global().buffer(length);
        let mut buffer = buffer.map_err(|error| error.to_string())?;
        let read = run.file.read_at(range.start, buffer.as_mut_slice());
        read.map_err(|error| error.to_string())?;
        decode(self.held.charge(buffer.into_bytes())).ok_or_else(|| "the file is damaged".into())
    }
}

impl Run {
    /// The range of a partition; `None`: the run has no rows of it.
    fn range(&self, partition: u32) -> Option<Range<u64>> {
        let find = |(other, _): &(u32, u64)| other.cmp(&partition);
        let at = self.partitions.binary_search_by(find).ok()?;
        let end = match self.partitions.get(at + 1) {
            Some((_, end)) => *end,
            None => self.file.len(),
        };
        Some(self.partitions[at].1..end)
    }
}

/// All pieces with their partitions and rows, in the order in which they are written.
fn in_order(batches: &[Batch]) -> Vec<(u32, ReadPiece, &[u8])> {
    let mut all = Vec::new();
    for (batch, bytes, table) in batches {
        let Ok(header) = Header::decode(bytes) else {
            // Not reached: it was decoded when it came.
            continue;
        };
        let rows = &bytes[header.rows_offset() as usize..];
        all.extend(table.pieces().map(|piece| {
            let start = piece.offset as usize;
            let rows = &rows[start..start + piece.tally.bytes as usize];
            (piece.partition, read_piece(*batch, &piece), rows)
        }));
    }
    all.sort_unstable_by_key(|(partition, piece, _)| (*partition, piece.batch));
    all
}

/// The description of a piece that is sent to readers.
pub(crate) fn read_piece(batch: BatchId, piece: &treadle_shuffle::block::Piece) -> ReadPiece {
    ReadPiece {
        batch,
        rows: piece.tally.rows,
        bytes: piece.tally.bytes,
        digest: piece.tally.digest as u32,
    }
}

fn encode(piece: &ReadPiece) -> [u8; ENTRY] {
    let mut entry = [0; ENTRY];
    let BatchId {
        map,
        attempt,
        number,
    } = piece.batch;
    entry[0..4].copy_from_slice(&map.to_le_bytes());
    entry[4..8].copy_from_slice(&number.to_le_bytes());
    entry[8..16].copy_from_slice(&attempt.0.to_le_bytes());
    entry[16..24].copy_from_slice(&piece.rows.to_le_bytes());
    entry[24..32].copy_from_slice(&piece.bytes.to_le_bytes());
    entry[32..36].copy_from_slice(&piece.digest.to_le_bytes());
    entry
}

/// The pieces in a range of a file; `None` if the bytes are not whole pieces.
fn decode(mut bytes: Bytes) -> Option<Loaded> {
    let mut pieces = Vec::new();
    while !bytes.is_empty() {
        if bytes.len() < ENTRY {
            return None;
        }
        let entry = bytes.split_to(ENTRY);
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| entry[at + i]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| entry[at + i]));
        let piece = ReadPiece {
            batch: BatchId {
                map: word(0),
                attempt: AttemptId(long(8)),
                number: word(4),
            },
            rows: long(16),
            bytes: long(24),
            digest: word(32),
        };
        let length = usize::try_from(piece.bytes).ok()?;
        if length > bytes.len() {
            return None;
        }
        pieces.push((piece, bytes.split_to(length)));
    }
    Some(pieces)
}
