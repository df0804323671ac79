//! The directory of a store's files, and what dead processes left beside it.
//!
//! A directory is named `treadle-<pid>-<random>` and has a file `lock`, on which its process holds
//! a `flock` as long as it lives: process ids repeat and differ between containers, a lock does
//! neither. It is made under a name that ends in `.new` and renamed once the lock is held, so
//! nobody ever sees it unlocked. Only names of exactly this form are ever touched.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};

const PREFIX: &str = "treadle-";
const UNFINISHED: &str = ".new";
const LOCK: &str = "lock";
/// Making a directory takes far less than this: one that still has its first name was left.
const UNFINISHED_FOR: Duration = Duration::from_secs(3600);

/// A directory that only this store writes to.
pub(crate) struct Directory {
    path: PathBuf,
    _lock: File,
}

impl Directory {
    /// Removes what dead processes left in `base`, and makes a new directory there, which only
    /// this user may enter.
    pub(crate) fn create(base: &Path) -> io::Result<Self> {
        fs::create_dir_all(base)?;
        remove_stale(base);
        let pid = std::process::id();
        let random = RandomState::new().hash_one(pid);
        let path = base.join(format!("{PREFIX}{pid}-{random:016x}"));
        let unfinished = base.join(format!("{PREFIX}{pid}-{random:016x}{UNFINISHED}"));
        DirBuilder::new().mode(0o700).create(&unfinished)?;
        let locked = lock_in(&unfinished, true).and_then(|lock| {
            fs::rename(&unfinished, &path)?;
            Ok(lock)
        });
        match locked {
            Ok(lock) => Ok(Directory { path, _lock: lock }),
            Err(error) => {
                let _ = fs::remove_dir_all(&unfinished);
                Err(error)
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the directory with all that is in it.
    pub(crate) fn remove(&self) {
        // Nobody is left to tell, and the next store here removes what remains.
        let _ = fs::remove_dir_all(&self.path);
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
        // Held until the directory is gone, so that two stores do not remove it together. Without
        // the file somebody was interrupted while making or removing the directory.
        let _lock = match lock_in(&path, false) {
            Ok(lock) => Some(lock),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(_) => continue,
        };
        let _ = fs::remove_dir_all(&path);
    }
}

/// Whether `name` ends in `.new`, if it is that of a store's directory.
fn unfinished(name: &str) -> Option<bool> {
    let (pid, rest) = name.strip_prefix(PREFIX)?.split_once('-')?;
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
