//! Rows of a map, which Java writes into memory of this side without a call for each.
//!
//! There are three regions: a partition's number for each row (4 bytes), where each row begins and the last one ends (8
//! bytes, from the first row on), and the rows themselves. Java keeps how much of each it has written. Rows that Spark has
//! no memory for go to files, which are gone with the arena.

use std::alloc::{Layout, alloc, dealloc, realloc};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use treadle_shuffle_client::source::{
    Allocate, Arena as Gathered, Column, Failure, Field, Format, Input, Integer, Partitions, Runs,
    Source, Transfer, Wanted, gather,
};

use crate::thrown::Thrown;

/// Bytes of a partition's number.
const NUMBER: usize = 4;
const ALIGNMENT: usize = 8;
/// Bytes that are copied at once from a directory that is full.
const PIECE: usize = 1 << 20;
pub(crate) const REGIONS: usize = 3;

/// Bytes that Java has written to each region since it was spilled last.
pub(crate) type Used = [usize; REGIONS];

/// An arena. Java writes to it from one thread at a time.
#[derive(Default)]
pub(crate) struct Arena(Mutex<[Region; REGIONS]>);

#[derive(Default)]
struct Region {
    memory: Option<Memory>,
    /// What was spilled, and how many bytes that are.
    spilled: Option<File>,
    length: usize,
    /// Where it may be.
    directories: Vec<PathBuf>,
}

struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory is this value's own, and belongs to no thread.
unsafe impl Send for Memory {}

impl Arena {
    /// Gives a region at least so many bytes of memory. Returns where it is: it may have moved, with what it had.
    ///
    /// # Errors
    /// There is no such region, or no memory.
    pub(crate) fn grow(&self, region: usize, capacity: usize) -> Result<NonNull<u8>, Thrown> {
        let mut regions = self.lock();
        let regions = regions.get_mut(region);
        let region = regions.ok_or_else(|| Thrown::Argument(format!("region {region}")))?;
        let grown = match region.memory.take() {
            Some(memory) => memory.grown(capacity),
            None => Memory::new(capacity),
        };
        let memory = grown.ok_or_else(|| {
            Thrown::Argument(format!(
                "no memory for {capacity} bytes of rows: set spark.executor.memoryOverhead"
            ))
        })?;
        let start = memory.start;
        region.memory = Some(memory);
        Ok(start)
    }

    /// Writes what is there to files in one of these directories, which have no names, and frees its memory. Returns the
    /// bytes. A directory that is full, or fails, is followed by the next one.
    ///
    /// # Errors
    /// The files can be written in none of them.
    pub(crate) fn spill(&self, used: Used, directories: &[PathBuf]) -> Result<usize, Thrown> {
        let mut regions = self.lock();
        for (region, used) in regions.iter_mut().zip(used) {
            region.directories = directories.into();
            region.spill(used)?;
        }
        for region in regions.iter_mut() {
            region.memory = None;
        }
        Ok(used.iter().sum())
    }

