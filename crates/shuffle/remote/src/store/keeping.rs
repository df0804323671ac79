//! The directory of this process is kept while it lives: its manifest is renewed. Those of dead ones are removed.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use opendal::{Error, ErrorKind};
use tokio::sync::watch;
use tokio::time::timeout;

use super::{Parts, random};
use crate::lease::{self, Sweep};
use crate::manifest::Manifest;

/// Manifests that are renewed at once.
const RENEWING: usize = 8;
/// Directories of processes that are looked at, at most.
const DIRECTORIES: usize = 1 << 14;
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

    /// Renews the manifest, and removes what dead processes have left, until it is closed.
    pub(super) async fn keep(&self, mut said: watch::Receiver<Duration>) {
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
    pub(super) async fn directories(&self) -> Result<Vec<(String, Option<Manifest>)>, Error> {
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
