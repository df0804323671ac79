//! The connection of a server to a master that is the registry of others, too. Without it the server goes on for the
//! masters that it has, and tries to reach the registry again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tracing::{info, warn};
use treadle_net::{Address, Options, Peer, Wait};

use crate::ServiceError;
use crate::joining;
use crate::server::end::End;
use crate::server::links::Links;
use crate::wire::Welcome;

/// The pause between attempts to reach the registry, and how long one may take.
const PAUSE: Duration = Duration::from_millis(250);
const MOST: Duration = Duration::from_secs(15);

/// The connection to the registry.
pub(in crate::server) struct AtMaster {
    address: Address,
    location: String,
    net: Options,
    /// For how long the server goes on without the registry. `None`: for ever.
    patience: Option<Duration>,
    is_there: AtomicBool,
}

impl AtMaster {
    pub(super) fn new(address: Address, net: Options, patience: Option<Duration>) -> Self {
        Self {
            location: address.to_string(),
            address,
            net,
            patience,
            is_there: AtomicBool::new(true),
        }
    }

    pub(super) fn location(&self) -> &str {
        &self.location
    }

    pub(super) fn trouble(&self) -> Option<String> {
        let is_there = self.is_there.load(Ordering::Relaxed);
        (!is_there).then(|| format!("the shuffle master at {} is gone", self.location))
    }

    /// Hears the registry, and joins it again whenever it is gone, until the server ends.
    pub(super) fn follow(
        &self,
        links: &Arc<Links>,
        end: &End,
        mut peer: Peer,
        mut welcome: Welcome,
    ) {
        loop {
            self.is_there.store(true, Ordering::Relaxed);
            let link = links.open_own(peer.clone(), &welcome);
            let error = {
                let mut broken = None;
                let mut is_over = || end.is_over();
                let error = joining::attend(&peer, &mut is_over, &mut || (), &mut |kind, bytes| {
                    if let Err(reason) = links.hear(link, kind, bytes) {
                        broken = Some(reason);
                        peer.start_close();
                    }
                });
                broken.unwrap_or_else(|| error.to_string())
            };
            links.close(link);
            self.is_there.store(false, Ordering::Relaxed);
            if end.is_over() {
                return;
            }
            let address = &self.address;
            warn!(target: treadle_log::SHUFFLE,
                "the shuffle master at {address} is gone: {error}. Its own shuffles end here, and those of \
                 other masters go on");
            let Some(again) = self.join_again(links, end) else {
                return;
            };
            (peer, welcome) = again;
            info!(target: treadle_log::SHUFFLE, "the shuffle master at {address} is back");
        }
    }

    fn join_again(&self, links: &Links, end: &End) -> Option<(Peer, Welcome)> {
        let since = Instant::now();
        let mut said = false;
        loop {
            if end.wait(PAUSE).is_some() {
                return None;
            }
            if self
                .patience
                .is_some_and(|patience| since.elapsed() >= patience)
            {
                end.end(&format!("the shuffle master at {} is gone", self.address));
                return None;
            }
            let mut is_over = || end.is_over();
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
