//! Writes the history.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tracing::warn;
use treadle_compress::{Codec, Packer};
use treadle_sight::history::{MAGIC, put_block};
use treadle_sight::{End, Event, Sparse};

use super::thread::About;

/// What it is of is written again after so many nanoseconds.
const AGAIN: u64 = 60_000_000_000;
/// Bytes that are left for the end.
const END: u64 = 64;

/// A history, as far as it is written.
pub(in crate::sight) struct Writer {
    path: PathBuf,
    file: File,
    sparse: Sparse,
    waiting: Vec<u8>,
    written: u64,
    longest: u64,
    /// Nothing more is written.
    end: Option<End>,
    /// When the last event was added.
    now: u64,
    /// What the history is of, and when that was written last: the block that has it may be damaged.
    began: Option<(Event<'static>, u64)>,
    packer: Packer,
    packed: Vec<u8>,
}

impl Writer {
    /// Makes a new file; in a directory, one that is named by the time.
    ///
    /// # Errors
    /// When it cannot be made, or is there.
    pub(in crate::sight) fn create(path: &Path, about: &About, longest: u64) -> io::Result<Self> {
        let path = match path.is_dir() {
            true => {
                let id: String = about
                    .id
                    .chars()
                    .filter(char::is_ascii_alphanumeric)
                    .collect();
                let id = &id[id.len().saturating_sub(8)..];
                path.join(format!("treadle-{}-{id}.history", about.unix / 1_000_000))
            }
            false => path.to_owned(),
        };
        // Keys and errors are for whoever runs the cluster.
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        let file = file.map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
        Ok(Self::of(path, file, longest))
    }

    fn of(path: PathBuf, file: File, longest: u64) -> Self {
        Self {
            path,
            file,
            sparse: Sparse::default(),
            waiting: Vec::new(),
            written: 0,
            longest,
            end: None,
            now: 0,
            began: None,
            packer: Packer::new(Codec::Zstd),
            packed: MAGIC.to_vec(),
        }
    }

    /// Bytes of it, as many as it may have, and how it ended, if it did.
    pub(in crate::sight) fn state(&self) -> (u64, u64, Option<&End>) {
        let bytes = self.written + self.unwritten();
        (bytes, self.longest, self.end.as_ref())
    }

    /// What happened, to be written with the next [`flush`](Self::flush).
    pub(in crate::sight) fn add(&mut self, event: &Event<'_>, now: u64) {
        if self.end.is_some() {
            return;
        }
        self.now = now;
        let Some(event) = self.sparse.need(event, now) else {
            return;
        };
        let before = self.waiting.len();
        if let Some((began, written)) = &mut self.began
            && now >= written.saturating_add(AGAIN)
        {
            *written = now;
            put_block(now, began, &mut self.waiting);
        }
        if let Some(began) = as_began(&event) {
            self.began = Some((began, now));
        }
        put_block(now, &event, &mut self.waiting);
        if self.written + self.unwritten() + END > self.longest {
            self.waiting.truncate(before);
            let (path, longest) = (self.path.display(), self.longest);
            warn!(
                target: treadle_log::SCHEDULER,
                "the history at {path} has {longest} bytes, as many as it may: it ends here"
            );
            self.put_end(End::Full(self.longest));
        }
    }

    fn put_end(&mut self, end: End) {
        put_block(self.now, &Event::Ended(end.clone()), &mut self.waiting);
        self.end = Some(end);
    }

    /// Bytes that wait, as if they were not packed.
    fn unwritten(&self) -> u64 {
        (self.packed.len() + self.waiting.len()) as u64
    }

    /// Packs what waits, if it is enough, and that makes it smaller.
    fn pack(&mut self) {
        let mut bytes = Vec::new();
        if self.packer.pack(&self.waiting, &mut bytes) {
            let event = Event::Packed {
                length: self.waiting.len() as u64,
                bytes: &bytes,
            };
            put_block(self.now, &event, &mut self.packed);
        } else {
            self.packed.extend_from_slice(&self.waiting);
        }
        self.waiting.clear();
        self.waiting.shrink_to(1 << 20);
    }

    /// Writes what waits. If that is not possible, it ends with what was written before.
    pub(in crate::sight) fn flush(&mut self) {
        self.pack();
        let Err(error) = self.file.write_all(&self.packed) else {
            self.written += self.packed.len() as u64;
            self.packed.clear();
            self.packed.shrink_to(1 << 20);
            return;
        };
        let path = self.path.display();
        warn!(target: treadle_log::SCHEDULER, "the history at {path} ends: {error}");
        self.packed = Vec::new();
        self.put_end(End::Failed(error.to_string()));
        // Where a part of a block was written, there may be room for the end instead.
        let _ = self.write_end();
        self.waiting = Vec::new();
    }

    fn write_end(&mut self) -> io::Result<()> {
        use std::io::{Seek, SeekFrom};
        self.file.set_len(self.written)?;
        self.file.seek(SeekFrom::Start(self.written))?;
        self.file.write_all(&self.waiting)?;
        self.written += self.waiting.len() as u64;
        Ok(())
    }

