//! Where registries that are no masters say that those of applications are.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use treadle_net::Wait;
use treadle_shuffle_registry::{Config, Credentials, Location, Master, RegistryError, open};

use crate::attempts::stopped;
use crate::{At, Error};

/// The longest wait for an answer.
const MOST: Duration = Duration::from_secs(30);

/// Where the master of a shuffle is.
///
/// # Errors
/// [`Error::Refused`]: it has ended. [`Error::Registry`]; [`Error::Invalid`]; [`Error::TimedOut`];
/// [`Error::Interrupted`].
pub(crate) fn master_of(
    location: &Location,
    shuffle: u64,
    at: &At,
    wait: &mut Wait<'_>,
) -> Result<String, Error> {
    let masters = asked(location, at, wait)?;
    let mut masters = masters.into_iter();
    let found = masters.find(|master| u64::from(master.number) == shuffle >> 32);
    let ended = || Error::Refused {
        at: at.clone(),
        reason: format!("{location} has no master of shuffle {shuffle}: it has ended"),
    };
    found.map(|master| master.address).ok_or_else(ended)
}

/// Asks on another thread, as the wait may be interrupted before there is an answer.
fn asked(location: &Location, at: &At, wait: &mut Wait<'_>) -> Result<Vec<Master>, Error> {
    let left = wait.deadline.map_or(MOST, |deadline| {
        deadline.saturating_duration_since(Instant::now()).min(MOST)
    });
    let (tell, told) = mpsc::channel();
    let url = location.clone();
    let ask = move || {
        // Nobody hears it after an interrupt.
        let _ = tell.send(masters(&url, left));
    };
    let thread = thread::Builder::new().name("treadle-masters".into());
    thread.spawn(ask).map_err(|error| Error::Failed {
        at: at.clone(),
        reason: format!("starting a thread: {error}"),
    })?;
    loop {
        match told.recv_timeout(wait.look()) {
            Ok(masters) => return masters.map_err(|error| Error::of_registry(&error, at)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::Failed {
                    at: at.clone(),
                    reason: format!("asking {location} has failed: this is a bug"),
                });
            }
        }
        if let Some(stopped) = stopped(wait, at) {
            return Err(stopped);
        }
    }
}

fn masters(location: &Location, timeout: Duration) -> Result<Vec<Master>, RegistryError> {
    let credentials = Credentials::from_environment()?;
    open(location, &credentials, &Config::default())?.masters(timeout)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_registry_that_says_nothing_is_not_waited_for_longer_than_the_caller_wants() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("etcd://{}/treadle", silent.local_addr().unwrap());
        let location: Location = url.parse().unwrap();
        let at = At::Service("attaching".into());
        let mut looks = 0;
        let mut interrupted = || {
            looks += 1;
            looks > 2
        };
        let mut wait = Wait::within(Duration::from_secs(60)).unless(&mut interrupted);
        let error = master_of(&location, 7 << 32, &at, &mut wait).unwrap_err();
        assert!(matches!(error, Error::Interrupted { .. }), "{error:?}");
        let mut wait = Wait::within(Duration::from_millis(100));
        let error = master_of(&location, 7 << 32, &at, &mut wait).unwrap_err();
        let is_late = matches!(error, Error::TimedOut { .. } | Error::Registry { .. });
        assert!(is_late, "{error:?}");
    }
}
