//! The volume: its directories, and where a file is made.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use treadle_guards::InvariantError;

use crate::books::{Books, Place};
use crate::device::device_of;
use crate::limited::LimitedDisk;
use crate::{
    Device, Directory, DirectoryKind, DirectoryStats, Disk, File, LocalDisk, Mode, Opened, Options,
    Stats, VolumeError,
};

/// Files in several directories under one quota. See the [crate](crate) for the model.
///
/// Clones are the same volume. Its directories go with the last clone and the last file.
#[derive(Clone)]
pub struct Volume(Arc<Shared>);

impl Volume {
    /// A volume without files, in new directories of its own. What dead processes left beside those
    /// is removed.
    ///
    /// # Errors
    /// [`VolumeError::NoDirectory`]; [`VolumeError::Full`] or [`VolumeError::Disk`] if one of the
    /// directories cannot be made: whoever named it is to know.
    pub fn open(options: &Options) -> Result<Self, VolumeError> {
        match options.limits.is_empty() {
            true => Volume::on_disk(options, Arc::new(LocalDisk)),
            false => Volume::on_disk(options, Arc::new(LimitedDisk::new(&options.limits))),
        }
    }

    /// The same with files that `disk` makes, writes and reads. The directories are real ones.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn on_disk(options: &Options, disk: Arc<dyn Disk>) -> Result<Self, VolumeError> {
        if options.directories.is_empty() {
            return Err(VolumeError::NoDirectory);
        }
        // With those that are there already, should one fail.
        let mut shared = Shared {
            disk,
            directories: Vec::with_capacity(options.directories.len()),
            books: Mutex::new(Books::new(
                options.directories.len(),
                options.quota,
                options.retry,
            )),
            numbers: AtomicU64::new(0),
            pid: std::process::id(),
            limited: options
                .limits
                .iter()
                .map(|limit| limit.directory.clone())
                .collect(),
        };
        for base in &options.directories {
            let made = Directory::create(base, DirectoryKind::Volume);
            let named = |error| VolumeError::disk("make a directory in", base.clone(), error);
            shared.directories.push(made.map_err(named)?);
        }
        Ok(Volume(Arc::new(shared)))
    }

    /// Makes an empty file. Its name ends in `.label`.
    ///
    /// # Errors
    /// [`VolumeError::Full`], [`VolumeError::Disk`]: the last directory's, where all fail.
    pub fn create(&self, label: &'static str) -> Result<File, VolumeError> {
        self.0.make(label, |_, _| Ok(()))
    }

    /// Makes a file of these pieces, which follow one another; with `sync`, until it is on the
    /// device. If one directory fails, the file is made in another.
    ///
    /// # Errors
    /// [`VolumeError::Quota`], and as [`Volume::create`]. No file is left.
    pub fn write(
        &self,
        label: &'static str,
        pieces: &[&[u8]],
        sync: bool,
    ) -> Result<File, VolumeError> {
        self.0.make(label, |file, opened| {
            file.grow(opened, pieces, sync).map(drop)
        })
    }

    /// Its own directories, in the order of the options.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        self.0.directories.iter().map(Directory::path)
    }

    /// The devices that have its directories.
    pub fn devices(&self) -> Vec<Device> {
        let mut known = Vec::new();
        let mut devices: Vec<Device> = Vec::new();
        for (number, path) in self.directories().enumerate() {
            let limited = self.0.limited.iter().position(|one| path.starts_with(one));
            let (device, is_rotational) = device_of(path);
            // Without an answer each is one.
            let unknown = device.is_none().then_some(number);
            let name = (limited, unknown, device.filter(|_| limited.is_none()));
            match known.iter().position(|other| *other == name) {
                Some(at) => devices[at].directories.push(number),
                None => {
                    known.push(name);
                    devices.push(Device {
                        directories: vec![number],
                        is_rotational: is_rotational && limited.is_none(),
                    });
                }
            }
        }
        devices
    }

    /// How many of the new files each directory is to have, compared with the others, in the order of the
    /// options; as long as nothing else is said, all the same. At least 1.
    pub fn weigh(&self, weights: &[u32]) {
        self.0.books().weigh(weights);
    }

    /// Where it stands.
    pub fn stats(&self) -> Stats {
        let books = self.0.books();
        let directory = |(place, path): (&Place, &Path)| DirectoryStats {
            path: path.to_owned(),
            used: place.used,
            files: place.files,
            failures: place.failures,
            error: place.fault.as_ref().map(|fault| fault.reason.clone()),
        };
        let places = books.places().iter().zip(self.directories());
        Stats {
            used: books.used(),
            quota: books.quota(),
            files: books.places().iter().map(|place| place.files).sum(),
            remove_failures: books.remove_failures,
            directories: places.map(directory).collect(),
        }
    }

    /// Removes all directories with what is in them, whoever uses files there: only what is mapped
    /// can still be read.
    pub fn close(&self) {
        self.0.close();
    }

    /// Verifies the volume's books.
    ///
    /// # Errors
    /// [`InvariantError`]: they do not agree, a bug of this crate.
    pub fn check(&self) -> Result<(), InvariantError> {
        self.0.books().check()
    }
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Volume").field(&self.stats()).finish()
    }
}

