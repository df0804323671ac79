//! Where runs are written: to local disks, or to the remote store.

use core::time::Duration;

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

use crate::config::{Config, Guard, pause};

/// Where a run is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Storage {
    /// A file in one of the server's directories.
    Local,
    /// An object of the remote store.
    Remote,
}

/// Whether a server has a remote store, and what for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Remote {
    /// There is none.
    #[default]
    None,
    /// For what local disks do not take.
    WhenFull,
    /// For all runs. Local disks take what it does not.
    First,
}

/// A storage that failed is tried again after the pause between tries times so many, if another one takes what it
/// does not.
const ELSEWHERE: u32 = 1 << 10;

/// How writing to a storage went last.
#[derive(Debug, Default)]
struct Health {
    /// Writes that failed in a row, and why the last one did.
    failures: u32,
    failure: Option<Arc<str>>,
    /// When the next one is due.
    retry_at: Duration,
}

/// The storages of a server.
#[derive(Debug, Default)]
pub(super) struct Storages {
    remote: Remote,
    /// Of local disks.
    local: Health,
    /// Of the remote store.
    store: Health,
}

impl Storages {
    pub(super) fn new(remote: Remote) -> Self {
        Self {
            remote,
            ..Self::default()
        }
    }

    /// Where the next run goes; `None`: nowhere before [`retry_at`](Self::retry_at).
    pub(super) fn next(&self, now: Duration) -> Option<Storage> {
        let is_due = |storage: &Storage| {
            let health = self.health(*storage);
            health.failure.is_none() || now >= health.retry_at
        };
        self.all().find(is_due)
    }

    /// A run was written.
    pub(super) fn written(&mut self, storage: Storage) {
        *self.health_mut(storage) = Health::default();
    }

    /// A run could not be written.
    pub(super) fn failed(
        &mut self,
        storage: Storage,
        reason: Arc<str>,
        now: Duration,
        config: &Config,
    ) {
        let health = self.health_mut(storage);
        let soon = now + pause(config, health.failures);
        health.failures += 1;
        health.failure = Some(reason);
        health.retry_at = now + config.pause * ELSEWHERE;
        if self.is_failing() {
            // Nothing takes rows: each is tried soon.
            for health in [&mut self.local, &mut self.store] {
                health.retry_at = health.retry_at.min(soon);
            }
        }
    }

    /// Whether nothing could be written anywhere.
    pub(super) fn is_failing(&self) -> bool {
        self.all()
            .all(|storage| self.health(storage).failure.is_some())
    }

    /// When something is to be written again, if it could not be anywhere.
    pub(super) fn retry_at(&self) -> Option<Duration> {
        let due = self.all().map(|storage| self.health(storage).retry_at);
        due.min().filter(|_| self.is_failing())
    }

    /// When the remote store is to be tried again, if all runs are to go there.
    pub(super) fn upload_at(&self) -> Duration {
        match self.store.failure {
            Some(_) => self.store.retry_at,
            None => Duration::ZERO,
        }
    }

    /// Why nothing could be written anywhere.
    pub(super) fn failure(&self) -> Option<String> {
        let of = |storage| self.health(storage).failure.as_deref();
        let disks = of(Storage::Local)?;
        match self.remote {
            Remote::None => Some(format!("it cannot write to its disks: {disks}")),
            Remote::WhenFull | Remote::First => of(Storage::Remote).map(|store| {
                format!("it cannot write to its disks: {disks}, nor to the remote store: {store}")
            }),
        }
    }

    /// All that there are, in the order in which they are tried.
    fn all(&self) -> impl Iterator<Item = Storage> + use<> {
        let (first, second) = match self.remote {
            Remote::None => (Storage::Local, None),
            Remote::WhenFull => (Storage::Local, Some(Storage::Remote)),
            Remote::First => (Storage::Remote, Some(Storage::Local)),
        };
        let second = second.filter(|_| Guard::Elsewhere.holds());
        core::iter::once(first).chain(second)
    }

    fn health(&self, storage: Storage) -> &Health {
        match storage {
            Storage::Local => &self.local,
            Storage::Remote => &self.store,
        }
    }

    fn health_mut(&mut self, storage: Storage) -> &mut Health {
        match storage {
            Storage::Local => &mut self.local,
            Storage::Remote => &mut self.store,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            pause: Duration::from_millis(1),
            ..Config::default()
        }
    }

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn what_disks_do_not_take_goes_to_the_remote_store_until_they_are_due() {
        let mut storages = Storages::new(Remote::WhenFull);
        assert_eq!(storages.next(at(0)), Some(Storage::Local));
        storages.failed(Storage::Local, "full".into(), at(0), &config());
        assert_eq!(storages.next(at(0)), Some(Storage::Remote));
        assert!(!storages.is_failing() && storages.failure().is_none());
        assert_eq!(storages.retry_at(), None, "nothing waits");
        storages.written(Storage::Remote);
        assert_eq!(storages.next(at(1_023)), Some(Storage::Remote));
        assert_eq!(storages.next(at(1_024)), Some(Storage::Local));
        storages.written(Storage::Local);
        assert_eq!(storages.next(at(0)), Some(Storage::Local));
    }

    #[test]
    fn if_both_fail_both_are_named_and_tried_soon() {
        let mut storages = Storages::new(Remote::First);
        assert_eq!(storages.next(at(0)), Some(Storage::Remote));
        storages.failed(Storage::Remote, "503".into(), at(0), &config());
        assert_eq!(storages.next(at(0)), Some(Storage::Local));
        storages.failed(Storage::Local, "full".into(), at(0), &config());
        assert_eq!(storages.next(at(0)), None);
        assert_eq!(storages.retry_at(), Some(at(1)));
        assert_eq!(storages.next(at(1)), Some(Storage::Remote));
        storages.failed(Storage::Remote, "503".into(), at(1), &config());
        assert_eq!(
            storages.next(at(1)),
            Some(Storage::Local),
            "each has its turn"
        );
        let failure = storages.failure().unwrap_or_default();
        assert!(
            failure.contains("its disks: full, nor to the remote store: 503"),
            "{failure}"
        );
        storages.written(Storage::Local);
        assert!(!storages.is_failing());
    }

    #[test]
    fn without_a_remote_store_disks_are_tried_after_longer_and_longer_pauses() {
        let mut storages = Storages::new(Remote::None);
        for tries in 0..8 {
            storages.failed(Storage::Local, "full".into(), at(0), &config());
            let due = at(1 << tries.min(5));
            assert_eq!(storages.retry_at(), Some(due));
            assert_eq!(
                (storages.next(due), storages.next(at(0))),
                (Some(Storage::Local), None)
            );
        }
    }
}
