//! The directory of this process is kept while it lives: its manifest is renewed. Those of dead ones are removed.
//!
//! These are two tasks: a store that answers slowly, or has much to remove, must not keep this process from renewing.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use opendal::{Error, ErrorKind};
use tokio::sync::watch;
use tokio::time::timeout;

use super::{Parts, random};
use crate::lease::{self, Found, Sweep};
use crate::manifest::Manifest;

/// Manifests that are renewed at once, and those that are looked at.
const RENEWING: usize = 8;
const LOOKING: usize = 16;
/// Directories of processes that are looked at, and those that are removed, at most, in a lease.
const DIRECTORIES: usize = 1 << 14;
const REMOVED: usize = 1 << 8;
/// How often a manifest is renewed in a lease.
const RENEWALS: u32 = 4;
/// The name of a manifest.
const MANIFEST: &str = "manifest";
/// Bytes of a manifest, at most.
const LONG: u64 = 1 << 10;

impl Parts {
    pub(super) async fn remove_directory(&self, directory: &str) {
        let _ = self.operator.delete_with(directory).recursive(true).await;
    }

    pub(super) async fn renew(
        &self,
        directory: &str,
        lease: Duration,
        renewal: u64,
    ) -> Result<(), Error> {
        let text = Manifest { lease, renewal }.encode();
        let path = format!("{directory}{MANIFEST}");
        self.operator.write(&path, text).await.map(drop)
    }

    /// Renews the manifests of this process, until it is closed.
    pub(super) async fn renew_all(&self, mut said: watch::Receiver<Duration>) {
        for renewal in 1.. {
            let lease = *said.borrow_and_update();
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

    /// Removes what dead processes have left, until it is closed.
    pub(super) async fn sweep(&self, mut said: watch::Receiver<Duration>) {
        let clock = Instant::now();
        let mut sweep = Sweep::default();
        while !self.is_closed.load(Ordering::Acquire) {
            let lease = *said.borrow_and_update();
            let began = clock.elapsed();
            if let Ok(found) = self.directories(lease).await {
                let dead = sweep.look(found, lease, (began, clock.elapsed()));
                let dead = dead.into_iter().take(REMOVED);
                let removing = dead.map(|(directory, manifest)| async move {
                    // It may have been renewed or adopted since it was read: there may have been much to read.
                    let now = timeout(lease, self.manifest(&directory)).await;
                    let is_same = matches!(now, Ok(Ok(now)) if now == manifest);
                    if is_same && !self.folders().contains_key(&directory) {
                        self.remove_directory(&directory).await;
                    }
                });
                let removing = stream::iter(removing).buffer_unordered(RENEWING);
                removing.for_each(|()| async {}).await;
            }
            let _ = timeout(lease, said.changed()).await;
        }
    }

    /// The directories of other processes, with their manifests. Those of which that cannot be read within a lease
    /// are looked at next time.
    async fn directories(&self, lease: Duration) -> Result<Vec<Found>, Error> {
        let mut listed = self.operator.lister("/").await?;
        let mut others = Vec::new();
        while let Some(entry) = listed.try_next().await?
            && others.len() < DIRECTORIES
        {
            let directory = entry.path().to_string();
            let is_own = directory == self.directory || self.folders().contains_key(&directory);
            if lease::is_name(&directory) && !is_own {
                others.push(directory);
            }
        }
        let looking = others.into_iter().map(|directory| async move {
            let manifest = timeout(lease, self.manifest(&directory)).await;
            Some((directory, manifest.ok()?.ok()?))
        });
        let looking = stream::iter(looking).buffer_unordered(LOOKING);
        Ok(looking.filter_map(|found| async { found }).collect().await)
    }

    /// The manifest of a directory, if there is one.
    async fn manifest(&self, directory: &str) -> Result<Option<Manifest>, Error> {
        let path = format!("{directory}{MANIFEST}");
        let read = async {
            // Nobody's memory is for a file of any length.
            match self.operator.stat(&path).await?.content_length() {
                ..=LONG => self.operator.read(&path).await.map(Some),
                _ => Ok(None),
            }
        };
        match read.await {
            Ok(text) => Ok(text.and_then(|text| Manifest::decode(&text.to_vec()))),
            // Somebody else may remove it just now.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}
