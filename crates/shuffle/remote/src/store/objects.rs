//! What is in a store: objects that are written, objects that are whole, and directories of them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use opendal::Writer;

use super::{Store, random};
use crate::{PART, RemoteError, lease};

/// Parts of one range that are read at once, and parts of one object that are sent at once.
const RANGES: usize = 4;
const SENDING: usize = 4;

/// An object that is being written. If it is dropped, nothing is left of it.
pub struct Upload {
    store: Store,
    path: String,
    folder: Option<Folder>,
    /// `None`: it is finished.
    writer: Option<Writer>,
    part: Vec<u8>,
    length: u64,
}

impl Upload {
    pub(super) fn begin(store: &Store, folder: Option<&Folder>) -> Result<Self, RemoteError> {
        let parts = &store.0.parts;
        parts.unless_closed()?;
        let number = parts.numbers.fetch_add(1, Ordering::Relaxed);
        let directory = folder.map_or(&parts.directory, |folder| &folder.0.directory);
        let path = format!("{directory}{number}.shuffle");
        let writer = store.0.wait(async {
            let writer = parts.operator.writer_with(&path).concurrent(SENDING).await;
            writer.map_err(|error| parts.failed("write", &path, &error))
        })?;
        Ok(Self {
            store: store.clone(),
            path,
            folder: folder.cloned(),
            writer: Some(writer),
            part: Vec::new(),
            length: 0,
        })
    }

    /// Adds bytes. Whole parts are sent.
    ///
    /// # Errors
    /// [`RemoteError`]: the object cannot be written. It is to be dropped.
    pub fn append(&mut self, pieces: &[&[u8]]) -> Result<(), RemoteError> {
        for mut piece in pieces.iter().copied() {
            self.length += piece.len() as u64;
            while !piece.is_empty() {
                self.part.reserve_exact(PART - self.part.len());
                let (now, later) = piece.split_at(piece.len().min(PART - self.part.len()));
                self.part.extend_from_slice(now);
                piece = later;
                if self.part.len() == PART {
                    self.send()?;
                }
            }
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), RemoteError> {
        let (parts, path) = (&self.store.0.parts, &self.path);
        parts.unless_closed()?;
        let part = Bytes::from(std::mem::take(&mut self.part));
        let writer = self.writer.as_mut().ok_or(RemoteError::Closed)?;
        self.store.0.wait(async {
            let written = writer.write(part).await;
            written.map_err(|error| parts.failed("write", path, &error))
        })
    }

    /// Waits until the store has all of it.
    ///
    /// # Errors
    /// [`RemoteError`]: it has not. Nothing is left.
    pub fn finish(mut self) -> Result<Object, RemoteError> {
        if !self.part.is_empty() {
            self.send()?;
        }
        let (parts, path) = (&self.store.0.parts, &self.path);
        let writer = self.writer.as_mut().ok_or(RemoteError::Closed)?;
        let found = self.store.0.wait(async {
            let closed = writer.close().await;
            closed.map_err(|error| parts.failed("write", path, &error))?;
            let found = parts.operator.stat(path).await;
            let found = found.map_err(|error| parts.failed("look at", path, &error))?;
            Ok::<_, RemoteError>(found.content_length())
        })?;
        if found != self.length {
            return Err(RemoteError::Length {
                object: parts.named(&self.path),
                expected: self.length,
                found,
            });
        }
        // From now on it is the object's to remove.
        self.writer = None;
        Ok(Object {
            store: self.store.clone(),
            path: self.path.clone(),
            length: self.length,
            folder: self.folder.clone(),
            is_left: AtomicBool::new(false),
        })
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let Some(mut writer) = self.writer.take() else {
            return;
        };
        let parts = Arc::clone(&self.store.0.parts);
        let path = std::mem::take(&mut self.path);
        self.store.0.later(async move {
            // Parts that were sent would stay, and be paid for.
            let _ = writer.abort().await;
            parts.remove(path).await;
        });
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Upload({}, {} bytes)", self.path, self.length)
    }
}

/// An object that is whole. It is removed when this is dropped.
pub struct Object {
    store: Store,
    path: String,
    length: u64,
    folder: Option<Folder>,
    is_left: AtomicBool,
}

/// A directory whose objects may have owners in several processes. Each of them renews its manifest.
///
/// If it was made here, it is removed with its last clone and its last object, unless an object was left to others.
#[derive(Clone)]
pub struct Folder(Arc<Inside>);

struct Inside {
    store: Store,
    directory: String,
    is_own: bool,
    is_left: AtomicBool,
}

impl Folder {
    pub(super) fn new(store: &Store, directory: String, is_own: bool) -> Result<Self, RemoteError> {
        let parts = &store.0.parts;
        parts.unless_closed()?;
        let owners = {
            let mut folders = parts.folders();
            let owners = folders.entry(directory.clone()).or_default();
            *owners += 1;
            *owners
        };
        let folder = Self(Arc::new(Inside {
            store: store.clone(),
            directory,
            is_own,
            is_left: AtomicBool::new(!is_own),
        }));
        if owners > 1 {
            // It is renewed already.
            return Ok(folder);
        }
        let directory = &folder.0.directory;
        let lease = *store.0.lease.borrow();
        store.0.wait(async {
            // Another number than whoever else says something there.
            let renewed = parts.renew(directory, lease, random()).await;
            renewed.map_err(|error| parts.failed("write", directory, &error))
        })?;
        Ok(folder)
    }

