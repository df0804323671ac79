//! Runs: files with batches that were in memory.
//!
//! A run is written partition by partition, each in the order of map, attempt and batch. Each piece has
//! an entry of [`ENTRY`] bytes before its rows. So a partition is one range of the file, and maps with
//! consecutive numbers are a range of that one. The beginnings of the ranges are kept in memory (`index`).

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use treadle_memory::Pool;
use treadle_reactor::thread::{self, caught};
use treadle_shuffle::block::{HEADER, Header, Table};
use treadle_shuffle::{AttemptId, BatchId, MapRange, Push, ReadPiece, ServerId, ShuffleId};
use treadle_volume::{File, Options, Volume, VolumeError};

use crate::held::{Filed, Held};
use crate::index::Index;
use crate::merged::in_order;
use crate::packing::unpacked;
use crate::read_rows::digest_of;
use crate::{Activity, Inner, Stopwatch};

/// The ending of the names of files.
const LABEL: &str = "shuffle";
/// Bytes before the rows of a piece: map 4, number 4, attempt 8, rows 8, bytes 8, digest 4, the bytes of a
/// compressed one 4, and a check of these 4.
const ENTRY: usize = 44;
/// Bytes that are written at once, since pieces may be small.
const WRITE: usize = 4 << 20;

/// How long the batches that were put together last are remembered.
const REMEMBERED: Duration = Duration::from_secs(2);

/// A partition, and the maps whose rows are read, if not those of all.
type Part = (u32, Option<MapRange>);

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
        part: Part,
    },
    /// Put a batch together again for another copy.
    Restore {
        run: u64,
        to: ServerId,
        push: Push,
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
                restored: None,
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
    pub(crate) fn load(&self, load: u64, run: u64, part: Part) -> bool {
        self.put(Job::Load { load, run, part })
    }

    /// Starts to put a batch of a run together again. `false`: the thread has ended.
    pub(crate) fn restore(&self, run: u64, to: ServerId, push: Push) -> bool {
        self.put(Job::Restore { run, to, push })
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
    /// The run whose batches were put together last, and the batches: the next ones are often of it, too.
    restored: Option<(u64, HashMap<BatchId, Bytes>)>,
}

/// A file, and where everything is in it.
struct Run {
    file: File,
    _counted: Filed,
    shuffle: ShuffleId,
    index: Index,
    /// The headers of its batches.
    headers: HashMap<BatchId, Header>,
}

impl DiskThread {
    fn run(mut self, queue: &Receiver<Job>) {
        loop {
            let job = match self.restored {
                None => queue.recv().ok(),
                Some(_) => match queue.recv_timeout(REMEMBERED) {
                    Err(RecvTimeoutError::Timeout) => {
                        self.restored = None;
                        continue;
                    }
                    job => job.ok(),
                },
            };
            let Some(job) = job else {
                return;
            };
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
                            machines.usage(shuffle).spilled += bytes;
                        }
                        machines.spilled(run, bytes, written);
                    });
                });
            }
            Job::Load { load, run, part } => {
                let shuffle = self.runs.get(&run).map(|run| run.shuffle);
                let loaded = self.timed(Activity::Load, shuffle, |disk| {
                    let loaded = disk.read(run, part)?;
                    let bytes = loaded.iter().map(|(piece, _)| piece.stored()).sum();
                    Ok::<_, String>((loaded, bytes))
                });
                if let Err(reason) = &loaded {
                    self.log(&format!("cannot read rows of a shuffle: {reason}"));
                }
                let loaded = loaded.ok();
                let pieces = loaded.iter().flatten();
                let bytes: u64 = pieces.map(|(piece, _)| piece.stored()).sum();
                self.say(|inner| {
                    inner.with(|machines| {
                        if let Some(shuffle) = shuffle {
                            machines.usage(shuffle).loaded += bytes;
                        }
                        machines.loaded(load, run, loaded);
                    });
                });
            }
            Job::Restore { run, to, push } => {
                let batch = self.restore(run, push.batch);
                if let Err(reason) = &batch {
                    self.log(&format!("cannot read rows of a shuffle: {reason}"));
                }
                let batch = batch.ok();
                self.say(|inner| {
                    // A server that has only been pushed to has no connection to another one yet, and no
                    // thread that would try again. It was not needed when the plan came.
                    let _ = inner.serve_connections();
                    inner.with(|machines| machines.restored(to, push, batch));
                });
            }
            Job::Drop(run) => {
                self.restored.take_if(|(other, _)| *other == run);
                drop(self.runs.remove(&run));
            }
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
            // Such as for another attempt, when a disk was full.
            inner.serve_timers();
        }
    }

    fn log(&self, line: &str) {
        if let Some(inner) = self.inner.upgrade() {
            inner.log(line);
        }
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
        let mut index = Index::default();
        for (partition, piece, rows) in in_order(batches) {
            index.add(partition, piece.batch.map, end);
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
            index,
            headers: headers(batches),
        })
    }

    fn read(&self, run: u64, (partition, maps): Part) -> Result<Loaded, String> {
        let Some(run) = self.runs.get(&run) else {
            return Err("the file is gone".into());
        };
        self.pieces(run, (partition, maps))
    }

    fn pieces(&self, run: &Run, (partition, maps): Part) -> Result<Loaded, String> {
        let Some(range) = run.index.range(partition, maps, run.file.len()) else {
            return Ok(Vec::new());
        };
        let length = usize::try_from(range.end - range.start).map_err(|error| error.to_string())?;
        let buffer = Pool::global().buffer(length);
        let mut buffer = buffer.map_err(|error| error.to_string())?;
        let read = run.file.read_at(range.start, buffer.as_mut_slice());
        read.map_err(|error| error.to_string())?;
        let mut loaded = decode(self.held.charge(buffer.into_bytes()))
            .ok_or_else(|| String::from("the file is damaged"))?;
        if let Some(maps) = maps {
            loaded.retain(|(piece, _)| maps.contains(piece.batch.map));
        }
        Ok(loaded)
    }
}

