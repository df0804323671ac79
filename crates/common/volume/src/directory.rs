//! The directory of a process's files, and what dead processes left beside it.
//!
//! A directory is named `treadle-<kind>-<pid>-<random>`, a volume's without the kind, and has a file
//! `lock`, on which its process holds a `flock` as long as it lives: process ids repeat and differ
//! between containers, a lock does neither, and a forked child does not keep it. It is made under a
//! name that ends in `.new` and renamed once the lock is held, so nobody ever sees it unlocked. Only
//! names of exactly this form are ever touched.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};
use treadle_memory::{give_back, withhold};

const PREFIX: &str = "treadle-";
const UNFINISHED: &str = ".new";
const LOCK: &str = "lock";
/// Making a directory takes far less than this: one that still has its first name was left.
const UNFINISHED_FOR: Duration = Duration::from_secs(3600);

/// What a directory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The files of a volume.
    Volume,
    /// The files of a worker.
    Worker,
    /// The files of a cluster, among them its workers' directories.
    Cluster,
    /// The files of a scheduler.
    Scheduler,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Volume, Self::Worker, Self::Cluster, Self::Scheduler];

    fn prefix(self) -> &'static str {
        match self {
            Self::Volume => PREFIX,
            Self::Worker => "treadle-worker-",
            Self::Cluster => "treadle-cluster-",
            Self::Scheduler => "treadle-scheduler-",
        }
    }
}

/// A directory of this process, which goes when that is gone: at once, or with the next one that is
/// made beside it.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    lock: File,
}

impl Directory {
    /// Removes what dead processes left in `base`, and makes a new directory there, which only
    /// this user may enter.
    ///
    /// # Errors
    /// Of the file system.
    pub fn create(base: &Path, kind: Kind) -> io::Result<Self> {
        fs::create_dir_all(base)?;
        remove_stale(base);
        let pid = std::process::id();
        let random = RandomState::new().hash_one(pid);
        let name = format!("{}{pid}-{random:016x}", kind.prefix());
        let path = base.join(&name);
        let unfinished = base.join(format!("{name}{UNFINISHED}"));
        DirBuilder::new().mode(0o700).create(&unfinished)?;
        let locked = lock_in(&unfinished, true).and_then(|lock| {
            fs::rename(&unfinished, &path)?;
            Ok(lock)
        });
        match locked {
            Ok(lock) => {
                withhold(lock.as_raw_fd());
                Ok(Directory { path, lock })
            }
            Err(error) => {
                let _ = fs::remove_dir_all(&unfinished);
                Err(error)
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the directory with all that is in it.
    pub fn remove(&self) {
        remove_directory(&self.path);
    }
}

/// Removes the directory of this process at `path`, while others may still write there.
pub fn remove_directory(path: &Path) {
    // Under another name nothing is added to it.
    let name = path.file_name().and_then(|name| name.to_str());
    let doomed = name.and_then(|name| {
        let (name, _) = name.rsplit_once('-')?;
        let random = RandomState::new().hash_one(name);
        // Of the same form: should this process end now, the next one finds it.
        Some(path.with_file_name(format!("{name}-{random:016x}")))
    });
    let path = match doomed {
        Some(doomed) if fs::rename(path, &doomed).is_ok() => doomed,
        _ => path.to_owned(),
    };
    // Nobody is left to tell, and whoever comes next removes what remains.
    let _ = fs::remove_dir_all(path);
}

impl Drop for Directory {
    fn drop(&mut self) {
        give_back(self.lock.as_raw_fd());
    }
}

/// Takes the lock of a directory; an error if another process holds it.
fn lock_in(directory: &Path, create: bool) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(create)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(directory.join(LOCK))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// Removes this user's directories whose lock nobody holds. What cannot be removed stays.
fn remove_stale(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(unfinished) = name.to_str().and_then(unfinished) else {
            continue;
        };
        let path = entry.path();
        let Ok(found) = fs::symlink_metadata(&path) else {
            continue;
        };
        if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
            continue;
        }
        let age = found.modified().ok().and_then(|at| at.elapsed().ok());
        if unfinished && age.is_none_or(|age| age < UNFINISHED_FOR) {
            continue;
        }
        // Held until the directory is gone, so that two processes do not remove it together. Without
        // the file somebody was interrupted while making or removing the directory.
        let _lock = match lock_in(&path, false) {
            Ok(lock) => Some(lock),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(_) => continue,
        };
        if !has_used(&path, DEPTH) {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// How deep below a cluster's directory those of its workers are.
const DEPTH: usize = 2;

/// Whether a process has a directory inside this one: when the process of a cluster is gone, its
/// workers have a moment to end.
fn has_used(directory: &Path, depth: usize) -> bool {
    let Ok(entries) = fs::read_dir(directory) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let path = entry.path();
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            return false;
        }
        let is_one = entry.file_name().to_str().and_then(unfinished).is_some();
        let used = || {
            let locked = lock_in(&path, false);
            locked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        (is_one && used()) || (depth > 1 && has_used(&path, depth - 1))
    })
}

/// Whether `name` ends in `.new`, if it is that of a directory of ours.
fn unfinished(name: &str) -> Option<bool> {
    let of_kind = |kind: Kind| unfinished_after(name.strip_prefix(kind.prefix())?);
    Kind::ALL.into_iter().find_map(of_kind)
}

fn unfinished_after(rest: &str) -> Option<bool> {
    let (pid, rest) = rest.split_once('-')?;
    let (random, unfinished) = match rest.strip_suffix(UNFINISHED) {
        Some(random) => (random, true),
        None => (rest, false),
    };
    let ours = !pid.is_empty()
        && pid.bytes().all(|byte| byte.is_ascii_digit())
        && random.len() == 16
        && random.bytes().all(|byte| byte.is_ascii_hexdigit());
    ours.then_some(unfinished)
}
