//! A connection to a store: objects are written in parts, read in ranges, and removed.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes};
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use opendal::layers::{HttpClientLayer, RetryLayer, TimeoutLayer};
use opendal::raw::HttpClient;
use opendal::services::{Fs, HdfsNative, S3};
use opendal::{Error, ErrorKind, Operator, Writer};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use crate::lease::{self, Sweep};
use crate::location::Kind;
use crate::manifest::Manifest;
use crate::{Location, PART, RemoteError};

/// Threads that move bytes.
const THREADS: usize = 2;
/// How long a request may take, also one that moves a part.
const WAIT: Duration = Duration::from_secs(30);
/// How long closing may take.
const CLOSING: Duration = Duration::from_secs(30);
/// How often a request is tried again, and the pauses between: the first one, and the longest.
const RETRIES: usize = 3;
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(2);
/// Parts of one range that are read at once, and parts of one object that are sent at once.
const RANGES: usize = 4;
const SENDING: usize = 4;
/// Manifests that are renewed at once.
const RENEWING: usize = 8;
/// Objects that are removed at once.
const REMOVING: usize = 4;
/// The unit of the room for reading.
const UNIT: usize = 1 << 10;
/// Directories of processes that are looked at, at most.
const DIRECTORIES: usize = 1 << 14;
/// How often a manifest is renewed in a lease.
const RENEWALS: u32 = 4;
/// The name of a manifest.
const MANIFEST: &str = "manifest";
/// Bytes of a manifest, at most.
const LONG: u64 = 1 << 10;

/// A connection to a store, with a directory of this process in it. Clones are the same.
#[derive(Clone)]
pub struct Store(Arc<Shared>);

/// What threads share. Tasks of the runtime hold only what is in `parts`: the runtime cannot end in one of them.
struct Shared {
    runtime: Option<Runtime>,
    parts: Arc<Parts>,
    /// How long others wait for the manifest to change.
    lease: watch::Sender<Duration>,
}

struct Parts {
    operator: Operator,
    location: Location,
    /// Of this process. It ends in a slash.
    directory: String,
    numbers: AtomicU64,
    /// Directories beside that one which are renewed, and are not removed: how many owners each has here.
    folders: Mutex<HashMap<String, usize>>,
    /// How often a read is tried again here. The others are by `operator`.
    retries: usize,
    reading: Semaphore,
    removing: Semaphore,
    is_closed: AtomicBool,
}

impl Store {
    /// Connects, makes a directory, and from now on removes those of processes that have died. Others take this
    /// process for dead when it has not renewed its manifest for two leases. Parts that are read at once have so
    /// many bytes together, at most, and one alone may always be read.
    ///
    /// # Errors
    /// [`RemoteError::Failed`]: the store cannot be reached, or refuses.
    pub fn open(location: &Location, lease: Duration, reading: u64) -> Result<Self, RemoteError> {
        // There may be two providers of ciphers in this process: then `rustls` asks which.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("treadle-remote")
            .enable_all()
            .build()
            .map_err(|error| failed("use", location, &error.to_string()))?;
        let retries = match location.kind {
            Kind::S3 { .. } => 0,
            // Their errors do not say whether they pass.
            Kind::Hdfs { .. } | Kind::File { .. } => RETRIES,
        };
        let operator = {
            let _entered = runtime.enter();
            // The client of HTTP panics where there are no certificates of authorities.
            caught(|| operator(location)).map_err(|reason| failed("use", location, &reason))?
        };
        let parts = Arc::new(Parts {
            operator,
            location: location.clone(),
            directory: lease::name(std::process::id(), random()),
            numbers: AtomicU64::new(0),
            folders: Mutex::default(),
            retries,
            reading: Semaphore::new((reading as usize).max(PART) / UNIT),
            removing: Semaphore::new(REMOVING),
            is_closed: AtomicBool::new(false),
        });
        runtime.block_on(whole(async {
            parts
                .renew(&parts.directory, lease, 0)
                .await
                .map_err(|error| failed("use", location, &said(&error)))
        }))?;
        let keeping = Arc::clone(&parts);
        let (lease, said) = watch::channel(lease);
        runtime.spawn(async move { keeping.keep(said).await });
        Ok(Self(Arc::new(Shared {
            runtime: Some(runtime),
            parts,
            lease,
        })))
    }