    /// Begins to write an object.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub fn upload(&self) -> Result<Upload, RemoteError> {
        Upload::begin(&self.0.store, Some(self))
    }

    /// An object that is there. From now on it goes with this owner.
    ///
    /// # Errors
    /// [`RemoteError`]: it is not there, or not in this directory.
    pub fn object(&self, name: &str) -> Result<Object, RemoteError> {
        let parts = &self.0.store.0.parts;
        if lease::directory_of(name) != Some(&self.0.directory) {
            return Err(parts.no_object(name));
        }
        let length = self.0.store.0.wait(async {
            let found = parts.operator.stat(name).await;
            let found = found.map_err(|error| parts.failed("look at", name, &error))?;
            Ok(found.content_length())
        })?;
        Ok(Object {
            store: self.0.store.clone(),
            path: name.into(),
            length,
            folder: Some(self.clone()),
            is_left: AtomicBool::new(false),
        })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let parts = Arc::clone(&self.store.0.parts);
        let is_last = {
            let mut folders = parts.folders();
            let owners = folders.get_mut(&self.directory);
            let left = owners.map_or(0, |owners| {
                *owners -= 1;
                *owners
            });
            if left == 0 {
                folders.remove(&self.directory);
            }
            left == 0
        };
        let is_left = self.is_left.load(Ordering::Acquire);
        if self.is_own && is_last && !is_left && !parts.is_closed.load(Ordering::Acquire) {
            let directory = std::mem::take(&mut self.directory);
            self.store
                .0
                .later(async move { parts.remove_directory(&directory).await });
        }
    }
}

impl fmt::Debug for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Folder({})", self.0.directory)
    }
}

impl Object {
    /// Its bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// What it is called, also in other processes.
    pub fn name(&self) -> &str {
        &self.path
    }

    /// It stays when this is dropped: another process may have adopted it, and so its directory.
    pub fn leave(&self) {
        self.is_left.store(true, Ordering::Release);
        if let Some(folder) = &self.folder {
            folder.0.is_left.store(true, Ordering::Release);
        }
    }

    /// Reads from a position on as many bytes as there is place for.
    ///
    /// # Errors
    /// [`RemoteError`]: they cannot be read.
    pub fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), RemoteError> {
        let parts = &self.store.0.parts;
        parts.unless_closed()?;
        let wanted = at.checked_add(into.len() as u64);
        if wanted.is_none_or(|end| end > self.length) {
            return Err(RemoteError::Length {
                object: parts.named(&self.path),
                expected: at.saturating_add(into.len() as u64),
                found: self.length,
            });
        }
        let starts = (at..).step_by(PART);
        let ranges = starts.zip(into.chunks_mut(PART));
        let ranges = ranges.map(|(at, place)| parts.read(&self.path, at, place));
        let reading = stream::iter(ranges).buffer_unordered(RANGES);
        self.store.0.wait(reading.try_collect())
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        if self.is_left.load(Ordering::Acquire) {
            return;
        }
        let parts = Arc::clone(&self.store.0.parts);
        let path = std::mem::take(&mut self.path);
        self.store.0.later(async move { parts.remove(path).await });
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({}, {} bytes)", self.path, self.length)
    }
}