    /// Its scheduler ends.
    pub(in crate::sight) fn close(&mut self) {
        if self.end.is_none() {
            self.put_end(End::Closed);
        }
        if self.unwritten() > 0 {
            self.flush();
        }
    }
}

/// A copy of what a history is of, if an event says that.
fn as_began(event: &Event<'_>) -> Option<Event<'static>> {
    let Event::Began {
        address,
        id,
        version,
        unix,
        clock,
    } = event
    else {
        return None;
    };
    Some(Event::Began {
        address: address.clone(),
        id: id.clone(),
        version: version.clone(),
        unix: *unix,
        clock: *clock,
    })
}

#[cfg(test)]
mod tests {
    use treadle_sight::history::Blocks;
    use treadle_sight::{Batch, Beside, Head, Kind, Record, Sight};
    use treadle_types::WorkerId;

    use super::*;
    use crate::sight::past::{read_blocks, read_file};

    fn event() -> Event<'static> {
        Event::Submitted(vec![("inc".into(), 5)])
    }

    fn read(path: &Path) -> (usize, Option<End>) {
        let bytes = std::fs::read(path).unwrap();
        let mut blocks = Blocks::new(&bytes);
        let mut sight = Sight::new(1 << 20);
        let mut count = 0;
        for (now, event) in blocks.by_ref().map(Result::unwrap) {
            sight.handle(&event, now).unwrap();
            count += 1;
        }
        assert_eq!(blocks.unread(), 0);
        (count, sight.end().cloned())
    }

    fn writer(name: &str, longest: u64) -> (PathBuf, Writer) {
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let about = About {
            address: String::new(),
            id: String::new(),
            unix: 0,
        };
        let writer = Writer::create(&path, &about, longest).unwrap();
        (path, writer)
    }

    #[test]
    fn it_ends_with_its_scheduler() {
        let (path, mut writer) = writer("treadle-closed", 1 << 20);
        writer.add(&event(), 1);
        writer.flush();
        assert_eq!(read(&path), (1, None));
        writer.close();
        assert_eq!(read(&path), (2, Some(End::Closed)));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn it_is_no_longer_than_it_may_be_and_says_so() {
        let (path, mut writer) = writer("treadle-full", 1_000);
        for now in 0..200 {
            writer.add(&event(), now);
            if now % 7 == 0 {
                writer.flush();
            }
        }
        let (bytes, limit, end) = writer.state();
        assert!((900..=1_000).contains(&bytes), "{bytes}");
        assert_eq!((limit, end.cloned()), (1_000, Some(End::Full(1_000))));
        writer.close();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), bytes);
        assert_eq!(read(&path).1, Some(End::Full(1_000)));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_is_much_is_packed_and_read_as_it_was() {
        let (path, mut writer) = writer("treadle-packed", 1 << 20);
        for now in 0..1_000 {
            writer.add(&event(), now);
        }
        writer.close();
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.len() < 10_000, "{}", bytes.len());
        let read = |bytes: &[u8]| {
            let (mut sight, mut counts) = (Sight::new(1 << 20), (0, 0));
            let unread = read_blocks(Blocks::new(bytes), &mut sight, &mut counts);
            (counts, unread, sight.end().cloned())
        };
        assert_eq!(read(&bytes), ((1_001, 0), 0, Some(End::Closed)));
        // Damaged, or of a length that it does not have: counted, and nothing else.
        let mut damaged = bytes.clone();
        *damaged.last_mut().unwrap() ^= 1;
        let (counts, unread, end) = read(&damaged);
        assert_eq!((counts, end), ((0, 0), None));
        assert!(unread > 0);
        for length in [0, 1, 1 << 20, 1 << 40, u64::MAX] {
            let mut file = MAGIC.to_vec();
            let bytes = &[2, 5, 0, 0, 0, 1, 2, 3, 4, 5];
            put_block(0, &Event::Packed { length, bytes }, &mut file);
            assert_eq!(read(&file), ((0, 1), 0, None), "{length}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn times_are_known_though_the_first_block_is_damaged() {
        const SECOND: u64 = 1_000_000_000;
        let (path, mut writer) = writer("treadle-began", 1 << 20);
        let began = Event::Began {
            address: "treadle://here".into(),
            id: "1".into(),
            version: "0".into(),
            unix: 0,
            clock: 1_000 * SECOND,
        };
        let record = Record {
            began: 1_001 * SECOND,
            read: 1_001 * SECOND,
            computed: 1_003 * SECOND,
            ended: 1_003 * SECOND,
            object: 1 << 32,
            bytes: 0,
            group: 1,
            lane: 0,
            kind: Kind::Task,
            failed: false,
        };
        let beside = Beside {
            names: vec![(1, "inc")],
            ..Beside::default()
        };
        let bytes = Batch::encode(Head::default(), &beside, [record].into_iter());
        let batch = Event::Batch {
            worker: WorkerId(1),
            bytes: &bytes,
        };
        writer.add(&began, 0);
        writer.flush();
        let first = writer.written as usize;
        writer.add(&batch, 4 * SECOND);
        writer.flush();
        writer.add(&event(), 61 * SECOND);
        writer.add(&event(), 62 * SECOND);
        writer.close();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[first - 1] ^= 1;
        let (mut sight, mut counts) = (Sight::new(1 << 20), (0, 0));
        assert_eq!(
            read_file(&bytes, &mut sight, &mut counts) as usize,
            first - MAGIC.len()
        );
        // The batch, what it is of again, two events, and the end.
        assert_eq!(counts, (5, 0));
        let view = sight.overview(0, false);
        assert_eq!(view.cluster.address, "treadle://here");
        let group = view.groups.iter().find(|group| group.runs > 0).unwrap();
        assert_eq!((group.from, group.to), (SECOND, 3 * SECOND));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn it_ends_where_it_cannot_be_written() {
        let file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut writer = Writer::of("/dev/full".into(), file, 1 << 20);
        writer.add(&event(), 1);
        writer.flush();
        let (bytes, _, end) = writer.state();
        assert!(matches!(end, Some(End::Failed(_))), "{end:?}");
        assert_eq!(bytes, 0);
        writer.add(&event(), 2);
        writer.close();
        assert_eq!(writer.state().0, 0);
    }
}