    /// Says from now on that the lease is another one.
    pub fn set_lease(&self, lease: Duration) {
        self.0.lease.send_replace(lease);
    }

    /// Makes a directory of its own for objects that another process may adopt.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub fn folder(&self) -> Result<Folder, RemoteError> {
        let name = lease::name(std::process::id(), random());
        Folder::new(self, name, true)
    }

    /// The directory of an object that another process has written. It lives as long as this is there, also if that
    /// process has died.
    ///
    /// # Errors
    /// [`RemoteError`], also where it is no name of an object.
    pub fn adopt(&self, object: &str) -> Result<Folder, RemoteError> {
        match lease::directory_of(object) {
            Some(directory) => Folder::new(self, directory.into(), false),
            None => Err(self.0.parts.no_object(object)),
        }
    }

    /// Begins to write an object.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub fn upload(&self) -> Result<Upload, RemoteError> {
        self.upload_to(None)
    }

    fn upload_to(&self, folder: Option<&Folder>) -> Result<Upload, RemoteError> {
        let parts = &self.0.parts;
        parts.unless_closed()?;
        let number = parts.numbers.fetch_add(1, Ordering::Relaxed);
        let directory = folder.map_or(&parts.directory, |folder| &folder.0.directory);
        let path = format!("{directory}{number}.shuffle");
        let writer = self.0.wait(async {
            let writer = parts.operator.writer_with(&path).concurrent(SENDING).await;
            writer.map_err(|error| parts.failed("write", &path, &error))
        })?;
        Ok(Upload {
            store: self.clone(),
            path,
            folder: folder.cloned(),
            writer: Some(writer),
            part: Vec::new(),
            length: 0,
        })
    }

    /// Removes everything of this process, and ends. It waits for half a minute, at most: what is left then is
    /// removed by other servers.
    pub fn close(&self) {
        self.0.close();
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({})", self.0.parts.location)
    }
}

impl Shared {
    fn close(&self) {
        let parts = &self.parts;
        if parts.is_closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let _ = self.wait(async {
            // Those with rows that others may adopt are renewed no more.
            let removed = timeout(CLOSING, parts.remove_directory(&parts.directory)).await;
            removed.map_err(|_| RemoteError::Closed)
        });
    }

    /// Runs something in this thread, until it has ended.
    fn wait<T>(
        &self,
        what: impl Future<Output = Result<T, RemoteError>>,
    ) -> Result<T, RemoteError> {
        let runtime = self.runtime.as_ref().ok_or(RemoteError::Closed)?;
        runtime.block_on(whole(what))
    }

