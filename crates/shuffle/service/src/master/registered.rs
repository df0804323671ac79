//! The connection of an application's master to the registry. Without it the master goes on with the servers that
//! it has, and tries to reach the registry again.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tracing::{info, warn};
use treadle_net::Wait;
use treadle_reactor::thread::lock;

use crate::ServiceError;
use crate::master::Inner;
use crate::member::{Member, MemberOptions};
use crate::wire::Claim;

/// How often it is looked whether the registry or the master is gone.
const LOOK: Duration = Duration::from_millis(100);
/// The pause between attempts to reach the registry, and how long one may take.
const PAUSE: Duration = Duration::from_millis(250);
const MOST: Duration = Duration::from_secs(15);

/// Says where the master is, and asks which servers there are.
///
/// # Errors
/// The registry refuses the master, or the application has another one.
pub(super) fn register(
    inner: &Arc<Inner>,
    registry: &MemberOptions,
    member: &Member,
) -> Result<(), ServiceError> {
    let until = Instant::now() + MOST;
    let mut interrupted = || Instant::now() >= until;
    let claim = Claim {
        application: registry.tenant.application.0,
        address: inner.contact.clone(),
        master: inner.number,
    };
    if let Some(other) = member.claim(claim, &mut interrupted)? {
        return Err(ServiceError::Elsewhere(other));
    }
    let weak = Arc::downgrade(inner);
    let learn = move |servers| {
        if let Some(inner) = weak.upgrade() {
            inner.learn(servers);
        }
    };
    member.servers(Box::new(learn), &mut interrupted)
}

/// Keeps the connection to the registry, as long as the master is there.
pub(super) fn follow(inner: &Weak<Inner>, registry: &MemberOptions, mut member: Member) {
    let address = &registry.master;
    loop {
        while member.wait(LOOK).is_none() {
            if is_over(inner) {
                return;
            }
            tell_records(inner, &member);
        }
        if is_over(inner) {
            return;
        }
        warn!(target: treadle_log::SHUFFLE,
            "the registry of shuffle servers at {address} is gone: shuffles go on with the servers that are known");
        let mut said = false;
        member = loop {
            std::thread::sleep(PAUSE);
            let Some(inner) = inner.upgrade().filter(|inner| !*lock(&inner.over)) else {
                return;
            };
            let mut wait = Wait {
                deadline: Some(Instant::now() + MOST),
                interrupted: None,
            };
            let joined = Member::connect(registry.clone(), &mut wait)
                .and_then(|member| register(&inner, registry, &member).map(|()| member));
            match joined {
                Ok(member) => break member,
                Err(ServiceError::Net(_) | ServiceError::Over(_) | ServiceError::Late) => {}
                Err(error) if !said => {
                    said = true;
                    warn!(target: treadle_log::SHUFFLE,
                        "the registry of shuffle servers at {address} does not take this master: {error}");
                }
                Err(_) => {}
            }
        };
        info!(target: treadle_log::SHUFFLE, "the registry of shuffle servers at {address} is back");
    }
}

/// The registry keeps the records of all applications, for its journal.
fn tell_records(inner: &Weak<Inner>, member: &Member) {
    let untold = inner
        .upgrade()
        .and_then(|inner| lock(&inner.state).records.take_untold());
    if let Some(untold) = untold {
        let until = Instant::now() + MOST;
        let told = member.ended(untold, &mut || Instant::now() >= until);
        if let Some(inner) = inner.upgrade() {
            lock(&inner.state).records.told_registry();
        }
        if let Err(error) = told {
            warn!(target: treadle_log::SHUFFLE, "records of shuffles are missing in the registry: {error}");
        }
    }
}

fn is_over(inner: &Weak<Inner>) -> bool {
    inner.upgrade().is_none_or(|inner| *lock(&inner.over))
}