    /// Calls `act` with the rows.
    ///
    /// # Errors
    /// What `act` returns; files that cannot be read; regions that do not belong together.
    pub(crate) fn with<T>(
        &self,
        used: Used,
        partitions: u32,
        act: impl FnOnce(&Rows<'_>) -> Result<T, Thrown>,
    ) -> Result<T, Thrown> {
        let mut regions = self.lock();
        let mut views = Vec::with_capacity(REGIONS);
        for (region, used) in regions.iter_mut().zip(used) {
            views.push(region.view(used)?);
        }
        let [places, offsets, data] = &views[..] else {
            unreachable!("there are three regions")
        };
        let (places, offsets, data) = (places.bytes(), offsets.bytes(), data.bytes());
        let rows = places.len() / NUMBER;
        let read = Partitions::read(places, NUMBER, Integer::U32, rows, partitions);
        let rows = Rows {
            places,
            offsets,
            count: partitions,
            format: Format::new(vec![Field::Bytes]),
            columns: [Column::Bytes {
                offsets,
                data,
                nulls: None,
            }],
            partitions: read.map_err(|error| Thrown::Argument(error.to_string()))?,
        };
        act(&rows)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, [Region; REGIONS]> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Region {
    /// The first bytes of its memory.
    ///
    /// # Errors
    /// Java says that it has written more than there is.
    fn written(memory: Option<&Memory>, used: usize) -> Result<&[u8], Thrown> {
        let capacity = memory.map_or(0, |memory| memory.layout.size());
        match memory {
            _ if used > capacity => Err(Thrown::Argument(format!(
                "{used} bytes in {capacity} bytes of memory"
            ))),
            Some(memory) if used > 0 => {
                // SAFETY: Java has written so many, and writes no more of them.
                Ok(unsafe { std::slice::from_raw_parts(memory.start.as_ptr(), used) })
            }
            _ => Ok(&[]),
        }
    }

    fn spill(&mut self, used: usize) -> Result<(), Thrown> {
        // Without memory, what Java has written is in the file already: a push after an error says it once more.
        let used = self.memory.as_ref().map_or(0, |_| used);
        let written = Self::written(self.memory.as_ref(), used)?;
        // What was spilled before stays whatever happens: it is nowhere else.
        let mut failed = match &self.spilled {
            Some(file) => match file.write_all_at(written, self.length as u64) {
                Ok(()) => {
                    self.length += used;
                    return Ok(());
                }
                Err(error) => error,
            },
            None => io::Error::other("there is no directory for it"),
        };
        for directory in &self.directories {
            match self.moved(written, directory) {
                Ok(file) => {
                    self.spilled = Some(file);
                    self.length += used;
                    return Ok(());
                }
                Err(error) => failed = error,
            }
        }
        let places = &self.directories;
        Err(Thrown::io(format!("spilling rows of a map to {places:?}"))(
            failed,
        ))
    }

    /// A file in a directory with what was spilled before, and more.
    fn moved(&self, more: &[u8], directory: &Path) -> io::Result<File> {
        let file = unnamed(directory)?;
        if let Some(before) = &self.spilled {
            let mut piece = vec![0; PIECE.min(self.length)];
            for at in (0..self.length).step_by(PIECE) {
                let piece = &mut piece[..PIECE.min(self.length - at)];
                before.read_exact_at(piece, at as u64)?;
                file.write_all_at(piece, at as u64)?;
            }
        }
        file.write_all_at(more, self.length as u64)?;
        Ok(file)
    }

    /// All of it. What was spilled is mapped, together with what was not.
    fn view(&mut self, used: usize) -> Result<View<'_>, Thrown> {
        if self.spilled.is_none() {
            return Self::written(self.memory.as_ref(), used).map(View::Memory);
        }
        self.spill(used)?;
        self.memory = None;
        match &self.spilled {
            Some(file) if self.length > 0 => Mapped::new(file, self.length)
                .map(View::Mapped)
                .map_err(|error| Thrown::io("mapping rows that were spilled")(error.into())),
            _ => Ok(View::Memory(&[])),
        }
    }
}

/// A file without a name.
fn unnamed(directory: &Path) -> Result<File, Errno> {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(directory, flags | OFlags::TMPFILE, mode) {
        Ok(file) => Ok(file.into()),
        // Not all file systems have that. Kernels before it took the directory for what is to be written.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            let number = LAST.fetch_add(1, Ordering::Relaxed);
            let path = directory.join(format!("treadle-{}-{number}", std::process::id()));
            let file = rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
            rustix::fs::unlink(&path)?;
            Ok(file.into())
        }
        Err(error) => Err(error),
    }
}

impl Memory {
    fn new(capacity: usize) -> Option<Self> {
        let layout = Layout::from_size_align(capacity.max(1), ALIGNMENT).ok()?;
        // SAFETY: the layout has at least one byte.
        let start = NonNull::new(unsafe { alloc(layout) })?;
        Some(Self { start, layout })
    }

    fn grown(self, capacity: usize) -> Option<Self> {
        if capacity <= self.layout.size() {
            return Some(self);
        }
        let layout = Layout::from_size_align(capacity, ALIGNMENT).ok()?;
        // SAFETY: it was allocated with this layout, and the new size is valid for the alignment.
        let moved = unsafe { realloc(self.start.as_ptr(), self.layout, layout.size()) };
        let start = NonNull::new(moved)?;
        // The old memory is the new one's now.
        std::mem::forget(self);
        Some(Self { start, layout })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// The bytes of a region.
enum View<'a> {
    Memory(&'a [u8]),
    Mapped(Mapped),
}

impl View<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Memory(bytes) => bytes,
            Self::Mapped(mapped) => mapped.bytes(),
        }
    }
}

struct Mapped {
    start: NonNull<u8>,
    length: usize,
}

