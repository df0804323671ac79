//! The connection of a server to the registry, which is a master, too. Without it the server goes on for the
//! masters that it has, and tries to reach the registry again.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::{info, warn};
use treadle_net::{Address, Options, Peer, Wait};
use treadle_reactor::thread::lock;

use crate::ServiceError;
use crate::joining;
use crate::server::links::Links;
use crate::wire::Welcome;

/// The pause between attempts to reach the registry, and how long one may take.
const PAUSE: Duration = Duration::from_millis(250);
const MOST: Duration = Duration::from_secs(15);

/// The connection to the registry.
#[derive(Debug)]
pub(super) struct Registration {
    pub(super) address: Address,
    pub(super) net: Options,
    /// For how long the server goes on without the registry. `None`: for ever.
    pub(super) patience: Option<Duration>,
    over: Mutex<Option<String>>,
    changed: Condvar,
    peer: Mutex<Option<Peer>>,
}

impl Registration {
    pub(super) fn new(address: Address, net: Options, patience: Option<Duration>) -> Self {
        Self {
            address,
            net,
            patience,
            over: Mutex::default(),
            changed: Condvar::new(),
            peer: Mutex::default(),
        }
    }

    /// Ends the server. What was said first counts.
    pub(super) fn end(&self, reason: &str) {
        lock(&self.over).get_or_insert_with(|| reason.into());
        self.changed.notify_all();
        if let Some(peer) = &*lock(&self.peer) {
            peer.start_close();
        }
    }

    pub(super) fn over(&self) -> Option<String> {
        lock(&self.over).clone()
    }

    /// Waits until it is over. `None`: the time has passed.
    pub(super) fn wait(&self, most: Duration) -> Option<String> {
        let over = lock(&self.over);
        let waited = self
            .changed
            .wait_timeout_while(over, most, |over| over.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// The connection over which the server asks the registry.
    pub(super) fn peer(&self) -> Option<Peer> {
        lock(&self.peer).clone()
    }

    /// Hears the registry, and joins it again whenever it is gone, until the server ends.
    pub(super) fn follow(&self, links: &Arc<Links>, mut peer: Peer, mut welcome: Welcome) {
        loop {
            *lock(&self.peer) = Some(peer.clone());
            let link = links.open(peer.clone(), &welcome, None);
            let error = {
                let mut broken = None;
                let mut is_over = || self.over().is_some();
                let error = joining::attend(&peer, &mut is_over, &mut || (), &mut |kind, bytes| {
                    if let Err(reason) = links.hear(link, kind, bytes) {
                        broken = Some(reason);
                        peer.start_close();
                    }
                });
                broken.unwrap_or_else(|| error.to_string())
            };
            links.close(link);
            *lock(&self.peer) = None;
            if self.over().is_some() {
                return;
            }
            let address = &self.address;
            warn!(target: treadle_log::SHUFFLE,
                "the shuffle master at {address} is gone: {error}. Its own shuffles end here, and those of \
                 other masters go on");
            let Some(again) = self.join_again(links) else {
                return;
            };
            (peer, welcome) = again;
            info!(target: treadle_log::SHUFFLE, "the shuffle master at {address} is back");
        }
    }

    fn join_again(&self, links: &Links) -> Option<(Peer, Welcome)> {
        let since = Instant::now();
        let mut said = false;
        loop {
            if self.wait(PAUSE).is_some() {
                return None;
            }
            if self
                .patience
                .is_some_and(|patience| since.elapsed() >= patience)
            {
                self.end(&format!("the shuffle master at {} is gone", self.address));
                return None;
            }
            let mut is_over = || self.over().is_some();
            let mut wait = Wait {
                deadline: Some(Instant::now() + MOST),
                interrupted: Some(&mut is_over),
            };
            match joining::join(&self.address, &self.net, &links.hello(), &mut wait) {
                Ok(joined) => return Some(joined),
                Err(ServiceError::Net(_)) => {}
                Err(error) if !said => {
                    said = true;
                    warn!(target: treadle_log::SHUFFLE, "{error}");
                }
                Err(_) => {}
            }
        }
    }
}