impl DiskThread {
    /// A batch as it was before it was written. All batches of its run are put together at once, since the
    /// pieces of each are everywhere in the file.
    fn restore(&mut self, run: u64, batch: BatchId) -> Result<Bytes, String> {
        if self
            .restored
            .as_ref()
            .is_none_or(|(other, _)| *other != run)
        {
            self.restored = None;
            let batches = self.rebuild(run)?;
            self.restored = Some((run, batches));
        }
        let batches = self.restored.as_mut().map(|(_, batches)| batches);
        // It is sent again only if its server was not reached.
        let batch = batches.and_then(|batches| batches.get(&batch).cloned());
        batch.ok_or_else(|| "a batch is not in its file".into())
    }

    fn rebuild(&self, run: u64) -> Result<HashMap<BatchId, Bytes>, String> {
        let Some(run) = self.runs.get(&run) else {
            return Err("the file is gone".into());
        };
        let mut building: HashMap<BatchId, Building> = HashMap::new();
        for (id, header) in &run.headers {
            building.insert(*id, Building::new(header)?);
        }
        for partition in run.index.partitions() {
            let loaded = self.pieces(run, (partition, None))?;
            self.compare(run, partition, &loaded)?;
            for (piece, rows) in loaded {
                let batch = building.get_mut(&piece.batch);
                let batch = batch.ok_or("the file has rows of a batch that it should not have")?;
                batch.add(partition, &piece, &rows)?;
            }
        }
        let batches = building.into_iter();
        let batches = batches.map(|(id, batch)| Ok((id, self.held.charge(batch.done()?))));
        batches.collect()
    }

    /// Compares rows with their digests: another copy would be as damaged as this one.
    fn compare(&self, run: &Run, partition: u32, loaded: &Loaded) -> Result<(), String> {
        let pieces: Vec<ReadPiece> = loaded.iter().map(|(piece, _)| *piece).collect();
        let rows = loaded.iter().map(|(_, rows)| rows.clone()).collect();
        let rows = unpacked(&pieces, rows, &self.held).map_err(|error| error.to_string())?;
        let differs = rows.iter().any(|(piece, rows)| {
            let header = run.headers.get(&piece.batch);
            let width = header.map_or(0, |header| header.width as usize);
            digest_of(piece, rows, partition, width) != piece.digest
        });
        match differs {
            true => Err("the file is damaged".into()),
            false => Ok(()),
        }
    }
}

/// A batch that is put together again: header, table, padding and rows.
struct Building {
    header: Header,
    bytes: Vec<u8>,
    /// Pieces, their rows and bytes, and the bytes that they take, so far.
    done: (usize, u64, u64, usize),
}