/// What a volume and its files share.
pub(crate) struct Shared {
    pub(crate) disk: Arc<dyn Disk>,
    directories: Vec<Directory>,
    books: Mutex<Books>,
    numbers: AtomicU64,
    /// Directories that are devices of their own in a test.
    limited: Vec<PathBuf>,
    /// A forked child has copies of everything, and no right to the files.
    pid: u32,
}

impl Shared {
    /// Nothing waits while this is held.
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a file in one directory after the other, until it is filled in one.
    fn make(
        self: &Arc<Self>,
        label: &'static str,
        fill: impl Fn(&File, &dyn Opened) -> Result<(), VolumeError>,
    ) -> Result<File, VolumeError> {
        let mut untried: Vec<usize> = (0..self.directories.len()).collect();
        loop {
            let place = self.next(&untried);
            let made = self.make_in(place, label, &fill);
            match made {
                Err(error) if error.of_the_disk().is_some() && untried.len() > 1 => {
                    untried.retain(|&other| other != place);
                }
                made => return made,
            }
        }
    }

    /// Which directory is next for a new file.
    fn next(&self, untried: &[usize]) -> usize {
        let best = self.books().best(untried, Instant::now());
        if let [only] = best[..] {
            return only;
        }
        // Who cannot even say how much room there is will fail, and that is no reason to fail here.
        let room = |place: usize| self.disk.room(self.directories[place].path()).unwrap_or(0);
        let rooms: Vec<_> = best.into_iter().map(|at| (at, room(at))).collect();
        let next = self.books().take_turn(&rooms);
        next.expect("a volume has directories")
    }

    fn make_in(
        self: &Arc<Self>,
        place: usize,
        label: &'static str,
        fill: &impl Fn(&File, &dyn Opened) -> Result<(), VolumeError>,
    ) -> Result<File, VolumeError> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let path = self.directories[place]
            .path()
            .join(format!("{number}.{label}"));
        let opened = self.disk.open(&path, Mode::New).map_err(|error| {
            let error = VolumeError::disk("make", path.clone(), error);
            self.failed(place, &error);
            error
        })?;
        // Before there is a `File`: dropping one takes it out of the books.
        self.books().made(place);
        let file = File::new(Arc::clone(self), place, path);
        fill(&file, &*opened)?;
        Ok(file)
    }

    /// A file is about to grow.
    pub(crate) fn charge(&self, place: usize, file: &Path, needed: u64) -> Result<(), VolumeError> {
        let charged = self.books().charge(place, needed);
        charged.map_err(|over| VolumeError::Quota {
            file: file.to_owned(),
            needed,
            used: over.used,
            quota: over.quota,
        })
    }

    /// It was not to grow after all.
    pub(crate) fn give_back(&self, place: usize, bytes: u64) {
        self.books().give_back(place, bytes);
    }

    /// Something went wrong in a directory.
    pub(crate) fn failed(&self, place: usize, error: &VolumeError) {
        if let Some(reason) = error.of_the_disk() {
            let reason = reason.to_string();
            self.books().failed(place, reason, Instant::now());
        }
    }

    /// Something was written in a directory.
    pub(crate) fn works(&self, place: usize) {
        self.books().works(place);
    }

    /// Removes a file that nobody can use any more.
    pub(crate) fn remove(&self, place: usize, file: &Path, length: u64) {
        if self.pid != std::process::id() {
            return;
        }
        let closed = self.books().closed;
        let is_gone = closed
            || match self.disk.remove(file) {
                Ok(()) => true,
                Err(error) => error.kind() == std::io::ErrorKind::NotFound,
            };
        let mut books = self.books();
        if is_gone {
            books.removed(place, length);
        } else {
            books.remove_failures += u64::from(!books.closed);
        }
    }

    fn close(&self) {
        if self.pid != std::process::id() {
            return;
        }
        let before = std::mem::replace(&mut self.books().closed, true);
        if !before {
            self.directories.iter().for_each(Directory::remove);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.close();
    }
}