impl Mapped {
    fn new(file: &File, length: usize) -> Result<Self, Errno> {
        // SAFETY: the kernel chooses the place. Nobody else has the file, so that it does not change.
        let start = unsafe {
            mmap(
                null_mut(),
                length,
                ProtFlags::READ,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { start, length })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: so many bytes are mapped.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// Rows as the plane takes them.
pub(crate) struct Rows<'a> {
    places: &'a [u8],
    offsets: &'a [u8],
    count: u32,
    format: Format,
    columns: [Column<'a>; 1],
    partitions: Partitions,
}

impl Rows<'_> {
    /// Bytes of the rows of each partition.
    pub(crate) fn sizes(&self) -> Vec<u64> {
        let mut sizes = vec![0; self.count as usize];
        let places = self.places.as_chunks::<NUMBER>().0.iter();
        let offsets = self.offsets.as_chunks::<8>().0.iter();
        let mut offsets = offsets.map(|offset| u64::from_ne_bytes(*offset));
        let mut before = offsets.next().unwrap_or(0);
        for (place, end) in places.zip(offsets) {
            sizes[u32::from_ne_bytes(*place) as usize] += end - before;
            before = end;
        }
        sizes
    }
}

impl Source for Rows<'_> {
    fn gather(
        &self,
        transfer: Transfer,
        groups: &[Wanted],
        allocate: &Allocate<'_>,
    ) -> Result<Vec<Gathered>, Failure> {
        let input = Input {
            format: &self.format,
            columns: &self.columns,
            partitions: &self.partitions,
            note: &[],
        };
        let gathered = gather(input, transfer, groups, allocate);
        gathered.map_err(|error| Failure::Source(Box::new(error)))
    }

    fn count_in(&self, partitions: &mut dyn Iterator<Item = &Runs>) -> usize {
        self.partitions.count_in(partitions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes to a region as Java does.
    fn write(arena: &Arena, region: usize, at: usize, bytes: &[u8]) {
        let start = arena.grow(region, at + bytes.len()).unwrap();
        // SAFETY: there is so much memory.
        unsafe {
            start
                .as_ptr()
                .add(at)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    fn count(arena: &Arena, used: Used, partition: u64) -> usize {
        let counted = arena.with(used, 2, |rows| {
            Ok(rows.count_in(&mut [Runs::one(partition)].iter()))
        });
        counted.unwrap()
    }

    #[test]
    fn what_moves_keeps_what_it_had_and_what_is_spilled_too() {
        let directory = tempfile::tempdir().unwrap();
        let arena = Arena::default();
        write(&arena, 0, 0, &0_u32.to_ne_bytes());
        write(&arena, 1, 0, &[0; 8]);
        write(&arena, 1, 8, &3_i64.to_ne_bytes());
        write(&arena, 2, 0, b"one");
        assert_eq!(count(&arena, [4, 16, 3], 0), 1);
        let directories = [directory.path().into()];
        assert_eq!(arena.spill([4, 16, 3], &directories).unwrap(), 23);
        write(&arena, 0, 0, &1_u32.to_ne_bytes());
        write(&arena, 1, 0, &6_i64.to_ne_bytes());
        write(&arena, 2, 0, b"two");
        assert_eq!(count(&arena, [4, 8, 3], 1), 1);
        // Once more, as after an error: Java says the same, and there is nothing new.
        for used in [[4, 8, 3], [0, 0, 0]] {
            assert_eq!(count(&arena, used, 0), 1);
            let sizes = arena.with(used, 2, |rows| Ok(rows.sizes())).unwrap();
            assert_eq!(sizes, [3, 3]);
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn more_than_there_is_memory_for_and_regions_that_are_none_are_refused() {
        let arena = Arena::default();
        arena.grow(2, 4).unwrap();
        assert!(arena.with([0, 0, 5], 1, |_| Ok(())).is_err());
        assert!(arena.grow(3, 1).is_err());
        assert!(arena.spill([1, 0, 0], &["/nowhere".into()]).is_err());
        assert!(arena.spill([0, 0, 0], &[]).is_err());
    }

    #[test]
    fn a_directory_that_takes_nothing_is_followed_by_the_next_one_with_what_was_spilled_before() {
        let directory = tempfile::tempdir().unwrap();
        let directories = ["/nowhere".into(), directory.path().into()];
        let arena = Arena::default();
        write(&arena, 0, 0, &0_u32.to_ne_bytes());
        write(&arena, 1, 0, &[0; 8]);
        write(&arena, 1, 8, &3_i64.to_ne_bytes());
        write(&arena, 2, 0, b"one");
        arena.spill([4, 16, 3], &directories).unwrap();
        // What is there can be read, and the disk takes no more.
        let path = directory.path().join("full");
        for region in arena.lock().iter_mut() {
            let mut text = vec![0; region.length];
            let file = region.spilled.as_ref().unwrap();
            file.read_exact_at(&mut text, 0).unwrap();
            std::fs::write(&path, text).unwrap();
            region.spilled = Some(File::open(&path).unwrap());
            std::fs::remove_file(&path).unwrap();
        }
        write(&arena, 0, 0, &1_u32.to_ne_bytes());
        write(&arena, 1, 0, &6_i64.to_ne_bytes());
        write(&arena, 2, 0, b"two");
        arena.spill([4, 8, 3], &directories).unwrap();
        let used = [0, 0, 0];
        assert_eq!((count(&arena, used, 0), count(&arena, used, 1)), (1, 1));
        let sizes = arena.with(used, 2, |rows| Ok(rows.sizes())).unwrap();
        assert_eq!(sizes, [3, 3]);
    }
}