impl Building {
    fn new(header: &Header) -> Result<Self, String> {
        let length = usize::try_from(header.length()).map_err(|error| error.to_string())?;
        let mut bytes = Vec::new();
        let reserved = bytes.try_reserve_exact(length);
        reserved.map_err(|error| error.to_string())?;
        bytes.resize(length, 0);
        bytes[..HEADER].copy_from_slice(&header.encode());
        Ok(Self {
            header: *header,
            bytes,
            done: (0, 0, 0, 0),
        })
    }

    /// Adds the next piece. They come in the order of their partitions.
    fn add(&mut self, partition: u32, piece: &ReadPiece, rows: &[u8]) -> Result<(), String> {
        let (count, rows_before, bytes_before, offset) = self.done;
        let (all_rows, all_bytes) = (rows_before + piece.rows, bytes_before + piece.bytes);
        let end = offset + rows.len();
        let start = self.header.rows_offset() as usize + offset;
        let place = self.bytes.get_mut(start..start + rows.len());
        if count >= self.header.pieces as usize || place.is_none() {
            return Err("the file has more rows of a batch than it had".into());
        }
        if let Some(place) = place {
            place.copy_from_slice(rows);
        }
        let mut entry = Vec::with_capacity(20);
        entry.extend(partition.to_le_bytes());
        entry.extend((all_rows as u32).to_le_bytes());
        entry.extend(piece.digest.to_le_bytes());
        if self.header.width == 0 {
            entry.extend((all_bytes as u32).to_le_bytes());
        }
        if self.header.packed > 0 {
            entry.extend((end as u32).to_le_bytes());
        }
        let at = HEADER + count * self.header.entry();
        self.bytes[at..at + entry.len()].copy_from_slice(&entry);
        self.done = (count + 1, all_rows, all_bytes, end);
        Ok(())
    }

    fn done(self) -> Result<Bytes, String> {
        let (count, rows, bytes, end) = self.done;
        let header = &self.header;
        let is_whole = (count as u64, rows, bytes, end as u64)
            == (
                header.pieces.into(),
                header.tally.rows,
                header.tally.bytes,
                header.stored(),
            );
        match is_whole {
            true => Ok(self.bytes.into()),
            false => Err("the file has fewer rows of a batch than it had".into()),
        }
    }
}

/// The headers of batches.
fn headers(batches: &[Batch]) -> HashMap<BatchId, Header> {
    let headers = batches.iter();
    let headers = headers.filter_map(|(id, bytes, _)| Some((*id, Header::decode(bytes).ok()?)));
    headers.collect()
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
    entry[36..40].copy_from_slice(&piece.packed.to_le_bytes());
    let check = check(&entry);
    entry[40..].copy_from_slice(&check.to_le_bytes());
    entry
}

/// Differs where a bit of an entry has flipped. The digest is of the rows alone: rows of another map or
/// attempt would be left out without an error.
fn check(entry: &[u8; ENTRY]) -> u32 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let (words, _) = entry[..40].as_chunks();
    let words = words.iter().copied().map(u64::from_le_bytes);
    let sum = words.fold(0u64, |sum, word| {
        (sum.rotate_left(23) ^ word).wrapping_mul(FACTOR)
    });
    (sum ^ (sum >> 32)) as u32
}

/// The pieces in a range of a file; `None` if the bytes are not whole pieces, or an entry is damaged.
fn decode(mut bytes: Bytes) -> Option<Loaded> {
    let mut pieces = Vec::new();
    while !bytes.is_empty() {
        let entry: [u8; ENTRY] = *bytes.first_chunk()?;
        bytes.advance(ENTRY);
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
            packed: word(36),
        };
        let length = usize::try_from(piece.stored()).ok()?;
        if length > bytes.len() || word(40) != check(&entry) {
            return None;
        }
        pieces.push((piece, bytes.split_to(length)));
    }
    Some(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_that_has_flipped_in_an_entry_is_noticed() {
        let piece = ReadPiece {
            batch: BatchId {
                map: 3,
                attempt: AttemptId(1 << 40 | 7),
                number: 2,
            },
            rows: 2,
            bytes: 16,
            digest: 0xdead_beef,
            packed: 0,
        };
        let written = [&encode(&piece)[..], &[1; 16]].concat();
        let read = decode(written.clone().into()).unwrap();
        assert_eq!(read, [(piece, Bytes::from(vec![1; 16]))]);
        for bit in 0..8 * ENTRY {
            let mut damaged = written.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(damaged.into()).is_none(), "bit {bit}");
        }
    }
}
