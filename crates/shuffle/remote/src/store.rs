//! A connection to a store: objects are written in parts, read in ranges, and removed.

mod client;
mod keeping;
mod objects;

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Buf as _;
use opendal::{Error, ErrorKind, Operator};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use crate::location::Kind;
use crate::{Location, PART, RemoteError, lease};
use client::{caught, failed, operator, said, whole};
pub use objects::{Folder, Object, Upload};

/// Threads that move bytes.
const THREADS: usize = 2;
/// How long closing may take.
const CLOSING: Duration = Duration::from_secs(30);
/// How often a request is tried again, and the first pause before.
const RETRIES: usize = 3;
const PAUSE: Duration = Duration::from_millis(200);
/// Objects that are removed at once.
const REMOVING: usize = 4;
/// The unit of the room for reading.
const UNIT: usize = 1 << 10;

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
        let (lease, said) = watch::channel(lease);
        let (renewing, sweeping) = (Arc::clone(&parts), Arc::clone(&parts));
        let also_said = said.clone();
        runtime.spawn(async move { renewing.renew_all(said).await });
        runtime.spawn(async move { sweeping.sweep(also_said).await });
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
        Upload::begin(self, None)
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
}

fn random() -> u64 {
    RandomState::new().hash_one(Instant::now())
}