    /// Runs something that nobody waits for.
    fn later(&self, what: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(what);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.close();
        if let Some(runtime) = self.runtime.take() {
            // Without waiting for requests that nobody needs any more.
            runtime.shutdown_background();
        }
    }
}

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
    fn new(store: &Store, directory: String, is_own: bool) -> Result<Self, RemoteError> {
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
        self.0.store.upload_to(Some(self))
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

impl Parts {
    fn unless_closed(&self) -> Result<(), RemoteError> {
        match self.is_closed.load(Ordering::Acquire) {
            true => Err(RemoteError::Closed),
            false => Ok(()),
        }
    }

    fn folders(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.folders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn no_object(&self, name: &str) -> RemoteError {
        RemoteError::Failed {
            action: "adopt",
            object: self.named(name),
            reason: "it is no object of a shuffle server".into(),
        }
    }

    /// What an object is called, for people.
    fn named(&self, path: &str) -> String {
        format!("{path} at {}", self.location)
    }

    fn failed(&self, action: &'static str, path: &str, error: &Error) -> RemoteError {
        RemoteError::Failed {
            action,
            object: self.named(path),
            reason: said(error),
        }
    }

    async fn read(&self, path: &str, at: u64, place: &mut [u8]) -> Result<(), RemoteError> {
        let units = u32::try_from(place.len().div_ceil(UNIT)).unwrap_or(u32::MAX);
        let room = self.reading.acquire_many(units).await;
        let _room = room.map_err(|_| RemoteError::Closed)?;
        let range = at..at + place.len() as u64;
        let mut tries = 0;
        loop {
            match self.operator.read_with(path).range(range.clone()).await {
                Ok(mut found) if found.len() == place.len() => {
                    found.copy_to_slice(place);
                    return Ok(());
                }
                Ok(found) => {
                    return Err(RemoteError::Length {
                        object: self.named(path),
                        expected: range.end,
                        found: at + found.len() as u64,
                    });
                }
                Err(error) if tries < self.retries && error.kind() != ErrorKind::NotFound => {
                    sleep(PAUSE * (1 << tries)).await;
                    tries += 1;
                }
                Err(error) => return Err(self.failed("read", path, &error)),
            }
        }
    }

    /// Removes an object. If that fails, it stays until the directory goes.
    async fn remove(&self, path: String) {
        if let Ok(_turn) = self.removing.acquire().await
            && !self.is_closed.load(Ordering::Acquire)
        {
            let _ = self.operator.delete(&path).await;
        }
    }

    async fn remove_directory(&self, directory: &str) {
        let _ = self.operator.delete_with(directory).recursive(true).await;
    }

    async fn renew(&self, directory: &str, lease: Duration, renewal: u64) -> Result<(), Error> {
        let text = Manifest { lease, renewal }.encode();
        let path = format!("{directory}{MANIFEST}");
        self.operator.write(&path, text).await.map(drop)
    }

    /// Renews the manifest, and removes what dead processes have left, until it is closed.
    async fn keep(&self, mut said: watch::Receiver<Duration>) {
        let began = Instant::now();
        let mut sweep = Sweep::default();
        for renewal in 1.. {
            let lease = *said.borrow_and_update();
            if renewal % u64::from(RENEWALS) == 1
                && let Ok(found) = self.directories().await
            {
                for dead in sweep.look(found, lease, began.elapsed()) {
                    // It may have been adopted meanwhile.
                    if !self.folders().contains_key(&dead) {
                        self.remove_directory(&dead).await;
                    }
                }
            }
            // Another lease is said at once.
            let _ = timeout(lease / RENEWALS, said.changed()).await;
            if self.is_closed.load(Ordering::Acquire) {
                return;
            }
            // If it fails, the next one may do.
            let lease = *said.borrow();
            let _ = self.renew(&self.directory, lease, renewal).await;
            let folders: Vec<String> = self.folders().keys().cloned().collect();
            let renewing = folders.into_iter().map(|folder| async move {
                let _ = self.renew(&folder, lease, random()).await;
            });
            let renewing = stream::iter(renewing).buffer_unordered(RENEWING);
            renewing.for_each(|()| async {}).await;
        }
    }

    /// The directories of other processes, with their manifests.
    async fn directories(&self) -> Result<Vec<(String, Option<Manifest>)>, Error> {
        let mut listed = self.operator.lister("/").await?;
        let mut found = Vec::new();
        while let Some(entry) = listed.try_next().await?
            && found.len() < DIRECTORIES
        {
            let directory = entry.path().to_string();
            let is_own = directory == self.directory || self.folders().contains_key(&directory);
            if !lease::is_name(&directory) || is_own {
                continue;
            }
            let path = format!("{directory}{MANIFEST}");
            let manifest = match self.operator.stat(&path).await {
                // Nobody's memory is for a file of any length.
                Ok(about) if about.content_length() <= LONG => {
                    let text = self.operator.read(&path).await?.to_vec();
                    Manifest::decode(&text)
                }
                Ok(_) => None,
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
            found.push((directory, manifest));
        }
        Ok(found)
    }
}

fn random() -> u64 {
    RandomState::new().hash_one(Instant::now())
}

/// The client of a store.
fn operator(location: &Location) -> Result<Operator, String> {
    let timeouts = TimeoutLayer::new().with_timeout(WAIT).with_io_timeout(WAIT);
    let built = match &location.kind {
        Kind::S3 {
            bucket,
            prefix,
            endpoint,
            region,
        } => {
            let says = |names: &[&str]| names.iter().find_map(|name| std::env::var(name).ok());
            let region = region
                .clone()
                .or_else(|| says(&["AWS_REGION", "AWS_DEFAULT_REGION"]));
            let endpoint = endpoint.clone();
            let endpoint = endpoint.or_else(|| says(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]));
            let mut s3 = S3::default().bucket(bucket).root(&format!("/{prefix}"));
            s3 = s3.region(region.as_deref().unwrap_or("us-east-1"));
            if let Some(endpoint) = endpoint {
                s3 = s3.endpoint(&endpoint);
            }
            let retries = RetryLayer::new()
                .with_max_times(RETRIES)
                .with_min_delay(PAUSE)
                .with_max_delay(LONGEST)
                .with_jitter();
            // Connections belong to a runtime, and each store has its own.
            let client = reqwest::Client::builder().connect_timeout(WAIT).build();
            let client = HttpClient::with(client.map_err(|error| error.to_string())?);
            Operator::new(s3).map(|built| {
                let built = built.layer(HttpClientLayer::new(client)).layer(timeouts);
                built.layer(retries).finish()
            })
        }
        // What was written of a stream cannot be written again: the whole object is, by who wanted it.
        Kind::Hdfs { name_node, path } => {
            let hdfs = HdfsNative::default().name_node(name_node).root(path);
            Operator::new(hdfs).map(|built| built.layer(timeouts).finish())
        }
        Kind::File { path } => {
            Operator::new(Fs::default().root(path)).map(|built| built.layer(timeouts).finish())
        }
    };
    built.map_err(|error| said(&error))
}

/// What a store said, for people: never an address with a signature, or what came with it.
fn said(error: &Error) -> String {
    let mut text = format!("{}: {}", error.kind(), error.message());
    let mut cause = std::error::Error::source(error);
    while let Some(deeper) = cause.and_then(std::error::Error::source) {
        cause = Some(deeper);
    }
    if let Some(cause) = cause {
        text = format!("{text}: {cause}");
    }
    // A store may repeat the names of keys.
    let secrets = [
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "AWS_SESSION_TOKEN",
    ];
    let secrets = secrets.iter().filter_map(|name| std::env::var(name).ok());
    secrets
        .filter(|secret| !secret.is_empty())
        .fold(text, |text, secret| text.replace(&secret, "…"))
}

fn failed(action: &'static str, location: &Location, reason: &str) -> RemoteError {
    RemoteError::Failed {
        action,
        object: format!("the remote store {location}"),
        reason: reason.into(),
    }
}

/// What `act` returns, or what it panicked with.
fn caught<T>(act: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let done = catch_unwind(AssertUnwindSafe(act));
    done.unwrap_or_else(|panic| Err(panicked(&*panic)))
}

/// The same for what takes time: the client of a store panics where that returns what it does not expect.
async fn whole<T>(what: impl Future<Output = Result<T, RemoteError>>) -> Result<T, RemoteError> {
    let done = AssertUnwindSafe(what).catch_unwind().await;
    done.unwrap_or_else(|panic| {
        Err(RemoteError::Failed {
            action: "use",
            object: "the remote store".into(),
            reason: panicked(&*panic),
        })
    })
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("its client failed: {}", text.unwrap_or("without a reason"))
}
